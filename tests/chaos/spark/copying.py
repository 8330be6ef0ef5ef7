"""
Topics that a Spark application copies, to topics and to Parquet, and what is found in the copies.

``Copying`` makes the inputs and the application's plan, and compares what the SDK and Spark read from each sink with
what was written.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.testing import TestCluster
from headrace_common.runtime.failpoints import DIRECTORY_VARIABLE

from ..transactions.storm import make_topic, nothing_hangs, partitions_of, read_columns, read_values
from .checkpoints import Checkpoint
from .judging import Place, judge
from .lives import Lives

SEED = int(os.environ.get("CHAOS_SEED", "20261122"))
PARTITIONS = 4
GAP = 7
"""Records of each transaction that is given up: offsets that nobody gets."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
}
"""Lives are short: a JVM that starts quickly is worth more than one that is fast later."""
RESTARTS = 40
"""Of queries within one application: Spark's own processes on the driver are killed too."""
EXACT, FILES, LOOSE = "exact", "files", "loose"
"""Queries: into a topic, exactly once; into Parquet; into a topic without transactions."""


@dataclass
class Copying:
    """One application's topics, files and checkpoints."""

    cluster: TestCluster
    directory: Path
    available_now: bool = True
    per_batch: int = 200
    """maxOffsetsPerTrigger."""
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: int = 0

    def __post_init__(self) -> None:
        for folder in ("seen", "failpoints"):
            (self.directory / folder).mkdir(parents=True)
        self.source = make_topic(self.cluster, f"{self.directory.name}-inputs", PARTITIONS)

    @property
    def bootstrap(self) -> dict[str, str]:
        """Options of every source and sink."""
        return {"kafka.bootstrap.servers": ",".join(self.cluster.bootstrap_servers)}

    def write(self, records: int) -> None:
        """So many more inputs, evenly, and some that are given up."""
        numbers = range(self.written, self.written + records)
        with self.cluster.producer(transactional_id=f"{self.source}-writer") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_many(self.source, [b"gone"] * GAP, partition=[one % PARTITIONS for one in range(GAP)])
            producer.abort_transaction()
            producer.begin_transaction()
            places = [number % PARTITIONS for number in numbers]
            producer.send_many(self.source, [b"%d" % one for one in numbers], partition=places)
            producer.commit_transaction()
        self.written += records

    def add(self, name: str, topic: str | None = None, reading: Mapping[str, str] | None = None, **more: str) -> None:
        """A query from ``topic`` (else the common source); ``more`` are options of its sink."""
        options = {
            "subscribe": topic or self.source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.per_batch),
            "minPartitions": str(PARTITIONS),
            "kafka.isolation.level": "read_committed",
            **(reading or {}),
        }
        to: dict[str, str]
        if name.startswith(FILES):
            sink, to = "parquet", {"path": str(self.directory / f"{name}.parquet")}
        else:
            target = make_topic(self.cluster, f"{self.directory.name}-{name}", PARTITIONS)
            sink, to = "headrace", {**self.bootstrap, "topic": target, **more}
        self.queries[name] = {
            "name": name,
            "source": "headrace",
            "from": self.bootstrap | options,
            "read": self.bootstrap,
            "sink": sink,
            "to": to,
            "checkpoint": str(self.directory / f"{name}.checkpoint"),
        }

    def lives(self, **environment: str) -> Lives:
        """The application, not started yet."""
        plan = {
            "finish": None if self.available_now else str(self.finish),
            "restarts": RESTARTS,
            "seen": str(self.directory / "seen"),
            "spark": SETTINGS,
            "queries": list(self.queries.values()),
        }
        path = self.directory / "plan.json"
        path.write_text(json.dumps(plan, indent=1))
        return Lives(self.directory, path, {DIRECTORY_VARIABLE: str(self.failpoints), **environment})

    @property
    def finish(self) -> Path:
        """A file; when it is there, the application ends with what has been written by then."""
        return self.directory / "finish"

    @property
    def failpoints(self) -> Path:
        """Where points are armed."""
        return self.directory / "failpoints"

    def checkpoint(self, name: str) -> Checkpoint:
        """Of one query."""
        return Checkpoint(Path(self.queries[name]["checkpoint"]))

    def batches(self) -> dict[str, int]:
        """How many each query has done."""
        return {name: self.checkpoint(name).done() + 1 for name in self.queries}

    def inputs(self, topic: str | None = None) -> dict[Place, str]:
        """What a reader of committed records finds in the source."""
        columns = read_columns(self.cluster, topic or self.source)
        rows = zip(columns["partition"], columns["offset"], columns["value"], strict=True)
        return {(partition, offset): value.decode() for partition, offset, value in rows}

    def found(self, name: str) -> dict[str, list[str]]:
        """Reader → the rows of a query's sink; Parquet is read by Spark only, for its log says which files count."""
        told = {"spark": Path(self.directory, "seen", name).read_text().splitlines()}
        if self.queries[name]["sink"] == "headrace":
            nothing_hangs(self.cluster, [self.queries[name]["to"]["topic"]])
            told["sdk"] = [value.decode() for value in read_values(self.cluster, self.queries[name]["to"]["topic"])]
        return told

    def anomalies(self, name: str) -> Counter[str]:
        """Of all readers of one sink."""
        inputs, ends, counts = self.inputs(), self.checkpoint(name).ends(), Counter[str]()
        for reader, rows in self.found(name).items():
            verdict = judge(inputs, rows, ends)
            (self.directory / f"{name}-{reader}.verdict").write_text(verdict.describe())
            counts.update(verdict.counts)
        return counts

    def aborted(self, name: str) -> int:
        """Rows in a sink's topic that no reader of committed records gets."""
        topic = self.queries[name]["to"]["topic"]
        rows = 0
        with self.cluster.consumer(isolation_level="read_uncommitted") as consumer:
            partitions = partitions_of(consumer, topic)
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(one) < end for one, end in ends.items()):
                rows += consumer.poll_table(timeout_ms=300, max_records=50_000).num_rows
        return rows - len(read_values(self.cluster, topic))
