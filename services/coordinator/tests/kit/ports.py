"""
The ports of a coordinator's engine, which a test drives by hand: images, questions to others, what is measured.

Nothing is decided here; what everybody is told unless a test says otherwise is the plainest answer there is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from headrace_common.core.errors import HeadraceError, LeaderNotAvailable
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
from headrace_coordinator.ports import Destination, Marker, MarkerErrors


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

    def govern(self, rows: Mapping[str, bytes]) -> None:
        """Who may do what; see ``access.rows``."""
        self._image = replace(self._image, access=rows)
        self.show()

    def rise(self, level: int) -> None:
        """All nodes know this feature level."""
        self._image = replace(self._image, feature_level=level)
        self.show()

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


@dataclass(kw_only=True)
class Gated:
    """What is asked waits before a gate, which is open at first."""

    _gate: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._gate.set()

    def shut_gate(self) -> None:
        """It waits from now on."""
        self._gate.clear()

    def open_gate(self) -> None:
        """It goes on."""
        self._gate.set()


@dataclass
class MemoryEnrolments(Gated):
    """See ``Enrolments``. ``shut_gate`` holds questions back, as the end of an earlier transaction does."""

    asked: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Transactional id, producer id, epoch and shard, in their order; repeats too."""
    refusals: list[HeadraceError] = field(default_factory=list)
    """Raised by the next questions, first in first out."""

    async def until_asked(self, count: int = 1) -> None:
        """Wait until so many questions have come."""
        while len(self.asked) < count:
            await self._changed.wait()

    async def enrol(self, transactional_id: str, producer_id: int, producer_epoch: int, shard: int) -> None:
        """See ``Enrolments``."""
        self.asked.append((transactional_id, producer_id, producer_epoch, shard))
        self._changed.set()
        self._changed = asyncio.Event()
        await self._gate.wait()
        if self.refusals:
            raise self.refusals.pop(0)


@dataclass
class MemoryMarkers(Gated):
    """See ``Markers``. ``shut_gate`` holds requests back, as partitions without enough replicas do."""

    written: list[tuple[PartitionId, Marker]] = field(default_factory=list)
    """In their order, repeats too."""
    refusals: dict[PartitionId, list[HeadraceError]] = field(default_factory=dict)
    """Raised by the next markers for a partition, first in first out."""
    lost_answers: int = 0
    """So many requests are carried out and their answers lost."""
    waiting: int = 0
    """Requests that stand before the gate."""

    async def until_waiting(self, requests: int = 1) -> None:
        """Wait until so many requests stand before the gate."""
        while self.waiting < requests:
            await self._changed.wait()

    async def until_written(self, markers: int) -> None:
        """Wait until so many were written."""
        while len(self.written) < markers:
            await self._changed.wait()

    async def write(self, to: Destination, markers: Sequence[tuple[Marker, Sequence[PartitionId]]]) -> MarkerErrors:
        """See ``Markers``."""
        del to
        self.waiting += 1
        self._notify()
        try:
            await self._gate.wait()
        finally:
            self.waiting -= 1
        results = [[self._one(marker, id) for id in ids] for marker, ids in markers]
        self._notify()
        if self.lost_answers:
            self.lost_answers -= 1
            raise LeaderNotAvailable("the answer was lost")
        return results

    def _one(self, marker: Marker, id: PartitionId) -> HeadraceError | None:
        if refusals := self.refusals.get(id):
            return refusals.pop(0)
        self.written.append((id, marker))
        return None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class MemoryProducerIds:
    """See ``ProducerIds``: 1000, 1001 and so on, also for several coordinators that share this."""

    given: int | None = None
    """How many there are yet; None: no end."""
    _numbers: count[int] = field(default_factory=lambda: count(1_000))

    async def next_id(self) -> int:
        """See ``ProducerIds``."""
        if self.given is not None:
            if self.given <= 0:
                raise LeaderNotAvailable("there are no ids now")
            self.given -= 1
        return next(self._numbers)
