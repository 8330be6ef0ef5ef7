"""What a verifier finds and repairs, the same with each database. Its tests run where a subclass gives a ``target``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows
from libs.connect.tests.connectors.sql_sink.suite import (
    ENVELOPES,
    PLACEHOLDER,
    UPSERT_BY_KEY,
    Target,
    envelope,
    settings,
    started,
)

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.connectors.sql_sink.verifying import SqlVerifier
from headrace_connect.plugin import Checked, Rows

BY_OFFSET: dict[str, Any] = {"pk_mode": "kafka"}
TABLE = f'"{TOPIC}"'


def partition_of(one: Rows) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)


def written(target: Target, records: Sequence[Rows], **values: Any) -> None:
    with started(target, **values) as sink:
        ends: dict[TopicPartition, int] = {}
        for one in records:
            ends[partition_of(one)] = one.next_offset
        sink.open(list(ends), 1)
        for one in records:
            sink.write(one)
        sink.commit(ends, None)


def verified(target: Target, records: Sequence[Rows], *, repair: bool = False, **values: Any) -> list[Checked]:
    """Of each batch of records, as a range."""
    verifier = SqlVerifier(settings(target, **values))
    try:
        positions = verifier.begin([P0, P1], repair=repair)
        assert positions == {partition_of(one): one.next_offset for one in records}
        for one in records:
            if verifier.learns:
                verifier.learn(one)
        found = [verifier.check(partition_of(one), [one], one.offsets[0].as_py(), one.next_offset) for one in records]
        verifier.finish()
        return found
    finally:
        verifier.close()


def orders(*numbers: int, start: int = 0, item: str = "tea", partition: TopicPartition = P0) -> Rows:
    values = [{"id": n, "item": item, "price": n / 8} for n in numbers]
    return rows(values, [{"id": n} for n in numbers], start=start, partition=partition)


class VerifySuite:
    """Inherit it, with a fixture ``target``."""

    def test_rows_that_are_as_their_records(self, target: Target) -> None:
        records = [orders(1, 2, 3), orders(2, start=3, item="new")]
        written(target, records, **UPSERT_BY_KEY)
        assert verified(target, records, **UPSERT_BY_KEY) == [Checked(2), Checked(1)]

    def test_what_is_missing_or_different_is_found_and_repaired(self, target: Target) -> None:
        records = [orders(1, 2, 3), orders(2, start=3, item="new")]
        written(target, records, **UPSERT_BY_KEY)
        target.query(f"delete from {TABLE} where id = 1")
        target.query(f"update {TABLE} set item = null where id = 2")
        found = verified(target, records, **UPSERT_BY_KEY)
        assert found == [Checked(2, missing=(0,)), Checked(1, different=(3,))]
        found = verified(target, records, repair=True, **UPSERT_BY_KEY)
        assert [one.repaired for one in found] == [1, 1]
        assert verified(target, records, **UPSERT_BY_KEY) == [Checked(2), Checked(1)]
        assert target.query(f"select id, item from {TABLE} order by id") == [(1, "tea"), (2, "new"), (3, "tea")]

    def test_rows_by_offset(self, target: Target) -> None:
        records = [orders(7, 7, 8)]
        written(target, records, **BY_OFFSET)
        assert verified(target, records, **BY_OFFSET) == [Checked(3)]
        target.query(f"update {TABLE} set price = price + 1 where __connect_offset = 1")
        target.query(f"delete from {TABLE} where __connect_offset = 2")
        assert verified(target, records, **BY_OFFSET) == [Checked(3, missing=(2,), different=(1,))]
        repaired = verified(target, records, repair=True, **BY_OFFSET)
        assert repaired == [Checked(3, missing=(2,), different=(1,), repaired=2)]
        assert verified(target, records, **BY_OFFSET) == [Checked(3)]

    def test_a_row_that_no_record_has_made(self, target: Target) -> None:
        records = [orders(1), orders(2, start=2)]
        written(target, records, **BY_OFFSET)
        columns = "id, item, price, __connect_topic, __connect_partition"
        target.query(f"insert into {TABLE} ({columns}, __connect_offset) select {columns}, 3 from {TABLE} where id = 2")
        verifier = SqlVerifier(settings(target, **BY_OFFSET))
        try:
            verifier.begin([P0], repair=False)
            assert verifier.check(P0, records, 0, 3) == Checked(2)
            assert verifier.check(P0, [], 3, 9) == Checked(unexpected=1)
        finally:
            verifier.close()

    def test_a_repair_deletes_no_row_without_a_record(self, target: Target) -> None:
        """Compaction removes records in the middle."""
        for given, unexpected in ((BY_OFFSET, 2), (UPSERT_BY_KEY, 0)):
            written(target, [orders(1, 2, 3)], **given)
            compacted = orders(2, start=1, item="other")
            verifier = SqlVerifier(settings(target, **given))
            verifier.begin([P0], repair=True)
            if verifier.learns:
                verifier.learn(compacted)
            found = verifier.check(P0, [compacted], 0, 3)
            assert found == Checked(1, different=(1,), unexpected=unexpected, repaired=1)
            verifier.finish()
            verifier.close()
            items = target.query(f"select id, item from {TABLE} order by id")
            assert items == [(1, "tea"), (2, "other"), (3, "tea")]
            target.query(f"drop table {TABLE}")
            target.query("delete from headrace_positions")

    def test_rows_that_records_have_deleted(self, target: Target) -> None:
        given = {**UPSERT_BY_KEY, "delete_enabled": True}
        records = [orders(1, 2), rows(pa.array([None], orders(1).values.type), [{"id": 1}], start=2)]
        written(target, records, **given)
        assert verified(target, records, **given) == [Checked(1), Checked(1)]
        target.query(f"insert into {TABLE} (id, item) values (1, 'back')")
        assert verified(target, records, **given) == [Checked(1), Checked(1, different=(2,))]
        assert verified(target, records, repair=True, **given)[1].repaired == 1
        assert target.query(f"select id from {TABLE}") == [(2,)]

    def test_columns_that_an_update_does_not_say_are_not_compared(self, target: Target) -> None:
        records = [orders(1, 2), orders(1, start=2, item=PLACEHOLDER)]
        written(target, records, **UPSERT_BY_KEY)
        assert verified(target, records, **UPSERT_BY_KEY) == [Checked(1), Checked(1)]
        target.query(f"update {TABLE} set price = 99 where id = 1")
        assert verified(target, records, **UPSERT_BY_KEY) == [Checked(1), Checked(1, different=(2,))]

    def test_rows_before_a_truncation_are_nobodys(self, target: Target) -> None:
        given = {**ENVELOPES, "truncate_enabled": True}
        values = [envelope("c", {"id": 1, "item": "tea"}), envelope("t"), envelope("c", {"id": 2, "item": "new"})]
        records = [rows(values, [{"id": 1}, None, {"id": 2}])]
        written(target, records, **given)
        assert verified(target, records, **given) == [Checked(1)]

    def test_what_does_not_fit_its_table_is_no_row(self, target: Target) -> None:
        records = [orders(1, 2)]
        written(target, records, **UPSERT_BY_KEY)
        wider = rows(
            [{"id": 1, "item": "tea", "price": 0.125, "more": 1}, {"id": 2, "item": "tea", "price": 0.25}],
            [{"id": 1}, {"id": 2}],
        )
        found = verified(target, [wider], **UPSERT_BY_KEY)
        assert (found[0].records, found[0].refused) == (1, 1)
        assert target.query(f"select count(*) from {TABLE}") == [(2,)]

    def test_one_key_in_two_partitions_is_left_out(self, target: Target) -> None:
        records = [orders(1, 2), orders(2, item="other", partition=P1)]
        written(target, records, **UPSERT_BY_KEY)
        assert verified(target, records, **UPSERT_BY_KEY) == [Checked(1), Checked(0)]

    def test_a_repair_keeps_the_positions_until_it_is_over(self, target: Target) -> None:
        records = [orders(1)]
        written(target, records, **UPSERT_BY_KEY)
        target.query(f"delete from {TABLE}")
        verifier = SqlVerifier(settings(target, **UPSERT_BY_KEY))
        verifier.begin([P0], repair=True)
        verifier.learn(records[0])
        assert verifier.check(P0, records, 0, 1).repaired == 1
        with started(target, **UPSERT_BY_KEY) as sink, pytest.raises(Exception, match=r"lock|busy"):
            sink.open([P0], 2)
        verifier.close()
        assert target.query(f"select count(*) from {TABLE}") == [(0,)]

    def test_nothing_is_known_of_a_target_without_positions(self, target: Target) -> None:
        verifier = SqlVerifier(settings(target, **UPSERT_BY_KEY))
        assert verifier.begin([P0], repair=False) == {}
        verifier.close()

    def test_no_table_at_all(self, target: Target) -> None:
        records = [orders(1)]
        written(target, records, **UPSERT_BY_KEY)
        target.query(f"drop table {TABLE}")
        with pytest.raises(InvalidConfig, match="there is no table"):
            verified(target, records, **UPSERT_BY_KEY)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({}, "pk.mode=none"),
            ({"insert_mode": "update", "pk_mode": "record_key"}, "insert.mode=update"),
        ],
    )
    def test_settings_that_do_not_tell_rows(self, target: Target, given: dict[str, Any], says: str) -> None:
        with pytest.raises(InvalidConfig, match=says):
            SqlVerifier(settings(target, **given))


class PreviewSuite:
    """Inherit it, with a fixture ``target``."""

    def test_rows_are_written_and_rolled_back(self, target: Target) -> None:
        sink = SqlSink(settings(target, **UPSERT_BY_KEY, delete_enabled=True))
        gone = rows(pa.array([None], orders(1).values.type), [{"id": 1}], start=2)
        shown = sink.preview([orders(1, 2), gone])
        where = {"topic": TOPIC, "partition": 0, "table": TOPIC}
        assert shown == [
            {**where, "offset": 0, "action": "upsert", "row": {"id": 1, "item": "tea", "price": 0.125}},
            {**where, "offset": 1, "action": "upsert", "row": {"id": 2, "item": "tea", "price": 0.25}},
            {**where, "offset": 2, "action": "delete", "row": {"id": 1}},
        ]
        with pytest.raises(Exception, match=r"no such table|does not exist"):
            target.query(f"select 1 from {TABLE}")

    def test_the_database_says_what_it_refuses(self, target: Target) -> None:
        target.query(f"create table {TABLE} (id integer primary key, item text, price real check (price <> 0.25))")
        written(target, [orders(9)], **UPSERT_BY_KEY)
        shown = SqlSink(settings(target, **UPSERT_BY_KEY)).preview([orders(1, 2, 3)])
        assert [one["action"] for one in shown] == ["upsert", "refused", "upsert"]
        assert "check" in shown[1]["error"].lower()
        assert target.query(f"select id from {TABLE}") == [(9,)]

    def test_truncations(self, target: Target) -> None:
        given = {**ENVELOPES, "truncate_enabled": True}
        first = rows([envelope("c", {"id": 1, "item": "tea"})], [{"id": 1}])
        written(target, [first], **given)
        shown = SqlSink(settings(target, **given)).preview(
            [rows([envelope("t", {"id": 1, "item": ""})], [None], start=1)]
        )
        assert [one["action"] for one in shown] == ["truncate"]
        assert target.query(f"select id from {TABLE}") == [(1,)]
