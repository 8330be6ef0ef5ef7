"""
The job ``lake_compact``: options, and which step is done where. See README.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import SystemClock
from headrace_jobs.arguments import exit_status, interval_s, job_parser, trigger_of
from headrace_jobs.connectors import add_connector, read_connector, retriable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace_connect.connectors.lake_sink.commits import DataFile
    from headrace_connect.connectors.lake_sink.merges import Bin
    from headrace_connect.connectors.lake_sink.merging import Plan
    from headrace_connect.connectors.places import Place

TARGET_MB: Final = 256
_log: Final = logging.getLogger("headrace_jobs")


def parser() -> argparse.ArgumentParser:
    found = job_parser("lake_compact", "Small Parquet files of a lake-sink put together, beside the sink and readers.")
    add_connector(found, "lake-sink")
    compact = found.add_argument_group("files")
    compact.add_argument(
        "--target-mb",
        type=int,
        default=TARGET_MB,
        metavar="N",
        help="files below half of so many MiB are put together until they have it (default: %(default)s)",
    )
    compact.add_argument(
        "--keep",
        default="1 day",
        metavar="TIME",
        help="what was replaced is deleted after so long: readers may take as long (default: 1 day)",
    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    args = parser().parse_args(argv)
    return exit_status(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from headrace_connect.connectors.lake_sink import LakeSink
    from headrace_connect.connectors.lake_sink.staging import check_format
    from headrace_connect.connectors.places import find_place

    keep = trigger_of(args.keep).interval
    if keep is None or args.target_mb < 1:
        raise InvalidConfig("--keep takes a time as '1 day', and --target-mb 1 or more")
    _, configured = read_connector(args, LakeSink)
    check_format(configured.settings)

    from headrace_jobs.session import job_session

    with retriable():
        path = configured.settings.path
        place = find_place(path)
        with job_session() as spark:
            now_ms = SystemClock().now_ms()
            done = run(spark, place, path, args.target_mb << 20, now_ms, now_ms - int(interval_s(keep) * 1_000))
    sys.stdout.write(json.dumps(asdict(done)) + "\n")
    return 0


@dataclass(slots=True)
class Done:
    """What the job did."""

    merges: int = 0
    files_before: int = 0
    files_after: int = 0
    deleted: int = 0
    lost: int = 0
    """Partitions that another one has merged meanwhile: nothing of them was changed."""


def run(spark: SparkSession, place: Place, path: str, target_bytes: int, now_ms: int, made_before_ms: int) -> Done:
    """
    Put together what is small now, and delete what merges before ``made_before_ms`` have replaced.

    Raises:
        RetriableError, JobFailed, InvalidConfig: partitions that were merged stay so; run it again.
    """
    from headrace_connect.connectors.lake_sink.merging import clean, list_partitions, plan_merge, take_merge

    done = Done()
    plans: list[Plan] = []
    for directory in list_partitions(place):
        deleted, cleaned = clean(place, directory, made_before_ms)
        done.deleted += deleted
        plan = plan_merge(place, directory, target_bytes, cleaned)
        if plan is not None:
            plans.append(plan)
    made = _merge(spark, path, [each for plan in plans for each in plan.bins])
    for plan in plans:
        if not take_merge(place, plan, {each: made[each] for each in plan.bins}, now_ms):
            _log.warning("%s: another one has put files together meanwhile", plan.directory)
            done.lost += 1
            continue
        done.merges += 1
        done.files_before += sum(len(each.files) for each in plan.bins)
        done.files_after += len(plan.bins)
    return done


def _merge(spark: SparkSession, path: str, bins: list[Bin]) -> dict[Bin, DataFile]:
    """A task for each."""
    if not bins:
        return {}

    def merge(each: Bin) -> DataFile:
        from headrace_connect.connectors.lake_sink.merging import merge_files
        from headrace_connect.connectors.places import find_place

        return merge_files(find_place(path), each)

    return dict(zip(bins, spark.sparkContext.parallelize(bins, len(bins)).map(merge).collect(), strict=True))
