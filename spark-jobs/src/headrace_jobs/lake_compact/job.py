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
from math import ceil
from typing import TYPE_CHECKING, Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import SystemClock
from headrace_jobs.arguments import duration_s, exit_status, job_parser
from headrace_jobs.connectors import add_connector, read_connector, retriable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace_connect.connectors.lake_sink.commits import DataFile
    from headrace_connect.connectors.lake_sink.merges import Bin
    from headrace_connect.connectors.lake_sink.merging import Plan
    from headrace_connect.connectors.lake_sink.settings import SinkSettings
    from headrace_connect.connectors.places import Place

TARGET_MB: Final = 256
_DAY_S: Final = 86_400
_log: Final = logging.getLogger("headrace_jobs")


def parser() -> argparse.ArgumentParser:
    found = job_parser(
        "lake_compact", "Small files of a lake-sink put together, Parquet's or Delta's, beside the sink and readers."
    )
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
        metavar="TIME",
        help="what was replaced is deleted after so long: readers may take as long (default: 1 day; of Delta what the "
        "table says, else a week)",
    )
    compact.add_argument(
        "--z-order",
        metavar="COLUMN,…",
        help="of Delta: write all rows anew, those with near values of these columns together",
    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    args = parser().parse_args(argv)
    return exit_status(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from headrace_connect.connectors.lake_sink import LakeSink

    keep_s = None if args.keep is None else duration_s("--keep", args.keep)
    if args.target_mb < 1:
        raise InvalidConfig("--target-mb takes 1 or more")
    columns = [name for one in (args.z_order or "").split(",") if (name := one.strip())]
    _, configured = read_connector(args, LakeSink)
    settings = configured.settings
    target_bytes = args.target_mb << 20
    if settings.format == "parquet" and columns:
        raise InvalidConfig("--z-order is for format=delta: files of Parquet keep the order of offsets")
    with retriable():
        if settings.format == "parquet":
            done = _run_merges(settings.path, target_bytes, _DAY_S if keep_s is None else keep_s)
        else:
            done = _run_table(settings, target_bytes, columns, keep_s)
    sys.stdout.write(json.dumps(asdict(done)) + "\n")
    return 0


def _run_merges(path: str, target_bytes: int, keep_s: float) -> Done:
    from headrace_connect.connectors.places import find_place
    from headrace_jobs.session import job_session

    place = find_place(path)
    with job_session() as spark:
        now_ms = SystemClock().now_ms()
        return run(spark, place, path, target_bytes, now_ms, now_ms - int(keep_s * 1_000))


def _run_table(settings: SinkSettings, target_bytes: int, z_order: Sequence[str], keep_s: float | None) -> Done:
    """Without Spark: deltalake reads and writes on all cores of this machine."""
    from headrace_connect.connectors.lake_sink.compacting import compact

    keep_hours = None if keep_s is None else ceil(keep_s / 3_600)
    found = compact(settings, target_bytes, z_order=z_order, keep_hours=keep_hours)
    return Done(found.partitions, found.files_before, found.files_after, found.deleted)


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
