"""
Builds magic 3 batches: records in, columns out.

The SDK calls it when it drains a batch, compaction when it rewrites one. Lists are written with the standard library
alone: loading numpy and pyarrow takes longer than most programs send. Arrow columns are a few calls into these two,
whatever the number of records.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.batch.byte_columns import PADDING, Column, Piece, arrow_column, bytes_column, bytes_of
from headrace_common.core.batch.columns import (
    DIRECTORY_ENTRY,
    HEADER_KEY,
    HEADER_VALUE,
    HEADERS,
    KEY,
    LAST_COLUMN,
    OFFSET_DELTA,
    TIMESTAMP,
    VALUE,
    RecordColumns,
)
from headrace_common.core.batch.compression import compress
from headrace_common.core.batch.header import (
    CODEC_MASK,
    FIELDS,
    HEADER_SIZE,
    HEADERS_PER_BATCH_MAX,
    INT32_MAX,
    LENGTH_PREFIX,
    MAGIC_COLUMNS,
    RECORDS_PER_BATCH_MAX,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
    seal_batch,
)
from headrace_common.core.batch.stamp_runs import StampRuns
from headrace_common.core.errors import InvalidRecord, RecordTooLarge

if TYPE_CHECKING:
    from headrace_common.core.batch.columns import HeaderList, IntColumn

_RESERVED: Final = b"\0\0\0"
_INFLATED_LENGTH: Final = struct.Struct("<I")


def build_batch(
    columns: RecordColumns,
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    transactional: bool = False,
) -> bytes:
    """
    One batch of columns. It stays uncompressed, and says so, where ``codec`` would not make it smaller.

    Raises:
        InvalidRecord: no records, columns of different lengths, or header keys that are not text.
        RecordTooLarge: more records or bytes than one batch can have.
        TypeError: a key or a value is not bytes.
    """
    count = columns.check_lengths()
    if count > RECORDS_PER_BATCH_MAX:
        raise RecordTooLarge(f"{count} records are more than the {RECORDS_PER_BATCH_MAX} that one batch may hold")
    base_timestamp, max_timestamp, timestamps = _timestamps(columns.timestamps_ms, count)
    last_offset_delta, deltas = _offset_deltas(columns, count)
    header = BatchHeader(
        base_offset,
        0,  # batch_length and crc are known at the end
        leader_epoch,
        MAGIC_COLUMNS,
        0,
        TRANSACTIONAL_BIT if transactional else 0,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return assemble(header, [*timestamps, *deltas, *record_columns(columns, count)], codec)


def build_sparse(
    header: BatchHeader, keep: Any, *, deltas: Any, timestamps: Any, keys: Any, headers: Any, values: Any
) -> bytes:
    """
    The batch of ``header`` with only those records for which the numpy mask ``keep`` is true, of the same codec.

    The others are numpy and Arrow arrays over all records; None: there is no such column. Vector code throughout.
    """
    import numpy as np
    import pyarrow as pa

    kept = np.flatnonzero(keep).astype("<i4") if deltas is None else deltas[keep]
    count, chosen = len(kept), pa.array(keep)
    written: list[Column] = []
    if timestamps is not None:
        written.append(Column(TIMESTAMP, 0, [bytes_of(timestamps[keep])], 8 * count))
    written.append(Column(OFFSET_DELTA, 0, [bytes_of(kept)], 4 * count))
    if keys is not None and (key := arrow_column(KEY, keys.filter(chosen), count, absent_if_null=True)):
        written.append(key)
    if headers is not None:
        written += _headers_columns_of(headers.filter(chosen))
    value = arrow_column(VALUE, values.filter(chosen), count, absent_if_null=False)
    assert value is not None, "there is always a value column"
    written.append(value)
    plain = header._replace(attributes=header.attributes & ~CODEC_MASK, record_count=count)
    return assemble(plain, written, header.codec)


def record_columns(columns: RecordColumns, count: int) -> list[Column]:
    written: list[Column] = []
    if columns.keys is not None and (key := bytes_column(KEY, columns.keys, count, absent_if_null=True)):
        written.append(key)
    if columns.headers is not None:
        given: Any = columns.headers
        written += _headers_columns_of(given) if hasattr(given, "type") else _headers_columns(given)
    value = bytes_column(VALUE, columns.values, count)
    assert value is not None, "there is always a value column"
    written.append(value)
    return written


def assemble(header: BatchHeader, columns: list[Column], codec: Codec) -> bytes:
    """The batch of a header and its columns: directory, compression, length and CRC."""
    pieces, size = _body(columns)
    if size > INT32_MAX - HEADER_SIZE:
        raise RecordTooLarge(f"{size} bytes are more than one batch can have; send fewer records at a time")
    return seal_columns(header, b"".join(pieces), codec) if codec else _seal_body(header, pieces, size)


def seal_columns(header: BatchHeader, body: bytes | memoryview, codec: Codec) -> bytes:
    """The batch of a body of columns, compressed where that makes it smaller, whatever the codec of ``header``."""
    header = header._replace(attributes=header.attributes & ~CODEC_MASK)
    if codec:
        packed = compress(codec, body)
        if len(packed) + _INFLATED_LENGTH.size < len(body):
            header = header._replace(attributes=header.attributes | codec)
            pieces = [_INFLATED_LENGTH.pack(len(body)), packed]
            return _seal_body(header, pieces, len(packed) + _INFLATED_LENGTH.size)
    return _seal_body(header, [body], len(body))


def _seal_body(header: BatchHeader, pieces: list[Piece], size: int) -> bytes:
    size += HEADER_SIZE
    return seal_batch([FIELDS.pack(header[0], size - LENGTH_PREFIX, *header[2:]), _RESERVED, *pieces], size)


def _body(columns: list[Column]) -> tuple[list[Piece], int]:
    """The directory and the columns, each of which starts at a multiple of 8; and their bytes in all."""
    directory: list[bytes] = []
    pieces: list[Piece] = []
    size, last = DIRECTORY_ENTRY.size * len(columns), columns[-1]
    for column in columns:
        length, flags = column.length, column.flags
        pieces += column.pieces
        size += length
        if column is last:
            flags |= LAST_COLUMN
        elif length & 7:
            padding = PADDING[length & 7]
            pieces.append(padding)
            size += len(padding)
        directory.append(DIRECTORY_ENTRY.pack(column.id, flags, 0, length))
    return directory + pieces, size


def _timestamps(given: int | IntColumn, count: int) -> tuple[int, int, list[Column]]:
    """Base, maximum, and the column unless all are equal."""
    if isinstance(given, int):
        return given, given, []
    if isinstance(given, StampRuns):
        high, packed = given.highest(), given.pack()
    elif hasattr(given, "dtype"):
        numbers: Any = given
        high, packed = int(numbers.max()), numbers.astype("<i8").tobytes()
    else:
        high, packed = int(max(given)), _pack_listed(given)
    first = int(given[0])
    alike = first == high == int(given[-1]) and packed == packed[:8] * count
    return first, high, [] if alike else [Column(TIMESTAMP, 0, [packed], 8 * count)]


def _pack_listed(given: Sequence[int]) -> bytes:
    """
    Raises:
        OverflowError: one does not fit into 64 bits.
    """
    try:
        numbers = array("q", given)
    except TypeError:  # there is one with a fraction, which does not count
        numbers = array("q", map(int, given))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _offset_deltas(columns: RecordColumns, count: int) -> tuple[int, list[Column]]:
    """The last delta, and the column if the batch has holes."""
    if columns.offset_deltas is None and columns.last_offset_delta is None:
        return count - 1, []
    deltas = offset_deltas_of(columns, count)
    last = deltas[-1] if columns.last_offset_delta is None else columns.last_offset_delta
    if last == count - 1:
        return last, []
    return last, [Column(OFFSET_DELTA, 0, [struct.pack(f"<{count}i", *deltas)], 4 * count)]


def offset_deltas_of(columns: RecordColumns, count: int) -> list[int]:
    """
    The offset of each record from the batch's first.

    Raises:
        InvalidRecord: they do not increase, or not within 0 and the last.
    """
    given = range(count) if columns.offset_deltas is None else columns.offset_deltas
    deltas = [int(each) for each in given]
    last = deltas[-1] if columns.last_offset_delta is None else columns.last_offset_delta
    if deltas[0] < 0 or deltas[-1] > last or last > INT32_MAX:
        raise InvalidRecord("offset deltas are between 0 and last_offset_delta")
    if any(after <= before for before, after in pairwise(deltas)):
        raise InvalidRecord("offset deltas increase from record to record")
    return deltas


def _headers_columns(headers: Sequence[HeaderList]) -> list[Column]:
    counts = list(map(len, headers))
    total = sum(counts)
    if not total:
        return []
    if total > HEADERS_PER_BATCH_MAX:
        raise RecordTooLarge(f"{total} headers are more than the {HEADERS_PER_BATCH_MAX} that one batch may hold")
    try:
        keys = [key.encode() for record in headers for key, _ in record]
    except UnicodeEncodeError as failed:
        raise InvalidRecord(f"a header key cannot be written as UTF-8: {failed.reason}") from None
    values = [value for record in headers for _, value in record]
    lists = struct.pack(f"<{len(counts) + 1}i", *accumulate(counts, initial=0))
    key_column = bytes_column(HEADER_KEY, keys, total)
    value_column = bytes_column(HEADER_VALUE, values, total)
    assert key_column is not None, "only columns of nulls can be absent"
    assert value_column is not None, "only columns of nulls can be absent"
    return [Column(HEADERS, 0, [lists], len(lists)), key_column, value_column]


def _headers_columns_of(lists: Any) -> list[Column]:
    """From an Arrow array of lists of headers; none of the lists is null."""
    pairs = lists.flatten()
    total = len(pairs)
    if not total:
        return []
    if total > HEADERS_PER_BATCH_MAX:
        raise RecordTooLarge(f"{total} headers are more than the {HEADERS_PER_BATCH_MAX} that one batch may hold")
    counts = bytes_of(lists.offsets.to_numpy() - lists.offsets[0].as_py())
    key_column = arrow_column(HEADER_KEY, pairs.field(0), total, absent_if_null=False)
    value_column = arrow_column(HEADER_VALUE, pairs.field(1), total, absent_if_null=False)
    assert key_column is not None, "only columns of nulls can be absent"
    assert value_column is not None, "only columns of nulls can be absent"
    return [Column(HEADERS, 0, [counts], len(counts)), key_column, value_column]
