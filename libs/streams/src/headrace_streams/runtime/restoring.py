"""What a worker says of tasks whose state is being restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_EVERY_MS: Final = 3_000.0
"""How often it is said; what takes less is not said at all."""
_NAMED: Final = 3
"""So many tasks are named."""
_FENCE: Final = 1
"""Whoever takes a task over has set a fence, which is the last record of its changelog and no state."""


class Restoring:
    """How far the state is of tasks that are being taken over."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._said_at_ms = 0.0

    def seen(self, left: Mapping[str, int], now_ms: float) -> str:
        """
        What to say now, if anything.

        Args:
            left: how many records of its changelog are left, of each task that is being taken over.
        """
        left = {task: count for task, count in left.items() if count > _FENCE}
        if not left:
            self._most.clear()
            return ""
        if not self._most:
            self._said_at_ms = now_ms
        for task, count in left.items():
            self._most[task] = max(count, self._most.get(task, 0))
        if now_ms - self._said_at_ms < _EVERY_MS:
            return ""
        self._said_at_ms = now_ms
        most = sum(self._most.values())
        named = sorted(left.items(), key=lambda task: -task[1])[:_NAMED]
        listed = ", ".join(f"{count:,} of {task}" for task, count in named)
        more = ", …" if len(left) > _NAMED else ""
        return f"{1 - sum(left.values()) / most:.0%} of {most:,} records of state are restored; left: {listed}{more}"
