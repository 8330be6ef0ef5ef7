"""Records to put into batches: hypothesis strategies, and bodies written by hand that no writer would give."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from headrace_common.core.batch import Codec, RecordColumns, build_batch, build_row_batch
from headrace_common.core.batch.header import FIELDS, BatchHeader, seal_batch

BUILDERS = [build_batch, build_row_batch]
CODECS = list(Codec)


@dataclass
class Records:
    """The records of one batch as plain lists."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    timestamps_ms: int | list[int]
    headers: list[list[tuple[str, bytes | None]]] | None

    @property
    def columns(self) -> RecordColumns:
        return RecordColumns(self.values, self.keys, self.timestamps_ms, self.headers)

    @property
    def count(self) -> int:
        return len(self.values)

    def __post_init__(self) -> None:
        self.all_keys = self.keys or [None] * self.count
        stamps = self.timestamps_ms
        self.all_timestamps = [stamps] * self.count if isinstance(stamps, int) else stamps
        self.all_headers: list[list[tuple[str, bytes | None]]] = self.headers or [[] for _ in self.values]


TIMESTAMPS = st.integers(-1, 2**48)
BYTES = st.one_of(st.none(), st.binary(max_size=12))
EQUAL_LENGTH = st.integers(0, 9).flatmap(lambda width: st.binary(min_size=width, max_size=width))
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)


@st.composite
def records(draw: st.DrawFn, count_max: int = 40) -> Records:
    count = draw(st.integers(1, count_max))
    width = draw(st.integers(0, 9))
    one_width = st.binary(min_size=width, max_size=width)

    def column(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(of, min_size=count, max_size=count)

    return Records(
        values=draw(st.one_of(column(BYTES), column(one_width), st.just([None] * count))),
        keys=draw(st.one_of(st.none(), column(BYTES), column(one_width), st.just([None] * count))),
        timestamps_ms=draw(st.one_of(TIMESTAMPS, column(TIMESTAMPS))),
        headers=draw(st.one_of(st.none(), column(HEADERS))),
    )


def header_of(count: int, **changes: int) -> BatchHeader:
    fields = BatchHeader(0, 0, -1, 3, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    return fields._replace(**changes)


def seal(header: BatchHeader, rest: bytes) -> bytes:
    """A batch with these bytes after the 61 of the header: right length and CRC, whatever else is wrong."""
    size = FIELDS.size + len(rest)
    return seal_batch([FIELDS.pack(*header._replace(batch_length=size - 12)), rest], size)


def reseal(batch: bytes) -> bytes:
    """``batch`` with the length and the CRC that its bytes should have."""
    return seal(BatchHeader._make(FIELDS.unpack_from(batch)), batch[FIELDS.size :])


def column_batch(
    count: int, columns: Sequence[tuple[int, int, bytes]], tail: bytes = b"", reserved: int = 0, **changes: int
) -> bytes:
    """A magic 3 batch of columns (id, flags, bytes), of which the last gets the flag that ends the directory."""
    directory, data = b"", b""
    for index, (column_id, flags, content) in enumerate(columns):
        last = 0x80 if index == len(columns) - 1 else 0
        directory += struct.pack("<BBHI", column_id, flags | last, reserved, len(content))
        data += content + (b"" if last else bytes(-len(content) % 8))
    return seal(header_of(count, **changes), b"\0\0\0" + directory + data + tail)


def int32s(*numbers: int) -> bytes:
    packed = struct.pack(f"<{len(numbers)}i", *numbers)
    return packed + bytes(-len(packed) % 8)


def varint(number: int) -> bytes:
    """Zigzag, as in Kafka's rows."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def row(delta: int = 0, key: bytes = varint(-1), value: bytes = varint(0), headers: bytes = varint(0)) -> bytes:
    """One record of a magic 2 batch."""
    rest = b"\0" + varint(0) + varint(delta) + key + value + headers
    return varint(len(rest)) + rest
