"""
What the admin clients return: frozen values, named as people speak of them.

All are made from messages of the ``Admin`` service, by the rule of ``_told``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace._told import Made, Told
from headrace.records import TopicPartition
from headrace_common.core.errors import HeadraceError, error_for
from headrace_common.core.ids import Endpoint

if TYPE_CHECKING:
    from headrace_proto.v1 import admin_pb2, cluster_pb2  # noqa: F401 - in the bases
    from headrace_proto.v1 import broker_pb2 as broker  # noqa: F401 - in the bases
    from headrace_proto.v1 import controller_pb2 as controller


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created."""

    name: str
    partitions: int | None = None
    """None: the cluster's ``num.partitions``."""
    replication_factor: int | None = None
    """None: the cluster's ``default.replication.factor``."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Kafka's names, such as ``retention.ms``."""
    assignments: Sequence[Sequence[int]] = ()
    """Placement by hand: broker ids per partition, preferred leader first; the two numbers are then left out."""


@dataclass(frozen=True, slots=True)
class PartitionInfo(Made["cluster_pb2.Partition"]):
    """One partition: who holds it, and who leads it."""

    partition: int
    leader: int | None
    """None: nobody leads now."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """Preferred leader first."""
    isr: tuple[int, ...]
    """Replicas in sync with the leader."""
    elr: tuple[int, ...] = ()
    """Out of sync, and known to hold all that is committed: they may lead when no replica in sync is left."""
    last_known_elr: tuple[int, ...] = ()
    """Those of whom that was known last, when nobody is left who may lead."""
    recovering: bool = False
    """True: led from replicas that may have lost committed records, since an operator allowed it."""
    adding: tuple[int, ...] = ()
    """Brokers that copy it, and are going to be replicas."""
    removing: tuple[int, ...] = ()
    """Replicas that go when the new ones are in sync."""


@dataclass(frozen=True, slots=True)
class TopicInfo(Told["cluster_pb2.Topic"], partitions="partition_count"):
    """One topic in a list."""

    name: str
    topic_id: bytes
    """16 bytes; a topic created again under its old name has another."""
    partitions: int
    internal: bool
    configs: Mapping[str, str]
    """Only what was set for this topic."""


def _sort_partitions(description: controller.TopicDescription) -> tuple[PartitionInfo, ...]:
    return tuple(sorted(map(PartitionInfo.of, description.partitions), key=lambda p: p.partition))


@dataclass(frozen=True, slots=True)
class TopicDescription(Told["controller.TopicDescription"], inside="topic", partitions=_sort_partitions):
    """One topic with its partitions."""

    name: str
    topic_id: bytes
    internal: bool
    configs: Mapping[str, str]
    """Only what was set for this topic; ``describe_configs`` has all."""
    partitions: tuple[PartitionInfo, ...]
    """Ascending from 0."""
    notes: tuple[str, ...] = ()
    """Said at creation: for example that there are fewer replicas than the default asks for."""


@dataclass(frozen=True, slots=True)
class BrokerInfo(Made["cluster_pb2.Node"], address=lambda node: str(Endpoint(node.grpc.host, node.grpc.port))):
    """One registered broker."""

    id: int
    address: str
    """``host:port`` of its gRPC."""
    rack: str | None
    fenced: bool
    """True: leads nothing; it is starting, stopping, or was not heard of."""
    in_controlled_shutdown: bool
    version: str
    drained: bool = False
    """True: leaders are kept away from it by command; see ``drain_broker``."""


@dataclass(frozen=True, slots=True)
class TroubledPartition(Made["cluster_pb2.Partition"], state=PartitionInfo.of):
    """A partition that nobody leads, or whose replicas in sync are too few."""

    topic_id: bytes
    """16 bytes, as in ``TopicInfo``."""
    state: PartitionInfo


@dataclass(frozen=True, slots=True)
class Reassignment(Made["cluster_pb2.Partition"]):
    """A partition whose replicas are being changed."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    """All that hold it now: those it shall have, then those that will go."""
    adding: tuple[int, ...]
    """Those that copy it."""
    removing: tuple[int, ...]
    """Those that go when the new ones are in sync."""
    isr: tuple[int, ...]


def _sort_brokers(answer: controller.DescribeClusterResponse) -> tuple[BrokerInfo, ...]:
    from headrace_proto.v1 import cluster_pb2

    brokers = (BrokerInfo.of(node) for node in answer.nodes if node.role == cluster_pb2.BROKER)
    return tuple(sorted(brokers, key=lambda broker: broker.id))


@dataclass(frozen=True, slots=True)
class ClusterDescription(
    Told["controller.DescribeClusterResponse"],
    controller_id="active_controller.id",
    brokers=_sort_brokers,
    topics="topic_count",
    partitions="partition_count",
    offline_partitions="offline_partition_count",
    under_replicated_partitions="under_replicated_partition_count",
    under_min_isr_partitions="under_min_isr_partition_count",
    not_preferred_partitions="not_preferred_partition_count",
    reassigning_partitions="reassigning_partition_count",
    recovering_partitions="recovering_partition_count",
):
    """The cluster at one moment."""

    cluster_id: str
    controller_id: int | None
    """The active controller; None: nobody is, now."""
    brokers: tuple[BrokerInfo, ...]
    """Ascending by id, fenced ones too."""
    topics: int
    partitions: int
    offline_partitions: int
    """Partitions that nobody leads."""
    under_replicated_partitions: int
    metadata_store_reachable: bool
    under_min_isr_partitions: int = 0
    """Partitions with fewer replicas in sync than ``min.insync.replicas``: ``acks="all"`` is refused there."""
    not_preferred_partitions: int = 0
    """Partitions that another than their preferred replica leads; see ``elect_leaders``."""
    reassigning_partitions: int = 0
    """Partitions whose replicas are being changed; see ``list_reassignments``."""
    recovering_partitions: int = 0
    """Partitions led from replicas that may have lost committed records, since an operator allowed it."""
    troubled: tuple[TroubledPartition, ...] = ()
    """Up to 100 partitions that nobody leads or that are below their minimum, worst first."""


@dataclass(frozen=True, slots=True)
class ConfigEntry(Told["controller.ConfigEntry"]):
    """One setting as it is in effect."""

    name: str
    value: str
    source: str
    """Where the value is from: ``default``, ``static_broker``, ``dynamic_default_broker``, ``dynamic_topic`` …"""
    read_only: bool
    """True: fixed at start."""
    documentation: str
    type: str


@dataclass(frozen=True, slots=True)
class SegmentInfo(Made["broker.SegmentDescription"]):
    """One segment of a log."""

    base_offset: int
    end_offset: int
    """One past the last."""
    size_bytes: int
    created_at_ms: int
    sealed_at_ms: int | None
    """None: still being written."""
    min_timestamp_ms: int = -1
    """Of what was written into it, which compaction may have taken away. -1: no records, or they have no times."""
    max_timestamp_ms: int = -1
    """Likewise."""


@dataclass(frozen=True, slots=True)
class CompactionInfo(Made["broker.LogCompaction"]):
    """How far the compaction of one replica's log is; replicas are compacted each on its own."""

    cleaned_to: int
    """Everything below was compacted."""
    cleanable_to: int
    """Up to here it may be compacted now: below the active segment, undecided transactions, and what is too young."""
    clean_bytes: int
    """Bytes below ``cleaned_to``."""
    dirty_bytes: int
    """Bytes from there to ``cleanable_to``."""
    last_ms: int | None
    """The broker's clock when it was compacted last; None: not since the broker started."""
    waits_for: str | None
    """What a compaction waits for, or why the last one failed; None: it is under way, or nothing is dirty."""
    stuck: bool
    """It cannot be compacted, ``waits_for`` says why. The broker tries again later and goes on with others."""

    @property
    def dirty_ratio(self) -> float:
        """The share of what could be compacted that was not; compared with ``min.cleanable.dirty.ratio``."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class OldestTransaction(Made["broker.LogTransaction"]):
    """What holds readers of ``read_committed`` back in one log: the open transaction that began first."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int
    """The broker's clock when its first batch was appended."""


