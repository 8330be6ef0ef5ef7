"""
How the cluster is, from its image: what each broker carries, which partitions are in trouble, and how many.

``engine/statuses`` calls ``observe``; ``verdict`` makes a sentence of the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace_admin.core.ending import Ending
from headrace_admin.core.guard import GUARDED, Guard
from headrace_admin.core.progress import waits_for
from headrace_admin.core.stored import NOTHING_TOLD, Disk, Stored
from headrace_admin.core.transactions import NOTHING_WAITS, Waiting
from headrace_common.core.access.issuers import IssuerKeys
from headrace_common.core.configs import TopicConfig, min_isr_in_force
from headrace_common.core.ids import NodeId, TopicId
from headrace_common.core.image import (
    INTERNAL_TOPICS,
    ClusterImage,
    Node,
    NodeKey,
    Partition,
    Role,
    ShardKey,
    ShardKind,
)

TROUBLED_MAX: Final = 100


class State(Enum):
    """What users of the cluster feel."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """All is served, with less to spare than there should be, or metadata cannot be changed."""
    UNAVAILABLE = "unavailable"
    """Some partitions are not served, or refuse acks=all, or some groups or transactions have no coordinator."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What a broker carries."""

    node: Node
    leaders: int
    replicas: int
    in_sync: int
    away_since_ms: int | None
    """Wall clock; None: it is there, or nobody saw it go."""
    disk: Disk | None = None
    """None: it did not tell."""

    @property
    def away(self) -> bool:
        """It serves nothing now."""
        return self.node.fenced


@dataclass(frozen=True, slots=True)
class Trouble:
    """A partition that is not as it should be."""

    topic: str
    partition: Partition
    min_isr: int

    @property
    def missing(self) -> tuple[NodeId, ...]:
        """Replicas that should be in sync; those that are being added are not expected to be."""
        p = self.partition
        return tuple(b for b in p.replicas if b not in p.isr and b not in p.adding)

    @property
    def under_min_isr(self) -> bool:
        """acks=all is refused."""
        return len(self.partition.isr) < self.min_isr

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition.id.partition}"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A restore of the metadata that waits until the logs of all brokers were seen."""

    missing: tuple[NodeId, ...]
    """Brokers that have not joined since."""
    silent: tuple[NodeId, ...] = ()
    """Brokers that have, and do not say what they have."""


@dataclass(frozen=True, slots=True)
class OldIssuer:
    """An issuer of tokens whose keys nobody could confirm for long."""

    alias: str
    confirmed_ms: int
    """Unix time."""
    refused: bool
    """Its tokens are, for that."""


def find_old_issuers(issuers: Mapping[str, IssuerKeys], now_ms: float) -> tuple[OldIssuer, ...]:
    """Those of whom to warn, by alias."""
    return tuple(
        OldIssuer(alias, known.confirmed_ms, known.is_stale(now_ms))
        for alias, known in sorted(issuers.items())
        if known.is_old(now_ms)
    )


