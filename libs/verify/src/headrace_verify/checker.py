"""
Finds anomalies in a history of sends and polls.

A history is a list of operations in the order in which they were completed; values are unique per key, and a key is one
partition. Chaos tests record a history of a cluster under faults and fail on any anomaly except those that are allowed
for the way they consume.

Without transactions an operation touches one key or only reads, so cycles of write-write, write-read and realtime order
are found key by key: in each, whatever began after a record was known to be there must come after it. ``g0-realtime``
is such a cycle through writes alone, ``g1c`` one through a read.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

Key = str
Value = int
Point = tuple[Key, int, Value]
"""Key, offset, value."""


class Outcome(Enum):
    """How an operation ended."""

    OK = "ok"
    FAIL = "fail"
    """It surely had no effect."""
    INFO = "info"
    """It may have had its effect."""


@dataclass(frozen=True, slots=True)
class Send:
    """One value sent; ``offset`` is known only when ``outcome`` is OK."""

    process: int
    outcome: Outcome
    key: Key
    value: Value
    offset: int | None = None
    time_ns: int = 0
    """When it ended. 0: not known, here and below."""
    began_ns: int = 0


@dataclass(frozen=True, slots=True)
class Poll:
    """Records handed to an application, in its order."""

    process: int
    points: tuple[Point, ...]
    time_ns: int = 0
    """When it ended."""


@dataclass(frozen=True, slots=True)
class Assign:
    """The process chose other partitions or positions: what it polls next has no tie to what it polled before."""

    process: int
    time_ns: int = 0


Operation = Send | Poll | Assign

FAULTS_OF_THE_LOG: Final = ("inconsistent-offsets", "duplicate", "lost-write", "unseen", "g1a", "g0-realtime", "g1c")


@dataclass(slots=True)
class Verdict:
    """Anomalies by name; an empty mapping is a pass."""

    anomalies: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    sends_ok: int = 0
    sends_unknown: int = 0
    read: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """How often each anomaly was found."""
        return {name: len(found) for name, found in self.anomalies.items()}

    def describe(self, most: int = 5) -> str:
        """A few of each, for people."""
        return "\n".join(f"{name} ×{len(found)}: {'; '.join(found[:most])}" for name, found in self.anomalies.items())


def check(history: Sequence[Operation]) -> Verdict:
    """Judge a whole history, whose end has read every key from the beginning to its end."""
    verdict = Verdict()
    sends = [op for op in history if isinstance(op, Send)]
    polls = [op for op in history if isinstance(op, Poll)]
    verdict.sends_ok = sum(s.outcome is Outcome.OK for s in sends)
    verdict.sends_unknown = sum(s.outcome is Outcome.INFO for s in sends)
    known = _log(verdict, sends, polls)
    _writes(verdict, sends, polls, known)
    _sends_in_order(verdict, sends)
    _realtime(verdict, sends, polls, known)
    _polls_in_order(verdict, history, known)
    return verdict


def _log(verdict: Verdict, sends: Iterable[Send], polls: Iterable[Poll]) -> dict[Key, dict[int, Value]]:
    """Offset → value as everybody saw it; two values at one offset, or one at two, are anomalies."""
    at: dict[Key, dict[int, Value]] = defaultdict(dict)
    of: dict[tuple[Key, Value], int] = {}
    seen = [(s.key, s.offset, s.value) for s in sends if s.outcome is Outcome.OK and s.offset is not None]
    for key, offset, value in [*seen, *(point for poll in polls for point in poll.points)]:
        there = at[key].setdefault(offset, value)
        if there != value:
            verdict.anomalies["inconsistent-offsets"].append(f"{key}@{offset} is {there} and {value}")
        first = of.setdefault((key, value), offset)
        if first != offset:
            verdict.anomalies["duplicate"].append(f"{key}: {value} is at {first} and {offset}")
    return at


def _writes(verdict: Verdict, sends: Iterable[Send], polls: Iterable[Poll], known: dict[Key, dict[int, Value]]) -> None:
    read: dict[Key, set[Value]] = defaultdict(set)
    last_read: dict[Key, int] = defaultdict(lambda: -1)
    for poll in polls:
        for key, offset, value in poll.points:
            read[key].add(value)
            last_read[key] = max(last_read[key], offset)
    verdict.read = sum(map(len, read.values()))
    failed = {(s.key, s.value) for s in sends if s.outcome is Outcome.FAIL}
    for key, value in failed:
        if value in read[key]:
            verdict.anomalies["g1a"].append(f"{key}: {value} was read, its send had failed")
    for send in sends:
        if send.outcome is not Outcome.OK or send.value in read[send.key]:
            continue
        later = send.offset is not None and last_read[send.key] > send.offset
        verdict.anomalies["lost-write" if later else "unseen"].append(f"{send.key}@{send.offset}: {send.value}")


def _sends_in_order(verdict: Verdict, sends: Iterable[Send]) -> None:
    last: dict[tuple[int, Key], int] = {}
    for send in sorted((s for s in sends if s.outcome is Outcome.OK), key=lambda s: s.value):
        place = (send.process, send.key)
        offset = send.offset if send.offset is not None else -1
        if offset <= last.get(place, -1):
            verdict.anomalies["nonmonotonic-send"].append(f"{send.key}: {send.value} at {offset} after {last[place]}")
        last[place] = offset


def _realtime(
    verdict: Verdict, sends: Iterable[Send], polls: Iterable[Poll], known: dict[Key, dict[int, Value]]
) -> None:
    """Whatever began when a record was known to be in the log must be behind it."""
    acked: dict[tuple[Key, int], int] = {}
    read: dict[tuple[Key, int], int] = {}
    for poll in polls:
        for key, offset, _value in poll.points if poll.time_ns else ():
            read[key, offset] = min(poll.time_ns, read.get((key, offset), poll.time_ns))
    began: dict[tuple[Key, Value], int] = {}
    for send in sends:
        if send.began_ns:
            began[send.key, send.value] = send.began_ns
        if send.outcome is Outcome.OK and send.offset is not None and send.time_ns:
            acked[send.key, send.offset] = send.time_ns
    for anomaly, known_ns in (("g0-realtime", acked), ("g1c", read)):
        for key, at in known.items():
            earliest, where = sys.maxsize, -1
            for offset in sorted(at, reverse=True):
                seen = known_ns.get((key, offset), sys.maxsize)
                if seen < earliest:  # also of itself: a value that was read before anybody sent it
                    earliest, where = seen, offset
                if began.get((key, at[offset]), 0) > earliest:
                    verdict.anomalies[anomaly].append(f"{key}: {at[offset]} at {offset} began after {where} was known")


def _polls_in_order(verdict: Verdict, history: Sequence[Operation], known: dict[Key, dict[int, Value]]) -> None:
    offsets = {key: sorted(at) for key, at in known.items()}
    rank = {key: {offset: n for n, offset in enumerate(found)} for key, found in offsets.items()}
    last: dict[tuple[int, Key], int] = {}
    for op in history:
        if isinstance(op, Assign):
            last = {place: at for place, at in last.items() if place[0] != op.process}
        if not isinstance(op, Poll):
            continue
        for key, offset, _value in op.points:
            place = (op.process, key)
            before = last.get(place)
            last[place] = offset
            if before is None:
                continue
            step = rank[key][offset] - rank[key][before]
            if step > 1:
                verdict.anomalies["poll-skip"].append(f"process {op.process}, {key}: {before} → {offset}")
            elif step < 1:
                verdict.anomalies["nonmonotonic-poll"].append(f"process {op.process}, {key}: {before} → {offset}")
