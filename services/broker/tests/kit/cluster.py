"""
The port of a broker to its cluster, which a test drives by hand: it says which image comes next.

Nothing is decided here: what a broker asks for is noted and granted, and no other broker is there whom it concerns.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace_broker.core.leadership import Proposal
from headrace_broker.ports import IsrDecision
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    INTERNAL_TOPICS,
    ClusterImage,
    Node,
    NodeKey,
    Partition,
    Role,
    Shard,
    ShardKey,
    ShardKind,
    Topic,
)

INCARNATION = b"standalone-test!"
CLUSTER_ID = "standalone"
BROKER_ID = NodeId(1)
COORDINATOR_ID = NodeId(7)
NOWHERE = Endpoint("127.0.0.1", 1)


def topic_id_of(name: str) -> TopicId:
    """The id that a topic of this name has in these clusters."""
    return TopicId(hashlib.md5(name.encode(), usedforsecurity=False).digest())


@dataclass
class FakeCluster:
    """A cluster whose image a test sets."""

    image: ClusterImage = EMPTY_IMAGE
    confirmed: list[TopicId] = field(default_factory=list)
    removed: list[PartitionId] = field(default_factory=list)
    next_producer_id: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def show(self, image: ClusterImage) -> None:
        """The next image; its revision is set here."""
        self.image = replace(image, revision=self.image.revision + 1)
        self._changed.set()
        self._changed = asyncio.Event()

    async def images(self) -> AsyncIterator[ClusterImage]:
        """See ``Cluster``."""
        seen = EMPTY_IMAGE
        while True:
            while self.image is seen:
                await self._changed.wait()
            seen = self.image
            yield seen

    broker_epoch: int = 1
    session_ms: float = 9_000.0
    proposed: list[tuple[PartitionId, Proposal]] = field(default_factory=list)

    async def alter_partitions(self, proposals: Sequence[tuple[PartitionId, Proposal]]) -> list[IsrDecision]:
        """Notes them and grants each."""
        self.proposed.extend(proposals)
        granted = []
        for id, proposal in proposals:
            isr = tuple(broker for broker, _ in proposal.isr)
            old = self.image.partitions[id]
            granted.append(replace(old, isr=isr, partition_epoch=old.partition_epoch + 1))
        self.show(replace(self.image, partitions={**self.image.partitions, **{p.id: p for p in granted}}))
        return [IsrDecision(current=partition) for partition in granted]

    disk_low: bool = False

    def say_disk_low(self, low: bool) -> None:
        """See ``Cluster``."""
        self.disk_low = low

    async def confirm_deletions(self, topic_ids: Sequence[TopicId], partitions: Sequence[PartitionId] = ()) -> None:
        """See ``Cluster``."""
        self.confirmed.extend(topic_ids)
        self.removed.extend(partitions)

    async def allocate_producer_ids(self) -> range:
        """See ``Cluster``."""
        first, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1000
        return range(first, first + 1000)

    ensured: int = 0
    ensuring: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a test: internal topics are made; until then whoever asks for one waits."""
    not_ensured: HeadraceError | None = None

    async def ensure_internal_topic(self, kind: ShardKind) -> int:
        """Makes it with four partitions led by broker 1; its shards have no owner."""
        self.ensured += 1
        await self.ensuring.wait()
        if self.not_ensured is not None:
            raise self.not_ensured
        made = image_of({INTERNAL_TOPICS[kind]: 4})
        self.show(
            replace(
                self.image,
                topics={**self.image.topics, **made.topics},
                topic_ids={**self.image.topic_ids, **made.topic_ids},
                partitions={**self.image.partitions, **made.partitions},
            )
        )
        return self.image.revision


def image_of(
    topics: Mapping[str, int],
    *,
    configs: Mapping[str, Mapping[str, str]] | None = None,
    endpoint: Endpoint = NOWHERE,
    leader_epoch: int = 0,
    nodes: Sequence[Node] = (),
) -> ClusterImage:
    """An image in which broker 1 leads all partitions of ``topics`` (name to partition count)."""
    node = Node(NodeKey(Role.BROKER, BROKER_ID), endpoint, INCARNATION, 1, fenced=False, version="0.1.0")
    made = [
        Topic(name, topic_id_of(name), count, dict((configs or {}).get(name, {})), name in INTERNAL_TOPICS.values())
        for name, count in topics.items()
    ]
    partitions = [
        Partition(PartitionId(topic.topic_id, n), (BROKER_ID,), (BROKER_ID,), BROKER_ID, leader_epoch, leader_epoch)
        for topic in made
        for n in range(topic.partition_count)
    ]
    return replace(
        EMPTY_IMAGE,
        incarnation=b"i" * 16,
        revision=1,
        cluster_id=CLUSTER_ID,
        nodes={node.key: node} | {other.key: other for other in nodes},
        topics={topic.topic_id: topic for topic in made},
        topic_ids={topic.name: topic.topic_id for topic in made},
        partitions={partition.id: partition for partition in partitions},
    )


def with_coordinator(image: ClusterImage, at: Endpoint = NOWHERE, shards: int = 4) -> ClusterImage:
    """``image`` with coordinator 7, which has all shards of ``__transaction_state``; the topic has no logs."""
    kind = ShardKind.TRANSACTIONS
    made = image_of({INTERNAL_TOPICS[kind]: shards})
    node = Node(NodeKey(Role.COORDINATOR, COORDINATOR_ID), at, b"coordinator-test", 1, fenced=False)
    owned = {ShardKey(kind, n): Shard(ShardKey(kind, n), COORDINATOR_ID, 1) for n in range(shards)}
    return replace(
        image,
        nodes={**image.nodes, node.key: node},
        topics={**image.topics, **made.topics},
        topic_ids={**image.topic_ids, **made.topic_ids},
        shards={**image.shards, **owned},
    )
