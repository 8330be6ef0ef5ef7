"""What the source does, the same with each database. Its tests run where a subclass gives a ``target``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from libs.connect.tests.connectors.sql_sink.suite import Target
from libs.connect.tests.connectors.sql_source.rows import rows_of, settings, started, take, values_of

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_source import SqlSource
from headrace_connect.core.drift import SourceDrift
from headrace_connect.core.events import Event
from headrace_connect.plugin import RetriableError, Source
from headrace_connect.testing import SourceCase

BY_TIME = {"mode": "timestamp", "timestamp_column_name": ("at",)}
BY_BOTH = {"mode": "timestamp+incrementing", "timestamp_column_name": ("at",), "incrementing_column_name": "id"}
MODES: dict[str, dict[str, Any]] = {
    "incrementing": {},
    "timestamp": BY_TIME,
    "timestamp+incrementing": BY_BOTH,
    "query": {"query": "select * from t where id >= 0 -- all", "topic_prefix": "shop.t", **BY_BOTH},
}


def fill(target: Target, times: Sequence[int], *, key: str = "primary key") -> None:
    """A table with a row for each time, which is a minute of a day."""
    target.query(f"create table t (id integer not null {key}, at timestamp not null, name text)")
    target.query("create index t_at on t (at, id)")
    if times:
        rows = (f"({id_}, '2024-05-01 10:{minute:02d}:00', 'n{id_}')" for id_, minute in enumerate(times))
        target.query(f"insert into t values {', '.join(rows)}")


class TableCase(SourceCase):
    """Rows of which many have the same time, over the borders of pages; reading does not change them."""

    TIMES = (0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2)
    rows = len(TIMES)
    more: ClassVar[Mapping[str, Any]] = {}
    """Settings of a database."""

    def __init__(self, target: Target, mode: str) -> None:
        self.target = target
        self._settings = settings(target.url, batch_max_rows=4, **self.more, **MODES[mode])

    def make(self) -> Source[Any]:
        return SqlSource(self._settings)

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        assert value is not None
        return int(json.loads(value)["id"])


class SourceSuite:
    """Inherit it, with a fixture ``target``."""

    @pytest.mark.parametrize("mode", MODES)
    def test_pages_are_exact_where_times_are_equal(self, target: Target, mode: str) -> None:
        fill(target, [0, 0, 0, 0, 1, 1, 1, 2, 2])
        for size in (2, 4, 100):
            with started(target.url, batch_max_rows=size, **MODES[mode]) as source:
                chunks = take(source)
                assert values_of(chunks) == list(range(9))
                assert {chunk.topic for chunk in chunks} == {"shop.t"}
                for number, chunk in enumerate(chunks):
                    before = values_of(chunks[: number + 1])
                    assert before + values_of(take(source, chunk.position)) == list(range(9))

    def test_equal_times_without_a_key_are_read_together(self, target: Target) -> None:
        fill(target, [0, 1, 1, 1, 1, 2], key="")
        with started(target.url, batch_max_rows=2, **BY_TIME) as source:
            chunks = [values_of([chunk]) for chunk in take(source) if len(chunk.rows)]
            assert [sorted(chunk) for chunk in chunks] == [[0, 1, 2, 3, 4], [5]]

    @pytest.mark.parametrize("mode", ["incrementing", "timestamp", "timestamp+incrementing"])
    def test_what_is_new_is_read_and_what_has_changed(self, target: Target, mode: str) -> None:
        fill(target, [0, 1])
        with started(target.url, **MODES[mode]) as source:
            [split] = source.splits()
            reading = source.read(split, None)
            chunk = next(reading)
            assert values_of([chunk]) == [0, 1]
            assert next(reading).drained
            target.query("insert into t values (2, '2024-05-01 10:02:00', 'new')")
            target.query("update t set at = '2024-05-01 10:03:00' where id = 0")
            assert values_of([next(reading)]) == ([2] if mode == "incrementing" else [2, 0])
            last = next(reading)
            assert last.drained
            assert take(source, last.position)[0].drained

    def test_rows_that_are_too_young_wait(self, target: Target) -> None:
        fill(target, [0])
        target.query("insert into t values (1, '2037-01-01 00:00:00', 'of the future')")
        with started(target.url, **BY_BOTH) as source:
            assert values_of(take(source)) == [0]
        target.query("insert into t values (2, current_timestamp, 'of now, in whatever zone')")
        with started(target.url, timestamp_delay_interval_ms=86_400_000, **BY_BOTH) as source:
            assert values_of(take(source)) == [0]

    def test_everything_again_and_again(self, target: Target) -> None:
        fill(target, [0, 0, 0, 1, 1])
        with started(target.url, mode="bulk", batch_max_rows=2) as source:
            first = take(source)
            assert [values_of([chunk]) for chunk in first] == [[0, 1], [2, 3], [4]]
            assert [values_of([chunk]) for chunk in take(source, first[1].position)] == [[4]]
            again = take(source, first[-1].position)
            assert values_of(again) == [0, 1, 2, 3, 4]
            assert again[-1].position != first[-1].position

    def test_a_pass_without_a_key_begins_again(self, target: Target) -> None:
        fill(target, [0, 0, 0, 1, 1], key="")
        query = {"query": "select id, name from t", "topic_prefix": "whole"}
        with started(target.url, mode="bulk", batch_max_rows=2, **query) as source:
            chunks = take(source)
            assert [len(chunk.rows) for chunk in chunks] == [2, 2, 1]
            assert len(rows_of(take(source, chunks[1].position))) == 5
            assert chunks[0].position == chunks[1].position != chunks[2].position
            target.query("delete from t")
            assert [chunk.drained for chunk in take(source, chunks[2].position)] == [True]

    def test_a_table_of_two_settings_of_tables(self, target: Target) -> None:
        for name in ("orders", "lines", "old_orders"):
            target.query(f'create table "{name}" (id integer primary key)')
        target.query("create view seen as select * from orders")
        for values, found in (
            ({"table_include_list": ("orders", "l.*")}, {"orders", "lines"}),
            ({"table_whitelist": (".*orders",), "table_exclude_list": ("old_.*",)}, {"orders"}),
            ({"table_types": ("TABLE", "VIEW"), "table_exclude_list": (".*_.*",)}, {"orders", "lines", "seen"}),
        ):
            with started(target.url, **values) as source:
                assert {split.id.rpartition(".")[2] for split in source.splits()} == found

    def test_a_view_is_read(self, target: Target) -> None:
        fill(target, [0, 1, 2])
        target.query("create view seen as select id, name from t where id > 0")
        with started(target.url, table_include_list=("seen",), table_types=("VIEW",)) as source:
            assert rows_of(take(source)) == [{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}]

    def test_names_are_quoted(self, target: Target) -> None:
        name = 'sel"ect; drop %s ?'
        quoted = '"sel""ect; drop %s ?"'
        target.query(f'create table {quoted} ("a b" integer primary key, "50%s?" text)')
        target.query(f"insert into {quoted} values (1, 'it''s'), (2, '\\ %s ?')")
        with started(target.url, mode="incrementing", incrementing_column_name="a b", batch_max_rows=1) as source:
            chunks = take(source)
            assert rows_of(chunks) == [{"a b": 1, "50%s?": "it's"}, {"a b": 2, "50%s?": "\\ %s ?"}]
            assert {chunk.topic for chunk in chunks} == {f"shop.{name}"}

    def test_a_key_of_text(self, target: Target) -> None:
        target.query("create table t (code varchar(20) not null primary key, at timestamp not null)")
        codes = ["it's", '"', "a\\b", "", "ä", "Z", "z"]
        for code in codes:
            quoted = code.replace("'", "''")
            target.query(f"insert into t values ('{quoted}', '2024-05-01 10:00:00')")
        with started(target.url, batch_max_rows=1, **BY_TIME) as source:
            chunks = take(source)
            assert Counter(values_of(chunks, "code")) == Counter(codes)
            for number, chunk in enumerate(chunks):
                rest = take(source, json.loads(json.dumps(chunk.position)))
                assert Counter(values_of(chunks[: number + 1] + rest, "code")) == Counter(codes)

    def test_columns_come_and_go(self, target: Target) -> None:
        fill(target, [0])
        told: list[Event] = []
        with started(target.url) as source:
            source.notify = told.append
            [split] = source.splits()
            reading = source.read(split, None)
            assert list(rows_of([next(reading)])[0]) == ["id", "at", "name"]
            assert next(reading).drained
            target.query("alter table t add column extra text")
            target.query("alter table t drop column name")
            target.query("insert into t values (1, '2024-05-01 10:00:00', 'x')")
            assert rows_of([next(reading)])[0]["extra"] == "x"
            assert [event.text for event in told] == [
                f"the table {split.id} has more: extra",
                f"the table {split.id} has no more: name",
            ]
            assert next(reading).drained
            target.query("alter table t rename column id to number")
            with pytest.raises(InvalidConfig, match="id"):
                next(reading)

    @pytest.mark.parametrize("values", [*MODES.values(), {"mode": "bulk"}], ids=[*MODES, "bulk"])
    def test_it_may_fail_where_columns_change(self, target: Target, values: dict[str, Any]) -> None:
        fill(target, [0])
        position: Any = None
        with started(target.url, drift=SourceDrift.FAIL, **values) as source:
            position = json.loads(json.dumps(take(source)[-1].position))
        target.query("alter table t add column extra text")
        with started(target.url, drift=SourceDrift.FAIL, **values) as source:
            [split] = source.splits()
            reading = source.read(split, position)
            if "mode" not in values or values["mode"] != "bulk":
                assert next(reading).drained, "there are no rows with it"
                target.query("insert into t values (1, '2024-05-01 10:01:00', 'n1', 'x')")
            with pytest.raises(InvalidConfig, match=r"drift: .*now at, extra, id, name"):
                next(reading)
        with started(target.url, drift=SourceDrift.ADD, **values) as source:
            chunks = take(source, position)
            assert rows_of(chunks)[-1]["extra"] in ("x", None)
        with started(target.url, drift=SourceDrift.FAIL, **values) as source:
            take(source, json.loads(json.dumps(chunks[-1].position)))

    def test_a_pass_of_one_moment_may_fail_where_columns_change(self, target: Target) -> None:
        fill(target, [0, 1], key="")
        whole = {"mode": "bulk", "batch_max_rows": 1, "drift": SourceDrift.FAIL}
        with started(target.url, **whole) as source:
            chunks = take(source)
        target.query("alter table t add column extra text")
        for chunk in chunks:
            with started(target.url, **whole) as source, pytest.raises(InvalidConfig, match=r"drift: .*now at, extra"):
                take(source, chunk.position)

    def test_positions_of_others_are_refused(self, target: Target) -> None:
        fill(target, [0])
        with started(target.url) as source:
            [split] = source.splits()
            [first, _] = take(source)
            for position in (
                {"table": "another", "at": {"id": 1}},
                {"table": first.position["table"], "at": {"at": "x", "id": 1}},
                {"table": first.position["table"], "at": {"id": [1]}},
                {"file": "x"},
                {"table": first.position["table"], "at": 7},
            ):
                with pytest.raises(InvalidConfig, match=r"position|table"):
                    next(source.read(split, position))

    def test_validate_names_what_is_wrong(self, target: Target, caplog: pytest.LogCaptureFixture) -> None:
        target.query("create table t (id integer primary key, at timestamp, name text not null)")
        table = {"table_include_list": ("t",)}
        for values, said in (
            ({"table_include_list": ("tt",)}, "table.include.list: there is no table tt"),
            ({"table_include_list": ("x.*",)}, "table.include.list: no table matches"),
            ({"mode": "incrementing", "incrementing_column_name": "idd"}, "incrementing.column.name: "),
            ({"mode": "incrementing", "incrementing_column_name": "idd"}, "is id meant?"),
            (BY_BOTH | table, "timestamp.column.name: at of "),
            (BY_BOTH | table, "validate.non.null=false"),
            ({"query": "select nothing from t", "topic_prefix": "q"}, "query: "),
        ):
            [problem] = SqlSource(settings(target.url, **values)).check()
            assert said in problem
        assert SqlSource(settings(target.url, **BY_BOTH, validate_non_null=False)).check() == []
        assert "has no index that begins with at" in caplog.text

    def test_nulls_of_a_query_are_refused(self, target: Target) -> None:
        target.query("create table t (id integer, at timestamp)")
        target.query("insert into t values (1, '2024-05-01 10:00:00'), (null, '2024-05-01 10:00:00'), (2, null)")
        for select, mode in (("select * from t where at is not null", {}), ("select * from t", BY_BOTH)):
            values = {"query": select, "topic_prefix": "q", **mode}
            [problem] = SqlSource(settings(target.url, **values)).check()
            assert "is null, and they would never be read" in problem
            with started(target.url, **values) as source, pytest.raises(InvalidConfig, match="never be read"):
                take(source)
            with started(target.url, validate_non_null=False, **values) as source:
                assert values_of(take(source)) == [1]

    def test_a_database_that_is_not_there(self, target: Target) -> None:
        url = target.url.replace("sqlite:///", "sqlite:///nowhere/").replace("127.0.0.1", "127.0.0.2")
        url = re.sub(r"^(postgresql|mariadb)://.*", r"\1://127.0.0.1:1/x", url)
        source = SqlSource(settings(url))
        assert source.check()[0].startswith("connection.url: ")
        with pytest.raises(RetriableError):
            source.start()
        source.stop()
