"""
Judges a history of sends, polls and transactions: the full checker.

It finds these anomalies:

- ``inconsistent-offsets``: one offset of a key has two values; ``duplicate``: a value is at two offsets.
- ``lost-write``: an acknowledged value was not read, though a later offset of its key was. ``unseen``: an acknowledged
  value was never read.
- ``G1a``: a value was read whose send surely failed; ``never-sent``: a value was read that nobody sent.
- ``precommitted-read``: a transaction read a value that it sent itself.
- ``poll-skip``, ``nonmonotonic-poll``: between two polls of positions that it chose, a process skips values, or goes
  back. An aborted transaction returns it to its earlier position; after a transaction of unknown outcome its position
  is unknown. Positions that a group chooses may move: then both are allowed.
- ``nonmonotonic-send``: an acknowledged send of a process has a lower offset than an earlier one.
- ``torn-transaction``: some values of a transaction were read and others never.
- ``G1c``, ``G0-realtime``: cycles, see ``checker_order``. ``G0``, between whole transactions, is allowed, and so is
  ``send-skip``: another process' value between two values of one transaction.

The history must end with reads of every key from its beginning to its end by processes that chose their positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace_verify.checker import Key, Outcome, Value, Verdict
from headrace_verify.checker_history import Act, F, Operation, Polled, Sent, pair_calls
from headrace_verify.checker_order import Moments, find_interleaved, impossible


@dataclass(slots=True)
class Judgement(Verdict):
    """Anomalies fail a run; ``allowed`` lists what is reported but does not."""

    allowed: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    transactions: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))


def check_history(history: Iterable[Operation], *, read_committed: bool = True) -> Judgement:
    """
    Judge a whole history.

    Args:
        history: see ``checker_history``.
        read_committed: how the processes read. Otherwise what was aborted, or is not decided, may be read.

    Raises:
        ValueError: it is not a history.
    """
    acts = pair_calls(history)
    verdict = Judgement()
    facts = Facts()
    for act in acts:
        facts.learn(act, verdict)
    _count(acts, facts, verdict)
    _reads(acts, facts, verdict, read_committed=read_committed)
    _writes(acts, facts, verdict)
    _sends_in_order(acts, facts, verdict)
    _Positions(facts, verdict).walk(acts)
    graph = Moments(acts, facts.offsets, facts.read).build(read_committed=read_committed)
    for name, text in impossible(graph, acts):
        verdict.anomalies[name].append(text)
    verdict.allowed["G0"] += find_interleaved(acts, facts.offsets)
    verdict.allowed = {name: found for name, found in verdict.allowed.items() if found}
    return verdict


class Facts:
    """What is in the log, as everybody together saw it."""

    def __init__(self) -> None:
        self.values: dict[Key, dict[int, Value]] = defaultdict(dict)
        self.offsets: dict[Key, dict[Value, int]] = defaultdict(dict)
        self.writers: dict[Key, dict[Value, Act]] = defaultdict(dict)
        self.read: dict[Key, set[Value]] = defaultdict(set)
        self.read_at: dict[Key, set[int]] = defaultdict(set)
        self.acknowledged_at: dict[Key, set[int]] = defaultdict(set)
        self.highest: dict[Key, int] = {}
        """Key → highest offset that was read."""

    def learn(self, act: Act, verdict: Verdict) -> None:
        """From an act, whatever came of it: an acknowledged offset is one, and what was read was there."""
        for micro in act.micros:
            if isinstance(micro, Sent):
                self.writers[micro.key][micro.value] = act
                if micro.offset is not None:
                    if act.acknowledged(micro):
                        self.acknowledged_at[micro.key].add(micro.offset)
                    self._point(micro.key, micro.offset, micro.value, verdict)
                continue
            for key, points in micro.points.items():
                if points:
                    self._learn_points(key, points, verdict)

    def _learn_points(self, key: Key, points: Sequence[tuple[int, Value]], verdict: Verdict) -> None:
        """What a poll returned; most of a history is this."""
        values, offsets = self.values[key], self.offsets[key]
        for offset, value in points:
            if values.setdefault(offset, value) != value or offsets.setdefault(value, offset) != offset:
                self._point(key, offset, value, verdict)
        read_at, read = zip(*points, strict=True)
        self.read_at[key].update(read_at)
        self.read[key].update(read)
        self.highest[key] = max(*read_at, self.highest.get(key, -1))

    def _point(self, key: Key, offset: int, value: Value, verdict: Verdict) -> None:
        there = self.values[key].setdefault(offset, value)
        if there != value:
            verdict.anomalies["inconsistent-offsets"].append(f"{key}@{offset} is {there} and {value}")
        first = self.offsets[key].setdefault(value, offset)
        if first != offset:
            verdict.anomalies["duplicate"].append(f"{key}: {value} is at {first} and {offset}")


def _count(acts: Sequence[Act], facts: Facts, verdict: Judgement) -> None:
    for act in acts:
        if act.f is F.TXN:
            verdict.transactions[act.outcome] += 1
        sends = [micro for micro in act.micros if isinstance(micro, Sent)]
        acknowledged = sum(map(act.acknowledged, sends))
        verdict.sends_ok += acknowledged
        verdict.sends_unknown += len(sends) - acknowledged if act.outcome is Outcome.INFO else 0
    verdict.read = sum(map(len, facts.read.values()))


def _reads(acts: Sequence[Act], facts: Facts, verdict: Verdict, *, read_committed: bool) -> None:
    for key, read in facts.read.items():
        writers = facts.writers[key]
        for value in read:
            writer = writers.get(value)
            if writer is None:
                verdict.anomalies["never-sent"].append(f"{key}: {value} was read, nobody sent it")
            elif writer.outcome is Outcome.FAIL and (read_committed or writer.f is not F.TXN):
                verdict.anomalies["G1a"].append(f"{key}: {value} was read, operation {writer.number} had failed")
    if not read_committed:
        return
    for act in acts:
        if act.f is F.TXN:
            own = {(micro.key, micro.value) for micro in act.micros if isinstance(micro, Sent)}
            for key, value in sorted(own.intersection(_list_read(act))) if own else ():
                text = f"operation {act.number} read its own {value} of {key}"
                verdict.anomalies["precommitted-read"].append(text)


def _list_read(act: Act) -> Iterable[tuple[Key, Value]]:
    for micro in act.micros:
        if isinstance(micro, Polled):
            for key, points in micro.points.items():
                for _, value in points:
                    yield key, value


def _writes(acts: Sequence[Act], facts: Facts, verdict: Verdict) -> None:
    for act in acts:
        sends = [micro for micro in act.micros if isinstance(micro, Sent)]
        if not sends or act.outcome is Outcome.FAIL:
            continue
        missing = [send for send in sends if send.value not in facts.read[send.key]]
        if act.f is F.TXN and missing and len(missing) < len(sends):
            read = len(sends) - len(missing)
            names = ", ".join(f"{send.value} of {send.key}" for send in missing)
            text = f"operation {act.number}: {read} values were read, but not {names}"
            verdict.anomalies["torn-transaction"].append(text)
        for send in filter(act.acknowledged, missing):
            offset = facts.offsets[send.key].get(send.value)
            later = offset is not None and facts.highest.get(send.key, -1) > offset
            name = "lost-write" if later else "unseen"
            verdict.anomalies[name].append(f"{send.key}@{offset}: {send.value} of operation {act.number}")


def _sends_in_order(acts: Sequence[Act], facts: Facts, verdict: Judgement) -> None:
    """Of what was acknowledged. Between two sends of a transaction others may be."""
    last: dict[tuple[int, Key], int] = {}
    for act in acts:
        inside: dict[Key, int] = {}
        for micro in act.micros:
            if not isinstance(micro, Sent) or micro.offset is None or not act.acknowledged(micro):
                continue
            place, offset = (act.process, micro.key), micro.offset
            before = last.get(place, -1)
            if offset <= before:
                text = f"{micro.key}: {micro.value} at {offset} after {before}"
                verdict.anomalies["nonmonotonic-send"].append(text)
            last[place] = max(offset, before)
            between = range(inside.get(micro.key, offset) + 1, offset)
            if any(there in facts.values[micro.key] for there in between):
                text = f"operation {act.number}: others between its sends to {micro.key}"
                verdict.allowed["send-skip"].append(text)
            inside[micro.key] = offset


class _Positions:
    """Follows where each process is."""

    def __init__(self, facts: Facts, verdict: Judgement) -> None:
        self._verdict = verdict
        self._ranks = {key: _visible(facts, key) for key in facts.values}
        self._subscribed: set[int] = set()
        self._at: dict[int, dict[Key, int]] = defaultdict(dict)

    def walk(self, acts: Sequence[Act]) -> None:
        """All acts in their order."""
        for act in acts:
            match act.f:
                case F.ASSIGN | F.CRASH:
                    self._at.pop(act.process, None)
                    self._subscribed.discard(act.process)
                case F.SUBSCRIBE:
                    self._at.pop(act.process, None)
                    self._subscribed.add(act.process)
                case F.POLL:
                    self._follow(act, self._at[act.process])
                case F.TXN:
                    self._follow_transaction(act)
                case F.SEND:
                    pass

    def _follow_transaction(self, act: Act) -> None:
        at = self._at[act.process]
        inside = dict(at)
        self._follow(act, inside)
        if act.outcome is Outcome.OK:
            self._at[act.process] = inside
        elif act.outcome is Outcome.INFO:
            del self._at[act.process]

    def _follow(self, act: Act, at: dict[Key, int]) -> None:
        found = self._verdict.allowed if act.process in self._subscribed else self._verdict.anomalies
        for micro in act.micros:
            if not isinstance(micro, Polled):
                continue
            for key, points in micro.points.items():
                ranks, before = self._ranks.get(key, {}), at.get(key)
                for offset, _ in points:
                    if before is not None:
                        step = ranks[offset] - ranks[before]
                        if step != 1:
                            name = "poll-skip" if step > 1 else "nonmonotonic-poll"
                            text = f"process {act.process}, operation {act.number}, {key}: {before} → {offset}"
                            found[name].append(text)
                    before = offset
                if before is not None:
                    at[key] = before


def _visible(facts: Facts, key: Key) -> Mapping[int, int]:
    """Offset → its rank among those that a reader must see: read by somebody, or acknowledged."""
    offsets = facts.read_at[key] | facts.acknowledged_at[key]
    return {offset: rank for rank, offset in enumerate(sorted(offsets))}


# --- consume, transform, produce ------------------------------------------------------------------------------


def check_exactly_once(
    inputs: Mapping[Key, Iterable[int]], outputs: Iterable[tuple[Key, int]], committed: Mapping[Key, int]
) -> Verdict:
    """
    Whether consumed offsets and outputs agree: each input below its key's committed offset has one output, others none.

    Args:
        inputs: key → the offsets that hold a visible record.
        outputs: what a reader of committed records found in the outputs, each as the key and offset it was made from.
        committed: key → the next offset to read, as committed; a key without one is at its beginning.
    """
    verdict = Verdict()
    made: dict[Key, dict[int, int]] = defaultdict(dict)
    for key, offset in outputs:
        of_key = made[key]
        of_key[offset] = of_key.get(offset, 0) + 1
        verdict.read += 1
    for key in {*inputs, *made}:
        offsets, until, found = set(inputs.get(key, ())), committed.get(key, 0), made[key]
        for offset in sorted(found.keys() - offsets):
            verdict.anomalies["invented-output"].append(f"{key}@{offset} is no input")
        for offset in sorted(found.keys() & offsets):
            if found[offset] > 1:
                verdict.anomalies["double-output"].append(f"{key}@{offset} has {found[offset]} outputs")
            if offset >= until:
                verdict.anomalies["early-output"].append(f"{key}@{offset} has an output, committed is {until}")
        for offset in sorted(offsets - found.keys()):
            if offset < until:
                verdict.anomalies["missing-output"].append(f"{key}@{offset} has no output, committed is {until}")
    return verdict