@dataclass(frozen=True, slots=True)
class Behind:
    """A node that changes of access do not reach."""

    key: NodeKey
    since_ms: int
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster at one moment."""

    cluster_id: str
    controller: NodeId | None
    """The active one; None: nobody is."""
    store_reachable: bool
    brokers: tuple[BrokerStatus, ...]
    topics: int
    partitions: int
    reassigning: int
    not_preferred: int
    troubles: tuple[Trouble, ...]
    """All, worst first: offline, under min ISR, recovering, under-replicated."""
    stalled: tuple[Trouble, ...] = ()
    """Moves that cannot end before a broker that is away returns."""
    coordinators: tuple[Node, ...] = ()
    """Registered, by id."""
    shards: int = 0
    """Of consumer groups; each is kept by a coordinator."""
    unowned_shards: int = 0
    """Those that no living coordinator has: their groups cannot work."""
    transaction_shards: int = 0
    """Of transactions; likewise."""
    unowned_transaction_shards: int = 0
    """Those that no living coordinator has: their transactions can neither begin nor end."""
    waiting: Waiting = NOTHING_WAITS
    """What readers of read_committed wait for."""
    stored: Stored = NOTHING_TOLD
    """Logs that cannot be compacted, and disks."""
    restore: Unfinished | None = None
    """The metadata was restored from a backup, and nobody leads yet."""
    old_issuers: tuple[OldIssuer, ...] = ()
    """Issuers of tokens whose keys nobody could confirm for a week."""
    ending: tuple[Ending, ...] = ()
    """Nodes whose certificates near their end."""
    behind: tuple[Behind, ...] = ()
    """The longest first."""
    guard: Guard = GUARDED

    @property
    def leading(self) -> frozenset[NodeId]:
        return frozenset(b.node.key.id for b in self.brokers if b.leaders)

    @property
    def offline(self) -> tuple[Trouble, ...]:
        """Nobody leads."""
        return tuple(t for t in self.troubles if t.partition.offline)

    @property
    def under_min_isr(self) -> tuple[Trouble, ...]:
        """acks=all is refused, those that nobody leads included."""
        return tuple(t for t in self.troubles if t.under_min_isr)

    @property
    def under_replicated(self) -> tuple[Trouble, ...]:
        """A replica that should be in sync is not."""
        return tuple(t for t in self.troubles if t.missing)

    @property
    def recovering(self) -> tuple[Trouble, ...]:
        """Led from a replica that may have lost committed records."""
        return tuple(t for t in self.troubles if t.partition.recovering)


def observe(
    image: ClusterImage,
    *,
    controller: NodeId | None,
    store_reachable: bool,
    away_since_ms: Mapping[NodeId, int],
    waiting: Waiting = NOTHING_WAITS,
    stored: Stored = NOTHING_TOLD,
    restore: Unfinished | None = None,
    old_issuers: tuple[OldIssuer, ...] = (),
) -> Status:
    """The status of an image; what it cannot know is told by the arguments."""
    leaders: Counter[NodeId] = Counter(p.leader for p in image.partitions.values())
    replicas: Counter[NodeId] = Counter(b for p in image.partitions.values() for b in p.replicas)
    in_sync: Counter[NodeId] = Counter(b for p in image.partitions.values() for b in p.isr)
    brokers = tuple(
        BrokerStatus(
            node,
            leaders[i],
            replicas[i],
            in_sync[i],
            away_since_ms.get(i) if node.fenced else None,
            stored.disk(i),
        )
        for node in image.brokers()
        for i in [node.key.id]
    )
    return Status(
        cluster_id=image.cluster_id,
        controller=controller,
        store_reachable=store_reachable,
        brokers=brokers,
        topics=len(image.topics),
        partitions=len(image.partitions),
        reassigning=sum(bool(p.adding or p.removing) for p in image.partitions.values()),
        not_preferred=sum(not p.offline and p.leader != p.replicas[0] for p in image.partitions.values()),
        troubles=_troubles(image),
        stalled=_stalled(image),
        coordinators=tuple(sorted(_coordinators(image), key=lambda n: n.key.id)),
        shards=len(_shards(image, ShardKind.GROUPS)),
        unowned_shards=_unowned(image, ShardKind.GROUPS),
        transaction_shards=len(_shards(image, ShardKind.TRANSACTIONS)),
        unowned_transaction_shards=_unowned(image, ShardKind.TRANSACTIONS),
        waiting=waiting,
        stored=stored,
        restore=restore,
        old_issuers=old_issuers,
    )


def _coordinators(image: ClusterImage) -> list[Node]:
    return [n for n in image.nodes.values() if n.key.role is Role.COORDINATOR]


def _shards(image: ClusterImage, kind: ShardKind) -> list[ShardKey]:
    topic = image.topic(INTERNAL_TOPICS[kind])
    return [] if topic is None else [ShardKey(kind, n) for n in range(topic.partition_count)]


def _unowned(image: ClusterImage, kind: ShardKind) -> int:
    return sum(not _owned(image, key) for key in _shards(image, kind))


def _owned(image: ClusterImage, key: ShardKey) -> bool:
    shard = image.shards.get(key)
    owner = None if shard is None else image.nodes.get(NodeKey(Role.COORDINATOR, shard.owner))
    return owner is not None and not owner.fenced


def _troubles(image: ClusterImage) -> tuple[Trouble, ...]:
    own: dict[TopicId, int | None] = {
        i: TopicConfig.effective(topic.configs, image.cluster_configs).min_insync_replicas
        for i, topic in image.topics.items()
    }
    found = []
    for i, p in image.partitions.items():
        topic = image.topics.get(i.topic_id)
        if topic is None:
            continue  # its topic is being made or deleted
        need = min_isr_in_force(own[i.topic_id], len(p.replicas), adding=len(p.adding), removing=len(p.removing))
        trouble = Trouble(topic.name, p, need)
        if p.offline or p.recovering or trouble.under_min_isr or trouble.missing:
            found.append(trouble)
    return tuple(sorted(found, key=_badness))


def _stalled(image: ClusterImage) -> tuple[Trouble, ...]:
    present = {n.key.id for n in image.brokers() if not n.fenced}
    return tuple(
        Trouble(image.topics[i.topic_id].name, p, 0)
        for i, p in sorted(image.partitions.items(), key=lambda one: one[0])
        if i.topic_id in image.topics and waits_for(p, present)
    )


def _badness(t: Trouble) -> tuple[bool, bool, bool, str, int]:
    p = t.partition
    return not p.offline, not t.under_min_isr, not p.recovering, t.topic, p.id.partition
