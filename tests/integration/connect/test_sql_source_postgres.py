"""The source with a real PostgreSQL: late commits above all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from libs.connect.tests.connectors.sql_source.rows import rows_of, settings, started, take, values_of
from libs.connect.tests.connectors.sql_source.suite import BY_BOTH, BY_TIME, SourceSuite, TableCase, fill
from tests.integration.connect.test_sql_sink_postgres import PostgresDatabase
from tests.integration.transactions.postgres import started_postgres

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_source import SqlSource, postgres
from headrace_connect.plugin import Chunk, RetriableError
from headrace_connect.testing import check_source

pytestmark = pytest.mark.integration

NOW = BY_BOTH | {"timestamp_delay_interval_ms": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresDatabase]:
    with started_postgres(max_prepared_transactions="4") as conninfo:
        PostgresDatabase(conninfo).query("create database shop encoding 'UTF8' template template0")
        yield PostgresDatabase(conninfo.replace("dbname=postgres", "dbname=shop"))


@pytest.fixture
def target(server: PostgresDatabase) -> PostgresDatabase:
    server.query("drop schema public cascade")
    server.query("create schema public")
    return server


@contextmanager
def session(target: PostgresDatabase, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """One that has begun a transaction; it is undone if the block does not end it."""
    with psycopg.connect(target.conninfo, autocommit=True) as connection:
        connection.execute("begin")
        for statement in statements:
            connection.execute(statement)
        yield connection
        connection.execute("rollback")


def wait_for(reading: Iterator[Chunk]) -> list[int]:
    """The numbers of the next rows."""
    while True:
        chunk = next(reading)
        if len(chunk.rows):
            return values_of([chunk])


class TestPostgres(SourceSuite):
    """All of the suite."""


@pytest.mark.timeout(300)
def test_the_suite_of_all_sources(target: PostgresDatabase) -> None:
    fill(target, TableCase.TIMES)
    check_source(lambda: TableCase(target, "timestamp+incrementing"))


INSERT = "insert into t (name) values ('late')"
TABLE = "create table t (id serial primary key, at timestamptz not null default now(), name text)"
LATE: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], dict[str, Any]]] = {
    "a row that is written": (TABLE, (INSERT,), (), {}),
    "a number that is drawn": (
        TABLE,
        ("select nextval('t_id_seq')",),
        ("insert into t (id, name) values (currval('t_id_seq'), 'late')",),
        {},
    ),
    "an identity": (
        "create table t (id bigint generated always as identity, at timestamptz default now(), name text)",
        (INSERT,),
        (),
        {"validate_non_null": False},
    ),
    "a sequence of others": (
        "create sequence s; create table t (id bigint primary key default nextval('s'), at timestamptz, name text)",
        ("select nextval('s')",),
        ("insert into t (id, name) values (currval('s'), 'late')",),
        {},
    ),
    "a partition": (
        "create table t (id serial, at timestamptz default now(), name text, primary key (id)) partition by range (id);"
        "create table t1 partition of t for values from (0) to (1000)",
        ("insert into t1 (name) values ('late')",),
        (),
        {},
    ),
    "a query": (TABLE, (INSERT,), (), {"query": "select * from t", "topic_prefix": "q"}),
    "a transaction that has only begun": (TABLE, ("select 1",), (INSERT,), NOW),
    "a time without a zone": (
        "create table t (id serial primary key, at timestamp not null default (now() at time zone 'UTC'), name text)",
        ("select 1",),
        (INSERT,),
        NOW,
    ),
}


@pytest.mark.parametrize("what", LATE)
def test_a_transaction_that_commits_late(target: PostgresDatabase, what: str) -> None:
    """What is committed before it, and belongs behind it, waits for it."""
    table, first, then, values = LATE[what]
    for statement in table.split(";"):
        target.query(statement)
    with started(target.url, **values) as source, session(target, *first) as late:
        [split] = [split for split in source.splits() if not split.id.endswith("t1")]
        reading = source.read(split, None)
        target.query("insert into t (name) values ('early')")
        assert not any(len(next(reading).rows) for _ in range(5)), "it waits"
        for statement in (*then, "commit"):
            late.execute(statement)
        chunk = next(chunk for chunk in reading if len(chunk.rows))
        assert [row["name"] for row in rows_of([chunk])] == ["late", "early"]
        assert next(reading).drained


def test_transactions_that_matter_to_others_are_not_waited_for(target: PostgresDatabase) -> None:
    target.query(TABLE)
    target.query("create table other (id serial)")
    with started(target.url, table_include_list=("t",)) as source:
        reading = source.read(source.splits()[0], None)
        with session(target, "insert into other default values", "select * from t") as _:
            target.query("insert into t (name) values ('x')")
            assert values_of([next(reading)]) == [1]
        with session(target, INSERT), started(target.url, hold_back="delay") as hasty:
            target.query("insert into t (name) values ('x')")
            assert values_of(take(hasty, split="public.t")) == [1, 3]


def test_a_transaction_that_is_prepared_is_waited_for(target: PostgresDatabase) -> None:
    target.query(TABLE)
    for values in ({}, NOW):
        target.query("truncate t")
        with started(target.url, **values) as source:
            reading = source.read(source.splits()[0], None)
            with session(target, INSERT) as late:
                target.query("insert into t (name) values ('early')")
                assert not len(next(reading).rows)
                late.execute("prepare transaction 'two'")
                late.execute("begin")
                assert not any(len(next(reading).rows) for _ in range(5)), "it waits"
                late.execute("rollback")
            target.query("commit prepared 'two'")
            assert len(wait_for(reading)) == 2


def test_a_wait_that_lasts_is_told_and_does_not_keep_it_from_being_idle(
    target: PostgresDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    target.query(TABLE)
    clock = [0.0]
    with started(target.url) as source, session(target, INSERT), caplog.at_level(logging.WARNING):
        source.monotonic_s = lambda: clock[0]
        reading = source.read(source.splits()[0], None)
        target.query("insert into t (name) values ('early')")
        assert not next(reading).drained
        clock[0] = 10.0
        assert next(reading).drained
        assert "held back" not in caplog.text
        clock[0] = 31.0
        next(reading)
        assert "held back for 31 s" in caplog.text


def test_values_of_each_type(target: PostgresDatabase) -> None:
    target.query("create type size as enum ('s', 'l')")
    target.query(
        "create table t (id bigint primary key, small smallint, r real, d double precision, price numeric(6,2), "
        "any_ numeric, b boolean, raw bytea, s text, c char(3), day date, at timestamp, tz timestamptz(3), clock time, "
        "u uuid, j jsonb, size size, ints int[], m money, gone text)"
    )
    target.query("alter table t drop column gone")
    target.query(
        "insert into t values (1, 2, 0.1, 0.1, 1234.50, 1e-20, true, '\\x00ff', E'a,\"b\"\\n\\\\.', 'ab', "
        "'2024-05-01', '2024-05-01 10:00:00.123456', '2024-05-01 12:00:00.123+02', '10:00:00.5', "
        "'0b1c6f3e-0000-4000-8000-000000000001', '{\"a\": [1]}', 'l', '{1,null}', '1234.5')"
    )
    target.query("insert into t (id) values (2)")
    with started(target.url) as source:
        one, none = rows_of(take(source))
    shown = {name: str(value) for name, value in one.items()}
    assert shown | {"raw": one["raw"], "s": one["s"]} == {
        "id": "1",
        "small": "2",
        "r": shown["r"],
        "d": "0.1",
        "price": "1234.50",
        "any_": "0.00000000000000000001",
        "b": "True",
        "raw": b"\0\xff",
        "s": 'a,"b"\n\\.',
        "c": "ab ",
        "day": "2024-05-01",
        "at": "2024-05-01 10:00:00.123456",
        "tz": "2024-05-01 10:00:00.123000+00:00",
        "clock": "10:00:00.500000",
        "u": "0b1c6f3e-0000-4000-8000-000000000001",
        "j": '{"a": [1]}',
        "size": "l",
        "ints": "[1, None]",
        "m": "1234.50",
    }
    assert none == {"id": 2} | dict.fromkeys(list(one)[1:])


def test_values_that_have_no_form_are_bad_rows(target: PostgresDatabase) -> None:
    target.query("create table t (id int primary key, day date, s text)")
    target.query("insert into t values (1, 'infinity', 'a'), (2, '2024-05-01', null), (3, '-infinity', E'x\\ny')")
    with started(target.url) as source:
        [chunk, _] = take(source)
    assert values_of([chunk]) == [2]
    assert [bad.reason.rpartition(", where ")[2] for bad in chunk.bad] == ["id=1", "id=3"]
    assert "public.t.day: 'infinity' cannot be represented" in chunk.bad[0].reason
    assert json.loads(chunk.bad[1].raw) == {"id": "3", "day": "-infinity", "s": "x\ny"}


def test_pages_have_an_end_in_bytes(target: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "BYTES_MAX", 1_000)
    target.query("create table t (id int primary key, s text)")
    target.query("insert into t select n, repeat('x', 600) from generate_series(1, 20) n")
    with started(target.url) as source:
        assert [values_of([chunk]) for chunk in take(source)][:-1] == [[n, n + 1] for n in range(1, 20, 2)]
    with started(target.url, mode="bulk", query="select s from t limit 3", topic_prefix="q") as source:
        assert [len(chunk.rows) for chunk in take(source)] == [2, 1]


def test_steps_of_coarse_times(target: PostgresDatabase) -> None:
    """A day is read when it is over, and a second too; a time without a zone is in ``db.timezone``."""
    for type_, value, found in (
        ("date", "current_date", []),
        ("date", "current_date - 2", [1]),
        ("timestamptz(0)", "now() - interval '3 seconds'", [1]),
        ("timestamptz(0)", "now() + interval '0.5 seconds'", []),
        ("timestamp", "now() at time zone 'Asia/Tokyo' - interval '2 seconds'", [1]),
        ("timestamp", "now() at time zone 'Asia/Tokyo' + interval '1 minute'", []),
    ):
        target.query("drop table if exists t")
        target.query(f"create table t (id int primary key, at {type_} not null)")
        target.query(f"insert into t values (1, {value})")
        with started(target.url, db_timezone="Asia/Tokyo", **BY_TIME) as source:
            assert values_of(take(source)) == found, value


def test_the_first_time_that_is_not_null(target: PostgresDatabase) -> None:
    target.query("create table t (id int primary key, changed timestamp, made timestamp not null)")
    target.query(
        "insert into t values (1, '2024-05-03', '2024-05-01'), (2, null, '2024-05-02'), (3, null, '2024-05-04')"
    )
    values = {"mode": "timestamp", "timestamp_column_name": ("changed", "made")}
    with started(target.url, batch_max_rows=1, **values) as source:
        chunks = take(source)
        assert values_of(chunks) == [2, 1, 3]
        assert values_of(take(source, chunks[0].position)) == [1, 3]


def test_a_connection_that_is_cut(target: PostgresDatabase) -> None:
    target.query("create table t (id int primary key)")
    target.query("insert into t select generate_series(1, 3)")
    with started(target.url, batch_max_rows=2) as source:
        [split] = source.splits()
        reading = source.read(split, None)
        first = next(reading)
        target.query(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headrace-connect'"
        )
        with pytest.raises(RetriableError):
            next(reading)
        assert values_of(take(source, first.position)) == [3]


def test_validate_names_rights_sequences_and_columns(target: PostgresDatabase) -> None:
    target.query("drop role if exists poor")
    target.query("create role poor login")
    target.query("grant usage on schema public to poor")
    target.query("create sequence s cache 20")
    target.query("create table t (id bigint primary key default nextval('s'), name text)")
    [problem] = SqlSource(settings(target.url, connection_user="poor")).check()
    assert problem.startswith("table.include.list: ")
    assert "permission denied" in problem
    [problem] = SqlSource(settings(target.url)).check()
    assert "gives each session 20 numbers" in problem
    for values, said in (
        ({"mode": "incrementing", "incrementing_column_name": "name"}, "is text, and not a whole number"),
        ({"query": "select 1 as id, 2 as id", "topic_prefix": "q"}, "query: it has two columns 'id'"),
        ({"connection_url": target.url + "?nothing=1"}, "connection.url: "),
    ):
        [problem] = SqlSource(settings(values.pop("connection_url", target.url), **values)).check()
        assert said in problem


def test_a_query_that_writes_is_refused(target: PostgresDatabase) -> None:
    target.query("create table t (id int primary key)")
    query = "with gone as (delete from t returning *) select * from gone"
    with started(target.url, query=query, topic_prefix="q") as source, pytest.raises(InvalidConfig):
        take(source)
