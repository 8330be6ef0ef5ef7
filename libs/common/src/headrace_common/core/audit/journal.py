"""
The journal of one start of a node: takes what has happened, and says what is to be written and what is refused.

Its caller writes the lines in their order, and tells when they are on disk (``Wrote``); until then they are queued.
What is chained is written, come what may: an event is dropped before it has its place, so a gap is never ours.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace_common.core.audit.chain import Chain, Start
from headrace_common.core.audit.coalescing import KEYS_MAX, Coalescing
from headrace_common.core.audit.events import Actor, Change, Event, Method, fields_of
from headrace_common.core.audit.kinds import TREATMENTS, Kind, WhenFull
from headrace_common.core.audit.seals import Seal, Sign, write_seal
from headrace_common.core.bounds import check, setting
from headrace_common.core.image import NodeKey

SEAL_EVENTS: Final = 1_000
SEAL_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a journal holds."""

    queue_max: int = setting(10_000, low=100)
    """Lines that are not on disk yet."""
    repeated_max: int = setting(7_500, low=1)
    """Of these, lines of events that somebody may cause without end, such as refusals: the rest is for changes."""
    keys_max: int = setting(KEYS_MAX, low=1)
    """Different events of a kind that are being counted."""
    drops_administration: bool = False
    """What is done when an event of administration has no room. False: it is refused; True: the event is dropped."""

    def __post_init__(self) -> None:
        check(self, (self.repeated_max < self.queue_max, "repeated_max is less than queue_max: changes need room too"))


# --- what comes in; ``now_ms`` is monotonic, ``time_ms`` Unix time -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that is to be in the audit."""

    event: Event
    now_ms: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time goes on; once a second is often enough."""

    time_ms: int
    now_ms: float


@dataclass(frozen=True, slots=True)
class Wrote:
    """The next ``lines`` of those that were to be written are on disk."""

    lines: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The node stops in order; nothing comes after it but ``Wrote``."""

    time_ms: int


Input: TypeAlias = Happened | Ticked | Wrote | Stopped


# --- what is to be done ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Append this line. ``before_answer``: the caller is answered when it is on disk, and not before."""

    line: bytes
    before_answer: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """There is no room for the event, so what it is about is not done: AUDIT_UNAVAILABLE."""

    event: Event


@dataclass(frozen=True, slots=True)
class Drop:
    """There is no room; count so many events for the metrics. The journal says so itself when there is room again."""

    kind: Kind
    count: int


Effect: TypeAlias = Write | Refuse | Drop


class Journal:
    """One task."""

    def __init__(self, start: Start, sign: Sign, bounds: Bounds | None = None) -> None:
        self._start = start
        self._sign = sign
        self._bounds = bounds or Bounds()
        self._chain = Chain(start)
        self._queued = 0
        self._sealed = 0
        """Events that a seal covers."""
        self._seal_due_ms: float | None = None
        """None: all events are sealed."""
        self._dropped: Counter[Kind] = Counter()
        self._stopped = False
        self._coalescing = {
            kind: Coalescing(treatment.period_ms, self._bounds.keys_max)
            for kind, treatment in TREATMENTS.items()
            if treatment.period_ms is not None
        }

    @property
    def node(self) -> NodeKey:
        """Whose it is."""
        return self._start.node

    @property
    def length(self) -> int:
        """How many events there are of this start."""
        return self._chain.length

    def begin(self, public_key: bytes, time_ms: int, now_ms: float) -> list[Effect]:
        """The first event, with the SHA-256 of the key that checks the seals; before all other input."""
        assert self._chain.length == 0, "a journal begins once"
        change = Change({}, {"key": hashlib.sha256(public_key).hexdigest()})
        return list(self._write([self._own(Kind.JOURNAL_BEGUN, time_ms, change)], time_ms, now_ms))

    def handle(self, input: Input) -> list[Effect]:
        """What must now be done, in order."""
        assert self._chain.length > 0, "a journal begins with its first event"
        match input:
            case Wrote(lines):
                assert 0 <= lines <= self._queued, "no line is on disk before it was to be written"
                self._queued -= lines
                return []
            case Happened(event, now_ms):
                assert not self._stopped, "nothing happens after the end"
                coalescing = self._coalescing.get(event.kind)
                events = [event] if coalescing is None else coalescing.add(event, now_ms)
                return list(self._write(events, event.time_ms, now_ms))
            case Ticked(time_ms, now_ms):
                return [] if self._stopped else self._tick(time_ms, now_ms)
            case Stopped(time_ms):
                return [] if self._stopped else self._stop(time_ms)

    def _tick(self, time_ms: int, now_ms: float) -> list[Effect]:
        due = [event for one in self._coalescing.values() for event in one.due(now_ms)]
        effects = [*self._write(due, time_ms, now_ms), *self._tell_dropped(time_ms, now_ms)]
        if self._seal_due_ms is not None and now_ms >= self._seal_due_ms:
            effects.append(self._seal(time_ms))
        return effects

    def _stop(self, time_ms: int) -> list[Effect]:
        self._stopped = True
        rest = [event for one in self._coalescing.values() for event in one.rest()]
        return [*self._write(rest, time_ms, 0), *self._tell_dropped(time_ms, 0), self._seal(time_ms, ends=True)]

    def _write(self, events: Iterable[Event], time_ms: int, now_ms: float) -> Iterator[Effect]:
        for event in events:
            if not self._has_room(event.kind):
                yield self._do_without(event)
                continue
            link = self._chain.append(fields_of(event))
            self._queued += 1
            if self._seal_due_ms is None:
                self._seal_due_ms = now_ms + SEAL_MS
            yield Write(link.line, TREATMENTS[event.kind].before_answer)
            if self._chain.length - self._sealed >= SEAL_EVENTS:
                yield self._seal(time_ms)

    def _has_room(self, kind: Kind) -> bool:
        repeated = kind in self._coalescing
        return self._queued < (self._bounds.repeated_max if repeated else self._bounds.queue_max)

    def _do_without(self, event: Event) -> Effect:
        match TREATMENTS[event.kind].when_full:
            case WhenFull.REFUSE:
                return Refuse(event)
            case WhenFull.REFUSE_UNLESS_SET if not self._bounds.drops_administration:
                return Refuse(event)
            case _:
                self._dropped[event.kind] += event.count
                return Drop(event.kind, event.count)

    def _tell_dropped(self, time_ms: int, now_ms: float) -> Iterator[Effect]:
        if self._dropped and self._has_room(Kind.EVENTS_DROPPED):
            counts = {kind.value: str(count) for kind, count in self._dropped.items()}
            event = self._own(Kind.EVENTS_DROPPED, time_ms, Change({}, counts), self._dropped.total())
            self._dropped.clear()
            yield from self._write([event], time_ms, now_ms)

    def _seal(self, time_ms: int, *, ends: bool = False) -> Write:
        """Seals have room always: there is one for some events, or the last."""
        seal = Seal(self._start, self._sealed, self._chain.length - 1, self._chain.head, time_ms, ends)
        self._sealed = self._chain.length
        self._seal_due_ms = None
        self._queued += 1
        return Write(write_seal(seal, self._sign))

    def _own(self, kind: Kind, time_ms: int, change: Change, count: int = 1) -> Event:
        actor = Actor(f"Node:{self._start.node}", Method.NODE)
        return Event(kind, time_ms, actor, change=change, count=count)
