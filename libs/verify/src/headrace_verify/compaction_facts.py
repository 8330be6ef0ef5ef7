"""
What is or was in logs from which old records go, as everybody together saw it, and from when on each may be gone.

``checker_compaction`` learns from a history here, and asks when it judges.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_verify.checker import Outcome, Verdict
from headrace_verify.compaction_history import Event, Handed, Log, Point, Read, Write

MS: Final = 1_000_000
NEVER: Final = sys.maxsize


@dataclass(frozen=True, slots=True)
class Policy:
    """What may go from a log, and when."""

    compacts: bool
    delete_retention_ms: int = 0
    compaction_lag_ms: int = 0
    deletes: bool = False
    """Its start moves."""
    retention_ms: int = 0
    """With ``deletes``: nothing goes that is younger. 0: by size, so at any age."""


class Facts:
    """What is or was in the logs, as everybody together saw it, and from when on it may be gone."""

    def __init__(self, policies: Mapping[Log, Policy]) -> None:
        self.policies = policies
        self.writes: dict[int, Write] = {}
        self.numbers: dict[Log, dict[int, int]] = defaultdict(dict)
        """Offset → number."""
        self.offsets: dict[int, int] = {}
        """Number → offset."""
        self.read: set[int] = set()
        self.settled: dict[Log, list[int]] = {}
        """Offsets of what is surely committed, ascending."""
        self.goes: dict[Log, dict[int, int]] = {}
        """Offset → when it may be gone, as far as anybody can know before the end."""
        self.superseded: dict[Log, dict[int, int]] = {}
        """The same, by newer records of its key alone."""
        self.goes_finally: dict[Log, dict[int, int]] = {}
        """The same when what was unknown is known: what is not there then was never there, but for deletions."""

    def learn(self, events: Sequence[Event], verdict: Verdict) -> None:
        for event in events:
            if isinstance(event, Write):
                self.writes[event.number] = event
        last: dict[tuple[int, Log], int] = {}
        for write in sorted(self.writes.values(), key=lambda each: each.number):
            verdict.sends_ok += write.outcome is Outcome.OK
            verdict.sends_unknown += write.outcome is Outcome.INFO
            if write.outcome is Outcome.OK and write.offset is not None:
                self._place(write.log, write.offset, write.number, verdict)
                before = last.get((write.process, write.log), -1)
                if write.offset <= before:
                    text = f"{write.log}: {write.number} at {write.offset} after {before}"
                    verdict.anomalies["nonmonotonic-send"].append(text)
                last[write.process, write.log] = write.offset
        for event in events:
            if isinstance(event, Read | Handed):
                for point in event.points:
                    self._learn_point(event.log, point, verdict)
        verdict.read = len(self.read)
        self._settle()

    def _learn_point(self, log: Log, point: Point, verdict: Verdict) -> None:
        self._place(log, point.offset, point.number, verdict)
        if point.number in self.read:
            return
        self.read.add(point.number)
        write = self.writes.get(point.number)
        if write is None:
            verdict.anomalies["never-sent"].append(f"{log}@{point.offset}: {point.number} was read, nobody sent it")
        elif (write.log, write.key, write.deletes) != (log, point.key, point.deletes):
            verdict.anomalies["altered"].append(f"{log}@{point.offset}: {point} was sent as {write}")
        elif write.outcome is Outcome.FAIL:
            verdict.anomalies["G1a"].append(f"{log}@{point.offset}: {point.number} was read, its send had failed")

    def _place(self, log: Log, offset: int, number: int, verdict: Verdict) -> None:
        there = self.numbers[log].setdefault(offset, number)
        if there != number:
            verdict.anomalies["inconsistent-offsets"].append(f"{log}@{offset} is {there} and {number}")
        first = self.offsets.setdefault(number, offset)
        if first != offset:
            verdict.anomalies["duplicate"].append(f"{log}: {number} is at {first} and {offset}")

    def _settle(self) -> None:
        keys: dict[tuple[Log, str], list[tuple[int, Write]]] = defaultdict(list)
        doubts: dict[tuple[Log, str], list[Write]] = defaultdict(list)
        for number, write in self.writes.items():
            if write.outcome is Outcome.OK or (write.outcome is Outcome.INFO and number in self.read):
                keys[write.log, write.key].append((self.offsets[number], write))
            elif write.outcome is Outcome.INFO:
                doubts[write.log, write.key].append(write)
        for log in {log for log, _ in keys}:
            self.goes[log], self.goes_finally[log], self.superseded[log] = {}, {}, {}
        for (log, key), places in keys.items():
            self._settle_key(log, sorted(places, key=lambda place: place[0], reverse=True), doubts.get((log, key), ()))
        for log, goes in self.goes.items():
            self.settled[log] = sorted(goes)

    def _settle_key(self, log: Log, newest_first: Sequence[tuple[int, Write]], doubts: Sequence[Write]) -> None:
        policy = self.policies[log]
        if not policy.compacts:
            self.goes[log].update((offset, NEVER) for offset, _ in newest_first)
            self.goes_finally[log].update((offset, NEVER) for offset, _ in newest_first)
            self.superseded[log].update((offset, NEVER) for offset, _ in newest_first)
            return
        lag = policy.compaction_lag_ms * MS
        kept = lag + policy.delete_retention_ms * MS
        doubt = min((write.began_ns + lag for write in doubts), default=NEVER)
        deleted = min((write.began_ns + kept for write in doubts if write.deletes), default=NEVER)
        newer = NEVER
        for offset, write in newest_first:
            own = write.began_ns + kept if write.deletes else NEVER
            self.superseded[log][offset] = newer
            self.goes[log][offset] = min(newer, doubt, own)
            self.goes_finally[log][offset] = min(newer, deleted, own)
            newer = min(newer, write.began_ns + lag)

    def between(self, log: Log, begin: int, end: int) -> list[int]:
        """Offsets of committed records there."""
        offsets = self.settled.get(log, [])
        return offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)]

    def write_at(self, log: Log, offset: int) -> Write:
        """What is committed there."""
        return self.writes[self.numbers[log][offset]]
