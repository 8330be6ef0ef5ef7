"""
What happens to the transactional ids of one shard. The engine builds these; ``shard.TransactionShard.handle`` takes
them.

``ref`` is anything hashable by which the engine finds who waits for the answer; each request has one of its own, and is
answered once, unless ``GaveUp`` takes it back. Chance and ids come in with the events: ``spare_producer_id`` is an id
that nobody has. If the effects of the event have ``TookProducerId`` it is used up, else it may come with another event.

What the engine uses of ``shard.TransactionShard``::

    TransactionShard(number: int, settings: TransactionSettings)
    replay(rows: Iterable[Row]) -> None       # before Loaded, as often as there are batches; reads them (may run in a
                                              # thread); raises RecordDamaged, UnsupportedVersion
    handle(event: Event) -> list[Effect]
    next_wake_ms() -> float | None            # monotonic; send Woken then (late is harmless, early too)
    listing() -> list[TransactionListing]     # all ids, by name
    tally() -> Tally                          # open, prepared, ending now; costs what these are

Order that the engine keeps: ``replay`` with the log's records, ``Loaded`` once, then the rest. A ``MarkersWritten`` may
come late, twice, or of a transaction that is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.transactions.values import Token
from headrace_coordinator.core.values import Moment

# --- of producers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitAsked:
    """A producer wants to be the only one of its id. ``InitResult``; it waits while a transaction is being ended."""

    transactional_id: str
    ref: object
    at: Moment
    timeout_ms: int
    owner_epoch: int | None
    """Of an id ``owner/suffix``, from ``OwnerResult``; None for others."""
    spare_producer_id: int


@dataclass(frozen=True, slots=True)
class EnrolAsked:
    """A partition leader is about to write the first records of a transaction. None: it may; the end will be told."""

    transactional_id: str
    ref: object
    at: Moment
    producer_id: int
    epoch: int
    partitions: Sequence[PartitionId]
    """At least one."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    """The producer commits or aborts. ``Producer``: what the next transaction is written under."""

    transactional_id: str
    ref: object
    at: Moment
    producer_id: int
    epoch: int
    commit: bool
    spare_producer_id: int


@dataclass(frozen=True, slots=True)
class PrepareAsked:
    """The producer leaves the decision to whoever holds the token. ``Token``."""

    transactional_id: str
    ref: object
    at: Moment
    producer_id: int
    epoch: int
    owner_epoch: int | None
    """As in ``InitAsked``."""
    nonce: int
    """Drawn at random out of 1 to 2^64 - 1."""


@dataclass(frozen=True, slots=True)
class DecideAsked:
    """Somebody decides a prepared transaction. ``DecideResult``."""

    token: Token
    ref: object
    at: Moment
    commit: bool
    spare_producer_id: int

    @property
    def transactional_id(self) -> str:
        """Which the token names."""
        return self.token.transactional_id


# --- of owners ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerInitAsked:
    """Somebody becomes the owner of ``owner/...``; what the one before left undecided is aborted. ``OwnerResult``."""

    owner: str
    ref: object
    at: Moment
    claim: int | None = None
    """From 0. With that of the present epoch: the same epoch, and nothing is aborted. None: a new epoch in any case."""


@dataclass(frozen=True, slots=True)
class UnitAsked:
    """The owner commits the listed prepared transactions at once and aborts its other prepared ones. ``UnitResult``."""

    owner: str
    ref: object
    at: Moment
    owner_epoch: int
    sequence: int
    """From 0."""
    tokens: Sequence[Token]


# --- of operators ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AbortAsked:
    """An operator aborts an open transaction. None."""

    transactional_id: str
    ref: object
    at: Moment
    producer_id: int | None = None
    """Abort only what this producer has open; None: whichever is open."""
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class DescribeAsked:
    """``TransactionDescription``. Only reads; the engine has to see that it is current."""

    transactional_id: str
    ref: object


# --- of the engine --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """These partitions have the marker that ``WriteMarkers`` asked for, or have moved on, or are no more."""

    transactional_id: str
    at: Moment
    producer_id: int
    """As in ``WriteMarkers``."""
    epoch: int
    """As in ``WriteMarkers``."""
    partitions: Sequence[PartitionId]


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Whoever asked waits no more: if the request still waits for an end it is forgotten. Else nothing happens."""

    transactional_id: str
    ref: object


@dataclass(frozen=True, slots=True)
class Loaded:
    """All records were replayed; begin to serve."""

    at: Moment


@dataclass(frozen=True, slots=True)
class Woken:
    """``next_wake_ms`` has come."""

    at: Moment


Request = InitAsked | EnrolAsked | EndAsked | PrepareAsked
"""What may wait for the end of a transaction."""
Event = (
    Request
    | DecideAsked
    | OwnerInitAsked
    | UnitAsked
    | AbortAsked
    | DescribeAsked
    | MarkersWritten
    | GaveUp
    | Loaded
    | Woken
)
