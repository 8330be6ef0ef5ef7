"""
The same event again and again becomes two a minute at most: the first at once, then one in a period, with a count.

Whoever hammers at a door is seen at once, and cannot fill the audit by it. The number of different events is bounded:
for a new one beyond it the oldest is written with its count and forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from headrace_common.core.audit.events import Event
from headrace_common.core.audit.kinds import Kind

KEYS_MAX: Final = 5_000
DUE_MAX: Final = 500
"""Written at one time, so that a tick takes milliseconds; the rest counts on until the next."""

_OF_RECORDS: Final = frozenset({Kind.RECORDS_READ, Kind.RECORDS_WRITTEN})


def key_of(event: Event) -> Hashable:
    """
    What makes two events the same. A session is one of a principal, by whatever operation it was noticed; records are
    read and written from wherever.
    """
    if event.kind is Kind.SESSION_BEGUN:
        return (event.actor.principal, event.actor.method, event.source)
    resource = None if event.resource is None else (event.resource.type, event.resource.name)
    if event.kind in _OF_RECORDS:
        return (event.actor.principal, resource)
    return (event.actor.principal, event.actor.method, event.source, event.operation, resource)


@dataclass(slots=True)
class _Period:
    ends_ms: float
    last: Event
    count: int = 0
    """Not written yet."""


class Coalescing:
    """Events of one kind. Every call takes the same time, but ``due`` and ``rest``. One task."""

    def __init__(self, period_ms: int, keys_max: int = KEYS_MAX) -> None:
        self._period_ms = period_ms
        self._keys_max = keys_max
        self._periods: OrderedDict[Hashable, _Period] = OrderedDict()
        """By when they end: all are of one length, and who begins goes to the end."""

    def __len__(self) -> int:
        return len(self._periods)

    def add(self, event: Event, now_ms: float) -> list[Event]:
        """
        What is to be written now that ``event`` has happened.

        Args:
            now_ms: monotonic, as everywhere in here.
        """
        key = key_of(event)
        period = self._periods.get(key)
        if period is not None:
            period.last = event
            period.count += event.count
            return []
        written = list(self._make_room())
        self._periods[key] = _Period(now_ms + self._period_ms, event)
        return [*written, event]

    def due(self, now_ms: float) -> list[Event]:
        """What is to be written because its period is over: at most ``DUE_MAX``. The oldest first."""
        written: list[Event] = []
        while self._periods and len(written) < DUE_MAX:
            key, period = next(iter(self._periods.items()))
            if period.ends_ms > now_ms:
                break
            del self._periods[key]
            if period.count:
                written.append(replace(period.last, count=period.count))
                self._periods[key] = _Period(now_ms + self._period_ms, period.last)
        return written

    def rest(self) -> list[Event]:
        """All that has a count, the oldest first; all is forgotten."""
        written = [replace(one.last, count=one.count) for one in self._periods.values() if one.count]
        self._periods.clear()
        return written

    def _make_room(self) -> Iterator[Event]:
        while len(self._periods) >= self._keys_max:
            _, oldest = self._periods.popitem(last=False)
            if oldest.count:
                yield replace(oldest.last, count=oldest.count)
