"""What the sink does, the same with each database. Its tests run where a subclass gives a ``target``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pytest
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.plugin import PartitionTaken, RetriableError, RowsRefused

ORDERS = [{"id": 1, "item": "tea", "price": 1.5}, {"id": 2, "item": None, "price": 2.0}]
KEYS = [{"id": 1}, {"id": 2}]
UPSERT_BY_KEY = {"insert_mode": "upsert", "pk_mode": "record_key"}


class Target(Protocol):
    """An empty database."""

    url: str

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement of one's own and commit it; the rows that it gives."""
        ...


def settings(target: Target, **values: Any) -> SinkSettings:
    made = {"name": "shop", "connection_url": target.url, "auto_create": True, "auto_evolve": True, "timeout_ms": 500}
    return SinkSettings(**made | values)


@contextmanager
def started(target: Target, **values: Any) -> Iterator[SqlSink]:
    sink = SqlSink(settings(target, **values))
    sink.start()
    try:
        yield sink
    finally:
        sink.stop()


@contextmanager
def opened(target: Target, **values: Any) -> Iterator[SqlSink]:
    with started(target, **values) as sink:
        sink.open([P0], 1)
        yield sink


class SinkSuite:
    """Inherit it, with a fixture ``target``."""

    def test_rows_and_their_position_come_together(self, target: Target) -> None:
        with opened(target) as sink:
            sink.write(rows(ORDERS, start=10))
            assert target.query("select count(*) from headrace_positions where position is not null") == [(0,)]
            sink.commit({P0: 12}, None)
        assert target.query(f'select id, item, price from "{TOPIC}" order by id') == [(1, "tea", 1.5), (2, None, 2.0)]
        assert target.query("select connector, topic, partition, position, epoch from headrace_positions") == [
            ("shop", TOPIC, 0, 12, 1)
        ]
        with started(target) as sink:
            assert sink.open([P0, P1], 2) == {P0: 12}

    def test_what_is_not_committed_is_not_there(self, target: Target) -> None:
        with opened(target) as sink:
            sink.write(rows(ORDERS))
            sink.commit({P0: 2}, None)
            sink.write(rows(ORDERS, start=2))
            assert sink.open([P0], 1) == {P0: 2}
            sink.write(rows(ORDERS[:1], start=2))
            sink.commit({P0: 3}, None)
        assert target.query(f'select count(*) from "{TOPIC}"') == [(3,)]

    def test_two_connectors_have_positions_of_their_own(self, target: Target) -> None:
        for name in ("one", "two"):
            with opened(target, name=name, table_name_format=name) as sink:
                sink.write(rows(ORDERS))
                sink.commit({P0: 2}, None)
        assert target.query("select connector, position from headrace_positions order by connector") == [
            ("one", 2),
            ("two", 2),
        ]

    def test_a_newer_holder_takes_the_partition(self, target: Target) -> None:
        with opened(target) as old, started(target) as new:
            assert new.open([P0], 2) == {}
            old.write(rows(ORDERS))
            with pytest.raises(PartitionTaken):
                old.commit({P0: 2}, None)
            new.write(rows(ORDERS))
            new.commit({P0: 2}, None)
            with pytest.raises(PartitionTaken):
                old.open([P0], 1)
        assert target.query(f'select count(*) from "{TOPIC}"') == [(2,)]

    def test_a_position_that_another_has_moved_is_not_written(self, target: Target) -> None:
        with opened(target) as sink:
            sink.write(rows(ORDERS))
            sink.commit({P0: 2}, None)
            target.query("update headrace_positions set position = 7")
            sink.write(rows(ORDERS, start=2))
            with pytest.raises(PartitionTaken):
                sink.commit({P0: 4}, None)
        assert target.query(f'select count(*) from "{TOPIC}"') == [(2,)]

    def test_a_partition_that_is_closed_takes_its_rows_along(self, target: Target) -> None:
        with started(target) as sink:
            sink.open([P0, P1], 1)
            sink.write(rows(ORDERS))
            sink.write(rows(ORDERS, partition=P1))
            sink.close([P1])
            with pytest.raises(RetriableError):
                sink.commit({P0: 2}, None)  # the rows of both were in one transaction
            assert sink.open([P0], 1) == {}
            sink.write(rows(ORDERS))
            sink.commit({P0: 2}, None)
            with pytest.raises(PartitionTaken):
                sink.commit({P1: 2}, None)
        assert target.query(f'select count(*) from "{TOPIC}"') == [(2,)]

    def test_upsert_keeps_the_last_record_of_a_key(self, target: Target) -> None:
        with opened(target, insert_mode="upsert", pk_mode="record_key") as sink:
            sink.write(rows([*ORDERS, {"id": 1, "item": "milk", "price": 3.0}], [*KEYS, {"id": 1}]))
            sink.write(rows([{"id": 2, "item": "jam", "price": 4.0}], [{"id": 2}], start=3))
            sink.commit({P0: 4}, None)
        assert target.query(f'select id, item, price from "{TOPIC}" order by id') == [(1, "milk", 3.0), (2, "jam", 4.0)]

    def test_upsert_of_a_key_alone(self, target: Target) -> None:
        with opened(target, insert_mode="upsert", pk_mode="record_value") as sink:
            for start in (0, 2):
                sink.write(rows([{"id": 1, "n": 2}, {"id": 3, "n": 2}], start=start))
            sink.commit({P0: 4}, None)
        assert target.query(f'select id, n from "{TOPIC}" order by id') == [(1, 2), (3, 2)]

    def test_a_record_without_a_value_deletes_its_row(self, target: Target) -> None:
        with opened(target, insert_mode="upsert", pk_mode="record_key", delete_enabled=True) as sink:
            sink.write(rows([None], [{"id": 9}]))  # there is no table yet
            sink.write(rows([*ORDERS, None, ORDERS[0], None], [*KEYS, {"id": 1}, {"id": 1}, {"id": 2}], start=1))
            sink.commit({P0: 6}, None)
            assert target.query(f'select id from "{TOPIC}"') == [(1,)]
            sink.write(rows([None], [{"id": 1}], start=6))
            sink.commit({P0: 7}, None)
        assert target.query(f'select id from "{TOPIC}"') == []

    def test_deletes_between_inserts_keep_their_order(self, target: Target) -> None:
        values = [ORDERS[0], None, {"id": 1, "item": "again", "price": 1.0}]
        with opened(target, pk_mode="record_key", delete_enabled=True) as sink:
            sink.write(rows(values, [{"id": 1}] * 3))
            sink.commit({P0: 3}, None)
        assert target.query(f'select item from "{TOPIC}"') == [("again",)]

    def test_update_changes_what_is_there(self, target: Target) -> None:
        target.query(f'create table "{TOPIC}" (id integer primary key, item text)')
        target.query(f"insert into \"{TOPIC}\" values (1, 'old')")
        with opened(target, insert_mode="update", pk_mode="record_value", pk_fields=("id",)) as sink:
            sink.write(rows([{"id": 1, "item": "new"}, {"id": 2, "item": "nobody"}, {"id": 1, "item": "last"}]))
            sink.commit({P0: 3}, None)
        assert target.query(f'select id, item from "{TOPIC}"') == [(1, "last")]

    def test_keys_of_kafka(self, target: Target) -> None:
        with opened(target, insert_mode="upsert", pk_mode="kafka") as sink:
            for _ in range(2):
                sink.write(rows(ORDERS, start=5))
            sink.commit({P0: 7}, None)
        columns = "__connect_topic, __connect_partition, __connect_offset, id"
        assert target.query(f'select {columns} from "{TOPIC}" order by id') == [
            (TOPIC, 0, 5, 1),
            (TOPIC, 0, 6, 2),
        ]

    def test_keys_without_fields_have_a_name(self, target: Target) -> None:
        with opened(target, insert_mode="upsert", pk_mode="record_key", pk_fields=("code",)) as sink:
            sink.write(rows([{"n": 1}, {"n": 2}], ["a", "a"]))
            sink.commit({P0: 2}, None)
        assert target.query(f'select code, n from "{TOPIC}"') == [("a", 2)]
        with (
            opened(target, insert_mode="upsert", pk_mode="record_key") as sink,
            pytest.raises(InvalidConfig, match="no fields"),
        ):
            sink.write(rows([{"n": 1}], ["a"]))

    def test_keys_that_are_not_there(self, target: Target) -> None:
        keys = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": ("nope",)}
        with opened(target, **keys) as sink, pytest.raises(InvalidConfig, match="no field 'nope'"):
            sink.write(rows(ORDERS))
        with opened(target, **UPSERT_BY_KEY) as sink, pytest.raises(RowsRefused) as refused:
            sink.write(rows(ORDERS, [{"id": 1}, {"id": None}]))
        assert list(refused.value.reasons) == [1]

    def test_rows_that_the_database_refuses_are_named(self, target: Target) -> None:
        target.query(
            f'create table "{TOPIC}" (id integer primary key, item text not null, price float check (price > 0))'
        )
        values = [{"id": n, "item": "x", "price": 1.0} for n in range(40)]
        values[7]["item"] = None
        values[23]["price"] = -1.0
        values[31]["id"] = 30
        with opened(target, auto_evolve=False, batch_size=16) as sink:
            with pytest.raises(RowsRefused) as refused:
                sink.write(rows(values))
            assert sorted(refused.value.reasons) == [7, 23, 31]
            sink.open([P0], 1)
            sink.write(rows([value for n, value in enumerate(values) if n not in refused.value.reasons]))
            sink.commit({P0: 40}, None)
        assert target.query(f'select count(*), min(price) from "{TOPIC}"') == [(37, 1.0)]

    def test_refused_rows_go_into_a_table_with_the_others(self, target: Target) -> None:
        target.query(f'create table "{TOPIC}" (id integer primary key, item text)')
        values = [{"id": 1, "item": "a"}, {"id": 1, "item": "b"}, {"id": 3, "item": "c"}, None]
        with opened(target, auto_evolve=False, dead_table="dead") as sink:
            sink.write(rows(values, [{"k": n} for n in range(4)], start=5))
            sink.commit({P0: 9}, None)
        assert target.query(f'select id, item from "{TOPIC}" order by id') == [(1, "a"), (3, "c")]
        second, last = target.query("select * from dead order by position")
        assert second[:4] == ("shop", TOPIC, 0, 6)
        assert "unique" in second[4].lower()
        assert (json.loads(second[5]), json.loads(second[6])) == ({"k": 1}, values[1])
        assert (last[3], last[6]) == (8, None)

    def test_tables_are_widened_and_get_columns(self, target: Target) -> None:
        with opened(target) as sink:
            sink.write(rows(pa.array([{"n": 1}], pa.struct([("n", pa.int32())]))))
            sink.write(rows([{"n": 2**40, "new": "x"}], start=1))
            sink.write(rows([{"n": 1.5, "new": None}], start=2))
            sink.commit({P0: 3}, None)
        found = target.query(f'select n, new from "{TOPIC}"')
        assert sorted((float(n), new) for n, new in found) == [(1.0, None), (1.5, None), (float(2**40), "x")]

    def test_a_field_that_has_no_column(self, target: Target) -> None:
        target.query(f'create table "{TOPIC}" (id bigint)')
        with opened(target, auto_evolve=False) as sink:
            with pytest.raises(RowsRefused) as refused:
                sink.write(rows([{"id": 1, "x": 1}, {"id": 2, "x": None}]))
            assert list(refused.value.reasons) == [0]
            assert "auto.evolve" in refused.value.reasons[0]
        with opened(target, auto_evolve=False, fields_whitelist=("id",)) as sink:
            sink.write(rows([{"id": 1, "x": 1}]))
            sink.commit({P0: 1}, None)
        assert target.query(f'select id from "{TOPIC}"') == [(1,)]

    def test_there_is_no_table(self, target: Target) -> None:
        with opened(target, auto_create=False) as sink, pytest.raises(InvalidConfig, match=r"auto\.create"):
            sink.write(rows(ORDERS))

    def test_upsert_without_a_unique_key(self, target: Target) -> None:
        target.query(f'create table "{TOPIC}" (id bigint, item text, price float)')
        keys = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": ("id",)}
        with opened(target, **keys) as sink, pytest.raises(InvalidConfig, match=r"(?i)on conflict"):
            sink.write(rows(ORDERS))

    def test_names_are_quoted(self, target: Target) -> None:
        name = 'sel"ect; drop %s ?'
        with opened(
            target, table_name_format=name, insert_mode="upsert", pk_mode="record_value", pk_fields=("a b",)
        ) as sink:
            sink.write(rows([{"a b": 1, "order": "x", 'q"': 1, "50%s?": True}]))
            sink.write(rows([{"a b": 1, "order": "y", 'q"': 1, "50%s?": None}], start=1))
            sink.commit({P0: 2}, None)
        assert target.query('select "a b", "order", "q""", "50%s?" from "sel""ect; drop %s ?"') == [(1, "y", 1, None)]

    def test_names_that_cannot_be(self, target: Target) -> None:
        with opened(target) as sink, pytest.raises(InvalidConfig, match="name"):
            sink.write(rows([{"x" * 1_001: 1}]))
        with opened(target, table_name_format="t" * 1_001) as sink, pytest.raises(InvalidConfig, match="name"):
            sink.write(rows(ORDERS))
        with opened(target) as sink, pytest.raises(InvalidConfig, match="NUL"):
            sink.write(rows([{"a\0b": 1}]))

    def test_records_without_fields(self, target: Target) -> None:
        with opened(target) as sink:
            sink.write(rows(pa.array(["one", "two"])))
            sink.commit({P0: 2}, None)
            with pytest.raises(RowsRefused):
                sink.write(rows(pa.array([None, "x"]), start=2))
            sink.open([P0], 1)
            with pytest.raises(RowsRefused, match="no field"):
                sink.write(rows([{}, {}], start=2))
        assert target.query(f'select value from "{TOPIC}" order by value') == [("one",), ("two",)]

    def test_tokens_decide_once(self, target: Target) -> None:
        with opened(target) as sink, started(target) as watcher:
            sink.write(rows(ORDERS))
            sink.commit({P0: 2}, b"one\0\xff")
            assert watcher.settle(b"one\0\xff")
            assert not watcher.settle(b"two")
            assert not watcher.settle(b"two")
            sink.write(rows(ORDERS, start=2))
            with pytest.raises(PartitionTaken):
                sink.commit({P0: 4}, b"two")
            assert sink.open([P0], 1) == {P0: 2}
        assert target.query(f'select count(*) from "{TOPIC}"') == [(2,)]

    def test_all_types_come_back(self, target: Target) -> None:
        table = pa.table(
            {
                "small": pa.array([1, None], pa.int8()),
                "big": pa.array([2**64 - 1, None], pa.uint64()),
                "real": pa.array([0.1, None]),
                "exact": pa.array([Decimal("12345678901234567890.123456789"), None]),
                "flag": pa.array([True, None]),
                "raw": pa.array([b"\0\xff'", None]),
                "text": pa.array(['a,"b"\n\\.\t\\N', None]),
                "empty": pa.array(["", None]),
                "day": pa.array([19_000, None], pa.date32()),
                "at": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
                "list": pa.array([[1, 2], None]),
            }
        )
        with opened(target) as sink:
            sink.write(rows(table.to_struct_array().combine_chunks()))
            sink.commit({P0: 2}, None)
        one = target.query(f'select * from "{TOPIC}" where small = 1')[0]
        assert one[0] == 1
        assert Decimal(one[1]) == 2**64 - 1
        assert one[2] == 0.1
        assert Decimal(one[3]) == Decimal("12345678901234567890.123456789")
        assert bool(one[4])
        assert (bytes(one[5]), one[6], one[7]) == (b"\0\xff'", 'a,"b"\n\\.\t\\N', "")
        assert str(one[8]) == "2022-01-08"
        assert str(one[9]).startswith("2023-11-14 22:13:20.123456")
        assert (json.loads(one[10]) if isinstance(one[10], str) else one[10]) == [1, 2]
        assert target.query(f'select * from "{TOPIC}" where small is null') == [(None,) * 11]

    def test_a_failed_write_cannot_be_committed(self, target: Target) -> None:
        with opened(target, pk_mode="record_value") as sink:
            sink.write(rows([{"id": 1}]))
            with pytest.raises(RowsRefused):
                sink.write(rows([{"id": 1}], start=1))
            for _ in range(2):
                with pytest.raises(RetriableError):
                    sink.commit({P0: 1}, None)
                with pytest.raises(RetriableError):
                    sink.write(rows([{"id": 2}], start=2))
        assert target.query("select position from headrace_positions") == [(None,)]

    def test_check_says_what_is_wrong_and_changes_nothing(self, target: Target) -> None:
        assert SqlSink(settings(target)).check() == []
        with pytest.raises(Exception, match=r"headrace_positions"):
            target.query("select * from headrace_positions")

    def test_schema_and_table(self, target: Target) -> None:
        made = settings(target, table_name_format="main.${topic}_x")
        assert made.table_of("a.b") == ("main", "a.b_x")
        assert settings(target).table_of("a.b") == ("a.b",)

    def test_a_partition_that_nobody_opened(self, target: Target) -> None:
        with opened(target) as sink, pytest.raises(PartitionTaken):
            sink.write(rows(ORDERS, partition=TopicPartition(TOPIC, 5)))
