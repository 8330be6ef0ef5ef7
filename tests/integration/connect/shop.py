"""A database with tables that are captured, and a connector over it without a cluster."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from tests.integration.transactions.postgres import started_postgres

from headrace.records import PartitionTable, TopicPartition
from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.connectors.postgres_cdc import PostgresSource
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.core.dead_letters import Origin
from headrace_connect.core.source_commit import Rules
from headrace_connect.core.source_steps import CloseAsked
from headrace_connect.plugin import Split
from headrace_connect.runtime.converting import ChunkPipeline, Converting, TablePipeline
from headrace_connect.runtime.pipeline import HEADERS_TYPE
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.testing.memory import MemoryLog, MemorySourceLog, NoSteps

RUN_S = 60


class Shop:
    """One database of a server, with sessions that do something in it."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self._parts = dict(part.split("=", 1) for part in conninfo.split())
        self.session = psycopg.connect(conninfo, autocommit=True)

    def do(self, *statements: str) -> None:
        for statement in statements:
            self.session.execute(statement.encode())

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.session.execute(statement.encode()).fetchall()

    def settings(self, prefix: str, tables: str, **more: Any) -> SourceSettings:
        given: dict[str, Any] = {"name": prefix, "topic_prefix": prefix, "table_include_list": tuple(tables.split())}
        parts = self._parts
        place = {"database_hostname": parts["host"], "database_port": int(parts["port"])}
        return SourceSettings(
            **{**given, **place, "database_dbname": parts["dbname"], "database_user": parts["user"], **more}
        )

    def config(self, prefix: str, tables: str, **more: str) -> dict[str, str]:
        """As a user writes it."""
        parts = self._parts
        return {
            "name": prefix,
            "connector.class": "postgres-cdc",
            "topic.prefix": prefix,
            "database.hostname": parts["host"],
            "database.port": parts["port"],
            "database.dbname": parts["dbname"],
            "database.user": parts["user"],
            "table.include.list": tables.replace(" ", ","),
            **more,
        }

    @property
    def url(self) -> str:
        """As ``sql-sink`` takes it."""
        parts = self._parts
        return f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"

    def drop_slots(self) -> None:
        """All that nobody reads, and end those who do."""
        self.do("select pg_terminate_backend(active_pid) from pg_replication_slots where active_pid is not null")
        while self.rows("select 1 from pg_replication_slots where active_pid is not null"):
            pass
        self.do("select pg_drop_replication_slot(slot_name) from pg_replication_slots")


@contextmanager
def started_shop(**settings: str) -> Iterator[Shop]:
    """A server with one database."""
    given = {"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20", **settings}
    with started_postgres(**given) as conninfo:
        with psycopg.connect(conninfo, autocommit=True) as first:
            first.execute("create database shop encoding 'UTF8' template template0")
        shop = Shop(conninfo.replace("dbname=postgres", "dbname=shop"))
        try:
            yield shop
        finally:
            shop.session.close()


async def run(
    settings: SourceSettings,
    log: MemoryLog,
    *,
    meanwhile: Callable[[SourceTask], Awaitable[None]] | None = None,
    generation: int = 0,
    converters: Mapping[str, str] | None = None,
) -> None:
    """A task, until it is idle; then ``meanwhile``, and until it is idle again."""
    pipeline = ChunkPipeline(Converting.of(converters or {}), Origin("test", 0, "postgres-cdc", ""))
    outside = SourceOutside(MemorySourceLog(log, generation), pipeline, SystemClock(), NoSteps())
    source = PostgresSource(settings)
    rules = Rules(interval_ms=20, retry_timeout_ms=20_000, retry_delay_ms_max=50)
    task = SourceTask(source, [Split("all")], outside, SourceTaskSettings(rules))

    async def end() -> None:
        if meanwhile is not None:
            await until_idle(task)
            await meanwhile(task)
        await until_idle(task)
        task.ask(CloseAsked())

    async with limit_s(RUN_S), TaskRunner() as runner:
        runner.start(end(), name="end it")
        await task.run()


async def until_idle(task: SourceTask) -> None:
    while not task.is_idle:
        await pause_ms(2)


def run_until_idle(settings: SourceSettings, log: MemoryLog) -> None:
    asyncio.run(run(settings, log))


def records(log: MemoryLog, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values of a topic; None where there is none."""
    return [(_json(one["key"]), _json(one["value"])) for one in log.records[topic]]


def brief(log: MemoryLog, topic: str) -> list[tuple[str | None, Any]]:
    """The op of each record, None of a tombstone, and the row behind it, or before a delete."""
    return [
        (None, key) if value is None else (value["op"], value["after"] or value["before"])
        for key, value in records(log, topic)
    ]


def copy_records(
    log: MemoryLog, topic: str, settings: SinkSettings, sizes: Sequence[int], converters: Mapping[str, str]
) -> None:
    """What a topic has, from the first record on, into a database; in batches of these sizes."""
    pipeline = TablePipeline(Converting.of(converters))
    partition = TopicPartition(topic, 0)
    sink = SqlSink(settings)
    sink.start()
    try:
        position = sink.open([partition], 1).get(partition, 0)
        for size in itertools.cycle(sizes):
            records = log.records[topic][position : position + size]
            if not records:
                return
            columns: dict[str, Any] = {
                "offset": pa.array(range(position, position + len(records)), pa.int64()),
                "timestamp_ms": pa.array([one["timestamp_ms"] for one in records], pa.int64()),
                "key": pa.array([one["key"] for one in records], pa.binary()),
                "value": pa.array([one["value"] for one in records], pa.binary()),
                "headers": pa.array([one["headers"] for one in records], HEADERS_TYPE),
            }
            end = position + len(records)
            converted = pipeline.apply(PartitionTable(topic, 0, pa.table(columns), end, 0, end, end))
            assert not converted.refused
            for rows, _ in converted.parts:
                sink.write(rows)
            sink.commit({partition: end}, None)
            position = end
    finally:
        sink.stop()


def _json(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)
