"""What the sink does, the same with each database. Its tests run where a subclass gives a ``target``."""

from __future__ import annotations

import asyncio
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
from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.core.drift import Drift
from headrace_connect.core.events import Event
from headrace_connect.core.sink_commit import SinkRules
from headrace_connect.core.values.placeholders import placeholder_for
from headrace_connect.plugin import PartitionTaken, RetriableError, RowsRefused
from headrace_connect.runtime.sink_task import SinkOutside, SinkTask, SinkTaskSettings
from headrace_connect.testing.group import MemoryGroup, MemoryTopic
from headrace_connect.testing.memory import JsonPipeline, MemoryDead, MemoryDeadLetters, NoSteps

PLACEHOLDER = "__debezium_unavailable_value"
ORDERS = [{"id": 1, "item": "tea", "price": 1.5}, {"id": 2, "item": None, "price": 2.0}]
KEYS = [{"id": 1}, {"id": 2}]
UPSERT_BY_KEY = {"insert_mode": "upsert", "pk_mode": "record_key"}


ENVELOPES: dict[str, Any] = {**UPSERT_BY_KEY, "value_form": "debezium", "delete_enabled": True}


def envelope(op: str, after: Any = None) -> dict[str, Any]:
    before = {"id": 0, "item": None} if op == "d" else None
    return {"before": before, "after": after, "source": {"table": "orders"}, "op": op, "ts_ms": 1}


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


async def run_task(target: Target, values: list[Any], **given: Any) -> list[Any]:
    """A task that tolerates bad records, until all are committed; the values of its dead letters."""
    topic, dead = MemoryTopic.of(values), MemoryDead()
    rules = SinkRules(keeps_positions=True, tolerates=True, interval_ms=5, retry_timeout_ms=5_000)
    outside = SinkOutside(MemoryGroup(topic), JsonPipeline(), MemoryDeadLetters(dead), SystemClock(), NoSteps())
    task = SinkTask(SqlSink(settings(target, **given)), outside, SinkTaskSettings("shop", 0, rules))

    async def close() -> None:
        while not topic.is_committed:
            await pause_ms(1)
        task.close()

    async with limit_s(60), TaskRunner() as runner:
        runner.start(close(), name="close")
        await task.run()
    return [json.loads(one["value"]) for one in dead.records]


def check_wide_records(target: Target, wide: dict[str, int]) -> None:
    """What does not fit into the table is a dead letter, and nothing of it stays there; all others are written."""
    values: list[Any] = [{"id": 1}, {"id": 2, "x": 1}, {"id": 3, "x": 1} | wide, {"id": 4, "x": 5}, {"id": 5}]
    dead = asyncio.run(run_task(target, values, table_name_format="t"))
    assert [one["id"] for one in dead] == [3]
    assert target.query('select id, x from "t" order by id') == [(1, None), (2, 1), (4, 5), (5, None)]
    with started(target) as sink:
        assert not {column.name for column in sink._database.find_columns(("t",))} & wide.keys()


