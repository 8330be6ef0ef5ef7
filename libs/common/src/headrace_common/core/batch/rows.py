"""
Kafka's rows (magic 2), written and read by aiokafka's record codec.

The codec inflates without a bound and, at a varint that is cut off, looks up to eleven bytes past the end of its
buffer. So it gets bytes that are inflated already, followed by a record of our own, which it must then find intact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.batch.column_reader import Body
from headrace_common.core.batch.columns import RecordColumns
from headrace_common.core.batch.compression import inflate_rows
from headrace_common.core.batch.decoded import DecodedBatch, Headers
from headrace_common.core.batch.header import (
    CODEC_MASK,
    FIELDS,
    INT32_MAX,
    RECORDS_PER_BATCH_MAX,
    ROW_HEADER_SIZE,
    BatchHeader,
    Codec,
    rewritten,
)
from headrace_common.core.errors import CorruptBatch, InvalidRecord, RecordTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

_RECORD_SIZE_MIN: Final = 7  # a length, attributes, two deltas, two lengths and a count, of one byte each

# Length 39, no attributes, deltas 0, a key of 32 bytes, no value, no headers. No byte has its high bit set, so a varint
# that is cut off before it ends at its first byte.
_GUARD_KEY: Final = b"the records of this batch end..."
_GUARD: Final = bytes([2 * (6 + len(_GUARD_KEY)), 0, 0, 0, 2 * len(_GUARD_KEY)]) + _GUARD_KEY + bytes([1, 0])


def build_row_batch(
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
    One batch of rows. It stays uncompressed, and says so, where ``codec`` would not make it smaller.

    Raises:
        InvalidRecord: no records, columns of different lengths, or header keys that are not text.
        RecordTooLarge: more records or bytes than one batch can have.
        TypeError: a key or a value is not bytes.
    """
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    count = columns.check_lengths()
    if count > RECORDS_PER_BATCH_MAX:
        raise RecordTooLarge(f"{count} records are more than the {RECORDS_PER_BATCH_MAX} that one batch may hold")
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=int(transactional),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=INT32_MAX,
    )
    try:
        for record in zip(*_rows(columns, count), strict=True):
            if builder.append(*record) is None:
                raise RecordTooLarge("the records are more than one batch can have; send fewer at a time")
    except UnicodeEncodeError as failed:
        raise InvalidRecord(f"a header key cannot be written as UTF-8: {failed.reason}") from None
    batch = bytes(builder.build())
    header = BatchHeader._make(FIELDS.unpack_from(batch))._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    if columns.last_offset_delta is not None:
        header = header._replace(last_offset_delta=columns.last_offset_delta)
    return rewritten(batch, header)


def _rows(columns: RecordColumns, count: int) -> tuple[Sequence[Any], ...]:
    """Offset delta, timestamp, key, value and headers of each record."""
    from headrace_common.core.batch.column_writer import offset_deltas_of

    deltas = offset_deltas_of(columns, count)
    stamps = columns.timestamps_ms
    timestamps = [stamps] * count if isinstance(stamps, int) else [int(each) for each in stamps]
    keys: Sequence[Any] = [None] * count if columns.keys is None else _listed(columns.keys)
    headers: Sequence[Any] = [[]] * count if columns.headers is None else [list(each) for each in columns.headers]
    return deltas, timestamps, keys, _listed(columns.values), headers


def _listed(given: Any) -> Sequence[bytes | None]:
    if isinstance(given, list | tuple):
        return given
    if hasattr(given, "type"):
        import pyarrow as pa

        from headrace_common.core.batch.column_writer import as_binary

        listed: list[bytes | None] = as_binary(given).cast(pa.binary()).to_pylist()
        return listed
    return list(given)


class RowBatch(DecodedBatch):
    """A batch of magic 2; its records are read once, when it is made."""

    def __init__(self, batch: Body, header: BatchHeader, inflated_max: int) -> None:
        self.header = header
        rows: Body = memoryview(batch)[ROW_HEADER_SIZE:]
        if header.codec:
            rows = inflate_rows(header.codec, memoryview(rows), inflated_max)
        if header.record_count * _RECORD_SIZE_MIN > len(rows):
            raise CorruptBatch(f"{len(rows)} bytes cannot hold {header.record_count} records")
        records = _read_rows(header, rows)
        self._offsets = [record.offset for record in records]
        self._timestamps = [record.timestamp for record in records]
        self._keys: list[bytes | None] = [record.key for record in records]
        self._values: list[bytes | None] = [record.value for record in records]
        self._headers: list[Headers] = [record.headers for record in records]
        self._check_offsets()
        self.has_keys = self._keys.count(None) != len(records)
        self.has_headers = any(self._headers)
        self.timestamps_equal = self._timestamps.count(self._timestamps[0]) == len(records)

    def _check_offsets(self) -> None:
        offsets, header = self._offsets, self.header
        if offsets[0] < header.base_offset or offsets[-1] > header.last_offset:
            raise CorruptBatch(f"records from {offsets[0]} to {offsets[-1]} are outside of their batch")
        if not all(map(lt, offsets, islice(offsets, 1, None))):
            raise CorruptBatch("offsets do not increase from record to record")

    def offsets(self) -> list[int]:
        return self._offsets.copy()

    def timestamps(self) -> list[int]:
        return self._timestamps.copy()

    def keys(self) -> list[bytes | None]:
        return self._keys.copy()

    def values(self) -> list[bytes | None]:
        return self._values.copy()

    def headers(self) -> list[Headers]:
        return [each.copy() for each in self._headers]

    def to_arrow(self) -> pa.RecordBatch:
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import batch_schema, headers_type, no_headers

        headers = no_headers(len(self._offsets))
        if self.has_headers:
            pairs = [[{"key": key, "value": value} for key, value in each] for each in self._headers]
            headers = pa.array(pairs, headers_type())
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self._offsets, pa.int64()),
                pa.array(self._timestamps, pa.int64()),
                pa.array(self._keys, pa.binary()),
                pa.array(self._values, pa.binary()),
                headers,
            ],
            schema=batch_schema(),
        )


def _read_rows(header: BatchHeader, rows: Body) -> list[Any]:
    """The records, by aiokafka's codec, from a copy that ends with the guard."""
    from aiokafka.errors import CorruptRecordException
    from aiokafka.record.default_records import DefaultRecordBatch

    guarded = header._replace(attributes=header.attributes & ~CODEC_MASK, record_count=header.record_count + 1)
    try:
        records = list(DefaultRecordBatch(b"".join((FIELDS.pack(*guarded), rows, _GUARD))))
    except (CorruptRecordException, UnicodeDecodeError, OverflowError, MemoryError) as failed:
        raise CorruptBatch(f"the batch does not hold the rows that it says: {failed}") from None
    if records.pop().key != _GUARD_KEY:
        raise CorruptBatch("bytes follow the last record")
    return records
