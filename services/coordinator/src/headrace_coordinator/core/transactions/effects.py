"""
What must be done after an event, in this order. ``shard.TransactionShard.handle`` returns these; the engine carries
them out.

**The rule of durability** is that of groups (``core.effects``), ``group_id`` being the transactional id, or its owner
where it has one (``values.key_of``): nothing that follows a ``Persist`` of its key is seen before that is committed.
``TookProducerId`` tells nobody anything and is to be taken at once. ``Persist`` is the groups' own.

An append that is cut off in the middle does no harm, whichever of its rows got into the log, so long as they are the
first ones of it: see ``loading``.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.effects import Persist
from headrace_coordinator.core.transactions.values import EndCause, Producer, Token, TxnState

__all__ = [
    "Answer",
    "Completed",
    "DecideResult",
    "Effect",
    "InitResult",
    "OwnerResult",
    "Persist",
    "Result",
    "Tally",
    "TookProducerId",
    "TransactionDescription",
    "TransactionListing",
    "UnitResult",
    "Visible",
    "WriteMarkers",
]

# --- what is answered -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitResult:
    """To ``InitAsked``."""

    producer: Producer
    prepared: Token | None = None
    """The id has a prepared transaction: decide it, nothing else is possible."""


@dataclass(frozen=True, slots=True)
class DecideResult:
    """To ``DecideAsked``."""

    committed: bool
    """The verdict that holds; another than was asked for if the token was decided before."""
    next: Producer | None
    """What the producer that prepared it goes on with. None: the id has moved on, or two producers hold the token;
    whoever wants to write asks for an identity anew."""


@dataclass(frozen=True, slots=True)
class OwnerResult:
    """To ``OwnerInitAsked``."""

    owner_epoch: int
    last_sequence: int
    """Of the last unit that was committed; -1: none yet."""


@dataclass(frozen=True, slots=True)
class UnitResult:
    """To ``UnitAsked``."""

    repeated_sequence: bool
    """This sequence was decided before; nothing new was committed."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """To ``DescribeAsked``."""

    transactional_id: str
    state: TxnState
    producer: Producer
    timeout_ms: int
    started_at_ms: int
    """Wall clock; -1: no transaction is open, prepared or ending."""
    prepared_at_ms: int
    """Wall clock; -1: it is not prepared."""
    partitions: tuple[PartitionId, ...]
    """Of the open, prepared or ending transaction, in the order of enrolment."""
    without_marker: tuple[PartitionId, ...]
    """Ending: those that do not have their marker yet."""
    token: Token | None
    """Prepared: what decides it."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One line of a list."""

    transactional_id: str
    producer: Producer
    state: TxnState
    started_at_ms: int
    """Wall clock; -1: no transaction is open, prepared or ending."""
    prepared_at_ms: int
    """Wall clock; -1: it is not prepared."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a shard has to do, for measuring."""

    open: int
    prepared: int
    ending: int
    waiting: int
    """Requests that wait for an end."""
    oldest_open_at_ms: int
    """Wall clock; -1: none is open."""
    oldest_prepared_at_ms: int
    """Wall clock; -1: none is prepared."""


Result = InitResult | Producer | Token | DecideResult | OwnerResult | UnitResult | TransactionDescription | None

# --- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """To whoever waits for ``ref``: a result, or an error."""

    group_id: str
    ref: object
    result: Result | HeadraceError


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """
    Tell these partitions that the transaction has ended, for ever again until each has it; then ``MarkersWritten``.

    Comes once per end, and again after ``Loaded`` for all partitions, also those that have theirs: repeats are
    harmless. It is never taken back.
    """

    group_id: str
    transactional_id: str
    producer_id: int
    epoch: int
    """Of the markers; above the epoch of every record of the transaction."""
    commit: bool
    partitions: tuple[PartitionId, ...]
    """At least one."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A transaction is over: for measuring."""

    group_id: str
    transactional_id: str
    commit: bool
    cause: EndCause
    ending_ms: float
    """From the verdict, or from ``Loaded``, to the last marker; 0 where nothing had to be told."""


@dataclass(frozen=True, slots=True)
class TookProducerId:
    """
    The event's ``spare_producer_id`` is somebody's now, or kept for the request while it waits. Not to be held back.
    """

    producer_id: int


Visible = Answer | WriteMarkers | Completed
"""What the outbox holds back."""
Effect = Persist | Visible | TookProducerId
