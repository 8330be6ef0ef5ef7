"""
The job ``retention_audit``: options, what is read, and the report. See README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.arguments import BOOTSTRAP, add_source, exit_status, job_parser, names, source_options
from headrace_jobs.retention_audit.report import FINDINGS, Found, failed, report
from headrace_spark.core.option_table import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace_jobs.retention_audit.logs import Held

EXIT_FOUND: Final = 1
"""The exit status when something of ``--fail-on`` was found."""
_KEPT_MAX: Final = 1_000
"""Gaps and duplicates that the report lists; Parquet has all."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What is asked."""

    id_field: str | None = None
    markers_max: int = 1
    top: int = 20
    skew_max: float = 0.5


def parser() -> argparse.ArgumentParser:
    found = job_parser("retention_audit", "What topics hold: counts, gaps, duplicates, skew, sizes and ages.")
    add_source(found, isolation="read_uncommitted", stream=False)
    group = found.add_argument_group("audit")
    group.add_argument("--output", required=True, metavar="PATH", help="directory of reports; each run adds one")
    group.add_argument("--id", metavar="PATH", help="a field of JSON values that names a record, as in order.id")
    group.add_argument("--markers-max", type=int, default=1, metavar="N", help="gaps up to N are ends of transactions")
    group.add_argument("--top", type=int, default=20, metavar="N", help="how many keys per topic are listed")
    group.add_argument("--skew-max", type=float, default=0.5, metavar="SHARE", help="of one key (default: 0.5)")
    group.add_argument("--fail-on", metavar="WHAT,…", help=f"exit with {EXIT_FOUND} on any of {', '.join(FINDINGS)}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    args = parser().parse_args(argv)
    return exit_status(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    fail_on = names(args.fail_on)
    unknown = [name for name in fail_on if name not in FINDINGS]
    if unknown:
        raise InvalidConfig(f"--fail-on takes {', '.join(FINDINGS)}, not {', '.join(unknown)[:100]}")
    if args.markers_max < 0 or args.top < 1 or not 0 < args.skew_max <= 1:
        raise InvalidConfig("--markers-max is 0 or more, --top 1 or more, --skew-max above 0 and up to 1")
    options = source_options(args, Mode.READ_BATCH)
    audit = Audit(args.id, args.markers_max, args.top, args.skew_max)

    from headrace_jobs.session import job_session

    with job_session() as spark:
        told = run(spark, options, audit, args.output, datetime.now(UTC))
    summary = {"findings": told["findings"], "topics": told["topics"], "report": told["report"]}
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    return EXIT_FOUND if failed(told["findings"], fail_on) else 0


def run(spark: SparkSession, options: dict[str, str], audit: Audit, output: str, now: datetime) -> dict[str, Any]:
    """
    Audit the topics and write the report under ``output``, as ``run=TIME/report.json`` and tables beside it.

    Raises:
        HeadraceError: the cluster could not be asked.
        JobFailed: Spark could not read it.
    """
    from headrace_jobs.hadoop_files import HadoopFiles
    from headrace_jobs.retention_audit.logs import list_logs

    servers = options[BOOTSTRAP]
    before = list_logs(
        servers,
        topics=names(options.get("subscribe")),
        pattern=options.get("subscribePattern"),
        isolation=options["kafka.isolation.level"],
    )
    directory = f"{output.rstrip('/')}/run={now:%Y%m%dT%H%M%S%fZ}"
    found = _run_audit(spark, options, audit, before, directory)
    told = report(found, audited_at=now, skew_max=audit.skew_max) | {"report": f"{directory}/report.json"}
    HadoopFiles(spark).write(told["report"], json.dumps(told, indent=2) + "\n")
    return told


def _run_audit(spark: SparkSession, options: dict[str, str], audit: Audit, before: list[Held], directory: str) -> Found:
    from pyspark import StorageLevel

    from headrace_jobs.retention_audit.logs import log_starts
    from headrace_jobs.retention_audit.transform import project
    from headrace_jobs.running import table

    rows = project(table(spark, _pin(options, before)), audit.id_field).persist(StorageLevel.DISK_ONLY)
    try:
        rows.count()
        after = log_starts(options[BOOTSTRAP], [each.partition for each in before])
        return _tables(spark, rows, audit, _bounds(spark, before, after), directory)
    finally:
        rows.unpersist()


def _pin(options: dict[str, str], before: list[Held]) -> dict[str, str]:
    """Exactly the records between the bounds that the report names."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for each in before:
        topic, number = each.partition.topic, str(each.partition.partition)
        starts.setdefault(topic, {})[number] = each.log_start
        ends.setdefault(topic, {})[number] = each.log_end
    kept = {name: value for name, value in options.items() if name not in ("subscribe", "subscribePattern")}
    assigned = {topic: sorted(map(int, numbers)) for topic, numbers in starts.items()}
    return kept | {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "false",
    }


def _bounds(spark: SparkSession, before: list[Held], after: dict[Any, int]) -> DataFrame:
    from headrace_jobs.retention_audit.transform import BOUNDS

    rows = [(*each.partition, each.log_start, each.log_end, after[each.partition], each.compacted) for each in before]
    return spark.createDataFrame(rows, BOUNDS)


def _tables(spark: SparkSession, rows: DataFrame, audit: Audit, bounds: DataFrame, directory: str) -> Found:
    from pyspark.sql import functions as fn

    from headrace_jobs.retention_audit.transform import duplicates, gaps, keys, partitions

    def stored(name: str, found: DataFrame) -> DataFrame:
        path = f"{directory}/{name}"
        found.coalesce(1).write.parquet(path)
        return spark.read.schema(found.schema).parquet(path)

    per_partition = stored("partitions", partitions(rows, bounds))
    holey = bounds.join(per_partition.where("missing > 0").select("topic", "partition"), ["topic", "partition"], "semi")
    all_gaps = stored("gaps", gaps(rows, holey, markers_max=audit.markers_max))
    all_duplicates = stored("duplicates", duplicates(rows))
    causes = all_gaps.groupBy("cause").agg(fn.count(fn.lit(1)).alias("gaps"), fn.sum("missing").alias("offsets"))
    totals = all_duplicates.agg(
        fn.count(fn.lit(1)).alias("identities"), fn.coalesce(fn.sum(fn.col("records") - 1), fn.lit(0)).alias("more")
    ).collect()[0]
    return Found(
        partitions=_plain(per_partition.orderBy("topic", "partition")),
        gaps=_plain(all_gaps.orderBy("topic", "partition", "start").limit(_KEPT_MAX)),
        gap_totals={row["cause"]: (row["gaps"], row["offsets"]) for row in causes.collect()},
        duplicates=_plain(all_duplicates.orderBy(fn.desc("records"), "topic", "identity").limit(_KEPT_MAX)),
        duplicate_totals=(totals["identities"], totals["more"]),
        keys=_plain(stored("keys", keys(rows, top=audit.top)).orderBy("topic", "rank")),
    )


def _plain(found: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in found.collect()]
