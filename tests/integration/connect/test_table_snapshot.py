"""The rows of tables as a unit of others, then the changes: no seam, whoever dies. The job runs here, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.connect.shop import Shop, started_shop
from tests.integration.connect.snapshots import Snapshot, quick

from headrace.testing import TestCluster
from headrace_common.core.errors import Fenced, InvalidConfig
from headrace_connect.plugin import RetriableError
from headrace_jobs.table_snapshot import job
from headrace_jobs.table_snapshot.job import Done

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.usefixtures(quick.__name__)]
__all__ = ["quick"]
ROWS = 3_000
TERMINATE = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and"


@pytest.fixture(scope="module")
def server() -> Iterator[Shop]:
    with started_shop() as shop:
        yield shop


@pytest.fixture
def snapshot(cluster: TestCluster, server: Shop, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Snapshot:
    server.drop_slots()
    server.do("drop schema public cascade", "create schema public")
    for (name,) in server.rows("select pubname from pg_publication"):
        server.do(f'drop publication "{name}"')
    return Snapshot(cluster, server, caplog, tmp_path, ROWS)


def change(shop: Shop, first: int) -> None:
    """One row is changed, one deleted, one is new; a large part of the table moves to other pages."""
    shop.do(
        f"update t set n = n + 1 where id between {first} and {first + 500}",
        f"delete from t where id = {first + 1}",
        f"insert into t values ({first + 100_000}, 7)",
    )


def test_rows_at_the_point_and_all_changes_behind_it(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    with snapshot.connector():
        point = snapshot.point()
        change(snapshot.shop, 100)
        monkeypatch.setattr(job, "failpoint", lambda name: change(snapshot.shop, 1_000 + len(name)))
        done = snapshot.job(point)
        assert done == Done(1, ROWS, done.tasks)
        assert done.tasks >= 3
        change(snapshot.shop, 2_000)
        snapshot.check(ROWS)
        assert snapshot.job(point) == Done(repeated=True)
    with snapshot.connector():
        change(snapshot.shop, 300)
        snapshot.check(ROWS)


def test_a_task_that_dies_before_the_unit_begins_anew(snapshot: Snapshot) -> None:
    with snapshot.connector():
        first = snapshot.point()
    with pytest.raises(InvalidConfig, match="snapshot"):
        snapshot.job(first)
    change(snapshot.shop, 100)
    with snapshot.connector():
        second = snapshot.point()
        with pytest.raises(InvalidConfig, match="does not begin at"):
            snapshot.job(first.replace(_field(first, "snapshot"), _field(second, "snapshot")))
        assert snapshot.records() == []
        assert snapshot.job(second).rows == ROWS
        snapshot.check(ROWS)


@pytest.mark.parametrize("dies", [True, False])
def test_a_snapshot_that_is_lost_meanwhile_fences_the_job(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    """With the task, or its connection: it begins anew, and what was prepared is never committed."""
    points: list[str] = []
    running = [snapshot.connector()]
    running[0].__enter__()

    def lose(name: str) -> None:
        if not name.endswith("prepared" if dies else "written") or points:
            return
        if dies:
            running.pop().__exit__(None, None, None)
            running.append(snapshot.connector())
            running[0].__enter__()
        else:
            snapshot.shop.do(f"{TERMINATE} backend_type = 'walsender'")
        points.append(snapshot.point())

    try:
        point = snapshot.point()
        monkeypatch.setattr(job, "failpoint", lose)
        with pytest.raises(Fenced):
            snapshot.job(point)
        assert snapshot.records() == []
        assert snapshot.job(points[0]).rows == ROWS
        snapshot.check(ROWS)
    finally:
        running[0].__exit__(None, None, None)


def test_a_task_that_died_before_it_heard_of_the_unit_goes_on_behind_it(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = snapshot.connector()
    running.__enter__()
    point = snapshot.point()

    def die(name: str) -> None:
        if name.endswith("prepared"):
            running.__exit__(None, None, None)

    monkeypatch.setattr(job, "failpoint", die)
    assert snapshot.job(point).rows == ROWS
    change(snapshot.shop, 100)
    with snapshot.connector():
        snapshot.check(ROWS)


def test_tables_that_may_have_been_or_were_rewritten_are_refused(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlock(name: str) -> None:
        snapshot.shop.do(f"{TERMINATE} state = 'idle in transaction' and backend_type = 'client backend'")

    with snapshot.connector():
        point = snapshot.point()
        monkeypatch.setattr(job, "failpoint", unlock)
        with pytest.raises(RetriableError):
            snapshot.job(point)
        assert snapshot.records() == []
        assert snapshot.undecided() == 0, "what was prepared is aborted"
        snapshot.shop.do("delete from t where id < 1000", "vacuum full t")
        with pytest.raises(InvalidConfig, match=r"t was rewritten since the snapshot; restart the connector"):
            snapshot.job(point)
        assert snapshot.records() == []


def _field(point: str, name: str) -> str:
    from headrace_connect.connectors.postgres_cdc.exported import Point

    found: str = getattr(Point.from_json(point), name)
    return found
