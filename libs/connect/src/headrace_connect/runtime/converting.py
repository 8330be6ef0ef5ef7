"""Pipelines: chunks become records, and records become rows. Rows that fail on the way are left out, and told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
import orjson
import pyarrow as pa

from headrace.records import PartitionTable
from headrace_common.core.batch.arrow_schema import headers_type
from headrace_common.core.errors import InvalidConfig, InvalidTopic
from headrace_common.core.ids import check_topic_name
from headrace_connect.converters import Converter, make_converter
from headrace_connect.converters.headers import make_header_writer
from headrace_connect.converters.records import read_records, write_records
from headrace_connect.core.batch import (
    HEADERS,
    KEY,
    NAME,
    OFFSET,
    OPEN,
    PARTITION,
    PLACE,
    TIMESTAMP,
    TOPIC,
    VALUE,
    Batch,
    Failure,
)
from headrace_connect.core.dead_letters import Origin, Refusal, Stage
from headrace_connect.core.options import InvalidOptions, Problem
from headrace_connect.plugin import Chunk, Rows, Values
from headrace_connect.runtime.measuring import Transforms
from headrace_connect.runtime.pipeline import ConvertedChunk, ConvertedTable, Indices, Lost
from headrace_connect.runtime.ports import Outgoing
from headrace_connect.transforms import make_transforms
from headrace_connect.transforms.headers import simple

Side = Literal["key", "value"]
_DEFAULTS: Final[Mapping[str, str]] = {"key": "json", "value": "json", "header": "simple"}
_STAGES: Final[Mapping[str, Stage]] = {"key": Stage.KEY, "value": Stage.VALUE}
_CAUGHT: Final = (pa.ArrowException, ArithmeticError, TypeError, ValueError)
"""What values raise that are of no Arrow type."""


@dataclass(frozen=True, slots=True)
class Converting:
    """Converters and transforms of one task."""

    key: Converter
    value: Converter
    transforms: Transforms

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Converting:
        """
        Those that a configuration names; plain JSON where it names none.

        Raises:
            InvalidOptions: all that is wrong.
        """
        plain = dict(config)
        for side in _DEFAULTS:
            if config.get(f"{side}.converter", _DEFAULTS[side]) == "json":
                plain.setdefault(f"{side}.converter.schemas.enable", "false")
        made: list[Any] = []
        problems: list[Problem] = []
        for make in (partial(make_converter, plain, "key"), partial(make_converter, plain, "value")):
            _collect(make, made, problems)
        _collect(partial(make_header_writer, plain, simple), made, problems)
        write_header = made.pop() if len(made) == 3 else simple
        _collect(partial(make_transforms, config, write_header), made, problems)
        if problems:
            raise InvalidOptions(problems)
        key, value, transforms = made
        return cls(key, value, transforms)


def _collect(make: Callable[[], Any], made: list[Any], problems: list[Problem]) -> None:
    try:
        made.append(make())
    except InvalidOptions as error:
        problems += error.problems


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Values of one type, and which rows they are of, ascending."""

    rows: Indices
    values: Any
    metadata: Mapping[bytes, bytes]

    def of(self, rows: Indices) -> Any:
        """The values of some of its rows."""
        return self.values if len(rows) == len(self.rows) else self.values.take(np.searchsorted(self.rows, rows))


