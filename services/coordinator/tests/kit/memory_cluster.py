"""``Cluster``, ``LogEnds`` and ``Measures`` that a test steers; the twins of what talks to controllers and brokers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace

from headrace_common.core.ids import Endpoint, NodeId, Offset, PartitionId, TopicId
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


class MemoryCluster:
    """See ``Cluster``."""

    def __init__(self, *, shards: int = 4, topics: Mapping[str, int] | None = None) -> None:
        self._image = EMPTY_IMAGE
        self._changed = asyncio.Event()
        self.tenure_until_ms: float = math.inf
        internal = [Topic(name, topic_id_of(name), shards, internal=True) for name in INTERNAL_TOPICS.values()]
        self.show(topics={topic.topic_id: topic for topic in internal})
        for topic, partitions in (topics or {}).items():
            self.put_topic(topic, partitions)

    @property
    def image(self) -> ClusterImage:
        """See ``Cluster``."""
        return self._image

    async def images(self) -> AsyncIterator[ClusterImage]:
        """See ``Cluster``."""
        seen = EMPTY_IMAGE
        while True:
            while self._image is seen:
                await self._changed.wait()
            seen = self._image
            yield seen

    async def newest_revision(self) -> int:
        """See ``Revisions``."""
        return self._image.revision

    def show(
        self,
        *,
        topics: Mapping[TopicId, Topic] | None = None,
        shards: Mapping[ShardKey, Shard] | None = None,
        partitions: Mapping[PartitionId, Partition] | None = None,
    ) -> None:
        """The next image."""
        known = self._image.topics if topics is None else topics
        self._image = replace(
            self._image,
            revision=self._image.revision + 1,
            topics=known,
            topic_ids={topic.name: topic.topic_id for topic in known.values()},
            shards=self._image.shards if shards is None else shards,
            partitions=self._image.partitions if partitions is None else partitions,
        )
        self._changed.set()
        self._changed = asyncio.Event()

    def put_topic(self, name: str, partitions: int, generation: int = 0) -> Topic:
        """Make a topic, or give it more partitions; another ``generation`` is another topic of the same name."""
        topic = Topic(name, topic_id_of(name, generation), partitions)
        others = {id: t for id, t in self._image.topics.items() if t.name != name}
        self.show(topics={**others, topic.topic_id: topic})
        return topic

    def lead(self, topic: str, partition: int, broker: int) -> PartitionId:
        """A partition gets a leader, which is registered if it is new here."""
        node = Node(NodeKey(Role.BROKER, NodeId(broker)), Endpoint("broker", broker), bytes(16), broker, fenced=False)
        id = PartitionId(self._image.topic_ids[topic], partition)
        before = self._image.partitions.get(id)
        epoch = 0 if before is None else before.leader_epoch + 1
        led = Partition(id, (node.key.id,), (node.key.id,), node.key.id, epoch, epoch)
        self._image = replace(self._image, nodes={**self._image.nodes, node.key: node})
        self.show(partitions={**self._image.partitions, id: led})
        return id

    def join(self, coordinator: int, at: Endpoint | None = None) -> None:
        """A coordinator is registered, so that others find it by its shards."""
        key = NodeKey(Role.COORDINATOR, NodeId(coordinator))
        node = Node(key, at or Endpoint("coordinator", coordinator), bytes(16), coordinator, fenced=False)
        self._image = replace(self._image, nodes={**self._image.nodes, key: node})
        self.show()

    def give(self, owner: int, *numbers: int, epoch: int | None = None, kind: ShardKind = ShardKind.GROUPS) -> None:
        """Shards to one owner, each under the next epoch, or under ``epoch``."""
        given = {}
        for number in numbers:
            key = ShardKey(kind, number)
            before = self._image.shards.get(key)
            given[key] = Shard(key, NodeId(owner), epoch or (1 if before is None else before.epoch + 1))
        self.show(shards={**self._image.shards, **given})


def topic_id_of(name: str, generation: int = 0) -> TopicId:
    """The id that a topic has here."""
    return TopicId(f"{generation}{name}".encode().ljust(16, b"\0")[-16:])


@dataclass
class MemoryLogEnds:
    """See ``LogEnds``."""

    at: dict[PartitionId, Offset] = field(default_factory=dict)

    async def ends(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, Offset]:
        """See ``LogEnds``."""
        return {id: self.at[id] for id in partitions if id in self.at}


@dataclass
class MemoryMeasures:
    """See ``Measures``."""

    counts: dict[str, int] = field(default_factory=dict)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def appended(self, records: int, ms: float) -> None:
        """See ``Measures``."""
        del records, ms
        self._count("appended")

    def committed(self, ms: float) -> None:
        """See ``Measures``."""
        del ms
        self._count("committed")

    def loaded(self, records: int, ms: float) -> None:
        """See ``Measures``."""
        del records, ms
        self._count("loaded")

    def rebalanced(self) -> None:
        """See ``Measures``."""
        self._count("rebalanced")

    def assigned(self) -> None:
        """See ``Measures``."""
        self._count("assigned")

    def lost(self) -> None:
        """See ``Measures``."""
        self._count("lost")

    def decided(self, ms: float) -> None:
        """See ``Measures``."""
        del ms
        self._count("decided")

    def ended(self, commit: bool, cause: str, ms: float) -> None:
        """See ``Measures``."""
        del ms
        self._count(f"{'commit' if commit else 'abort'} {cause}")
