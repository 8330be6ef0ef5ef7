"""
What happens to a Spark application and its cluster: faults drawn from a seed, and faults at named points.

What was killed comes back: the cluster's processes by their supervisor, the application as its next life.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.testing import TestCluster
from headrace_cli.local.failures import NotRunning
from headrace_cli.local.state import Health

from ..transactions.storm import LOOK_S, until
from .lives import PATIENCE_S, Life, Lives

FAULTS: dict[str, int] = {
    "kill application": 1,
    "kill jvm": 1,
    "replace application": 1,
    "kill python": 5,
    "kill broker-1": 1,
    "kill broker-2": 1,
    "kill broker-3": 1,
    "kill coordinator-1": 2,
    "kill coordinator-2": 2,
    "kill controller-1": 1,
    "pause broker-1": 1,
    "pause coordinator-1": 1,
    "pause coordinator-2": 1,
}
"""What happens, and how often beside the others."""
LIVES = ("application", "jvm")
PAUSE_S = (1.0, 5.0)
SLEEPS_BATCHES = (0, 3)
"""A stopped application goes on after its successor has done so many batches."""


@dataclass
class Weather:
    """Hurts both, and tells when."""

    cluster: TestCluster
    lives: Lives
    done: Callable[[], int]
    """How many batches are done, of all queries."""
    chance: random.Random
    faults: dict[str, int] = field(default_factory=lambda: dict(FAULTS))
    between: tuple[float, float] = (2.0, 6.0)
    told: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    paused: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def rage(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Faults for so long, or until there were enough."""
        end, next_at = time.monotonic() + seconds, 0.0
        try:
            while time.monotonic() < end and not enough():
                time.sleep(LOOK_S)
                self.lives.tend()
                self._wake()
                if time.monotonic() >= next_at:
                    next_at = time.monotonic() + self.chance.uniform(*self.between)
                    self.hurt(self.chance.choices(list(self.faults), list(self.faults.values()))[0])
        finally:
            self._wake(all_of_them=True)
        self.tell("the storm is over")
        self.cluster.local.wait_ready()

    def hurt(self, fault: str) -> None:
        """One fault, if there is somebody whom it can hit; applications are left alone until they work."""
        what, _, who = fault.partition(" ")
        if who in LIVES and (self.lives.now is None or not self.lives.now.at_work() or self.lives.asleep):
            return
        if fault == "kill application":
            self.lives.kill()
        elif fault == "kill jvm":
            self.lives.kill_java()
        elif fault == "replace application":
            self.lives.replace(self.later(self.chance.randint(*SLEEPS_BATCHES)))
        elif fault == "kill python":
            if not self.lives.kill_python(self.chance.choice):
                return
        elif not self._hurt_cluster(what, who):
            return
        self.counts[f"{what} {who.partition('-')[0]}"] += 1
        self.tell(fault)

    def _hurt_cluster(self, what: str, who: str) -> bool:
        if who in self.paused or self.cluster.local.process(who).health is not Health.READY:
            return False  # it has not come back yet
        with contextlib.suppress(NotRunning):
            if what == "kill":
                self.cluster.local.kill(who)
            else:
                self.cluster.local.signal(who, signal.SIGSTOP)
                self.paused[who] = time.monotonic() + self.chance.uniform(*PAUSE_S)
        return True

    def _wake(self, *, all_of_them: bool = False) -> None:
        for name, at in list(self.paused.items()):
            if all_of_them or time.monotonic() >= at:
                del self.paused[name]
                with contextlib.suppress(NotRunning):
                    self.cluster.local.signal(name, signal.SIGCONT)
                self.tell(f"wake {name}")

    def later(self, batches: int) -> Callable[[], bool]:
        """True when a new life works and so many more batches are done than now."""
        goal, lives = self.done() + batches, self.lives

        def reached() -> bool:
            return lives.now is not None and lives.now.at_work() and self.done() >= goal

        return reached

    def await_hit(self, directory: Path, point: str, action: str) -> int:
        """Arm a failpoint, and wait until a process has come to it; its process id."""
        (directory / point).write_text(action)
        hit = directory / f"{point}.hit"

        def there() -> bool:
            self.lives.tend()
            return hit.exists()

        until(there, f"somebody comes to {point}", PATIENCE_S)
        pid = int(hit.read_text())
        hit.unlink()
        self.counts[f"{action} at {point}"] += 1
        self.tell(f"{action} {pid} at {point}")
        return pid

    def await_work(self) -> Life:
        """Wait until there is a life whose queries have all ended a batch."""

        def works() -> bool:
            self.lives.tend()
            return self.lives.now is not None and self.lives.now.at_work()

        until(works, "the application works", PATIENCE_S)
        assert self.lives.now is not None, "it works"
        return self.lives.now

    def await_batches(self, more: int) -> None:
        """Wait until so many more are done."""
        goal = self.done() + more

        def reached() -> bool:
            self.lives.tend()
            return self.done() >= goal

        until(reached, f"{more} more batches are done", PATIENCE_S)

    def tell(self, text: str) -> None:
        """Into the log of faults."""
        self.told.append(f"{time.monotonic() - self.began:8.3f} {text}")
