"""
Kafka's rows (magic 2): aiokafka's record codec writes them, and reads them where it is installed, else ``row_reader``.

The codec inflates without a bound and, at a varint that is cut off, looks up to eleven bytes past the end of its
buffer. So it gets bytes that are inflated already, followed by a record of our own, which it must then find intact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, compress, islice
from operator import lt
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.batch.column_reader import Body
from headrace_common.core.batch.columns import RecordColumns
from headrace_common.core.batch.compression import inflate_rows
from headrace_common.core.batch.decoded import DecodedBatch, Headers
from headrace_common.core.batch.header import (
    CODEC_MASK,
    FIELDS,
    HEADERS_PER_BATCH_MAX,
    INT32_MAX,
    LENGTH_PREFIX,
    RECORDS_PER_BATCH_MAX,
    ROW_HEADER_SIZE,
    BatchHeader,
    Codec,
    replace_header,
    seal_batch,
)
from headrace_common.core.batch.row_reader import Rows, read_number, read_rows
from headrace_common.core.errors import CorruptBatch, InvalidRecord, RecordTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace_common.core.batch.decoded import Mask

_RECORD_SIZE_MIN: Final = 7  # a length, attributes, two deltas, two lengths and a count, of one byte each
_HEADER_SIZE_MIN: Final = 2  # the length of a key and of a value
_ROWS_AT_ONCE: Final = 512

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
    One batch of rows. It may stay uncompressed, and then says so, where ``codec`` would make it larger.

    Raises:
        InvalidRecord: no records, columns of different lengths, or header keys that are not text.
        RecordTooLarge: more records or bytes than one batch can have.
        TypeError: a key or a value is not bytes.
    """
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    count = columns.check_lengths()
    if count > RECORDS_PER_BATCH_MAX:
        raise RecordTooLarge(f"{count} records are more than the {RECORDS_PER_BATCH_MAX} that one batch may hold")
    given = columns.timestamps_ms
    timestamps = [given] * count if isinstance(given, int) else [int(each) for each in given]
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
        for record in zip(*_rows(columns, count, timestamps), strict=True):
            if builder.append(*record) is None:
                raise RecordTooLarge("the records are more than one batch can have; send fewer at a time")
    except UnicodeEncodeError as failed:
        raise InvalidRecord(f"a header key cannot be written as UTF-8: {failed.reason}") from None
    batch = bytes(builder.build())
    header = BatchHeader._make(FIELDS.unpack_from(batch))
    if columns.last_offset_delta is not None:
        header = header._replace(last_offset_delta=columns.last_offset_delta)
    return replace_header(
        batch,
        header._replace(
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            base_timestamp=timestamps[0],
            max_timestamp=max(timestamps),
        ),
    )


def _rows(columns: RecordColumns, count: int, timestamps: list[int]) -> tuple[Sequence[Any], ...]:
    """
    Offset and timestamp from those of the batch, key, value and headers of each record.

    The codec takes a first timestamp of -1 for none at all, so it is given differences, which begin with 0.
    """
    from headrace_common.core.batch.column_writer import offset_deltas_of

    deltas = offset_deltas_of(columns, count)
    since_first = [timestamp - timestamps[0] for timestamp in timestamps]
    keys: Sequence[Any] = [None] * count if columns.keys is None else _to_list(columns.keys)
    return deltas, since_first, keys, _to_list(columns.values), _list_headers(columns.headers, count)


def _list_headers(given: Any, count: int) -> Sequence[Any]:
    if given is None:
        return [[]] * count
    if hasattr(given, "type"):
        return [[(pair["key"], pair["value"]) for pair in each] for each in given.to_pylist()]
    return [list(each) for each in given]


def _to_list(given: Any) -> Sequence[bytes | None]:
    if isinstance(given, list | tuple):
        return given
    if hasattr(given, "type"):
        import pyarrow as pa

        from headrace_common.core.batch.byte_columns import as_binary

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
        self._rows = memoryview(rows)
        self._offsets, self._timestamps, self._keys, self._values, self._headers = row_reader()(header, rows)
        self._check_offsets()
        self.has_keys = self._keys.count(None) != header.record_count
        self.has_headers = any(self._headers)
        self.timestamps_equal = self._timestamps.count(self._timestamps[0]) == header.record_count

    def _check_offsets(self) -> None:
        offsets, header = self._offsets, self.header
        if offsets[0] < header.base_offset or offsets[-1] > header.last_offset:
            raise CorruptBatch(f"records from {offsets[0]} to {offsets[-1]} are outside of their batch")
        if not all(map(lt, offsets, islice(offsets, 1, None))):
            raise CorruptBatch("offsets do not increase from record to record")

    @property
    def one_timestamp(self) -> int:
        assert self.timestamps_equal, "records have timestamps of their own"
        return self._timestamps[0]

    def offsets(self) -> list[int]:
        return self._offsets.copy()

    def timestamps(self) -> list[int]:
        return self._timestamps.copy()

    def keys(self) -> list[bytes | None]:
        return self._keys.copy()

    def key_column(self) -> pa.Array[Any]:
        import pyarrow as pa

        return pa.array(self._keys, pa.binary())

    def first_without_key(self) -> int | None:
        return self._keys.index(None) if None in self._keys else None

    def values(self) -> list[bytes | None]:
        return self._values.copy()

    def headers(self) -> list[Headers]:
        return [each.copy() for each in self._headers]

    def filter_records(self, keep: Mask) -> bytes:
        spans = compress(_spans(self._rows, self.header.record_count), keep.tolist())
        rows = b"".join([self._rows[first:end] for first, end in spans])
        return seal_rows(self.header._replace(record_count=int(keep.sum())), rows, self.header.codec)

    def arrow_column(self, name: str) -> pa.Array[Any]:
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import headers_type, no_headers

        match name:
            case "offset":
                return pa.array(self._offsets, pa.int64())
            case "timestamp_ms":
                return pa.array(self._timestamps, pa.int64())
            case "key":
                return self.key_column()
            case "value":
                return pa.array(self._values, pa.binary())
            case "headers" if not self.has_headers:
                return no_headers(len(self._offsets))
            case "headers":
                pairs = [[{"key": key, "value": value} for key, value in each] for each in self._headers]
                return pa.array(pairs, headers_type())
        raise AssertionError(f"batches have no column {name}")


