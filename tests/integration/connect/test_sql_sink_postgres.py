"""The sink with a real PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from libs.connect.tests.connectors.sql_sink.records import P0, TOPIC, rows
from libs.connect.tests.connectors.sql_sink.suite import (
    KEYS,
    PLACEHOLDER,
    UPSERT_BY_KEY,
    SinkSuite,
    Target,
    check_wide_records,
    opened,
    settings,
    started,
)
from libs.connect.tests.connectors.sql_sink.verify_suite import PreviewSuite, VerifySuite, verified, written
from tests.integration.transactions.postgres import started_postgres

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.core.drift import Drift
from headrace_connect.plugin import Checked, PartitionTaken, RetriableError, RowsRefused, Sink
from headrace_connect.testing import SinkCase, check_sink

pytestmark = pytest.mark.integration


class PostgresDatabase:
    """Satisfies ``Target``."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        parts = dict(part.split("=", 1) for part in conninfo.split())
        self.url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"

    def elsewhere(self, database: str) -> PostgresDatabase:
        """Another database of its server."""
        return PostgresDatabase(self.conninfo.replace("dbname=shop", f"dbname={database}"))

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """See ``Target``."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresDatabase]:
    with started_postgres() as conninfo:
        PostgresDatabase(conninfo).query("create database shop encoding 'UTF8' template template0")
        yield PostgresDatabase(conninfo.replace("dbname=postgres", "dbname=shop"))


@pytest.fixture
def target(server: PostgresDatabase) -> PostgresDatabase:
    server.query("drop schema public cascade")
    server.query("create schema public")
    return server


class TestPostgres(SinkSuite):
    """All of the suite."""

    columns_max = 1_600


def test_a_table_that_is_made_has_no_columns_of_records_that_have_too_many(target: PostgresDatabase) -> None:
    check_wide_records(target, {f"f{number}": number for number in range(TestPostgres.columns_max)})


class PostgresCase(SinkCase):
    """A table without a key, so that what comes twice shows; a check refuses one record."""

    rows = 16
    bad = frozenset({6})

    def __init__(self, target: PostgresDatabase) -> None:
        self.target = target
        target.query("drop schema public cascade")
        target.query("create schema public")
        target.query("create table t (at bigserial, n bigint check (n <> 6))")

    def make(self) -> Sink[Any]:
        return SqlSink(settings(self.target, table_name_format="t"))

    def stored(self) -> Sequence[int]:
        return [n for (n,) in self.target.query("select n from t order by at")]

    def go_away(self) -> bool:
        """It lets nobody in any more."""
        admin = self.target.elsewhere("postgres")
        admin.query("alter database shop allow_connections false")
        admin.query("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'shop'")
        return True

    def come_back(self) -> None:
        self.target.elsewhere("postgres").query("alter database shop allow_connections true")


@pytest.mark.timeout(900)
def test_the_suite_of_all_sinks(target: PostgresDatabase) -> None:
    check_sink(lambda: PostgresCase(target))


class TestPreview(PreviewSuite):
    """All of the suite."""


class TestVerify(VerifySuite):
    """All of the suite."""

    def test_types_without_an_equality_are_compared_by_their_text(self, target: PostgresDatabase) -> None:
        target.query(f'create table "{TOPIC}" (id bigint primary key, item json, price numeric(9, 4))')
        records = [rows([{"id": 1, "item": {"a": [1]}, "price": 0.1}, {"id": 2, "item": None, "price": None}])]
        given = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": ("id",)}
        written(target, records, **given)
        assert verified(target, records, **given) == [Checked(2)]
        target.query(f"""update "{TOPIC}" set item = '{{"a": [2]}}' where id = 1""")
        assert verified(target, records, **given) == [Checked(2, different=(0,))]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_rows_are_written_in_the_order_of_the_topic(target: PostgresDatabase, mode: str) -> None:
    """Also where a short row would fit into a page before that of a long one."""
    target.query(f'create table "{TOPIC}" (n bigserial, id bigint unique, note text)')
    more = {"pk_mode": "record_value", "pk_fields": ("id",)} if mode == "upsert" else {}
    notes = [{"id": n, "note": "x" * (n * 7919 % 997)} for n in range(3_000)]
    with opened(target, insert_mode=mode, **more) as sink:
        for first, end in ((0, 1), (1, 3_000)):  # the temporary table is of the first transaction
            sink.write(rows(notes[first:end], start=first))
            sink.commit({P0: end}, None)
    assert target.query(f'select id from "{TOPIC}" order by n') == [(n,) for n in range(3_000)]


def test_a_row_that_is_locked_is_retried(target: PostgresDatabase) -> None:
    with opened(target, insert_mode="upsert", pk_mode="record_value", pk_fields=("id",)) as sink:
        sink.write(rows([{"id": 1, "n": 1}]))
        sink.commit({P0: 1}, None)
        with psycopg.connect(target.conninfo) as other:
            other.execute(f'update "{TOPIC}" set n = 2')  # type: ignore[call-overload]
            with pytest.raises(RetriableError, match="lock timeout"):
                sink.write(rows([{"id": 1, "n": 3}], start=1))
            other.rollback()
        assert sink.open([P0], 1) == {P0: 1}
        sink.write(rows([{"id": 1, "n": 3}], start=1))
        sink.commit({P0: 2}, None)
    assert target.query(f'select n from "{TOPIC}"') == [(3,)]


def test_a_connection_that_is_cut_before_the_commit(target: PostgresDatabase) -> None:
    with opened(target) as sink:
        sink.write(rows([{"id": 1}]))
        ours = "application_name = 'headrace-connect'"
        target.query(f"select pg_terminate_backend(pid) from pg_stat_activity where {ours}")
        with pytest.raises(RetriableError):
            sink.commit({P0: 1}, None)
        with pytest.raises(RetriableError):
            sink.commit({P0: 1}, None)
        assert sink.open([P0], 1) == {}
        sink.write(rows([{"id": 1}]))
        sink.commit({P0: 1}, None)
    assert target.query(f'select count(*) from "{TOPIC}"') == [(1,)]


def test_open_waits_for_a_commit_that_is_under_way(target: PostgresDatabase) -> None:
    """A connection is lost within a commit; the server goes on with it. The row of the position says how it ended."""
    with opened(target) as old, started(target) as new:
        old.write(rows([{"id": 1}]))
        old._positions.move(P0, 1, None, 1)  # all of a commit but its last statement
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(new.open([P0], 2)))
        thread.start()
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        while target.query(waiting) == [(0,)]:
            assert thread.is_alive()
        old._database.commit()
        thread.join()
        assert found == [{P0: 1}]


def test_what_postgres_has_no_form_of(target: PostgresDatabase) -> None:
    with opened(target) as sink:
        for bad in ({"t": "a\0b"}, {"d": 10**15}):
            column = pa.array([20_000_000, 0], pa.date32()) if "d" in bad else pa.array([bad["t"], "x"])
            with pytest.raises(RowsRefused) as refused:
                sink.write(rows(pa.StructArray.from_arrays([column], ["c" + next(iter(bad))])))
            assert list(refused.value.reasons) == [0]
            sink.open([P0], 1)
        sink.write(rows([{"f": float("nan")}, {"f": float("-inf")}]))
        sink.commit({P0: 2}, None)
    assert [str(f) for (f,) in target.query(f'select f from "{TOPIC}" order by f')] == ["-inf", "nan"]


def test_columns_that_are_there(target: PostgresDatabase) -> None:
    target.query("create domain cents as numeric(8,2)")
    target.query("create type size as enum ('s', 'l')")
    target.query(
        f'create table "{TOPIC}" (price numeric(6,2), c cents, code varchar(3), at timestamp(3), u uuid, size size, '
        "j jsonb, r real, m money, tz timestamptz, ints int[])"
    )
    good = {
        "price": "1234.50",
        "c": 1.25,
        "code": "äöü",
        "at": "2024-01-01T00:00:00.123",
        "u": "0b1c6f3e-0000-4000-8000-000000000001",
        "size": "s",
        "j": '{"a": [1]}',
        "r": 0.5,
        "tz": "2024-01-01T00:00:00+02:00",
    }
    bad = {
        "price": "1.005",
        "c": 1.255,
        "code": "abc ",
        "at": "2024-01-01T00:00:00.1234",
        "u": "nobody",
        "size": "xl",
        "j": "{",
        "r": 0.1,
        "m": "1.005",
        "tz": "2024-01-01T00:00:00.1234567Z",
        "ints": "{1}",
    }
    with opened(target, dead_table="dead", auto_evolve=False) as sink:
        for place, (name, value) in enumerate(bad.items()):
            sink.write(rows([{name: value}], start=place))
        sink.write(rows([good], start=len(bad)))
        sink.commit({P0: 12}, None)
    assert len(target.query("select * from dead")) == len(bad)
    (row,) = target.query(f'select price, c, code, at, u, size, j, r, m, tz from "{TOPIC}"')
    assert [str(value) for value in row[:3]] == ["1234.50", "1.25", "äöü"]
    assert row[3].microsecond == 123_000
    assert row[9].timestamp() == 1_704_060_000


def test_a_placeholder_need_not_fit_into_its_column(target: PostgresDatabase) -> None:
    target.query(f'create table "{TOPIC}" (id int primary key, n int, code varchar(3) not null)')
    target.query(f"insert into \"{TOPIC}\" values (1, 1, 'abc')")
    with opened(target, auto_evolve=False, **UPSERT_BY_KEY) as sink:
        sink.write(rows([{"id": 1, "n": 2, "code": PLACEHOLDER}, {"id": 2, "n": 3, "code": "x"}], KEYS))
        sink.commit({P0: 2}, None)
    assert target.query(f'select * from "{TOPIC}" order by id') == [(1, 2, "abc"), (2, 3, "x")]


def test_rights_that_are_missing_are_a_matter_of_configuration(target: PostgresDatabase) -> None:
    target.query("drop role if exists poor")
    target.query("create role poor login")
    target.query("grant usage on schema public to poor")
    poor = SqlSink(settings(target, connection_user="poor"))
    assert "rights" in poor.check()[0]
    with pytest.raises(InvalidConfig, match="permission denied"):
        poor.start()
    poor.stop()


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("53100", RetriableError),  # the disk is full
        ("53200", RetriableError),
        ("57014", RetriableError),
        ("25006", RetriableError),
        ("42501", InvalidConfig),
        ("0A000", InvalidConfig),
        ("22001", RowsRefused),
        ("23514", RowsRefused),
        ("P0001", RowsRefused),
    ],
)
def test_whose_fault_it_is_the_server_says(target: PostgresDatabase, state: str, error: type[Exception]) -> None:
    target.query(f'create table "{TOPIC}" (id bigint)')
    target.query(
        "create function refuse() returns trigger language plpgsql as "
        f"$$ begin if new.id = 2 then raise exception 'not now' using errcode = '{state}'; end if; return new; end $$"
    )
    target.query(f'create trigger refuse before insert on "{TOPIC}" for each row execute function refuse()')
    with opened(target) as sink:
        with pytest.raises(error, match="not now") as raised:
            sink.write(rows([{"id": 1}, {"id": 2}]))
        if isinstance(raised.value, RowsRefused):
            assert list(raised.value.reasons) == [1]
        sink.open([P0], 1)
        sink.write(rows([{"id": 1}]))
        sink.commit({P0: 1}, None)
    assert target.query(f'select id from "{TOPIC}"') == [(1,)]


def test_a_database_that_may_only_be_read_is_waited_for(target: PostgresDatabase) -> None:
    with opened(target) as sink:
        sink.write(rows([{"id": 1}]))
        sink.commit({P0: 1}, None)
    admin = target.elsewhere("postgres")
    admin.query("alter database shop set default_transaction_read_only = on")
    try:
        with started(target) as sink:
            assert sink.check() == [], "its tables are there"
            with pytest.raises(RetriableError, match="read-only transaction"):
                sink.open([P0], 2)
    finally:
        admin.query("alter database shop reset default_transaction_read_only")
    with started(target) as sink:
        assert sink.open([P0], 2) == {P0: 1}


def test_a_database_of_another_encoding_refuses_what_it_has_no_letters_for(server: PostgresDatabase) -> None:
    server.query("drop database if exists latin")
    server.query("create database latin encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0")
    latin = server.elsewhere("latin")
    with opened(latin) as sink:
        with pytest.raises(RowsRefused, match="LATIN1") as refused:
            sink.write(rows([{"t": "äö"}, {"t": "5 €"}]))
        assert list(refused.value.reasons) == [1]
        sink.open([P0], 1)
        sink.write(rows([{"t": "äö"}]))
        sink.commit({P0: 2}, None)
    assert latin.query(f'select t, octet_length(t) from "{TOPIC}"') == [("äö", 2)]


def test_a_server_that_is_not_there(target: PostgresDatabase) -> None:
    sink = SqlSink(settings(target, connection_url="postgresql://127.0.0.1:1/x"))
    assert "connection" in sink.check()[0]
    with pytest.raises(RetriableError):
        sink.start()


def test_a_table_that_two_tasks_make_at_once(target: PostgresDatabase) -> None:
    errors: list[RetriableError] = []

    def work(partition: int) -> None:
        try:
            with started(target, timeout_ms=20_000) as sink:
                at = P0.__class__(TOPIC, partition)
                sink.open([at], 1)
                for step in range(5):
                    sink.write(rows([{f"c{step}": partition}], start=step, partition=at))
                    sink.commit({at: step + 1}, None)
        except RetriableError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Two that widen one table may lock each other out; PostgreSQL ends one of them, and it is retried.
    done = target.query("select count(*) from headrace_positions where position = 5")
    assert done == [(4 - len(errors),)]
    assert len(errors) < 4


def test_widened_columns_keep_what_they_have(target: Target) -> None:
    with opened(target) as sink:
        sink.write(rows(pa.array([{"n": 1, "t": 1.5}], pa.struct([("n", pa.int16()), ("t", pa.float32())]))))
        sink.write(rows([{"n": 2**40, "t": 0.1}], start=1))
        sink.write(
            rows(pa.array([{"n": 2**64 - 1, "t": 1.0}], pa.struct([("n", pa.uint64()), ("t", pa.float64())])), start=2)
        )
        sink.commit({P0: 3}, None)
    found = target.query(f'select n, t from "{TOPIC}" order by n')
    assert [(int(n), t) for n, t in found] == [(1, 1.5), (2**40, 0.1), (2**64 - 1, 1.0)]


@pytest.mark.parametrize("drift", list(Drift))
def test_what_becomes_of_values_that_a_column_does_not_take(target: PostgresDatabase, drift: Drift) -> None:
    target.query(f'create table "{TOPIC}" (n smallint)')
    with opened(target, auto_evolve=False, drift=drift, dead_table="dead") as sink:
        if drift is Drift.FAIL:
            with pytest.raises(InvalidConfig, match=r"does not fit into .*drift is fail"):
                sink.write(rows([{"n": 1}, {"n": 2**20}]))
            return
        sink.write(rows([{"n": 1}, {"n": 2**20}]))
        sink.commit({P0: 2}, None)
    added = [(1,), (2**20,)] if drift is Drift.ADD else [(1,)]
    assert target.query(f'select n from "{TOPIC}" order by n') == added
    assert len(target.query("select * from dead")) == 2 - len(added)


ROOT = Path(__file__).parents[3]
KILLED = """
import sys
from contextlib import suppress
from libs.connect.tests.connectors.sql_sink.records import P0, rows
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.plugin import RetriableError