class ChunkPipeline:
    """Satisfies ``SourcePipeline``."""

    def __init__(self, converting: Converting, origin: Origin) -> None:
        """
        Args:
            origin: of dead letters; its topic is where records go of which the connector does not say it.
        """
        self._converting = converting
        self._origin = origin

    def apply(self, chunk: Chunk) -> ConvertedChunk:
        """
        See ``SourcePipeline``.

        Raises:
            InvalidConfig: nobody says to which topic the records go.
        """
        parts = [self._apply(one) for one in (chunk, *chunk.further)]
        further = [Outgoing(out.topic, out.table) for part in parts[1:] for out in part.outgoing]
        return ConvertedChunk(
            [*parts[0].outgoing, *further],
            [one for part in parts for one in part.lost],
            sum(part.rows for part in parts),
            sum(part.bytes for part in parts),
        )

    def _apply(self, chunk: Chunk) -> ConvertedChunk:
        topic = chunk.topic or self._origin.topic
        if not topic and (len(chunk.rows) or chunk.bad):
            raise InvalidConfig("the connector does not say to which topic its records go: set topic")
        refused: dict[int, Refusal] = {}
        outgoing: list[Outgoing] = []
        for batch in _batches(chunk, topic, refused):
            transformed = self._converting.transforms.apply(batch)
            _refuse(transformed.failures, refused, Stage.TRANSFORM)
            for one in transformed.batches:
                written = write_records(one, self._converting.key, self._converting.value)
                _refuse(written.failures, refused)
                outgoing += [
                    Outgoing(name, _sendable(table), table.column(PLACE).to_numpy().astype(np.int64))
                    for name, table in _deliverable(written.tables, refused).items()
                ]
        lost = [
            self._lost(topic, refused[row], {"key": _raw(chunk.keys, row), "value": _raw(chunk.rows, row)})
            for row in sorted(refused)
        ]
        lost += [self._lost(topic, Refusal(Stage.READ, bad.reason), {"value": bad.raw}) for bad in chunk.bad]
        rows, size = sum(len(one.table) for one in outgoing), sum(one.table.nbytes for one in outgoing)
        return ConvertedChunk(outgoing, lost, rows, size)

    def _lost(self, topic: str, refusal: Refusal, raw: Mapping[str, bytes | None]) -> Lost:
        origin = self._origin
        of = Origin(origin.connector, origin.task, origin.plugin, topic)
        return Lost(of, refusal, raw.get("key"), raw.get("value"))


def _batches(chunk: Chunk, topic: str, refused: dict[int, Refusal]) -> list[Batch]:
    """The chunk's rows; several where Python values have no one type."""
    count = len(chunk.rows)
    values = _parts("value", chunk.rows, refused)
    keys = _parts("key", chunk.keys, refused) if chunk.keys is not None else None
    times: Any = chunk.timestamps_ms
    if times is not None and not isinstance(times, pa.Array):
        times = pa.array(times, pa.int64())
    headers = _headers(chunk)
    made: list[Batch] = []
    for value, key, rows in _runs(values, keys, [row for row in range(count) if row not in refused], count):
        indices = pa.array(rows)
        batch = Batch.of(
            topic,
            value.of(rows),
            key=None if key is None else key.of(rows),
            headers=None if headers is None else headers.take(indices),
            timestamp_ms=None if times is None else times.take(indices),
            partition=chunk.partition,
            metadata={
                VALUE: _named(value.metadata, chunk.value_schema),
                KEY: _named({} if key is None else key.metadata, chunk.key_schema),
            },
        )
        made.append(batch.replace(PLACE, pa.array(rows.astype(np.int32))))
    return made


def _named(metadata: Mapping[bytes, bytes], schema: str | None) -> Mapping[bytes, bytes]:
    return metadata if schema is None else {**metadata, NAME: schema.encode()}


def _runs(
    values: Sequence[_Part], keys: Sequence[_Part] | None, rows: Sequence[int], count: int
) -> list[tuple[_Part, _Part | None, Indices]]:
    """Rows that follow each other and whose values, and keys, are of one part."""
    of_values = _owners(values, count)
    of_keys = np.zeros(count, np.int64) if keys is None else _owners(keys, count)
    good = np.array(rows, np.int64)
    if not len(good):
        return []
    cuts = np.flatnonzero(np.diff(of_values[good]) | np.diff(of_keys[good])) + 1
    return [
        (values[of_values[run[0]]], None if keys is None else keys[of_keys[run[0]]], run)
        for run in np.split(good, cuts)
    ]


def _owners(parts: Sequence[_Part], count: int) -> Indices:
    owners = np.full(count, -1, np.int64)
    for number, part in enumerate(parts):
        owners[part.rows] = number
    return owners


def _headers(chunk: Chunk) -> Any:
    if chunk.headers is None or isinstance(chunk.headers, pa.Array):
        return chunk.headers
    pairs = [[{"key": name, "value": value} for name, value in own] for own in chunk.headers]
    return pa.array(pairs, headers_type())


