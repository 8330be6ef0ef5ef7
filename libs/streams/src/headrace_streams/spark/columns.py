"""
What runs in Spark's Python workers: records to rows, rows to records, keys, and results of aggregates, by the operators
of Streams itself. Between these Spark has the columns, with ``_key`` and ``_time`` behind the user's.

Each function is given to ``mapInArrow``, so it is pickled with its arguments and takes and gives batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa

from headrace_common.core.murmur2 import partitions_for
from headrace_streams.core.changes import ADDED, changes_of
from headrace_streams.core.errors import Origin, RowFailed, cause_of
from headrace_streams.core.formats import json
from headrace_streams.core.formats.ddl import type_text
from headrace_streams.core.formats.json_format import JsonFormat
from headrace_streams.core.formats.keys import encode_keys
from headrace_streams.core.formats.port import Format
from headrace_streams.core.operators.aggregate import Groups
from headrace_streams.core.operators.base import Failed, halved
from headrace_streams.core.operators.ends import Sink, Source
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import KEY, ROW, TIME, TIMESTAMP, Numbers, numbers, plain_keys
from headrace_streams.core.state.changelog import prefix
from headrace_streams.core.state.slots import object_array, prefix_of
from headrace_streams.core.task import SKIP

Batches = Iterable[pa.RecordBatch]
GONE: Final = "_gone"
OFFSET: Final = "_offset"
PARTITION: Final = "_partition"
TOPIC: Final = "_topic"
START: Final = "_start"
END: Final = "_end"
RECORDS: Final = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
"""What is read of a topic."""


def _columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(types)


SYSTEM: Final = _columns(_key=pa.binary(), _time=TIMESTAMP)
ORIGIN: Final = _columns(_gone=pa.bool_(), _topic=pa.string(), _partition=pa.int32(), _offset=pa.int64())
WRITTEN: Final = _columns(topic=pa.string(), key=pa.binary(), value=pa.binary(), _time=TIMESTAMP)
PACKED: Final = _columns(key=pa.binary(), value=pa.binary(), _partition=pa.int32())
"""Rows of changelogs, and the tasks that they are of."""
KEYED: Final = "key binary, good boolean"
"""What comes of making a key; one that cannot be made is no good."""


def ddl(schema: pa.Schema) -> str:
    """As Spark declares these columns."""
    return ", ".join(f"`{field.name}` {type_text(field.type)}" for field in schema)


def of_spark(kind: pa.DataType, unit: str = "us") -> pa.DataType:
    """The Arrow type in which Spark has values of that type; with ``unit="ms"`` the way back."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us" if unit == "us" else "ms", "UTC")
    if pa.types.is_list(kind):
        return pa.list_(of_spark(kind.value_type, unit))
    if pa.types.is_map(kind):
        return pa.map_(of_spark(kind.key_type, unit), of_spark(kind.item_type, unit))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, of_spark(field.type, unit)) for field in kind])
    return kind


def cast(rows: pa.Table, schema: pa.Schema, unit: str = "us") -> pa.Table:
    """These columns, as Spark has them, or as Streams does."""
    wanted = pa.schema([pa.field(field.name, of_spark(field.type, unit)) for field in schema])
    return rows.select(wanted.names).cast(wanted, safe=unit == "us")


def plain(format_: Format) -> Format:
    """Without the class of its rows, which is one of the program's."""
    return json(format_.schema) if isinstance(format_, JsonFormat) and format_.schema is not None else format_


