"""
Points of a commit at which processes are killed or stopped, each about equally often: what the storms of Streams and
Connect have in common.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from tests.chaos.transactions.storm import Storm

from headrace.errors import HeadraceError
from headrace.testing import TestCluster

KILL, STOP = "kill", "stop"
ACTIONS: Final = (KILL, STOP)
PATIENCE_S: Final = 5.0
"""A point that nobody comes to for so long waits for another time."""

MISSES: Final = 10
"""So many count as a hit for what is armed next: the others have their turn too."""
ABORT_EVERY_S: Final = 0.25
HITTING_S: Final = 1_500.0
"""How long after a storm to go on at most, until each point was hit often enough."""
CALMER: Final = (5.0, 10.0)
"""Seconds between two other faults meanwhile."""


class Points:
    """Arms one point after the other for workers that have this directory as ``HEADRACE_FAILPOINTS_DIR``."""

    def __init__(self, directory: Path, points: Sequence[str], chance: random.Random, pause_s: float) -> None:
        """
        Args:
            pause_s: between one that was hit and the next.
        """
        self.directory = directory
        self.hits: Counter[tuple[str, str]] = Counter({(point, action): 0 for point in points for action in ACTIONS})
        self._chance = chance
        self._pause_s = pause_s
        self._armed: tuple[str, str] | None = None
        self._at = time.monotonic()
        self._missed: Counter[tuple[str, str]] = Counter()
        directory.mkdir(exist_ok=True)

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
            if not self._taken(point):
                self._missed[self._armed] += 1
                self._armed, self._at = None, now
        return None

    def _taken(self, point: str) -> bool:
        """Whether a process has just come to it. What one has left that something else killed there is removed."""
        for claim in self.directory.glob(f"{point}.*"):
            owner = claim.suffix.removeprefix(".")
            if owner.isdecimal() and _is_alive(int(owner)):
                return True
            if owner.isdecimal():
                claim.unlink(missing_ok=True)
        return (self.directory / f"{point}.hit").exists()

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

    @property
    def told(self) -> dict[str, int]:
        """How often each was hit."""
        return {f"{point} {action}": times for (point, action), times in sorted(self.hits.items())}


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def rage_until_hit(storm: Storm, seconds: float, groups: Sequence[Points], hits: int) -> None:
    """A storm for so long, and then a calmer one until each point was hit ``hits`` times; nothing is armed then."""
    storm.rage(seconds)
    storm.pauses = CALMER
    storm.rage(HITTING_S, enough=lambda: all(points.least >= hits for points in groups))
    for points in groups:
        points.end()


class Aborts:
    """An operator who aborts what is open."""

    def __init__(self, cluster: TestCluster) -> None:
        self._cluster = cluster
        self._at = float("-inf")

    def abort(self, at_most: int | None = 1) -> None:
        """Transactions that are open are aborted; it may fail while things are broken."""
        self._at = time.monotonic()
        with self._cluster.admin(default_api_timeout_ms=5_000) as admin:
            for one in admin.list_transactions(states=["ongoing"]).transactions[:at_most]:
                admin.abort_transaction(one.transactional_id)

    def abort_soon(self) -> None:
        """All of them, if that was not done just now and can be done now."""
        if time.monotonic() - self._at >= ABORT_EVERY_S:
            with suppress(HeadraceError):
                self.abort(None)
