"""When the next fault comes, and which: the same for every simulated world."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Protocol

from tests.simulation.schedule import Schedule


class HasFaults(Protocol):
    """What a world's profile says of its faults."""

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of methods."""
        ...

    @property
    def fault_every_ms(self) -> float:
        """On average."""
        ...


class Unlucky(Protocol):
    """A world in which things go wrong."""

    rng: Random
    counts: Counter[str]
    schedule: Schedule

    @property
    def profile(self) -> HasFaults:
        """What it is like."""
        ...


class Misfortune:
    """Calls one method of itself after the other, drawn from the profile; each says whether it happened."""

    def __init__(self, unlucky: Unlucky) -> None:
        self._unlucky = unlucky
        self._on = True

    def tick(self) -> None:
        """One more."""
        if not self._on:
            return
        world = self._unlucky
        name = world.rng.choice(world.profile.faults)
        if getattr(self, name)():
            world.counts[f"fault {name}"] += 1
        world.schedule.after(world.profile.fault_every_ms * (0.3 + 1.4 * world.rng.random()), self.tick)