@dataclass(frozen=True, slots=True)
class LogInfo(Made["broker.LogDescription"]):
    """One replica's log on one broker."""

    topic_id: bytes
    partition: int
    state: str
    """``online``, ``stray`` (kept but not in the metadata), ``damaged`` or ``deleting``."""
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    leader_epoch: int
    segments: tuple[SegmentInfo, ...]
    """Only if asked for."""
    note: str | None
    last_stable_offset: int = 0
    """Transactions below this are decided; the high watermark where none is open."""
    oldest_open: OldestTransaction | None = None
    """None: no transaction is open in this log."""
    oldest_timestamp_ms: int | None = None
    """Smallest timestamp of its segments; None: it has no records, or they have no times."""
    compaction: CompactionInfo | None = None
    """None: the topic is not compacted."""
    fencing_token: int | None = None
    """None: none was ever set."""
    unreadable: str | None = None
    """A batch that no consumer can read, and why; None: none is known."""


@dataclass(frozen=True, slots=True)
class ScrubInfo(Made["broker.Scrub"]):
    """How far a broker is with reading all it stores, by which rot is found while other replicas are sound."""

    running: bool
    logs: int
    """Of the pass under way, or of the last one; 0: none since the broker's start."""
    logs_done: int
    bytes_read: int
    lost_logs: int
    """With a batch that could not be read, since the broker's start."""
    last_ended_ms: int | None
    """Wall clock; None: no pass has ended since the broker's start."""


def _tell_failure(logs: admin_pb2.BrokerLogs) -> str | None:
    return str(error_for(logs.error.code, logs.error.message)) if logs.HasField("error") else None


@dataclass(frozen=True, slots=True)
class BrokerLogs(Made["admin_pb2.BrokerLogs"], inside="logs", logs="logs.logs", error=_tell_failure, failure="error"):
    """All logs of one broker, or why it could not be asked."""

    broker_id: int
    logs: tuple[LogInfo, ...]
    disk_free_bytes: int
    disk_total_bytes: int
    recovery_report: str
    """What opening the data directory found."""
    error: str | None
    """None: it answered."""
    scrub: ScrubInfo | None = None
    """None: it does not tell."""
    failure: HeadraceError | None = None
    """``error`` as it would be raised; None: it answered."""
