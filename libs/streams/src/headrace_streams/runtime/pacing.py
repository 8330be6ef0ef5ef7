"""How much is fed at once, so that a transaction ends in time."""

from __future__ import annotations

from typing import Final

_FIRST_ROWS: Final = 500
CAREFUL_TIMEOUTS: Final = 10
"""A worker is careful for so many of its transactions' timeouts."""


class Pace:
    """By what records of each topic took the last time. Pure."""

    def __init__(self, timeout_ms: float, budget_ms: float, rows_max: int) -> None:
        """
        Args:
            timeout_ms: how long a transaction may be open.
            budget_ms: what may be fed at once should take no longer.
        """
        self._timeout_ms = timeout_ms
        self._budget_ms = budget_ms
        self._rows_max = rows_max
        self._row_ms: dict[str, float] = {}
        self._careful_until_ms = float("-inf")

    def rows(self, topic: str) -> int:
        """How many records of it may be fed at once; 1 at least."""
        row_ms = self._row_ms.get(topic)
        if row_ms is None:
            return min(self._rows_max, _FIRST_ROWS)
        return max(1, int(min(self._rows_max, self._budget_ms / max(row_ms, 1e-6))))

    def took(self, topic: str, rows: int, ms: float) -> None:
        """So many were fed, in so long."""
        self._row_ms[topic] = ms / rows

    def was_too_long(self, now_ms: float) -> None:
        """A transaction was open for longer than it may; what it did comes again."""
        self._careful_until_ms = now_ms + CAREFUL_TIMEOUTS * self._timeout_ms

    def is_careful(self, now_ms: float) -> bool:
        """
        Whether nothing is to be fed while a transaction is open. Then it does not matter what one record takes: what a
        task writes begins the next transaction. It costs a commit for each part.
        """
        return now_ms < self._careful_until_ms
