"""
Records between a connector and its topics: one Arrow column for each part of a record.

A source's chunks become batches before they are converted and sent, and what is read of topics becomes batches before a
sink gets it. Transforms take a batch and give batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_common.core.batch.arrow_schema import headers_type, no_headers

Array = Any
"""An Arrow array; its stubs are narrower than it is."""
PLACE: Final = "place"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp_ms"
KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
OPEN: Final = b"connect.open"
"""Metadata of a key or value without a declared schema: a field that the columns do not have is null, not an error."""
NAME: Final = b"connect.name"
"""Metadata: the name of the schema, as in Kafka Connect."""
VERSION: Final = b"connect.version"
"""Metadata: the version of the schema, a whole number as text."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """
    Records, a row each.

    ==================  ===========================================================================================
    ``place``           int32: which row of the batch that was first given; stays when others are dropped
    ``topic``           string
    ``partition``       int32, null: not known yet
    ``offset``          int64, null: not written yet
    ``timestamp_ms``    int64, null: none
    ``key``, ``value``  structs where there are fields, else any type; null: no key, a tombstone
    ``headers``         list<struct<key: string, value: binary>>
    ==================  ===========================================================================================

    ``key`` and ``value`` have the name and version of their schema in the metadata of their field.
    """

    records: pa.RecordBatch

    @classmethod
    def of(
        cls,
        topic: str | Array,
        value: Array,
        *,
        key: Array | None = None,
        headers: Array | None = None,
        timestamp_ms: Array | None = None,
        partition: int | Array | None = None,
        offset: Array | None = None,
        metadata: Mapping[str, Mapping[bytes, bytes]] | None = None,
    ) -> Batch:
        """
        Args:
            metadata: of ``key`` and ``value``.
        """
        count = len(value)
        columns: dict[str, tuple[pa.DataType, Array]] = {
            PLACE: (pa.int32(), pa.array(np.arange(count, dtype=np.int32))),
            TOPIC: (pa.string(), topic),
            PARTITION: (pa.int32(), partition),
            OFFSET: (pa.int64(), offset),
            TIMESTAMP: (pa.int64(), timestamp_ms),
            KEY: (pa.null() if key is None else key.type, key),
            VALUE: (value.type, value),
            HEADERS: (headers_type(), no_headers(count) if headers is None else headers),
        }
        arrays = [_array(given, kind, count) for kind, given in columns.values()]
        fields = [
            pa.field(name, array.type, metadata=dict((metadata or {}).get(name) or {}))
            for name, array in zip(columns, arrays, strict=True)
        ]
        return cls(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))

    def __len__(self) -> int:
        return self.records.num_rows

    def column(self, name: str) -> Array:
        """One part of all records."""
        return self.records.column(name)

    def metadata(self, name: str) -> Mapping[bytes, bytes]:
        """Of the field of ``key`` or ``value``."""
        return self.records.schema.field(name).metadata or {}

    def is_open(self, name: str) -> bool:
        """Whether ``key`` or ``value`` has no declared schema."""
        return OPEN in self.metadata(name)

    @property
    def places(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Which rows of the batch that was first given."""
        found: np.ndarray[Any, np.dtype[np.int32]] = self.column(PLACE).to_numpy()
        return found

    def replace(self, name: str, array: Array, metadata: Mapping[bytes, bytes] | None = None) -> Batch:
        """
        With another column in the place of one.

        Args:
            metadata: None: as it was.
        """
        at = self.records.schema.get_field_index(name)
        kept = self.metadata(name) if metadata is None else metadata
        return Batch(self.records.set_column(at, pa.field(name, array.type, metadata=dict(kept)), array))

    def slice(self, start: int, count: int | None = None) -> Batch:
        """``count`` rows from ``start`` on; without a copy."""
        return Batch(self.records.slice(start, count))

    def filter(self, mask: Array) -> Batch:
        """The rows for which ``mask`` is true."""
        return Batch(self.records.filter(pa.array(mask, pa.bool_())))

    def take(self, rows: Array) -> Batch:
        """Rows by their index."""
        indices: Any = pa.array(rows)
        return Batch(self.records.take(indices))


def _array(given: Any, kind: Any, count: int) -> Array:
    if given is None:
        return pa.nulls(count, kind)
    if isinstance(given, str | int):
        value: Any = pa.scalar(given, kind)
        return pa.repeat(value, count)
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    assert len(given) == count, "all columns have a row for each record"
    return given if given.type == kind else given.cast(kind)


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that could not be handled."""

    place: int
    """Which row of the batch that was first given."""
    message: str
    """What is wrong with it, and in which field; at most 300 characters."""
