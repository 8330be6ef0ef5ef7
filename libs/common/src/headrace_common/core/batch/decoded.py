"""
One batch, decoded: the face that both formats show to the SDK, to compaction and to tools.

``decode`` makes it.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.batch.column_reader import Body, BytesColumn, IntColumn, Slot, read_directory
from headrace_common.core.batch.columns import (
    HEADER_KEY,
    HEADER_VALUE,
    HEADERS,
    KEY,
    OFFSET_DELTA,
    SMALL,
    TIMESTAMP,
    VALUE,
)
from headrace_common.core.batch.compression import inflate_exact
from headrace_common.core.batch.header import (
    HEADER_SIZE,
    HEADERS_PER_BATCH_MAX,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Codec,
)
from headrace_common.core.errors import CorruptBatch, UnsupportedVersion

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    """One for each record: whether it stays."""

INFLATED_MAX_DEFAULT: Final = 64 << 20
"""What a body may inflate to. Readers and brokers share it: what no reader would take is not acknowledged."""
_INFLATED_LENGTH: Final = struct.Struct("<I")

_KNOWN: Final = frozenset({TIMESTAMP, KEY, VALUE, HEADERS, HEADER_KEY, HEADER_VALUE, OFFSET_DELTA})

Headers = list[tuple[str, bytes | None]]


class DecodedBatch(ABC):
    """The records of one batch, column by column, oldest first. Lists are made anew by every call."""

    header: BatchHeader
    has_keys: bool
    has_headers: bool
    timestamps_equal: bool

    @property
    def record_count(self) -> int:
        return self.header.record_count

    @property
    def is_control(self) -> bool:
        """Whether the one record is a marker that applications never see."""
        return self.header.control

    @property
    @abstractmethod
    def one_timestamp(self) -> int:
        """The timestamp of all records, where ``timestamps_equal``."""

    @abstractmethod
    def offsets(self) -> list[int]:
        """The offset of each record."""

    @abstractmethod
    def timestamps(self) -> list[int]:
        """Milliseconds since the epoch, of each record; with LogAppendTime the broker's, the same for all."""

    @abstractmethod
    def keys(self) -> list[bytes | None]:
        """The key of each record."""

    @abstractmethod
    def key_column(self) -> pa.Array[Any]:
        """The keys as binary in Arrow; of magic 3 they are not copied."""

    @abstractmethod
    def first_without_key(self) -> int | None:
        """Which record is the first that has no key, from 0; None: all have one."""

    @abstractmethod
    def values(self) -> list[bytes | None]:
        """The value of each record."""

    @abstractmethod
    def headers(self) -> list[Headers]:
        """The headers of each record, in the order they were given."""

    @abstractmethod
    def filter_records(self, keep: Mask) -> bytes:
        """As ``sparse.filter_records``, of the batch that this was decoded from; some records stay and some go."""

    @abstractmethod
    def arrow_column(self, name: str) -> pa.Array[Any]:
        """One of the columns of ``to_arrow``; the others are not made."""

    def to_arrow(self) -> pa.RecordBatch:
        """
        Columns ``offset`` and ``timestamp_ms`` (int64), ``key`` and ``value`` (binary) and ``headers``
        (list<struct<key: string, value: binary>>). Keys and values of magic 3 are not copied.
        """
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import batch_schema

        schema = batch_schema()
        return pa.RecordBatch.from_arrays([self.arrow_column(name) for name in schema.names], schema=schema)


