"""How much is fed at once, so that a transaction ends in time."""

from __future__ import annotations

from typing import Final

_FIRST_ROWS: Final = 500


class Pace:
    """By what records of each topic took the last time. Pure."""

    def __init__(self, budget_ms: float, rows_max: int) -> None:
        """
        Args:
            budget_ms: what may be fed at once should take no longer.
        """
        self._budget_ms = budget_ms
        self._rows_max = rows_max
        self._row_ms: dict[str, float] = {}

    def rows(self, topic: str) -> int:
        """How many records of it may be fed at once; 1 at least."""
        row_ms = self._row_ms.get(topic)
        if row_ms is None:
            return min(self._rows_max, _FIRST_ROWS)
        return max(1, int(min(self._rows_max, self._budget_ms / max(row_ms, 1e-6))))

    def took(self, topic: str, rows: int, ms: float) -> None:
        """So many were fed, in so long."""
        self._row_ms[topic] = ms / rows
