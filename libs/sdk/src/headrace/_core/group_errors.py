"""What a member of a group does about what its coordinator says. Called by the membership machines and by commits."""

from __future__ import annotations

from enum import Enum

from headrace_common.core.errors import ErrorCode, HeadraceError


class Remedy(Enum):
    """What to do next."""

    RECONNECT = "find the coordinator and try again"
    REJOIN = "join again; nothing is lost"
    START_OVER = "it is out: what it holds is lost; join as a new member"
    RAISE = "tell the application; only it can help"


_REMEDIES = {
    ErrorCode.REBALANCE_IN_PROGRESS: Remedy.REJOIN,
    ErrorCode.UNKNOWN_MEMBER_ID: Remedy.START_OVER,
    ErrorCode.ILLEGAL_GENERATION: Remedy.START_OVER,
    ErrorCode.FENCED_MEMBER_EPOCH: Remedy.START_OVER,
    ErrorCode.STALE_MEMBER_EPOCH: Remedy.START_OVER,
    ErrorCode.UNKNOWN_SERVER_ERROR: Remedy.RECONNECT,
}

FORGET_COORDINATOR = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""After these somebody else may have the group."""


def remedy_for(error: HeadraceError) -> Remedy:
    """What to do about ``error``; what a coordinator says of itself, and all that may pass, is waited for."""
    known = _REMEDIES.get(error.code)
    if known is not None:
        return known
    return Remedy.RECONNECT if error.retriable else Remedy.RAISE