def _parts(side: Side, given: Values, refused: dict[int, Refusal]) -> list[_Part]:
    """Arrays of what a connector gave; several where Python values have no one type."""
    count = len(given)
    if isinstance(given, pa.Table):
        return [_Part(np.arange(count), _structs(given), {})] if count else []
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, pa.Array):
        return [_Part(np.arange(count), given, {})] if count else []
    try:
        return [_Part(np.arange(count), pa.array(given), {OPEN: b"1"})] if count else []
    except _CAUGHT:
        pass
    parts: list[_Part] = []
    for row, value in enumerate(given):
        try:
            parts.append(_Part(np.array([row]), pa.array([value]), {OPEN: b"1"}))
        except _CAUGHT as error:
            refused.setdefault(row, Refusal(_STAGES[side], str(error), type(error).__name__))
    return parts


def _structs(table: pa.Table) -> Any:
    columns = [column.combine_chunks() for column in table.columns]
    return pa.StructArray.from_arrays(columns, fields=list(table.schema))


def _sendable(table: pa.Table) -> pa.Table:
    """Without columns that say nothing."""
    empty = [name for name in (TIMESTAMP, PARTITION) if table.column(name).null_count == len(table)]
    return table.drop_columns([PLACE, *empty])


def _refuse(failures: Sequence[Failure], refused: dict[int, Refusal], stage: Stage | None = None) -> None:
    for failure in failures:
        of = _STAGES["key" if failure.message.startswith("key:") else "value"] if stage is None else stage
        refused.setdefault(failure.place, Refusal(of, failure.message))


def _deliverable(tables: Mapping[str, pa.Table], refused: dict[int, Refusal]) -> dict[str, pa.Table]:
    """Those with records; what a transform, or the connector, sends where no topic can be is refused."""
    found: dict[str, pa.Table] = {}
    for name, table in tables.items():
        try:
            if len(table):
                found[check_topic_name(name)] = table
        except InvalidTopic as error:
            rows: list[int] = table.column(PLACE).to_numpy().tolist()
            refused |= dict.fromkeys(rows, Refusal(Stage.TRANSFORM, str(error)))
    return found


def _raw(given: Values | None, row: int) -> bytes | None:
    """A row as a dead letter has it: bytes and texts as they are, all else as JSON."""
    if given is None:
        return None
    values: Any = given
    value = values.slice(row, 1).to_pylist()[0] if isinstance(values, pa.Table) else values[row]
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # integers beyond 64 bits, texts that are no UTF-8
        return repr(value).encode(errors="replace")


class TablePipeline:
    """Satisfies ``SinkPipeline``."""

    def __init__(self, converting: Converting) -> None:
        self._converting = converting

    def apply(self, table: PartitionTable) -> ConvertedTable:
        """See ``SinkPipeline``."""
        read = read_records(table.topic, table.partition, table.table, self._converting.key, self._converting.value)
        refused: dict[int, Refusal] = {}
        _refuse(read.failures, refused)
        parts: list[tuple[Rows, Indices]] = []
        for batch in read.batches:
            transformed = self._converting.transforms.apply(batch)
            _refuse(transformed.failures, refused, Stage.TRANSFORM)
            for one in transformed.batches:
                parts += [
                    (_rows(own, table.topic, table.partition), own.places.astype(np.int64)) for own in _topics(one)
                ]
        return ConvertedTable(parts, refused)


def _topics(batch: Batch) -> list[Batch]:
    """Rows that follow each other and have one topic, in order: a transform may have changed it."""
    if not len(batch):
        return []
    codes = batch.column(TOPIC).dictionary_encode().indices.to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(batch)]
    return [batch.slice(begin, end - begin) for begin, end in pairwise(cuts)]


def _rows(batch: Batch, topic: str, partition: int) -> Rows:
    name = batch.column(TOPIC)[0].as_py()
    return Rows(
        name,
        partition,
        batch.column(VALUE),
        batch.column(KEY),
        batch.column(OFFSET),
        batch.column(TIMESTAMP),
        batch.column(HEADERS),
        None if name == topic else topic,
    )
