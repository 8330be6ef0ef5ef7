"""
Reads what the load in the pod wrote down, and judges it: what the checker finds, gaps, errors, in-sync replicas. Pure.

The lines are described in ``pod/load.py``. Everything is kept as runs and judged one partition at a time, so that
minutes of 2,000 records a second fit the memory of a small machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from headrace_verify.availability import SECOND, Gap, longest_gap
from headrace_verify.checker import Assign, Key, Operation, Outcome, Poll, Send, Verdict, check

from .pod.written import STEP


@dataclass(frozen=True, slots=True)
class SentRun:
    """Consecutive values of one process with one outcome; offsets are consecutive too."""

    process: int
    key: Key
    value: int
    count: int
    outcome: Outcome
    offset: int
    began_ns: int
    ended_ns: int

    def operations(self) -> Iterator[Send]:
        """One by one."""
        for n in range(self.count):
            offset = self.offset + n if self.outcome is Outcome.OK else None
            value = self.value + n * STEP
            yield Send(self.process, self.outcome, self.key, value, offset, self.ended_ns, self.began_ns)


@dataclass(frozen=True, slots=True)
class PolledRuns:
    """What one poll handed out of one partition: (offset, value, count) of each run."""

    process: int
    key: Key
    runs: tuple[tuple[int, int, int], ...]
    ended_ns: int

    def operation(self) -> Poll:
        """As the checker knows it."""
        points = [(self.key, o + n, v + n * STEP) for o, v, count in self.runs for n in range(count)]
        return Poll(self.process, tuple(points), self.ended_ns)


@dataclass(frozen=True, slots=True)
class Sample:
    """A partition from this moment on."""

    at_ns: int
    key: Key
    leader: int
    in_sync: int
    replicas: int


@dataclass(slots=True)
class History:
    """All that was written down in one pod. Times are of its monotonic clock."""

    by_key: dict[Key, list[SentRun | PolledRuns]] = field(default_factory=lambda: defaultdict(list))
    members: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    late: list[tuple[int, float]] = field(default_factory=list)
    """When the load's own loop was late, and by how many seconds."""
    wall_offset_ns: int = 0
    """Wall clock minus monotonic clock."""
    assigned_at: dict[int, list[dict[Key, int]]] = field(default_factory=lambda: defaultdict(list))
    """Process → for each time it chose anew, how many entries each key had then."""

    def at(self, wall_ns: int) -> int:
        """A time of the machine that runs the scenario, on the clock of the history."""
        return wall_ns - self.wall_offset_ns

    @property
    def acks(self) -> dict[Key, list[int]]:
        """Key → times of acknowledgements, ascending."""
        found: dict[Key, list[int]] = {}
        for key, entries in self.by_key.items():
            times = [e.ended_ns for e in entries if isinstance(e, SentRun) and e.outcome is Outcome.OK]
            if times:
                found[key] = sorted(times)
        return found

    @property
    def acknowledged(self) -> int:
        """Records."""
        every = (e for entries in self.by_key.values() for e in entries)
        return sum(e.count for e in every if isinstance(e, SentRun) and e.outcome is Outcome.OK)


def read_histories(paths: Sequence[Path]) -> History:
    """Entries of each process stay in their order; a line that was cut off at the end of a file is left out."""
    history = History()
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    read_line(history, line.split())
    return history


def read_line(history: History, words: list[str]) -> None:
    """One event into the history."""
    match words:
        case ["C", monotonic, wall]:
            history.wall_offset_ns = int(wall) - int(monotonic)
        case ["S", process, key, value, count, outcome, offset, began, ended]:
            run = SentRun(
                int(process), key, int(value), int(count), Outcome(outcome), int(offset), int(began), int(ended)
            )
            history.by_key[key].append(run)
        case ["P", process, ended, *found]:
            for key, runs in _by_key(found).items():
                history.by_key[key].append(PolledRuns(int(process), key, tuple(runs), int(ended)))
        case ["A", process]:
            history.assigned_at[int(process)].append({key: len(all_) for key, all_ in history.by_key.items()})
        case ["G", process]:
            history.members.add(int(process))
        case ["I", at, topic, partition, leader, in_sync, replicas]:
            key = f"{topic}-{partition}"
            history.samples.append(Sample(int(at), key, int(leader), int(in_sync), int(replicas)))
        case ["L", at, seconds]:
            history.late.append((int(at), float(seconds)))
        case ["E", process, _at, *text]:
            history.errors.append(f"process {process}: {' '.join(text)}")
        case _:
            raise ValueError(f"no line of a history: {' '.join(words)[:200]}")