def _spans(rows: memoryview, count: int) -> list[tuple[int, int]]:
    """Where each of the records begins and ends. Each is found from the one before it: the one loop over records."""
    spans: list[tuple[int, int]] = []
    at = 0
    for _ in range(count):
        length, body = read_number(rows, at)
        spans.append((at, body + length))
        at = body + length
    return spans


def seal_rows(header: BatchHeader, rows: bytes | memoryview, codec: Codec) -> bytes:
    """The batch of rows, compressed where that makes it smaller, whatever the codec of ``header``."""
    attributes = header.attributes & ~CODEC_MASK
    if codec and len(packed := _compress_rows(codec, bytes(rows))) < len(rows):
        rows, attributes = packed, attributes | codec
    size = ROW_HEADER_SIZE + len(rows)
    return seal_batch(
        [FIELDS.pack(*header._replace(batch_length=size - LENGTH_PREFIX, attributes=attributes)), rows], size
    )


def _compress_rows(codec: Codec, rows: bytes) -> bytes:
    """Compressed as Kafka's clients frame it."""
    from aiokafka import codec as codecs

    match codec:
        case Codec.GZIP:
            return bytes(codecs.gzip_encode(rows))
        case Codec.SNAPPY:
            return bytes(codecs.snappy_encode(rows))
        case Codec.LZ4:
            return bytes(codecs.lz4_encode(rows))
        case Codec.ZSTD:
            return bytes(codecs.zstd_encode(rows))
    raise AssertionError("nothing to compress with")


@cache
def row_reader() -> Callable[[BatchHeader, Body], Rows]:
    """What reads inflated rows in this process: aiokafka's codec, or ``read_rows`` where aiokafka is not installed."""
    try:
        from aiokafka.record import default_records  # noqa: F401
    except ImportError:
        return read_rows
    return read_by_codec


def read_by_codec(header: BatchHeader, rows: Body) -> Rows:
    """As ``read_rows``, by aiokafka's codec, from a copy that ends with the guard."""
    from aiokafka.errors import CorruptRecordException
    from aiokafka.record.default_records import DefaultRecordBatch

    guarded = header._replace(attributes=header.attributes & ~CODEC_MASK, record_count=header.record_count + 1)
    try:
        reader = DefaultRecordBatch(b"".join((FIELDS.pack(*guarded), rows, _GUARD)))
        if len(rows) <= _HEADER_SIZE_MIN * HEADERS_PER_BATCH_MAX:
            records = _read_in_turns(reader)
        else:
            _check_long_records(memoryview(rows), header.record_count)
            records = _read_counting(reader)
    except (CorruptRecordException, UnicodeDecodeError, OverflowError, MemoryError) as failed:
        raise CorruptBatch(f"the batch does not hold the rows that it says: {failed}") from None
    guard = records.pop()
    if guard.key != _GUARD_KEY or guard.value is not None or guard.headers:
        raise CorruptBatch("bytes follow the last record")
    return Rows(
        [record.offset for record in records],
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.headers for record in records],
    )


def _read_in_turns(reader: Any) -> list[Any]:
    """All records. The codec keeps the interpreter to itself, so other threads get their turn every few hundred."""
    records: list[Any] = []
    rest = chain(reader)  # the codec's own iterator cannot be begun a second time
    while some := list(islice(rest, _ROWS_AT_ONCE)):
        records += some
    return records


def _read_counting(reader: Any) -> list[Any]:
    """All records of ``reader``, while they do not have more headers than a batch may."""
    records: list[Any] = []
    headers = 0
    for record in reader:
        headers += len(record.headers)
        if headers > HEADERS_PER_BATCH_MAX:
            raise CorruptBatch(f"a batch holds at most {HEADERS_PER_BATCH_MAX} record headers; this one has more")
        records.append(record)
    return records


def _check_long_records(rows: memoryview, count: int) -> None:
    """Refuse a record that is long enough to have too many headers, and does, before the codec makes them all."""
    at = 0
    for _ in range(count):
        length, at = read_number(rows, at)
        end = at + length
        if not 0 <= length <= len(rows) - at:
            raise CorruptBatch(f"a record of {length} bytes where {len(rows) - at} remain")
        if length > _HEADER_SIZE_MIN * HEADERS_PER_BATCH_MAX:
            for _ in range(3):  # attributes and the two deltas
                _, at = read_number(rows, at)
            for _ in range(2):  # key and value
                size, at = read_number(rows, at)
                at += max(size, 0)
            headers, at = read_number(rows, at)
            if headers > HEADERS_PER_BATCH_MAX:
                raise CorruptBatch(f"a batch holds at most {HEADERS_PER_BATCH_MAX} record headers; one has {headers}")
        at = end
