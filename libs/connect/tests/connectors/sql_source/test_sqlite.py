"""The source with SQLite."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from libs.connect.tests.connectors.sql_sink.test_sqlite import SqliteFile
from libs.connect.tests.connectors.sql_source.rows import rows_of, settings, started, take, values_of
from libs.connect.tests.connectors.sql_source.suite import BY_BOTH, BY_TIME, MODES, SourceSuite, TableCase, fill
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_source import SqlSource
from headrace_connect.connectors.sql_source import sqlite as adapter
from headrace_connect.core.drift import SourceDrift
from headrace_connect.core.events import Event
from headrace_connect.plugin import RetriableError
from headrace_connect.testing import check_source


@pytest.fixture
def target(tmp_path: Path) -> SqliteFile:
    return SqliteFile(tmp_path / "shop.db")


class TestSqlite(SourceSuite):
    """All of the suite."""

    @pytest.fixture(autouse=True)
    def _file(self, target: SqliteFile) -> None:
        target.query("pragma user_version = 1")


def test_a_file_that_took_the_place_of_another_one_is_read(target: SqliteFile) -> None:
    fill(target, [0])
    with started(target.url) as source:
        [split] = source.splits()
        reading = source.read(split, None)
        assert values_of([next(reading)]) == [0]
        other = SqliteFile(target.path.with_name("other"))
        fill(other, [0, 1])
        other.path.replace(target.path)
        with pytest.raises(RetriableError, match="another file"):
            next(reading)
        assert values_of(take(source)) == [0, 1], "from where it is told"
        target.path.unlink()
        with pytest.raises(RetriableError, match="unable to open"):
            source.splits()


class LockedCase(TableCase):
    """Somebody has locked the file at each step."""

    target: SqliteFile
    more: ClassVar[Mapping[str, Any]] = {"timeout_ms": 1}
    lock: sqlite3.Connection | None = None

    def go_away(self) -> bool:
        self.lock = sqlite3.connect(self.target.path, timeout=5, isolation_level=None)
        self.lock.execute("begin exclusive")
        return True

    def come_back(self) -> None:
        if self.lock is not None:
            self.lock.close()
            self.lock = None


@pytest.mark.timeout(600)
def test_the_suite_of_all_sources(target: SqliteFile) -> None:
    fill(target, TableCase.TIMES)
    check_source(lambda: LockedCase(target, "timestamp"))


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    times=st.lists(st.integers(0, 3), max_size=12),
    size=st.integers(1, 4),
    mode=st.sampled_from(sorted(MODES)),
    cuts=st.lists(st.integers(0, 20), max_size=3),
)
def test_each_row_is_read_once_wherever_it_is_cut(times: list[int], size: int, mode: str, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        target = SqliteFile(Path(directory) / "x.db")
        fill(target, times)
        position: Any = None
        found: list[Any] = []
        for cut in [*cuts, 1_000]:
            with started(target.url, batch_max_rows=size, **MODES[mode]) as source:
                for chunk in take(source, position)[:cut]:
                    found += values_of([chunk])
                    position = json.loads(json.dumps(chunk.position))
        assert sorted(found) == list(range(len(times)))


def test_values_of_other_types_are_no_other_columns(target: SqliteFile) -> None:
    target.query("create table t (id integer primary key, x, y)")
    target.query("insert into t values (1, 5, null), (2, 'five', x'05'), (3, null, 5)")
    told: list[Event] = []
    with started(target.url, drift=SourceDrift.FAIL, batch_max_rows=1) as source:
        source.notify = told.append
        assert values_of(take(source)) == [1, 2, 3]
    assert not told


def test_times_as_numbers_wait_for_those_that_are_not_there_yet(target: SqliteFile) -> None:
    target.query("create table t (id integer primary key, at integer not null)")
    target.query("insert into t values (1, 100), (2, 100)")
    clock = [0.0]
    with started(target.url, **BY_BOTH) as source:
        source.monotonic_s = lambda: clock[0]
        [split] = source.splits()
        reading = source.read(split, None)
        first = next(reading)
        assert (len(first.rows), first.drained) == (0, False)
        target.query("insert into t values (0, 100)")
        assert len(next(reading).rows) == 0
        clock[0] = 1.0
        assert values_of([next(reading)]) == [0, 1, 2]


def test_a_second_is_read_when_it_is_over(target: SqliteFile) -> None:
    target.query("create table t (id integer primary key, at text not null default current_timestamp)")
    target.query("insert into t (id) values (1)")
    with started(target.url, timestamp_delay_interval_ms=3_600_000, **BY_BOTH) as source:
        assert values_of(take(source)) == []
    with started(target.url, timestamp_delay_interval_ms=0, **BY_BOTH) as source:
        assert values_of(take(source)) == [1]


@pytest.mark.parametrize("form", ["2024-05-01T10:00:00.5Z", "2024-05-01", "2024-05-01 10:00"])
def test_texts_of_times(target: SqliteFile, form: str) -> None:
    target.query("create table t (id integer primary key, at text not null)")
    target.query(f"insert into t values (1, '{form}'), (2, '2999-{form[5:]}')")
    with started(target.url, **BY_TIME) as source:
        assert values_of(take(source)) == [1]


@pytest.mark.parametrize("values", [("'x'", "5"), ("x'00'", "x'01'")])
def test_values_that_cannot_be_compared(target: SqliteFile, values: tuple[str, str]) -> None:
    target.query("create table t (id integer not null primary key, at blob not null)")
    target.query(f"insert into t values (1, {values[0]}), (2, {values[1]})")
    with started(target.url, **BY_TIME) as source, pytest.raises(InvalidConfig, match="other values than"):
        take(source)
    target.query("create table n (id numeric not null)")
    target.query("insert into n values (1), (2.5)")
    with started(target.url, table_include_list=("n",)) as source, pytest.raises(InvalidConfig, match="whole numbers"):
        take(source, split="n")


def test_values_of_every_class(target: SqliteFile) -> None:
    target.query(
        "create table t (id integer primary key, i bigint, f real, d decimal(9,2), b boolean, s text, raw blob, x)"
    )
    target.query(
        "insert into t values (1, 2, 3, 4, 1, 'ä', x'00ff', 'any'), (2, null, null, null, null, null, null, null)"
    )
    target.query(f"insert into t values (3, {2**62}, 1.5, 0.25, 0, '', x'', 'more')")
    with started(target.url) as source:
        [chunk, _] = take(source)
        assert isinstance(chunk.rows, pa.Array)
        assert str(chunk.rows.type) == (
            "struct<id: int64, i: int64, f: double, d: double, b: bool, s: string, raw: binary, x: string>"
        )
        first, none, last = rows_of([chunk])
    assert first == {"id": 1, "i": 2, "f": 3.0, "d": 4.0, "b": True, "s": "ä", "raw": b"\0\xff", "x": "any"}
    assert none == {"id": 2} | dict.fromkeys(("i", "f", "d", "b", "s", "raw", "x"))
    assert (last["i"], last["raw"]) == (2**62, b"")


def test_values_that_are_not_of_their_type_are_bad_rows(target: SqliteFile) -> None:
    target.query("create table t (id integer primary key, i integer, d decimal, b boolean, s text, x)")
    wrong = [
        "'no', 1, 1, 's', 1",
        f"1, {2**60 + 1}, 1, 's', 1",
        "1, 1, 2, 's', 1",
        "1, 1, 1, x'00', 1",
        "1, 1, 1, 's', 'a'",
    ]
    wrong.append("1, 1, 1, cast(x'ff' as text), 1")
    wrong.append("1, 'a', 9e999, 's', 1")
    target.query("insert into t values (0, 1, 1, 1, 's', 1)")
    for id_, values in enumerate(wrong, 1):
        target.query(f"insert into t values ({id_}, {values})")
    with started(target.url) as source:
        [chunk, _] = take(source)
    assert values_of([chunk]) == [0]
    assert [bad.reason.partition(" is ")[0] for bad in chunk.bad] == [f"t.{name}" for name in "idbsxsd"]
    assert [bad.reason.rpartition("id=")[2] for bad in chunk.bad] == [str(id_) for id_ in range(1, 8)]
    assert json.loads(chunk.bad[0].raw) == {"id": 1, "i": "no", "d": 1, "b": 1, "s": "s", "x": 1}
    assert "no UTF-8" in chunk.bad[5].reason
    assert json.loads(chunk.bad[6].raw)["b"] == str(math.inf)


@pytest.fixture
def kib_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "BYTES_MAX", 1_024)


@pytest.mark.usefixtures("kib_at_once")
def test_pages_have_an_end_in_bytes(target: SqliteFile) -> None:
    target.query("create table t (id integer primary key, raw blob)")
    target.query("insert into t values (1, zeroblob(1024)), (2, zeroblob(1024)), (3, zeroblob(1))")
    with started(target.url) as source:
        assert [values_of([chunk]) for chunk in take(source)] == [[1], [2], [3], []]


@pytest.mark.usefixtures("kib_at_once")
def test_equal_times_that_are_too_many(target: SqliteFile) -> None:
    target.query("create table t (at text not null, raw blob)")
    target.query("insert into t values ('2024-01-01', zeroblob(1024)), ('2024-01-02', zeroblob(1024))")
    with started(target.url, **BY_TIME) as source:
        assert [len(chunk.rows) for chunk in take(source)] == [1, 1, 0]
        target.query("insert into t values ('2024-01-02', zeroblob(1024))")
        with pytest.raises(InvalidConfig, match="primary key tells them apart"):
            take(source)


def test_keys_that_may_be_null_are_none(target: SqliteFile) -> None:
    target.query("create table t (code text primary key, at text not null)")
    target.query("insert into t values (null, '2024-01-01'), ('a', '2024-01-01'), (null, '2024-01-01')")
    with started(target.url, batch_max_rows=1, **BY_TIME) as source:
        assert len(rows_of(take(source))) == 3


def test_a_database_that_others_have_locked(target: SqliteFile) -> None:
    fill(target, [0])
    with started(target.url, timeout_ms=100) as source, closing(sqlite3.connect(target.path)) as other:
        other.execute("begin exclusive")
        with pytest.raises(RetriableError, match="locked"):
            source.splits()
        other.rollback()
        assert values_of(take(source)) == [0]


def test_numbers_that_come_again_are_told(target: SqliteFile, caplog: pytest.LogCaptureFixture) -> None:
    target.query("create table t (id integer primary key)")
    target.query("create table sure (id integer primary key autoincrement)")
    with caplog.at_level(logging.WARNING):
        assert SqlSource(settings(target.url, table_include_list=("t", "sure"))).check() == []
    assert "t is not declared AUTOINCREMENT" in caplog.text
    assert "sure is not" not in caplog.text


def test_generated_columns_are_read(target: SqliteFile) -> None:
    target.query("create table t (id integer primary key, twice integer generated always as (2 * id))")
    target.query("insert into t (id) values (4)")
    with started(target.url) as source:
        assert rows_of(take(source)) == [{"id": 4, "twice": 8}]


def test_the_command_shows_rows_and_names_keys(target: SqliteFile, tmp_path: Path) -> None:
    fill(target, [0, 1])
    target.query("create table bare (id integer)")
    config = {"name": "n", "connector.class": "sql-source", "connection.url": target.url, "topic.prefix": "shop."}
    config |= {"mode": "incrementing", "incrementing.column.name": "id"}
    file = tmp_path / "n.json"
    file.write_text(json.dumps(config | {"table.include.list": "t"}))
    for words, shown in ((("validate",), {"problems": []}), (("preview", "--records", "1"), None)):
        done = CliRunner().invoke(app, ["connect", words[0], str(file), *words[1:], "-o", "json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        if shown is None:
            [row] = found["records"]
            assert (row["topic"], json.loads(row["value"])["name"]) == ("shop.t", "n0")
        else:
            assert found == shown
    file.write_text(json.dumps(config))
    done = CliRunner().invoke(app, ["connect", "validate", str(file), "-o", "json"])
    assert done.exit_code == 1
    [problem] = json.loads(done.stdout)["problems"]
    assert problem["problem"].startswith("incrementing.column.name: id of bare may be null")


def test_no_file_is_made(tmp_path: Path) -> None:
    source = SqlSource(settings(f"sqlite:///{tmp_path}/none.db"))
    assert "unable to open" in source.check()[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"connection_url": "mysql://x"}, "connection.url is"),
        ({"topic_prefix": " "}, "topic.prefix is empty"),
        ({"table_include_list": ("a",), "table_whitelist": ("a",)}, "set one of them"),
        ({"table_include_list": ("a",), "query": "select 1"}, "instead of tables"),
        ({"table_include_list": ("(",)}, "no regular expression"),
        ({"table_types": ("SYNONYM",)}, "table.types has"),
        ({"mode": "timestamp"}, "timestamp.column.name is missing"),
        ({"mode": "timestamp+incrementing", "timestamp_column_name": ("a",)}, "incrementing.column.name is missing"),
        ({"mode": "bulk", "incrementing_column_name": "a"}, "is not used with mode=bulk"),
        ({"mode": "incrementing", "incrementing_column_name": "a", "timestamp_column_name": ("b",)}, "is not used"),
        ({"db_timezone": "Nowhere/City"}, "db.timezone"),
        ({"mode": "timestamp", "timestamp_column_name": ("a", "b")}, "coalesce"),
    ],
)
def test_settings_that_cannot_work(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        settings(values.pop("connection_url", "sqlite:///x.db"), **values)
