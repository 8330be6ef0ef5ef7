"""The shapes of REST for replication: status, elections, reassignments, plans. See ``models`` for what they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from headrace_admin.rpc.models import INT64_MAX, Answer, Int32, NodeIds, Partition, Problem, Request, Scrub, TopicName
from headrace_admin.rpc.models_transactions import OpenTransaction, TransactionListing

Rate = Annotated[int, Field(ge=-1, le=INT64_MAX, description="Bytes per second; -1: no bound.")]


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


# --- in -----------------------------------------------------------------------------------------------------------


class PartitionIn(Request):
    """A partition, or all of a topic."""

    topic: TopicName
    partition: Int32 | None = Field(None, description="Absent: all of the topic.")


class Elect(Request):
    """Leaders to be elected."""

    model_config = _example(type="preferred", partitions=[{"topic": "flights"}])

    type: Literal["preferred", "unclean", "without-missing"] = Field(
        "preferred",
        description="preferred: back to the first replica, where it is in sync. without-missing: where nobody leads, "
        "give up the eligible replicas that are away. unclean: where nobody leads, any living replica.",
    )
    partitions: Annotated[list[PartitionIn], Field(max_length=10_000)] = Field(
        default_factory=list, description="Empty: all; for preferred only."
    )
    confirm: bool = Field(False, description="True: records may be lost; unclean and without-missing need it.")


class ReassignmentIn(Request):
    """A partition and the replicas it is to have."""

    topic: TopicName
    partition: Int32
    replicas: NodeIds = Field(description="Broker ids, preferred leader first.")


class Reassign(Request):
    """Partitions that are to have other replicas."""

    model_config = _example(
        reassignments=[{"topic": "flights", "partition": 0, "replicas": [2, 3, 4]}],
        throttle_bytes_per_s=20_000_000,
        validate_only=True,
    )

    reassignments: Annotated[list[ReassignmentIn], Field(min_length=1, max_length=10_000)]
    throttle_bytes_per_s: Rate | None = Field(None, description="Set first; absent: it stays as it is. -1: no bound.")
    validate_only: bool = Field(False, description="Say what would happen and do nothing.")


class CancelReassignments(Request):
    """Reassignments to be cancelled."""

    model_config = _example(partitions=[{"topic": "flights", "partition": 0}])

    partitions: Annotated[list[PartitionIn], Field(max_length=10_000)] = Field(
        default_factory=list, description="Those under way, or all of a topic's that are."
    )
    all: bool = Field(False, description="True: every one that is under way.")


class Throttle(Request):
    """How fast reassignments copy, per broker."""

    model_config = _example(bytes_per_s=20_000_000)

    bytes_per_s: Rate


class Rebalance(Request):
    """How to rebalance."""

    model_config = _example(topics=[], validate_only=True)

    topics: Annotated[list[TopicName], Field(max_length=10_000)] = Field(
        default_factory=list, description="Empty: all."
    )
    throttle_bytes_per_s: Rate | None = Field(None, description="Set first; absent: it stays as it is. -1: no bound.")
    validate_only: bool = Field(False, description="Plan, and do nothing.")


class Decommission(Request):
    """How to empty a broker."""

    model_config = _example(throttle_bytes_per_s=20_000_000)

    throttle_bytes_per_s: Rate | None = Field(None, description="Set first; absent: it stays as it is. -1: no bound.")
    validate_only: bool = Field(False, description="Plan, and do nothing.")


# --- out ----------------------------------------------------------------------------------------------------------


class BrokerStatus(Answer):
    """What a broker carries."""

    id: int
    rack: str | None
    state: Literal["online", "away", "stopping"]
    drained: bool
    leaders: int
    replicas: int
    in_sync: int
    away_since_ms: int | None = Field(description="Wall clock; null: it is there, or nobody saw it go.")
    disk_free_bytes: int | None = Field(description="Of its data disk; null: it did not tell in time.")
    disk_total_bytes: int | None
    disk_reserve_bytes: int | None = Field(description="Below this free it refuses records.")
    scrub: Scrub | None = Field(description="Null: it did not tell in time.")


class Troubled(Answer):
    """A partition that is not as it should be."""

    topic: str
    partition: Partition
    min_isr: int = Field(description="The min.insync.replicas in force.")


class StuckCompaction(Answer):
    """A replica that cannot be compacted. Each replica is compacted on its own."""

    topic: str
    partition: int
    broker: int
    reason: str


class Status(Answer):
    """How the cluster is."""

    state: Literal["healthy", "degraded", "unavailable"]
    verdict: str = Field(description="One line: how it is, why, whether something is lost, and what to do.")
    cluster_id: str
    active_controller: int | None
    metadata_store_reachable: bool
    topics: int
    partitions: int
    offline_partitions: int
    under_min_isr_partitions: int
    under_replicated_partitions: int
    reassigning_partitions: int
    recovering_partitions: int
    not_preferred_partitions: int
    coordinators: int = Field(description="Registered ones.")
    group_shards: int = Field(description="Parts into which consumer groups are divided; 0 until one was needed.")
    unowned_group_shards: int = Field(description="Those that no living coordinator has.")
    transaction_shards: int = Field(
        description="Parts into which transactional ids are divided; 0 until one was needed."
    )
    unowned_transaction_shards: int = Field(description="Those that no living coordinator has.")
    brokers: list[BrokerStatus]
    troubled: list[Troubled] = Field(description="Up to 100, worst first.")
    holding_back: list[OpenTransaction] = Field(
        description="Open for so long that readers of read_committed notice, or never to end; up to 100, worst first."
    )
    holding_back_more: int = Field(description="So many besides.")
    prepared_overdue: list[TransactionListing] = Field(
        description="Prepared for longer than is allowed without an alarm; up to 100, oldest first."
    )
    prepared_overdue_more: int = Field(description="So many besides.")
    stuck_compactions: list[StuckCompaction] = Field(
        description="Logs that cannot be compacted; up to 100, by topic, partition and broker."
    )
    stuck_compactions_more: int = Field(description="So many besides.")


class ClusterHealth(Answer):
    """The verdict alone."""

    state: Literal["healthy", "degraded", "unavailable"]
    verdict: str


class Outcome(Answer):
    """What became of one partition."""

    topic: str
    partition: int
    current: Partition | None = Field(description="As it is now, or would be.")
    error: Problem | None


class Outcomes(Answer):
    """What became of each partition."""

    partitions: list[Outcome]


class ReplicaProgress(Answer):
    """How far a new replica has come."""

    broker: int
    bytes: int | None
    percent: int = Field(description="Rounded down; 100: it is in sync.")
    in_sync: bool
    bytes_per_s: int | None = Field(description="null: not measured.")


class Reassignment(Answer):
    """A partition whose replicas are being changed."""

    topic: str
    partition: Partition
    leader_bytes: int | None
    new_replicas: list[ReplicaProgress]
    waits_for: list[int] = Field(description="Brokers that are away and without which it cannot end.")


class Reassignments(Answer):
    """All that are under way."""

    reassignments: list[Reassignment]
    throttle_bytes_per_s: int | None = Field(description="null: no bound.")


class ThrottleOut(Answer):
    """How fast reassignments copy, per broker."""

    bytes_per_s: int | None = Field(description="null: no bound.")


class Move(Answer):
    """A partition that gets other replicas, or the same in another order."""

    topic: str
    partition: int
    replicas_before: list[int]
    replicas: list[int]
    size_bytes: int | None = Field(description="null: not known.")
    error: Problem | None


class Load(Answer):
    """What a broker carries before and after."""

    broker: int
    replicas_before: int
    replicas_after: int
    leaders_before: int = Field(description="Preferred leaders.")
    leaders_after: int


class Plan(Answer):
    """What moves."""

    moves: list[Move]
    brokers: list[Load]
    bytes_to_copy: int


class Leaving(Plan):
    """What moves, and how far the broker is from holding nothing."""

    drained: bool
    replicas_left: int
    leaders_left: int
    moving: int = Field(description="Of its replicas, those on their way out.")
    next_step: str


class Drained(Answer):
    """What draining did."""

    drained: bool
    still_leading: int = Field(description="Partitions that it leads because nobody else can.")
