"""
The job ``lake_follow``: options, and the loop that reads, writes and commits. See README.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.failpoints import failpoint
from headrace_jobs.arguments import (
    AVAILABLE_NOW,
    BOOTSTRAP,
    add_cluster,
    cluster_options,
    exit_status,
    interval_s,
    job_parser,
    trigger_of,
)
from headrace_jobs.connectors import Given, add_connector, read_connector, retriable
from headrace_jobs.lake_follow.planning import plan, reading_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace import LogWatch
    from headrace_connect.connectors.lake_sink.commits import DataFile
    from headrace_connect.connectors.lake_sink.parquet import ParquetLake
    from headrace_connect.runtime.config import SinkConfig
    from headrace_jobs.arguments import Trigger
    from headrace_spark.core.offsets import OffsetRange

OFFSETS_MAX: Final = 10_000_000
_COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
Write = Callable[["Sequence[OffsetRange]"], "Mapping[TopicPartition, Sequence[DataFile]]"]
_log: Final = logging.getLogger("headrace_jobs")


def parser() -> argparse.ArgumentParser:
    found = job_parser("lake_follow", "Topics to the Parquet lake of a lake-sink, from its positions on, exactly once.")
    add_connector(found, "lake-sink")
    add_cluster(found)
    query = found.add_argument_group("query")
    query.add_argument(
        "--trigger",
        default=AVAILABLE_NOW,
        metavar="WHEN",
        help=f"{AVAILABLE_NOW}: read what is there, then end (default); or how often, for good, as in '1 minute'",
    )
    query.add_argument(
        "--max-offsets-per-commit",
        type=int,
        default=OFFSETS_MAX,
        metavar="N",
        help="at most so many records are read and committed together (default: %(default)s)",
    )
    query.add_argument(
        "--if-taken",
        choices=("continue", "end"),
        default="continue",
        help="another one has committed first: go on behind it (default), or end and leave the lake to it",
    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    args = parser().parse_args(argv)
    return exit_status(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from headrace_connect.connectors.lake_sink import LakeSink
    from headrace_connect.connectors.lake_sink.staging import check_format

    trigger = trigger_of(args.trigger)
    if args.max_offsets_per_commit < 1:
        raise InvalidConfig("--max-offsets-per-commit takes 1 or more")
    given, configured = read_connector(args, LakeSink)
    check_format(configured.settings)
    options = cluster_options(args)

    from headrace import LogWatch
    from headrace_connect.connectors.lake_sink.parquet import ParquetLake
    from headrace_jobs.session import job_session

    lake = ParquetLake(configured.settings.path, list(configured.settings.partition_columns))
    with retriable(), LogWatch(options[BOOTSTRAP], isolation_level="read_committed") as watch, job_session() as spark:
        lake.start()
        rules = Rules(trigger, args.max_offsets_per_commit, args.if_taken == "end")
        config: Any = configured.config
        done = Following(config, lake, watch, partial(write_with_spark, spark, given, options), rules).run()
    sys.stdout.write(json.dumps(asdict(done)) + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class Rules:
    """How the job behaves."""

    trigger: Trigger
    offsets_max: int = OFFSETS_MAX
    """Of what is read and committed together."""
    ends_if_taken: bool = False


@dataclass(slots=True)
class Done:
    """What the job did."""

    commits: int = 0
    rows: int = 0
    files: int = 0
    taken: int = 0
    """Commits that others had made before: these rows are theirs."""


@dataclass(slots=True)
class Following:
    """One run. It is one more holder of the lake's partitions, of which each commits only from where the last ended."""

    config: SinkConfig
    lake: ParquetLake
    watch: LogWatch
    write: Write
    """Has the records of ranges written to files, wherever."""
    rules: Rules
    positions: dict[TopicPartition, int | None] = field(default_factory=dict)
    """Of partitions that are open."""
    done: Done = field(default_factory=Done)

    def run(self) -> Done:
        """
        Until what was there at the start is in the lake, or for good.

        Raises:
            JobFailed, InvalidConfig, Conflict: what was committed stays, and the next run goes on behind it.
            RetriableError: the lake is away; the same.
        """
        interval = self.rules.trigger.interval
        stop = None if interval else {each: bounds[1] for each, bounds in self._bounds().items()}
        while True:
            ranges = self._plan(stop)
            if ranges:
                self._commit(ranges, self.write(ranges))
                if self.done.taken and self.rules.ends_if_taken:
                    return self.done
            elif interval is None:
                return self.done
            if interval is not None and sum(map(len, ranges)) < self.rules.offsets_max:
                threading.Event().wait(interval_s(interval))

    def _plan(self, stop: Mapping[TopicPartition, int] | None) -> list[OffsetRange]:
        bounds = self._bounds()
        unknown = [each for each in bounds if each not in self.positions]
        found = self.lake.open(unknown)
        self.positions |= {each: found.get(each) for each in unknown}
        held = {each: self.positions[each] for each in bounds}
        return plan(held, bounds, stop, self.rules.offsets_max, self.config.auto_offset_reset)

    def _bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        layouts = self.watch.topics()
        names = [name for name in layouts if self._follows(name)]
        missing = sorted(set(self.config.topics) - set(names))
        if missing:
            raise InvalidConfig(f"there is no topic {', '.join(missing)[:500]}, which the connector's topics name")
        partitions = [TopicPartition(name, number) for name in names for number in range(layouts[name].partitions)]
        return {each: (found.start, found.end) for each, found in self.watch.bounds(partitions).items()}

    def _follows(self, name: str) -> bool:
        if self.config.topics:
            return name in self.config.topics
        return not name.startswith("__") and re.fullmatch(self.config.topics_regex, name) is not None

    def _commit(self, ranges: Iterable[OffsetRange], files: Mapping[TopicPartition, Sequence[DataFile]]) -> None:
        from headrace_connect.plugin import PartitionTaken

        failpoint("jobs.lake_follow.files")
        for each in ranges:
            own = sorted(files.get(each.partition, ()), key=lambda file: file.path.rpartition("/")[2])
            try:
                self.lake.name(each.partition, each.end, own)
            except PartitionTaken:
                _log.warning("%s: another one has committed from offset %d on before", each.partition, each.start)
                self.done.taken += 1
                del self.positions[each.partition]
                continue
            failpoint("jobs.lake_follow.commit")
            self.positions[each.partition] = each.end
            self.done.commits += 1
            self.done.files += len(own)
            self.done.rows += sum(file.rows for file in own)


def write_with_spark(
    spark: SparkSession, given: Given, options: Mapping[str, str], ranges: Sequence[OffsetRange]
) -> dict[TopicPartition, list[DataFile]]:
    """
    In as many tasks as the ranges are worth.

    Raises:
        PySparkException: one failed as often as Spark tries it.
    """
    from headrace_jobs.lake_follow.staging import FILES, files_of, stage_with

    read = spark.read.format("headrace").schema(_COLUMNS)
    records = read.options(**options, **reading_options(ranges)).load()
    return files_of(row.asDict() for row in records.mapInArrow(stage_with(given), FILES).collect())
