"""Kafka's protocol, as the twin needs it: primitive types, and batches of one record."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


class In:
    """Reads."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def int8(self) -> int:
        return self._number(">b")

    def int16(self) -> int:
        return self._number(">h")

    def int32(self) -> int:
        return self._number(">i")

    def int64(self) -> int:
        return self._number(">q")

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def string(self) -> Any:
        size = self.int16()
        return None if size < 0 else self.take(size).decode()

    def compact_string(self) -> Any:
        size = self.varint()
        return None if not size else self.take(size - 1).decode()

    def array(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(max(0, self.int32()))]

    def compact(self, read: Callable[[], T]) -> list[T] | None:
        size = self.varint()
        return [read() for _ in range(size - 1)] if size else None

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


class Out:
    """Writes."""

    def __init__(self) -> None:
        self.parts = bytearray()

    def raw(self, data: bytes) -> Out:
        self.parts += data
        return self

    def int8(self, value: int) -> Out:
        return self.raw(struct.pack(">b", value))

    def int16(self, value: int) -> Out:
        return self.raw(struct.pack(">h", value))

    def int32(self, value: int) -> Out:
        return self.raw(struct.pack(">i", value))

    def int64(self, value: int) -> Out:
        return self.raw(struct.pack(">q", value))

    def varint(self, value: int) -> Out:
        while value >= 0x80:
            self.parts.append(value & 0x7F | 0x80)
            value >>= 7
        self.parts.append(value)
        return self

    def signed(self, value: int) -> Out:
        """As in records."""
        return self.varint((value << 1) ^ (value >> 63))

    def string(self, value: str | None) -> Out:
        return self.int16(-1) if value is None else self.int16(len(value.encode())).raw(value.encode())

    def compact_string(self, value: str | None) -> Out:
        return self.varint(0) if value is None else self.varint(len(value.encode()) + 1).raw(value.encode())

    def bytes_(self, value: bytes) -> Out:
        return self.int32(len(value)).raw(value)

    def sized(self, value: bytes | None) -> Out:
        """As in records."""
        return self.signed(-1) if value is None else self.signed(len(value)).raw(value)

    def array(self, values: Iterable[T], write: Callable[[T], Any]) -> Out:
        listed = list(values)
        self.int32(len(listed))
        for one in listed:
            write(one)
        return self

    def compact(self, values: Iterable[T], write: Callable[[T], Any]) -> Out:
        listed = list(values)
        self.varint(len(listed) + 1)
        for one in listed:
            write(one)
        return self

    def tags(self) -> Out:
        return self.varint(0)


def encode_record(offset: int, pid: int, record: Any) -> bytes:
    """
    Args:
        pid: of a transaction; -1: of none.
        record: key, value, headers, time.
    """
    key, value, headers, timestamp_ms = record
    return _batch(offset, pid, _TRANSACTIONAL if pid >= 0 else 0, timestamp_ms, key, value, headers)


def encode_marker(offset: int, pid: int, commits: bool) -> bytes:
    """The end of a transaction."""
    key = struct.pack(">hh", 0, int(commits))
    return _batch(offset, pid, _TRANSACTIONAL | _CONTROL, 1_700_000_000_000, key, struct.pack(">hi", 0, 0), [])


def _batch(offset: int, pid: int, attributes: int, time_ms: int, key: Any, value: Any, headers: Any) -> bytes:
    record = Out().int8(0).signed(0).signed(0).sized(key).sized(value).signed(len(headers))
    for name, content in headers:
        record.sized(name.encode()).sized(content)
    body = Out().int16(attributes).int32(0).int64(time_ms).int64(time_ms).int64(pid).int16(0 if pid >= 0 else -1)
    body.int32(-1).int32(1).sized(bytes(record.parts))
    # the leader's epoch, the magic byte, and a checksum that its client does not look at
    rest = Out().int32(0).int8(2).int32(0).raw(bytes(body.parts))
    return bytes(Out().int64(offset).bytes_(bytes(rest.parts)).parts)