class SinkSuite:
    """Inherit it, with a fixture ``target``."""

    columns_max = 0
    """Of a table."""

    def test_a_record_with_a_column_too_many_is_a_dead_letter(self, target: Target) -> None:
        columns = ", ".join(f"c{number} smallint" for number in range(self.columns_max - 2))
        target.query(f'create table "t" (id int, {columns})')
        check_wide_records(target, {"y": 1})

    def test_rows_and_their_position_come_together(self, target: Target) -> None:
        with opened(target) as sink:
            sink.write(rows(ORDERS, start=10))
            assert target.query("select count(*) from headrace_positions where position is not null") == [(0,)]
            sink.commit({P0: 12}, None)
        assert target.query(f'select id, item, price from "{TOPIC}" order by id') == [(1, "tea", 1.5), (2, None, 2.0)]
        assert target.query('select connector, topic, "partition", position, epoch from headrace_positions') == [
            ("shop", TOPIC, 0, 12, 1)
        ]
        with started(target) as sink:
            assert sink.open([P0, P1], 2) == {P0: 12}

    def test_positions_are_changed_and_holders_of_before_are_fenced(self, target: Target) -> None:
        with opened(target) as old, started(target) as other, opened(target, name="another") as another:
            old.write(rows(ORDERS, start=10))
            old.commit({P0: 12}, None)
            another.commit({P0: 7}, None)
            old.write(rows(ORDERS, start=12))
            other.rewind({P0: 11, P1: 5})
            with pytest.raises(PartitionTaken):
                old.commit({P0: 14}, None)
            with pytest.raises(PartitionTaken):
                old.open([P0], 1)
            assert other.open([P0, P1], 2) == {P0: 11, P1: 5}, "whose epoch is higher"
            other.write(rows(ORDERS[1:], start=11))
            other.commit({P0: 12}, None)
            another.commit({P0: 8}, None)
        assert target.query(f'select id from "{TOPIC}" order by id') == [(1,), (2,), (2,)], (
            "what comes again is there again"
        )

    def test_positions_are_forgotten_and_moved_ahead(self, target: Target) -> None:
        with opened(target) as sink:
            sink.commit({P0: 12}, None)
            sink.rewind({P0: 100})
            with pytest.raises(PartitionTaken):
                sink.commit({P0: 13}, None)
            assert sink.open([P0], 2) == {P0: 100}
            sink.rewind({P0: None, P1: None})
            assert sink.open([P0, P1], 3) == {}
            sink.commit({P0: 4}, None)
            assert sink.open([P0], 3) == {P0: 4}

    def test_a_table_that_changes_is_told_when_it_is_committed(self, target: Target) -> None:
        with opened(target) as sink:
            told: list[Event] = []
            sink.notify = told.append
            sink.write(rows([{"id": 1}]))
            sink.commit({P0: 1}, None)
            assert told == [], "it is new"
            with pytest.raises(RowsRefused):
                sink.write(rows([{"id": 2, "more": "x"}, None], start=1))
            sink.open([P0], 1)
            sink.write(rows([{"id": 2, "more": "x"}], start=1))
            sink.open([P0], 1)
            sink.write(rows([{"id": 2, "more": "x"}], start=1))
            sink.commit({P0: 2}, None)
            kinds = [(event.kind, event.detail["table"], event.detail["column"]) for event in told]
            assert kinds == [("drift", TOPIC, "more")], "once, though it was undone before"
            sink.write(rows([{"id": 3, "more": "y"}], start=2))
            sink.commit({P0: 3}, None)
        with opened(target, drift=Drift.IGNORE, auto_evolve=False) as sink:
            sink.notify = told.append
            told.clear()
            for at in (3, 4):
                sink.write(rows([{"id": at, "other": 1}], start=at))
            sink.commit({P0: 5}, None)
        assert [event.text for event in told] == [
            f"the table {TOPIC}: has no column 'other', and drift is ignore: the field is left out"
        ]

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

    def test_what_an_update_did_not_touch_stays_as_it_is(self, target: Target) -> None:
        kinds = {"doc": pa.string(), "raw": pa.binary(), "tags": pa.list_(pa.string()), "codes": pa.list_(pa.int32())}
        kinds["price"] = pa.decimal128(38, 2)
        full = {"id": 1, "n": 1, "doc": "long", "raw": b"x", "tags": ["a"], "codes": [1], "price": Decimal("1.50")}
        of = pa.struct([("id", pa.int64()), ("n", pa.int64()), *kinds.items()])
        lacking = {name: placeholder_for(kind, PLACEHOLDER)[0].as_py() for name, kind in kinds.items()}  # type: ignore[index]
        with opened(target, **UPSERT_BY_KEY) as sink:
            sink.write(rows(pa.array([full, {**full, "id": 2}], of), KEYS))
            sink.commit({P0: 2}, None)
            changes = [{**full, **lacking, "n": 2}, {**full, "id": 2, "n": 3, "raw": lacking["raw"], "doc": "new"}]
            sink.write(rows(pa.array([*changes, {**changes[0], "n": 4}], of), [*KEYS, KEYS[0]], start=2))
            sink.commit({P0: 5}, None)
        found = target.query(f'select id, n, doc, raw, tags, codes, price from "{TOPIC}" order by id')
        assert [row[:3] for row in found] == [(1, 4, "long"), (2, 3, "new")]
        assert [bytes(row[3]) for row in found] == [b"x", b"x"]
        loaded = [[json.loads(one) if isinstance(one, str) else one for one in row[4:6]] for row in found]
        assert loaded == [[["a"], [1]]] * 2
        assert [Decimal(row[6]) for row in found] == [Decimal("1.50")] * 2

    def test_records_of_a_key_in_one_batch_that_lack_other_values(self, target: Target) -> None:
        values = [
            {"id": 1, "a": "a1", "b": "b1"},
            {"id": 2, "a": "a2", "b": "b2"},
            {"id": 1, "a": PLACEHOLDER, "b": "b3"},
            {"id": 1, "a": "a4", "b": PLACEHOLDER},
            None,
            {"id": 2, "a": "a6", "b": "b6"},
            {"id": 2, "a": PLACEHOLDER, "b": None},
        ]
        keys = [{"id": id_} for id_ in (1, 2, 1, 1, 2, 2, 2)]
        with opened(target, **UPSERT_BY_KEY, delete_enabled=True) as sink:
            sink.write(rows(values, keys))
            sink.commit({P0: 7}, None)
        assert target.query(f'select id, a, b from "{TOPIC}" order by id') == [(1, "a4", "b3"), (2, "a6", None)]

    def test_a_row_that_is_not_there_cannot_be_left_partly_as_it_is(self, target: Target) -> None:
        values = [
            {"id": 1, "a": "a1"},
            {"id": 2, "a": PLACEHOLDER},
            {"id": 3, "a": "a3"},
            None,
            {"id": 3, "a": PLACEHOLDER},
            {"id": 1, "a": PLACEHOLDER},
        ]
        keys = [{"id": id_} for id_ in (1, 2, 3, 3, 3, 1)]
        with opened(target, **UPSERT_BY_KEY, delete_enabled=True) as sink:
            with pytest.raises(RowsRefused, match="no row of this key") as refused:
                sink.write(rows(values, keys))
            assert sorted(refused.value.reasons) == [1, 4]
            sink.open([P0], 1)
            good = [n for n in range(6) if n not in refused.value.reasons]
            sink.write(rows([values[n] for n in good], [keys[n] for n in good]))
            sink.commit({P0: 6}, None)
        assert target.query(f'select id, a from "{TOPIC}" order by id') == [(1, "a1")]

    def test_update_leaves_as_it_is_what_the_record_does_not_say(self, target: Target) -> None:
        target.query(f'create table "{TOPIC}" (id integer primary key, a text, b text)')
        target.query(f"insert into \"{TOPIC}\" values (1, 'old', 'old')")
        with opened(target, insert_mode="update", pk_mode="record_value", pk_fields=("id",)) as sink:
            values = [{"id": 1, "a": PLACEHOLDER, "b": "new"}, {"id": 2, "a": PLACEHOLDER, "b": "nobody"}]
            sink.write(rows([*values, {"id": 1, "a": PLACEHOLDER, "b": PLACEHOLDER}]))
            sink.commit({P0: 3}, None)
        assert target.query(f'select id, a, b from "{TOPIC}"') == [(1, "old", "new")]

    def test_update_makes_no_row_of_one_that_was_deleted_before_it(self, target: Target) -> None:
        target.query(f'create table "{TOPIC}" (id integer primary key, a text)')
        target.query(f"insert into \"{TOPIC}\" values (1, 'old'), (2, 'old')")
        keys: dict[str, Any] = {"insert_mode": "update", "pk_mode": "record_key", "delete_enabled": True}
        with opened(target, **keys) as sink:
            sink.write(rows([None, {"id": 1, "a": "new"}, {"id": 2, "a": "new"}], [{"id": 1}, {"id": 1}, {"id": 2}]))
            sink.commit({P0: 3}, None)
        assert target.query(f'select id, a from "{TOPIC}"') == [(2, "new")]

    def test_a_key_that_the_source_did_not_have_is_refused(self, target: Target) -> None:
        with opened(target, **UPSERT_BY_KEY) as sink, pytest.raises(RowsRefused, match="of the key") as refused:
            sink.write(rows([{"id": "a", "n": 1}, {"id": PLACEHOLDER, "n": 2}], [{"id": "a"}, {"id": PLACEHOLDER}]))
        assert list(refused.value.reasons) == [1]

    def test_a_record_without_a_value_deletes_its_row(self, target: Target) -> None:
        with opened(target, insert_mode="upsert", pk_mode="record_key", delete_enabled=True) as sink:
            sink.write(rows([None], [{"id": 9}]))  # there is no table yet
            sink.write(rows([*ORDERS, None, ORDERS[0], None], [*KEYS, {"id": 1}, {"id": 1}, {"id": 2}], start=1))
            sink.commit({P0: 6}, None)
            assert target.query(f'select id from "{TOPIC}"') == [(1,)]
            sink.write(rows([None], [{"id": 1}], start=6))
            sink.commit({P0: 7}, None)
        assert target.query(f'select id from "{TOPIC}"') == []

    def test_envelopes_are_rows_deletes_and_truncations_in_their_order(self, target: Target) -> None:
        one, two, three = ({"id": id_, "item": f"i{id_}"} for id_ in (1, 2, 3))
        values = [
            envelope("r", one),
            envelope("c", two),
            envelope("t"),
            envelope("t"),
            envelope("c", three),
            envelope("c", one),
            envelope("u", {"id": 1, "item": "new"}),
            envelope("d"),
            None,
        ]
        keys = [{"id": 1}, {"id": 2}, None, None, {"id": 3}, {"id": 1}, {"id": 1}, {"id": 3}, {"id": 3}]
        with opened(target, **ENVELOPES, truncate_enabled=True) as sink:
            sink.write(rows([envelope("t")], [None]))  # there is no table yet
            sink.write(rows(values, keys, start=1))
            sink.commit({P0: 10}, None)
            assert target.query(f'select id, item from "{TOPIC}"') == [(1, "new")]
            sink.write(rows([envelope("t")], [None], start=10))
            assert sink.open([P0], 1) == {P0: 10}
            sink.write(rows([envelope("c", two)], [{"id": 2}], start=10))
            sink.commit({P0: 11}, None)
            assert target.query(f'select id from "{TOPIC}" order by id') == [(1,), (2,)], "it was not committed"
            sink.write(rows([envelope("t")], [None], start=11))
            sink.commit({P0: 12}, None)
        assert target.query(f'select id from "{TOPIC}"') == []

    def test_truncations_do_nothing_unless_it_is_said(self, target: Target, caplog: pytest.LogCaptureFixture) -> None:
        with opened(target, **ENVELOPES) as sink:
            sink.write(rows([envelope("c", {"id": 1}), envelope("t")], [{"id": 1}, None]))
            sink.commit({P0: 2}, None)
        assert target.query(f'select id from "{TOPIC}"') == [(1,)]
        assert "truncate.enabled is false" in caplog.text

    def test_a_truncation_beside_other_partitions_is_refused(self, target: Target) -> None:
        with started(target, **ENVELOPES, truncate_enabled=True, dead_table="dead") as sink:
            sink.open([P0, P1], 1)
            for partition in (P0, P1):
                values = [envelope("c", {"id": partition.partition}), envelope("t")]
                sink.write(rows(values, [{"id": partition.partition}, None], partition=partition))
            sink.close([P0])
            sink.open([P1], 1)
            values = [envelope("c", {"id": 1}), envelope("t")]
            sink.write(rows(values, [{"id": 1}, None], partition=P1))
            sink.commit({P1: 2}, None)
        assert target.query(f'select id from "{TOPIC}"') == [(1,)]
        ((partition, position, reason),) = target.query('select "partition", position, reason from dead')
        assert (partition, position) == (1, 1)
        assert "several partitions" in reason

    def test_what_is_no_envelope_of_a_row_is_refused(self, target: Target) -> None:
        values = [envelope("c", {"id": 1}), envelope("m"), envelope("c"), envelope("u", {"id": 4}), None]
        with opened(target, **ENVELOPES, dead_table="dead") as sink:
            sink.write(rows(values, [{"id": id_} for id_ in range(1, 6)]))
            sink.write(rows(ORDERS, KEYS, start=5))
            sink.write(rows(["x"], KEYS[:1], start=7))
            sink.commit({P0: 8}, None)
        assert target.query(f'select id from "{TOPIC}" order by id') == [(1,), (4,)]
        dead = target.query("select position, reason, record_value from dead order by position")
        assert [position for position, _, _ in dead] == [1, 2, 5, 6, 7]
        assert [
            said for _, reason, _ in dead[:3] for said in ("'m'", "no row in after", "op is None") if said in reason
        ] == [
            "'m'",
            "no row in after",
            "op is None",
        ]
        assert json.loads(dead[0][2])["op"] == "m", "the record as it came"

    @pytest.mark.parametrize("pk_fields", [(), ("id",), ("id", "code")])
    def test_records_without_a_key_alone_in_their_batch(self, target: Target, pk_fields: tuple[str, ...]) -> None:
        with opened(target, **UPSERT_BY_KEY, pk_fields=pk_fields, delete_enabled=True) as sink:
            with pytest.raises(RowsRefused, match="has no key") as refused:
                sink.write(rows([{"id": 1}, None], [None, None]))
            assert sorted(refused.value.reasons) == [0, 1]
            sink.open([P0], 1)
            sink.write(rows([{"n": 1}], [{"id": 1, "code": 1}]))
            with pytest.raises(RowsRefused, match="has no key") as refused:
                sink.write(rows([{"n": 1}, {"n": 1}], [{"id": 1, "code": 1}, None], start=1))
            assert list(refused.value.reasons) == [1]

    def test_records_without_a_key_make_no_table_without_one(self, target: Target) -> None:
        with opened(target, **UPSERT_BY_KEY, dead_table="dead") as sink:
            sink.write(rows([{"id": 1}], [None]))
            for start in (1, 2):
                sink.write(rows([{"id": 1}], [{"id": 1}], start=start))
            sink.commit({P0: 3}, None)
        assert target.query("select position from dead") == [(0,)]
        assert target.query(f'select id from "{TOPIC}"') == [(1,)]

    def test_deletes_alone_where_the_value_has_the_key(self, target: Target) -> None:
        keys: dict[str, Any] = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": ("id",)}
        with opened(target, **keys) as sink, pytest.raises(RowsRefused, match=r"delete\.enabled") as refused:
            sink.write(rows([None, None]))
        assert sorted(refused.value.reasons) == [0, 1]

    def test_deletes_between_inserts_keep_their_order(self, target: Target) -> None:
        values = [ORDERS[0], None, {"id": 1, "item": "again", "price": 1.0}]
        with opened(target, pk_mode="record_key", delete_enabled=True) as sink:
            sink.write(rows(values, [{"id": 1}] * 3))
            sink.commit({P0: 3}, None)
        assert target.query(f'select item from "{TOPIC}"') == [("again",)]

    def test_a_delete_deletes_nothing_of_the_write_before(self, target: Target) -> None:
        records: list[tuple[Any, int]] = [({"n": 1}, 1), (None, 1), ({"n": 2}, 1), ({"n": 1}, 2), (None, 2)]
        with opened(target, **UPSERT_BY_KEY, delete_enabled=True) as sink:
            for at, (value, id) in enumerate(records):
                sink.write(rows([value], [{"id": id}], start=at))
            sink.commit({P0: len(records)}, None)
        assert target.query(f'select id, n from "{TOPIC}"') == [(1, 2)]

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
        assert any(word in second[4].lower() for word in ("unique", "duplicate"))
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

    @pytest.mark.parametrize("drift", list(Drift))
    def test_what_becomes_of_fields_that_the_table_does_not_have(self, target: Target, drift: Drift) -> None:
        target.query(f'create table "{TOPIC}" (id smallint, gone text)')
        values = [{"id": 1, "new": "x"}, {"id": 2, "new": None}]
        with opened(target, auto_evolve=False, drift=drift, dead_table="dead") as sink:
            if drift is Drift.FAIL:
                with pytest.raises(InvalidConfig, match="no column 'new'"):
                    sink.write(rows(values))
                sink.open([P0], 1)
                sink.write(rows(values[1:], start=1))
            else:
                sink.write(rows(values))
            sink.commit({P0: 2}, None)
        found = [tuple(row) for row in target.query(f'select * from "{TOPIC}" order by id')]
        assert (
            found
            == {
                Drift.ADD: [(1, None, "x"), (2, None, None)],
                Drift.STRICT: [(2, None)],
                Drift.FAIL: [(2, None)],
                Drift.IGNORE: [(1, None), (2, None)],
            }[drift]
        )
        dead = [position for (position,) in target.query("select position from dead")]
        assert dead == ([0] if drift is Drift.STRICT else [])

    def test_drift_and_auto_evolve_say_the_same(self, target: Target) -> None:
        assert settings(target, drift=Drift.ADD).drifts is Drift.ADD
        assert settings(target, auto_evolve=False).drifts is Drift.STRICT
        with pytest.raises(ValueError, match="leave one of them out"):
            settings(target, drift=Drift.IGNORE)

    def test_there_is_no_table(self, target: Target) -> None:
        with opened(target, auto_create=False) as sink, pytest.raises(InvalidConfig, match=r"auto\.create"):
            sink.write(rows(ORDERS))

    def test_upsert_without_a_unique_key(self, target: Target) -> None:
        target.query(f'create table "{TOPIC}" (id bigint, item text, price float)')
        keys = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": ("id",)}
        with opened(target, **keys) as sink, pytest.raises(InvalidConfig, match=r"(?i)on conflict|unique key"):
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
