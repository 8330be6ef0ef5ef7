"""
The positions of a consumer that a transaction commits: what ``producer.transaction(consumer)`` asks of it, in the order
in which it asks; both twins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

import headrace
from headrace import TopicPartition, errors
from headrace.group_types import ConsumerGroupMetadata
from headrace.records import Committed

from ..consumer.transactions import TransactionalHand
from .groups import PROTOCOLS, Member, fill, until

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
TRANSACTIONAL = {"enable_auto_commit": False, "isolation_level": "read_committed"}


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", 2)
    fill(backend, [b"%d" % n for n in range(20)], 2)
    backend.await_group()
    return backend


def member(memory: LabCluster, protocol: str = "server-side", **settings: Any) -> Member:
    return Member(memory, protocol, **{**TRANSACTIONAL, **settings})


def alone(memory: LabCluster, **settings: Any) -> headrace.Consumer:
    """Reads partition 0 without being a member."""
    consumer = memory.consumer(group_id="g", **{**TRANSACTIONAL, "retry_backoff_ms": 10, **settings})
    consumer.assign([ONE])
    return consumer


def offsets(consumer: headrace.Consumer, number: int) -> list[int]:
    found: list[int] = []
    while len(found) < number:
        found += [r.offset for r in consumer.poll(timeout_ms=1000, max_records=number - len(found))]
    return found


_PRODUCERS = count(100)


def commit(memory: LabCluster, consumer: headrace.Consumer) -> dict[TopicPartition, Committed]:
    """As a transaction that ends well."""
    positions = consumer._positions_to_commit()
    hand = TransactionalHand(memory, next(_PRODUCERS))
    for tp, at in positions.items():
        hand.hold_offset(consumer.group_metadata(), tp, at)
    hand.end(commit=True)
    consumer._transaction_committed(positions)
    return positions


# --- who commits ------------------------------------------------------------------------------------------------------


def test_group_metadata_says_who_commits(memory: LabCluster, protocol: str) -> None:
    with member(memory, protocol, group_instance_id="left").consumer as consumer:
        offsets(consumer, 20)
        known = consumer.group_metadata()
        assert known == ConsumerGroupMetadata("g", known.member_id, known.generation, "left")
        assert known.member_id in memory.members("g")
        memory.evict("g", known.member_id)
        with pytest.raises(errors.UnknownMemberId):
            asked_until_it_knows(consumer)


def asked_until_it_knows(consumer: headrace.Consumer) -> None:
    for _ in range(2000):
        consumer.group_metadata()
        threading.Event().wait(0.005)


def test_group_metadata_of_one_that_is_no_member(memory: LabCluster) -> None:
    with alone(memory) as consumer:
        assert consumer.group_metadata() == ConsumerGroupMetadata("g")
    with memory.consumer("t") as loner, pytest.raises(errors.NoGroup, match="group_metadata needs a group"):
        loner.group_metadata()


def test_who_commits_by_itself_is_told_so(memory: LabCluster) -> None:
    told = pytest.raises(errors.InvalidConfig, match="enable_auto_commit=False")
    with memory.consumer("t", group_id="g") as consumer, told:
        consumer._begin_transaction()
    with memory.consumer("t") as loner, pytest.raises(errors.NoGroup):
        loner._begin_transaction()


def test_nobody_else_commits_or_chooses_partitions_meanwhile(memory: LabCluster) -> None:
    with alone(memory) as consumer:
        consumer._begin_transaction()
        for call in (
            consumer.commit,
            consumer.commit_async,
            consumer._begin_transaction,
            lambda: consumer.assign([TWO]),
        ):
            with pytest.raises(errors.InvalidTxnState, match="another transaction"):
                call()
        consumer._transaction_committed({})
        consumer.commit()


# --- what is committed ------------------------------------------------------------------------------------------------


def test_what_was_handed_out_since_the_last_commit_is_committed(memory: LabCluster) -> None:
    with alone(memory) as consumer:
        offsets(consumer, 1)
        consumer._begin_transaction()
        assert consumer._positions_to_commit() == {ONE: Committed(1, 0)}
        for record in consumer:
            if record.offset == 3:
                break
        assert commit(memory, consumer) == {ONE: Committed(4, 0)}
        consumer._begin_transaction()
        assert consumer._positions_to_commit() == {}
        assert len(consumer.poll_table(timeout_ms=1000, max_records=2)) == 2
        assert commit(memory, consumer) == {ONE: Committed(6, 0)}
        assert consumer.committed([ONE])[ONE] == Committed(6, 0)
        consumer._begin_transaction()
        [part] = consumer.poll_batches(timeout_ms=1000, max_rows=1)
        assert (part.table["offset"].to_pylist(), part.next_offset, part.leader_epoch) == ([6], 7, 0)
        assert commit(memory, consumer) == {ONE: Committed(7, 0)}


def test_markers_behind_the_last_record_are_committed_too(memory: LabCluster) -> None:
    memory.create_topic("out", 1)
    hand = TransactionalHand(memory, 3, "out")
    hand.write(b"1")
    hand.end(commit=True)
    with memory.consumer(group_id="g", **TRANSACTIONAL) as consumer:
        out = TopicPartition("out", 0)
        consumer.assign([out])
        consumer._begin_transaction()
        assert offsets(consumer, 1) == [0]
        assert commit(memory, consumer) == {out: Committed(2, 0)}


def test_a_position_that_was_sought_past_records_is_committed(memory: LabCluster) -> None:
    with alone(memory) as consumer:
        consumer._begin_transaction()
        assert offsets(consumer, 2) == [0, 1]
        consumer.seek(ONE, 8)
        assert commit(memory, consumer) == {ONE: Committed(8)}


# --- going back -------------------------------------------------------------------------------------------------------


def test_a_failed_transaction_is_read_again_from_what_is_committed(memory: LabCluster, protocol: str) -> None:
    with member(memory, protocol).consumer as consumer:
        assert len(offsets(consumer, 20)) == 20
        consumer.commit({ONE: 4, TWO: 10})
        consumer.seek(ONE, 4)
        consumer._begin_transaction()
        assert offsets(consumer, 3) == [4, 5, 6]
        consumer._rewind()
        assert (consumer.position(ONE), consumer.position(TWO)) == (4, 10)
        consumer._begin_transaction()
        assert offsets(consumer, 6) == [4, 5, 6, 7, 8, 9]
        commit(memory, consumer)
        assert consumer.committed([ONE])[ONE] == Committed(10, 0)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_where_nothing_is_committed_it_goes_back_to_where_reading_began(memory: LabCluster, reset: str) -> None:
    with alone(memory, auto_offset_reset=reset) as consumer:
        began = consumer.position(ONE)
        fill(memory, [b"a", b"b"], 1)
        consumer._begin_transaction()
        assert offsets(consumer, 2) == [began, began + 1]
        consumer._rewind()
        assert consumer.position(ONE) == began
        assert offsets(consumer, 2) == [began, began + 1]


def test_what_was_sought_before_the_transaction_counts_and_what_was_sought_in_it_fails_with_it(
    memory: LabCluster,
) -> None:
    with alone(memory) as consumer:
        consumer.commit({ONE: 8})
        consumer.seek(ONE, 2)
        consumer._begin_transaction()
        assert offsets(consumer, 2) == [2, 3]
        consumer.seek(ONE, 6)
        assert offsets(consumer, 1) == [6]
        consumer._rewind()
        assert consumer.position(ONE) == 2
        consumer._begin_transaction()
        consumer.seek_to_end(ONE)
        consumer._rewind()
        assert offsets(consumer, 1) == [2]


def test_a_loop_goes_on_with_what_is_read_again(memory: LabCluster) -> None:
    seen: list[int] = []
    with alone(memory) as consumer:
        failed = False
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 0:
                consumer.commit()
            elif record.offset == 3 and not failed:
                failed = True
                consumer._begin_transaction()
                consumer._rewind()
            elif record.offset == 5:
                break
    assert seen == [0, 1, 2, 3, 1, 2, 3, 4, 5]


def test_going_back_with_nothing_handed_out_asks_nobody_and_keeps_what_is_fetched(memory: LabCluster) -> None:
    with alone(memory) as consumer:
        offsets(consumer, 4)
        consumer.commit()
        asked: list[str] = []
        memory.on_request = lambda api, broker, request: asked.append(api)
        consumer._begin_transaction()
        consumer._rewind()
        assert [r.offset for r in consumer.poll(timeout_ms=0, max_records=2)] == [4, 5]
        assert "fetch_offsets" not in asked


def test_what_a_transaction_is_about_to_decide_is_waited_for(memory: LabCluster) -> None:
    """Its outcome is not known here: the position is what the coordinator says once it is decided."""
    hand = TransactionalHand(memory, 7)
    with alone(memory) as consumer:
        consumer._begin_transaction()
        offsets(consumer, 3)
        hand.hold_offset("g", ONE, 3)
        consumer._rewind()
        assert consumer.poll(timeout_ms=60) == []
        hand.end(commit=True)
        assert consumer.position(ONE) == 3
        assert offsets(consumer, 1) == [3]
        consumer._begin_transaction()
        assert consumer._positions_to_commit() == {ONE: Committed(4, 0)}


def test_who_gets_a_partition_waits_for_the_transaction_that_holds_its_position(
    memory: LabCluster, protocol: str
) -> None:
    hand = TransactionalHand(memory, 7)
    hand.hold_offset("g", ONE, 5)
    hand.hold_offset("g", TWO, 6)
    who = member(memory, protocol)
    for _ in range(20):
        assert who.poll() == []
    hand.end(commit=True)
    until(lambda: len(who.values) == 9, who)
    assert set(who.values) == {b"%d" % n for n in (10, 12, 14, 16, 18, 13, 15, 17, 19)}
    who.close()


def test_a_transaction_that_hangs_is_told_in_time(memory: LabCluster) -> None:
    TransactionalHand(memory, 7).hold_offset("g", ONE, 5)
    with memory.consumer(group_id="g", default_api_timeout_ms=1_000, retry_backoff_ms=10, **TRANSACTIONAL) as consumer:
        with pytest.raises(errors.WaitTimedOut, match="within 1000 ms"):
            consumer.committed([ONE])
        with pytest.raises(errors.WaitTimedOut, match="in an open transaction of 'hand-7'"):
            consumer.assign([ONE])


def test_a_coordinator_that_is_away_keeps_positions_back_and_is_told_in_time(memory: LabCluster) -> None:
    with alone(memory, default_api_timeout_ms=1_000) as consumer:
        offsets(consumer, 3)
        memory.refuse()
        consumer._begin_transaction()
        consumer._rewind()
        with pytest.raises(errors.HeadraceError, match=r"t-0 could not be read for .* committed offsets"):
            offsets(consumer, 1)
        memory.accept()
        assert offsets(consumer, 2) == [0, 1]


def test_an_error_that_stays_is_raised_by_the_next_poll(memory: LabCluster) -> None:
    with alone(memory) as consumer:
        offsets(consumer, 3)
        refused = errors.ErrorCode.INVALID_GROUP_ID
        memory.inject("fetch_offsets", Fault(Does.ERROR, code=refused))
        consumer._begin_transaction()
        consumer._rewind()
        with pytest.raises(errors.HeadraceError) as told:
            consumer.poll(timeout_ms=5000)
        assert told.value.code is refused
        assert offsets(consumer, 2) == [0, 1], "and tried again"


# --- rebalances in the middle -----------------------------------------------------------------------------------------


@contextmanager
def newcomer(memory: LabCluster, protocol: str) -> Iterator[Member]:
    """Another member, and a thread that polls for it."""
    other, over = member(memory, protocol), threading.Event()

    def run() -> None:
        while not over.is_set():
            other.poll()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield other
    finally:
        over.set()
        thread.join()
        other.close()


def test_partitions_are_given_up_only_after_the_transaction(memory: LabCluster, protocol: str) -> None:
    first = member(memory, protocol)
    until(lambda: len(first.values) == 20, first)
    first.consumer._begin_transaction()
    with newcomer(memory, protocol) as second:
        until(lambda: first.consumer.state == "rebalancing", first)
        for _ in range(20):
            first.poll()
        assert first.held == {0, 1}
        positions = first.consumer._positions_to_commit()
        assert {tp: at.offset for tp, at in positions.items()} == {ONE: 10, TWO: 10}
        commit(memory, first.consumer)
        until(lambda: len(first.held) == len(second.held) == 1, first)
        assert second.values == [], "it goes on behind what the transaction committed"
        first.close()


def test_what_is_new_is_taken_in_the_middle_of_a_transaction(memory: LabCluster, protocol: str) -> None:
    first = member(memory, protocol)
    with newcomer(memory, protocol) as second:
        until(lambda: len(first.held) == len(second.held) == 1, first)
        first.consumer.seek_to_beginning()
        first.consumer._begin_transaction()
        first.values.clear()
        until(lambda: len(first.values) == 10, first)
    first.values.clear()
    if protocol == "eager":  # everybody gives everything up first, and that waits for the transaction
        first.consumer._transaction_committed({})
    until(lambda: first.held == {0, 1}, first)
    first.consumer._rewind()
    first.close()


def test_a_member_that_was_put_out_cannot_commit_and_reads_again(memory: LabCluster, protocol: str) -> None:
    who = member(memory, protocol)
    until(lambda: len(who.values) == 20, who)
    who.consumer._begin_transaction()
    memory.evict("g", who.consumer.group_metadata().member_id)
    with pytest.raises(errors.IllegalGeneration, match=r"lost t-0, t-1 in the middle"):
        until(lambda: False, who)
    assert ("!", [0, 1]) in who.story
    for call in (who.poll, who.consumer._positions_to_commit):
        with pytest.raises(errors.IllegalGeneration, match="abort it"):
            call()
    who.consumer._rewind()
    who.consumer._begin_transaction()
    who.values.clear()
    until(lambda: len(who.values) == 20, who)
    assert {at.offset for at in who.consumer._positions_to_commit().values()} == {10}
    who.close()


def test_closing_in_the_middle_hangs_nowhere(memory: LabCluster, protocol: str) -> None:
    who = member(memory, protocol)
    until(lambda: len(who.values) == 20, who)
    who.consumer._begin_transaction()
    who.close()
    with pytest.raises(errors.ClientClosed):
        who.consumer._positions_to_commit()
    who.consumer._rewind()
    assert memory.committed("g") == {}


# --- the other twin ---------------------------------------------------------------------------------------------------


@pytest.mark.real_time
async def test_the_asyncio_consumer_goes_back_too(memory: LabCluster) -> None:
    async with memory.aio_consumer("t", group_id="g", retry_backoff_ms=10, **TRANSACTIONAL) as consumer:
        records: list[headrace.Record] = []
        while len(records) < 20:
            records += await consumer.poll(timeout_ms=1000)
        assert consumer.group_metadata().group_id == "g"
        consumer._begin_transaction()
        assert {tp: at.offset for tp, at in consumer._positions_to_commit().items()} == {ONE: 10, TWO: 10}
        consumer._rewind()
        assert [await consumer.position(tp) for tp in (ONE, TWO)] == [0, 0]
        consumer._begin_transaction()
        seen = 0
        async for _ in consumer:
            seen += 1
            if seen == 20:
                break
        positions = consumer._positions_to_commit()
        consumer._transaction_committed(positions)
        assert {at.offset for at in positions.values()} == {10}
