"""What readers see of transactions, by isolation level: records, positions, ends and lag."""

from __future__ import annotations

import time
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

import headrace
from headrace import TopicPartition

from .transactions import TransactionalHand, plain

T0 = TopicPartition("t", 0)
COMMITTED = {"isolation_level": "read_committed"}


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", 1)
    return backend


def read(consumer: headrace.Consumer, count: int, *, way: str = "poll") -> list[bytes]:
    """Poll until there are ``count``."""
    values: list[bytes] = []
    while len(values) < count:
        match way:
            case "table":
                values += consumer.poll_table(timeout_ms=1000)["value"].to_pylist()
            case "batches":
                for part in consumer.poll_batches(timeout_ms=1000):
                    values += part.table["value"].to_pylist()
            case _:
                values += [record.value for record in consumer.poll(timeout_ms=1000)]
    return values


def eventually_at(position: int, consumer: headrace.Consumer) -> None:
    """Poll until it is there; no record comes on the way."""
    deadline = time.monotonic() + 20
    while consumer.position(T0) != position:
        assert consumer.poll(timeout_ms=5) == []
        assert time.monotonic() < deadline, consumer.health()


def mixed(memory: LabCluster) -> None:
    """plain, two transactions that overlap (7 aborts, 8 commits), plain, one that stays open, plain."""
    seven, eight, nine = (TransactionalHand(memory, number) for number in (7, 8, 9))
    plain(memory, b"a")  # 0
    seven.write(b"x1", b"x2")  # 1, 2
    eight.write(b"b")  # 3
    plain(memory, b"c")  # 4
    seven.write(b"x3")  # 5
    seven.end(commit=False)  # 6
    seven.write(b"d")  # 7
    seven.end(commit=True)  # 8
    eight.write(b"e")  # 9
    eight.end(commit=True)  # 10
    plain(memory, b"f")  # 11
    nine.write(b"y")  # 12
    plain(memory, b"g")  # 13


@pytest.mark.parametrize("way", ["poll", "table", "batches"])
@pytest.mark.parametrize(
    ("settings", "seen", "end"),
    [(COMMITTED, b"abcdef", 12), ({}, [b"a", b"x1", b"x2", b"b", b"c", b"x3", b"d", b"e", b"f", b"y", b"g"], 14)],
)
def test_each_isolation_level_sees_its_records_in_order_and_ends_at_its_end(
    memory: LabCluster, settings: dict[str, Any], seen: bytes | list[bytes], end: int, way: str
) -> None:
    mixed(memory)
    expected = [bytes([value]) for value in seen] if isinstance(seen, bytes) else seen
    with memory.consumer("t", **settings) as consumer:
        assert read(consumer, len(expected), way=way) == expected
        assert consumer.position(T0) == end
        assert consumer.end_offsets([T0]) == {T0: end}
        assert consumer.lag() == {T0: 0}
        assert consumer.beginning_offsets([T0]) == {T0: 0}


def test_what_an_open_transaction_holds_back_comes_when_it_is_decided(memory: LabCluster) -> None:
    hand = TransactionalHand(memory, 7)
    hand.write(b"1")
    plain(memory, b"2")
    with memory.consumer("t", **COMMITTED) as consumer:
        assert consumer.poll(timeout_ms=20) == []
        assert (consumer.position(T0), consumer.lag()) == (0, {T0: 0})
        hand.end(commit=True)
        assert read(consumer, 2) == [b"1", b"2"]


def test_positions_reach_the_end_of_a_log_in_which_nothing_is_for_this_reader(memory: LabCluster) -> None:
    hand = TransactionalHand(memory, 7)
    with memory.consumer("t", **COMMITTED) as consumer:
        for end in (3, 6, 9):
            hand.write(b"x", b"y")
            hand.end(commit=False)
            eventually_at(end, consumer)
            assert consumer.lag() == {T0: 0}
        plain(memory, b"z")
        assert read(consumer, 1) == [b"z"]


def test_a_position_is_behind_markers_as_soon_as_the_records_before_them_were_handed_out(memory: LabCluster) -> None:
    hand = TransactionalHand(memory, 7)
    hand.write(b"1", b"2")
    hand.end(commit=True)
    hand.write(b"x")
    hand.end(commit=False)
    with memory.consumer("t", **COMMITTED) as consumer:
        assert [record.offset for record in consumer.poll(timeout_ms=5000, max_records=1)] == [0]
        assert consumer.position(T0) == 1
        for record in consumer:
            assert record.offset == 1
            break
        assert consumer.position(T0) == 5


def test_seeking_into_an_aborted_transaction_leads_behind_it(memory: LabCluster) -> None:
    mixed(memory)
    with memory.consumer("t", **COMMITTED) as consumer:
        read(consumer, 6)
        for offset, rest in ((2, b"bcdef"), (5, b"def"), (6, b"def"), (8, b"ef")):
            consumer.seek(T0, offset)
            assert b"".join(read(consumer, len(rest))) == rest


def test_a_position_above_the_last_stable_offset_waits_there(memory: LabCluster) -> None:
    hand = TransactionalHand(memory, 7)
    hand.write(b"1", b"2")
    plain(memory, b"3")
    with memory.consumer("t", **COMMITTED) as consumer:
        consumer.seek(T0, 2)
        assert consumer.poll(timeout_ms=20) == []
        assert (consumer.position(T0), consumer.lag()) == (2, {T0: 0})
        hand.end(commit=False)
        assert read(consumer, 1) == [b"3"]


def test_times_are_looked_for_below_the_last_stable_offset(memory: LabCluster) -> None:
    plain(memory, b"1")  # at 1000 ms
    hand = TransactionalHand(memory, 7)
    hand.write(b"2", timestamp_ms=2000)
    with memory.consumer("t", **COMMITTED) as committed, memory.consumer("t") as uncommitted:
        assert committed.offsets_for_times({T0: 1500}) == {T0: None}
        found = uncommitted.offsets_for_times({T0: 1500})[T0]
        assert found is not None
        assert found.offset == 1
        for consumer, offset in ((committed, 1), (uncommitted, 2)):
            consumer.seek_to_end()
            assert consumer.position(T0) == offset


@pytest.mark.real_time
async def test_the_asyncio_consumer_reads_the_same(memory: LabCluster) -> None:
    mixed(memory)
    async with memory.aio_consumer("t", **COMMITTED) as consumer:
        values = []
        async for record in consumer:
            values.append(record.value)
            if len(values) == 6:
                break
        assert b"".join(values) == b"abcdef"
        assert await consumer.position(T0) == 12
        assert (await consumer.end_offsets([T0]), await consumer.lag()) == ({T0: 12}, {T0: 0})
        assert await consumer.offsets_for_times({T0: 5000}) == {T0: None}
