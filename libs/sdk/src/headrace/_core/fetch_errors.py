"""
What a consumer does about an error of one partition: the one table of it.

``fetch_positions`` asks here for every error code in an answer to ``Fetch`` or ``ListOffsets``, or in what the group's
coordinator says of committed offsets.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace_common.core.errors import ErrorCode

UNKNOWN_TOPIC_GRACE_MS: Final = 3_000
"""How long a topic may be unknown before callers are told: one that was just created is not known everywhere."""


class Remedy(Enum):
    """What to do next."""

    REFRESH = "refresh metadata, then ask the leader it names"
    RETRY = "ask the same broker again after a pause"
    RESET = "the position does not exist; apply auto_offset_reset"
    RAISE = "tell the application"


_REMEDIES: Final = {
    ErrorCode.OFFSET_OUT_OF_RANGE: Remedy.RESET,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Remedy.REFRESH,
    ErrorCode.FENCED_LEADER_EPOCH: Remedy.REFRESH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Remedy.REFRESH,
    ErrorCode.LEADER_NOT_AVAILABLE: Remedy.REFRESH,
    ErrorCode.REPLICA_NOT_AVAILABLE: Remedy.REFRESH,
    ErrorCode.BROKER_NOT_AVAILABLE: Remedy.REFRESH,
    ErrorCode.KAFKA_STORAGE_ERROR: Remedy.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Remedy.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_ID: Remedy.REFRESH,
    ErrorCode.INCONSISTENT_TOPIC_ID: Remedy.REFRESH,
    ErrorCode.NETWORK_EXCEPTION: Remedy.REFRESH,
    ErrorCode.UNKNOWN_SERVER_ERROR: Remedy.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: Remedy.RETRY,
    ErrorCode.OFFSET_NOT_AVAILABLE: Remedy.RETRY,
    ErrorCode.OVERLOADED: Remedy.RETRY,
    ErrorCode.METADATA_UNAVAILABLE: Remedy.RETRY,
    ErrorCode.UNSTABLE_OFFSET_COMMIT: Remedy.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Remedy.RETRY,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Remedy.RETRY,
    ErrorCode.NOT_COORDINATOR: Remedy.RETRY,
}


def remedy_for(code: ErrorCode) -> Remedy:
    """What to do about ``code``. Retries are bounded elsewhere, by time; what is not listed is told at once."""
    return _REMEDIES.get(code, Remedy.RAISE)
