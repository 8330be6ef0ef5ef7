"""
The cluster image: what the controller keeps, and what every node and client acts on.

Each controller builds it from etcd; brokers and others follow it through ``WatchMetadata`` and hold an equal copy.
An image is never changed: ``apply`` gives the next one and shares what stayed the same. State machines act on the
image that results, never on a delta alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from headrace_common.core.features import Feature
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId

K = TypeVar("K")
V = TypeVar("V")


class Role(Enum):
    """What a process is."""

    BROKER = "broker"
    CONTROLLER = "controller"
    COORDINATOR = "coordinator"
    ADMIN = "admin"


class Listener(Enum):
    """By which of a node's listeners somebody comes: who asks at one is told the addresses of the same."""

    CLIENT = "client"
    """In the cluster's network."""
    EXTERNAL = "external"
    """From outside of it."""
    MTLS = "mtls"
    """In the network, with certificates of their own."""
    INTERNAL = "internal"
    """Other nodes of the cluster."""


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A node id is unique within its role only."""

    role: Role
    id: NodeId

    def __str__(self) -> str:
        return f"{self.role.value}-{self.id}"


@dataclass(frozen=True, slots=True)
class Node:
    """One registered process."""

    key: NodeKey
    grpc: Endpoint
    incarnation: bytes
    """16 bytes, new at each start of the process."""
    epoch: int
    """Grows with every registration, over all nodes."""
    http: Endpoint | None = None
    metrics: Endpoint | None = None
    rack: str | None = None
    fenced: bool = True
    """Holds no leadership and joins no ISR."""
    in_controlled_shutdown: bool = False
    version: str = ""
    drained: bool = False
    """An operator keeps leaders away from it; it leads only where nobody else can."""
    external: Endpoint | None = None
    """Where clients from outside of the cluster's network reach it."""
    feature_level_max: int = 0
    """The highest feature level that it knows (``features``); 0: it is of a version before there were levels."""

    internal: Endpoint | None = None
    """Where other nodes reach it, beside its clients."""
    session_key: bytes = b""
    """The public half, of Ed25519, of what this process signs sessions with; empty: it signs nothing."""
    mtls: Endpoint | None = None
    """Where clients with certificates reach it."""

    @property
    def inside(self) -> Endpoint:
        """Where other nodes are to call it; one of a version before internal listeners has none but its clients'."""
        return self.internal or self.grpc

    def seen_from(self, listener: Listener) -> Node | None:
        """The node as who comes by ``listener`` is told of it; None: they cannot reach it."""
        match listener:
            case Listener.CLIENT:
                return replace(self, internal=None, mtls=None)
            case Listener.EXTERNAL if self.external is not None:
                return replace(
                    self, grpc=self.external, http=None, metrics=None, external=None, internal=None, mtls=None
                )
            case Listener.MTLS if self.mtls is not None:
                return replace(self, grpc=self.mtls, external=None, internal=None, mtls=None)
            case Listener.INTERNAL:
                return self
        return None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic without its partitions."""

    name: str
    topic_id: TopicId
    partition_count: int
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Only what was set for this topic."""
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """Who holds a partition and who leads it; the unit of atomic change (KIP-966 fields from the start)."""

    id: PartitionId
    replicas: tuple[NodeId, ...]
    """Preferred leader first."""
    isr: tuple[NodeId, ...]
    leader: NodeId
    """``NO_NODE`` when nobody leads."""
    leader_epoch: int
    """Grows with each change of leader."""
    partition_epoch: int
    """Grows with each change of any field."""
    elr: tuple[NodeId, ...] = ()
    last_known_elr: tuple[NodeId, ...] = ()
    recovering: bool = False
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()

    @property
    def offline(self) -> bool:
        """Nobody leads."""
        return self.leader == NO_NODE


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """An order to delete all logs of a topic; kept until each broker in ``pending`` has confirmed."""

    topic_id: TopicId
    name: str
    pending: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ReplicaRemoval:
    """An order to delete the logs of one partition on brokers that lost it to others; kept as a ``TopicDeletion``."""

    id: PartitionId
    pending: tuple[NodeId, ...]


