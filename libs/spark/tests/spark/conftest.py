"""
One Spark session and one cluster for all tests here: each test makes topics of its own.

A session takes ten seconds to start, and its first query five more.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from headrace.testing.clusters import TestCluster

QUERY_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """``local[2,2]``: a task that fails is tried a second time."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    made = (
        SparkSession.builder.master("local[2,2]")
        .appName("headrace-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.authenticate.socketTimeout", "90s")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", tmp_path_factory.mktemp("events").as_uri())
        .config("spark.eventLog.compress", "false")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    try:
        yield made
    finally:
        made.stop()


@dataclass
class Reads:
    """Queries on the cluster, with as few words as tests need."""

    spark: SparkSession
    cluster: TestCluster

    def batch(self, topic: str = "", **options: Any) -> DataFrameReader:
        """``spark.read``; options with underscores for dots."""
        return self.spark.read.format("headrace").options(**self._options(topic, options))

    def stream(self, topic: str = "", **options: Any) -> DataStreamReader:
        """``spark.readStream``."""
        return self.spark.readStream.format("headrace").options(**self._options(topic, options))

    def _options(self, topic: str, options: dict[str, Any]) -> dict[str, Any]:
        known = {"kafka.bootstrap.servers": ",".join(self.cluster.bootstrap_servers)}
        if topic:
            known["subscribe"] = topic
        return known | {name.replace("__", "."): value for name, value in options.items()}


@pytest.fixture
def reads(spark: SparkSession, headrace_cluster: TestCluster) -> Reads:
    """To read with Spark."""
    return Reads(spark, headrace_cluster)


@pytest.fixture
def fill(headrace_cluster: TestCluster) -> Callable[..., None]:
    """Write records of numbers into a topic: ``fill(topic, range(10), partition=1)``."""

    def filled(topic: str, numbers: range, partition: int = 0, timestamp_ms: int | None = None) -> None:
        table: dict[str, Any] = {
            "key": pa.array([b"k%d" % number for number in numbers], pa.binary()),
            "value": pa.array([b"%d" % number for number in numbers], pa.binary()),
            "partition": pa.array([partition] * len(numbers), pa.int32()),
        }
        if timestamp_ms is not None:
            table["timestamp_ms"] = pa.array([timestamp_ms + number for number in numbers], pa.int64())
        with headrace_cluster.producer() as producer:
            producer.send_table(topic, pa.table(table)).result(timeout=30)

    return filled


@dataclass
class Sunk:
    """A streaming query whose rows are kept, batch by batch."""

    query: StreamingQuery
    batches: list[tuple[int, list[Any]]]

    @property
    def rows(self) -> list[Any]:
        """Of all batches."""
        return [row for _, rows in self.batches for row in rows]

    def values(self) -> list[int]:
        """As numbers, sorted."""
        return sorted(int(row["value"]) for row in self.rows)

    def until(self, done: Callable[[Sunk], bool]) -> None:
        """Wait until the query has done something; its failure is raised."""
        deadline = time.monotonic() + QUERY_TIMEOUT_S
        while not done(self):
            error = self.query.exception()
            if error is not None:
                raise error
            assert time.monotonic() < deadline, f"after {QUERY_TIMEOUT_S} s: {self.batches} {self.query.lastProgress}"
            self.query.awaitTermination(0.1)

    def ended(self) -> Sunk:
        """Wait until it has ended by itself."""
        assert self.query.awaitTermination(QUERY_TIMEOUT_S), self.query.status
        return self

    def stop(self) -> None:
        """End it."""
        self.query.stop()


@pytest.fixture
def sunk(tmp_path: Path) -> Iterator[Callable[..., Sunk]]:
    """Start a streaming query that keeps its rows: ``sunk(frame, "checkpoint", availableNow=True)``."""
    started: list[StreamingQuery] = []

    def start(frame: DataFrame, checkpoint: str = "checkpoint", *, keep: Any = None, **trigger: Any) -> Sunk:
        batches: list[tuple[int, list[Any]]] = []

        def kept(batch: DataFrame, number: int) -> None:
            if keep is not None:
                keep(number)
            batches.append((number, batch.collect()))

        writer = frame.writeStream.foreachBatch(kept).option("checkpointLocation", str(tmp_path / checkpoint))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        started.append(query)
        return Sunk(query, batches)

    yield start
    for query in started:
        query.stop()
