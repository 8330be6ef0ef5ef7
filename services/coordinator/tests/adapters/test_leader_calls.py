"""Who is asked, how often, and when an attempt is given up."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from libs.common.tests.kit.clock import FakeClock
from services.coordinator.tests.kit.ports import MemoryCluster

from headrace_common.core.errors import (
    FencedWriter,
    HeadraceError,
    LeaderNotAvailable,
    NetworkFailed,
    NotEnoughReplicas,
    NotLeader,
    RecordTooLarge,
    StorageFailed,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Node, NodeKey, Partition, Role, Topic
from headrace_coordinator.adapters.leader_calls import PAUSE_MS_MAX, Leader, LeaderCalls

TOPIC = Topic("t", TopicId(b"t" * 16), 1)
ID = PartitionId(TOPIC.topic_id, 0)


class Led(MemoryCluster):
    """A cluster of two brokers; a test says who leads."""

    def lead(self, leader: int, epoch: int) -> None:
        nodes = [Node(NodeKey(Role.BROKER, NodeId(n)), Endpoint("h", n), b"i" * 16, 1) for n in (1, 2)]
        partition = Partition(ID, (NodeId(1), NodeId(2)), (NodeId(1),), NodeId(leader), epoch, epoch)
        image: ClusterImage = replace(
            EMPTY_IMAGE,
            revision=self._image.revision + 1,
            nodes={node.key: node for node in nodes},
            topics={TOPIC.topic_id: TOPIC},
            topic_ids={"t": TOPIC.topic_id},
            partitions={ID: partition},
        )
        self._image = image
        self._changed.set()
        self._changed = asyncio.Event()


@pytest.mark.parametrize(
    "error",
    [
        NotLeader("moved"),
        LeaderNotAvailable("none"),
        NetworkFailed("lost"),
        NotEnoughReplicas("few"),
        StorageFailed("it stops"),
        UnknownTopicOrPartition("not yet"),
    ],
)
async def test_what_passes_is_tried_again_after_a_pause(error: HeadraceError) -> None:
    cluster, clock = Led(), FakeClock()
    cluster.lead(1, 0)
    failures = [error, error]

    async def attempt(leader: Leader) -> int:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        return leader.epoch

    asked = asyncio.ensure_future(LeaderCalls("t", 0, cluster, clock).ask(attempt))
    await clock.until_asleep()
    assert (asked.done(), len(failures)) == (False, 1), "it pauses first"
    await clock.advance(4 * PAUSE_MS_MAX)
    assert await asked == 0
    assert not failures


@pytest.mark.parametrize("error", [FencedWriter("late"), RecordTooLarge("huge")])
async def test_what_waiting_does_not_overcome_is_raised(error: HeadraceError) -> None:
    cluster = Led()
    cluster.lead(1, 0)

    async def attempt(leader: Leader) -> None:
        del leader
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)):
        await LeaderCalls("t", 0, cluster, FakeClock()).ask(attempt)


async def test_an_attempt_is_given_up_when_another_broker_leads() -> None:
    cluster, clock = Led(), FakeClock()
    cluster.lead(1, 0)
    asked_of: list[Leader] = []
    began = asyncio.Event()

    async def attempt(leader: Leader) -> Endpoint:
        asked_of.append(leader)
        if leader.endpoint.port == 1:
            began.set()
            await asyncio.Event().wait()  # paused: it never answers
        return leader.endpoint

    asked = asyncio.ensure_future(LeaderCalls("t", 0, cluster, clock).ask(attempt))
    await began.wait()
    cluster.lead(2, 1)
    assert await asked == Endpoint("h", 2), "without a pause: the new leader is known"
    assert [leader.epoch for leader in asked_of] == [0, 1]


async def test_a_leader_that_appears_ends_the_pause() -> None:
    cluster, clock = Led(), FakeClock()
    cluster.lead(NO_NODE, 0)

    async def attempt(leader: Leader) -> int:
        await asyncio.sleep(0)
        return leader.epoch

    asked = asyncio.ensure_future(LeaderCalls("t", 0, cluster, clock).ask(attempt))
    await clock.until_asleep()
    cluster.lead(1, 5)
    assert await asked == 5, "without the clock having moved"
