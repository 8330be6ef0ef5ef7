"""
The job ``topic_copy``: options, and what is read and written. See README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.arguments import (
    BATCH,
    BOOTSTRAP,
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
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from headrace_jobs.arguments import Trigger
    from headrace_jobs.running import Done
    from headrace_jobs.topic_copy.transform import Copy


def parser() -> argparse.ArgumentParser:
    found = job_parser("topic_copy", "Topic to topic: filter and project, exactly once.")
    add_source(found)
    add_sink(found, topic_required=False)
    add_stream(found, batch=True)
    add_schema(found)
    copy = found.add_argument_group("copy")
    copy.add_argument("--filter", metavar="SQL", help="which records, as in \"key = 'UA' AND json.delay > 60\"")
    copy.add_argument(
        "--select", metavar="SQL,…", help="the new value, a JSON object, as in 'json.id, upper(key) AS k'"
    )
    copy.add_argument(
        "--keep",
        default="key,headers",
        metavar="WHAT,…",
        help="of key, headers, partition, timestamp, position; the last two as headers (default: key,headers)",
    )
    copy.add_argument("--same-topics", action="store_true", help="each record goes to the topic of its name")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    args = parser().parse_args(argv)
    return exit_status(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    keep = _keep(args)
    batch = args.trigger == BATCH
    trigger = None if batch else trigger_of(args.trigger)
    headers = "headers" in keep or "headers" in f"{args.filter} {args.select}"
    read = source_options(args, Mode.READ_BATCH if batch else Mode.READ_STREAM, headers=headers)
    write = sink_options(args, Mode.WRITE_BATCH if batch else Mode.WRITE_STREAM)
    _check(args, read, write)

    from headrace_jobs.given_schema import read_schema
    from headrace_jobs.session import job_session
    from headrace_jobs.topic_copy.transform import Copy

    with job_session() as spark:
        schema = read_schema(spark, args.schema, args.schema_file) if args.schema or args.schema_file else None
        copy = Copy(args.filter, args.select, schema, keep, one_topic=not args.same_topics)
        if trigger is None:
            run_batch(spark, read, write, copy)
            return 0
        done = run(spark, read, write, copy, trigger, args.checkpoint)
    sys.stdout.write(json.dumps(done.summary()) + "\n")
    return 0


def _keep(args: argparse.Namespace) -> tuple[str, ...]:
    known = ("key", "headers", "partition", "timestamp", "position")
    keep = names(args.keep)
    wrong = [name for name in keep if name not in known]
    if wrong:
        raise InvalidConfig(f"--keep takes {', '.join(known)}, not {', '.join(wrong)[:100]}")
    return keep


def _check(args: argparse.Namespace, read: dict[str, str], write: dict[str, str]) -> None:
    if (args.trigger == BATCH) == bool(args.checkpoint):
        raise InvalidConfig(f"give --checkpoint for a query that goes on, and none with --trigger {BATCH}")
    if bool(args.output_topic) == args.same_topics:
        raise InvalidConfig("say where records go, with one of --output-topic and --same-topics")
    if read[BOOTSTRAP] == write[BOOTSTRAP]:
        if args.same_topics:
            raise InvalidConfig("--same-topics within one cluster would copy topics onto themselves")
        if args.output_topic in names(args.topic):
            raise InvalidConfig(f"{args.output_topic} would be copied onto itself, forever; write to another topic")


def run(
    spark: SparkSession,
    read: dict[str, str],
    write: dict[str, str],
    copy: Copy,
    trigger: Trigger,
    checkpoint: str,
) -> Done:
    """
    Copy what the topics hold and will hold.

    Raises:
        JobFailed: the query failed; what was committed stays, and the next run goes on behind it.
    """
    from headrace_jobs.running import start, stream, wait_for_end
    from headrace_jobs.topic_copy.transform import copy_records

    def shape(writer: DataStreamWriter) -> DataStreamWriter:
        return writer.format("headrace").outputMode("append").options(**write).option("checkpointLocation", checkpoint)

    return wait_for_end(start(copy_records(stream(spark, read), copy), trigger, shape))


def run_batch(spark: SparkSession, read: dict[str, str], write: dict[str, str], copy: Copy) -> None:
    """Copy what the topics hold now, all of it or nothing; run again, it is copied again."""
    from headrace_jobs.running import table
    from headrace_jobs.topic_copy.transform import copy_records

    copy_records(table(spark, read), copy).write.format("headrace").options(**write).mode("append").save()