def _by_key(found: Iterable[str]) -> dict[Key, list[tuple[int, int, int]]]:
    runs: dict[Key, list[tuple[int, int, int]]] = defaultdict(list)
    for word in found:
        key, offset, value, count = word.rsplit(":", 3)
        runs[key].append((int(offset), int(value), int(count)))
    return runs


def operations(history: History, key: Key) -> list[Operation]:
    """All of one partition, with the places at which processes chose their positions anew."""
    entries = history.by_key[key]
    anew: dict[int, list[int]] = defaultdict(list)
    for process, times in history.assigned_at.items():
        for places in times:
            anew[places.get(key, 0)].append(process)
    found: list[Operation] = []
    for place, entry in enumerate(entries):
        found += [Assign(process) for process in anew.get(place, ())]
        if isinstance(entry, SentRun):
            found += entry.operations()
        else:
            found.append(entry.operation())
    return found


def judge(history: History) -> Verdict:
    """What the checker finds in any partition, and ``missed-by-group``: acknowledged, and no member was given it."""
    verdict = Verdict()
    for key in sorted(history.by_key):
        found = check(operations(history, key))
        for name, texts in found.anomalies.items():
            verdict.anomalies[name] += texts
        verdict.sends_ok += found.sends_ok
        verdict.sends_unknown += found.sends_unknown
        verdict.read += found.read
        if history.members and (missed := _missed(history, key)):
            verdict.anomalies["missed-by-group"].append(f"{key}: {len(missed)}, first at {min(missed)}")
    return verdict


def _missed(history: History, key: Key) -> set[int]:
    """Offsets that were acknowledged and that no member of the group polled."""
    acked: set[int] = set()
    polled: set[int] = set()
    for entry in history.by_key[key]:
        if isinstance(entry, SentRun):
            if entry.outcome is Outcome.OK:
                acked.update(range(entry.offset, entry.offset + entry.count))
        elif entry.process in history.members:
            for offset, _value, count in entry.runs:
                polled.update(range(offset, offset + count))
    return acked - polled


def gap(history: History, begin_ns: int, end_ns: int) -> tuple[Key, Gap]:
    """The longest time without an acknowledgement on one partition, between two times of the history's clock."""
    acks = history.acks
    names = sorted(acks)
    worst = longest_gap({number: acks[name] for number, name in enumerate(names)}, begin_ns, end_ns)
    return (names[worst.partition] if worst.partition >= 0 else ""), worst


def back_after(history: History, begin_ns: int, end_ns: int, quiet_s: float = 1.0) -> float | None:
    """Seconds from ``begin_ns`` until no partition has a gap above ``quiet_s`` any more; None: one is silent still."""
    last = begin_ns
    for acks in history.acks.values():
        inside = [begin_ns, *(at for at in acks if begin_ns < at < end_ns), end_ns]
        for before, after in pairwise(inside):
            if (after - before) / SECOND > quiet_s:
                if after == end_ns:
                    return None
                last = max(last, after)
    return (last - begin_ns) / SECOND


@dataclass(frozen=True, slots=True)
class Thin:
    """A partition had fewer replicas in sync than it needs for writes."""

    key: Key
    in_sync: int
    begin_ns: int
    seconds: float


def below_minimum(
    samples: Sequence[Sample], begin_ns: int, end_ns: int, minimum: Mapping[int, int] | None = None
) -> list[Thin]:
    """
    When |ISR| was below min ISR between two times.

    Args:
        minimum: replicas → min ISR; by default 2 from three replicas on, else 1.
    """
    needed = minimum or {}
    found: list[Thin] = []
    at: dict[Key, Sample] = {}
    for sample in [*sorted(samples, key=lambda one: one.at_ns), None]:
        ended = [at[sample.key]] if sample is not None and sample.key in at else [] if sample else list(at.values())
        for before in ended:
            begin = max(before.at_ns, begin_ns)
            end = min(sample.at_ns if sample is not None else end_ns, end_ns)
            least = needed.get(before.replicas, 2 if before.replicas >= 3 else 1)
            if before.in_sync < least and begin < end:
                found.append(Thin(before.key, before.in_sync, begin, (end - begin) / SECOND))
        if sample is not None:
            at[sample.key] = sample
    return found
