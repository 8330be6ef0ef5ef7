"""
Events of connectors, for people: what a connector tells, and what becomes of its tasks. Of each connector the last ones
are kept in memory; all that were not too old are in the topic of events.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

VERSION: Final = 1
LIMITED: Final = "limited"
"""A connector has fewer tasks than it could use."""
KEPT_MAX: Final = 100
"""Of a connector."""
CONNECTORS_MAX: Final = 2_000
"""Of which events are kept; those that had none for longest are forgotten."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event."""

    connector: str
    at_ms: int
    kind: str
    """``drift`` or ``snapshot``, ``failed``, ``restarting``, ``running`` again, ``LIMITED``, or a connector's own."""
    text: str
    task: int | None = None
    """None: of the connector itself."""
    worker_id: str = ""
    detail: Mapping[str, str] = field(default_factory=dict, hash=False)


def encode(event: Happened, group: str) -> tuple[bytes, bytes]:
    """Key and value; ``group`` is the Connect cluster, for several may share the topic."""
    value = {
        "version": VERSION,
        "group": group,
        "at": event.at_ms,
        "connector": event.connector,
        "task": event.task,
        "worker_id": event.worker_id,
        "kind": event.kind,
        "text": event.text,
        "detail": dict(event.detail),
    }
    return event.connector.encode(), orjson.dumps(value)


def decode(value: bytes | None, group: str) -> Happened | None:
    """None: it is of another Connect cluster, of a newer version, or none of ours."""
    try:
        given: Any = orjson.loads(value or b"")
        if given["version"] != VERSION or given["group"] != group:
            return None
        detail = {str(key): str(text) for key, text in given["detail"].items()}
        task = None if given["task"] is None else int(given["task"])
        return Happened(
            str(given["connector"]),
            int(given["at"]),
            str(given["kind"]),
            str(given["text"]),
            task,
            str(given["worker_id"]),
            detail,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class Kept:
    """The last events of each connector."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Happened]] = OrderedDict()

    def add(self, event: Happened) -> None:
        """In the order of the topic."""
        own = self._of.setdefault(event.connector, deque(maxlen=KEPT_MAX))
        own.append(event)
        self._of.move_to_end(event.connector)
        if len(self._of) > CONNECTORS_MAX:
            self._of.popitem(last=False)

    def find(self, connector: str, limit: int, kind: str | None = None) -> Sequence[Happened]:
        """The newest, in their order."""
        found = [event for event in self._of.get(connector, ()) if kind in (None, event.kind)]
        return found[-limit:]

    def clear(self) -> None:
        """They are read anew."""
        self._of.clear()
