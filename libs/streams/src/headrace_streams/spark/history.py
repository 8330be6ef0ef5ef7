"""
The history of an app, computed by Spark in a batch job: what its tasks would have written and kept by some positions.

Which rows come too late is decided by the watermark of their own partition, as it was when they came. That is what one
pass finds that reads one partition behind the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

from headrace.records import TopicPartition
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.aggregate import Aggregate, Emit, WindowedAggregate
from headrace_streams.core.operators.ends import Source
from headrace_streams.core.operators.hop import HopOut
from headrace_streams.core.operators.sessions import SessionAggregate
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import KEY, TIME, TIMESTAMP, WATERMARK
from headrace_streams.core.state.changelog import Progress
from headrace_streams.core.state.store import Changes
from headrace_streams.plan.basis import basis_of
from headrace_streams.plan.cut import SubTopology
from headrace_streams.plan.nodes import changelog_topic
from headrace_streams.runtime.filling import History, watermarks
from headrace_streams.spark.aggregates import fields, window_of
from headrace_streams.spark.columns import (
    END,
    GONE,
    OFFSET,
    PACKED,
    PARTITION,
    TOPIC,
    Finishing,
    Packing,
    ddl,
    partitioning,
)
from headrace_streams.spark.frames import Frames, Reading, with_bounds
from headrace_streams.spark.subset import Step
from headrace_streams.upkeep import Ground

Aggregating = Aggregate | WindowedAggregate | SessionAggregate
_GROUP: Final = (KEY, PARTITION)


class HistoryFrames(Frames):
    """The rows of each node up to some positions, with the partition of the task that they are in."""

    def __init__(self, spark: SparkSession, reading: Reading, ground: Ground) -> None:
        super().__init__(spark, reading, stream=False)
        self._ground = ground
        self._newest: dict[TopicPartition, int] = {}
        self._state: list[DataFrame] = []

    def read(self, steps: Sequence[Step]) -> History:
        """All of it is computed here."""
        for step in steps:
            if isinstance(step.operator, Source):
                self._look(step)
        self._marks = watermarks(self._ground.assembly, self._newest)
        written = self.written(steps).toArrow()
        return History(self._ground.until, list(_outputs(written)), self._rows(), self._progress())

    def _look(self, step: Step) -> None:
        """The greatest times of a topic, by partition."""
        self.add(step)
        rows = self._frames[step.node.id, "out"]
        for row in rows.groupBy(TOPIC, PARTITION).agg(f.max(f.unix_millis(TIME))).collect():
            self._newest[TopicPartition(row[0], row[1])] = row[2]

    def add(self, step: Step) -> DataFrame | None:
        if (step.node.id, "out") in self._frames:
            return None
        return super().add(step)

    def _source(self, step: Step, source: Source) -> DataFrame:
        ends: dict[str, dict[str, int]] = {topic: {} for topic in step.node.topics}
        for (topic, partition), offset in self._ground.until.items():
            if topic in ends:
                ends[topic][str(partition)] = offset
        rows = self._decoded(step, source, self._spark.read, {**self._reading, "endingOffsets": json.dumps(ends)})
        before = Window.partitionBy(TOPIC, PARTITION).orderBy(OFFSET).rowsBetween(Window.unboundedPreceding, 0)
        return rows.withColumn(WATERMARK, f.max(f.unix_millis(TIME)).over(before)).drop(GONE, OFFSET)

    def _made(self, step: Step, inputs: Sequence[DataFrame]) -> DataFrame:
        match step.operator:
            case HopOut():
                count = self._ground.assembly.repartitions[step.node.name]
                partition = arrow_udf(partitioning(count), "int", ArrowUDFType.SCALAR)
                moved = inputs[0].where(f.col(KEY).isNotNull())
                return moved.withColumn(PARTITION, partition(KEY))
            case Aggregate() | WindowedAggregate() | SessionAggregate():
                return self._aggregated(step, step.operator, inputs[0])
            case _:
                return super()._made(step, inputs)

    def _aggregated(self, step: Step, operator: Aggregating, rows: DataFrame) -> DataFrame:
        """What is told of groups; what stays open of them is kept aside."""
        name = step.node.name
        part = next(part for part in self._ground.assembly.parts if step.node in part.nodes)
        now = self._now(part)
        windowed = not isinstance(operator, Aggregate)
        groups = self._groups(step, operator, rows).cache()
        closed = self._is_closed(operator, now)
        kept = groups.where(~closed) if windowed else groups
        self._state.append(
            kept.mapInArrow(Packing(operator.groups, name, windowed), ddl(PACKED)).withColumn(
                TOPIC, f.lit(changelog_topic(self._ground.assembly.app, part.name))
            )
        )
        told = groups.where(closed) if operator.emit == Emit.FINAL else groups
        session = isinstance(operator, SessionAggregate)
        return self._finished(told, Finishing(operator.groups, windowed=windowed, session=session))

    def _groups(self, step: Step, operator: Aggregating, rows: DataFrame) -> DataFrame:
        found = fields(operator.groups)
        if isinstance(operator, Aggregate):
            return rows.groupBy(*_GROUP).agg(*found)
        window, time = operator.window, f.unix_millis(TIME)
        span = window_of(window).alias("_window")
        if isinstance(operator, WindowedAggregate):
            spread = rows.select("*", span).where(f.unix_millis("_window.end") + window.grace_ms > f.col(WATERMARK))
            return with_bounds(spread.groupBy(*_GROUP, "_window").agg(*found), operator)
        late = rows.where(time + window.grace_ms < f.col(WATERMARK)).count()
        if late:
            raise NotAllowed(
                f"{step.node.label}: {late:,} rows are further behind those before them than the grace; which sessions "
                "they are in depends on when these had closed: say a greater grace"
            )
        return with_bounds(rows.groupBy(*_GROUP, span).agg(*found), operator)

    def _now(self, part: SubTopology) -> Column:
        """The watermark of the task that a row is in."""
        count = self._ground.assembly.tasks_of(part)
        marks = [(f.lit(number), f.lit(self._marks[part.name, number].now)) for number in range(count)]
        return f.create_map(*(column for pair in marks for column in pair))[f.col(PARTITION)]

    @staticmethod
    def _is_closed(operator: Aggregating, now: Column) -> Column:
        if isinstance(operator, Aggregate):
            return f.lit(False)
        ends = f.col(END) + operator.window.grace_ms
        return ends < now if isinstance(operator, SessionAggregate) else ends <= now

    def _rows(self) -> dict[TopicPartition, Changes]:
        found: dict[TopicPartition, Changes] = {}
        for state in self._state:
            for row in state.toArrow().to_pylist():
                of = found.setdefault(TopicPartition(row[TOPIC], row[PARTITION]), [])
                of.append((row["key"], row["value"]))
        return found

    def _progress(self) -> dict[TopicPartition, Progress]:
        assembly, found = self._ground.assembly, {}
        for part in assembly.parts:
            if not part.stateful:
                continue
            basis = basis_of(assembly, part, self._ground.topic_ids)
            for number in range(assembly.tasks_of(part)):
                positions = {topic: self._ground.until[TopicPartition(topic, number)] for topic in part.topics}
                log = TopicPartition(changelog_topic(assembly.app, part.name), number)
                found[log] = Progress(positions, self._marks[part.name, number].state(), basis)
        return found


def _outputs(written: pa.Table) -> Iterable[Output]:
    topics: list[Any] = written["topic"].unique().to_pylist()
    for topic in topics:
        of = written.filter(pc.equal(written["topic"], pa.scalar(topic, pa.string())))
        times = of[TIME].cast(TIMESTAMP, safe=False).cast(pa.int64())
        yield Output(topic, pa.table({"key": of["key"], "value": of["value"], "timestamp_ms": times}))
