"""
What a source's task does, in which order, so that each row is in its topic exactly once: rows and positions are one
transaction, under an owner that the newest generation of tasks has claimed.

The runtime does what is asked and says what came of it. Where something fails, the rest of a list of effects is not
done. Times are monotonic milliseconds. Positions are opaque.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from headrace_connect.core.errors import Fault
from headrace_connect.core.retrying import Retrying
from headrace_connect.core.source_steps import (
    Abort,
    Aborted,
    Arrived,
    Begin,
    Claim,
    Claimed,
    CloseAsked,
    Commit,
    Committed,
    Confirm,
    Effect,
    End,
    Event,
    Halt,
    IdForgotten,
    Locate,
    Located,
    NotDelivered,
    OutcomeUnknown,
    Position,
    Read,
    ReadFailed,
    Refused,
    ResumeAsked,
    Send,
    SendPositions,
    Started,
    SuspendAsked,
    Ticked,
    Unwritable,
)

DRAINED_MS: Final = 20.0
"""A transaction is at least so long, also where the source has nothing more for now."""
OVERDUE_MAX: Final = 2
"""So often in a row a transaction is open for too long before that is a failure: the first may be a stall."""
FORGOTTEN_MAX: Final = 3
"""So often in a row an id is made anew, before that is a failure."""


class Boundary(Enum):
    """Kafka's ``transaction.boundary``: where a transaction may end."""

    POLL = "poll"
    """Behind each chunk."""
    INTERVAL = "interval"
    """Behind any chunk, when the interval has passed."""
    CONNECTOR = "connector"
    """As ``interval``, but only behind a chunk that says so."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When to commit, and how long to try."""

    boundary: Boundary = Boundary.INTERVAL
    interval_ms: float = 1_000
    rows_max: int = 10_000
    bytes_max: int = 64 << 20
    retry_timeout_ms: float = 60_000
    retry_delay_ms_max: float = 60_000
    open_ms_max: float = inf
    """The coordinator aborts a transaction that is open for so long."""


class Phase(Enum):
    """Where a task is."""

    NEW = "new"
    CLAIMING = "claiming"
    LOCATING = "locating"
    READING = "reading"
    COMMITTING = "committing"
    ABORTING = "aborting"
    SUSPENDED = "suspended"
    ENDED = "ended"


