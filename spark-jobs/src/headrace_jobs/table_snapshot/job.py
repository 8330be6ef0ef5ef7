"""
The job ``table_snapshot``: options, and the unit that its tasks write. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import HeadraceError, InvalidConfig
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_uuid
from headrace_common.runtime.failpoints import failpoint
from headrace_jobs.arguments import BOOTSTRAP, add_cluster, cluster_options, exit_status, job_parser
from headrace_jobs.connectors import Given, add_connector, read_connector, retriable

if TYPE_CHECKING:
    from headrace_connect.connectors.postgres_cdc.exported import Point, Range
    from headrace_connect.runtime.configuring import Configured
    from headrace_jobs.table_snapshot.writing import Unit, Written

PAGES: Final = 16_384
"""128 MiB of a table with PostgreSQL's pages."""
TASKS_MAX: Final = 9_999
"""Transactions of a unit, beside the one with the position."""
TIMEOUT_MS: Final = 60_000
Write = Callable[["Unit", "Sequence[Range]"], "Sequence[Written]"]


def parser() -> argparse.ArgumentParser:
    found = job_parser("table_snapshot", "Rows of PostgreSQL's tables to topics, for a postgres-cdc that waits for it.")
    add_connector(found, "postgres-cdc")
    add_cluster(found)
    snapshot = found.add_argument_group("snapshot")
    snapshot.add_argument("--point", required=True, metavar="JSON", help="what the connector has logged")
    snapshot.add_argument(
        "--range-pages",
        type=int,
        default=PAGES,
        metavar="N",
        help="pages of a table that a task reads, of 8 KiB each (default: %(default)s)",
    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    args = parser().parse_args(argv)
    return exit_status(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from headrace_connect.connectors.postgres_cdc import PostgresSource
    from headrace_connect.connectors.postgres_cdc.exported import Point

    try:
        point = Point.from_json(args.point)
    except ValueError as error:
        raise InvalidConfig(f"--point: {error}") from None
    if args.range_pages < 1:
        raise InvalidConfig("--range-pages takes 1 or more")
    given, configured = read_connector(args, PostgresSource)
    bootstrap = cluster_options(args)[BOOTSTRAP]
    with retriable():
        done = run(given, configured, point, bootstrap, write_with_spark, args.range_pages)
    sys.stdout.write(json.dumps(asdict(done)) + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class Done:
    """What the job did."""

    tables: int = 0
    rows: int = 0
    tasks: int = 0
    repeated: bool = False
    """It was done before: nothing was written."""


def run(given: Given, configured: Configured, point: Point, bootstrap: str, write: Write, pages: int = PAGES) -> Done:
    """
    Write rows and position as one unit.

    Args:
        write: has each range written, wherever.
        pages: of a range.

    Raises:
        HeadraceError, RetriableError: nothing is visible; the same command may be run again while its connector waits.
    """
    from headrace_connect.connectors.postgres_cdc.exported import open_at, plan_ranges
    from headrace_jobs.table_snapshot.writing import Unit

    with asyncio.Runner() as runner:
        epoch, last = runner.run(_fence(point, bootstrap))
        if runner.run(_is_done(configured, point, bootstrap)):
            return Done(repeated=True)
        session = runner.run(open_at(configured.settings, point))
        try:
            ranges = runner.run(plan_ranges(session, configured.settings, point, pages))
            if len(ranges) > TASKS_MAX:
                raise InvalidConfig(f"--range-pages: {len(ranges)} ranges are more than {TASKS_MAX}; take larger ones")
            written = write(Unit(given, point, bootstrap, epoch, TIMEOUT_MS), ranges)
            failpoint("jobs.table_snapshot.written")
            runner.run(session.fetch("select 1"))  # its locks were held until now
            tokens = [each.token for each in written if each.token]
            runner.run(_commit(configured, point, bootstrap, epoch, last + 1, tokens, ranges))
        except BaseException:
            runner.run(_give_up(point, bootstrap))
            raise
        finally:
            runner.run(session.close())
    failpoint("jobs.table_snapshot.committed")
    return Done(len({each.table.oid for each in ranges}), sum(each.rows for each in written), len(ranges))


async def _is_done(configured: Configured, point: Point, bootstrap: str) -> bool:
    from headrace import aio
    from headrace_connect.runtime.adapters.source_log import SdkSourceLog, SourcePlace
    from headrace_connect.runtime.adapters.topics import SdkTopics
    from headrace_connect.runtime.config import RunConfig

    clock, config = SystemClock(), RunConfig(bootstrap, default_api_timeout_ms=TIMEOUT_MS)
    place = SourcePlace(configured.config.name, 0, 0, point.offset_topic, False, True, 0)
    async with aio.AdminClient(bootstrap, default_api_timeout_ms=TIMEOUT_MS) as admin:
        log = SdkSourceLog(config, place, SdkTopics(admin, clock, bootstrap), clock)
        return point.split in await log.locate([point.split])


async def _fence(point: Point, bootstrap: str) -> tuple[int, int]:
    """Epoch and last unit of the owner: earlier runs commit nothing any more."""
    from headrace.aio.transactions import UnitOwner
    from headrace_streams.patience import Patience

    async with UnitOwner(bootstrap, point.owner) as owner:
        found = await Patience(SystemClock(), TIMEOUT_MS).ask(owner.init)
        return found.epoch, found.last_sequence


async def _give_up(point: Point, bootstrap: str) -> None:
    """Abort what tasks have prepared, so that readers wait for nothing."""
    try:
        await _fence(point, bootstrap)
    except HeadraceError:
        return  # the cluster aborts it after a time


async def _commit(
    configured: Configured,
    point: Point,
    bootstrap: str,
    epoch: int,
    sequence: int,
    tokens: Sequence[str],
    ranges: Sequence[Range],
) -> None:
    """The position goes last: readers of the offset topic wait for it, and so for a moment only."""
    from headrace import aio
    from headrace.aio.transactions import UnitOwner
    from headrace_connect.connectors.postgres_cdc.exported import place_of
    from headrace_connect.runtime.adapters.source_log import position_record
    from headrace_streams.patience import Patience

    patience = Patience(SystemClock(), TIMEOUT_MS)
    key, value = position_record(configured.config.name, point.split, place_of(point, ranges).to_json())
    identity: dict[str, Any] = {"transactional_id": f"{point.owner}/{new_uuid()}", "owner_epoch": epoch}
    async with aio.Producer(bootstrap, **identity) as producer, UnitOwner(bootstrap, point.owner, epoch=epoch) as owner:
        await patience.ask(producer.init_transactions)
        await producer.begin_transaction()
        await producer.send(point.offset_topic, value, key=key)
        token = await patience.ask(producer.prepare_transaction)
        failpoint("jobs.table_snapshot.prepared")
        await patience.ask(lambda: owner.commit(sequence, [*tokens, token]))


def write_with_spark(unit: Unit, ranges: Sequence[Range]) -> list[Written]:
    """
    A task for each range.

    Raises:
        JobFailed: one failed as often as Spark tries it.
    """
    from headrace_jobs.session import job_session

    def write(each: Range) -> Written:
        from headrace_jobs.table_snapshot.writing import write_range

        return asyncio.run(write_range(unit, each))

    if not ranges:
        return []
    with job_session() as spark:
        return list(spark.sparkContext.parallelize(ranges, len(ranges)).map(write).collect())
