"""Offsets in transactions in the engine: enrolment beside the events, ends behind proofs, moves, waiting, zombies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from services.coordinator.tests.kit.dialogue import Brokers, Running, running_engine
from services.coordinator.tests.kit.ports import MemoryCluster, MemoryEnrolments, topic_id_of
from services.coordinator.tests.kit.shard_logs import MemoryPartition, MemoryShardLogs

from headrace_common.core.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    ErrorCode,
    HeadraceError,
    InvalidProducerEpoch,
    NetworkFailed,
    NotCoordinator,
    UnknownTopicId,
)
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.core.events import Marker, OffsetToCommit
from headrace_coordinator.core.offsets import Transaction
from headrace_coordinator.engine.coordinator import Committer

SHARDS = 4
GROUP = "g"
SHARD = partition_for(GROUP.encode(), SHARDS)
OTHER = next(g for g in map(str, range(100)) if partition_for(g.encode(), SHARDS) != SHARD)
"""A group of another shard."""
GROUPS_TOPIC = topic_id_of(INTERNAL_TOPICS[ShardKind.GROUPS])
NOBODY = Committer("", None, -1)
TXN = Transaction(7, 0, "tid")
E = ErrorCode


@dataclass
class World:
    """Engines that share logs and coordinators of transactions; each has a cluster of its own."""

    stack: AsyncExitStack
    logs: MemoryShardLogs = field(default_factory=MemoryShardLogs)
    brokers: Brokers = field(default_factory=Brokers)

    async def serving(self, node_id: int = 1, epoch: int = 1, **options: Any) -> Running:
        cluster = MemoryCluster(shards=SHARDS, topics={"t": 3})
        running: Running = await self.stack.enter_async_context(
            running_engine(cluster, self.logs, node_id=node_id, brokers=self.brokers, **options)
        )
        cluster.give(node_id, *range(SHARDS), epoch=epoch)
        await running.until_served(*range(SHARDS))
        return running

    @property
    def enrolments(self) -> MemoryEnrolments:
        return self.brokers.enrolments

    @property
    def partition(self) -> MemoryPartition:
        return self.logs.partition(SHARD, ShardKind.GROUPS)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        yield World(stack)


async def pend(
    running: Running, offset: int, *, partition: int = 0, group_id: str = GROUP, txn: Transaction = TXN
) -> ErrorCode:
    entry = OffsetToCommit("t", partition, offset)
    found = await running.coordinator.commit_in_transaction(group_id, NOBODY, txn, [entry])
    (outcome,) = found.outcomes
    return E.NONE if outcome.error is None else outcome.error.code


def shard(number: int = SHARD) -> PartitionId:
    return PartitionId(GROUPS_TOPIC, number)


async def end(running: Running, *, commit: bool, epoch: int = 1, number: int = SHARD) -> HeadraceError | None:
    ((error,),) = await running.coordinator.end_transactions([(Marker(7, epoch, commit), [shard(number)])])
    return error


async def stable(running: Running, group_id: str = GROUP) -> dict[int, int | ErrorCode]:
    found = await running.coordinator.offsets(group_id, None, None, None, require_stable=True)
    return {
        one.partition: one.error.code if one.error else one.committed.offset
        for one in found.offsets
        if one.error or one.committed
    }


async def test_a_transaction_is_enrolled_once_and_ends(world: World) -> None:
    running = await world.serving()
    assert await pend(running, 5) is E.NONE
    assert await pend(running, 6, partition=1) is E.NONE
    assert world.enrolments.asked == [("tid", 7, 0, SHARD)]
    assert await stable(running) == {0: E.UNSTABLE_OFFSET_COMMIT, 1: E.UNSTABLE_OFFSET_COMMIT}
    assert await end(running, commit=True) is None
    assert await stable(running) == {0: 5, 1: 6}
    assert await end(running, commit=True) is None


async def test_nothing_is_acknowledged_before_it_is_durable(world: World) -> None:
    running = await world.serving()
    world.partition.shut_gate()
    pending = asyncio.ensure_future(pend(running, 5))
    await world.partition.until_waiting()
    assert not pending.done()
    world.partition.open_gate()
    assert await pending is E.NONE
    world.partition.shut_gate()
    ending = asyncio.ensure_future(end(running, commit=True))
    await world.partition.until_waiting()
    assert not ending.done()
    world.partition.open_gate()
    assert await ending is None


async def test_an_end_that_finds_nothing_is_proved(world: World) -> None:
    """A zombie must not acknowledge what the present owner has pending."""
    old = await world.serving()
    new = await world.serving(2, epoch=2)
    assert await pend(new, 5) is E.NONE
    assert isinstance(await end(old, commit=True), NotCoordinator)
    assert await stable(new) == {0: E.UNSTABLE_OFFSET_COMMIT}
    assert await end(new, commit=True) is None
    assert await stable(new) == {0: 5}


async def test_other_groups_go_on_while_a_coordinator_of_transactions_is_slow(world: World) -> None:
    running = await world.serving()
    world.enrolments.shut_gate()
    waiting = asyncio.ensure_future(pend(running, 5))
    await world.enrolments.until_asked()
    found = await running.coordinator.commit(GROUP, NOBODY, [OffsetToCommit("t", 1, 3)])
    assert [one.error for one in found.outcomes] == [None]
    assert await stable(running) == {1: 3}
    assert not waiting.done()
    world.enrolments.open_gate()
    assert await waiting is E.NONE


@pytest.mark.parametrize(
    "error", [NotCoordinator("moved"), CoordinatorLoading("reads"), NetworkFailed("gone"), ConcurrentTransactions("")]
)
async def test_what_passes_is_asked_again(world: World, error: HeadraceError) -> None:
    running = await world.serving()
    world.enrolments.refusals += [error, error]
    assert await pend(running, 5) is E.NONE
    assert len(world.enrolments.asked) == 3


async def test_what_does_not_pass_is_told_at_once(world: World) -> None:
    running = await world.serving()
    world.enrolments.refusals.append(InvalidProducerEpoch("ended"))
    assert await pend(running, 5) is E.INVALID_PRODUCER_EPOCH
    assert len(world.enrolments.asked) == 1
    assert await stable(running) == {}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotCoordinator("moved"), E.COORDINATOR_NOT_AVAILABLE),
        (ConcurrentTransactions("its end takes long"), E.CONCURRENT_TRANSACTIONS),
    ],
)
async def test_a_caller_is_told_before_it_stops_waiting(world: World, error: HeadraceError, told: ErrorCode) -> None:
    """Not NOT_COORDINATOR: that would be about its group."""
    running = await world.serving(append_timeout_ms=300)
    world.enrolments.refusals += [error] * 1_000
    assert await pend(running, 5) is told


async def test_a_coordinator_of_transactions_that_never_answers(world: World) -> None:
    running = await world.serving(append_timeout_ms=1_000)
    world.enrolments.shut_gate()
    assert await pend(running, 5) is E.COORDINATOR_NOT_AVAILABLE
    world.enrolments.open_gate()
    assert await pend(running, 6) is E.NONE
    assert await end(running, commit=True) is None
    assert await stable(running) == {0: 6}


async def test_an_end_takes_away_what_waits_for_its_enrolment(world: World) -> None:
    running = await world.serving()
    world.enrolments.shut_gate()
    waiting = asyncio.ensure_future(pend(running, 5))
    await world.enrolments.until_asked()
    assert await end(running, commit=False) is None
    assert await waiting is E.INVALID_PRODUCER_EPOCH
    world.enrolments.open_gate()
    assert await stable(running) == {}


async def test_an_enrolment_of_before_a_move_is_not_of_after_it(world: World) -> None:
    running = await world.serving()
    world.enrolments.shut_gate()
    waiting = asyncio.ensure_future(pend(running, 5))
    await world.enrolments.until_asked()
    running.cluster.give(1, *range(SHARDS))
    with pytest.raises(NotCoordinator):
        await waiting
    await running.until_served(*range(SHARDS))
    again = asyncio.ensure_future(pend(running, 6))
    await world.enrolments.until_asked(2)
    assert await end(running, commit=False) is None  # had the first answer counted for the second question, it would
    world.enrolments.open_gate()
    assert await again is E.INVALID_PRODUCER_EPOCH
    assert await stable(running) == {}


async def test_what_is_pending_moves_with_its_shard(world: World) -> None:
    first = await world.serving()
    assert await pend(first, 5) is E.NONE
    second = await world.serving(2, epoch=2)
    assert await stable(second) == {0: E.UNSTABLE_OFFSET_COMMIT}
    assert await end(second, commit=True) is None
    third = await world.serving(3, epoch=3)
    assert await stable(third) == {0: 5}


async def test_ends_of_many_transactions_in_many_shards_go_together(world: World) -> None:
    running = await world.serving()
    other = partition_for(OTHER.encode(), SHARDS)
    second = Transaction(8, 3, "second")
    assert await pend(running, 5) is E.NONE
    assert await pend(running, 6, group_id=OTHER) is E.NONE
    assert await pend(running, 7, partition=1, txn=second) is E.NONE
    before = len(world.partition.appends)
    found = await running.coordinator.end_transactions(
        [
            (Marker(7, 1, True), [shard(), shard(other), PartitionId(topic_id_of("t"), 0)]),
            (Marker(8, 3, True), [shard(other), shard()]),
            (Marker(8, 4, False), [shard(), shard(77)]),
        ]
    )
    assert [[None if one is None else type(one) for one in errors] for errors in found] == [
        [None, None, UnknownTopicId],
        [None, InvalidProducerEpoch],
        [None, NotCoordinator],
    ]
    assert len(world.partition.appends) == before + 1
    assert await stable(running) == {0: 5}
    assert await stable(running, OTHER) == {0: 6}


async def test_an_end_waits_for_the_log_and_its_outcome_is_unknown(world: World) -> None:
    running = await world.serving(append_timeout_ms=1_000)
    assert await pend(running, 5) is E.NONE
    world.partition.shut_gate()
    assert isinstance(await end(running, commit=True), CoordinatorNotAvailable)
    world.partition.open_gate()
    assert await end(running, commit=True) is None
    assert await stable(running) == {0: 5}


async def test_the_whole_way_with_the_coordinator_of_transactions_of_the_same_process(world: World) -> None:
    running = await world.serving(near=True)
    running.cluster.give(1, *range(SHARDS), kind=ShardKind.TRANSACTIONS)
    await running.until_served(*range(SHARDS), kind=ShardKind.TRANSACTIONS)
    producer = (await running.transactions.init("tid", 60_000, None)).producer
    for round_, commit in enumerate([True, False, True]):
        txn = Transaction(producer.producer_id, producer.epoch, "tid")
        assert await pend(running, round_, txn=txn) is E.NONE
        following = await running.transactions.end("tid", producer, commit=commit)
        while running.driver.endings:
            await asyncio.sleep(0)
        assert await pend(running, 99, txn=txn) is E.INVALID_PRODUCER_EPOCH  # late
        producer = following
        assert await stable(running) == {0: round_ if commit else 0}
    assert not running.brokers.markers.written, "one process tells itself"
