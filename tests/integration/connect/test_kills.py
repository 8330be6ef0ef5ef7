"""Processes that are killed with -9 at each step of a commit: each row is in its topic, or in its table, once."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.chaos.connect.mutations import variables_of
from tests.integration.connect.killing import run, stopped_at
from tests.integration.connect.test_sql_sink_postgres import PostgresDatabase
from tests.integration.transactions.postgres import started_postgres

from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LOOKS = "select query_start from pg_stat_activity where query like 'select max(%' and application_name like 'headrace%'"
TAP = Path(__file__).parents[3] / "libs/connect/tests/connectors/singer/tap_shop.py"
CONNECTORS = Path(__file__).with_name("rows.py")


def numbers_in(cluster: TestCluster, topics: Sequence[str]) -> Counter[int]:
    """What readers of committed records see."""
    with cluster.consumer(*topics, isolation_level="read_committed") as consumer:
        return Counter(json.loads(record.value)["n"] for record in consumer.read_to_end(timeout_ms=60_000))


def test_a_source_is_killed_at_each_step(cluster: TestCluster, tmp_path: Path) -> None:
    topic, rows = cluster.unique_topic("numbers", partitions=3), 10_000
    config = {
        "name": f"source.{topic}",
        "connector.class": f"{CONNECTORS}:Numbers",
        "topic": topic,
        "rows": str(rows),
        "tasks.max": "2",
        "offset.flush.interval.ms": "50",
    }
    for step in ("claimed", "located", "sent", "positions", "committed", "confirmed"):
        run(cluster, tmp_path, config, f"connect.source.{step}")
    run(cluster, tmp_path, config)
    found = numbers_in(cluster, [topic])
    assert sorted(found) == list(range(rows))
    assert set(found.values()) == {1}


def test_a_source_is_killed_when_it_has_aborted(cluster: TestCluster, tmp_path: Path) -> None:
    topic, rows = cluster.unique_topic("numbers"), 300
    config = {
        "name": f"source.{topic}",
        "connector.class": f"{CONNECTORS}:Numbers",
        "topic": topic,
        "rows": str(rows),
        "fails.once": str(tmp_path / "failed"),
        "offset.flush.interval.ms": "60000",  # so that what was sent is not committed before it fails
    }
    run(cluster, tmp_path, config, "connect.source.aborted")
    run(cluster, tmp_path, config)
    assert numbers_in(cluster, [topic]) == Counter(range(rows))


def test_without_transactions_nothing_is_lost(cluster: TestCluster, tmp_path: Path) -> None:
    """Killed before positions are written and behind that; records may come twice."""
    topic, rows = cluster.unique_topic("numbers"), 5_000
    config = {
        "name": f"source.{topic}",
        "connector.class": f"{CONNECTORS}:Numbers",
        "topic": topic,
        "rows": str(rows),
        "exactly.once": "false",
        "offset.flush.interval.ms": "20",
    }
    for step in ("positions", "committed"):
        run(cluster, tmp_path, config, f"connect.source.{step}")
    run(cluster, tmp_path, config)
    found = numbers_in(cluster, [topic])
    assert sorted(found) == list(range(rows))
    assert sum(found.values()) <= 3 * rows


@pytest.mark.parametrize(("mutant", "code", "times"), [("", 1, {1}), ("no-fence", 0, {1, 2})])
def test_a_source_that_was_stopped_writes_nothing_behind_its_successor(
    cluster: TestCluster, tmp_path: Path, mutant: str, code: int, times: set[int]
) -> None:
    """Without the fence it does."""
    topic, rows, variables = cluster.unique_topic("numbers"), 30_000, variables_of(mutant)
    config = {
        "name": f"source.{topic}",
        "connector.class": f"{CONNECTORS}:Numbers",
        "topic": topic,
        "rows": str(rows),
        "offset.flush.interval.ms": "10",
    }
    # Between two transactions: nothing of it is open that would time out meanwhile.
    with stopped_at("connect.source.confirmed", cluster, tmp_path, config, variables, code):
        run(cluster, tmp_path, config, variables=variables)
    found = numbers_in(cluster, [topic])
    assert sorted(found) == list(range(rows))
    assert set(found.values()) == times


@contextmanager
def writing(conninfo: str) -> Iterator[None]:
    """Transactions that overlap while the block runs: numbers are drawn in one order, and committed in another one."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            while not stop.is_set():
                with connection.transaction():
                    connection.execute("insert into numbers default values")
                    connection.execute("select pg_sleep(random() * 0.02)")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_table_is_read_while_it_is_written(cluster: TestCluster, tmp_path: Path) -> None:
    topic = cluster.unique_topic("numbers", partitions=2)
    with started_postgres() as conninfo:
        database = PostgresDatabase(conninfo)
        database.query("create table numbers (n serial primary key)")
        config = {
            "name": f"table.{topic}",
            "connector.class": "sql-source",
            "connection.url": database.url,
            "query": "select * from numbers",
            "topic.prefix": topic,
            "mode": "incrementing",
            "incrementing.column.name": "n",
            "batch.max.rows": "100",
            "offset.flush.interval.ms": "20",
            "poll.interval.ms": "5",
        }
        with writing(conninfo):
            for step in ("sent", "committed"):
                run(cluster, tmp_path, config, f"connect.source.{step}")
            last = threading.Thread(target=run, args=(cluster, tmp_path, config))
            last.start()
            looks: set[Any] = set()  # for rows that are new: so often it reads where others write
            while len(looks) < 30:
                assert last.is_alive()
                looks |= set(database.query(LOOKS))
        last.join()
        wanted = [n for (n,) in database.query("select n from numbers order by n")]
    found = numbers_in(cluster, [topic])
    assert sorted(found) == wanted
    assert set(found.values()) == {1}


