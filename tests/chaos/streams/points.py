"""Points of a worker's commit at which workers are killed or stopped, each about equally often."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

ABORTED: Final = "streams.aborted"
POINTS: Final = (
    "streams.fed",
    "streams.flushed",
    "streams.encoded",
    "streams.changelog",
    "sdk.txn.offsets.after",
    "sdk.txn.end.before",
    "sdk.txn.end.after",
    "streams.committed",
    "streams.kept",
    ABORTED,
)
"""One or more for each step of a commit."""
KILL, STOP = "kill", "stop"
ACTIONS: Final = (KILL, STOP)
PATIENCE_S: Final = 5.0
"""A point that nobody comes to for so long waits for another time."""

MISSES: Final = 10
"""So many count as a hit for what is armed next: the others have their turn too."""


class Points:
    """Arms one point after the other for workers that have this directory as ``HEADRACE_FAILPOINTS_DIR``."""

    def __init__(self, directory: Path, chance: random.Random, pause_s: float) -> None:
        """
        Args:
            pause_s: between one that was hit and the next.
        """
        self.directory = directory
        self.hits: Counter[tuple[str, str]] = Counter({(point, action): 0 for point in POINTS for action in ACTIONS})
        self._chance = chance
        self._pause_s = pause_s
        self._armed: tuple[str, str] | None = None
        self._at = time.monotonic()
        self._missed: Counter[tuple[str, str]] = Counter()
        directory.mkdir()

    def look(self) -> tuple[str, int] | None:
        """What has been done to a process since, and its id; arms the next point when it is time."""
        now = time.monotonic()
        if self._armed is None:
            if now - self._at >= self._pause_s:
                self._arm(now)
            return None
        point, action = self._armed
        hit = self.directory / f"{point}.hit"
        if hit.exists():
            pid = int(hit.read_text())
            hit.unlink()
            self.hits[self._armed] += 1
            self._armed, self._at = None, now
            return action, pid
        if now - self._at >= PATIENCE_S:
            (self.directory / point).unlink(missing_ok=True)
            if not any(self.directory.glob(f"{point}.*")):  # else a process has just come to it
                self._missed[self._armed] += 1
                self._armed, self._at = None, now
        return None

    def end(self) -> None:
        """Arm nothing more."""
        self._pause_s = float("inf")
        if self._armed is not None:
            with suppress(FileNotFoundError):  # else a process has just come to it: ``look`` will see
                (self.directory / self._armed[0]).unlink()
                self._armed = None

    def _arm(self, now: float) -> None:
        tried = {one: self.hits[one] + self._missed[one] // MISSES for one in self.hits}
        least = min(tried.values())
        rare = [one for one in tried if tried[one] == least]
        point, action = self._armed = self._chance.choice(rare)
        self._at = now
        (self.directory / f"{point}.new").write_text(action)
        (self.directory / f"{point}.new").rename(self.directory / point)

    @property
    def armed(self) -> str | None:
        """The point that waits for a process."""
        return None if self._armed is None else self._armed[0]

    @property
    def least(self) -> int:
        """How often the one was hit that was hit least."""
        return min(self.hits.values())