class ColumnBatch(DecodedBatch):
    """A batch of magic 3; everything is read in place, from an inflated body that begins at ``start``."""

    def __init__(self, body: Body, start: int, header: BatchHeader) -> None:
        self.header = header
        slots = read_directory(body, start)
        count = header.record_count
        self._newer = sorted(slots.keys() - _KNOWN)
        if VALUE not in slots:
            raise CorruptBatch("there is no column of values")
        self._values = BytesColumn(body, slots[VALUE], count)
        self._keys = BytesColumn(body, slots[KEY], count) if KEY in slots else None
        self._timestamps = IntColumn(body, slots[TIMESTAMP], count, "q") if TIMESTAMP in slots else None
        if header.attributes & TIMESTAMP_TYPE_BIT:
            self._timestamps = None
        self._deltas = _read_deltas(body, slots, header)
        self._headers = _HeaderColumns(body, slots, count) if HEADERS in slots else None
        self.has_keys = self._keys is not None
        self.has_headers = self._headers is not None
        self.timestamps_equal = self._timestamps is None

    def offsets(self) -> list[int]:
        base = self.header.base_offset
        if self._deltas is None:
            return list(range(base, base + self.header.record_count))
        return self._deltas.to_list(base)

    def timestamps(self) -> list[int]:
        if self._timestamps is None:
            return [self.one_timestamp] * self.header.record_count
        return self._timestamps.to_list()

    @property
    def one_timestamp(self) -> int:
        assert self.timestamps_equal, "each record has a timestamp of its own"
        header = self.header
        return header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else header.base_timestamp

    def keys(self) -> list[bytes | None]:
        return [None] * self.header.record_count if self._keys is None else self._keys.to_list()

    def key_column(self) -> pa.Array[Any]:
        import pyarrow as pa

        return pa.nulls(self.header.record_count, pa.binary()) if self._keys is None else self._keys.to_arrow()

    def first_without_key(self) -> int | None:
        return 0 if self._keys is None else self._keys.first_null()

    def values(self) -> list[bytes | None]:
        return self._values.to_list()

    def headers(self) -> list[Headers]:
        if self._headers is None:
            return [[] for _ in range(self.header.record_count)]
        return self._headers.to_list()

    def filter_records(self, keep: Mask) -> bytes:
        from headrace_common.core.batch.column_writer import build_sparse

        if self._newer:
            raise UnsupportedVersion(f"columns {self._newer} were written by a newer version; upgrade first")
        deltas = None if self._deltas is None else self._deltas.to_numpy()
        return build_sparse(
            self.header,
            keep,
            deltas=deltas,
            timestamps=None if self._timestamps is None else self._timestamps.to_numpy(),
            keys=None if self._keys is None else self._keys.to_arrow(),
            headers=None if self._headers is None else self._headers.to_arrow(),
            values=self._values.to_arrow(),
        )

    def arrow_column(self, name: str) -> pa.Array[Any]:
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import no_headers

        numbers: pa.Array[Any]
        match name:
            case "offset":
                numbers = pa.array(self._offsets_array())
                return numbers
            case "timestamp_ms":
                numbers = pa.array(self._timestamps_array())
                return numbers
            case "key":
                return self.key_column()
            case "value":
                return self._values.to_arrow()
            case "headers":
                return no_headers(self.header.record_count) if self._headers is None else self._headers.to_arrow()
        raise AssertionError(f"batches have no column {name}")

    def _offsets_array(self) -> np.ndarray[Any, Any]:
        import numpy as np

        base = self.header.base_offset
        if self._deltas is None:
            return np.arange(base, base + self.header.record_count, dtype=np.int64)
        offsets: np.ndarray[Any, Any] = self._deltas.to_numpy() + np.int64(base)
        return offsets

    def _timestamps_array(self) -> np.ndarray[Any, Any]:
        import numpy as np

        if self._timestamps is None:
            return np.full(self.header.record_count, self.one_timestamp, dtype=np.int64)
        return self._timestamps.to_numpy()


class EmptyBatch(DecodedBatch):
    """A batch of either format that compaction has left without records: its offsets are passed over."""

    has_keys = has_headers = timestamps_equal = False

    def __init__(self, header: BatchHeader) -> None:
        self.header = header

    @property
    def one_timestamp(self) -> int:
        raise AssertionError("there is no record that could have one")

    def offsets(self) -> list[int]:
        return []

    def timestamps(self) -> list[int]:
        return []

    def keys(self) -> list[bytes | None]:
        return []

    def key_column(self) -> pa.Array[Any]:
        import pyarrow as pa

        return pa.nulls(0, pa.binary())

    def first_without_key(self) -> int | None:
        return None

    def values(self) -> list[bytes | None]:
        return []

    def headers(self) -> list[Headers]:
        return []

    def filter_records(self, keep: Mask) -> bytes:
        raise AssertionError("there is no record that could go")

    def arrow_column(self, name: str) -> pa.Array[Any]:
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import batch_schema, no_headers

        return no_headers(0) if name == "headers" else pa.array([], batch_schema().field(name).type)


