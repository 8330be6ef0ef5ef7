"""
A topic of numbers, a lake-sink that writes it to a lake, and what the lake has of it; a ``lake_follow`` without Spark.

``python -m tests.integration.connect.handing FILE BOOTSTRAP`` is one in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from headrace import LogWatch, RangeReader, TopicPartition
from headrace.testing.clusters import TestCluster
from headrace_connect.connectors.lake_sink import open_dataset
from headrace_connect.connectors.lake_sink.commits import DataFile
from headrace_connect.connectors.lake_sink.parquet import ParquetLake
from headrace_connect.runtime.config import RunConfig, SinkConfig
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.running import run_connector
from headrace_connect.settings import Secrets
from headrace_jobs.arguments import Trigger
from headrace_jobs.connectors import Given
from headrace_jobs.lake_follow.job import Done, Following, Rules
from headrace_jobs.lake_follow.staging import files_of, stage_with
from headrace_spark.core.offsets import OffsetRange


def follow(config: Mapping[str, str], bootstrap: str, **rules: Any) -> Done:
    """Run the job's loop; what Spark's tasks do is done here."""
    given = Given(config)
    configured = given.configured()
    settings, of_sink = configured.settings, cast("SinkConfig", configured.config)

    def write(ranges: Sequence[OffsetRange]) -> dict[TopicPartition, list[DataFile]]:
        wanted = [(*each.partition, each.start, each.end) for each in ranges]
        with RangeReader(bootstrap, wanted, isolation_level="read_committed") as reader:
            batches = [batch for table in reader for batch in as_in_spark(table).to_batches()]
        return files_of(row for batch in stage_with(given)(iter(batches)) for row in batch.to_pylist())

    lake = ParquetLake(settings.path, list(settings.partition_columns))
    lake.start()
    with LogWatch(bootstrap, isolation_level="read_committed") as watch:
        return Following(of_sink, lake, watch, write, Rules(**{"trigger": Trigger(None), **rules})).run()


def as_in_spark(table: pa.Table) -> pa.Table:
    """Records of a range reader as the connector's source gives them to a task."""
    times: Any = table.column("timestamp_ms")
    return table.append_column("timestamp", times.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")))


class Handing:
    """A topic of two partitions, and who writes it to a lake in turn."""

    def __init__(self, cluster: TestCluster, directory: Path, **more: str) -> None:
        self.cluster = cluster
        self.bootstrap = ",".join(cluster.bootstrap_servers)
        self.topic = cluster.unique_topic("handed", partitions=2)
        self.lake = directory / "lake"
        self.made = 0
        self.config = {
            "name": f"lake.{self.topic}",
            "connector.class": "lake-sink",
            "topics": self.topic,
            "path": str(self.lake),
            **more,
        }
        self.file = directory / "lake.json"
        self.file.write_text(json.dumps(self.config))

    def fill(self, count: int, **more: Any) -> None:
        """Records with the next numbers, half of them in each partition."""
        numbers = range(self.made, self.made + count)
        with self.cluster.producer() as producer:
            for n in numbers:
                producer.send(self.topic, json.dumps({"n": n, "day": n % 3, **more}).encode(), partition=n % 2)
            producer.flush()
        self.made += count

    def sink(self) -> None:
        """Run lake-sink until it is idle."""
        asyncio.run(self.run(asyncio.Event(), until_idle=True))

    async def run(self, stop: asyncio.Event, *, until_idle: bool = False) -> None:
        """Run lake-sink until ``stop``."""
        await run_connector(configure(self.config, Secrets()), RunConfig(self.bootstrap), stop, until_idle=until_idle)

    def follow(self, main: Callable[[Sequence[str]], int], *more: str) -> None:
        """Run the job."""
        assert main(["--connector", str(self.file), "--bootstrap", self.bootstrap, *more]) == 0

    def follow_here(self, **rules: Any) -> Done:
        """Run the job in this process, without Spark."""
        return follow(self.config, self.bootstrap, **rules)

    def rows(self) -> list[dict[str, Any]]:
        """What a reader of the lake sees."""
        return open_dataset(str(self.lake), self.topic).to_table().to_pylist()

    def check(self) -> None:
        """Each record is there once, with its place in the topic."""
        rows = self.rows()
        assert sorted(row["n"] for row in rows) == list(range(self.made))
        assert len({(row["__connect_partition"], row["__connect_offset"]) for row in rows}) == self.made
        assert all(row["__connect_partition"] == row["n"] % 2 for row in rows)


if __name__ == "__main__":
    follow(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
