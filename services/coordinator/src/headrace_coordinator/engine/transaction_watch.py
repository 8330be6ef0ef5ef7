"""
Counts transactions for metrics, and tells operators of prepared ones that nobody decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_coordinator.core.transactions.values import NO_TIME, TxnState
from headrace_coordinator.engine.marker_driver import MarkerDriver
from headrace_coordinator.engine.transactions import Transactions

INTERVAL_MS: Final = 5_000.0
TOLD_MAX: Final = 20
"""Overdue transactions that are named in the log at each look."""
TELL_EVERY_MS: Final = 600_000.0

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionCensus:
    """What was found at the last look."""

    open: int = 0
    prepared: int = 0
    ending: int = 0
    waiting: int = 0
    """Requests that wait for an end."""
    oldest_open_ms: float = 0.0
    """Age; 0: none is open."""
    oldest_prepared_ms: float = 0.0
    """Age; 0: none is prepared."""
    overdue: int = 0
    """Prepared for longer than ``transaction.prepared.max.ms``."""
    without_markers: int = 0
    """Decided transactions whose end is not everywhere yet, of the marker driver."""


class TransactionWatch:
    """One per process; ``census`` may be read from any thread."""

    def __init__(
        self, transactions: Transactions, driver: MarkerDriver, clock: Clock, *, prepared_ms_max: float
    ) -> None:
        self.census = TransactionCensus()
        self._transactions = transactions
        self._driver = driver
        self._clock = clock
        self._prepared_ms_max = prepared_ms_max
        self._told_ms = -TELL_EVERY_MS

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            self.look()

    def look(self) -> None:
        now_ms = self._clock.now_ms()
        tallies = [tally for host in self._transactions.hosts if (tally := host.tally()) is not None]

        def age(times_ms: list[int]) -> float:
            known = [at_ms for at_ms in times_ms if at_ms != NO_TIME]
            return max(0.0, now_ms - min(known)) if known else 0.0

        oldest_prepared_ms = age([tally.oldest_prepared_at_ms for tally in tallies])
        self.census = TransactionCensus(
            sum(tally.open for tally in tallies),
            sum(tally.prepared for tally in tallies),
            sum(tally.ending for tally in tallies),
            sum(tally.waiting for tally in tallies),
            age([tally.oldest_open_at_ms for tally in tallies]),
            oldest_prepared_ms,
            self._overdue(now_ms) if oldest_prepared_ms > self._prepared_ms_max else 0,
            self._driver.endings,
        )

    def _overdue(self, now_ms: int) -> int:
        prepared, _ = self._transactions.list_transactions({TxnState.PREPARED}, (), 0)
        late = [one for one in prepared if now_ms - one.prepared_at_ms > self._prepared_ms_max]
        if self._clock.monotonic_ms() - self._told_ms >= TELL_EVERY_MS:
            self._told_ms = self._clock.monotonic_ms()
            for one in late[:TOLD_MAX]:
                log.warning(
                    "a prepared transaction is undecided for long and holds readers back; commit or abort it",
                    extra={"transactional_id": one.transactional_id, "age_ms": now_ms - one.prepared_at_ms},
                )
        return len(late)
