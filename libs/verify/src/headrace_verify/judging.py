"""What a round's history says: anomalies, availability, and a mark of what was read, to compare with later. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace_verify.availability import Outage, outages, per_second
from headrace_verify.checker import Key, Value
from headrace_verify.checker_history import F, Operation, Polled, Type
from headrace_verify.checker_txn import Judgement, check_exactly_once, check_history

OUTAGE_S_MIN = 1.0
ORDINARY_GAPS = 10
"""So many times the usual time between two writes of a partition are an outage, where that is more."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What was read of a partition up to ``end``: how many values, and a digest of offsets and values."""

    end: int
    """One more than the last offset that was read."""
    count: int
    digest: bytes


@dataclass(slots=True)
class Findings:
    """Of one round."""

    anomalies: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    allowed: Counter[str] = field(default_factory=Counter)
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind and end of operations."""
    acknowledged: int = 0
    unknown: int = 0
    read: int = 0
    """Different records that were read."""
    copied: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    seconds: list[tuple[int, int]] = field(default_factory=list)
    """Of each second of the load: partitions with an acknowledged write, and acknowledged writes."""
    outages: list[Outage] = field(default_factory=list)
    marks: dict[Key, Mark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """A round whose load is over, and what was read afterwards."""

    history: Sequence[Operation]
    reader: int
    """The process that read all at the end."""
    members: frozenset[int]
    """Processes that read as members of the group."""
    group_committed: Mapping[Key, int]
    copies: Sequence[tuple[Key, int]]
    """Of each copy the partition and offset that it was made from."""
    copiers_committed: Mapping[Key, int]
    load_began_ns: int
    load_ended_ns: int


def judge(ended: Ended) -> Findings:
    """
    All of it.

    Raises:
        ValueError: it is not a history.
    """
    verdict = check_history(ended.history)
    found = _figures(ended, verdict)
    final = final_reads(ended.history, ended.reader)
    _merge(found, check_exactly_once(final, ended.copies, ended.copiers_committed).anomalies)
    _merge(found, find_vanished(ended, final))
    _merge(found, find_skipped_by_group(ended, final))
    found.marks = {key: mark(points) for key, points in final.items()}
    acks = acknowledgements(ended.history)
    began, ended_ns = ended.load_began_ns, ended.load_ended_ns
    found.seconds = per_second(acks, began, ended_ns)
    found.outages = outages(acks, began, ended_ns, _outage_seconds(acks, ended_ns - began))
    return found


def _figures(ended: Ended, verdict: Judgement) -> Findings:
    found = Findings(
        allowed=Counter({name: len(texts) for name, texts in verdict.allowed.items()}),
        acknowledged=verdict.sends_ok,
        unknown=verdict.sends_unknown,
        read=verdict.read,
        copied=len(ended.copies),
        transactions=Counter({outcome.value: times for outcome, times in verdict.transactions.items()}),
    )
    _merge(found, verdict.anomalies)
    for entry in ended.history:
        if entry.type is not Type.INVOKE and entry.process != ended.reader:
            found.operations[entry.f.value, entry.type.value] += 1
    return found


def _merge(found: Findings, anomalies: Mapping[str, Iterable[str]]) -> None:
    for name, texts in anomalies.items():
        found.anomalies[name] += texts


def final_reads(history: Iterable[Operation], reader: int) -> dict[Key, dict[int, Value]]:
    """Offset to value of each key, as the last reader found them."""
    found: dict[Key, dict[int, Value]] = defaultdict(dict)
    for entry in history:
        if entry.process == reader and entry.f is F.POLL and entry.type is Type.OK:
            for one in entry.value:
                if isinstance(one, Polled):
                    for key, points in one.points.items():
                        found[key].update(points)
    return found


def find_vanished(ended: Ended, final: Mapping[Key, Mapping[int, Value]]) -> Mapping[str, list[str]]:
    """Records that somebody read and that the last reader, who read all, did not find."""
    read = collect_offsets(ended.history, lambda process: process != ended.reader)
    texts = [
        f"{key}@{offset} was read, and is not there at the end"
        for key in sorted(read)
        for offset in sorted(read[key] - final.get(key, {}).keys())
    ]
    return {"vanished": texts} if texts else {}


def find_skipped_by_group(ended: Ended, final: Mapping[Key, Mapping[int, Value]]) -> Mapping[str, list[str]]:
    """Records that the group has committed and that no member was ever given."""
    given = collect_offsets(ended.history, ended.members.__contains__)
    texts = [
        f"{key}@{offset} was given to no member, committed is {ended.group_committed[key]}"
        for key in sorted(ended.group_committed)
        for offset in sorted(final.get(key, {}).keys() - given[key])
        if offset < ended.group_committed[key]
    ]
    return {"skipped-by-group": texts} if texts else {}


def collect_offsets(history: Iterable[Operation], by: Callable[[int], bool]) -> dict[Key, set[int]]:
    """The offsets of each key that these processes were given, alone or in a transaction."""
    found: dict[Key, set[int]] = defaultdict(set)
    for entry in history:
        if entry.type is Type.OK and by(entry.process):
            for one in entry.value:
                if isinstance(one, Polled):
                    for key, points in one.points.items():
                        found[key].update(offset for offset, _ in points)
    return found


def mark(points: Mapping[int, Value]) -> Mark:
    """Of all offsets and values of a partition."""
    digest = hashlib.blake2b(digest_size=16)
    for offset in sorted(points):
        digest.update(b"%d:%d;" % (offset, points[offset]))
    return Mark(max(points, default=-1) + 1, len(points), digest.digest())


def find_changed(marks: Mapping[Key, Mark], now: Mapping[Key, Mapping[int, Value]]) -> list[str]:
    """What is not as it was when ``marks`` were made; what came later does not count."""
    texts = []
    for key, before in marks.items():
        after = mark({offset: value for offset, value in now.get(key, {}).items() if offset < before.end})
        if (after.count, after.digest) != (before.count, before.digest):
            texts.append(f"{key} had {before.count} records below {before.end}, now {after.count}, or others")
    return texts


def acknowledgements(history: Iterable[Operation]) -> dict[Key, list[int]]:
    """When writes of each key were acknowledged, those of transactions when they were committed; ascending."""
    acks: dict[Key, list[int]] = defaultdict(list)
    for entry in history:
        if entry.type is Type.OK and entry.f in (F.SEND, F.TXN):
            for one in entry.value:
                if not isinstance(one, str | Polled):
                    acks[one.key].append(entry.time_ns)
    return acks


def _outage_seconds(acks: Mapping[Key, Sequence[int]], load_ns: int) -> float:
    """From how long on a silence of a partition is an outage, and no chance."""
    writes = sum(map(len, acks.values()))
    usual = len(acks) * load_ns / 1e9 / writes if writes else 0.0
    return max(OUTAGE_S_MIN, ORDINARY_GAPS * usual)