def test_a_tap_is_killed_with_its_task(cluster: TestCluster, tmp_path: Path) -> None:
    prefix = cluster.unique_topic("tap")
    topics = [f"{prefix}.{stream}" for stream in ("orders", "customers")]
    config = {
        "name": f"tap.{prefix}",
        "connector.class": "singer",
        "tap.executable": str(TAP),
        "topic.pattern": f"{prefix}.{{stream}}",
        "offset.flush.interval.ms": "1",
    }
    for step in ("sent", "committed"):
        run(cluster, tmp_path, config, f"connect.source.{step}")
    run(cluster, tmp_path, config)
    with cluster.consumer(*topics, isolation_level="read_committed") as consumer:
        found = Counter(json.loads(record.value)["id"] for record in consumer.read_to_end(timeout_ms=60_000))
    assert found == Counter([*range(20), *range(100, 110)])


def test_a_sink_is_killed_at_each_step(cluster: TestCluster, tmp_path: Path) -> None:
    topic, rows, bad = cluster.unique_topic("numbers", partitions=2), 2_000, 7
    with cluster.producer() as producer:
        producer.send_many(topic, [json.dumps({"n": n}).encode() for n in range(rows)])
        producer.flush()
    dead = f"{topic}-dead"
    config = {
        "name": f"sink.{topic}",
        "connector.class": f"{CONNECTORS}:Table",
        "topics": topic,
        "file": str(tmp_path / "target.db"),
        "bad": str(bad),
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
    }
    for step in ("opened", "written", "prepared", "committed", "settled", "grouped"):
        run(cluster, tmp_path, config, f"connect.sink.{step}")
        with cluster.producer() as producer:  # so that each run has something to do
            producer.send_many(topic, [json.dumps({"n": n}).encode() for n in range(rows, rows + 100)])
            producer.send(topic, json.dumps({"n": bad}).encode())
            producer.flush()
        rows += 100
    run(cluster, tmp_path, config)
    with sqlite3.connect(tmp_path / "target.db") as db:
        found = Counter(n for (n,) in db.execute("select n from numbers"))
    db.close()
    assert sorted(found) == [n for n in range(rows) if n != bad]
    assert set(found.values()) == {1}
    assert numbers_in(cluster, [dead]) == {bad: 7}


def test_a_sink_that_keeps_no_positions_is_killed_behind_its_dead_letters(cluster: TestCluster, tmp_path: Path) -> None:
    """What it repeats has the same dead letters again, and none is missing."""
    topic, bad = cluster.unique_topic("numbers"), 7
    with cluster.producer() as producer:
        producer.send_many(topic, [json.dumps({"n": n}).encode() for n in range(100)])
        producer.flush()
    dead = f"{topic}-dead"
    config = {
        "name": f"sink.{topic}",
        "connector.class": f"{CONNECTORS}:Lines",
        "topics": topic,
        "file": str(tmp_path / "lines"),
        "bad": str(bad),
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
    }
    run(cluster, tmp_path, config, "connect.sink.dead")
    run(cluster, tmp_path, config)
    assert set(map(int, (tmp_path / "lines").read_text().split())) == set(range(100)) - {bad}
    assert numbers_in(cluster, [dead]) == {bad: 2}
