"""The source with a real MariaDB: late commits above all."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from libs.connect.tests.connectors.sql_source.rows import ALSO, rows_of, settings, started, take, values_of
from libs.connect.tests.connectors.sql_source.suite import BY_BOTH, BY_TIME, SourceSuite, TableCase, fill
from tests.integration.connect.mariadb import MariadbServer

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_source import SqlSource, mariadb
from headrace_connect.plugin import Chunk, RetriableError
from headrace_connect.testing import check_source
from headrace_connect.testing.sources import check_away, check_positions

pytestmark = pytest.mark.integration
NOW = BY_BOTH | {"timestamp_delay_interval_ms": 0}
TABLE = "create table t (id int auto_increment primary key, at datetime(6) not null default now(6), name text)"


@pytest.fixture
def target(mariadb: MariadbServer) -> MariadbServer:
    mariadb.empty()
    return mariadb


@contextmanager
def session(target: MariadbServer, *statements: str) -> Iterator[Any]:
    """One that has begun a transaction; it is undone if the block does not end it."""
    connection = target.connect()
    try:
        for statement in ("start transaction", *statements):
            connection.query(statement)
        yield connection
        connection.query("rollback")
    finally:
        connection.close()


def wait_for(reading: Iterator[Chunk]) -> list[int]:
    """The numbers of the next rows."""
    return values_of([next(chunk for chunk in reading if len(chunk.rows))])


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions are not looked at, which the server shows ten times in a second."""
    monkeypatch.setitem(ALSO, "hold_back", "delay")


@pytest.mark.usefixtures("hasty")
class TestMariadb(SourceSuite):
    """All of the suite."""


class CutCase(TableCase):
    """Its connections are cut at each step."""

    target: MariadbServer

    def go_away(self) -> bool:
        self.target.cut()
        return True


@pytest.mark.usefixtures("hasty")
async def test_positions_and_connections_that_are_cut_at_each_step(target: MariadbServer) -> None:
    """What the suite of all sources asks of a database; the rest of it is of topics and tasks, and the same for all."""
    fill(target, TableCase.TIMES)
    order: dict[Hashable, tuple[str, int]] = {row: ("shop.t", row) for row in range(TableCase.rows)}
    await check_positions(lambda: CutCase(target, "timestamp+incrementing"))
    await check_away(lambda: CutCase(target, "timestamp+incrementing"), order)


@pytest.mark.skipif("CONNECT_LONG" not in os.environ, reason="make connect-long: 10 s alone, minutes beside others")
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("hasty")
def test_the_suite_of_all_sources(target: MariadbServer) -> None:
    fill(target, TableCase.TIMES)
    check_source(lambda: CutCase(target, "timestamp+incrementing"))


INSERT = "insert into t (name) values ('late')"


@pytest.mark.parametrize("mode", [{}, NOW], ids=["numbers", "times"])
def test_a_transaction_that_commits_late(target: MariadbServer, mode: dict[str, Any]) -> None:
    """What is committed before it, and belongs behind it, waits for it."""
    target.query(TABLE)
    with started(target.url, **mode) as source, session(target, INSERT) as late:
        reading = source.read(source.splits()[0], None)
        target.query("insert into t (name) values ('early')")
        assert not any(len(next(reading).rows) for _ in range(3)), "it waits"
        late.query("commit")
        assert wait_for(reading) == [1, 2]
        assert next(reading).drained
    with session(target, INSERT), started(target.url, hold_back="delay", **mode) as hasty:
        target.query("insert into t (name) values ('x')")
        assert values_of(take(hasty)) == [1, 2, 4]


def test_a_statement_that_has_drawn_its_numbers(target: MariadbServer) -> None:
    """It is a transaction of its own, and has numbers for all its rows before it writes the first one."""
    target.query(TABLE)
    statement = "insert into t (name) values ('a'), (concat('b', get_lock('held', 60)))"
    slow = threading.Thread(target=target.query, args=(statement,))
    with started(target.url) as source, session(target, "do get_lock('held', 1)") as other:
        reading = source.read(source.splits()[0], None)
        slow.start()
        running = "select count(*) from information_schema.processlist where info like 'insert into t%get_lock%'"
        while target.query(running) == [(0,)]:
            assert slow.is_alive()
        target.query("insert into t (name) values ('early')")
        assert not any(len(next(reading).rows) for _ in range(3)), "it waits"
        other.query("do release_lock('held')")
        assert wait_for(reading) == [1, 2, 3]
        slow.join()


