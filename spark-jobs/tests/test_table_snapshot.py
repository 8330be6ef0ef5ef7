"""table_snapshot with Spark's executors: a large table while it changes, and then its changes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.integration.connect.shop import Shop, started_shop
from tests.integration.connect.snapshots import Snapshot, quick

from headrace.testing.clusters import TestCluster
from headrace_jobs.arguments import EXIT_WRONG
from headrace_jobs.table_snapshot import job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_200), pytest.mark.usefixtures(quick.__name__)]
__all__ = ["quick"]
ROWS = int(os.environ.get("HEADRACE_HANDOVER_ROWS", "200000"))


@pytest.fixture
def shop() -> Iterator[Shop]:
    with started_shop() as shop:
        yield shop


def change(conninfo: str, stop: threading.Event) -> None:
    """All the time: rows all over the table are changed, deleted and made."""
    with psycopg.connect(conninfo, autocommit=True) as session:
        number = 0
        while not stop.wait(0.02):
            number += 1
            at = number * 7_919 % ROWS + 1
            session.execute("update t set n = n + 1 where id between %s and %s", (at, at + 20))
            session.execute("delete from t where id = %s", (at + 5,))
            session.execute("insert into t values (%s, %s) on conflict do nothing", (ROWS + number, number))


def test_a_large_table_while_it_changes(
    spark: SparkSession,
    headrace_cluster: TestCluster,
    shop: Shop,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    snapshot = Snapshot(headrace_cluster, shop, caplog, tmp_path, ROWS)
    stop = threading.Event()
    changes = threading.Thread(target=change, args=(shop.conninfo, stop))
    begin = ["--connector", str(snapshot.file), "--bootstrap", snapshot.bootstrap]
    assert job.main([*begin, "--point", "{}"]) == EXIT_WRONG
    assert "none that the connector has logged" in capsys.readouterr().err
    with snapshot.connector():
        changes.start()
        try:
            point = snapshot.point()
            assert job.main([*begin, "--point", point, "--range-pages", str(ROWS // 1_000)]) == 0
        finally:
            stop.set()
            changes.join(60)
        done = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert done["tables"] == 1
        assert done["tasks"] >= 4
        assert abs(done["rows"] - ROWS) < ROWS // 10, "as it was at the point"
        snapshot.check(done["rows"])
