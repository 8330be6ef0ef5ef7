"""What only consumers raise; see the tree in ``headrace.errors``."""

from __future__ import annotations

from headrace.errors import ErrorCode, Rejected


class NoPosition(Rejected):
    """A partition has no position and auto_offset_reset is 'none'; seek to where reading starts."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class GroupsUnavailable(Rejected):
    """Consumer groups come with the coordinator, which this version does not have."""

    code = ErrorCode.UNSUPPORTED_VERSION