def test_a_transaction_that_is_prepared_is_waited_for(target: MariadbServer) -> None:
    target.query(TABLE)
    with started(target.url) as source:
        reading = source.read(source.splits()[0], None)
        other = target.connect()
        other.query("xa start 'two'")
        other.query(INSERT)
        target.query("insert into t (name) values ('early')")
        assert not len(next(reading).rows)
        for statement in ("xa end 'two'", "xa prepare 'two'"):
            other.query(statement)
        other.close()
        assert not any(len(next(reading).rows) for _ in range(3)), "it waits"
        target.query("xa commit 'two'")
        assert wait_for(reading) == [1, 2]


def test_who_may_not_see_transactions_is_refused(target: MariadbServer) -> None:
    target.query(TABLE)
    target.query("create or replace user poor@'127.0.0.1'")
    target.query("grant select on shop.* to poor@'127.0.0.1'")
    [problem] = SqlSource(settings(target.url, connection_user="poor")).check()
    assert problem.startswith("hold.back: ")
    assert "PROCESS" in problem
    with started(target.url, connection_user="poor", hold_back="delay") as source:
        assert take(source)[0].drained
    target.query("revoke all privileges, grant option from poor@'127.0.0.1'")
    [problem] = SqlSource(settings(target.url, connection_user="poor", hold_back="delay")).check()
    assert problem.startswith("connection.url: ")
    assert "denied" in problem


