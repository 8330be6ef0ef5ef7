"""
Judges what readers saw of logs from which old records go: the compacted variant of the checker.

What is missing is right only if it may be gone by then. A record of a compacted log may go once a newer one of its key
was sent (and both are old enough to be compacted); a deletion besides when it was to be read for
``delete.retention.ms``; with retention, what is below the log's start may go at its age. So:

- ``inconsistent-offsets``: an offset has two records; ``duplicate``: a record is at two offsets; ``altered``: it was
  read with another key, or as a deletion that is none, or in another log; ``never-sent``; ``G1a``: its send had failed.
- ``nonmonotonic-send``, ``nonmonotonic-poll``: offsets of one process that do not grow; ``position-jump``: it went on
  elsewhere than where it was, and was not told.
- ``poll-skip``: a reader passed over a record that could not be gone; ``lost-tombstone``: over such a deletion.
- ``lost-final``: the same of somebody who read when nothing was written any more, so an older value was the last one.
- ``unseen``: acknowledged, and behind the end that the final readers found.
- ``resurrected``: a reader got a value, and then not the deletion behind it, though it was not slow.
- ``lost-below-start``: the log does not begin at its first record, though nothing is to be deleted from it, or not yet.
- ``told-wrong``: a reader was told of a range as lost that was not, or got records of it.
- ``group-skip``: nobody in a group got a record below its position that is still there in the end.
- ``replicas-differ``: the last value of a key is another one on another replica.

``resurrected`` is allowed while leaders move: replicas are compacted each on its own, so a reader may get the value
from one and miss the deletion on another that compacted earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace_verify.checker import Verdict
from headrace_verify.compaction_facts import MS, NEVER, Facts, Policy
from headrace_verify.compaction_history import Began, Event, GroupAt, Handed, Kind, Log, Point, Read, Told

SLACK_MS: Final = 50
"""Of clocks that are read in ms, and of records whose stamp is older than their send."""


@dataclass(slots=True)
class Aged(Verdict):
    """The verdict, and how much there was to judge."""

    allowed: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    compacted: int = 0
    """Committed records that the final readers did not see above the log's start."""
    expired: int = 0
    """Committed records below the start that the final readers found."""
    told: int = 0
    """Ranges that readers were told they lost."""
    tombstones: int = 0
    """Deletions that readers got."""


def check_compacted(
    history: Iterable[Event], policies: Mapping[Log, Policy], disturbed: Sequence[tuple[int, int]] = ()
) -> Aged:
    """
    Judge a whole history, that ends with final readers and one reader for each replica.

    Args:
        history: events of each process in their order; those of different processes are not ordered.
        policies: of each log.
        disturbed: times in which leaders may have moved.
    """
    events = list(history)
    verdict = Aged()
    facts = Facts(policies)
    facts.learn(events, verdict)
    judge = _Readers(facts, verdict, disturbed)
    judge.walk(events)
    _groups(events, facts, judge, verdict)
    _replicas(judge, verdict)
    verdict.allowed = {name: found for name, found in verdict.allowed.items() if found}
    return verdict


@dataclass(slots=True)
class _Sweep:
    """One process that reads one log on and on."""

    at: int
    number: int
    """Which of this process and this log."""
    kind: Kind
    since_ns: int
    seen: dict[str, Point] = field(default_factory=dict)
    """Key → the newest record."""
    risen: dict[str, tuple[Point, int, int]] = field(default_factory=dict)
    """Key → a value whose deletion was not there: when it came at the earliest, and when the deletion was passed."""

    @property
    def last(self) -> bool:
        return self.kind is not Kind.READER


