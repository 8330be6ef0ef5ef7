"""
The job ``windowed_aggregate``: options, and what is read and written. See README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.arguments import (
    BOOTSTRAP,
    TIME_UNITS,
    add_schema,
    add_sink,
    add_source,
    add_stream,
    exit_status,
    job_parser,
    names,
    sink_options,
    source_options,
    trigger_of,
)
from headrace_spark.core.option_table import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from headrace_jobs.arguments import Trigger
    from headrace_jobs.running import Done
    from headrace_jobs.windowed_aggregate.transform import Windows

_LENGTH: Final = re.compile(r"[0-9]{1,9} (millisecond|second|minute|hour|day|week)s?")
UPDATES: Final = "windowed_aggregate"
"""Names the units of ``--mode update``, beside the query's id and the topic."""
_LENGTHS: Final = ("window", "slide", "watermark", "ahead_max")


def parser() -> argparse.ArgumentParser:
    found = job_parser("windowed_aggregate", "Topic to topic: aggregates over windows of event time, exactly once.")
    add_source(found)
    add_sink(found, topic_required=True)
    add_stream(found)
    add_schema(found, required=True)
    group = found.add_argument_group("windows")
    group.add_argument("--window", required=True, metavar="LENGTH", help="of a window, as in '1 hour'")
    group.add_argument("--slide", metavar="LENGTH", help="how far apart windows begin (default: one behind the other)")
    group.add_argument("--time", metavar="FIELD", help="the event time (default: the record's timestamp)")
    group.add_argument("--time-unit", choices=TIME_UNITS, default="ms", help="of a whole number (default: ms)")
    group.add_argument("--watermark", default="10 minutes", metavar="LENGTH", help="how late is not too late")
    group.add_argument("--ahead-max", default="1 hour", metavar="LENGTH", help="later event times are left out")
    group.add_argument("--keys", metavar="FIELD,…", help="what makes groups (default: all in one)")
    group.add_argument("--aggregates", default="count", metavar="WHAT,…", help="as in 'count, sum:delay, max:delay'")
    group.add_argument(
        "--mode",
        choices=("append", "update"),
        default="append",
        help="a window's result once, when the watermark has passed it; or again whenever it changed (default: append)",
    )
    group.add_argument("--key-with-window", action="store_true", help="the key holds the window's start too")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    args = parser().parse_args(argv)
    return exit_status(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    for name in _LENGTHS:
        given = getattr(args, name)
        if given is not None and not _LENGTH.fullmatch(given):
            option = f"--{name.replace('_', '-')}"
            raise InvalidConfig(f"{option} takes a number and a unit, as '10 minutes', not {given[:50]!r}")
    trigger = trigger_of(args.trigger)
    read = source_options(args, Mode.READ_STREAM)
    write = sink_options(args, Mode.WRITE_BATCH if args.mode == "update" else Mode.WRITE_STREAM)
    if read[BOOTSTRAP] == write[BOOTSTRAP] and args.output_topic in names(args.topic):
        raise InvalidConfig(f"{args.output_topic} would be aggregated into itself; write to another topic")

    from headrace_jobs.session import job_session

    with job_session() as spark:
        done = run(spark, read, write, _windows(spark, args), trigger, args.checkpoint, args.mode)
    sys.stdout.write(json.dumps(done.summary()) + "\n")
    return 0


def _windows(spark: SparkSession, args: argparse.Namespace) -> Windows:
    from headrace_jobs.given_schema import read_schema
    from headrace_jobs.windowed_aggregate.transform import Windows, aggregates_of, check_windows

    windows = Windows(
        read_schema(spark, args.schema, args.schema_file),
        size=args.window,
        slide=args.slide,
        watermark=args.watermark,
        aggregates=aggregates_of(args.aggregates),
        keys=names(args.keys),
        time=args.time,
        time_unit=args.time_unit,
        ahead_max=args.ahead_max,
        key_with_window=args.key_with_window,
    )
    check_windows(windows)
    return windows


def run(
    spark: SparkSession,
    read: dict[str, str],
    write: dict[str, str],
    windows: Windows,
    trigger: Trigger,
    checkpoint: str,
    mode: str,
) -> Done:
    """
    Aggregate what the topics hold and will hold.

    Raises:
        JobFailed: the query failed; what was committed stays, and the next run goes on behind it.
    """
    from headrace_jobs.running import start, stream, wait_for_end
    from headrace_jobs.windowed_aggregate.transform import aggregate

    def shape(writer: DataStreamWriter) -> DataStreamWriter:
        placed = writer.outputMode(mode).option("checkpointLocation", checkpoint)
        if mode == "update":
            return placed.foreachBatch(update)
        return placed.format("headrace").options(**write)

    def update(results: DataFrame, batch: int) -> None:
        """Spark's own sinks in Python take no updates; under a name, a micro-batch is one unit here too."""
        results.write.format("headrace").options(**{"transactionalId": UPDATES, **write}).mode("append").save()

    return wait_for_end(start(aggregate(stream(spark, read), windows), trigger, shape))
