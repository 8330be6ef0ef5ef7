"""DataFrames into topics, by Spark itself: jobs, micro-batches, tasks that fail, checkpoints that lost a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace import Record
from headrace.testing import TestCluster

pytestmark = pytest.mark.spark
TERMINATION_S = 90


@dataclass
class Sinks:
    """Writes to the cluster, and looks at what a reader of committed records finds."""

    spark: SparkSession
    cluster: TestCluster
    home: Path

    def options(self, topic: str | None, given: dict[str, str]) -> dict[str, str]:
        known = {"kafka.bootstrap.servers": ",".join(self.cluster.bootstrap_servers)}
        return known | given | ({} if topic is None else {"topic": topic})

    def job(self, frame: DataFrame, to: str | None, **options: str) -> None:
        frame.write.format("headrace").mode("append").options(**self.options(to, options)).save()

    def lines(self, name: str, *values: str) -> None:
        """A file that streams read as one batch."""
        (self.home / "lines").mkdir(exist_ok=True)
        (self.home / "lines" / name).write_text("".join(f"{value}\n" for value in values))

    def stream(self) -> DataFrame:
        """The lines of all files, a file per batch, in two partitions."""
        source = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.home / "lines"))
        return source.repartition(2)

    def start(self, frame: DataFrame, topic: str, **options: str) -> StreamingQuery:
        """Write all that there is."""
        writer = frame.writeStream.format("headrace").options(**self.options(topic, options))
        return writer.option("checkpointLocation", str(self.home / "checkpoint")).trigger(availableNow=True).start()

    def run(self, frame: DataFrame, topic: str, **options: str) -> StreamingQuery:
        """The same, until it has ended."""
        return ended(self.start(frame, topic, **options))

    def forget_last_commit(self) -> None:
        """As if the driver had died between the unit and Spark's commit log."""
        commits = self.home / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def records(self, topic: str, count: int) -> list[Record]:
        found: list[Record] = []
        with self.cluster.consumer(topic, isolation_level="read_committed") as consumer:
            while len(found) < count:
                polled = consumer.poll(timeout_ms=15_000)
                assert polled, f"{len(found)} of {count} came"
                found += polled
            found += consumer.poll(timeout_ms=300)
        return found

    def values(self, topic: str, count: int) -> list[str]:
        return sorted((record.value or b"").decode() for record in self.records(topic, count))


