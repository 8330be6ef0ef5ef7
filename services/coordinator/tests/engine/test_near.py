"""What one process keeps itself is asked without a wire; everything else goes over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from services.coordinator.tests.kit.dialogue import Running, running_engine
from services.coordinator.tests.kit.ports import MemoryCluster, MemoryEnrolments, MemoryMarkers, topic_id_of
from services.coordinator.tests.kit.shard_logs import MemoryShardLogs

from headrace_common.core.errors import CoordinatorNotAvailable, InvalidProducerEpoch
from headrace_common.core.ids import Endpoint, NodeId, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, Role, ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.core.effects import OffsetOutcomes
from headrace_coordinator.core.events import OffsetToCommit
from headrace_coordinator.core.offsets import Transaction
from headrace_coordinator.engine.coordinator import Committer
from headrace_coordinator.engine.near import NearEnrolments, NearMarkers
from headrace_coordinator.ports import Destination, Marker

SHARDS = 2
SHARD = partition_for(b"g", SHARDS)
OWN = Endpoint("own", 1)
GROUPS_TOPIC = topic_id_of(INTERNAL_TOPICS[ShardKind.GROUPS])
HERE, THERE = PartitionId(GROUPS_TOPIC, SHARD), PartitionId(GROUPS_TOPIC, 1 - SHARD)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """It has all shards of transactions, and that of ``g``."""
    cluster = MemoryCluster(shards=SHARDS, topics={"t": 1})
    cluster.join(1, OWN)
    cluster.give(1, SHARD)
    cluster.give(2, 1 - SHARD)
    cluster.give(1, *range(SHARDS), kind=ShardKind.TRANSACTIONS)
    async with running_engine(cluster, MemoryShardLogs()) as world:
        await world.until_served(SHARD)
        await world.until_served(*range(SHARDS), kind=ShardKind.TRANSACTIONS)
        yield world


async def pend(running: Running) -> OffsetOutcomes:
    entry = OffsetToCommit("t", 0, 5)
    return await running.coordinator.commit_in_transaction(
        "g", Committer("", None, -1), Transaction(7, 0, "x"), [entry]
    )


async def test_ends_for_own_shards_are_told_at_once(running: Running) -> None:
    far = MemoryMarkers()
    near = NearMarkers(far, running.cluster, NodeId(1), running.coordinator)
    await pend(running)
    asked = [(Marker(7, 0, True), [HERE]), (Marker(7, 1, True), [HERE, THERE])]
    found = await near.write(Destination(Role.COORDINATOR, OWN), asked)
    kinds = [[None if error is None else type(error).__name__ for error in one] for one in found]
    assert kinds == [["InvalidProducerEpoch"], [None, "NotCoordinator"]]
    assert far.written == []
    stable = await running.coordinator.offsets("g", None, None, None, require_stable=True)
    assert [one.committed.offset for one in stable.offsets if one.committed] == [5]


@pytest.mark.parametrize(
    "to", [Destination(Role.BROKER, OWN), Destination(Role.COORDINATOR, Endpoint("other", 1))], ids=str
)
async def test_ends_for_others_go_over_the_wire(running: Running, to: Destination) -> None:
    far = MemoryMarkers()
    near = NearMarkers(far, running.cluster, NodeId(1), running.coordinator)
    await near.write(to, [(Marker(7, 1, True), [HERE])])
    assert far.written == [(HERE, Marker(7, 1, True))]


async def test_own_transactions_are_asked_here_and_others_where_they_are(running: Running) -> None:
    far = MemoryEnrolments()
    near = NearEnrolments(far, running.cluster)
    await near.enrol("x", 7, 0, SHARD)  # not wired yet: as if it were elsewhere
    near.own = running.transactions
    producer = (await running.transactions.init("x", 60_000, None)).producer
    await near.enrol("x", producer.producer_id, producer.epoch, SHARD)
    with pytest.raises(InvalidProducerEpoch):
        await near.enrol("x", producer.producer_id, producer.epoch + 1, SHARD)
    assert len(far.asked) == 1
    running.cluster.give(2, *range(SHARDS), kind=ShardKind.TRANSACTIONS)
    while running.transactions.keeps("x"):
        await asyncio.sleep(0)
    await near.enrol("x", producer.producer_id, producer.epoch, SHARD)
    assert len(far.asked) == 2


async def test_the_topic_of_groups_may_be_gone(running: Running) -> None:
    near = NearEnrolments(MemoryEnrolments(), running.cluster)
    near.own = running.transactions
    others = {id: topic for id, topic in running.cluster.image.topics.items() if id != GROUPS_TOPIC}
    running.cluster.show(topics=others)
    with pytest.raises(CoordinatorNotAvailable, match="topic of groups"):
        await near.enrol("x", 7, 0, SHARD)
