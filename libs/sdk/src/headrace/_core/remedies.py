"""
Decides what a client does about an error of a broker or a coordinator: the one table of it, for producers, consumers,
groups and transactions.

An error has the same remedy whoever hears it, but where ``_BY_ASKER`` says otherwise. Leaders and coordinators are
found in different ways, so a leader's answer never has the remedy ``FIND``, and a coordinator's never ``REFRESH``:
what one says of the other passes, and is waited for. Retries are bounded elsewhere, by time or number.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace_common.core.errors import RETRIABLE, ErrorCode, HeadraceError, Kind

UNKNOWN_TOPIC_GRACE_MS: Final = 3_000
"""How long a topic may be unknown before callers are told: one that was just created is not known everywhere."""


class Remedy(Enum):
    """What to do next."""

    RETRY = "ask the same node again after a pause"
    REFRESH = "refresh metadata, then ask the leader it names"
    FIND = "find the coordinator again, then ask that"
    REJOIN = "join the group again; nothing is lost"
    START_OVER = "it is out of the group: what it holds is lost; join as a new member"
    RESET = "the position does not exist; apply auto_offset_reset"
    RAISE = "tell the application"


HOPELESS: Final = frozenset({Remedy.RAISE, Remedy.RESET})
"""For who asks for offsets and has no position: asking again does not help."""


GAP: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OPERATION_NOT_ATTEMPTED}
)
"""The leader has not the batch before this one."""

ABSENT: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.DISK_FULL,
        ErrorCode.OVERLOADED,
        ErrorCode.METADATA_UNAVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        # The leader could not enrol its partition with the transaction: nothing was appended.
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""After these a batch is surely not there, as far as this attempt goes; after what else passes it may be."""


_REFUSALS: Final = frozenset({Kind.UNAUTHENTICATED, Kind.DENIED})


def is_refusal(error: HeadraceError) -> bool:
    """
    Whether it is about who asks: nobody answers otherwise before the credential is another, or what it may do. So
    nothing is asked again, whoever said it and about whatever.
    """
    return error.kind in _REFUSALS


class Asker(Enum):
    """Who hears the error."""

    PRODUCER = "asks leaders to append"
    CONSUMER = "asks leaders for records and offsets"
    MEMBER = "speaks with its group's coordinator"
    COORDINATED = "asks a coordinator one thing: of a transaction, or of positions of a group"


_SILENCE: Final = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})
"""No answer came: somebody else may have taken over, leader and coordinator alike."""

_LEADER_MOVED: Final = _SILENCE | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
_COORDINATOR_MOVED: Final = _SILENCE | {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}

_PASSING: Final = dict.fromkeys(RETRIABLE, Remedy.RETRY)
_OF_LEADERS: Final = _PASSING | dict.fromkeys(_LEADER_MOVED, Remedy.REFRESH)
_OF_COORDINATORS: Final = _PASSING | dict.fromkeys(_COORDINATOR_MOVED, Remedy.FIND)

_BY_ASKER: Final[dict[Asker, dict[ErrorCode, Remedy]]] = {
    Asker.PRODUCER: _OF_LEADERS,
    Asker.CONSUMER: _OF_LEADERS
    | {
        ErrorCode.OFFSET_OUT_OF_RANGE: Remedy.RESET,
        ErrorCode.CORRUPT_MESSAGE: Remedy.RAISE,  # what is damaged in the log stays so; on its way in it may not
        ErrorCode.UNKNOWN_SERVER_ERROR: Remedy.RETRY,
    },
    Asker.MEMBER: _OF_COORDINATORS
    | {
        ErrorCode.REBALANCE_IN_PROGRESS: Remedy.REJOIN,
        ErrorCode.UNKNOWN_MEMBER_ID: Remedy.START_OVER,
        ErrorCode.ILLEGAL_GENERATION: Remedy.START_OVER,
        ErrorCode.FENCED_MEMBER_EPOCH: Remedy.START_OVER,
        ErrorCode.STALE_MEMBER_EPOCH: Remedy.START_OVER,
        ErrorCode.UNKNOWN_SERVER_ERROR: Remedy.RETRY,
    },
    Asker.COORDINATED: _OF_COORDINATORS
    | {ErrorCode.REBALANCE_IN_PROGRESS: Remedy.RAISE},  # it ends when the application polls, which waits for this call
}


def remedy_for(asker: Asker, code: ErrorCode) -> Remedy:
    """What ``asker`` does about ``code``; what no table names is told at once."""
    return _BY_ASKER[asker].get(code, Remedy.RAISE)
