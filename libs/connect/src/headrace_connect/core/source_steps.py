"""What happens to a source's task, and what it has to do: the words of ``source_commit``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_connect.core.errors import Fault

Position = Mapping[str, Any]

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The task begins."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The owner is this generation's, and this task has its id: whoever had it before writes nothing any more."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A newer generation, or a newer copy of this task, is there."""


@dataclass(frozen=True, slots=True)
class IdForgotten:
    """The coordinator does not know the id any more; it was silent for too long."""


@dataclass(frozen=True, slots=True)
class Located:
    """What is committed of the task's splits; those that are not in it begin at their beginning."""

    positions: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A chunk, or a part of one, was read; nothing of it is sent yet."""

    split: str
    position: Position
    rows: int
    """Records and dead letters."""
    bytes: int
    boundary: bool
    drained: bool
    now_ms: float
    last: bool = True
    """False: it is a part of a chunk, and the position counts with the last one."""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """Reading a split has ended with an error."""

    split: str
    retriable: bool
    fault: Fault
    reason: str
    now_ms: float
    after_ms: float = 0
    """The source wants to be left alone for so long."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Committed:
    """Rows and positions are in their topics."""


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """Nobody can tell yet whether the commit took place."""


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """Something of the transaction was not delivered: it can only be aborted."""

    reason: str
    now_ms: float


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing of the transaction will ever be seen."""


@dataclass(frozen=True, slots=True)
class Unwritable:
    """A record that nobody will ever take, and bad records are not tolerated."""

    reason: str


@dataclass(frozen=True, slots=True)
class SuspendAsked:
    """Commit what there is, and read no more."""


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """Read on."""


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """Commit what there is, and end."""


Event = (
    Started
    | Claimed
    | Refused
    | IdForgotten
    | Located
    | Arrived
    | ReadFailed
    | Ticked
    | Committed
    | OutcomeUnknown
    | NotDelivered
    | Aborted
    | Unwritable
    | SuspendAsked
    | ResumeAsked
    | CloseAsked
)

# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim the owner with the task's generation and take the task's id."""


@dataclass(frozen=True, slots=True)
class Locate:
    """Read the offset topic to the high watermark that it has now."""


@dataclass(frozen=True, slots=True)
class Read:
    """Begin to read these splits behind these positions; None: from the beginning."""

    after: Mapping[str, Position | None]
    at_ms: float | None = None
    """Not before this time; None: now."""


@dataclass(frozen=True, slots=True)
class Halt:
    """End all reading, and drop chunks that have not arrived."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send the chunk that has arrived, dead letters too."""


@dataclass(frozen=True, slots=True)
class SendPositions:
    """Send these to the offset topic."""

    positions: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the transaction; again: ask the same again."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort the transaction."""

    reason: str = ""
    """Why, where nobody has said it yet."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Tell the source that it may forget what is up to these."""

    positions: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class End:
    """The task ends; with a fault it has failed."""

    fault: Fault | None = None
    reason: str = ""


Effect = Claim | Locate | Read | Halt | Begin | Send | SendPositions | Commit | Abort | Confirm | End
