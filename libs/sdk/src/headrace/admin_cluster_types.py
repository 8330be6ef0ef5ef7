"""
What the admin clients return about the state of the cluster and about replicas that move: frozen values, made from
messages of the ``Admin`` service here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._told import Made, Told
from headrace.admin_transaction_types import OpenTransaction
from headrace.admin_types import PartitionInfo
from headrace.errors import HeadraceError
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from headrace_proto.v1 import admin_pb2, transaction_pb2  # noqa: F401 - in the bases


@dataclass(frozen=True, slots=True)
class BrokerStatus(Made["admin_pb2.BrokerStatus"]):
    """One registered broker, and how much it has to do."""

    broker_id: int
    rack: str | None
    fenced: bool
    """True: leads nothing; it is starting, stopping, or was not heard of."""
    in_controlled_shutdown: bool
    drained: bool
    leaders: int
    """Partitions that it leads."""
    replicas: int
    """Partitions that it holds."""
    in_sync: int
    """Of those, how many are in sync."""
    away_since_ms: int | None
    """Wall clock; None: it is not away, or was so before anybody looked."""
    disk_free_bytes: int | None
    """None, also below: it did not tell in time."""
    disk_total_bytes: int | None
    disk_reserve_bytes: int | None
    """With less free than this it refuses new records."""


@dataclass(frozen=True, slots=True)
class PartitionTrouble(Made["admin_pb2.TroubledPartition"], state="partition"):
    """A partition that nobody leads, or whose replicas in sync are too few."""

    partition: TopicPartition
    state: PartitionInfo
    min_isr: int
    """The ``min.insync.replicas`` in force."""


@dataclass(frozen=True, slots=True)
class OverdueTransaction(Made["transaction_pb2.TransactionListing"]):
    """A transaction that is prepared for longer than ``transaction.prepared.max.ms``, and decided by nobody."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    prepared_at_ms: int


@dataclass(frozen=True, slots=True)
class StuckCompaction(Made["admin_pb2.StuckCompaction"]):
    """A replica whose log cannot be compacted."""

    partition: TopicPartition
    broker_id: int
    reason: str
    """A sentence."""


@dataclass(frozen=True, slots=True)
class ClusterStatus(Told["admin_pb2.DescribeStatusResponse"]):
    """How the cluster is. Lists have up to 100 entries, the worst first; ``…_more`` counts the rest."""

    state: str
    """``healthy``, ``degraded`` (less to spare than there should be) or ``unavailable`` (some is not served)."""
    verdict: str
    """One line: how it is, why, whether something is lost, and what to do."""
    cluster_id: str
    controller_id: int | None
    """The active controller; None: nobody is."""
    metadata_store_reachable: bool
    brokers: tuple[BrokerStatus, ...]
    topics: int
    partitions: int
    offline: int
    """Partitions that nobody leads."""
    under_min_isr: int
    """Partitions that refuse ``acks="all"``."""
    under_replicated: int
    reassigning: int
    recovering: int
    """Partitions led from replicas that may have lost committed records."""
    not_preferred: int
    troubled: tuple[PartitionTrouble, ...]
    coordinators: int
    shards: int
    """Parts of the groups, each of which one coordinator has."""
    unowned_shards: int
    """Those that nobody has: their groups cannot commit or share work."""
    transaction_shards: int
    unowned_transaction_shards: int
    """Those that nobody has: their transactions can neither begin nor end."""
    holding_back: tuple[OpenTransaction, ...]
    """Open for so long that readers of ``read_committed`` notice, or not going to end by themselves."""
    holding_back_more: int
    prepared_overdue: tuple[OverdueTransaction, ...]
    prepared_overdue_more: int
    stuck_compactions: tuple[StuckCompaction, ...]
    stuck_compactions_more: int


@dataclass(frozen=True, slots=True)
class ReplicaProgress(Made["admin_pb2.ReplicaProgress"]):
    """A replica that is being added."""

    broker_id: int
    bytes: int | None
    """Of its log; None: it could not be asked."""
    percent: int
    """0 to 100, rounded down; 100: it is in sync."""
    in_sync: bool
    bytes_per_s: int | None
    """None: not measured."""


@dataclass(frozen=True, slots=True)
class PartitionProgress(Made["admin_pb2.ReassignmentProgress"], state="partition"):
    """A partition whose replicas are being changed, and how far that is."""

    partition: TopicPartition
    state: PartitionInfo
    leader_bytes: int | None
    """Of the leader's log; None: it could not be asked."""
    replicas: tuple[ReplicaProgress, ...]
    """Those that are being added."""
    waits_for: tuple[int, ...]
    """Brokers that are away and without which it cannot end."""


@dataclass(frozen=True, slots=True)
class MoveProgress(Told["admin_pb2.DescribeReassignmentsResponse"]):
    """All partitions whose replicas are being changed."""

    partitions: tuple[PartitionProgress, ...]
    throttle_bytes_per_s: int | None
    """Per broker; None: none."""


@dataclass(frozen=True, slots=True)
class PlannedMove(Made["admin_pb2.PlannedMove"]):
    """A partition that gets other replicas, or the same in another order."""

    partition: TopicPartition
    replicas_before: tuple[int, ...]
    replicas: tuple[int, ...]
    """Preferred leader first."""
    size_bytes: int | None
    """Of the leader's log; None: not known."""
    error: HeadraceError | None
    """Why it was not started; None: it was, or it was only planned."""


@dataclass(frozen=True, slots=True)
class BrokerLoad(Made["admin_pb2.BrokerLoad"]):
    """What a broker has before and after the moves; of leaders, the preferred ones."""

    broker_id: int
    replicas_before: int
    replicas_after: int
    leaders_before: int
    leaders_after: int


@dataclass(frozen=True, slots=True)
class MovePlan(Told["admin_pb2.RebalanceClusterResponse"]):
    """What levels the cluster."""

    moves: tuple[PlannedMove, ...]
    brokers: tuple[BrokerLoad, ...]
    bytes_to_copy: int
    """As far as sizes are known."""


@dataclass(frozen=True, slots=True)
class Decommission(Told["admin_pb2.DecommissionBrokerResponse"]):
    """How far a broker is from holding nothing."""

    moves: tuple[PlannedMove, ...]
    """Partitions that are still to be moved."""
    brokers: tuple[BrokerLoad, ...]
    bytes_to_copy: int
    """As far as sizes are known."""
    drained: bool
    replicas_left: int
    """Those on their way out included."""
    leaders_left: int
    moving: int
    """Of its partitions, those that are on their way."""
    next_step: str
    """What to do next, in a sentence."""
