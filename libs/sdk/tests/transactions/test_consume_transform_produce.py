"""Positions in transactions: what was consumed and what was produced count together, or neither does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import Consumer, Producer, TopicPartition, aio
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    IllegalGeneration,
    InvalidTxnState,
    Rejected,
    Then,
    TransactionAbortable,
    UnknownMemberId,
    WaitTimedOut,
)
from headrace.group_types import ConsumerGroupMetadata
from headrace.records import Committed, Record

from .worlds import IMPATIENT, QUICK, consumer, fill, made, producer

FIRST = TopicPartition("in", 0)


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    return made(labs)


def committed(cluster: LabCluster) -> Mapping[TopicPartition, int]:
    """Once what a transaction was about to decide is."""
    while cluster.unstable("g"):
        cluster.pass_time(0.02)
    return {tp: at.offset for tp, at in cluster.committed("g").items()}


async def copy(writer: aio.Producer, reader: aio.Consumer, count: int) -> list[Record]:
    """One transaction that consumes ``count`` records and sends them on."""
    records: list[Record] = []
    async with writer.transaction(reader):
        while len(records) < count:
            records += await reader.poll(timeout_ms=5_000, max_records=count - len(records))
        for record in records:
            await writer.send("one", record.value)
    return records


async def test_positions_are_committed_with_the_transaction(cluster: LabCluster) -> None:
    await fill(cluster, "in", *[b"%d" % n for n in range(10)])
    async with producer(cluster) as writer, consumer(cluster, "in") as reader:
        for _ in range(2):
            await copy(writer, reader, 5)
        assert committed(cluster) == {FIRST: 10}
    assert cluster.committed_values("one", 0) == [b"%d" % n for n in range(10)]


async def test_after_an_abort_the_same_records_are_read_again(cluster: LabCluster) -> None:
    await fill(cluster, "in", *[b"%d" % n for n in range(10)])
    async with producer(cluster) as writer, consumer(cluster, "in") as reader:
        await copy(writer, reader, 3)

        async def fails() -> None:
            async with writer.transaction(reader):
                for record in await reader.poll(timeout_ms=5_000, max_records=4):
                    await writer.send("one", record.value)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fails()
        assert committed(cluster) == {FIRST: 3}
        records = await copy(writer, reader, 7)
    assert [record.offset for record in records] == list(range(3, 10))
    assert cluster.committed_values("one", 0) == [b"%d" % n for n in range(10)]
    assert committed(cluster) == {FIRST: 10}


async def test_a_commit_that_fails_rewinds_too(cluster: LabCluster) -> None:
    await fill(cluster, "in", *[b"%d" % n for n in range(6)])
    async with producer(cluster) as writer, consumer(cluster, "in") as reader:
        cluster.inject("end_txn", Fault(Does.ERROR, code=ErrorCode.TRANSACTION_ABORTABLE))
        with pytest.raises(TransactionAbortable):
            await copy(writer, reader, 6)
        assert committed(cluster) == {}
        await copy(writer, reader, 6)
    assert cluster.committed_values("one", 0) == [b"%d" % n for n in range(6)]


async def test_a_commit_of_unknown_outcome_is_settled_before_the_next(cluster: LabCluster) -> None:
    await fill(cluster, "in", *[b"%d" % n for n in range(6)])
    async with producer(cluster, **IMPATIENT) as writer, consumer(cluster, "in") as reader:
        await writer.init_transactions()
        cluster.on_request = lambda api, *_: Fault(Does.DROP, after=True) if api == "end_txn" else None
        with pytest.raises(WaitTimedOut):
            await copy(writer, reader, 3)
        cluster.on_request = None
        records = await copy(writer, reader, 3)
    assert [record.offset for record in records] == [3, 4, 5], "it was committed, and nobody knew"
    assert cluster.committed_values("one", 0) == [b"%d" % n for n in range(6)]
    assert committed(cluster) == {FIRST: 6}


async def test_a_member_that_was_put_out_commits_nothing(cluster: LabCluster) -> None:
    await fill(cluster, "in", b"0", b"1")
    async with producer(cluster) as writer, consumer(cluster, "in") as reader:

        async def is_put_out() -> None:
            async with writer.transaction(reader):
                for record in await reader.poll(timeout_ms=5_000):
                    await writer.send("one", record.value)
                cluster.evict("g", reader.group_metadata().member_id)

        with pytest.raises(HeadraceError) as raised:
            await is_put_out()
        assert raised.value.then is Then.ABORT
        assert committed(cluster) == {}
        while not committed(cluster):  # it hears of it by its next heartbeat
            with contextlib.suppress(HeadraceError):
                await copy(writer, reader, 2)
    assert cluster.committed_values("one", 0) == [b"0", b"1"]


async def test_two_members_that_share_partitions_copy_each_record_once(cluster: LabCluster) -> None:
    for partition in range(2):
        await fill(cluster, "in", *[b"%d-%d" % (partition, n) for n in range(20)], partition=partition)
    done: list[bytes] = []
    async with producer(cluster, "one") as first, consumer(cluster, "in", max_poll_records=3) as left:
        done += [record.value for record in await copy(first, left, 3)]
        async with producer(cluster, "two") as second, consumer(cluster, "in", max_poll_records=3) as right:
            while sum(committed(cluster).values()) < 40:
                for writer, reader in ((first, left), (second, right)):
                    async with writer.transaction(reader):
                        for record in await reader.poll(timeout_ms=20):
                            await writer.send("one", record.value)
            assert left.assignment().isdisjoint(right.assignment())
            assert left.assignment()
            assert right.assignment()
    values = cluster.committed_values("one", 0)
    assert sorted(v for v in values if v) == sorted(b"%d-%d" % (p, n) for p in range(2) for n in range(20))


# --- by hand -----------------------------------------------------------------------------------------------------


async def test_positions_by_hand_are_pending_until_the_end(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        for commit in (False, True):
            await writer.begin_transaction()
            await writer.send_offsets_to_transaction({FIRST: 4, ("in", 1): Committed(7, 0, "noted")}, "g")
            assert cluster.unstable("g") == {FIRST, ("in", 1)}
            assert cluster.committed("g") == {}
            await (writer.commit_transaction() if commit else writer.abort_transaction())
    assert committed(cluster) == {FIRST: 4, ("in", 1): 7}
    assert cluster.committed("g")[TopicPartition("in", 1)].metadata == "noted"


async def test_a_coordinator_of_groups_that_is_away_is_waited_for(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        cluster.inject(
            "commit_offsets_in_txn",
            Fault(Does.ERROR, code=ErrorCode.NOT_COORDINATOR),
            Fault(Does.DROP, after=True),
            Fault(Does.ERROR, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        )
        await writer.send_offsets_to_transaction({FIRST: 4}, "g")
        await writer.commit_transaction()
    assert committed(cluster) == {FIRST: 4}


async def test_positions_that_nobody_takes_in_time_ask_for_an_abort(cluster: LabCluster) -> None:
    async with producer(cluster, **IMPATIENT) as writer:
        await writer.begin_transaction()
        cluster.refuse()
        with pytest.raises(WaitTimedOut) as raised:
            await writer.send_offsets_to_transaction({FIRST: 4}, "g")
        assert raised.value.then is Then.ABORT
        with pytest.raises(TransactionAbortable):
            await writer.commit_transaction()
        cluster.accept()
        await writer.abort_transaction()


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
async def test_a_refused_member_asks_for_an_abort(cluster: LabCluster, code: ErrorCode) -> None:
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        cluster.inject("commit_offsets_in_txn", Fault(Does.ERROR, code=code))
        with pytest.raises((UnknownMemberId, IllegalGeneration)) as raised:
            await writer.send_offsets_to_transaction({FIRST: 4}, ConsumerGroupMetadata("g", "gone", 3))
        assert raised.value.then is Then.ABORT
        with pytest.raises(TransactionAbortable):
            await writer.commit_transaction()


async def test_a_member_that_only_moved_on_is_asked_again_who_it_is(cluster: LabCluster) -> None:
    generations = iter([3, -1])
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        cluster.inject("commit_offsets_in_txn", Fault(Does.ERROR, code=ErrorCode.STALE_MEMBER_EPOCH))
        seen: list[ConsumerGroupMetadata] = []

        def who() -> ConsumerGroupMetadata:
            seen.append(ConsumerGroupMetadata("other", "", next(generations)))
            return seen[-1]

        await writer._engine.transactions.offsets.add({FIRST: Committed(4)}, who, None)
        await writer.commit_transaction()
    assert [one.generation for one in seen] == [3, -1]
    assert [at.offset for at in cluster.committed("other").values()] == [4]


@pytest.mark.parametrize(
    ("offsets", "member"),
    [({"in": 1}, "g"), ({FIRST: -1}, "g"), ({FIRST: "4"}, "g"), ({FIRST: True}, "g"), ({FIRST: 1}, None)],
)
async def test_what_is_no_position_is_refused_at_once(cluster: LabCluster, offsets: Any, member: Any) -> None:
    async with producer(cluster) as writer, writer.transaction():
        with pytest.raises(Rejected):
            await writer.send_offsets_to_transaction(offsets, member)


async def test_positions_outside_of_a_transaction_are_refused(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        with pytest.raises(InvalidTxnState):
            await writer.send_offsets_to_transaction({FIRST: 1}, "g")


# --- threads -----------------------------------------------------------------------------------------------------


@pytest.mark.real_time
async def test_the_sync_twin(cluster: LabCluster) -> None:
    await fill(cluster, "in", b"0", b"1", b"2")
    settings = {"group_id": "g", "enable_auto_commit": False, "auto_offset_reset": "earliest"}

    def run() -> None:
        with (
            Producer(_transport=cluster.transport(), transactional_id="sync", **QUICK) as writer,
            Consumer("in", _transport=cluster.transport(), **settings) as reader,
        ):

            def fails() -> None:
                with writer.transaction(reader):
                    writer.send_many("one", [record.value for record in reader.poll(timeout_ms=5_000)])
                    raise KeyError("mine")

            with pytest.raises(KeyError, match="mine"):
                fails()
            copied = 0
            while copied < 3:
                with writer.transaction(reader):
                    records = reader.poll(timeout_ms=5_000)
                    copied += len(records)
                    writer.send_many("one", [record.value for record in records])

    await asyncio.to_thread(run)
    assert cluster.committed_values("one", 0) == [b"0", b"1", b"2"]
    assert committed(cluster) == {FIRST: 3}


async def test_a_marker_behind_the_last_record_is_committed_and_then_empty_polls_write_nothing(
    cluster: LabCluster,
) -> None:
    async with producer(cluster, "source") as source, source.transaction():
        await source.send("in", b"x", partition=0)
    async with producer(cluster) as writer, consumer(cluster, "in", isolation_level="read_committed") as reader:
        await copy(writer, reader, 1)

        async def idle() -> int:
            async with writer.transaction(reader):
                assert not await reader.poll(timeout_ms=50)
            return cluster.faults.asked.count("end_txn")

        ends = [await idle() for _ in range(5)]
        assert committed(cluster) == {FIRST: 2}, "behind the marker"
        assert sum((await reader.lag()).values()) == 0
        assert len(set(ends)) == 1, "nothing moves, so nothing is written"