def test_a_replica_does_not_know_what_is_open(target: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    target.query(TABLE)
    target.query("insert into t (name) values ('x')")
    monkeypatch.setattr(mariadb, "_SESSIONS", "select 7, 8, 'Slave_SQL', null")
    with started(target.url) as source, pytest.raises(InvalidConfig, match=r"hold\.back=delay"):
        take(source)


def test_values_of_each_type(target: MariadbServer) -> None:
    target.query(
        "create table t (id bigint unsigned primary key, tiny tinyint, flag bit(1), bits bit(9), f float, "
        "d double, price decimal(6,2), wide decimal(65,30), raw varbinary(9), s text, latin varchar(9) character set "
        "latin1, c char(3), day date, at datetime(3), tz timestamp(6) null, clock time(1), y year, "
        "size enum('s', 'l'), tags set('a', 'b'), j json, u uuid)"
    )
    target.query(
        "insert into t values (18446744073709551615, -1, b'1', b'100000001', 0.1, 1e300, 1234.50, 1.5, x'00ff', "
        "'a,\"b\" \\ 😀', 'ä', 'ab', '2024-05-01', '2024-05-01 10:00:00.123', '2024-05-01 10:00:00.123456', "
        "'10:00:00.5', 2024, 'l', 'a,b', '{\"a\": [1]}', '0b1c6f3e-0000-4000-8000-000000000001')"
    )
    target.query("insert into t (id) values (2)")
    with started(target.url, mode="bulk") as source:
        none, one = rows_of(take(source))
    shown = {name: value if isinstance(value, str | bytes | float) else str(value) for name, value in one.items()}
    assert shown.pop("f") == pytest.approx(0.1, rel=1e-7)
    assert one["f"] == 0.10000000149011612, "as the column has it, and not its six digits"
    assert shown == {
        "id": "18446744073709551615",
        "tiny": "-1",
        "flag": "True",
        "bits": b"\x01\x01",
        "d": 1e300,
        "price": "1234.50",
        "wide": "1.500000000000000000000000000000",
        "raw": b"\0\xff",
        "s": 'a,"b" \\ 😀',
        "latin": "ä",
        "c": "ab",
        "day": "2024-05-01",
        "at": "2024-05-01 10:00:00.123000",
        "tz": "2024-05-01 10:00:00.123456+00:00",
        "clock": "10:00:00.500000",
        "y": "2024",
        "size": "l",
        "tags": "a,b",
        "j": '{"a": [1]}',
        "u": "0b1c6f3e-0000-4000-8000-000000000001",
    }
    assert {name: value for name, value in none.items() if value is not None} == {"id": 2}


def test_values_that_have_no_form_are_bad_rows(target: MariadbServer) -> None:
    target.query("create table t (id int primary key, day date, at datetime, clock time)")
    target.query("insert into t values (1, '0000-00-00', null, null), (2, '2024-05-01', null, null)")
    target.query("insert into t values (3, null, '0000-00-00 00:00:00', null), (4, null, null, '25:00:00')")
    with started(target.url) as source:
        [chunk, _] = take(source)
    assert values_of([chunk]) == [2]
    assert [bad.reason.rpartition(", where ")[2] for bad in chunk.bad] == ["id=1", "id=3", "id=4"]
    assert "shop.t.day: '0000-00-00' cannot be represented" in chunk.bad[0].reason
    assert json.loads(chunk.bad[2].raw)["clock"] == "25:00:00"


def test_positions_are_exact_in_each_type(target: MariadbServer) -> None:
    """Beyond what a double has, in bytes, in texts that differ in case, in moments of a microsecond."""
    for type_, values in (
        ("bigint unsigned", ["18446744073709551614", "18446744073709551615", "9007199254740993"]),
        ("decimal(30,10)", ["12345678901234567890.0000000001", "12345678901234567890.0000000002", "-1"]),
        ("varbinary(9)", ["x'00'", "x'27ff'", "x'5c'"]),
        ("varchar(9) collate utf8mb4_general_ci", ["'B'", "'a'", "'it''s'"]),
        ("timestamp(6)", ["'2024-05-01 10:00:00.000001'", "'2024-05-01 10:00:00.000002'", "'2024-05-01 10:00:00'"]),
    ):
        target.query("drop table if exists t")
        target.query(f"create table t (k {type_}, n int, primary key (k, n))")
        target.query(f"insert into t values {', '.join(f'({value}, {n})' for value in values for n in (1, 2))}")
        with started(target.url, mode="bulk", batch_max_rows=1) as source:
            chunks = take(source)
            assert len(rows_of(chunks)) == 6, type_
            for number, chunk in enumerate(chunks[:5]):
                rest = rows_of(take(source, json.loads(json.dumps(chunk.position))))
                assert rows_of(chunks[: number + 1]) + rest == rows_of(chunks), type_


def test_a_position_is_no_statement(target: MariadbServer) -> None:
    target.query("create table t (id int primary key)")
    with started(target.url) as source:
        position = {"table": "shop.t", "at": {"id": "1 or sleep(9)"}}
        with pytest.raises(InvalidConfig, match="no number"):
            next(source.read(source.splits()[0], position))


def test_pages_have_an_end_in_bytes(target: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mariadb, "BYTES_MAX", 1_000)
    target.query("create table t (id int primary key, s text)")
    target.query("insert into t select seq, repeat('x', 600) from seq_1_to_7")
    with started(target.url) as source:
        assert [values_of([chunk]) for chunk in take(source)][:-1] == [[1, 2], [3, 4], [5, 6], [7]]
    with started(target.url, mode="bulk", query="select s from t limit 3", topic_prefix="q") as source:
        assert [len(chunk.rows) for chunk in take(source)] == [2, 1]


def test_rows_are_streamed_and_may_be_left(target: MariadbServer) -> None:
    """A query of many rows is neither held nor read to its end."""
    query = {"query": "select seq, repeat('x', 1000) as s from seq_1_to_10000000", "topic_prefix": "q"}
    with started(target.url, mode="bulk", batch_max_rows=10, **query) as source:
        reading = source.read(source.splits()[0], None)
        assert [len(next(reading).rows) for _ in range(3)] == [10, 10, 10]
        reading.close()


def test_clocks_and_zones(target: MariadbServer) -> None:
    """A day is read when it is over, and a second too; a time without a zone is in ``db.timezone``."""
    for type_, value, found in (
        ("date", "date(utc_timestamp() + interval 9 hour)", []),
        ("date", "date(utc_timestamp() + interval 9 hour) - interval 2 day", [1]),
        ("datetime(6)", "utc_timestamp() + interval 9 hour - interval 3 second", [1]),
        ("datetime(6)", "utc_timestamp() + interval 9 hour + interval 1 minute", []),
        ("timestamp(6)", "now() - interval 3 second", [1]),
        ("timestamp(6)", "now() + interval 1 minute", []),
    ):
        target.query("drop table if exists t")
        target.query(f"create table t (id int primary key, at {type_} not null)")
        target.query(f"insert into t values (1, {value})")
        with started(target.url, db_timezone="Asia/Tokyo", **BY_TIME) as source:
            assert values_of(take(source)) == found, (type_, value)


def test_a_connection_that_is_cut(target: MariadbServer) -> None:
    target.query("create table t (id int primary key)")
    target.query("insert into t select seq from seq_1_to_3")
    with started(target.url, batch_max_rows=2) as source:
        reading = source.read(source.splits()[0], None)
        first = next(reading)
        target.kill()
        with pytest.raises(RetriableError):
            next(reading)
        with pytest.raises(RetriableError):
            source.splits()
        target.start()
        assert values_of(take(source, first.position)) == [3]
