"""
What must be done after an event, in this order. ``shard.Shard.handle`` returns these; the engine carries them out.

**The rule of durability.** Each effect names its group. Per group the engine keeps the order, over events too, and
holds back everything that follows a ``Persist`` or ``PersistGroup`` until that record is committed. So nothing is ever
seen outside that a new coordinator would not know. What one event persists is in one append, in this order. An answer
of ``NO_GROUP`` is about the whole shard and waits for all of that.

``PersistGroup`` carries no value: whoever builds the append asks ``Shard.group_rows(group_id)`` at that moment, once
per group and append. The rows keep their order; what the first of them say is a state that can be loaded. The value is
then at least as new as the effect, which is harmless: what it has beyond that is shown only after a ``PersistGroup`` of
its own. A retry writes the same bytes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace_common.core.errors import HeadraceError
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    CommittedOffset,
    GroupProtocol,
    GroupState,
    TopicPartitions,
    WorkItem,
)

Row = tuple[bytes, bytes | None]
"""Key and value of a record in the shard's partition; no value: a tombstone."""

# --- what is sent over streams --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberOfClassic:
    """What the leader is told of one member."""

    member_id: str
    instance_id: str | None
    subscription: ClassicSubscription
    """For the assignor that was chosen."""


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """``ClassicJoined`` on the wire."""

    error: HeadraceError | None
    member_id: str
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: tuple[MemberOfClassic, ...] = ()
    """Only for the leader."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """``ClassicSynced`` on the wire."""

    error: HeadraceError | None
    generation: int = -1
    assignment: ClassicAssignment = field(default_factory=ClassicAssignment)


@dataclass(frozen=True, slots=True)
class ClassicStanding:
    """``ClassicState`` on the wire: answers a heartbeat, or news."""

    error: HeadraceError | None
    generation: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerStanding:
    """``ConsumerState`` on the wire: answers a heartbeat, or news."""

    error: HeadraceError | None
    member_id: str
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    session_timeout_ms: int = 0
    assignment: tuple[TopicPartitions, ...] | None = None
    """What the member is to hold, whole. None: unchanged."""


@dataclass(frozen=True, slots=True)
class GivenItem:
    """An item that a member of a work group is to do."""

    id: str
    epoch: int
    unended: tuple[str, ...] = ()
    """Transactional ids of members that had it and were put out."""


@dataclass(frozen=True, slots=True)
class WorkShare:
    """What a member of a work group is to do and to follow, whole."""

    active: tuple[GivenItem, ...]
    standby: tuple[str, ...]
    warm_up: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkStanding:
    """``WorkState`` on the wire: answers a heartbeat, or news."""

    error: HeadraceError | None
    member_id: str
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    session_timeout_ms: int = 0
    share: WorkShare | None = None
    """None: unchanged."""
    current_declaration: int = 0
    own_declaration: int = 0


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """``LeftGroup`` on the wire."""

    error: HeadraceError | None


Message = JoinAnswer | SyncAnswer | ClassicStanding | ConsumerStanding | WorkStanding | LeaveAnswer

# --- what answers unary calls ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetOutcome:
    """Of one partition of a commit or of a deletion."""

    topic: str
    partition: int
    error: HeadraceError | None


@dataclass(frozen=True, slots=True)
class OffsetOutcomes:
    """In the order of the request."""

    outcomes: tuple[OffsetOutcome, ...]


@dataclass(frozen=True, slots=True)
class OffsetFound:
    """One partition that was asked for."""

    topic: str
    partition: int
    committed: CommittedOffset | None
    """None: nothing is committed."""
    error: HeadraceError | None = None
    """``UnstableOffsetCommit``: an undecided transaction has a position here, and only stable ones were asked for."""


@dataclass(frozen=True, slots=True)
class OffsetsFound:
    """In the order of the request; sorted where all were asked for."""

    offsets: tuple[OffsetFound, ...]


@dataclass(frozen=True, slots=True)
class MarkerOutcomes:
    """In the order of the request; None: the transaction has ended here, now or before."""

    outcomes: tuple[HeadraceError | None, ...]


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member as the coordinator sees it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_address: str
    member_epoch: int
    """-1 in the classic protocol."""
    state: str
    """"STABLE", "UNREVOKED", "UNRELEASED"; classic: "JOIN" or "SYNC" where that is waited for, else empty."""
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[TopicPartitions, ...]
    target: tuple[TopicPartitions, ...] = ()
    process_id: str = ""
    endpoint: str = ""
    zone: str = ""
    transactional_id: str = ""


class Follower(NamedTuple):
    """A member of a work group that follows an item."""

    member_id: str
    warm_up: bool
    lag: int | None
    """None: it has not said."""


@dataclass(frozen=True, slots=True)
class ItemDescription:
    """One item of a work group."""

    item: WorkItem
    owner: str | None
    epoch: int
    """Its owner's; 0 without one."""
    followers: tuple[Follower, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group as the coordinator sees it."""

    group_id: str
    protocol: GroupProtocol | None
    """None: only offsets were committed."""
    state: GroupState
    generation: int
    """Or group epoch."""
    assignment_epoch: int
    """-1 in the classic protocol."""
    assignor: str
    members: tuple[MemberDescription, ...]
    items: tuple[ItemDescription, ...] = ()
    """Of a work group's current declaration."""
    terms: Mapping[str, str] = field(default_factory=dict)
    """What the members of a work group agree on."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One line of a list."""

    group_id: str
    protocol: GroupProtocol | None
    state: GroupState
    members: int


Result = OffsetOutcomes | OffsetsFound | MarkerOutcomes | GroupDescription | None

# --- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """Append these rows."""

    group_id: str
    rows: tuple[Row, ...]


NO_GROUP: Final = ""
"""Stands for the group of an answer that is about the whole shard; no group has this id."""


@dataclass(frozen=True, slots=True)
class PersistGroup:
    """Append the group's record: ``Shard.group_rows(group_id)``, asked when the append is built."""

    group_id: str


@dataclass(frozen=True, slots=True)
class Send:
    """Over a member's stream; if that has ended meanwhile, drop it."""

    group_id: str
    stream: int
    message: Message


@dataclass(frozen=True, slots=True)
class CloseStream:
    """End the stream, after what was sent over it before: it was replaced, or its member is out or has left."""

    group_id: str
    stream: int


@dataclass(frozen=True, slots=True)
class Answer:
    """To whoever waits for ``ref``: a result, or an error."""

    group_id: str
    ref: object
    result: Result | HeadraceError


@dataclass(frozen=True, slots=True)
class EnrolShard:
    """
    Ask the transaction's coordinator to tell this shard of the end; then send ``ShardEnrolled`` with the number.

    It tells nobody anything of the shard, so it need not wait for what was persisted before.
    """

    number: int
    """Good for one answer; meanwhile the end of the transaction may take it away."""
    transactional_id: str
    producer_id: int
    producer_epoch: int


Effect = Persist | PersistGroup | Send | CloseStream | Answer | EnrolShard
