"""
What a worker does about one thing that it has: a task, or a connector's watcher. ``engine.seats`` carries it out.

It follows what the config topic wants. What runs is named by a number: of a task its generation, of a watcher the
offset of the configuration. Failures of the world are repeated in the host; here only a host that died is started
again, after a while that doubles. One effect that takes time is under way at a time; times are monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from headrace_connect.core.backoff import Backoff
from headrace_connect.core.errors import Fault
from headrace_connect_worker.core.herd import Restart
from headrace_connect_worker.core.records import RunState, SplitSpec, TargetState

BACKOFF: Final = Backoff(1_000, 300_000)
STEADY_MS: Final = 300_000.0
"""What ran for so long begins anew with the shortest wait."""
TRACE_CHARS_MAX: Final = 8_000
_FAILED: Final = frozenset({RunState.FAILED, RunState.RESTARTING})


@dataclass(frozen=True, slots=True)
class Spec:
    """What is to run."""

    number: int
    config: Mapping[str, str] = field(hash=False)
    splits: tuple[SplitSpec, ...] = ()
    target: TargetState = TargetState.STARTED
    restart: Restart = Restart()


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The config topic wants this; None: nothing. With ``STOPPED`` nothing runs, and that is said."""

    spec: Spec | None


@dataclass(frozen=True, slots=True)
class Started:
    """``Start`` is done."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Ended:
    """``Stop`` is done."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The host says how it does."""

    number: int
    state: RunState
    trace: str = ""
    fault: Fault | None = None
    now_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class NotStarted:
    """``Start`` has failed, and nothing of it is left."""

    trace: str
    now_ms: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """There is no host any more. While ``Start`` is under way, its answer follows all the same."""

    trace: str
    now_ms: float


@dataclass(frozen=True, slots=True)
class Woken:
    """Time has passed."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """This worker is to give it up, or has lost it."""


Event = Wanted | Started | NotStarted | Ended | Reported | Crashed | Woken | Leaving


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Have it run; ``Started`` or ``NotStarted`` follows."""

    spec: Spec


@dataclass(frozen=True, slots=True)
class Stop:
    """Have it end in order; ``Ended`` follows, whatever happens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Pause or resume it."""

    target: TargetState


@dataclass(frozen=True, slots=True)
class Say:
    """Its status has changed. ``fenced`` is a generation that somebody has fenced, or 0."""

    state: RunState
    trace: str = ""
    fenced: int = 0


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Say ``Woken`` then; the last one counts."""

    at_ms: float


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing of it is left here: it may be given up."""


Effect = Start | Stop | Turn | Say | WakeAt | Leave


class _Phase(Enum):
    IDLE = "nothing runs"
    STARTING = "Start is under way"
    RUNNING = "the host has it, whatever it does there"
    STOPPING = "Stop is under way"
    LEFT = "given up"


