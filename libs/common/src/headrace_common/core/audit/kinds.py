"""
The kinds of events, one row each: whether an answer waits for it, what happens when it cannot be written, and how often
the same is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS


class EventClass(IntEnum):
    """Class ids of OCSF (Open Cybersecurity Schema Framework)."""

    ACCOUNT_CHANGE = 3001
    AUTHENTICATION = 3002
    API_ACTIVITY = 6003


class Kind(Enum):
    """What has happened; the value is how it is written."""

    ACCESS_CHANGED = "access_changed"
    """Rules, roles, users, keys, blocks, quotas, the mode, break-glass, a CA."""
    ADMINISTERED = "administered"
    """Topics, configs, trims, offsets, groups, moves, elections, nodes, restores, transactions of others."""
    NODE_REGISTERED = "node_registered"
    """With the public key that its seals are checked by."""
    NODES_COUNTED = "nodes_counted"
    """How many events the nodes have, as they say: so the end of one that runs cannot be removed unseen."""
    AUTHENTICATION_FAILED = "authentication_failed"
    OPERATION_REFUSED = "operation_refused"
    OPERATION_TOLERATED = "operation_tolerated"
    """What a closed cluster would refuse, done in mode permissive."""
    NODE_CLAIM_REFUSED = "node_claim_refused"
    """A call that was not what it said: another node, or none."""
    SESSION_BEGUN = "session_begun"
    RECORDS_READ = "records_read"
    RECORDS_WRITTEN = "records_written"
    JOURNAL_BEGUN = "journal_begun"
    """The first event of every start of a node: so a start without events is one of which they were removed."""
    EVENTS_DROPPED = "events_dropped"
    """Events that could not be written, by their number; ``change`` says of which kinds."""


class WhenFull(Enum):
    """What happens to an event when the journal has no room."""

    REFUSE = "refuse"
    """What it is about is not done: AUDIT_UNAVAILABLE."""
    REFUSE_UNLESS_SET = "refuse_unless_set"
    """The same, unless the setting ``audit.on.full`` is ``drop``."""
    DROP = "drop"
    """It is counted only."""


class Treatment(NamedTuple):
    """How events of a kind are treated."""

    event_class: EventClass
    when_full: WhenFull
    period_ms: int | None = None
    """The same event is written at once, then once in this time with a count; None: each one is written."""

    @property
    def before_answer(self) -> bool:
        """Whether the caller is answered once it is written, and not before."""
        return self.when_full is not WhenFull.DROP


_DROP: Final = WhenFull.DROP

TREATMENTS: Final[Mapping[Kind, Treatment]] = MappingProxyType(
    {
        Kind.ACCESS_CHANGED: Treatment(EventClass.ACCOUNT_CHANGE, WhenFull.REFUSE),
        Kind.ADMINISTERED: Treatment(EventClass.API_ACTIVITY, WhenFull.REFUSE_UNLESS_SET),
        Kind.NODE_REGISTERED: Treatment(EventClass.ACCOUNT_CHANGE, _DROP),
        Kind.NODES_COUNTED: Treatment(EventClass.API_ACTIVITY, _DROP),
        Kind.AUTHENTICATION_FAILED: Treatment(EventClass.AUTHENTICATION, _DROP, MINUTE_MS),
        Kind.OPERATION_REFUSED: Treatment(EventClass.API_ACTIVITY, _DROP, MINUTE_MS),
        Kind.OPERATION_TOLERATED: Treatment(EventClass.API_ACTIVITY, _DROP, MINUTE_MS),
        Kind.NODE_CLAIM_REFUSED: Treatment(EventClass.AUTHENTICATION, _DROP, MINUTE_MS),
        Kind.SESSION_BEGUN: Treatment(EventClass.AUTHENTICATION, _DROP, HOUR_MS),
        Kind.RECORDS_READ: Treatment(EventClass.API_ACTIVITY, _DROP, MINUTE_MS),
        Kind.RECORDS_WRITTEN: Treatment(EventClass.API_ACTIVITY, _DROP, MINUTE_MS),
        Kind.JOURNAL_BEGUN: Treatment(EventClass.API_ACTIVITY, _DROP),
        Kind.EVENTS_DROPPED: Treatment(EventClass.API_ACTIVITY, _DROP),
    }
)
