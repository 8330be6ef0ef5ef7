"""
The life of a task: whether it runs, and when it is started again after a failure. Called by who owns the task.

Its work is a loop that somebody else runs: ``Launch`` begins it, ``Close`` has it end in order. The loop says when it
has opened, when it has committed, and how it has ended. Times are monotonic milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace_connect.core.backoff import Backoff
from headrace_connect.core.errors import Fault

FOR_EVER: Final = -1


class State(StrEnum):
    """Kafka's words, and ``STARTING``."""

    UNASSIGNED = "UNASSIGNED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


class Target(StrEnum):
    """What the connector is to do."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    """Everything stays open; nothing is read."""
    STOPPED = "STOPPED"
    """Everything is let go of."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The task is to be run here."""

    target: Target = Target.RUNNING


@dataclass(frozen=True, slots=True)
class Unassigned:
    """It is not to be run here any more."""


@dataclass(frozen=True, slots=True)
class TargetChanged:
    """Somebody has paused, resumed or stopped the connector."""

    target: Target


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """Somebody wants it to begin anew."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The loop has connected to everything."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """The loop has committed something."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The loop has ended in order."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The loop has ended with an error."""

    fault: Fault
    reason: str
    now_ms: float


@dataclass(frozen=True, slots=True)
class Woken:
    """Time has passed."""

    now_ms: float


Event = Assigned | Unassigned | TargetChanged | RestartAsked | Opened | Progressed | Ended | Failed | Woken


@dataclass(frozen=True, slots=True)
class Launch:
    """Begin the loop."""


@dataclass(frozen=True, slots=True)
class Close:
    """Have the loop commit what it has, let go of everything and end."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Have the loop commit what it has, and read no more."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Have the loop read on."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Say ``Woken`` then."""

    at_ms: float


Effect = Launch | Close | Suspend | Resume | WakeAt

_LOOPS: Final = frozenset({State.STARTING, State.RUNNING, State.PAUSED})
"""In these a loop runs."""


@dataclass(slots=True)
class TaskLife:
    """One task, on one worker."""

    backoff: Backoff = field(default_factory=lambda: Backoff(1_000, 300_000))
    restarts_max: int = FOR_EVER
    """How often in a row a task is started again that fails by the world's fault."""
    state: State = State.UNASSIGNED
    target: Target = Target.RUNNING
    reason: str = ""
    """Why it failed last; empty while it works."""
    restarts: int = 0
    """How often it was started again since it last committed something."""
    due_ms: float | None = None
    """When it is started again."""
    _leaving: bool = False
    _again: bool = False

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        match event:
            case Assigned(target):
                assert self.state is State.UNASSIGNED, "it is assigned once"
                self.target, self._leaving = target, False
                return self._start()
            case Unassigned():
                self._leaving = True
                return self._leave(State.UNASSIGNED)
            case TargetChanged(target):
                return self._change(target)
            case RestartAsked():
                return self._restart()
            case Opened():
                return self._open()
            case Progressed():
                self.restarts, self.reason = 0, ""
            case Ended():
                return self._end()
            case Failed():
                return self._fail(event)
            case Woken(now_ms):
                if self.state is State.RESTARTING and self.due_ms is not None and now_ms >= self.due_ms:
                    return self._start()
        return []

    def _start(self) -> list[Effect]:
        self.due_ms, self._again = None, False
        if self.target is Target.STOPPED:
            self.state = State.STOPPED
            return []
        self.state = State.STARTING
        return [Launch()]

    def _leave(self, without: State) -> list[Effect]:
        """To ``without``, at once or when the loop has ended."""
        if self.state in _LOOPS:
            return [Close()]
        self.due_ms = None
        self.state = without
        return []

    def _change(self, target: Target) -> list[Effect]:
        before, self.target = self.target, target
        if target is before or self.state is State.UNASSIGNED:
            return []
        if target is Target.STOPPED:
            return self._leave(State.STOPPED)
        if self.state is State.STOPPED:
            return self._start()
        if before is Target.STOPPED:  # the loop is ending, and begins again
            return []
        if target is Target.PAUSED and self.state is State.RUNNING:
            self.state = State.PAUSED
            return [Suspend()]
        if target is Target.RUNNING and self.state is State.PAUSED:
            self.state = State.RUNNING
            return [Resume()]
        return []

    def _restart(self) -> list[Effect]:
        self.restarts = 0
        if self.state in _LOOPS:
            self._again = True
            return [Close()]
        if self.state in (State.FAILED, State.RESTARTING):
            return self._start()
        return []

    def _open(self) -> list[Effect]:
        assert self.state is State.STARTING, "a loop opens once"
        if self.target is Target.PAUSED:
            self.state = State.PAUSED
            return [Suspend()]
        self.state = State.RUNNING
        return []

    def _end(self) -> list[Effect]:
        assert self.state in _LOOPS, "there was a loop"
        if self._leaving:
            self.state = State.UNASSIGNED
            return []
        return self._start()

    def _fail(self, event: Failed) -> list[Effect]:
        assert self.state in _LOOPS, "there was a loop"
        self.reason = event.reason
        if self._leaving or event.fault is Fault.FENCED:
            self.state = State.UNASSIGNED
            return []
        if self.target is Target.STOPPED or self._again:
            return self._start()
        if event.fault is not Fault.WORLD or self.restarts == self.restarts_max:
            self.state = State.FAILED
            return []
        self.restarts += 1
        self.state = State.RESTARTING
        self.due_ms = event.now_ms + self.backoff.wait_ms(self.restarts)
        return [WakeAt(self.due_ms)]
