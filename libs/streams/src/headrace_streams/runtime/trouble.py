"""Failures of a worker: which it gets over, and for how long it tries."""

from __future__ import annotations

from typing import Final

from headrace_common.core.error_kinds import Kind
from headrace_common.core.errors import (
    FencedInstanceId,
    FencedWriter,
    HeadraceError,
    InconsistentGroupProtocol,
    Internal,
    InvalidRecord,
    OffsetOutOfRange,
    RecordTooLarge,
    Rejected,
)
from headrace_common.runtime.clock import Clock

_PASSES: Final = (OffsetOutOfRange, InconsistentGroupProtocol)
"""A worker goes on elsewhere, or when others have ended."""
CALM_MS: Final = 10_000.0
"""Trouble that comes back after so long is new trouble."""


class Trouble:
    """Since when a worker has not got on."""

    def __init__(self, clock: Clock, limit_ms: float) -> None:
        """
        Args:
            limit_ms: ``default_api_timeout_ms``: trouble that lasts for so long ends the worker.
        """
        self._clock = clock
        self._limit_ms = limit_ms
        self._since_ms = self._last_ms = float("-inf")
        self._fences = 0
        self.final: HeadraceError | None = None
        """What is known to come again, whatever is tried."""

    def judge(self, error: HeadraceError) -> None:
        """
        Whether to go on after it.

        Raises:
            HeadraceError: it cannot go on, or has not got on for too long.
        """
        now = self._clock.monotonic_ms()
        if now - self._last_ms > CALM_MS:
            self._since_ms = now
        self._last_ms = now
        self._fences += isinstance(error, FencedWriter) or isinstance(error.__cause__, FencedWriter)
        lasting = now - self._since_ms >= self._limit_ms
        fatal = isinstance(error, (Rejected, Internal, FencedInstanceId)) and not isinstance(error, _PASSES)
        for refused in (error, error.__cause__):
            if isinstance(refused, (InvalidRecord, RecordTooLarge)):
                raise refused  # what a broker does not take, it does not take when the same is done again
        if lasting or fatal or (error is self.final and not puts_out(error)):
            raise error

    def end(self) -> None:
        """It got on."""
        self._last_ms = float("-inf")
        self._fences = 0

    @property
    def is_fenced(self) -> bool:
        """
        Whether a changelog has refused its token twice since it got on. Whom the group has put out hears of that in
        between; a member with too low a token is given a higher one when it takes its tasks anew.
        """
        return self._fences > 1


def puts_out(error: HeadraceError) -> bool:
    """Whether it says that another has this worker's place."""
    return error.kind is Kind.FENCED and not isinstance(error, FencedInstanceId)
