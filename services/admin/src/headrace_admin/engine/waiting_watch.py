"""
Looks again and again at what holds readers of read_committed back, for metrics and for the log: what hangs in one
partition is seen by nobody else, because no coordinator knows of it.

A background task of ``main``. Several admin processes look each for itself: they tell the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from headrace_admin.core.transactions import NOTHING_WAITS, OpenTransaction, Standing, Waiting
from headrace_admin.engine.open_transactions import OpenTransactions
from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import Clock, limit_ms

_LOOK_MS_MAX: Final = 10_000
_LOGGED_MAX: Final = 1_000
"""Hanging transactions that are remembered as told."""

_log = logging.getLogger(__name__)


class WaitingWatch:
    """One event loop; ``latest`` may be read from any thread."""

    def __init__(self, open_transactions: OpenTransactions, clock: Clock) -> None:
        self._open = open_transactions
        self._clock = clock
        self._told: set[tuple[object, int, int]] = set()
        self.latest: Waiting = NOTHING_WAITS
        self.looks_failed = 0
        """Looks without an answer: ``latest`` is then as old as the last one that had one."""

    async def follow(self) -> None:
        """Look for ever, with a pause of ``transaction_look_interval_ms`` between; 0: never."""
        interval_ms = self._open.limits.transaction_look_interval_ms
        while interval_ms:
            await self._clock.sleep_ms(interval_ms)
            await self.look()

    async def look(self) -> None:
        try:
            async with limit_ms(_LOOK_MS_MAX):
                self.latest = await self._open.waiting()
        except (HeadraceError, TimeoutError):
            self.looks_failed += 1
            return
        hanging = [t for t in self.latest.holding if t.standing is Standing.HANGING][:_LOGGED_MAX]
        for t in hanging:
            if _key(t) not in self._told:
                _log.warning(
                    "nobody is going to end what producer %d has open in %s from offset %d on; readers of "
                    "read_committed wait there",
                    t.producer_id,
                    t.partition,
                    t.first_offset,
                )
        self._told = {_key(t) for t in hanging}

    def readings(self) -> Mapping[str, Callable[[], float]]:
        """What gauges show, by name."""
        return {
            "hanging_transactions": self.hanging,
            "held_back_partitions": self.held_back,
            "held_back_records": self.held_back_records,
            "held_back_seconds": self.held_back_seconds,
            "prepared_overdue": self.overdue,
            "transaction_looks_failed": lambda: self.looks_failed,
        }

    def hanging(self) -> int:
        return sum(t.standing is Standing.HANGING for t in self.latest.holding)

    def held_back(self) -> int:
        """Partitions whose readers wait for longer than they do not notice."""
        return len(self.latest.holding)

    def held_back_records(self) -> int:
        """Records that they wait for, in all."""
        return sum(t.held_back for t in self.latest.holding)

    def held_back_seconds(self) -> float:
        """For how long the longest of them waits."""
        oldest_ms = min((t.since_ms for t in self.latest.holding), default=None)
        return 0.0 if oldest_ms is None else max(0, self._clock.now_ms() - oldest_ms) / 1_000

    def overdue(self) -> int:
        """Transactions that are prepared for longer than is allowed without an alarm."""
        return len(self.latest.overdue)


def _key(t: OpenTransaction) -> tuple[object, int, int]:
    return t.partition, t.producer_id, t.first_offset
