"""
Event time of a task: the least of its inputs' greatest times.

An input is a topic of a source, or one sender of a repartition topic. One that stands at its end for a while is idle,
and does not hold the others back until it has rows again. A table's times say when its rows were written, not how far
the streams beside it are: it holds them back, but event time is never ahead of all inputs that are no tables. What a
task's watermark was is state: it never falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from headrace_streams.core.rows import NO_TIME, Numbers

_LATEST: Final = int(np.iinfo(np.int64).max)
_NONE: Final = np.zeros(1, bool)
_OWN: Final = ""
"""Among the inputs, in what is remembered: the task itself."""
_IDLE: Final = "idle "
"""Before the name of an input that has said so, in what is remembered; no name has a space."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When the watermark of a task passed a time."""

    before: int
    """The watermark just before, ms."""
    now: int
    """The watermark then."""
    row: int
    """Of the column ``_row`` for what happens then."""


class Clock:
    """
    The watermarks of a task while a batch is fed: what happens at a time happens where it would, were the records of
    the batch fed one by one. Operators read it.
    """

    def __init__(self) -> None:
        self.start(NO_TIME)
        self.wall = 0
        """The wall clock when the task was last told, ms."""

    def start(self, before: int) -> None:
        """Something is fed; ``before`` is the watermark until then."""
        self._before = before
        self._marks: Numbers = np.empty(0, np.int64)
        self._places: Numbers = np.empty(0, np.int64)

    def extend(self, marks: Numbers, places: Numbers) -> None:
        """The watermarks after its next records, and their places in it."""
        self._marks = np.concatenate([self._marks, marks])
        self._places = np.concatenate([self._places, places])

    def passes(self, time: int) -> Moment:
        """When the watermark has come to ``time``, with a record of this batch."""
        return self._at(int(np.searchsorted(self._marks, time)))

    def of(self, row: int) -> Moment:
        """When the record of a row came, by its column ``_row``."""
        return self._at(int(np.searchsorted(self._places, -2 - row if row < -1 else row)) if row != -1 else -1)

    def _at(self, place: int) -> Moment:
        if not 0 <= place < len(self._marks):
            now = int(self._marks[-1]) if len(self._marks) else self._before
            return Moment(now, now, -1)
        before = int(self._marks[place - 1]) if place else self._before
        return Moment(before, int(self._marks[place]), -2 - int(self._places[place]))


def now_of(state: Mapping[str, int]) -> int:
    """Event time of a task, as a commit remembers it, ms."""
    return state.get(_OWN, NO_TIME)


def holding(state: Mapping[str, int]) -> str | None:
    """The input at whose time a task's event time stands, while others are ahead; as a commit remembers it."""
    now = now_of(state)
    times = {name: time for name, time in state.items() if name != _OWN and not name.startswith(_IDLE)}
    if not any(time > now for time in times.values()):
        return None
    return next((name for name, time in times.items() if time == now and _IDLE + name not in state), None)


