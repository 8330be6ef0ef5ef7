"""The sink with SQLite."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from libs.connect.tests.connectors.sql_sink.records import P0, TOPIC, rows
from libs.connect.tests.connectors.sql_sink.suite import SinkSuite, Target, opened, settings
from libs.connect.tests.connectors.sql_sink.verify_suite import PreviewSuite, VerifySuite

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.plugin import RetriableError, RowsRefused


class SqliteFile:
    """Satisfies ``Target``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """See ``Target``."""
        with closing(sqlite3.connect(self.path, timeout=5)) as connection, connection:
            return connection.execute(statement).fetchall()


@pytest.fixture
def target(tmp_path: Path) -> SqliteFile:
    return SqliteFile(tmp_path / "shop.db")


class TestSqlite(SinkSuite):
    """All of the suite."""

    columns_max = 2_000


class TestPreview(PreviewSuite):
    """All of the suite."""


class TestVerify(VerifySuite):
    """All of the suite."""


def test_a_lock_of_others_is_waited_for_and_then_retried(target: SqliteFile) -> None:
    with opened(target) as sink, closing(sqlite3.connect(target.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(RetriableError, match="locked"):
            sink.write(rows([{"id": 1}]))
        other.execute("rollback")
        sink.open([P0], 1)
        sink.write(rows([{"id": 1}]))
        sink.commit({P0: 1}, None)
    assert target.query(f'select id from "{TOPIC}"') == [(1,)]


def test_a_file_that_took_the_place_of_another_one_is_written(target: SqliteFile) -> None:
    with opened(target) as sink:
        sink.write(rows([{"id": 1}]))
        sink.commit({P0: 1}, None)
        restored = shutil.copy(target.path, target.path.with_name("restored"))
        sink.write(rows([{"id": 2}], start=1))
        sink.commit({P0: 2}, None)
        os.replace(restored, target.path)
        with pytest.raises(RetriableError, match="readonly"):
            sink.write(rows([{"id": 3}], start=2))
        assert sink.open([P0], 2) == {P0: 1}, "what the file has that is there now"
        sink.write(rows([{"id": 2}], start=1))
        sink.commit({P0: 2}, None)
    assert target.query(f'select id from "{TOPIC}"') == [(1,), (2,)]


@pytest.mark.parametrize("action", ["abort", "fail"])
def test_a_trigger_that_refuses_a_row(target: SqliteFile, action: str) -> None:
    target.query("create table t (n integer)")
    target.query(f"create trigger no before insert on t when new.n = 2 begin select raise({action}, 'not two'); end")
    with opened(target, table_name_format="t") as sink:
        with pytest.raises(RowsRefused, match="not two") as refused:
            sink.write(rows([{"n": n} for n in range(5)]))
        assert list(refused.value.reasons) == [2]


def test_a_trigger_that_undoes_the_transaction(target: SqliteFile) -> None:
    target.query("create table t (n integer)")
    target.query("create trigger no before insert on t when new.n = 2 begin select raise(rollback, 'no'); end")
    with opened(target, table_name_format="t") as sink:
        sink.write(rows([{"n": 1}]))
        with pytest.raises(InvalidConfig, match="whole transaction"):
            sink.write(rows([{"n": 2}], start=1))
        with pytest.raises(RetriableError):
            sink.commit({P0: 2}, None)
    assert target.query("select count(*) from t") == [(0,)]


def test_columns_of_every_affinity(target: SqliteFile) -> None:
    target.query("create table t (i integer, r real, n decimal(10,2), t text, b blob, x, d timestamp)")
    with opened(target, table_name_format="t", auto_evolve=False, dead_table="dead") as sink:
        for start, value in enumerate(
            [
                {"i": 7, "r": 7, "n": "7.50", "t": 7.25, "b": "x", "x": "007", "d": "2024-01-01"},
                {"i": 1.5, "r": "x", "n": "1.12345678901234567", "t": "007", "b": b"x", "x": 7, "d": None},
                {"i": "007", "r": 2**53 + 1, "n": True, "t": True, "b": 1.5, "x": b"", "d": 5},
            ]
        ):
            for place, (name, one) in enumerate(value.items()):
                sink.write(rows([{name: one}], start=10 * start + place))
        sink.commit({P0: 30}, None)
    assert [row[0] for row in target.query("select position from dead order by position")] == [12, 20, 21]
    kept = "select typeof({0}), {0} from t where {0} is not null"
    assert target.query(kept.format("i")) == [("integer", 7), ("real", 1.5)]
    assert target.query(kept.format("r")) == [("real", 7.0), ("text", "x")]
    assert target.query(kept.format("n")) == [("real", 7.5), ("integer", 1)]
    assert target.query(kept.format("t")) == [("text", "7.25"), ("text", "007"), ("text", "true")]
    assert target.query(kept.format("x")) == [("text", "007"), ("integer", 7), ("blob", b"")]


def test_nan_is_refused_and_nul_is_kept(target: SqliteFile) -> None:
    with opened(target) as sink:
        with pytest.raises(RowsRefused) as refused:
            sink.write(rows([{"n": 1.0}, {"n": float("nan")}]))
        assert list(refused.value.reasons) == [1]
        sink.open([P0], 1)
        sink.write(rows([{"n": float("inf"), "t": "a\0b"}]))
        sink.commit({P0: 1}, None)
    assert target.query(f'select n, t from "{TOPIC}"') == [(float("inf"), "a\0b")]


def test_strict_tables_refuse_rows(target: SqliteFile) -> None:
    target.query("create table t (n integer) strict")
    with opened(target, table_name_format="t") as sink, pytest.raises(RowsRefused) as refused:
        sink.write(rows(pa.array([{"n": "1"}, {"n": "one"}])))
    assert list(refused.value.reasons) == [1]


def test_a_disk_that_is_full_is_waited_for(target: SqliteFile) -> None:
    with opened(target) as sink:
        sink.write(rows([{"t": "x"}]))
        sink.commit({P0: 1}, None)
        ((pages,),) = sink._database.execute("pragma page_count").rows
        sink._database.execute(f"pragma max_page_count = {pages + 2}")
        many = rows([{"t": "x" * 20_000}], start=1)
        with pytest.raises(RetriableError, match="full"):
            sink.write(many)
        sink._database.execute("pragma max_page_count = 1000")
        assert sink.open([P0], 1) == {P0: 1}
        sink.write(many)
        sink.commit({P0: 2}, None)
    assert target.query(f'select count(*) from "{TOPIC}"') == [(2,)]


def test_a_file_that_may_only_be_read_is_a_matter_of_configuration(target: SqliteFile) -> None:
    with opened(target) as sink:
        sink._database.execute("pragma query_only = on")
        with pytest.raises(InvalidConfig, match="readonly"):
            sink.write(rows([{"t": "x"}]))


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"nothing that SQLite knows" * 100)
    sink = SqlSink(settings(SqliteFile(path)))
    assert "not a database" in sink.check()[0]
    with pytest.raises(InvalidConfig, match="not a database"):
        sink.start()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    (said,) = SqlSink(settings(SqliteFile(tmp_path / "none" / "x.db"))).check()
    assert f"unable to open database file: {tmp_path}/none/x.db" in said


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"connection_url": "mysql://x"}, "connection.url is"),
        ({"connection_url": "sqlite://"}, "has no path"),
        ({"insert_mode": "upsert"}, "needs a key"),
        ({"delete_enabled": True}, "record_key"),
        ({"pk_mode": "kafka", "pk_fields": ("a",)}, "three names"),
        ({"pk_fields": ("a",)}, "pk.mode"),
        ({"pk_mode": "record_key", "pk_fields": ("a", "a")}, "twice"),
        ({"table_name_format": " "}, "empty"),
        ({"truncate_enabled": True}, "value.form=debezium"),
    ],
)
def test_settings_that_cannot_work(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SinkSettings(**{"name": "x", "connection_url": "jdbc:sqlite:x.db"} | values)


def test_paths_of_urls() -> None:
    urls = {"sqlite:///a": "a", "sqlite:////a/b": "/a/b", "jdbc:sqlite:c": "c", "sqlite:/d": "/d"}
    for url, path in urls.items():
        assert SinkSettings("x", url).url.path == path


def test_the_target_protocol(target: Target) -> None:
    assert target.query("select 1") == [(1,)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_what_stands_for_a_value_that_the_source_did_not_have_is_no_value(
    target: SqliteFile, kind: pa.DataType
) -> None:
    target.query("create table t (id integer, bio)")
    bios = pa.array([b"a", b"__debezium_unavailable_value", None], pa.binary()).cast(kind)
    values = pa.StructArray.from_arrays([pa.array([1, 2, 3]), bios], ["id", "bio"])
    with opened(target, table_name_format="t") as sink:
        with pytest.raises(RowsRefused, match="REPLICA IDENTITY FULL") as refused:
            sink.write(rows(values))
        assert list(refused.value.reasons) == [1]
        assert "'bio'" in refused.value.reasons[1]
    with opened(target, table_name_format="t", unavailable_value_placeholder="") as sink:
        sink.write(rows(values))
        sink.commit({P0: 3}, None)
    assert target.query("select count(*) from t") == [(3,)]
