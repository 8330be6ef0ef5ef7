"""Numbers, texts and lists in bytes, for ``records.py``: what is written is read back, anything else is refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from headrace_common.core.errors import DataLost

_ABSENT: Final = 0xFFFFFFFF


class RecordDamaged(DataLost):
    """A record in an internal topic is not what a coordinator writes."""


class Writer:
    """Puts values one after the other. Texts and blobs have their length before them, lists their count (u32)."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def joined(self) -> bytes:
        """All that was written."""
        return b"".join(self._parts)

    def u8(self, value: int) -> None:
        """0 to 255."""
        self._parts.append(struct.pack(">B", value))

    def u32(self, value: int) -> None:
        """0 to 2^32 - 1."""
        self._parts.append(struct.pack(">I", value))

    def i32(self, value: int) -> None:
        """Signed."""
        self._parts.append(struct.pack(">i", value))

    def i64(self, value: int) -> None:
        """Signed."""
        self._parts.append(struct.pack(">q", value))

    def blob(self, value: bytes) -> None:
        """Any bytes."""
        self._parts.append(struct.pack(">I", len(value)))
        self._parts.append(value)

    def text(self, value: str) -> None:
        """UTF-8."""
        self.blob(value.encode())

    def optional_text(self, value: str | None) -> None:
        """UTF-8, or nothing."""
        if value is None:
            self.u32(_ABSENT)
        else:
            self.text(value)

    def texts(self, values: Sequence[str]) -> None:
        """A list of texts."""
        self._parts.append(packed_texts(values))

    def raw(self, packed: bytes) -> None:
        """What ``packed_texts`` made."""
        self._parts.append(packed)

    def i32s(self, values: Sequence[int]) -> None:
        """A list of signed numbers."""
        self._parts.append(struct.pack(f">I{len(values)}i", len(values), *values))


def packed_texts(values: Sequence[str]) -> bytes:
    """A list of texts as ``Writer.texts`` writes it, for lists that are written many times."""
    encoded = [value.encode() for value in values]
    return len(encoded).to_bytes(4, "big") + b"".join([len(text).to_bytes(4, "big") + text for text in encoded])


class Reader:
    """
    Takes values in the order in which they were written.

    Raises:
        RecordDamaged: from each method, if the bytes end too early or are not what is asked for.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def end(self) -> None:
        """Nothing may be left."""
        if self._at != len(self._data):
            raise RecordDamaged(f"a group record has {len(self._data) - self._at} bytes more than it should")

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise RecordDamaged(f"a group record ends at byte {len(self._data)}, where {self._at} were expected")
        return self._data[start : self._at]

    def u8(self) -> int:
        """0 to 255."""
        return self._take(1)[0]

    def u32(self) -> int:
        """0 to 2^32 - 1."""
        return int.from_bytes(self._take(4), "big")

    def i32(self) -> int:
        """Signed."""
        return int.from_bytes(self._take(4), "big", signed=True)

    def i64(self) -> int:
        """Signed."""
        return int.from_bytes(self._take(8), "big", signed=True)

    def blob(self) -> bytes:
        """Any bytes."""
        return self._take(self.u32())

    def text(self) -> str:
        """UTF-8."""
        return self._decoded(self.u32())

    def optional_text(self) -> str | None:
        """UTF-8, or nothing."""
        size = self.u32()
        return None if size == _ABSENT else self._decoded(size)

    def _decoded(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise RecordDamaged(f"a text in a group record is not UTF-8: {error}") from error

    def count(self) -> range:
        """As many steps as entries follow; not more than there are bytes left, so that rubbish costs nothing."""
        size = self.u32()
        if size > len(self._data) - self._at:
            raise RecordDamaged(f"a group record announces {size} entries in {len(self._data) - self._at} bytes")
        return range(size)

    def texts(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(self.text() for _ in self.count())

    def i32s(self) -> tuple[int, ...]:
        """A list of signed numbers."""
        size = self.u32()
        return struct.unpack(f">{size}i", self._take(4 * size))
