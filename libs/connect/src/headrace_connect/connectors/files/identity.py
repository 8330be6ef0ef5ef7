"""Which file a position belongs to, and where in it. Decides whether the file under a name is still the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Any, Final, Self

from headrace_connect.connectors.places import Seen

SAMPLE_BYTES: Final = 1_024
_DIGEST_BYTES: Final = 8

ReadAt = Callable[[int, int], bytes]
"""Bytes of the file: where they begin, how many."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Where reading goes on in a file, and what tells whether it is still that file."""

    id: str
    offset: int
    """Text: bytes that were read, of what is decompressed. Parquet and Arrow: row groups that were read."""
    row: int = 0
    """Rows of the row group at ``offset`` that were read."""
    head: str = ""
    """Hash of the first ``head_bytes`` bytes of the file."""
    head_bytes: int = 0
    tail: str = ""
    """Hash of the ``SAMPLE_BYTES`` bytes before ``tail_end``, or of what there is."""
    tail_end: int = 0
    state: str = ""
    """``half``: the last record had no end. ``skip``: within a record that is too long. ``refused``: all is damaged."""

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {name: value for name, value in asdict(self).items() if value not in ("", 0)} | {"offset": self.offset}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """
        Raises:
            ValueError: it is no position of this connector.
        """
        kinds = {one.name: str if one.type == "str" else int for one in fields(cls)}
        for name, value in stored.items():
            if name not in kinds or type(value) is not kinds[name] or (isinstance(value, int) and value < 0):
                raise ValueError(
                    f"{name}={value!r} is not part of a position in a file; delete the connector's offsets"
                )
        if "id" not in stored or "offset" not in stored:
            raise ValueError("a position in a file has an id and an offset; delete the connector's offsets")
        return cls(**stored)


def sample(read_at: ReadAt, tail_end: int, before: FilePosition | None = None) -> dict[str, Any]:
    """
    What a position keeps of the file's bytes before ``tail_end``.

    Args:
        before: an earlier position in the same file; its head need not be read again.
    """
    start = max(0, tail_end - SAMPLE_BYTES)
    tail = _digest(read_at(start, tail_end - start))
    if before is not None and before.head_bytes == SAMPLE_BYTES:
        return {"head": before.head, "head_bytes": SAMPLE_BYTES, "tail": tail, "tail_end": tail_end}
    head_bytes = min(SAMPLE_BYTES, tail_end)
    return {"head": _digest(read_at(0, head_bytes)), "head_bytes": head_bytes, "tail": tail, "tail_end": tail_end}


def find_difference(position: FilePosition, seen: Seen, read_at: ReadAt, by_id: bool) -> str | None:
    """
    Why the file is another one than that of ``position``; None: it is the same, and may have grown.

    Args:
        by_id: another inode or ETag is another file, even if it begins with the same bytes.
    """
    if by_id and position.id != seen.id:
        return "another file has taken its name"
    if seen.size < position.tail_end:
        return f"it has shrunk to {seen.size} bytes"
    if position.head_bytes and position.head != _digest(read_at(0, position.head_bytes)):
        return "it begins in another way"
    if position.tail_end and position.tail != sample(read_at, position.tail_end, position)["tail"]:
        return "what had been read of it has changed"
    return None


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
