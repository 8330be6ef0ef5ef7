"""Where a tap is: its last STATE, and what was sent last by then, as text that a position has room for."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace_connect.connectors.singer.repeats import Edge
from headrace_connect.plugin import Position

BYTES_MAX: Final = 4_000
"""Of a position; what it may have as JSON, with some room for its split."""
_PLAIN_MAX: Final = 1_000
"""What is larger is packed."""
_UNPACKED_MAX: Final = 1 << 20


class StateTooLarge(ValueError):
    """A STATE has no room in a position."""


@dataclass(frozen=True, slots=True)
class Place:
    """Everything before this state is safe."""

    state: Any = None
    """As the tap said it. None: it has said none, or begins anew."""
    edges: Mapping[str, Edge] = field(default_factory=dict, hash=False)
    """By stream."""

    @classmethod
    def of_json(cls, position: Position | None) -> Place:
        """
        Raises:
            ValueError: it is no position of this connector.
        """
        if position is None:
            return cls()
        said: Any = _unpack(position["packed"]) if position.keys() == {"packed"} else position
        if not isinstance(said, Mapping) or "state" not in said or not said.keys() <= {"state", "last"}:
            raise ValueError('it is no position of a tap, which is {"state": what the tap said}')
        edges = said.get("last") or {}
        if not isinstance(edges, Mapping):
            raise ValueError("it is no position of a tap: last is no object")
        return cls(said["state"], {str(stream): Edge.of_json(edge) for stream, edge in edges.items()})

    def to_json(self) -> Position:
        """
        Without edges that it has no room for: of those streams records may come again.

        Raises:
            StateTooLarge: the state alone has no room.
        """
        edges = sorted(self.edges.items(), key=lambda item: len(item[1].marks), reverse=True)
        while True:
            said = {"state": self.state} | ({"last": {name: edge.to_json() for name, edge in edges}} if edges else {})
            position = _fit(said)
            if position is not None:
                return position
            if not edges:
                raise StateTooLarge(
                    f"the state of the tap has {len(_text(self.state))} bytes as JSON, and even compressed more than "
                    f"the {BYTES_MAX} of a position: choose fewer streams (stream.include.list) for each connector"
                )
            del edges[0]


def _text(said: Any) -> bytes:
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"), default=float).encode()


def _fit(said: Mapping[str, Any]) -> Position | None:
    text = _text(said)
    if len(text) <= _PLAIN_MAX:
        return json.loads(text)  # type: ignore[no-any-return]
    packed = base64.b85encode(zlib.compress(text, 9)).decode()
    return {"packed": packed} if len(packed) <= BYTES_MAX else None


def _unpack(packed: Any) -> Any:
    try:
        unzip = zlib.decompressobj()
        text = unzip.decompress(base64.b85decode(packed), _UNPACKED_MAX)
        if unzip.unconsumed_tail:
            raise ValueError(f"more than {_UNPACKED_MAX} bytes")
        return json.loads(text)
    except (ValueError, TypeError, zlib.error) as wrong:
        raise ValueError(f"it is no position of a tap: {wrong}") from None