@dataclass(slots=True)
class SourceCommit:
    """One task."""

    splits: Sequence[str]
    rules: Rules = field(default_factory=Rules)
    phase: Phase = Phase.NEW
    committed: dict[str, Position] = field(default_factory=dict)
    pending: dict[str, Position] = field(default_factory=dict)
    """Read since the last commit."""
    rows: int = 0
    bytes: int = 0
    open_since_ms: float | None = None
    """When the transaction was opened; None: none is open."""
    drained: bool = False
    at_boundary: bool = True
    cut: bool = False
    """Of the last chunk not all is sent."""
    _retries: dict[str, Retrying] = field(default_factory=dict)
    _aborts: Retrying | None = None
    _again_at_ms: float | None = None
    """What was aborted is not read again before; None: at once."""
    _forgotten: int = 0
    _overdue: int = 0
    _then: Phase = Phase.READING
    """What comes behind the commit or abort that is under way."""
    _failure: End | None = None

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        if self.phase is Phase.ENDED:
            return []
        match event:
            case Started():
                self.phase = Phase.CLAIMING
                return [Claim()]
            case Claimed():
                self.phase = Phase.LOCATING
                return [Locate()]
            case Refused():
                return self._end(End(Fault.FENCED, "a newer generation of the connector's tasks has taken over"))
            case IdForgotten():
                return self._claim_again()
            case Located(positions):
                self.committed = dict(positions)
                return [Confirm(dict(positions)), *self._go_on()] if positions else self._go_on()
            case Arrived():
                return self._take(event)
            case ReadFailed():
                return self._read_failed(event)
            case Ticked(now_ms):
                if self._is_overdue(now_ms):
                    return self._not_delivered(NotDelivered("", now_ms))
                return self._commit() if self._is_due(now_ms) else []
            case Committed():
                return self._have_committed()
            case OutcomeUnknown():
                assert self.phase is Phase.COMMITTING, "only a commit's outcome may be unknown"
                return [Commit()]
            case NotDelivered():
                return self._not_delivered(event)
            case Aborted():
                return self._have_aborted()
            case Unwritable(reason):
                return self._fail(End(Fault.DATA, reason))
            case SuspendAsked():
                return self._finish(Phase.SUSPENDED)
            case ResumeAsked():
                if self.phase is Phase.SUSPENDED:
                    return self._go_on()
                if self._then is Phase.SUSPENDED:
                    self._then = Phase.READING
            case CloseAsked():
                return self._finish(Phase.ENDED)
        return []

    def due_ms(self) -> float | None:
        """When ``Ticked`` is to be said; None: nothing waits."""
        since_ms = self.open_since_ms
        if self.phase is not Phase.READING or since_ms is None:
            return None
        if not self._may_cut():
            return None if self.rules.open_ms_max == inf else since_ms + self.rules.open_ms_max
        return since_ms + (DRAINED_MS if self.drained else self.rules.interval_ms)

    # --- reading --------------------------------------------------------------------------------------------------

    def _go_on(self) -> list[Effect]:
        self._clear()
        self.phase = Phase.READING
        if self._then is not Phase.READING:
            return self._finish(self._then)
        at_ms, self._again_at_ms = self._again_at_ms, None
        return [Read({split: self.committed.get(split) for split in self.splits}, at_ms)]

    def _take(self, event: Arrived) -> list[Effect]:
        if self.phase is not Phase.READING:  # it was on its way when reading was halted
            return []
        if self._is_overdue(event.now_ms):
            return self._not_delivered(NotDelivered("", event.now_ms))
        self._retries.pop(event.split, None)
        self.drained, self.at_boundary = event.drained, event.boundary
        known = self.pending.get(event.split, self.committed.get(event.split))
        if event.last and not self.cut and not event.rows and known == event.position:
            return self._commit() if self._is_due(event.now_ms) else []
        effects: list[Effect] = []
        if self.open_since_ms is None:
            self.open_since_ms = event.now_ms
            effects.append(Begin())
        self.cut = not event.last
        if event.last:
            self.pending[event.split] = event.position
        self.rows += event.rows
        self.bytes += event.bytes
        effects.append(Send())
        return effects + (self._commit() if self._is_due(event.now_ms) else [])

    def _read_failed(self, event: ReadFailed) -> list[Effect]:
        if self.phase is not Phase.READING:
            return []
        wait_ms = None
        if event.retriable:
            rules = self.rules
            retrying = self._retries.setdefault(event.split, Retrying(rules.retry_timeout_ms, rules.retry_delay_ms_max))
            wait_ms = retrying.wait_ms(event.now_ms, event.after_ms)
        if wait_ms is None:
            return self._fail(End(event.fault, event.reason))
        after = self.pending.get(event.split, self.committed.get(event.split))
        return [Read({event.split: after}, at_ms=event.now_ms + wait_ms)]

    # --- transactions ---------------------------------------------------------------------------------------------

    def _may_cut(self) -> bool:
        return not self.cut and (self.at_boundary or self.rules.boundary is not Boundary.CONNECTOR)

    def _is_overdue(self, now_ms: float) -> bool:
        """Whether the transaction cannot end here, and would be ended by the coordinator."""
        if self.phase is not Phase.READING or self.open_since_ms is None or self._may_cut():
            return False
        return now_ms - self.open_since_ms >= self.rules.open_ms_max

    def _why_overdue(self) -> str:
        what = (
            "a chunk was not sent"
            if self.cut
            else "the source did not come to a boundary, which transaction.boundary=connector waits for,"
        )
        instead = "have the source give smaller chunks" if self.cut else "set transaction.boundary=interval"
        return (
            f"{what} within {self.rules.open_ms_max / 1_000:g} s, and no transaction may be open for longer: raise "
            f"producer.override.transaction.timeout.ms, or {instead}"
        )

    def _is_due(self, now_ms: float) -> bool:
        if self.phase is not Phase.READING or not self.pending or not self._may_cut():
            return False
        if (
            self.rules.boundary is Boundary.POLL
            or self.rows >= self.rules.rows_max
            or self.bytes >= self.rules.bytes_max
        ):
            return True
        due_ms = self.due_ms()
        return due_ms is not None and now_ms >= due_ms

    def _commit(self) -> list[Effect]:
        self.phase = Phase.COMMITTING
        return [SendPositions(dict(self.pending)), Commit()]

    def _have_committed(self) -> list[Effect]:
        assert self.phase is Phase.COMMITTING, "there was a commit"
        confirm = Confirm(dict(self.pending))
        self.committed |= self.pending
        self._clear()
        self._aborts, self._forgotten, self._overdue = None, 0, 0
        self.phase = Phase.READING
        return [confirm] if self._then is Phase.READING else [confirm, *self._finish(self._then)]

    def _not_delivered(self, event: NotDelivered) -> list[Effect]:
        if self._aborts is None:
            self._aborts = Retrying(self.rules.retry_timeout_ms, self.rules.retry_delay_ms_max)
        wait_ms = self._aborts.wait_ms(event.now_ms)
        overdue = self._is_overdue(event.now_ms)
        reason = self._why_overdue() if overdue else event.reason
        self._overdue += overdue
        if wait_ms is None or self._overdue >= OVERDUE_MAX:
            # A chunk may have been slow because the machine was.
            return self._fail(End(Fault.CONFIG if overdue and not self.cut else Fault.WORLD, reason))
        self._again_at_ms = event.now_ms + wait_ms
        self.phase = Phase.ABORTING
        return [Halt(), Abort(reason if overdue else "")]

    def _have_aborted(self) -> list[Effect]:
        assert self.phase is Phase.ABORTING, "there was an abort"
        self._clear()
        if self._failure is not None:
            return self._end(self._failure)
        return self._go_on()

    def _claim_again(self) -> list[Effect]:
        self._forgotten += 1
        if self._forgotten > FORGOTTEN_MAX:
            return self._end(End(Fault.WORLD, "the coordinator forgets the transactional id again and again"))
        self._clear()
        self.phase = Phase.CLAIMING
        return [Halt(), Claim()]

    # --- ends -----------------------------------------------------------------------------------------------------

    def _finish(self, then: Phase) -> list[Effect]:
        """Commit what there is, if it may be cut here; then suspend or end."""
        self._then = then
        if self.phase in (Phase.COMMITTING, Phase.ABORTING):
            return []  # what comes next is decided behind it
        if self.open_since_ms is not None:
            if self._may_cut():
                return [Halt(), *self._commit()]
            self.phase = Phase.ABORTING
            return [Halt(), Abort()]
        if then is Phase.ENDED:
            return self._end(End())
        if self.phase is Phase.READING:
            self.phase, self._then = Phase.SUSPENDED, Phase.READING
            return [Halt()]
        return []

    def _fail(self, end: End) -> list[Effect]:
        """The error ends the task; what is open is aborted, so that nobody waits for it."""
        if self.open_since_ms is None:
            return self._end(end)
        self._failure = end
        self.phase = Phase.ABORTING
        return [Halt(), Abort()]

    def _end(self, end: End) -> list[Effect]:
        self.phase = Phase.ENDED
        return [Halt(), end]

    def _clear(self) -> None:
        self.pending, self.rows, self.bytes, self.open_since_ms = {}, 0, 0, None
        self.drained, self.cut = False, False