class Watermarks:
    """Pure; times are ms."""

    def __init__(self, inputs: Iterable[str], tell: Iterable[str] = (), tables: Iterable[str] = ()) -> None:
        """
        Args:
            tell: those of the inputs that say once that they are idle, so that has to be remembered.
            tables: those that drive event time only where there are no others.
        """
        self._greatest = dict.fromkeys(inputs, NO_TIME)
        followers = frozenset(tables)
        self._leaders = frozenset(self._greatest) - followers if followers else frozenset()
        """Those whose greatest time event time is never ahead of; none: it goes by all inputs."""
        self._tell = frozenset(tell)
        self._idle: set[str] = set()
        self._rested: set[str] = set()
        """Those that had said that they are idle before the task began anew, and nothing since: they may have rows."""
        self.now = NO_TIME
        """The watermark of the task."""

    def passed(self, source: str, times: Numbers) -> Numbers:
        """Rows came by an input; what the watermark was after each, that row counted."""
        return self.passed_by([source], np.zeros(len(times), np.int64), times)

    def passed_by(self, sources: Sequence[str], of: Numbers, times: Numbers) -> Numbers:
        """Rows came, each by the input of its number in ``of``; what the watermark was after each."""
        if not len(times):
            return times
        found = np.full(len(times), _LATEST)
        led: Numbers | int = NO_TIME
        for name, greatest in self._greatest.items():
            own = of == sources.index(name) if name in sources else _NONE
            if own.any():
                running = np.maximum(np.maximum.accumulate(np.where(own, times, greatest)), greatest)
                self._greatest[name] = int(running[-1])
                self._rested.discard(name)
                if name in self._leaders:
                    led = np.maximum(led, running)
                if name in self._idle:
                    running[: np.argmax(own)] = _LATEST  # it holds the others back from its first row on
                    self._idle.discard(name)
                found = np.minimum(found, running)
                continue
            if name in self._leaders:
                led = np.maximum(led, greatest)
            if name not in self._idle:
                found = np.minimum(found, greatest)
        if self._leaders:
            found = np.minimum(found, led)
        found = np.maximum.accumulate(np.maximum(found, self.now))
        self.now = int(found[-1])
        return found

    def reached(self, source: str, time: int) -> int:
        """The input has come to ``time`` without a row of that time; the task's watermark now."""
        self._idle.discard(source)
        self._rested.discard(source)
        self._greatest[source] = max(self._greatest[source], time)
        return self._settle()

    def is_idle(self, source: str) -> int:
        """The input has stood at its end for long; the task's watermark now."""
        self._idle.add(source)
        self._rested.discard(source)
        return self._settle()

    @property
    def waits(self) -> bool:
        """Whether there are inputs that were idle before the task began anew, of which nothing has come since."""
        return bool(self._rested)

    def rest_again(self) -> int:
        """They have had time enough to say that they have rows: they are idle as before; the task's watermark now."""
        self._idle |= self._rested
        self._rested = set()
        return self._settle()

    @property
    def held_by(self) -> tuple[str, float] | None:
        """The input that holds the others back, and by how many ms (inf: it has no time yet); None: none does."""
        counting = self._greatest.keys() - self._idle
        if not counting:
            return None
        last = min(counting, key=self._greatest.__getitem__)
        least, greatest = self._greatest[last], max(self._greatest[name] for name in counting)
        greatest = min(greatest, self._led)
        if least >= greatest:
            return None
        return last, inf if least == NO_TIME else greatest - least

    @property
    def rests(self) -> bool:
        """Whether all inputs are idle."""
        return len(self._idle) == len(self._greatest)

    @property
    def _led(self) -> int:
        """The time that event time cannot be ahead of, ms."""
        return max((self._greatest[name] for name in self._leaders), default=_LATEST)

    def _settle(self) -> int:
        counting = self._greatest.keys() - self._idle
        # If nobody is waited for, time is as far as anyone has come: else it would hang on who was idle first.
        reached = min(self._greatest[name] for name in counting) if counting else max(self._greatest.values())
        self.now = max(self.now, min(reached, self._led))
        return self.now

    def state(self) -> dict[str, int]:
        """What has to be remembered with a commit; the task's own under the empty name."""
        idle = {_IDLE + name: NO_TIME for name in sorted((self._idle | self._rested) & self._tell)}
        return {**self._greatest, _OWN: self.now, **idle}

    def restore(self, state: Mapping[str, int], *, anew: bool = False) -> None:
        """
        As of a commit. Inputs that it does not know have seen nothing; which are idle shows again, but for those that
        have said so.

        Args:
            anew: the task begins, maybe after a long time: those that have said so are waited for until ``rest_again``.
        """
        self._greatest = {name: state.get(name, NO_TIME) for name in self._greatest}
        idle = {name for name in self._tell if _IDLE + name in state}
        self._rested = idle if anew else idle & self._rested
        self._idle = idle - self._rested
        self.now = now_of(state)
