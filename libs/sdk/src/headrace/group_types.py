"""
Frozen values about consumer groups: what the admin clients return, made from messages of the ``Admin`` service here and
nowhere else, and what a consumer says of its own membership.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace._told import Made, Told
from headrace.errors import HeadraceError, Rejected, error_for
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace_proto.v1 import admin_pb2, coordinator_pb2, errors_pb2  # noqa: F401 - in the bases
    from headrace_proto.v1 import coordinator_pb2 as wire


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """
    Who commits positions of a group: ``Consumer.group_metadata()``, for ``Producer.send_offsets_to_transaction``. The
    coordinator refuses positions of a member that is out, or of a generation that is over.
    """

    group_id: str
    member_id: str = ""
    """Empty: no member; then the group must have none, or nothing is checked (KIP-447)."""
    generation: int = -1
    """Generation (classic) or member epoch; -1: none."""
    group_instance_id: str | None = None
    """None: a dynamic member."""


@dataclass(frozen=True, slots=True)
class GroupInfo(Made["admin_pb2.ListedGroup"], inside="group"):
    """One consumer group in a list."""

    group_id: str
    protocol: str | None
    """``classic``, ``consumer`` or ``work``; None: it never had a member, only offsets."""
    state: str
    """``empty``, ``stable``, ``preparing_rebalance``, ``completing_rebalance``, ``assigning``, ``reconciling``…"""
    members: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class MissingShard(Made["admin_pb2.UnansweredShard"]):
    """A part of the groups that could not be asked about."""

    shard: int
    coordinator: int | None
    """Who has it; None: nobody."""
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class GroupList(Told["admin_pb2.ListClusterGroupsResponse"], missing="unanswered"):
    """The groups of the cluster."""

    groups: tuple[GroupInfo, ...]
    """By id."""
    missing: tuple[MissingShard, ...]
    """Not empty: groups of these shards may not be in the list."""


@dataclass(frozen=True, slots=True)
class MemberInfo(
    Made["wire.MemberDescription"],
    assigned=lambda member: _partitions(member.assigned),
    target=lambda member: _partitions(member.target),
):
    """One member of a group."""

    member_id: str
    group_instance_id: str | None
    """None: a dynamic member."""
    client_id: str
    client_address: str
    """``host:port``, as the coordinator sees it."""
    member_epoch: int | None
    """None: the classic protocol has none."""
    state: str
    topics: tuple[str, ...]
    """What it subscribes to by name."""
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    """What it holds now."""
    target: tuple[TopicPartition, ...]
    """What it will hold when all have moved; only where the coordinator assigns."""
    process_id: str = ""
    """Of a work group's member, as are these."""
    endpoint: str = ""
    """Where it answers questions, ``host:port``."""
    zone: str = ""
    transactional_id: str = ""
    """Of its producer; empty: it has none."""


@dataclass(frozen=True, slots=True)
class WorkFollower(Made["wire.WorkFollower"]):
    """A member that follows the state of an item."""

    member_id: str
    warm_up: bool
    """It is to take the item over when it has caught up."""
    lag: int | None
    """None: it has not said."""


@dataclass(frozen=True, slots=True)
class WorkItemInfo(Made["wire.WorkItemDescription"], inside="item"):
    """One item of a work group."""

    id: str
    weight: int
    stateful: bool
    standbys: int
    owner: str | None
    """The id of the member that does it; None: nobody."""
    epoch: int
    """Its owner's; 0 without one."""
    followers: tuple[WorkFollower, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription(Told["wire.GroupDescription"]):
    """One group with its members."""

    group_id: str
    protocol: str | None
    """``classic``, ``consumer`` or ``work``; None: it never had a member, only offsets."""
    state: str
    """As in ``GroupInfo``."""
    generation: int | None
    """Generation (classic) or group epoch; None: it never had a member."""
    assignment_epoch: int | None
    """Epoch of the target assignment; None: the classic protocol has none."""
    assignor: str
    coordinator: int
    shard: int
    """Partition of ``__consumer_offsets`` that holds its state."""
    members: tuple[MemberInfo, ...]
    items: tuple[WorkItemInfo, ...] = ()
    """Of a work group: what there is to do."""
    terms: Mapping[str, str] = field(default_factory=dict)
    """Of a work group: what its members agree on."""


@dataclass(frozen=True, slots=True)
class PartitionLag(Made["admin_pb2.PartitionLag"]):
    """How far a group is behind in one partition; what is not known is None."""

    partition: TopicPartition
    committed_offset: int | None
    """The next record to be read; None: nothing is committed."""
    leader_epoch: int | None
    metadata: str
    committed_at_ms: int | None
    log_start_offset: int | None
    end_offset: int | None
    """One past the last record that readers see."""
    lag: int | None
    """Records that are there and not read yet."""
    lag_ms: int | None
    """Age of the first of them; 0: there is none."""
    member_id: str | None
    """Who reads it now."""
    client_id: str | None
    error: HeadraceError | None
    """Why something is not known."""


@dataclass(frozen=True, slots=True)
class PlannedOffset(Made["admin_pb2.PlannedReset"]):
    """A position before and after a reset."""

    partition: TopicPartition
    old_offset: int | None
    """None: nothing is committed."""
    new_offset: int
    log_start_offset: int
    end_offset: int
    note: str | None
    """Why it is not exactly what was asked for; None: it is."""
    error: HeadraceError | None
    """Why it was not set; None: it was, or it was only planned."""


@dataclass(frozen=True, slots=True)
class ResetPlan(Told["admin_pb2.ResetOffsetsResponse"]):
    """Where a group goes on."""

    group_id: str
    executed: bool
    """False: nothing was changed."""
    new_group: bool
    """There is, or was, no group of this id."""
    members: int
    """Not 0: the plan cannot be carried out until they have left."""
    partitions: tuple[PlannedOffset, ...]


def error_or_none(code: errors_pb2.ErrorCode.ValueType, message: str) -> HeadraceError | None:
    """The error of a result that may have none."""
    return error_for(code, message) if code else None


def _partitions(topics: Iterable[wire.TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic, n) for t in topics for n in t.partitions)


def group_state(state: str) -> coordinator_pb2.GroupState.ValueType:
    """
    The state of this name, as the wire has it.

    Raises:
        Rejected: there is no such state.
    """
    from headrace_proto.v1 import coordinator_pb2

    _, *names = coordinator_pb2.GroupState.keys()  # the first stands for none
    if state.upper() not in names:
        known = ", ".join(map(str.lower, names))
        raise Rejected(f"there is no state {state!r}; there are {known}")
    return coordinator_pb2.GroupState.Value(state.upper())