class ShardKind(Enum):
    """Which internal topic a shard is a partition of; the value is its name in keys."""

    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    AUDIT = "audit"
    """No coordinator keeps anything of it."""


INTERNAL_TOPICS: Final[Mapping[ShardKind, str]] = MappingProxyType(
    {
        ShardKind.GROUPS: "__consumer_offsets",
        ShardKind.TRANSACTIONS: "__transaction_state",
        ShardKind.AUDIT: "__audit",
    }
)


class ShardKey(NamedTuple):
    """One partition of an internal topic."""

    kind: ShardKind
    number: int

    def __str__(self) -> str:
        return f"{self.kind.value}-{self.number}"


@dataclass(frozen=True, slots=True)
class Shard:
    """Which coordinator keeps the state machines of one partition of an internal topic."""

    key: ShardKey
    owner: NodeId
    """Of a coordinator; ``NO_NODE``: nobody has it now."""
    epoch: int
    """Grows with each change of owner, from 1; the owner's fencing token in the partition."""


@dataclass(frozen=True, slots=True)
class ActiveController:
    """Who may write metadata."""

    id: NodeId
    epoch: int
    grpc: Endpoint | None


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """A step between two revisions; every entry is whole. With ``previous_revision`` None it is a snapshot."""

    incarnation: bytes
    previous_revision: int | None
    revision: int
    cluster_id: str
    nodes: tuple[Node, ...] = ()
    topics: tuple[Topic, ...] = ()
    partitions: tuple[Partition, ...] = ()
    deletions: tuple[TopicDeletion, ...] = ()
    removed_nodes: tuple[NodeKey, ...] = ()
    removed_topics: tuple[TopicId, ...] = ()
    finished_deletions: tuple[TopicId, ...] = ()
    removals: tuple[ReplicaRemoval, ...] = ()
    finished_removals: tuple[PartitionId, ...] = ()
    shards: tuple[Shard, ...] = ()
    cluster_configs: Mapping[str, str] | None = None
    """None: unchanged."""
    broker_configs: Mapping[NodeId, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Brokers whose own settings changed; an empty mapping means none are left."""
    active_controller: ActiveController | None = None
    """None: unchanged."""
    feature_level: int | None = None
    """None: unchanged; in a snapshot: 0."""
    access: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """Rows of ``access.rows`` that are new or changed; an empty one is gone."""


class AccessStep(NamedTuple):
    """How ``ClusterImage.access`` came from the one before, so that who reads it need not look for what is new."""

    before: Mapping[str, bytes]
    keys: frozenset[str]
    """Rows that are new, changed or gone; all others are the same."""


class ImageGap(Exception):
    """The delta does not follow the image; reconnect and take a snapshot."""


class ImageStale(Exception):
    """The snapshot or delta is older than the image held, or of another incarnation; it is refused."""


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """All metadata at one revision. Partitions of a topic are complete before the topic is in ``topics``."""

    incarnation: bytes
    revision: int
    cluster_id: str
    nodes: Mapping[NodeKey, Node]
    topics: Mapping[TopicId, Topic]
    topic_ids: Mapping[str, TopicId]
    partitions: Mapping[PartitionId, Partition]
    deletions: Mapping[TopicId, TopicDeletion]
    cluster_configs: Mapping[str, str]
    broker_configs: Mapping[NodeId, Mapping[str, str]]
    active_controller: ActiveController | None
    removals: Mapping[PartitionId, ReplicaRemoval] = field(default_factory=lambda: MappingProxyType({}))
    shards: Mapping[ShardKey, Shard] = field(default_factory=lambda: MappingProxyType({}))
    feature_level: int = 0
    """What all nodes know; it never falls while the cluster lives. See ``has``."""
    access: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """Who may do what, as the rows of ``access.rows``; the same object for as long as nothing of it changes."""
    access_step: AccessStep | None = field(default=None, compare=False, repr=False)
    """What has led to ``access``; None: it is a snapshot's."""

    def has(self, feature: Feature) -> bool:
        """Whether a feature may be used: every node of the cluster knows it."""
        return self.feature_level >= feature.level

    def topic(self, name: str) -> Topic | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partitions_of(self, topic: Topic) -> list[Partition]:
        ids = (PartitionId(topic.topic_id, n) for n in range(topic.partition_count))
        return [self.partitions[i] for i in ids if i in self.partitions]

    def brokers(self) -> list[Node]:
        """All registered brokers, ascending by id, fenced ones included."""
        return sorted((n for n in self.nodes.values() if n.key.role is Role.BROKER), key=lambda n: n.key.id)

    def snapshot(self) -> ImageDelta:
        """The whole image as a delta that replaces whatever the receiver holds."""
        return ImageDelta(
            incarnation=self.incarnation,
            previous_revision=None,
            revision=self.revision,
            cluster_id=self.cluster_id,
            nodes=tuple(self.nodes.values()),
            topics=tuple(self.topics.values()),
            partitions=tuple(self.partitions.values()),
            deletions=tuple(self.deletions.values()),
            removals=tuple(self.removals.values()),
            shards=tuple(self.shards.values()),
            cluster_configs=self.cluster_configs,
            broker_configs=self.broker_configs,
            active_controller=self.active_controller,
            feature_level=self.feature_level,
            access=self.access,
        )

    def apply(self, delta: ImageDelta) -> ClusterImage:
        """
        The image after ``delta``.

        Raises:
            ImageStale: the delta ends below this image's revision, or belongs to another incarnation.
            ImageGap: the delta starts elsewhere than where this image is.
        """
        known = self.revision > 0
        if known and delta.incarnation != self.incarnation:
            raise ImageStale("the metadata belongs to another incarnation than the image held")
        if known and delta.revision < self.revision:
            raise ImageStale(f"revision {delta.revision} is older than {self.revision}, which is held")
        if delta.previous_revision is None:
            return EMPTY_IMAGE._apply_delta(delta)
        if delta.previous_revision != self.revision:
            raise ImageGap(f"the delta starts at revision {delta.previous_revision}, the image is at {self.revision}")
        return self._apply_delta(delta)

    def _apply_delta(self, delta: ImageDelta) -> ClusterImage:
        nodes = _merge(self.nodes, {n.key: n for n in delta.nodes}, delta.removed_nodes)
        topics = _merge(self.topics, {t.topic_id: t for t in delta.topics}, delta.removed_topics)
        partitions = _merge(self.partitions, {p.id: p for p in delta.partitions}, ())
        if delta.removed_topics:
            gone = frozenset(delta.removed_topics)
            partitions = {i: p for i, p in partitions.items() if i.topic_id not in gone}
        same_topics = not delta.topics and not delta.removed_topics
        own = {n: c for n, c in {**self.broker_configs, **delta.broker_configs}.items() if c}
        return replace(
            self,
            incarnation=delta.incarnation,
            revision=delta.revision,
            cluster_id=delta.cluster_id,
            nodes=nodes,
            topics=topics,
            topic_ids=self.topic_ids if same_topics else {t.name: t.topic_id for t in topics.values()},
            partitions=partitions,
            deletions=_merge(self.deletions, {d.topic_id: d for d in delta.deletions}, delta.finished_deletions),
            removals=_merge(self.removals, {r.id: r for r in delta.removals}, delta.finished_removals),
            shards=_merge(self.shards, {s.key: s for s in delta.shards}, ()),
            cluster_configs=self.cluster_configs if delta.cluster_configs is None else dict(delta.cluster_configs),
            broker_configs=own,
            active_controller=delta.active_controller or self.active_controller,
            feature_level=self.feature_level if delta.feature_level is None else delta.feature_level,
            access=_merge(
                self.access,
                {key: row for key, row in delta.access.items() if row},
                tuple(key for key, row in delta.access.items() if not row),
            ),
            access_step=AccessStep(self.access, frozenset(delta.access)) if delta.access else self.access_step,
        )


def _merge(old: Mapping[K, V], new: Mapping[K, V], gone: tuple[K, ...]) -> Mapping[K, V]:
    if not new and not gone:
        return old
    merged = {**old, **new}
    for key in gone:
        merged.pop(key, None)
    return merged


EMPTY_IMAGE: Final = ClusterImage(
    incarnation=b"",
    revision=0,
    cluster_id="",
    nodes={},
    topics={},
    topic_ids={},
    partitions={},
    deletions={},
    cluster_configs={},
    broker_configs={},
    active_controller=None,
)
