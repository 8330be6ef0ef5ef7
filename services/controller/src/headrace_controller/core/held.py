"""
What brokers have on their disks, as they say themselves: logs, and what they noted of the topics these belong to.

Read by ``core.restoring`` and ``core.strays``; made by the adapter that asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace_common.core.ids import NodeId, PartitionId, TopicId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKey, ShardKind, Topic


@dataclass(frozen=True, slots=True)
class HeldLog:
    """One log on one broker."""

    last_epoch: int = -1
    """Leader epoch of its last record; -1: it has none."""
    end: int = 0
    """Offset after the last record that is on disk."""
    damaged: bool = False
    """It lost acknowledged records."""
    known_epoch: int = -1
    """Highest leader epoch that it knows, of a leader that wrote nothing too."""
    token: int | None = None
    """The highest fencing token; None: none was ever set."""

    @property
    def length(self) -> tuple[int, int]:
        """What logs are compared by: the longest holds all that was committed."""
        return self.last_epoch, self.end

    @property
    def blank(self) -> bool:
        """Just made: nothing was ever in it, and nobody led it."""
        return not self.damaged and self.known_epoch < 0 and self.length == (-1, 0)


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """What a broker last heard of a topic, from which metadata."""

    topic: Topic
    incarnation: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that one broker has."""

    topics: tuple[HeldTopic, ...] = ()
    logs: Mapping[PartitionId, HeldLog] = field(default_factory=lambda: MappingProxyType({}))


Inventories = Mapping[NodeId, Inventory]
Holders = Mapping[NodeId, HeldLog]
"""Who has a log of one partition."""


def by_partition(inventories: Inventories) -> dict[PartitionId, dict[NodeId, HeldLog]]:
    """The logs of each partition, by broker."""
    found: dict[PartitionId, dict[NodeId, HeldLog]] = {}
    for broker, inventory in sorted(inventories.items()):
        for id, log in inventory.logs.items():
            found.setdefault(id, {})[broker] = log
    return found


def by_topic(logs: Mapping[PartitionId, Holders]) -> dict[TopicId, dict[int, Holders]]:
    """The same by topic and partition number."""
    found: dict[TopicId, dict[int, Holders]] = {}
    for id, holders in logs.items():
        found.setdefault(id.topic_id, {})[id.partition] = holders
    return found


def notes_of(inventories: Inventories) -> Iterator[HeldTopic]:
    """What all brokers noted; a topic comes up once for each broker that has logs of it."""
    for _, inventory in sorted(inventories.items()):
        yield from inventory.topics


def tokens(topic: Topic, logs: Mapping[int, Holders]) -> dict[ShardKey, int]:
    """Highest fencing tokens in the logs of an internal topic, by shard; empty for any other topic."""
    kind = next((k for k, name in INTERNAL_TOPICS.items() if topic.internal and name == topic.name), None)
    if kind is None or kind is ShardKind.AUDIT:
        return {}
    found = {n: max((log.token for log in h.values() if log.token is not None), default=0) for n, h in logs.items()}
    return {ShardKey(kind, n): token for n, token in found.items() if token > 0}
