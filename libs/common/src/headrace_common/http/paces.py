"""
How fast callers of REST may be: so many requests a second of a principal, of an address without a credential, and of
reads of records, which cost brokers something. Counted as quotas are; each process counts by itself.

A cluster that is not closed knows nobody, so nobody is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import Request

from headrace_common.core.access.authentication import Shown
from headrace_common.core.connections import subscriber
from headrace_common.core.errors import ThrottlingQuotaExceeded
from headrace_common.core.quotas.meters import Counts
from headrace_common.core.quotas.token_bucket import BUCKET_S
from headrace_common.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class PaceBounds:
    """Requests a second, over ``BUCKET_S`` seconds; 0: as many as come."""

    caller: int
    stranger: int
    reads: int
    reads_at_once: int


class Paces:
    """One event loop."""

    def __init__(self, bounds: PaceBounds, clock: Clock, on: Callable[[], bool]) -> None:
        """``on``: whether the cluster is closed."""
        self._bounds = bounds
        self._clock = clock
        self._on = on
        self._callers = Counts()
        self._strangers = Counts()
        self._readers = Counts()
        self._reading: Counter[str] = Counter()

    def count_stranger(self, host: str) -> None:
        """
        A request without a credential that is valid, from this address.

        Raises:
            ThrottlingQuotaExceeded: there are too many.
        """
        address = subscriber(host)
        self._take(self._strangers, address, self._bounds.stranger, f"requests without a credential from {address}")

    async def count_sender(self, request: Request) -> None:
        """``count_stranger`` as a dependency of routes that ask for no credential."""
        self.count_stranger(request.client.host if request.client else "")

    def count_caller(self, shown: Shown) -> None:
        """
        A request of somebody.

        Raises:
            ThrottlingQuotaExceeded: there are too many.
        """
        who = str(shown.caller.principal)
        self._take(self._callers, who, self._bounds.caller, f"requests of {who}")

    @contextmanager
    def reading(self, shown: Shown) -> Iterator[None]:
        """
        Around a read of records.

        Raises:
            ThrottlingQuotaExceeded: there are too many, or too many at one time.
        """
        who, most = str(shown.caller.principal), self._bounds.reads_at_once
        if self._on() and most and self._reading[who] >= most:
            raise ThrottlingQuotaExceeded(f"{most} reads of records of {who} are under way, which is the most")
        self._take(self._readers, who, self._bounds.reads, f"reads of records of {who}")
        self._reading[who] += 1
        try:
            yield
        finally:
            self._reading[who] -= 1
            if not self._reading[who]:
                del self._reading[who]

    def _take(self, counts: Counts, who: str, most: int, what: str) -> None:
        if not most or not self._on():
            return
        now_ms = self._clock.monotonic_ms()
        if counts.find((who, ""), now_ms).take(1, most, now_ms) is not None:
            raise ThrottlingQuotaExceeded(
                f"more than {most} {what} a second, over {BUCKET_S} seconds; try again in a second"
            )
