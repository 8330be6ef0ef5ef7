"""
Logins that failed: whoever goes on guessing waits longer and longer.

It counts by user *and* address, never by user alone: else anybody could lock out somebody else. Each process counts by
itself, and forgets with its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.core.errors import Unauthenticated

FREE: Final = 5
"""Within a minute; each more costs a minute more."""
MINUTE_MS: Final = 60_000
WAIT_MS_MAX: Final = 60 * MINUTE_MS
REMEMBERED_MAX: Final = 10_000


@dataclass(slots=True)
class _Failures:
    count: int
    last_ms: float
    until_ms: float = 0


class FailedLogins:
    """The latest of one process, bounded: who failed longest ago is forgotten first. One event loop."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], _Failures] = {}

    def check(self, user: str, address: str, now_ms: float) -> None:
        """
        Args:
            address: where the login comes from.
            now_ms: monotonic.

        Raises:
            Unauthenticated: it failed too often from there, and has to wait.
        """
        found = self._failures.get((user, address))
        if found is not None and now_ms < found.until_ms:
            left_s = round((found.until_ms - now_ms) / 1_000) or 1
            raise Unauthenticated(f"logins of this user from {address} have failed too often; try again in {left_s} s")

    def failed(self, user: str, address: str, now_ms: float) -> None:
        """One more has."""
        found = self._failures.pop((user, address), None)
        if found is None or now_ms - max(found.last_ms, found.until_ms) >= MINUTE_MS:
            found = _Failures(0, now_ms)
        found.count += 1
        found.last_ms = now_ms
        if found.count >= FREE:
            found.until_ms = now_ms + min(WAIT_MS_MAX, (found.count - FREE + 1) * MINUTE_MS)
        if len(self._failures) >= REMEMBERED_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[user, address] = found

    def succeeded(self, user: str, address: str) -> None:
        """It begins anew."""
        self._failures.pop((user, address), None)
