"""
Decides up to where rows may be read: no row may come later that belongs before one that was read.

A bound is the largest value that is there. Rows up to it are complete when every transaction has ended that was open
after it was found: whoever begins later gets a larger number, or a later time. Pure; ids of transactions are opaque,
but for those that are prepared.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Final

PREPARED: Final = "-1/"
"""Ids of prepared transactions begin so: they have no session."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest value that may be read as soon as it is complete."""

    value: Any
    wait_ms: float = 0
    """As long as rows with smaller values may come, whatever transactions do."""


@dataclass(slots=True)
class Holding:
    """Of one table. Times are monotonic milliseconds."""

    complete: Bound | None = None
    """All rows up to it are there, and they are not all read."""
    _waiting: Bound | None = None
    _open: frozenset[str] = frozenset()
    _since_ms: float = 0

    @property
    def is_waiting(self) -> bool:
        """Whether there is a bound that is not complete."""
        return self._waiting is not None

    @property
    def waits_for(self) -> frozenset[str]:
        """The transactions that it is held back by."""
        return self._open

    def waited_ms(self, now_ms: float) -> float:
        """How long the bound has been waiting; there is one."""
        return now_ms - self._since_ms

    def find(self, bound: Bound, running: Set[str], now_ms: float) -> None:
        """
        Args:
            running: transactions that were open after ``bound`` was found.
        """
        assert self.complete is None, "it is read first"
        assert self._waiting is None, "one at a time"
        self._waiting, self._open, self._since_ms = bound, frozenset(running), now_ms
        self._look(now_ms)

    def look(self, running: Set[str], now_ms: float) -> None:
        """
        Args:
            running: transactions that are open now.
        """
        assert self._waiting is not None, "there is a bound"
        ended = self._open - running
        left = self._open & running
        if any(not one.startswith(PREPARED) for one in ended):
            # A session that has prepared its transaction is rid of it, and the transaction is not over.
            left |= {one for one in running if one.startswith(PREPARED)}
        self._open = frozenset(left)
        self._look(now_ms)

    def read(self) -> None:
        """There is nothing more up to the bound."""
        self.complete = None

    def _look(self, now_ms: float) -> None:
        assert self._waiting is not None
        if not self._open and self.waited_ms(now_ms) >= self._waiting.wait_ms:
            self.complete, self._waiting = self._waiting, None
