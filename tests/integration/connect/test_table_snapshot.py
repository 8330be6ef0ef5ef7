"""The rows of tables as a unit of others, then the changes: no seam, whoever dies. The job runs here, without Spark."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from libs.common.tests.kit.api_server import make_account, make_certificates, serving
from libs.common.tests.kit.clock import FakeClock
from libs.connect.tests.test_jobs import Api
from tests.integration.connect.shop import Shop, started_shop
from tests.integration.connect.snapshots import WAIT_S, Snapshot, quick, write_here

from headrace.testing import TestCluster
from headrace_common.core.errors import Fenced, InvalidConfig
from headrace_connect.connectors.postgres_cdc.replication import SILENCE_MS, Replication
from headrace_connect.core.names import SPARK_APPLICATION
from headrace_connect.plugin import RetriableError
from headrace_connect.runtime import seating
from headrace_connect.runtime.adapters.jobs import find_jobs
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
    with pytest.raises(InvalidConfig, match=r"the snapshot is not kept any more: .*; restart the connector"):
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


def test_tables_that_have_another_name_now_are_refused(snapshot: Snapshot) -> None:
    """Also where another table has it: its rows are not those of the one that was there."""
    shop = snapshot.shop
    refused = r"public.t has another name since the snapshot, or is gone; restart the connector"
    with snapshot.connector():
        point = snapshot.point()
        shop.do("create table other (id int primary key, n int)", "insert into other values (7, 7)")
        shop.do("alter table t rename to before")
        with pytest.raises(InvalidConfig, match=refused):
            snapshot.job(point)
        shop.do("alter table other rename to t")
        with pytest.raises(InvalidConfig, match=refused):
            snapshot.job(point)
        assert snapshot.records() == []
        shop.do("alter table t rename to other", "alter table before rename to t")
        assert snapshot.job(point).rows == ROWS
        snapshot.check(ROWS)


def test_a_table_whose_name_changes_while_the_job_waits_for_it_is_refused(snapshot: Snapshot) -> None:
    shop = snapshot.shop
    waiting = "select 1 from pg_locks, pg_sleep(0.01) where not granted"
    with snapshot.connector(), psycopg.connect(shop.conninfo) as other, ThreadPoolExecutor(1) as threads:
        point = snapshot.point()
        shop.do("create table other (id int primary key, n int)")
        other.execute("alter table t rename to before")
        other.execute("alter table other rename to t")
        running = threads.submit(snapshot.job, point)
        while not shop.rows(waiting):
            assert not running.done()
        other.commit()
        with pytest.raises(InvalidConfig, match=r"public.t has another name since the snapshot"):
            running.result(WAIT_S)
        assert snapshot.records() == []


async def test_a_server_is_not_taken_as_lost_for_it_sent_nothing_while_the_job_ran(server: Shop) -> None:
    clock = FakeClock()
    server.drop_slots()
    server.do("drop publication if exists quiet", "create publication quiet")
    replication = await Replication.open(server.settings("quiet", "public[.]t"), "quiet", clock)
    try:
        _, lsn = await replication.export("quiet", failover=False)
        await clock.advance(2 * SILENCE_MS)
        await replication.check_held(0)
        await replication.start("quiet", "quiet", lsn, lsn)
        await replication.wait(0)
        await clock.advance(2 * SILENCE_MS)
        with pytest.raises(RetriableError, match="has sent nothing for 120 s"):
            await replication.wait(0)
    finally:
        await replication.close()


class Operator(Api):
    """An API server of Kubernetes, and beside it what runs the applications that are made there: here, in a thread."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self._fails = fails
        """So many are not run, and have failed."""
        self.made: list[str] = []
        self.running: threading.Thread | None = None
        self.begun = threading.Event()

    def post(self, name: str, query: Any, body: Any) -> tuple[int, Any]:
        answer = super().post(name, query, body)
        self.made.append(body["metadata"]["name"])
        if len(self.made) <= self._fails:
            self.say("FAILED", "driver container failed with ExitCode: 3")
            return answer
        self.say("RUNNING")
        self.running = threading.Thread(target=job.main, args=(body["spec"]["arguments"],))
        self.running.start()
        self.begun.set()
        return answer


def test_a_worker_starts_the_job_as_an_application_and_another_one_where_it_fails(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = make_certificates(tmp_path / "certificates")
    account, template, operator = make_account(tmp_path / "account", files), tmp_path / "spark.json", Operator(fails=1)
    spec = {"arguments": ["--bootstrap", snapshot.bootstrap, "--range-pages", "4"]}
    template.write_text(json.dumps({"metadata": {}, "spec": spec}))
    monkeypatch.setattr(job, "write_with_spark", write_here)
    with serving(operator.answer, files) as env, caplog.at_level(logging.WARNING):
        env[SPARK_APPLICATION] = str(template)
        monkeypatch.setattr(seating, "find_jobs", lambda cluster, config: find_jobs(cluster, config, env, account))
        with snapshot.connector():
            assert operator.begun.wait(60)
            change(snapshot.shop, 300)
            assert operator.running is not None
            operator.running.join(60)
            change(snapshot.shop, 900)
            snapshot.check(ROWS)
    first, second = operator.made
    assert first != second, "another snapshot"
    assert operator.applications == {}, "what is done is deleted, and what has failed"
    assert f"the SparkApplication {first} is FAILED: driver container failed with ExitCode: 3" in caplog.text


def _field(point: str, name: str) -> str:
    from headrace_connect.connectors.postgres_cdc.exported import Point

    found: str = getattr(Point.from_json(point), name)
    return found