def ended(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(TERMINATION_S), query.status
    return query


@pytest.fixture
def sinks(spark: SparkSession, headrace_cluster: TestCluster, tmp_path: Path) -> Sinks:
    return Sinks(spark, headrace_cluster, tmp_path)


@pytest.fixture
def topic(headrace_cluster: TestCluster) -> str:
    return headrace_cluster.unique_topic("spark-sink", 3)


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of each task fails, behind its rows."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise ValueError("the first attempt fails")


# --- jobs --------------------------------------------------------------------------------------------------------


def test_a_job_writes_every_column(sinks: Sinks, topic: str, headrace_cluster: TestCluster) -> None:
    other = headrace_cluster.unique_topic("spark-sink", 1)
    frame = sinks.spark.sql(f"""
        SELECT '{topic}' topic, 'k' key, CAST('v' AS binary) value, 2 partition,
               array(named_struct('key', 'h', 'value', CAST('1' AS binary))) headers, current_timestamp() ignored
        UNION ALL SELECT '{other}', NULL, CAST('plain' AS binary), NULL, NULL, NULL
        UNION ALL SELECT '{topic}', 'gone', NULL, 0, array(), NULL
    """)
    sinks.job(frame, None)
    gone, full = sorted(sinks.records(topic, 2), key=lambda record: record.partition)
    assert (full.partition, full.key, full.value, list(full.headers)) == (2, b"k", b"v", [("h", b"1")])
    assert (gone.partition, gone.key, gone.value, list(gone.headers)) == (0, b"gone", None, [])
    (plain,) = sinks.records(other, 1)
    assert (plain.key, plain.value) == (None, b"plain")


def test_attempts_that_failed_are_not_seen(sinks: Sinks, topic: str) -> None:
    frame = sinks.spark.range(1_000, numPartitions=3).selectExpr("CAST(id AS string) value")
    sinks.job(frame.mapInArrow(failing_once, frame.schema), topic)
    assert sinks.values(topic, 1_000) == sorted(map(str, range(1_000)))


def test_a_job_without_rows_is_done(sinks: Sinks, topic: str) -> None:
    sinks.job(sinks.spark.range(0).selectExpr("CAST(id AS string) value"), topic)
    sinks.job(sinks.spark.range(1).selectExpr("CAST(id AS string) value"), topic, transactional="false")
    assert sinks.values(topic, 1) == ["0"]


@pytest.mark.parametrize(
    ("sql", "options", "told"),
    [
        ("SELECT 'v' value", {}, "set the option 'topic', or add a column 'topic'"),
        ("SELECT 1.5 value", {"topic": "t"}, "column value is of type decimal(2,1), it must be string or binary"),
        ("SELECT 'v' value", {"topic": "t", "kafka.acks": "1"}, "writing exactly once needs 'kafka.acks' all"),
        ("SELECT 'v' value", {"topic": "t", "subscribe": "t"}, "'topic' names where to write"),
        ("SELECT 'v' value", {"topic": "never-created"}, "never-created"),
        ("SELECT CAST(NULL AS string) topic, 'v' value", {}, "1 rows have no topic"),
    ],
)
def test_mistakes_are_told(sinks: Sinks, sql: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(Exception) as failed:  # noqa: PT011  # Spark has several for what Python raises
        sinks.job(sinks.spark.sql(sql), None, **options)
    assert told in str(failed.value)


# --- streams -----------------------------------------------------------------------------------------------------


def test_micro_batches_are_written_once(sinks: Sinks, topic: str) -> None:
    for number in range(3):
        sinks.lines(f"{number}.txt", *(f"{number}-{line}" for line in range(20)))
    sinks.run(sinks.stream(), topic)
    expected = sorted(f"{number}-{line}" for number in range(3) for line in range(20))
    assert sinks.values(topic, 60) == expected
    sinks.forget_last_commit()
    sinks.lines("3.txt", "last")
    query = sinks.run(sinks.stream(), topic)
    assert [progress["batchId"] for progress in query.recentProgress] == [2, 3]
    assert sinks.values(topic, 61) == [*expected, "last"]


def test_at_least_once_repeats_a_batch(sinks: Sinks, topic: str) -> None:
    sinks.lines("0.txt", "a", "b")
    sinks.run(sinks.stream(), topic, transactional="false")
    sinks.forget_last_commit()
    sinks.run(sinks.stream(), topic, transactional="false")
    assert sinks.values(topic, 4) == ["a", "a", "b", "b"]


def test_tasks_of_a_micro_batch_that_fail_write_once(sinks: Sinks, topic: str) -> None:
    sinks.lines("0.txt", *map(str, range(50)))
    frame = sinks.stream()
    sinks.run(frame.mapInArrow(failing_once, frame.schema), topic, transactionalId="mine")
    assert sinks.values(topic, 50) == sorted(map(str, range(50)))


def test_a_batch_that_fails_leaves_nothing(sinks: Sinks, topic: str) -> None:
    sinks.lines("0.txt", *map(str, range(50)))
    frame = sinks.stream()
    broken = frame.selectExpr("CASE WHEN value = '7' THEN raise_error('seven') ELSE value END value")
    with pytest.raises(Exception, match="seven"):
        sinks.run(broken, topic)
    sinks.run(frame, topic)
    assert sinks.values(topic, 50) == sorted(map(str, range(50)))


def test_a_batch_in_whose_middle_the_query_is_stopped_is_written_once(sinks: Sinks, topic: str) -> None:
    sinks.lines("0.txt", *map(str, range(50)))
    frame, begun, may_end = sinks.stream(), sinks.home / "begun", sinks.home / "may-end"

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        begun.touch()
        deadline = time.monotonic() + TERMINATION_S
        while not may_end.exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    written = frame.mapInArrow(slow, frame.schema)
    query = sinks.start(written, topic)
    deadline = time.monotonic() + TERMINATION_S
    while not begun.exists() and time.monotonic() < deadline:
        query.awaitTermination(0.1)
    query.stop()
    may_end.touch()
    sinks.run(written, topic)
    assert sinks.values(topic, 50) == sorted(map(str, range(50)))


def test_writes_of_foreach_batch_under_a_name_are_not_repeated(sinks: Sinks, topic: str) -> None:
    sinks.lines("0.txt", "a")
    runs: list[int] = []

    def write(frame: DataFrame, batch_id: int) -> None:
        sinks.job(frame.selectExpr("'named' key", "value"), topic, transactionalId="board")
        sinks.job(frame.selectExpr("'plain' key", "value"), topic)
        runs.append(batch_id)
        if len(runs) == 1:
            raise ValueError("behind the writes")

    def run() -> None:
        writer = sinks.stream().writeStream.foreachBatch(write).trigger(availableNow=True)
        ended(writer.option("checkpointLocation", str(sinks.home / "each")).start())

    with pytest.raises(Exception, match="behind the writes"):
        run()
    run()
    keys = sorted(record.key or b"" for record in sinks.records(topic, 3))
    assert keys == [b"named", b"plain", b"plain"]


def test_without_rows_a_batch_is_done(sinks: Sinks, topic: str) -> None:
    sinks.lines("0.txt", "a")
    frame: Any = sinks.stream().where("value = 'nobody'")
    query = sinks.run(frame, topic)
    assert query.exception() is None
    assert query.recentProgress[-1]["batchId"] == 0