class _Readers:
    """Follows everybody who reads."""

    def __init__(self, facts: Facts, verdict: Aged, disturbed: Sequence[tuple[int, int]]) -> None:
        self._facts, self._verdict, self._disturbed = facts, verdict, disturbed
        self._sweeps: dict[tuple[int, Log], _Sweep] = {}
        self._told: dict[tuple[int, Log, int], list[Told]] = defaultdict(list)
        """By sweep."""
        self._begun: dict[tuple[int, Log], int] = defaultdict(int)
        self.starts: dict[Log, int] = {}
        """The highest first offset that anybody was told in the end."""
        self.finals: dict[Log, dict[int, Point]] = defaultdict(dict)
        """What the final readers saw, by offset."""
        self.ends: dict[Log, int] = {}
        """How far they came."""
        self.copies: dict[Log, dict[int, _Sweep]] = defaultdict(dict)
        """By replica."""

    def walk(self, events: Sequence[Event]) -> None:
        number: dict[tuple[int, Log], int] = defaultdict(int)
        exact = {e.log for e in events if isinstance(e, Began) and e.kind is Kind.REPLICA}
        for event in events:
            if isinstance(event, Told):
                self._told[event.process, event.log, number[event.process, event.log]].append(event)
            elif isinstance(event, Began):
                number[event.process, event.log] += 1
                if event.first and event.kind is (Kind.REPLICA if event.log in exact else Kind.FINAL):
                    self.starts[event.log] = max(event.position, self.starts.get(event.log, 0))
        for event in events:
            if isinstance(event, Began):
                self._begin(event)
            elif isinstance(event, Read):
                self._read(event)
        for (process, log), sweep in self._sweeps.items():
            self._end(process, log, sweep)
        for (process, log, _), told in self._told.items():
            for each in told:
                self._judge_told(process, log, each)
        self._count()

    # --- one reader -----------------------------------------------------------------------------------------

    def _begin(self, event: Began) -> None:
        place = event.process, event.log
        before = self._sweeps.pop(place, None)
        if before is not None:
            self._end(*place, before)
        self._begun[place] += 1
        sweep = _Sweep(event.position, self._begun[place], event.kind, event.time_ns)
        self._sweeps[place] = sweep
        if event.kind is Kind.REPLICA:
            self.copies[event.log][event.process] = sweep
        if event.first:
            who = f"process {event.process} begins {event.log} at {event.position}"
            self._judge_gone(event.log, 0, event.position, event.time_ns, who)

    def _read(self, event: Read) -> None:
        sweep = self._sweeps[event.process, event.log]
        # It may be told with the poll after its position moved, and that may be the first of its next sweep.
        at = sweep.number
        told = [each for n in (at, at + 1) for each in self._told.get((event.process, event.log, n), ())]
        who = f"process {event.process}, {event.log}"
        if event.before != _follow(sweep.at, event.before, told):
            text = f"{who}: was at {sweep.at}, goes on at {event.before}"
            self._verdict.anomalies["position-jump"].append(text)
        self._order(event, told, who)
        there = {point.offset: point for point in event.points}
        passed = self._facts.between(event.log, event.before, event.after)
        for offset in sorted({*there, *passed}):
            point = there.get(offset)
            if point is not None:
                sweep.seen[point.key] = point
                sweep.risen.pop(point.key, None)
            elif not any(t.lost <= offset < t.position for t in told):
                self._missing(event, sweep, offset, who)
        if sweep.kind is Kind.FINAL:
            self.finals[event.log].update((point.offset, point) for point in event.points)
            self.ends[event.log] = max(event.after, self.ends.get(event.log, 0))
        elif sweep.kind is Kind.READER:
            self._verdict.tombstones += sum(point.deletes for point in event.points)
        sweep.at = event.after

    def _order(self, event: Read, told: Sequence[Told], who: str) -> None:
        least = event.before
        for point in event.points:
            if not least <= point.offset < event.after:
                text = f"{who}: {point.offset} between {least} and {event.after}"
                self._verdict.anomalies["nonmonotonic-poll"].append(text)
            least = point.offset + 1
            if any(t.lost <= point.offset < t.position and t.time_ns <= event.time_ns for t in told):
                self._verdict.anomalies["told-wrong"].append(f"{who}: told that {point.offset} is lost, and got it")

    def _missing(self, event: Read, sweep: _Sweep, offset: int, who: str) -> None:
        facts, log = self._facts, event.log
        write = facts.write_at(log, offset)
        goes = (facts.goes_finally if sweep.last else facts.goes)[log][offset]
        if event.time_ns + SLACK_MS * MS < goes:
            name = "lost-tombstone" if write.deletes else "lost-final" if sweep.last else "poll-skip"
            text = f"{who}: passed over {offset} ({write.key}, {write.number}, process {write.process})"
            self._verdict.anomalies[name].append(text)
        elif write.deletes and event.time_ns + SLACK_MS * MS < facts.superseded[log][offset]:
            older = sweep.seen.get(write.key)
            if older is not None and not older.deletes:
                # Records are fetched ahead, nobody knows when: not before the reader began, nor before they were sent.
                sent_ns = facts.writes[older.number].began_ns if older.number in facts.writes else 0
                sweep.risen[write.key] = older, max(sweep.since_ns, sent_ns), event.time_ns

    def _end(self, process: int, log: Log, sweep: _Sweep) -> None:
        retention_ns = self._facts.policies[log].delete_retention_ms * MS
        for point, came_ns, passed_ns in sweep.risen.values():
            text = f"process {process}, {log}: {point.key} has the value of {point.offset}, it was deleted"
            # The time that a compaction takes is given as half of the retention.
            slow = not sweep.last and passed_ns - came_ns >= retention_ns // 2
            moved = not sweep.last and any(begin <= passed_ns and came_ns <= end for begin, end in self._disturbed)
            found = self._verdict.allowed if slow or moved else self._verdict.anomalies
            found["resurrected"].append(text)

    # --- log starts -----------------------------------------------------------------------------------------

    def _judge_gone(self, log: Log, begin: int, end: int, now_ns: int, who: str) -> None:
        """Everything there is gone as it is below the log's start."""
        policy = self._facts.policies[log]
        for offset in self._facts.between(log, begin, end):
            if now_ns + SLACK_MS * MS >= self._facts.goes[log][offset]:
                continue  # it was compacted: where a position is looked up it may pass over what is empty
            write = self._facts.write_at(log, offset)
            young = now_ns + SLACK_MS * MS < write.began_ns + policy.retention_ms * MS
            if not policy.deletes or young:
                age = (now_ns - write.began_ns) // MS
                text = f"{who}: without {offset} ({write.key}, {write.number}), {age} ms after it was sent"
                self._verdict.anomalies["lost-below-start"].append(text)
                return

    def _judge_told(self, process: int, log: Log, told: Told) -> None:
        self._verdict.told += 1
        who = f"process {process}, {log}: told that {told.lost} to {told.position - 1} are lost"
        if told.position <= told.lost or told.position > self.starts.get(log, NEVER):
            text = f"{who}, the log begins at {self.starts.get(log)}"
            self._verdict.anomalies["told-wrong"].append(text)
        self._judge_gone(log, told.lost, told.position, told.time_ns, who)

    def _count(self) -> None:
        for log in self._facts.settled:
            start = self.starts.get(log, 0)
            self._verdict.expired += len(self._facts.between(log, 0, start)) if self._facts.policies[log].deletes else 0
            if log in self.ends:
                for offset in self._facts.between(log, self.ends[log], NEVER):
                    text = f"{log}@{offset}: {self._facts.numbers[log][offset]} is behind the end, {self.ends[log]}"
                    self._verdict.anomalies["unseen"].append(text)
            seen = self.finals.get(log, {})
            self._verdict.compacted += sum(offset not in seen for offset in self._facts.between(log, start, NEVER))


