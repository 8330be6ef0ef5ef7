"""
What happens to the groups of one shard. The engine builds these; ``shard.Shard.handle`` takes them.

Each event is about one group (``group_id``) or the whole shard. A **stream** is one Membership call, named by a number
that grows within the process: a later stream has a higher one. A member has at most one; a request that comes over an
older stream than the member's present one changes nothing, and that stream is closed. ``ref`` is anything by which the
engine finds who waits for the answer.

What the engine uses of ``shard.Shard``::

    Shard(number: int, settings: GroupSettings)
    replay(rows: Iterable[Row]) -> None          # before Loaded, as often as there are batches; raises RecordDamaged
    handle(event: Event) -> list[Effect]
    next_wake_ms() -> float | None               # monotonic; send Woken then (late is harmless, early too)
    patterns() -> frozenset[str]                 # of all subscriptions, for TopicsChanged
    group_rows(group_id: str) -> list[Row]       # see effects
    listing() -> list[GroupListing]

Order that the engine keeps: ``Shard.replay`` with the log's records, ``TopicsChanged``, ``Loaded``; then the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_common.core.errors import HeadraceError
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    Declaration,
    Moment,
    Sight,
    Subscription,
    TopicPartitions,
    Topics,
)

# --- of members, on their streams -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClassicJoined:
    """A member of the classic protocol wants to be in the next generation. Answered by ``JoinAnswer``."""

    group_id: str
    stream: int
    at: Moment
    member_id: str
    """Empty: a new member, or a static one that was restarted; it becomes ``fresh_id``."""
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, ClassicSubscription], ...]
    """Assignors in the member's order of preference."""
    fresh_id: str
    """An id that no member has: the client id or instance id, and a UUID."""
    client_id: str = ""
    client_address: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClassicSynced:
    """A member asks for its assignment; the leader brings all of them. Answered by ``SyncAnswer``."""

    group_id: str
    stream: int
    at: Moment
    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, ClassicAssignment]
    """By member id; empty from all but the leader."""