@dataclass(frozen=True, slots=True)
class At:
    """Where rows fail, and what becomes of them."""

    label: str
    on_error: str

    def failed(self, origin: Callable[[int], Origin | None]) -> Failed:
        """What an operator tells of rows that it could not process."""

        def fail(rows: pa.Table, error: BaseException) -> None:
            if self.on_error != SKIP:
                place = numbers(rows[ROW]).tolist()[0] if ROW in rows.column_names else -1
                raise RowFailed(self.label, origin(place), cause_of(error)[:500]) from error

        return fail


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the records of a source become rows."""

    value: Format
    key: Format | None
    timestamp: nw.Expr | None
    deletes: bool
    schema: pa.Schema
    at: At

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        source = Source(self.value, self.key, self.timestamp, deletes=self.deletes)
        for batch in batches:
            if batch.num_rows:
                yield from self._rows(source, pa.Table.from_batches([batch])).to_batches()

    def _rows(self, source: Source, records: pa.Table) -> pa.Table:
        def origin(place: int) -> Origin:
            return Origin(*(records[name][place].as_py() for name in ("topic", "partition", "offset")))

        failed = self.at.failed(origin)
        raw = records.select(["key", "value"]).append_column(
            "timestamp_ms", records["timestamp"].cast(TIMESTAMP, safe=False).cast(pa.int64())
        )
        parts = [part for emitted in source.feed(raw, 0, failed) for part in halved(emitted.rows, source.timed, failed)]
        found = [self._with_origin(part, records) for part in parts]
        schema = pa.schema([*self.schema, *SYSTEM, *ORIGIN])
        if not found:
            return cast(schema.empty_table(), schema)
        return cast(pa.concat_tables(found), schema)

    def _with_origin(self, rows: pa.Table, records: pa.Table) -> pa.Table:
        of = records.take(rows[ROW])
        columns: list[Any] = [rows[name] for name in self.schema.names]
        columns += [plain_keys(rows[KEY]), rows[TIME], pa.array(changes_of(rows) != ADDED)]
        columns += [of["topic"], of["partition"], of["offset"]]
        return pa.Table.from_arrays(columns, names=[*self.schema.names, *SYSTEM.names, *ORIGIN.names])


def keying(names: Sequence[str], schema: pa.Schema, at: At) -> Callable[..., pa.Array[Any]]:
    """A function for ``arrow_udf``: columns to the key of each row, as ``KEYED``."""
    given = pa.schema([schema.field(name) for name in names])

    def keys_of(*columns: pa.Array[Any]) -> pa.Array[Any]:
        rows = cast(pa.Table.from_arrays(list(columns), names=given.names), given, "ms")
        keys: list[bytes | None] = []
        good: list[bool] = []

        def encoded(part: pa.Table) -> list[bytes | None]:
            return encode_keys(part.columns).cast(pa.binary()).to_pylist()

        def failed(part: pa.Table, error: BaseException) -> None:
            at.failed(lambda place: None)(part, error)
            keys.append(None)
            good.append(False)

        for found in halved(rows, encoded, failed):
            keys += found
            good += [True] * len(found)
        return pa.StructArray.from_arrays([pa.array(keys, pa.binary()), pa.array(good, pa.bool_())], ["key", "good"])

    return keys_of


@dataclass(frozen=True, slots=True)
class Encoding:
    """How rows become the records of a topic."""

    topic: str
    value: Format
    schema: pa.Schema
    at: At

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        written: list[Output] = []
        sink = Sink(self.topic, self.value, written.append)
        for batch in batches:
            rows = cast(pa.Table.from_batches([batch]), pa.schema([*self.schema, *SYSTEM]), "ms")
            list(sink.feed(rows, 0, self.at.failed(lambda place: None)))
            for output in written:
                yield from self._records(output.records).to_batches()
            written.clear()

    def _records(self, records: pa.Table) -> pa.Table:
        topics = pa.array([self.topic] * records.num_rows, pa.string())
        times = records["timestamp_ms"].cast(TIMESTAMP)
        made = pa.Table.from_arrays([topics, records["key"], records["value"], times], names=WRITTEN.names)
        return cast(made, WRITTEN)


@dataclass(frozen=True, slots=True)
class Finishing:
    """How the fields of groups become rows: columns ``_key``, ``_start`` and ``_end`` (ms), and a field each."""

    groups: Groups
    windowed: bool
    session: bool

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([*self.groups.schema(windowed=self.windowed), *SYSTEM])
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            if rows.num_rows:
                yield from cast(self.result(rows), schema).to_batches()

    def result(self, rows: pa.Table) -> pa.Table:
        """Rows as the operator tells them."""
        keys: list[Any] = rows[KEY].to_pylist()
        none = np.full(rows.num_rows, -1, np.int32)
        window = (numbers(rows[START]), numbers(rows[END])) if self.windowed else None
        time = None if window is None else window[1] - (0 if self.session else 1)
        return self.groups.result(keys, _fields(self.groups, rows), time, none.astype(np.int64), none, window)


@dataclass(frozen=True, slots=True)
class Packing:
    """How the fields of groups become rows of a changelog: the same columns to ``PACKED``."""

    groups: Groups
    store: str
    windowed: bool

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        before = prefix(self.store)
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            if not rows.num_rows:
                continue
            keys: list[Any] = rows[KEY].to_pylist()
            starts: list[Any] = rows[START].to_pylist() if self.windowed else []
            named = [prefix_of(start) + key for start, key in zip(starts, keys, strict=True)] if self.windowed else keys
            values = self.groups.layout.pack(_fields(self.groups, rows), np.arange(rows.num_rows))
            columns: list[Any] = [pa.array([before + key for key in named]), pa.array(values), rows[PARTITION]]
            yield from pa.Table.from_arrays(columns, schema=PACKED).to_batches()


def _fields(groups: Groups, rows: pa.Table) -> list[Numbers]:
    """One array for each field of the groups' layout."""
    kinds = [column.kind for column in groups.columns for _ in column.function.fields]
    return [
        object_array([_state_of(kind, value) for value in rows[f"f{place}"].to_pylist()])
        if field.is_object
        else numbers(rows[f"f{place}"]).astype(field.dtype)
        for place, (field, kind) in enumerate(zip(groups.layout.fields, [*kinds, "time"], strict=True))
    ]


def _state_of(kind: str, value: Any) -> Any:
    """What Spark found, as the function keeps it."""
    if kind == "distinct":
        return dict.fromkeys(None if isinstance(one, float) and math.isnan(one) else one for one in value)
    return None if value is None else [value]


def partitioning(count: int) -> Callable[[pa.Array[Any]], pa.Array[Any]]:
    """A function for ``arrow_udf``: keys to the partitions that producers send them to; there are no null keys."""

    def partition_of(keys: pa.Array[Any]) -> pa.Array[Any]:
        return pa.array(partitions_for(keys, count), pa.int32())

    return partition_of
