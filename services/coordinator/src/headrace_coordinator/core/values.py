"""
The nouns of consumer groups, which events, effects, records and the state machines share. Immutable, without rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from headrace_common.core.ids import TopicId


class Moment(NamedTuple):
    """When something happened."""

    mono_ms: float
    """Monotonic; timeouts are counted on it. It means nothing to another process."""
    wall_ms: int
    """Since the epoch; what lasts longer than a process is dated by it: commits, and since when a group is empty."""


class TopicInfo(NamedTuple):
    """What groups need to know of a topic."""

    topic_id: TopicId
    partitions: int
    racks: tuple[frozenset[str], ...] | None = None
    """Those of each partition's replicas; empty: no broker has a rack. None: not known: records do not have them."""

    def same(self, now: TopicInfo) -> bool:
        """Whether the target that was computed from this is that of ``now``; racks count once they are known."""
        return self[:2] == now[:2] and self.racks in (None, now.racks)


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Partitions of one topic, as on the wire."""

    topic: str
    topic_id: bytes
    """16 bytes, or none where a classic member did not know it."""
    partitions: tuple[int, ...]


class GroupProtocol(Enum):
    """Who computes the assignment; the value is what records hold."""

    CLASSIC = 1
    CONSUMER = 2
    WORK = 3
    """The coordinator assigns named work."""


class GroupState(Enum):
    """Kafka's states. ASSIGNING and RECONCILING are of the server-side protocol, the two REBALANCEs of the classic."""

    EMPTY = 1
    PREPARING_REBALANCE = 2
    COMPLETING_REBALANCE = 3
    STABLE = 4
    DEAD = 5
    ASSIGNING = 6
    RECONCILING = 7


class MemberState(Enum):
    """KIP-848: what a member has to do, or waits for."""

    STABLE = 1
    """It is at the target epoch and holds its target."""
    UNREVOKED = 2
    """It has to give partitions up before it moves to the next epoch."""
    UNRELEASED = 3
    """It is at the target epoch and waits for partitions that others still hold."""


@dataclass(frozen=True, slots=True)
class ClassicSubscription:
    """What a classic member says to whoever computes the assignment. Only ``topics`` is read here."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartitions, ...] = ()
    generation: int = -1
    rack: str = ""
    user_data: bytes = b""


@dataclass(frozen=True, slots=True)
class ClassicAssignment:
    """What the leader gave one member. Nothing of it is read here."""

    partitions: tuple[TopicPartitions, ...] = ()
    user_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member of the server-side protocol wants to read: the union of both."""

    topics: frozenset[str]
    pattern: str | None = None


class Sight(Protocol):
    """
    Which topics a member may know of; the others are as if they did not exist, for its subscription.

    Hashable; equal ones show the same. What they show changes with the rules of the cluster, which ``TopicsChanged``
    tells of.
    """

    def filter_visible(self, topics: frozenset[str]) -> frozenset[str]:
        """Those of ``topics`` that the member may know of, whether they exist or not."""
        ...


@dataclass(frozen=True, slots=True)
class WorkItem:
    """Something that one member of a work group does at a time."""

    id: str
    weight: int = 1
    stateful: bool = False
    standbys: int = 0


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a work group is to do, as one of its members says."""

    fingerprint: str
    """Tells declarations apart."""
    version: int | None
    """Of two the higher one is newer. None: whichever was seen first later."""
    items: Mapping[str, WorkItem]
    acceptable_recovery_lag: int
    """Behind by at most so much a member may take a stateful item from a living one."""
    max_warmup: int
    terms: Mapping[str, str] = field(default_factory=dict)
    """What members have to agree on: who says of a name something else than one that is there is refused."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """One committed position of a group."""

    topic: str
    offset: int
    """The next record to read."""
    leader_epoch: int
    """Of the last record read; -1: not known."""
    metadata: str
    committed_at_ms: int
    """Wall clock."""


@dataclass(frozen=True, slots=True)
class PendingOffset:
    """A position that is committed if and when its transaction is."""

    epoch: int
    """Of the producer; the marker that ends the transaction has a higher one."""
    order: int
    """Grows within the shard: of two positions of one partition the later one counts, whichever is decided first."""
    transactional_id: str
    committed: CommittedOffset
    """What becomes the committed position; the time in it is when it came."""


Topics = Mapping[str, TopicInfo]
"""All topics that are not internal, by name."""