@dataclass(frozen=True, slots=True)
class ClassicHeartbeat:
    """A member lives. Answered by ``ClassicStanding``."""

    group_id: str
    stream: int
    at: Moment
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A member of the server-side protocol joins, lives, reports, leaves. Answered by ``ConsumerStanding``."""

    group_id: str
    stream: int
    at: Moment
    member_id: str
    member_epoch: int
    """0: join. -1: leave. -2: a static member leaves for a while."""
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int | None = None
    """None: unchanged; 45 s at the join."""
    subscription: Subscription | None = None
    """None: unchanged."""
    matched: frozenset[str] = frozenset()
    """The topics that ``subscription.pattern`` matches now."""
    assignor: str | None = None
    """None: unchanged."""
    owned: tuple[TopicPartitions, ...] | None = None
    """What the member holds, whole. None: as before."""
    client_id: str = ""
    client_address: str = ""
    sight: Sight | None = None
    """Of who speaks. None: unchanged; at the join everything."""


@dataclass(frozen=True, slots=True)
class WorkHeartbeat:
    """A member of a work group joins, lives, reports, leaves. Answered by ``WorkStanding``. None: unchanged."""

    group_id: str
    stream: int
    at: Moment
    member_id: str
    member_epoch: int
    """0: join. -1: leave."""
    instance_id: str | None = None
    process_id: str = ""
    endpoint: str = ""
    zone: str = ""
    transactional_id: str = ""
    rebalance_timeout_ms: int | None = None
    declaration: Declaration | None = None
    owned: frozenset[str] | None = None
    """The items that the member does, whole."""
    lags: Mapping[str, int] | None = None
    """Of the items that it has state of without doing them, whole."""
    refused: tuple[tuple[str, int], ...] = ()
    """Items of its own for which it was refused, and the tokens that it was told."""
    ended: tuple[str, ...] = ()
    """Transactional ids of members that were put out, under which nothing is open any more."""
    client_id: str = ""
    client_address: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """LeaveGroup, in either protocol. Answered by ``LeaveAnswer``."""

    group_id: str
    stream: int
    at: Moment
    member_id: str
    """May be empty with an ``instance_id``: an operator removes that instance."""
    instance_id: str | None
    permanently: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StreamBroke:
    """A stream ended, whoever ended it. Nothing more can be sent over it."""

    group_id: str
    stream: int
    at: Moment


MemberEvent = ClassicJoined | ClassicSynced | ClassicHeartbeat | ConsumerHeartbeat | WorkHeartbeat | Left | StreamBroke

# --- about offsets and groups ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """One entry of a commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommitAsked:
    """Answered by ``OffsetOutcomes``, one per entry."""

    group_id: str
    ref: object
    at: Moment
    member_id: str
    """Empty: administration, for groups without members."""
    instance_id: str | None
    generation: int
    """Or member epoch; -1 with an empty member id."""
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True)
class TxnCommitAsked:
    """Positions that count if and when a transaction is committed. Answered by ``OffsetOutcomes``, one per entry."""

    group_id: str
    ref: object
    at: Moment
    member_id: str
    """Empty, with generation -1 and no instance: not checked, as in Kafka; the producer was given no group metadata."""
    instance_id: str | None
    generation: int
    """Or member epoch."""
    offsets: tuple[OffsetToCommit, ...]
    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of one transaction."""

    producer_id: int
    producer_epoch: int
    """Above that of every position of the transaction."""
    commit: bool


@dataclass(frozen=True, slots=True)
class MarkersAsked:
    """Transactions have ended, in this order. Answered by ``MarkerOutcomes``, one per marker."""

    ref: object
    at: Moment
    markers: tuple[Marker, ...]


@dataclass(frozen=True, slots=True)
class OffsetsAsked:
    """Answered by ``OffsetsFound``."""

    group_id: str
    ref: object
    at: Moment
    member_id: str | None = None
    """None: not checked."""
    member_epoch: int | None = None
    """None: not checked."""
    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    """None: all that are committed."""
    require_stable: bool = False
    """True: where an undecided transaction has a position, there is an error instead of the committed one."""


@dataclass(frozen=True, slots=True)
class OffsetsDeletionAsked:
    """Answered by ``OffsetOutcomes``, one per partition."""

    group_id: str
    ref: object
    at: Moment
    partitions: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class GroupDeletionAsked:
    """Answered by None, or an error."""

    group_id: str
    ref: object
    at: Moment


@dataclass(frozen=True, slots=True)
class DescriptionAsked:
    """Answered by ``GroupDescription``."""

    group_id: str
    ref: object
    at: Moment


AdminEvent = (
    CommitAsked
    | TxnCommitAsked
    | MarkersAsked
    | OffsetsAsked
    | OffsetsDeletionAsked
    | GroupDeletionAsked
    | DescriptionAsked
)

# --- about the shard ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """
    The cluster image has other topics than before, or rules by which members see others. Whole, and never older than
    the one before.
    """

    at: Moment
    topics: Topics
    matches: Mapping[str, frozenset[str]]
    """For each of ``Shard.patterns()``: the topics that it matches now."""
    closed: bool = False
    """Rules decide which topics members see; so of a member that was not heard since the load that is not known."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """All records were replayed and the topics are known: serving begins; every member has a full session."""

    at: Moment


@dataclass(frozen=True, slots=True)
class Woken:
    """``Shard.next_wake_ms()`` has come, more or less."""

    at: Moment


@dataclass(frozen=True, slots=True)
class ShardEnrolled:
    """The answer to the ``EnrolShard`` of this number; exactly one comes, unless the shard is let go of."""

    number: int
    at: Moment
    error: HeadraceError | None
    """None: the shard is part of the open transaction, and will be told its end."""


ShardEvent = TopicsChanged | Loaded | Woken | ShardEnrolled

Event = MemberEvent | AdminEvent | ShardEvent
