"""A CSV file into a topic, and the topic into SQLite; both processes are killed with -9 in between."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.connect.killing import run

from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROWS, IDS = 4_000, 150


def query(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


def test_sums_are_equal_and_each_record_is_there_once(cluster: TestCluster, tmp_path: Path) -> None:
    topic = cluster.unique_topic("orders", partitions=1)
    spool, target = tmp_path / "spool", tmp_path / "shop.db"
    spool.mkdir()
    random.seed(topic)
    rows = [(n, random.randrange(IDS), random.randrange(10_000)) for n in range(ROWS)]
    lines = [f'{n},{id_},{cents},"a ""note""\nof {n}"\n' for n, id_, cents in rows]
    source = {
        "name": f"in-{topic}",
        "connector.class": "files",
        "topic": topic,
        "path": str(spool),
        "format": "csv",
        "csv.types": "n:int64,id:int64,cents:int64",
        "batch.bytes": "4096",
        "offset.flush.interval.ms": "50",
    }
    sink = {
        "connector.class": "sql-sink",
        "topics": topic,
        "connection.url": f"sqlite:///{target}",
        "auto.create": "true",
    }
    upsert = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id", "table.name.format": "latest"}
    tables = [
        sink | upsert | {"name": f"upsert-{topic}"},
        sink | {"name": f"insert-{topic}", "table.name.format": "every"},
    ]
    steps = ("sent", "positions", "committed"), ("written", "committed", "grouped")
    done = 0
    with (spool / "orders.csv").open("w") as file:
        file.write("n,id,cents,note\n")
        for reads, writes in zip(*steps, strict=True):
            file.write("".join(lines[done : done + 1_000]))
            file.flush()
            done += 1_000
            run(cluster, tmp_path, source, f"connect.source.{reads}")
            run(cluster, tmp_path, source)
            for table in tables:
                run(cluster, tmp_path, table, f"connect.sink.{writes}")
        file.write("".join(lines[done:]))
    run(cluster, tmp_path, source)
    for table in tables:
        run(cluster, tmp_path, table)
    latest = {id_: (n, cents) for n, id_, cents in rows}
    assert {id_: (n, cents) for id_, n, cents in query(target, "select id, n, cents from latest")} == latest
    assert query(target, "select sum(cents) from latest") == [(sum(cents for _, cents in latest.values()),)]
    assert query(target, "select n, id, cents from every order by n") == rows
    assert query(target, "select count(distinct note) from every") == [(ROWS,)]
