"""The sink with a real MariaDB."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows
from libs.connect.tests.connectors.sql_sink.suite import (
    UPSERT_BY_KEY,
    SinkSuite,
    check_wide_records,
    opened,
    settings,
    started,
)
from tests.integration.connect.mariadb import MariadbServer
from tests.integration.connect.test_sql_sink_postgres import kill_and_pause_holders

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.plugin import RetriableError, RowsRefused, Sink
from headrace_connect.testing import SinkCase, check_sink

pytestmark = pytest.mark.integration

BY_VALUE: dict[str, Any] = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": ("id",)}


@pytest.fixture
def target(mariadb: MariadbServer) -> MariadbServer:
    mariadb.empty()
    return mariadb


class TestMariadb(SinkSuite):
    """All of the suite."""

    columns_max = 1_017


def test_a_table_that_is_made_has_no_columns_of_records_that_have_too_many(target: MariadbServer) -> None:
    check_wide_records(target, {f"f{number}": number for number in range(TestMariadb.columns_max)})


class MariadbCase(SinkCase):
    """As with PostgreSQL; each statement that changes a table would commit the transaction."""

    rows = 16
    bad = frozenset({6})

    def __init__(self, target: MariadbServer) -> None:
        self.target = target
        target.empty()
        target.query('create table "t" (at bigint auto_increment primary key, n bigint check (n <> 6))')

    def make(self) -> Sink[Any]:
        return SqlSink(settings(self.target, table_name_format="t"))

    def stored(self) -> Sequence[int]:
        return [n for (n,) in self.target.query('select n from "t" order by at')]

    def go_away(self) -> bool:
        """Connections are cut."""
        self.target.cut()
        return True


@pytest.mark.timeout(900)
def test_the_suite_of_all_sinks(target: MariadbServer) -> None:
    check_sink(lambda: MariadbCase(target))


@pytest.mark.timeout(300)
def test_kill_9_and_a_paused_holder(target: MariadbServer) -> None:
    kill_and_pause_holders(target, 3)


def test_a_server_that_is_killed(target: MariadbServer) -> None:
    with opened(target, timeout_ms=5_000) as sink:
        sink.write(rows([{"id": 1}]))
        sink.commit({P0: 1}, None)
        sink.write(rows([{"id": 2}], start=1))
        target.kill()
        for _ in range(2):
            with pytest.raises(RetriableError):
                sink.commit({P0: 2}, None)
        with pytest.raises(RetriableError):
            sink.open([P0], 1)
        target.start()
        assert sink.open([P0], 1) == {P0: 1}
        sink.write(rows([{"id": 2}], start=1))
        sink.commit({P0: 2}, None)
    assert target.query(f'select id from "{TOPIC}" order by id') == [(1,), (2,)]


def test_a_change_of_a_table_commits_nothing(target: MariadbServer) -> None:
    with opened(target) as sink:
        sink.write(rows([{"id": 1}]))
        sink.write(rows([{"id": 2, "new": "x"}], start=1))
        sink.write(rows([{"id": 2**40, "new": "x"}], start=2))
        assert target.query(f'select count(*) from "{TOPIC}"') == [(0,)]
        assert sink.open([P0], 1) == {}
        sink.write(rows([{"id": 3}]))
        sink.commit({P0: 3}, None)
    assert target.query(f'select id from "{TOPIC}"') == [(3,)]


def test_a_position_is_that_of_now(target: MariadbServer) -> None:
    """Whoever opens several partitions waits for one of them, and does not see it as it was when he began."""
    with started(target, timeout_ms=20_000) as old, started(target, timeout_ms=20_000) as new:
        old.open([P0, P1], 1)
        old.write(rows([{"id": 1}], partition=P1))
        old._positions.move(P1, 1, None, 1)  # all of a commit but its last statement
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(new.open([P0, P1], 1)))
        thread.start()
        while not target.is_waiting():
            assert thread.is_alive()
        old._database.commit()
        thread.join()
        assert found == [{P1: 1}]


def test_a_row_that_is_locked_and_a_deadlock_are_retried(target: MariadbServer) -> None:
    with opened(target, **BY_VALUE) as sink:
        sink.write(rows([{"id": 1, "n": 1}, {"id": 2, "n": 1}]))
        sink.commit({P0: 2}, None)
        other = target.connect()
        other.query("start transaction")
        other.query(f'update "{TOPIC}" set n = 9 where id = 2')
        with pytest.raises(RetriableError, match="Lock wait timeout"):
            sink.write(rows([{"id": 2, "n": 3}], start=2))
        other.query(f'insert into "{TOPIC}" select seq, 0 from seq_100_to_200')  # who has done less is undone
        sink.open([P0], 1)
        sink.write(rows([{"id": 1, "n": 3}], start=2))
        waits = threading.Thread(target=other.query, args=(f'update "{TOPIC}" set n = 9 where id = 1',))
        waits.start()
        while not target.is_waiting():
            assert waits.is_alive()
        with pytest.raises(RetriableError, match="Deadlock"):
            sink.write(rows([{"id": 2, "n": 3}], start=3))
        waits.join()
        other.query("rollback")
        other.close()
        assert sink.open([P0], 1) == {P0: 2}
        sink.write(rows([{"id": 1, "n": 3}, {"id": 2, "n": 3}], start=2))
        sink.commit({P0: 4}, None)
    assert target.query(f'select id, n from "{TOPIC}" order by id') == [(1, 3), (2, 3)]


@pytest.mark.parametrize("errno", [1205, 1213, 1290, 1114], ids=str)
def test_failures_of_the_server_are_no_rows(target: MariadbServer, errno: int) -> None:
    target.query(f'create table "{TOPIC}" (id int)')
    raised = f"signal sqlstate 'HY000' set mysql_errno = {errno}, message_text = 'x'"
    target.query(f'create trigger t before insert on "{TOPIC}" for each row {raised}')
    with opened(target, dead_table="dead") as sink, pytest.raises(RetriableError):
        sink.write(rows([{"id": 1}]))


def test_a_trigger_that_raises_refuses_its_row(target: MariadbServer) -> None:
    target.query(f'create table "{TOPIC}" (id int)')
    target.query(
        f'create trigger t before insert on "{TOPIC}" for each row '
        "if new.id = 2 then signal sqlstate '45000' set message_text = 'not two'; end if"
    )
    with opened(target, dead_table="dead") as sink:
        sink.write(rows([{"id": 1}, {"id": 2}, {"id": 3}]))
        sink.commit({P0: 3}, None)
    assert target.query(f'select id from "{TOPIC}"') == [(1,), (3,)]
    [(reason,)] = target.query("select reason from dead")
    assert "not two" in reason


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_bin"])
def test_keys_that_differ_and_are_equal(target: MariadbServer, collation: str) -> None:
    """In case, or in spaces at the end: a delete between them stays where it is."""
    twin = "A" if collation.endswith("ci") else "a "
    target.query(f'create table "{TOPIC}" (id varchar(9) collate {collation} primary key, n int, m int)')
    keys = ["a", twin, "a", twin, "b", "a", "c", twin.replace("A", "C").replace("a", "c")]
    values: list[Any] = [{"n": n, "m": n} for n in range(1, 9)]
    values[1] = values[5] = values[7] = None
    with opened(target, **UPSERT_BY_KEY, delete_enabled=True) as sink:
        sink.write(rows(values[:4], [{"id": key} for key in keys[:4]]))
        sink.commit({P0: 4}, None)
        assert target.query(f'select n, m from "{TOPIC}"') == [(4, 4)]
        sink.write(rows(values[4:], [{"id": key} for key in keys[4:]], start=4))
        sink.commit({P0: 8}, None)
    assert target.query(f'select id from "{TOPIC}"') == [("b",)]
    with opened(target, insert_mode="update", pk_mode="record_key") as sink:
        both = [{"n": 7, "m": 7}, {"n": 8, "m": 8}]
        sink.write(rows(both, [{"id": "b"}, {"id": "B" if twin == "A" else "b "}], start=8))
        sink.commit({P0: 10}, None)
    assert target.query(f'select n, m from "{TOPIC}"') == [(8, 8)]


def test_an_upsert_changes_no_row_of_another_key(target: MariadbServer) -> None:
    """``on duplicate key`` does, where another unique column has an equal value."""
    target.query(f'create table "{TOPIC}" (id int primary key, mail varchar(20) unique, n int)')
    with opened(target, **BY_VALUE, dead_table="dead") as sink:
        sink.write(rows([{"id": 1, "mail": "a", "n": 1}, {"id": 2, "mail": "b", "n": 1}]))
        sink.write(rows([{"id": 1, "mail": "a", "n": 2}, {"id": 3, "mail": "a", "n": 3}], start=2))
        sink.commit({P0: 4}, None)
    assert target.query(f'select id, mail, n from "{TOPIC}" order by id') == [(1, "a", 2), (2, "b", 1)]
    assert target.query("select position from dead") == [(3,)]


def test_tables_that_undo_nothing_are_refused(target: MariadbServer) -> None:
    target.query(f'create table "{TOPIC}" (id int) engine=MyISAM')
    with opened(target) as sink, pytest.raises(InvalidConfig, match="ENGINE=InnoDB"):
        sink.write(rows([{"id": 1}]))
    target.query("create view v as select 1 as id")
    with opened(target, table_name_format="v") as sink, pytest.raises(InvalidConfig, match="a view"):
        sink.write(rows([{"id": 1}]))


GOOD: dict[str, tuple[str, Any, str]] = {
    "tiny": ("tinyint unsigned", 255, "255"),
    "flag": ("boolean", True, "1"),
    "bits": ("bit(1)", True, "1"),
    "big": ("bigint unsigned", 2**63 - 1, "9223372036854775807"),
    "price": ("decimal(6,2)", "1234.50", "1234.50"),
    "f": ("float", 0.5, "0.5"),
    "d": ("double", 0.1, "0.1"),
    "code": ("varchar(3)", "äö😀", "äö😀"),
    "raw": ("binary(2)", b"\0\xff", "00FF"),
    "at": ("datetime(3)", "2024-01-01T00:00:00.123", "2024-01-01 00:00:00.123"),
    "tz": ("timestamp null", "2024-01-01T02:00:00+02:00", "2024-01-01 00:00:00"),
    "clock": ("time", "10:00:00", "10:00:00"),
    "size": ("enum('s', 'it''s')", "it's", "it's"),
    "j": ("json", {"a": [1]}, '{"a":[1]}'),
    "u": ("uuid", "0b1c6f3e-0000-4000-8000-000000000001", "0b1c6f3e-0000-4000-8000-000000000001"),
}
BAD: dict[str, Any] = {
    "tiny": 256,
    "flag": 300,
    "big": -1,
    "price": "1.005",
    "f": 0.1,
    "d": float("nan"),
    "code": "abc ",
    "raw": b"\0",
    "at": "2024-01-01T00:00:00.1234",
    "tz": "2039-01-01T00:00:00",
    "clock": "10:00:00.5",
    "size": "1",
    "j": "{",
    "u": "nobody",
    "latin": "😀",
    "year": 2024,
    "tags": "a",
    "rounded": 1.5,
    "day": "0000-00-00",
}


def test_columns_that_are_there(target: MariadbServer) -> None:
    others = "latin varchar(9) character set latin1, year year, tags set('a'), rounded float(4,1), day date"
    columns = ", ".join(f'"{name}" {type_} default null' for name, (type_, _, _) in GOOD.items())
    target.query(f'create table "{TOPIC}" ({columns}, {others})')
    with opened(target, dead_table="dead", auto_evolve=False) as sink:
        for place, (name, value) in enumerate(BAD.items()):
            sink.write(rows([{name: value}], start=place))
        sink.write(rows([{name: value for name, (_, value, _) in GOOD.items()}], start=len(BAD)))
        sink.commit({P0: len(BAD) + 1}, None)
    dead = {position for (position,) in target.query("select position from dead")}
    assert [name for place, name in enumerate(BAD) if place not in dead] == []
    shown = {"bits": "bits + 0", "raw": "hex(raw)"}
    listed = ", ".join(f"cast({shown.get(name, name)} as char)" for name in GOOD)
    [found] = target.query(f'select {listed} from "{TOPIC}"')
    assert dict(zip(GOOD, found, strict=True)) == {name: text for name, (_, _, text) in GOOD.items()}


def test_widened_columns_keep_what_they_have(target: MariadbServer) -> None:
    target.query(
        f'create table "{TOPIC}" (id bigint auto_increment primary key, '
        "n smallint not null default 7 comment 'it''s', t varchar(3) collate utf8mb4_general_ci, k varchar(3), key (k))"
    )
    with opened(target, dead_table="dead") as sink:
        sink.write(rows([{"n": 1, "t": "abc", "k": "abc"}, {"n": 2**40, "t": "abcd", "k": "abc"}]))
        sink.write(rows([{"n": 2, "t": "x", "k": "too long"}], start=2))
        sink.write(rows(pa.array([{"n": 2**64 - 1}], pa.struct([("n", pa.uint64())])), start=3))
        sink.commit({P0: 4}, None)
    assert [int(n) for (n,) in target.query(f'select n from "{TOPIC}" order by id')] == [1, 2**40, 2**64 - 1]
    assert target.query("select position from dead") == [(2,)], "a key has a bound"
    of = "is_nullable, column_default, column_comment, collation_name"
    found = target.query(f"select {of} from information_schema.columns where column_name in ('n', 't')")
    assert found == [
        ("NO", "7.000000000000000000000000000000", "it's", None),
        ("YES", "NULL", "", "utf8mb4_general_ci"),
    ]


def test_rows_that_are_too_large_for_a_statement(target: MariadbServer) -> None:
    texts = ["x" * (1 << 20), "y" * (5 << 20), *["x" * (1 << 20)] * 4]
    with opened(target, timeout_ms=20_000) as sink:
        with pytest.raises(RowsRefused, match="max_allowed_packet") as refused:
            sink.write(rows([{"id": id_, "t": text} for id_, text in enumerate(texts)]))
        assert list(refused.value.reasons) == [1]
        sink.open([P0], 1)
        sink.write(rows([{"id": id_, "t": text} for id_, text in enumerate(texts) if id_ != 1]))
        sink.commit({P0: 6}, None)
    assert target.query(f'select count(*), sum(length(t)) from "{TOPIC}"') == [(5, 5 << 20)]
    with (
        opened(target, dead_table="dead", timeout_ms=20_000) as sink,
        pytest.raises(InvalidConfig, match=r"dead\.table"),
    ):
        sink.write(rows([{"id": 1, "t": texts[1]}], start=6))


def test_rights_that_are_missing_are_a_matter_of_configuration(target: MariadbServer) -> None:
    target.query("create or replace user poor@'127.0.0.1'")
    target.query("grant select on shop.* to poor@'127.0.0.1'")
    poor = SqlSink(settings(target, connection_user="poor"))
    assert "rights" in poor.check()[0]
    with pytest.raises(InvalidConfig, match="denied"):
        poor.start()
    poor.stop()


def test_tls_that_is_asked_for_has_to_be_there(target: MariadbServer) -> None:
    for options, said in (("sslMode=trust", "SSL"), ("sslMode=verify-ca&serverSslCert=/nowhere.pem", "No such file")):
        sink = SqlSink(settings(target, connection_url=f"{target.plain_url}?{options}"))
        assert said in sink.check()[0]
    for url in (target.plain_url, target.url):
        assert SqlSink(settings(target, connection_url=url)).check() == []


def test_what_would_leave_tables_behind_is_refused(target: MariadbServer) -> None:
    sink = SqlSink(settings(target))
    with pytest.raises(InvalidConfig, match="no preview"):
        sink.preview([rows([{"id": 1}])])
    with pytest.raises(InvalidConfig, match="no verify"):
        sink.verifier()


def test_another_task_that_changes_a_table_for_long_is_a_matter_of_time(target: MariadbServer) -> None:
    other = target.connect()
    try:
        with opened(target) as sink:
            other.query("select get_lock(concat('headrace.', md5(database())), 1)")
            with pytest.raises(RetriableError, match="another task"):
                sink.write(rows([{"id": 1}]))
    finally:
        other.close()


def test_tables_that_several_tasks_make_at_once(target: MariadbServer) -> None:
    errors: list[Exception] = []

    def work(partition: int) -> None:
        at = P0.__class__(TOPIC, partition)
        with started(target, timeout_ms=20_000) as sink:
            position = sink.open([at], 1).get(at, 0)
            while position < 3:
                try:
                    sink.write(rows([{f"c{position}": partition}], start=position, partition=at))
                    sink.commit({at: position + 1}, None)
                except RetriableError as error:  # two that change a table may lock each other out
                    errors.append(error)
                position = sink.open([at], 1).get(at, 0)

    threads = [threading.Thread(target=work, args=(partition,)) for partition in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.query("select count(*) from headrace_positions where position = 3") == [(3,)], errors
    assert target.query(f'select count(*), count(c0), count(c1), count(c2) from "{TOPIC}"') == [(9, 3, 3, 3)]