url, epoch, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sink = SqlSink(SinkSettings("shop", url, auto_create=True, timeout_ms=1_000))
sink.start()
position = None
while position is None:  # one who stands still in a transaction holds the row until the server ends it
    with suppress(RetriableError):
        position = sink.open([P0], epoch).get(P0, 0)
print("open", flush=True)
while position < count:
    end = min(count, position + 50)
    sink.write(rows([{"n": n} for n in range(position, end)], start=position))
    sink.commit({P0: end}, None)
    position = end
    print(position, flush=True)
"""


def test_kill_9_and_a_paused_holder(target: PostgresDatabase) -> None:
    kill_and_pause_holders(target, 5)


def kill_and_pause_holders(target: Target, count: int) -> None:
    """Holders one after the other: one is killed, the next one paused and woken when it is too late."""
    with ExitStack() as holders:
        paused = []
        for epoch in range(1, count + 1):
            command = [sys.executable, "-c", KILLED, target.url, str(epoch), "100000"]
            process = holders.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
            holders.callback(process.kill)
            assert process.stdout is not None
            for _ in range(1 + epoch):
                assert process.stdout.readline(), "it is at work"
            if epoch % 2:
                process.kill()
            else:
                process.send_signal(signal.SIGSTOP)
                paused.append(process)
        with started(target, auto_create=True, timeout_ms=20_000) as last:
            position = last.open([P0], count + 1)[P0]
            for process in paused:
                process.send_signal(signal.SIGCONT)
            last.write(rows([{"n": n} for n in range(position, position + 10)], start=position))
            last.commit({P0: position + 10}, None)
            for process in paused:
                process.communicate(timeout=60)
    assert target.query(f'select count(*), count(distinct n), max(n) from "{TOPIC}"') == [
        (position + 10, position + 10, position + 9)
    ]
    with pytest.raises(PartitionTaken), started(target) as old:
        old.open([P0], count)
