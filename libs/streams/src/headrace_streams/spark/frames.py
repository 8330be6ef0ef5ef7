"""
A program as one DataFrame: column operators, windows and joins are Spark's; formats and keys are those of Streams.

Rows are DataFrames with the user's columns, ``_key`` and ``_time``. Columns have the types that Streams gives them,
whatever Spark makes of an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce

import narwhals.stable.v2 as nw
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.ddl import type_text
from headrace_streams.core.operators.aggregate import WindowedAggregate
from headrace_streams.core.operators.base import OUT
from headrace_streams.core.operators.columns import (
    Compute,
    DropNullKeys,
    DropNulls,
    Explode,
    Filter,
    KeyBy,
    Merge,
    Pad,
    Rename,
    Select,
    Split,
)
from headrace_streams.core.operators.combine import Combine
from headrace_streams.core.operators.ends import Sink, Source
from headrace_streams.core.operators.hop import HopOut
from headrace_streams.core.operators.sessions import SessionAggregate
from headrace_streams.core.operators.stream_join import StreamJoin
from headrace_streams.core.operators.table_joins import LEFT, RIGHT, JoinTable
from headrace_streams.core.operators.tables import Keep
from headrace_streams.core.rows import KEY, TIME
from headrace_streams.spark import columns as worker
from headrace_streams.spark.aggregates import contributions, fields, window_of
from headrace_streams.spark.columns import END, GONE, OFFSET, ORIGIN, RECORDS, START, SYSTEM, At, ddl
from headrace_streams.spark.subset import Step, Windowed

Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Reading = Mapping[str, str]
"""Options of ``format("headrace")``."""
_UTC = "spark.sql.session.timeZone"
_ANSI = "spark.sql.ansi.enabled"


def check_session(spark: SparkSession) -> None:
    """
    Raises:
        NotAllowed: expressions would have other results in this session.
    """
    for name, wanted in ((_UTC, "UTC"), (_ANSI, "true")):
        found = spark.conf.get(name)
        if found not in (wanted, "Etc/UTC"):
            raise NotAllowed(
                f"Spark's setting {name} is {found!r}, with which expressions give other results than in Streams: "
                f"say {name}={wanted}"
            )


class Frames:
    """The rows of each node as a DataFrame."""

    def __init__(self, spark: SparkSession, reading: Reading, *, stream: bool, grace_ms: int = 0) -> None:
        """
        Args:
            stream: topics are read as streams, tables as they are; else all as they are.
            grace_ms: how far event time of a stream is behind its newest row: Spark has one for all windows and joins.
        """
        self._spark = spark
        self._reading = dict(reading)
        self._stream = stream
        self._grace_ms = grace_ms
        self._frames: dict[tuple[int, str], DataFrame] = {}
        self._tables: set[int] = set()

    def written(self, steps: Sequence[Step]) -> DataFrame:
        """What the program writes: ``topic``, ``key``, ``value`` and ``_time``."""
        found = [frame for step in steps if (frame := self.add(step)) is not None]
        return reduce(DataFrame.unionAll, found)

    def add(self, step: Step) -> DataFrame | None:
        """One more node, behind those that it uses; what it writes, if it writes a topic."""
        operator, node = step.operator, step.node
        if isinstance(operator, Source):
            self._frames[node.id, OUT] = self._source(step, operator)
            return None
        inputs = [self._frames[i.node, i.edge] for i in sorted(node.inputs, key=lambda i: i.port)]
        if isinstance(operator, Sink):
            assert node.value is not None
            return self._through(
                inputs[0],
                worker.Encoding(node.topics[0], worker.plain(node.value), step.schema, _at(step)),
                worker.WRITTEN,
            )
        if isinstance(operator, Split):
            self._split(step, operator, inputs[0])
            return None
        self._frames[node.id, OUT] = self._made(step, inputs)
        return None

    def _made(self, step: Step, inputs: Sequence[DataFrame]) -> DataFrame:
        rows = inputs[0]
        match step.operator:
            case Filter(condition=condition):
                return _native(_of(rows).filter(condition))
            case Compute(columns=computed):
                return self._typed(_native(_of(rows).with_columns(**computed)), step)
            case Select(columns=selected):
                system = {name: nw.col(name) for name in _system(rows)}
                return self._typed(_native(_of(rows).select(**selected, **system)), step)
            case Rename(names=names):
                return rows.withColumnsRenamed(dict(names))
            case DropNulls(names=names):
                return reduce(lambda left, name: left.where(f.col(name).isNotNull()), names, rows)
            case Explode(name=name):
                return rows.withColumn(name, f.explode(name))
            case KeyBy(names=names):
                return self._keyed(step, tuple(names), rows)
            case DropNullKeys():
                return rows.where(f.col(KEY).isNotNull())
            case Merge():
                return reduce(DataFrame.unionByName, inputs)
            case Pad():
                return self._typed(reduce(partial(DataFrame.unionByName, allowMissingColumns=True), inputs), step)
            case Combine():
                return self._typed(rows.select(*contributions(step.operator.groups), KEY, TIME), step)
            case HopOut():
                return rows
            case Keep():
                return self._latest(rows, step)
            case JoinTable():
                return self._with_table(step, step.operator, inputs)
            case StreamJoin():
                return self._joined(step, step.operator, inputs)
            case _:
                assert isinstance(step.operator, Windowed), step.node.label
                return self._windows(step.operator, rows)

    def _source(self, step: Step, source: Source) -> DataFrame:
        streams = self._stream and not source.deletes
        rows = self._decoded(step, source, self._spark.readStream if streams else self._spark.read, self._reading)
        if not streams:
            return rows
        return rows.drop(*ORIGIN.names).withWatermark(TIME, f"{self._grace_ms} milliseconds")

    def _decoded(
        self, step: Step, source: Source, reader: DataStreamReader | DataFrameReader, reading: Reading
    ) -> DataFrame:
        """The rows of a source, and which records they are of."""
        node = step.node
        assert node.value is not None
        key = None if node.key is None else worker.plain(node.key)
        how = worker.Decoding(worker.plain(node.value), key, source.timestamp, source.deletes, step.schema, _at(step))
        options = {
            "subscribe": ",".join(node.topics),
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            **reading,
        }
        records = reader.format("headrace").options(**options).schema(RECORDS).load()
        return self._through(records, how, pa.schema([*step.schema, *SYSTEM, *ORIGIN]))

    @staticmethod
    def _through(rows: DataFrame, function: Function, schema: pa.Schema) -> DataFrame:
        return rows.mapInArrow(function, ddl(schema))

    @staticmethod
    def _typed(rows: DataFrame, step: Step) -> DataFrame:
        made = [f.col(field.name).cast(type_text(field.type)).alias(field.name) for field in step.schema]
        return rows.select(*made, *_system(rows))

    def _keyed(self, step: Step, names: tuple[str, ...], rows: DataFrame) -> DataFrame:
        if len(names) == 1 and step.schema.field(names[0]).type in (pa.string(), pa.binary()):
            return rows.withColumn(KEY, f.col(names[0]).cast("binary"))
        key = arrow_udf(worker.keying(names, step.schema, _at(step)), worker.KEYED, ArrowUDFType.SCALAR)
        keyed = rows.withColumn("_keyed", key(*names))
        return keyed.where("_keyed.good").withColumn(KEY, f.col("_keyed.key")).drop("_keyed")

    def _split(self, step: Step, operator: Split, rows: DataFrame) -> None:
        condition_of = {f"_branch{place}": one for place, one in enumerate(operator.branches.values())}
        tested = _native(_of(rows).with_columns(**condition_of))
        first = f.coalesce(*(f.when(f.col(name), f.lit(place)) for place, name in enumerate(condition_of)), f.lit(-1))
        for place, edge in enumerate(operator.branches):
            self._frames[step.node.id, edge] = tested.where(first == place).select(*rows.columns)

    # --- windows ------------------------------------------------------------------------------------------------------

    def _windows(self, operator: Windowed, rows: DataFrame) -> DataFrame:
        groups = operator.groups
        grouped = rows.groupBy(KEY, window_of(operator.window).alias("_window")).agg(*fields(groups))
        session = isinstance(operator, SessionAggregate)
        return self._finished(with_bounds(grouped, operator), worker.Finishing(groups, windowed=True, session=session))

    def _finished(self, grouped: DataFrame, how: worker.Finishing) -> DataFrame:
        schema = pa.schema([*how.groups.schema(windowed=how.windowed), *SYSTEM])
        return self._through(grouped, how, schema)

    # --- joins --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _latest(rows: DataFrame, step: Step) -> DataFrame:
        """The newest record of each key; a key is in one partition, so offsets say which."""
        of = [name for name in rows.columns if name not in (KEY, OFFSET)]
        newest = rows.groupBy(KEY).agg(f.max_by(f.struct(*of), OFFSET).alias("_newest"))
        return newest.where(~f.col("_newest")[GONE]).select(
            *(f.col("_newest")[name].alias(name) for name in (*step.schema.names, TIME)), KEY
        )

    @staticmethod
    def _with_table(step: Step, operator: JoinTable, inputs: Sequence[DataFrame]) -> DataFrame:
        rows, table = inputs
        found = table.select(f.col(KEY).alias("_of"), *(f.col(n).alias(out) for n, out in operator.columns.items()))
        joined = rows.join(found, f.col(KEY) == f.col("_of"), "left" if operator.left else "inner")
        return joined.select(*step.schema.names, *_system(rows))

    @staticmethod
    def _joined(step: Step, operator: StreamJoin, inputs: Sequence[DataFrame]) -> DataFrame:
        within, sides = operator.within, operator.sides
        left, right = (
            rows.select(
                *(f.col(name).alias(f"_{side}{name}") for name in rows.columns),
                # Spark has a null key meet another in a full join.
                f.coalesce(KEY, f.lit(b"")).alias(f"_{side}of"),
                f.when(f.col(KEY).isNull(), f.lit(side)).otherwise(f.lit("")).alias(f"_{side}none"),
            )
            for side, rows in zip("lr", inputs, strict=True)
        )
        near = f.expr(
            f"_r{TIME} >= _l{TIME} + INTERVAL {within.lower_ms} milliseconds"
            f" AND _r{TIME} <= _l{TIME} + INTERVAL {within.upper_ms} milliseconds"
        )
        how = {(False, False): "inner", (True, False): "left", (True, True): "full"}[sides.stays]
        same = (f.col("_lof") == f.col("_rof")) & (f.col("_lnone") == f.col("_rnone"))
        pairs = left.join(right, same & near, how)
        of_left = [
            (f.coalesce(f"_l{name}", f"_r{name}") if name in sides.keys else f.col(f"_l{name}")).alias(out)
            for name, out in sides.columns[LEFT].items()
        ]
        of_right = [f.col(f"_r{name}").alias(out) for name, out in sides.columns[RIGHT].items()]
        key = f.coalesce(f"_l{KEY}", f"_r{KEY}").alias(KEY)
        return pairs.select(*of_left, *of_right, key, f.greatest(f"_l{TIME}", f"_r{TIME}").alias(TIME))


def with_bounds(grouped: DataFrame, operator: Windowed) -> DataFrame:
    """Groups with the start and the end of their windows, ms."""
    fields_ = [name for name in grouped.columns if name != "_window"]
    start = f.unix_millis("_window.start")
    if isinstance(operator, SessionAggregate):
        end = f.col(fields_[-1]) + operator.window.gap_ms
    else:
        end = start + operator.window.size_ms
    return grouped.select(*fields_, start.alias(START), end.alias(END))


def grace_of(steps: Sequence[Step]) -> int:
    """The greatest of what windows and joins give their rows, ms."""
    given = [0]
    for step in steps:
        match step.operator:
            case WindowedAggregate(window=window) | SessionAggregate(window=window):
                given.append(window.grace_ms)
            case StreamJoin(within=within):
                given.append(within.grace_ms)
    return max(given)


def _at(step: Step) -> At:
    return At(step.node.label, step.on_error)


def _system(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if name.startswith("_")]


def _of(rows: DataFrame) -> nw.LazyFrame[DataFrame]:
    return nw.from_native(rows)


def _native(rows: nw.LazyFrame[DataFrame]) -> DataFrame:
    return rows.to_native()