class Seat:
    """See the module's text."""

    def __init__(self, backoff: Backoff = BACKOFF) -> None:
        self._backoff = backoff
        self._phase = _Phase.IDLE
        self._wanted: Spec | None = None
        self._running: Spec | None = None
        """What the host has, or is being given."""
        self._tried: Spec | None = None
        """What was begun last: the same again waits until it is due."""
        self._held = False
        """The same is not begun again: somebody has fenced it."""
        self._due_ms: float | None = None
        self._started_ms = 0.0
        self._crashes = 0
        self._leaving = False
        self._early: Crashed | Reported | None = None
        """It has ended already while ``Start`` is under way."""
        self._said: Say | None = None
        self._effects: list[Effect] = []

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        match event:
            case Wanted(spec):
                self._wanted = spec
            case Started(now_ms):
                self._begun(now_ms)
            case NotStarted(trace, now_ms):
                assert self._phase is _Phase.STARTING, "it was asked to"
                self._early = None
                self._failed(trace, now_ms)
            case Ended():
                assert self._phase is _Phase.STOPPING, "it was asked to"
                self._phase, self._running = _Phase.IDLE, None
            case Reported():
                self._report(event)
            case Crashed(trace, now_ms):
                if self._phase is _Phase.STARTING:
                    self._early = event
                elif self._phase is _Phase.RUNNING:
                    self._lost(trace, now_ms)
            case Woken(now_ms):
                if self._due_ms is not None and now_ms >= self._due_ms:
                    self._due_ms = None
            case Leaving():
                self._leaving = True
        self._settle()
        effects, self._effects = self._effects, []
        return effects

    # --- what happens -------------------------------------------------------------------------------------------------

    def _begun(self, now_ms: float) -> None:
        assert self._phase is _Phase.STARTING, "it was asked to"
        self._phase, self._started_ms = _Phase.RUNNING, now_ms
        match self._early:
            case Crashed(trace):
                self._lost(trace, now_ms)
            case Reported() as report:
                self._report(report)
        self._early = None

    def _report(self, event: Reported) -> None:
        running = self._running
        if running is None or event.number != running.number or self._phase is _Phase.STOPPING:
            return
        if event.state is not RunState.UNASSIGNED:
            self._say(event.state, event.trace)
            return
        if self._phase is _Phase.STARTING:
            self._early = event
            return
        if event.fault is Fault.FENCED:
            self._held = True
            self._say(RunState.UNASSIGNED, event.trace, running.number)
            self._stop()
        else:
            self._lost(event.trace or "it has ended unasked", event.now_ms)

    def _lost(self, trace: str, now_ms: float) -> None:
        """
        The host has it no more, as it says. That may be old: said of what ran before, and heard when the next has
        begun. So it is ended in any case, or the host would have it twice.
        """
        self._failed(trace, now_ms)
        self._stop()

    def _failed(self, trace: str, now_ms: float) -> None:
        """Nothing runs any more; the same is begun again after a while."""
        if self._phase is _Phase.RUNNING and now_ms - self._started_ms >= STEADY_MS:
            self._crashes = 0
        self._crashes += 1
        self._phase, self._running = _Phase.IDLE, None
        wait_ms = self._backoff.wait_ms(self._crashes)
        self._due_ms = now_ms + wait_ms
        self._say(RunState.RESTARTING, f"{trace}\nIt is started again after {wait_ms / 1_000:g} s.")
        self._effects.append(WakeAt(self._due_ms))

    # --- what follows -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Bring what runs closer to what is wanted; nothing while something is under way."""
        if self._phase is _Phase.RUNNING:
            self._settle_running()
        elif self._phase is _Phase.IDLE:
            self._settle_idle()

    def _settle_running(self) -> None:
        running, wanted = self._running, self._wanted
        assert running is not None, "it runs"
        if self._leaving or wanted is None or wanted.target is TargetState.STOPPED or wanted.number != running.number:
            self._stop()
            return
        if wanted.restart.offset > running.restart.offset:
            failed = self._said is not None and self._said.state in _FAILED
            if failed or not wanted.restart.only_failed:
                self._stop()
                return
            running = self._running = replace(running, restart=wanted.restart)
        if wanted.target is not running.target:
            self._running = replace(running, target=wanted.target)
            self._effects.append(Turn(wanted.target))

    def _stop(self) -> None:
        self._phase = _Phase.STOPPING
        self._effects.append(Stop())

    def _settle_idle(self) -> None:
        if self._leaving:
            self._phase = _Phase.LEFT
            if self._said is not None and self._wanted is not None:
                self._say(RunState.UNASSIGNED)
            self._effects.append(Leave())
            return
        wanted, tried = self._wanted, self._tried
        if wanted is None:
            return
        if wanted.target is TargetState.STOPPED:
            self._say(RunState.STOPPED)
            return
        same = tried is not None and (wanted.number, wanted.restart.offset) == (tried.number, tried.restart.offset)
        if same and (self._held or self._due_ms is not None):
            return
        if not same:
            self._crashes = 0
        self._held, self._due_ms = False, None
        self._phase, self._running, self._tried = _Phase.STARTING, wanted, wanted
        self._say(RunState.STARTING)
        self._effects.append(Start(wanted))

    def _say(self, state: RunState, trace: str = "", fenced: int = 0) -> None:
        said = Say(state, trace[-TRACE_CHARS_MAX:], fenced)
        if said != self._said:
            self._said = said
            self._effects.append(said)
