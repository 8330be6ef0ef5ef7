"""Processes that are killed with -9 while they read rows and changes, and a database that goes on meanwhile."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.connect.killing import run
from tests.integration.connect.shop import Shop, started_shop

from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROWS = 600


@contextmanager
def writing(shop: Shop) -> Iterator[list[int]]:
    """Transactions over both tables until the block ends; how many of them have committed."""
    stop, count = threading.Event(), [0]

    def write() -> None:
        with psycopg.connect(shop.conninfo) as session:
            while not stop.wait(0.01):
                n = count[0] + 1
                session.execute("insert into log values (%s)", [n])
                session.execute("update a set n = %s where id %% 100 = %s", [n, n % 100])
                session.execute("delete from a where id = %s", [7 * n])
                session.execute("insert into a values (%s, %s)", [10_000 + n, n])
                session.execute(
                    "select pg_logical_emit_message(true, 'in', %s), pg_logical_emit_message(false, 'by', %s)",
                    [str(n)] * 2,
                )
                session.commit()
                count[0] = n

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()


def values(cluster: TestCluster, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values that readers of committed records see."""
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        read = consumer.read_to_end(timeout_ms=60_000)
        return [(_json(record.key), _json(record.value)) for record in read]


def _json(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def test_each_change_is_there_once_in_the_order_of_commits(cluster: TestCluster, tmp_path: Path) -> None:
    config = {"offset.flush.interval.ms": "100", "incremental.snapshot.chunk.size": "50", "max.batch.size": "200"}
    config |= {"message.prefix.include.list": "in,by", "message.topic": "told.${prefix}"}
    with started_shop() as shop, cluster.admin() as admin:
        shop.do(
            "create table a (id int primary key, n int)",
            "create table log (n int)",
            "alter table log replica identity full",
            f"insert into a select g, 0 from generate_series(1, {ROWS}) g",
        )
        for topic in ("shop.public.a", "shop.public.log", "told.in", "told.by"):
            admin.create_topic(topic, 1)
        given = shop.config("shop", "public.a public.log", **config)
        with writing(shop) as count:
            for step in ("sent", "committed", "positions"):
                run(cluster, tmp_path, given, f"connect.source.{step}")
        run(cluster, tmp_path, given)
        in_database = dict(shop.rows("select id, n from a"))
    changes = [value for _, value in values(cluster, "shop.public.log")]
    inserted = [value["after"]["n"] for value in changes if value["op"] == "c"]
    assert inserted == list(range(inserted[0], count[0] + 1)), "each once, in the order of commits"
    assert [value["op"] for value in changes].count("r") >= inserted[0] - 1, "what was there before the slot was read"
    for prefix in ("in", "by"):
        told = [int(b64decode(value["message"]["content"])) for _, value in values(cluster, f"told.{prefix}")]
        assert told == list(range(told[0], count[0] + 1)), "messages too, also those that are in no transaction"
    state: dict[int, int] = {}
    reads: list[int] = []
    places: list[tuple[int, int, str]] = []
    for key, value in values(cluster, "shop.public.a"):
        if value is None:
            state.pop(key["id"], None)
            continue
        if value["after"] is not None:
            state[key["id"]] = value["after"]["n"]
        if value["op"] == "r":
            reads.append(key["id"])
        else:
            commit, _ = json.loads(value["source"]["sequence"])
            places.append((int(commit), value["source"]["lsn"], value["op"]))
    assert state == in_database
    assert len(reads) == len(set(reads)), "no row is read twice"
    assert [commit for commit, _, _ in places] == sorted(commit for commit, _, _ in places)
    assert len(places) == len(set(places)), "no change is there twice"