def _follow(at: int, wanted: int, told: Sequence[Told]) -> int:
    """Where somebody at ``at`` goes on who was told so, perhaps several times: at ``wanted`` if that can be."""
    ways = {each.lost: each.position for each in told}
    for _ in told:
        if at == wanted or at not in ways:
            break
        at = ways[at]
    return at


def _groups(events: Sequence[Event], facts: Facts, judge: _Readers, verdict: Aged) -> None:
    """What is still there in the end and below the position of a group, one of its members got, or was told of."""
    handed: dict[tuple[int, Log], set[int]] = defaultdict(set)
    told: dict[tuple[int, Log], list[Told]] = defaultdict(list)
    for event in events:
        if isinstance(event, Handed):
            handed[event.process, event.log].update(point.offset for point in event.points)
        elif isinstance(event, Told):
            told[event.process, event.log].append(event)
    for event in events:
        if not isinstance(event, GroupAt):
            continue
        got = set[int]().union(*(handed[process, event.log] for process in event.processes))
        lost = [each for process in event.processes for each in told[process, event.log]]
        for offset in sorted(judge.finals.get(event.log, {}).keys() - got):
            if event.start <= offset < event.position and not any(t.lost <= offset < t.position for t in lost):
                text = f"{event.log}@{offset}: nobody got {facts.numbers[event.log][offset]}"
                verdict.anomalies["group-skip"].append(text)


def _replicas(judge: _Readers, verdict: Aged) -> None:
    for log, copies in judge.copies.items():
        start = judge.starts.get(log, 0)
        values = {process: _values(sweep, start) for process, sweep in copies.items()}
        keys = sorted({key for each in values.values() for key in each})
        for key in keys:
            places = {process: each.get(key) for process, each in values.items()}
            if len(set(places.values())) > 1:
                verdict.anomalies["replicas-differ"].append(f"{log}, {key}: {places}")
        if len({sweep.at for sweep in copies.values()}) > 1:
            ends = {process: sweep.at for process, sweep in copies.items()}
            verdict.anomalies["replicas-differ"].append(f"{log}: ends {ends}")


def _values(sweep: _Sweep, start: int) -> dict[str, tuple[int, int]]:
    """Key → offset and number of its value; of deleted keys nothing, whether the deletion is still there or not."""
    newest = {key: point for key, point in sweep.seen.items() if point.offset >= start}
    return {key: (point.offset, point.number) for key, point in newest.items() if not point.deletes}
