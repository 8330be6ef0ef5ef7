"""
What a member of a group says to its coordinator and hears from it, what happens to it, and what it wants done.

Made by the shell (``aio._group``) and the two machines (``membership_classic``, ``membership_consumer``). Times are
monotonic milliseconds. What never changes (group, instance id, timeouts) is in ``GroupSettings``, not in messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headrace.records import Committed
from headrace.work_types import WorkShare
from headrace_common.core.assignors import MemberSubscription
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import TopicPartition

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What the machines are made with."""

    group_id: str
    instance_id: str | None = None
    assignors: tuple[str, ...] = ("range",)
    """Classic protocol: names in the order of preference."""
    cooperative: bool = False
    """Whether all of them let members keep what they hold while they join again."""
    cooperative_names: frozenset[str] = frozenset()
    """Those that look at what members still hold, not at what they were assigned last."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    api_timeout_ms: int = 60_000


# --- what goes up ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """Classic: join, or join again."""

    member_id: str
    topics: tuple[str, ...]
    held: Partitions
    """For cooperative assignors: what it holds and keeps."""
    assigned: Partitions
    """For the others: what it had last."""
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Sync:
    """Classic: ask for the assignment; the leader sends all."""

    member_id: str
    generation: int
    assignments: Mapping[str, Partitions] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """The partition counts that the leader decided from: a static leader that is started again gets them back."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Classic: a heartbeat."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Report:
    """Server-side protocol: a heartbeat. None: unchanged."""

    member_id: str
    epoch: int
    whole: bool = False
    """With everything that the coordinator may not know: time limits, rack, assignor."""
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    owned: Partitions | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Classic: out at once."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkReport:
    """Of a work group's member. None: unchanged."""

    member_id: str
    epoch: int
    whole: bool = False
    """With everything that the coordinator may not know: what is declared, and what the process says of itself."""
    owned: frozenset[str] | None = None
    lags: Mapping[str, int] | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    declares: bool = False
    """With what is declared, which is something else than before."""


Request = Join | Sync | Beat | Report | WorkReport | Leave


# --- what comes down ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """Answers ``Join``; ``members`` is for the leader."""

    error: HeadraceError | None
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: Mapping[str, MemberSubscription] = field(default_factory=dict)
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """Answers ``Sync``."""

    error: HeadraceError | None
    generation: int = -1
    partitions: Partitions = NOTHING
    counts: Mapping[str, int] = field(default_factory=dict)
    """Only for the leader: what it, or who led under its name before, decided from."""


@dataclass(frozen=True, slots=True)
class BeatAnswered:
    """Answers ``Beat``, or comes unasked."""

    error: HeadraceError | None
    generation: int = -1


@dataclass(frozen=True, slots=True)
class Reported:
    """Answers ``Report``, or comes unasked. ``assignment`` None: unchanged."""

    error: HeadraceError | None
    member_id: str = ""
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    session_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class WorkReported:
    """Answers ``WorkReport``, or comes unasked. ``share`` None: unchanged."""

    error: HeadraceError | None
    member_id: str = ""
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    session_timeout_ms: int = 0
    share: WorkShare | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """Answers ``Leave``."""

    error: HeadraceError | None


Answer = Joined | Synced | BeatAnswered | Reported | WorkReported | Left


# --- what happens ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The application wants these topics, or those whose whole name the pattern matches. Begins the membership."""

    topics: tuple[str, ...]
    pattern: str | None
    now_ms: float


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream to the coordinator is there; nothing was said on it yet."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Broke:
    """The stream broke, or could not be opened."""

    error: HeadraceError
    now_ms: float


@dataclass(frozen=True, slots=True)
class Told:
    """The coordinator said something."""

    answer: Answer
    now_ms: float


@dataclass(frozen=True, slots=True)
class TopicsSeen:
    """Metadata: how many partitions topics have; with a pattern of all topics, else of the watched ones."""

    counts: Mapping[str, int]
    now_ms: float


@dataclass(frozen=True, slots=True)
class Computed:
    """The assignment that the leader of a generation was asked for, and the partition counts it was made from."""

    generation: int
    assignments: Mapping[str, Partitions]
    counts: Mapping[str, int]
    now_ms: float


@dataclass(frozen=True, slots=True)
class NotComputed:
    """The assignor, or the metadata it needs, has failed."""

    generation: int
    error: HeadraceError
    now_ms: float


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Where partitions start: a committed offset with its leader epoch; None: nothing is committed."""

    version: int
    offsets: Mapping[TopicPartition, Committed | None]
    now_ms: float


@dataclass(frozen=True, slots=True)
class NotLookedUp:
    """Committed offsets could not be had, after retries."""

    version: int
    error: HeadraceError
    now_ms: float


@dataclass(frozen=True, slots=True)
class Did:
    """The application has done a job."""

    job: Job
    now_ms: float


@dataclass(frozen=True, slots=True)
class Polled:
    """The application polls; needed only after the member left because it did not."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Closing:
    """The application has let go of everything and wants out."""

    now_ms: float


Event = (
    Subscribed
    | Opened
    | Broke
    | Told
    | TopicsSeen
    | Computed
    | NotComputed
    | LookedUp
    | NotLookedUp
    | Did
    | Polled
    | Ticked
    | Closing
)


# --- what is to be done ---------------------------------------------------------------------------------------


class Kind(Enum):
    """What the application has to do with partitions, at its next step."""

    REVOKE = "give them up: commit, on_revoke"
    LOSE = "they are somebody else's by now: on_lost, no commit"
    ASSIGN = "read them: on_assign"


@dataclass(frozen=True, slots=True)
class Job:
    """One change of what the application holds."""

    kind: Kind
    partitions: Partitions
    offsets: Mapping[TopicPartition, Committed | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connect:
    """Find the coordinator and open a stream after a pause; close the one there is, if any, now."""

    after_ms: float


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the stream."""


@dataclass(frozen=True, slots=True)
class Send:
    """Say this on the stream."""

    request: Request


@dataclass(frozen=True, slots=True)
class Compute:
    """Let the assignor of this name decide; answer with ``Computed`` or ``NotComputed``."""

    generation: int
    protocol: str
    members: Mapping[str, MemberSubscription]


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask for committed offsets; answer with ``LookedUp`` or ``NotLookedUp``."""

    version: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell people."""

    text: str


@dataclass(frozen=True, slots=True)
class Notify:
    """The application has a job, or a failure to be told."""


Effect = Connect | HangUp | Send | Compute | LookUp | Warn | Notify
