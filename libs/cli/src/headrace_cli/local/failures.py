"""What can go wrong with a local cluster, each with a sentence that says what to do next."""

from __future__ import annotations

from headrace_common.core.errors import Busy, Conflict, ErrorCode, Internal, NotFound


class LocalClusterFailed(Internal):
    """The local cluster cannot do this."""


class StartFailed(LocalClusterFailed):
    """A process of the cluster does not start; the text has the end of its log."""


class StartTimedOut(Busy):
    """The cluster was not ready in time."""

    code = ErrorCode.REQUEST_TIMED_OUT


class AlreadyRunning(Conflict):
    """A cluster runs on this data directory already."""


class NotRunning(NotFound):
    """No cluster runs on this data directory."""
