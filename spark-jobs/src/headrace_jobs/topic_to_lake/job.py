"""
The job ``topic_to_lake``: options, what is read and written, and what is kept for later runs. See README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.arguments import (
    TIME_UNITS,
    Trigger,
    add_schema,
    add_source,
    add_stream,
    exit_status,
    job_parser,
    names,
    source_options,
    trigger_of,
)
from headrace_jobs.topic_to_lake.committed import LOG, committed_files, local_path
from headrace_spark.core.option_table import Mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from headrace_jobs.running import Done
    from headrace_jobs.topic_to_lake.layout import Layout
    from headrace_jobs.topic_to_lake.transform import Lake


def parser() -> argparse.ArgumentParser:
    found = job_parser("topic_to_lake", "Topic to partitioned Parquet, each record exactly once.")
    add_source(found)
    add_stream(found)
    add_schema(found)
    values = found.add_argument_group("values, more")
    values.add_argument("--values", choices=("json", "arrow"), default="json", help="what values are (default: json)")
    values.add_argument("--infer", action="store_true", help="or the fields of the oldest records, once and for all")
    values.add_argument("--timestamp-format", metavar="PATTERN", help="of timestamps in JSON, if not ISO 8601")
    lake = found.add_argument_group("lake")
    lake.add_argument("--output", required=True, metavar="PATH", help="directory of the lake")
    lake.add_argument(
        "--partition-by",
        default="event_date",
        metavar="COLUMN,…",
        help="after quality: event_date, _topic, _partition or fields (default: event_date)",
    )
    lake.add_argument("--time", metavar="FIELD", help="what event_date is taken from (default: the record's timestamp)")
    lake.add_argument("--time-unit", choices=TIME_UNITS, default="ms", help="of a whole number (default: ms)")
    lake.add_argument("--keep-value", action="store_true", help="good rows keep their bytes too, in _value")
    lake.add_argument("--headers", action="store_true", help="rows keep their headers, in _headers")
    lake.add_argument("--compression", choices=("zstd", "snappy", "none"), default="zstd", help="default: zstd")
    return found


def list_parser() -> argparse.ArgumentParser:
    """The options with which the job only lists what is committed."""
    found = job_parser("topic_to_lake", "List the committed files of a lake, for readers that are not Spark.")
    found.add_argument("--list-files", required=True, metavar="PATH", help="directory of the lake")
    found.add_argument("--quality", choices=("good", "bad", "all"), default="good", help="which rows (default: good)")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if any(each.partition("=")[0] == "--list-files" for each in given):
        args = list_parser().parse_args(given)
        return exit_status(lambda: _list(args.list_files, args.quality))
    args = parser().parse_args(given)
    return exit_status(lambda: _run(args))


def _list(path: str, quality: str) -> int:
    for name in committed_files(path):
        if quality == "all" or f"/quality={quality}/" in name:
            sys.stdout.write(local_path(name) + "\n")
    return 0


def _run(args: argparse.Namespace) -> int:
    if args.infer and (args.schema or args.schema_file):
        raise InvalidConfig("give one of --schema, --schema-file and --infer")
    trigger = trigger_of(args.trigger)
    options = source_options(args, Mode.READ_STREAM, headers=args.headers)

    from headrace_jobs.session import job_session

    with job_session() as spark:
        lake = _lake(spark, args)
        done = run(spark, options, lake, trigger, args.output, args.checkpoint, args.compression)
    sys.stdout.write(json.dumps(done.summary()) + "\n")
    return 0


def run(
    spark: SparkSession,
    options: dict[str, str],
    lake: Lake,
    trigger: Trigger,
    output: str,
    checkpoint: str,
    compression: str = "zstd",
) -> Done:
    """
    Write what the topics hold and will hold to the lake.

    Raises:
        Conflict: the checkpoint is of another lake, or the lake of another checkpoint.
        JobFailed: the query failed; what was committed stays, and the next run goes on behind it.
    """
    from headrace_jobs.running import start, stream, wait_for_end
    from headrace_jobs.topic_to_lake.transform import partition_columns, rows

    def shape(writer: DataStreamWriter) -> DataStreamWriter:
        return (
            writer.format("parquet")
            .outputMode("append")
            .partitionBy(*partition_columns(lake))
            .option("path", output)
            .option("checkpointLocation", checkpoint)
            .option("compression", compression)
        )

    _check_together(spark, output, checkpoint)
    return wait_for_end(start(rows(stream(spark, options), lake), trigger, shape))


def _check_together(spark: SparkSession, output: str, checkpoint: str) -> None:
    from headrace_jobs.hadoop_files import HadoopFiles
    from headrace_jobs.topic_to_lake.layout import check_together, last_batch

    files = HadoopFiles(spark)
    check_together(
        planned=last_batch(files.list_names(f"{checkpoint}/offsets")),
        committed=last_batch(files.list_names(f"{checkpoint}/commits")),
        written=last_batch(files.list_names(f"{output}/{LOG}")),
    )


def _lake(spark: SparkSession, args: argparse.Namespace) -> Lake:
    """What the user asks for, after what the first run has fixed; a run that wrote nothing has fixed nothing."""
    from headrace_jobs.hadoop_files import HadoopFiles
    from headrace_jobs.topic_to_lake.layout import FILE, Layout, continue_layout, last_batch
    from headrace_jobs.topic_to_lake.transform import Lake, check_lake

    files = HadoopFiles(spark)
    path = f"{args.checkpoint.rstrip('/')}/{FILE}"
    text = files.read(path) if last_batch(files.list_names(f"{args.output}/{LOG}")) >= 0 else None
    kept = Layout.of_text(text) if text is not None else None
    schema = _schema(spark, args, kept)
    lake = Lake(
        schema,
        values=args.values,
        partition_by=names(args.partition_by),
        time=args.time,
        time_unit=args.time_unit,
        timestamp_format=args.timestamp_format,
        keep_value=args.keep_value,
        headers=args.headers,
    )
    check_lake(lake)
    layout = Layout(schema, lake.values, lake.partition_by)
    if kept is not None:
        layout = continue_layout(kept, layout)
    if layout != kept:
        files.write(path, layout.text())
    return lake


def _schema(spark: SparkSession, args: argparse.Namespace, kept: Layout | None) -> StructType:
    from headrace_jobs.given_schema import read_schema

    if args.schema or args.schema_file:
        return read_schema(spark, args.schema, args.schema_file)
    if kept is not None:
        return kept.schema
    if not args.infer:
        raise InvalidConfig("what are the fields? give --schema, --schema-file, or --infer for the first run")

    from headrace_jobs.topic_to_lake.inferring import infer_schema

    return infer_schema(spark, source_options(args, Mode.READ_BATCH), args.values)
