"""What happens to a sink's task, and what it has to do: the words of ``sink_commit``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace_common.core.ids import TopicPartition
from headrace_connect.core.errors import Fault
from headrace_connect.core.pieces import Piece, Records, Row


class Step(Enum):
    """What has failed."""

    OPEN = "open"
    WRITE = "write"
    DEAD_LETTERS = "dead letters"
    COMMIT = "commit"
    SETTLE = "settle"
    GROUP = "group"


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """The group has given these to this member, at this epoch."""

    partitions: Collection[TopicPartition]
    epoch: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """The group wants these back; they are still this member's."""

    partitions: Collection[TopicPartition]


@dataclass(frozen=True, slots=True)
class Lost:
    """Others may have these by now."""

    partitions: Collection[TopicPartition]


@dataclass(frozen=True, slots=True)
class Opened:
    """What the target knows of the partitions that were opened."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Polled:
    """Records were read, in order, or only positions moved."""

    records: Sequence[Records]
    drained: bool
    """Whether there is nothing more for now."""
    now_ms: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """Dead letters are in a transaction that is prepared."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """The target has the group."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The prepared transaction is decided, as the target says."""


@dataclass(frozen=True, slots=True)
class GroupCommitted:
    """The group's offsets are committed, or that does not matter."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A step has failed."""

    step: Step
    fault: Fault
    retriable: bool
    reason: str
    now_ms: float
    refused: Mapping[Row, str] = field(default_factory=dict)
    """Records that are known to be bad."""
    taken: bool = False
    """The target has a higher epoch for a partition."""
    after_ms: float = 0
    """The target wants to be left alone for so long."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class FlushAsked:
    """Commit what was written, now."""


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """Commit what was written, and end."""


Event = (
    Assigned
    | Revoked
    | Lost
    | Opened
    | Polled
    | Prepared
    | Committed
    | Settled
    | GroupCommitted
    | Failed
    | Ticked
    | FlushAsked
    | CloseAsked
)

# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Open these, again too, each under its epoch."""

    epochs: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Seek:
    """Read on from these positions."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Write:
    """Write the piece's records, but for the bad ones."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Prepare:
    """Send these as dead letters in a transaction, and prepare it."""

    dead: Mapping[Row, str]


@dataclass(frozen=True, slots=True)
class SendDead:
    """Send these as dead letters, and wait until they are in their topic."""

    dead: Mapping[Row, str]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit what was written, with positions, and with the token if there is one."""

    positions: Mapping[TopicPartition, int]
    token: bytes | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """Decide the prepared transaction as the target says."""

    token: bytes


@dataclass(frozen=True, slots=True)
class CommitGroup:
    """Commit the group's offsets."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Show:
    """Have the group's offsets say what the target has; nothing depends on it."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Close:
    """Give these up in the target."""

    partitions: Collection[TopicPartition]


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Leave the group and join anew, for a higher epoch."""


@dataclass(frozen=True, slots=True)
class End:
    """The task ends; with a fault it has failed."""

    fault: Fault | None = None
    reason: str = ""


Effect = Open | Seek | Write | Prepare | SendDead | Commit | Settle | CommitGroup | Show | Close | Rejoin | End
