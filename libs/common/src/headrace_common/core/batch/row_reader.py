"""
A reader of Kafka's rows (magic 2) in Python alone, for where aiokafka's C codec is not installed.

``rows`` chooses between the two. This one reads what the codec reads and refuses what it refuses, number by number: a
consumer must not stop at a batch that a broker with the codec has taken. Records follow from each other, so each is
read from where the one before it ended.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace_common.core.batch.column_reader import Body
from headrace_common.core.batch.decoded import Headers
from headrace_common.core.batch.header import HEADERS_PER_BATCH_MAX, INT64_MAX, TIMESTAMP_TYPE_BIT, BatchHeader
from headrace_common.core.errors import CorruptBatch

_BYTES_MAX: Final = 10
"""Of a number; what goes past 64 bits in the last of them is dropped, as in C."""
_UINT64: Final = 2**64 - 1
_SHORT: Final = [(byte >> 1) ^ -(byte & 1) for byte in range(0x80)]
"""The numbers of one byte."""


class Rows(NamedTuple):
    """The records of a batch, field by field."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]


def read_rows(header: BatchHeader, rows: Body) -> Rows:
    """
    The records in ``rows``, which are inflated; whether their offsets fit the batch is for the caller to check.

    Holds one copy of ``rows`` and what it has read from them, and never more headers than twice those of a batch.

    Raises:
        CorruptBatch: ``rows`` are not as many records as ``header`` says and nothing else.
    """
    inflated, at, header_count = bytes(rows), 0, 0
    offset_deltas, timestamp_deltas, keys, values, lists = read = Rows([], [], [], [], [])
    try:
        for _ in range(header.record_count):
            at = _read_record(inflated, at, read)
            header_count += len(lists[-1])
            if header_count > HEADERS_PER_BATCH_MAX:
                raise CorruptBatch(f"a batch holds at most {HEADERS_PER_BATCH_MAX} record headers; this one has more")
    except IndexError:
        raise CorruptBatch("the last record is cut off") from None
    if at != len(inflated):
        raise CorruptBatch(f"the records end at byte {at} of {len(inflated)}")
    offsets = [header.base_offset + delta for delta in offset_deltas]
    return Rows(offsets, _timestamps(header, timestamp_deltas), keys, values, lists)


def _timestamps(header: BatchHeader, deltas: list[int]) -> list[int]:
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return [header.max_timestamp] * len(deltas)
    timestamps = [header.base_timestamp + delta for delta in deltas]
    if min(timestamps) < -INT64_MAX - 1 or max(timestamps) > INT64_MAX:
        return [((each + INT64_MAX + 1) & _UINT64) - INT64_MAX - 1 for each in timestamps]  # 64 bits, as in C
    return timestamps


def _read_record(rows: bytes, at: int, read: Rows) -> int:
    """
    Add the record at ``at`` to ``read``, its timestamp and offset as differences; returns where the next begins.

    A field that goes past the end is cut off, not refused at once: no step goes back, so the last record then does not
    end where ``rows`` do. Short numbers that are many are read in place: a call for each would take half of the time.
    """
    length, at = read_number(rows, at)
    end = at + length
    at = at + 1 if rows[at] < 0x80 else read_number(rows, at)[1]  # attributes
    timestamp_delta, at = read_number(rows, at)
    offset_delta, at = read_number(rows, at)
    if (size := rows[at]) < 0x80:
        size, at = _SHORT[size], at + 1
    else:
        size, at = read_number(rows, at)
    key = None if size < 0 else rows[at : (at := at + size)]
    size, at = read_number(rows, at)
    value = None if size < 0 else rows[at : (at := at + size)]
    headers: Headers = []
    if rows[at]:
        headers, at = _read_headers(rows, *read_number(rows, at))
    else:
        at += 1
    if at != end:
        raise CorruptBatch(f"a record of {length} bytes does not end where it says")
    read.timestamps.append(timestamp_delta)
    read.offsets.append(offset_delta)
    read.keys.append(key)
    read.values.append(value)
    read.headers.append(headers)
    return at


def _read_headers(rows: bytes, count: int, at: int) -> tuple[Headers, int]:
    if not 0 <= count <= HEADERS_PER_BATCH_MAX:
        raise CorruptBatch(f"a batch holds at most {HEADERS_PER_BATCH_MAX} record headers; one has {count}")
    headers: Headers = []
    try:
        for _ in range(count):
            if (size := rows[at]) < 0x80:
                size, at = _SHORT[size], at + 1
            else:
                size, at = read_number(rows, at)
            if size < 0:
                raise CorruptBatch("a header without a key")
            key = rows[at : (at := at + size)].decode()
            if (size := rows[at]) < 0x80:
                size, at = _SHORT[size], at + 1
            else:
                size, at = read_number(rows, at)
            headers.append((key, None if size < 0 else rows[at : (at := at + size)]))
    except UnicodeDecodeError:
        raise CorruptBatch("a header key is not UTF-8") from None
    return headers, at


def read_number(rows: Body, at: int) -> tuple[int, int]:
    """
    The number at ``at`` (64 bits, zigzag, seven bits a byte), and where the next begins.

    Raises:
        CorruptBatch: it does not end within ``rows``, or within ten bytes.
    """
    try:
        first = rows[at]
        if first < 0x80:
            return _SHORT[first], at + 1
        second = rows[at + 1]
        if second < 0x80:  # most lengths
            number = first & 0x7F | second << 7
            return (number >> 1) ^ -(number & 1), at + 2
        number = first & 0x7F | (second & 0x7F) << 7
        for place in range(2, _BYTES_MAX):
            byte = rows[at + place]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                number &= _UINT64
                return (number >> 1) ^ -(number & 1), at + place + 1
    except IndexError:
        pass
    raise CorruptBatch("a number in a record does not end")
