"""
Whether and when a process that died is started again. Pure; the supervisor asks at each death.

A process that had served for a while is started after the plain delay, however often that happens: somebody kills
it. One that dies young, again and again, is started ever later, and given up when it never once got ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DELAY_MS_MAX: Final = 10_000
STABLE_MS: Final = 5_000
GIVE_UP_AFTER: Final = 5


@dataclass(frozen=True, slots=True)
class Died:
    """A process ended. ``ready_for_ms`` is how long it had served, None if it never did."""

    ready_for_ms: float | None
    signalled: bool
    """Ended by a signal that we did not send."""


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start it again after this time."""

    delay_ms: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It did not get ready in so many starts in a row; leave it to a person."""

    starts: int


@dataclass(slots=True)
class RestartPolicy:
    """The history of one process."""

    delay_ms: int
    never_ready: int = 0
    """Starts in a row that did not get ready."""
    young: int = 0
    """Deaths in a row at a young age."""

    def handle(self, event: Died) -> StartAgain | GiveUp:
        """What to do after this death."""
        if event.ready_for_ms is None:
            self.never_ready += 1
            self.young += 1
        else:
            self.never_ready = 0
            fit = event.signalled or event.ready_for_ms >= STABLE_MS
            self.young = 0 if fit else self.young + 1
        if self.never_ready >= GIVE_UP_AFTER:
            return GiveUp(self.never_ready)
        doublings = min(max(self.young - 1, 0), 10)
        return StartAgain(min(self.delay_ms * 2.0**doublings, max(DELAY_MS_MAX, self.delay_ms)))
