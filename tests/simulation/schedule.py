"""
What happens when: virtual time, chance and the network of one simulated cluster.

Everything random comes from one generator, and events of the same moment run in the order in which they were made, so
a seed tells the whole story. Times are virtual milliseconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

TRACE_MAX = 200


class Schedule:
    """The events to come, and what was said of the last ones."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.trace: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=TRACE_MAX)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._made = 0

    def after(self, delay_ms: float, action: Callable[..., None], *args: object) -> None:
        """Run ``action`` later."""
        self._made += 1
        heapq.heappush(self._heap, (self.now + delay_ms, self._made, action, args))

    def step(self) -> bool:
        """Run the next event; False: there is none."""
        if not self._heap:
            return False
        self.now, _, action, args = heapq.heappop(self._heap)
        self.steps += 1
        action(*args)
        return True

    def say(self, *words: object) -> None:
        """Note what happens; only immutable words, for they are printed much later."""
        self.trace.append((self.now, words))

    def story(self) -> str:
        """The last events, for people."""
        return "\n".join(f"{now:10.1f}  {' '.join(map(str, words))}" for now, words in self.trace)


class Process(Protocol):
    """Who can be reached: a broker, a controller or a client."""

    id: int
    up: bool
    paused: bool
    incarnation: int
    inbox: list[tuple[Callable[..., None], tuple[object, ...]]]


class Network:
    """
    Messages between processes. On one channel they keep their order; channels overtake each other.

    A cut swallows what is sent and what is under way. A paused process finds its messages when it goes on, a restarted
    one does not.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._cut: set[tuple[int, int]] = set()
        self._last: dict[tuple[int, int, int], float] = {}
        self.delay_ms = 4.0
        self.slow_one_in = 40
        """Every so many messages one is held up for long."""
        self.slow_ms = 300.0

    def cut(self, source: int, target: int) -> None:
        """Nothing gets from ``source`` to ``target`` any more."""
        self._cut.add((source, target))

    def mend(self, source: int, target: int) -> None:
        """It does again."""
        self._cut.discard((source, target))

    def mend_all(self, but: int | None = None) -> None:
        """Only cuts around ``but`` stay."""
        self._cut = {pair for pair in self._cut if but in pair}

    def reaches(self, source: int, target: int) -> bool:
        """Whether messages get there."""
        return (source, target) not in self._cut

    def both_ways(self, one: int, other: int) -> bool:
        """Whether calls and their answers get through."""
        return (one, other) not in self._cut and (other, one) not in self._cut

    def send(self, source: int, to: Process, action: Callable[..., None], *args: object, channel: int = 0) -> None:
        """Run ``action`` at ``to`` when the message arrives, if it does."""
        if (source, to.id) in self._cut:
            return
        rng, schedule = self._schedule.rng, self._schedule
        delay = rng.random() * self.delay_ms
        if rng.random() * self.slow_one_in < 1:
            delay += rng.random() * self.slow_ms
        route = (source, to.id, channel)
        at = max(schedule.now + delay, self._last.get(route, 0.0))
        self._last[route] = at
        schedule.after(at - schedule.now, self._arrive, source, to, to.incarnation, action, args)

    def _arrive(
        self, source: int, to: Process, incarnation: int, action: Callable[..., None], args: tuple[object, ...]
    ) -> None:
        if not to.up or to.incarnation != incarnation or (source, to.id) in self._cut:
            return
        if to.paused:
            to.inbox.append((action, args))
        else:
            action(*args)
