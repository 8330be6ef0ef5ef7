"""A CSV file into a topic, and the topic into SQLite; both processes are killed with -9 in between. And
a sink of which a topic is not there.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.connect.killing import run

from headrace.records import TopicPartition
from headrace.testing import TestCluster
from headrace_common.runtime.clock import limit_s
from headrace_connect.runtime.adapters.sink_group import SdkGroup, any_of
from headrace_connect.runtime.config import RunConfig

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


class Holds:
    """Satisfies ``GroupListener``."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    async def on_assign(self, partitions: Collection[TopicPartition], epoch: int) -> None:
        self.topics |= {partition.topic for partition in partitions}

    async def on_revoke(self, partitions: Collection[TopicPartition]) -> None:
        """They stay."""

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """They stay."""


def test_a_topic_that_is_not_there_does_not_keep_a_sink_from_the_others(
    cluster: TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    there = cluster.unique_topic("there")
    late = f"{there}.late"
    other = cluster.unique_topic(f"{there}xlate")
    config = RunConfig(",".join(cluster.bootstrap_servers))
    with cluster.producer() as producer:
        producer.send(there, b"1")
        producer.send(other, b"not ours")

    async def read() -> list[tuple[str, bytes]]:
        group, listener = SdkGroup(config, f"sink-{there}", [there, late], "", "earliest"), Holds()
        read: list[tuple[str, bytes]] = []

        async def read_until(count: int) -> None:
            while len(read) < count:
                for table in await group.poll(100, 100, 1 << 20):
                    read.extend((table.topic, value) for value in table.table.column("value").to_pylist())

        try:
            async with limit_s(60):
                await group.join(listener)
                await read_until(1)
                with cluster.admin() as admin, cluster.producer() as producer:
                    admin.create_topic(late, 1)
                    producer.send(late, b"2")
                await read_until(2)
        finally:
            await group.close()
        assert listener.topics == {there, late}
        return read

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(read()) == [(there, b"1"), (late, b"2")]
    assert f"{late!r}" in caplog.text
    assert "the other topics meanwhile" in caplog.text


def test_a_pattern_of_names() -> None:
    assert any_of(["a.b-c", "d_e"]) == "a[.]b-c|d_e"