class _HeaderColumns:
    """Record headers: how many each record has, and all their keys and values."""

    __slots__ = ("_keys", "_lists", "_values")

    def __init__(self, body: Body, slots: dict[int, Slot], count: int) -> None:
        if HEADER_KEY not in slots or HEADER_VALUE not in slots:
            raise CorruptBatch("headers without their keys or values")
        self._lists = IntColumn(body, slots[HEADERS], count + 1, "i")
        self._lists.check_grows(first=0, last=HEADERS_PER_BATCH_MAX, by=0)
        first, total = (struct.unpack_from("<i", body, self._lists.at + 4 * at)[0] for at in (0, count))
        if first:
            raise CorruptBatch("the first record's headers do not begin at 0")
        self._keys = BytesColumn(body, slots[HEADER_KEY], total)
        self._values = BytesColumn(body, slots[HEADER_VALUE], total)
        self._check_keys()

    def _check_keys(self) -> None:
        if self._keys.validity_at >= 0:
            raise CorruptBatch("a header without a key")
        if self._keys.count >= SMALL:
            self._check_many_keys()
            return
        try:
            for key in self._keys.to_list():
                key.decode()  # type: ignore[union-attr]
        except UnicodeDecodeError:
            raise CorruptBatch("a header key is not UTF-8") from None

    def _check_many_keys(self) -> None:
        """All of them are text together, and none begins within a letter."""
        import numpy as np

        blob = memoryview(self._keys.body)[self._keys.blob_at : self._keys.blob_end]
        try:
            letters = len(str(blob, "utf-8"))
        except UnicodeDecodeError:
            raise CorruptBatch("a header key is not UTF-8") from None
        if letters == len(blob):
            return  # ASCII
        starts = self._keys.starts()
        first_bytes = np.frombuffer(blob, np.uint8)[starts[starts < len(blob)]]
        if ((first_bytes & 0xC0) == 0x80).any():
            raise CorruptBatch("a header key is not UTF-8")

    def to_list(self) -> list[Headers]:
        keys = [key.decode() for key in self._keys.to_list()]  # type: ignore[union-attr]
        pairs = list(zip(keys, self._values.to_list(), strict=True))
        return [pairs[first:end] for first, end in pairwise(self._lists.to_list())]

    def to_arrow(self) -> pa.Array[Any]:
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import headers_type, pair_fields

        kind = headers_type()
        pairs = pa.StructArray.from_arrays(
            [self._keys.to_arrow(pa.string()), self._values.to_arrow()], fields=pair_fields()
        )
        lists = pa.py_buffer(self._lists.body).slice(self._lists.at, 4 * self._lists.count)
        return pa.Array.from_buffers(kind, self._lists.count - 1, [None, lists], children=[pairs])


def inflate_body(batch: Body, header: BatchHeader, inflated_max: int) -> tuple[Body, int]:
    """The bytes that hold the body, and where in them it begins."""
    codec = header.codec
    if codec is Codec.NONE:
        return batch, HEADER_SIZE
    frame, size = frame_of(batch, inflated_max)
    inflated = inflate_exact(codec, frame, size)
    return memoryview(inflated).toreadonly(), 0


def frame_of(batch: Body, inflated_max: int) -> tuple[memoryview, int]:
    """
    The frame of a compressed batch of columns, and to how many bytes it is to inflate.

    Raises:
        CorruptBatch: that is more than ``inflated_max``.
    """
    (size,) = _INFLATED_LENGTH.unpack_from(batch, HEADER_SIZE)
    if not 0 < size <= inflated_max:
        raise CorruptBatch(f"the body says it inflates to {size} bytes; 1 to {inflated_max} are allowed")
    return memoryview(batch)[HEADER_SIZE + _INFLATED_LENGTH.size :], size


def _read_deltas(body: Body, slots: dict[int, Slot], header: BatchHeader) -> IntColumn | None:
    if OFFSET_DELTA not in slots:
        if not header.dense:
            raise CorruptBatch(f"{header.record_count} records but the last offset is {header.last_offset_delta} on")
        return None
    deltas = IntColumn(body, slots[OFFSET_DELTA], header.record_count, "i")
    deltas.check_grows(first=0, last=header.last_offset_delta, by=1)
    return deltas
