"""
Positions in transactions against naive oracles.

``AgainstALog``: everything is durable at once, and anything is said in any order, honest or not. The oracle is a list
of all positions as they came; the last one of a partition that is committed counts.

``UnderCrashes``: appends take time and may be cut off in the middle by a crash, answers of the transaction's
coordinator and markers come late, in any order and twice. Producers and their coordinator are honest: a transaction is
committed only when all its positions were acknowledged, and begins only when its predecessor's end was. What was
committed must be there, all of it, and what was not must never be seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_common.core.errors import ErrorCode, HeadraceError, InvalidProducerEpoch
from headrace_coordinator.core.effects import (
    Answer,
    EnrolShard,
    MarkerOutcomes,
    OffsetOutcomes,
    OffsetsFound,
    Row,
)
from headrace_coordinator.core.events import (
    Event,
    Loaded,
    Marker,
    MarkersAsked,
    OffsetsAsked,
    OffsetToCommit,
    ShardEnrolled,
    TopicsChanged,
    TxnCommitAsked,
)
from headrace_coordinator.core.records import PendingKey, read_key, read_pending
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import Moment, TopicInfo
from headrace_coordinator.engine.outbox import Outbox, Visible

from .world import WALL, World, compacted, pending_keys, topic_id

E = ErrorCode
GROUPS = ("g", "h")
PARTITIONS = 2
groups = st.sampled_from(GROUPS)
partitions = st.integers(0, PARTITIONS - 1)
producers = st.integers(1, 2)
epochs = st.integers(0, 3)


@dataclass
class Entry:
    """One position as it came; no offset: the partition's positions were deleted."""

    group: str
    partition: int
    offset: int | None
    producer: int | None = None
    epoch: int = -1
    decided: bool | None = None


class AgainstALog(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.w = World({"t": PARTITIONS})
        self.entries: list[Entry] = []
        self.waiting: dict[int, tuple[int, Entry]] = {}
        """By reference: what is not answered yet, and since when."""
        self.epochs = {1: 0, 2: 0}
        """Of honest producers."""
        self.number = 0

    def taken(self, ref: int, entry: Entry) -> None:
        outcome = self.w.outcome(ref)
        if outcome is None:
            self.waiting[ref] = (ref, entry)
        elif outcome is E.NONE:
            self.entries.append(entry)

    def settle(self) -> None:
        """Take down what was answered, in the order in which it was asked: queues keep it."""
        for ref in sorted(self.waiting):
            if self.w.outcome(ref) is not None:
                self.taken(ref, self.waiting.pop(ref)[1])

    @rule(group=groups, partition=partitions)
    def commit(self, group: str, partition: int) -> None:
        self.number += 1
        assert self.w.commit(self.number, partition=partition, group=group) is E.NONE
        self.entries.append(Entry(group, partition, self.number))

    @rule(group=groups, partition=partitions, producer=producers, epoch=epochs)
    def txn_commit(self, group: str, partition: int, producer: int, epoch: int) -> None:
        self.number += 1
        ref = self.w.txn_commit(
            self.number, partition=partition, group=group, producer=producer, epoch=epoch, tid=f"t{producer}"
        )
        self.taken(ref, Entry(group, partition, self.number, producer, epoch))

    @rule(group=groups, partition=partitions, producer=producers)
    def pend(self, group: str, partition: int, producer: int) -> None:
        """What an honest producer does, to the end."""
        self.txn_commit(group, partition, producer, self.epochs[producer])
        while self.w.enrolments:
            self.w.enrol()
            self.settle()

    @rule(producer=producers, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        """The end of an honest producer's transaction."""
        self.epochs[producer] += 1
        self.mark(producer, self.epochs[producer], commit)

    @precondition(lambda self: self.w.enrolments)
    @rule(at=st.integers(0, 9), refused=st.sampled_from([False, False, True]))
    def answer(self, at: int, refused: bool) -> None:
        self.w.enrolments.insert(0, self.w.enrolments.pop(at % len(self.w.enrolments)))
        self.w.enrol(InvalidProducerEpoch("no") if refused else None)
        self.settle()

    @rule(producer=producers, epoch=epochs.map(lambda n: n + 1), commit=st.booleans())
    def mark(self, producer: int, epoch: int, commit: bool) -> None:
        undecided = [e for e in self.entries if e.producer == producer and e.decided is None]
        code = self.w.mark(producer=producer, epoch=epoch, commit=commit)
        assert code in {E.NONE, E.INVALID_PRODUCER_EPOCH}
        if any(e.epoch >= epoch for e in undecided if self.matters(e)):
            assert code is E.INVALID_PRODUCER_EPOCH
        if code is E.NONE:
            for entry in undecided:
                if entry.epoch < epoch:
                    entry.decided = commit
        self.settle()

    @rule(group=groups, partition=partitions)
    def delete(self, group: str, partition: int) -> None:
        if any(one.group_id == group for one in self.w.shard.list_groups()):
            self.w.ask(_deletion(self.w, group, partition))
            self.entries.append(Entry(group, partition, None))

    @rule()
    def move(self) -> None:
        self.w.move()
        self.waiting.clear()

    # --- the oracle -----------------------------------------------------------------------------------------

    def matters(self, entry: Entry) -> bool:
        """Whether it would still count if it were committed now."""
        of = [e for e in self.entries if (e.group, e.partition) == (entry.group, entry.partition)]
        later = of[of.index(entry) + 1 :]
        replaced = any(e.producer == entry.producer and e.epoch == entry.epoch for e in later)
        return not replaced and not any(e.producer is None or e.decided for e in later)

    @invariant()
    def positions_are_those_of_the_log(self) -> None:
        for group in GROUPS:
            for partition in range(PARTITIONS):
                of = [e for e in self.entries if (e.group, e.partition) == (group, partition)]
                visible = [e.offset for e in of if e.producer is None or e.decided]
                expected = visible[-1] if visible else None
                assert self.w.committed(partition=partition, group=group) == expected
                unstable = any(e.decided is None and e.producer is not None and self.matters(e) for e in of)
                stable = self.w.stable_offset(partition=partition, group=group)
                assert stable == (E.UNSTABLE_OFFSET_COMMIT if unstable else expected)

    @invariant()
    def the_log_has_pending_what_may_still_count(self) -> None:
        expected = {(e.group, e.partition, e.producer) for e in self.entries if e.producer and e.decided is None
                    and self.matters(e)}  # fmt: skip
        named = pending_keys(self.w.log)
        assert {(k.group_id, k.partition.partition, k.producer_id) for k in named} == expected

    @invariant()
    def a_replayed_shard_is_the_same(self) -> None:
        shard = Shard(0, self.w.settings)
        shard.replay(compacted(self.w.log))
        shard.handle(TopicsChanged(self.w.at, self.w.topics, {}))
        shard.handle(Loaded(self.w.at))
        assert [one.group_id for one in shard.list_groups() if one.group_id in GROUPS] == [
            group for group in GROUPS if any(not g.offsets.empty for n, g in self.w.shard._groups.items() if n == group)
        ]
        for group_id, group in self.w.shard._groups.items():
            other = shard._groups.get(group_id)
            if other is not None:
                assert (other.offsets.held, other.offsets.pending) == (group.offsets.held, group.offsets.pending)


def _deletion(w: World, group: str, partition: int) -> Event:
    from headrace_coordinator.core.events import OffsetsDeletionAsked

    return OffsetsDeletionAsked(group, w.ref(), w.at, (("t", (partition,)),))


TestAgainstALog = AgainstALog.TestCase
TestAgainstALog.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# --- crashes ----------------------------------------------------------------------------------------------------


@dataclass
class Producer:
    """An honest client with the transaction coordinator's view of it. Each has partitions of its own."""

    id: int
    epoch: int = 0
    enrolled: bool = False
    """The coordinator has this shard in the transaction of ``epoch``."""
    asked: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    """Not answered yet: by reference, group, partition and offset."""
    acked: dict[tuple[str, int], int] = field(default_factory=dict)
    broken: bool = False
    """A position was refused or its answer lost: only an abort is left."""
    ending: Marker | None = None
    """The end that this shard has not acknowledged yet."""


class UnderCrashes(RuleBasedStateMachine):
    @initialize(parts=st.sampled_from([1, 1, 2, 50]))
    def begin(self, parts: int) -> None:
        self.part_rows = parts
        self.log: dict[bytes, bytes | None] = {}
        self.now = 0.0
        self.refs = 0
        self.offset = 0
        self.producers = {n: Producer(n) for n in (1, 2)}
        self.truth: dict[tuple[str, int], int] = {}
        """What committed transactions have acknowledged."""
        self.applied: dict[tuple[str, int], int] = {}
        """The part of it whose markers are acknowledged: everybody sees it."""
        self.doomed: set[int] = set()
        """Offsets of aborted transactions, and of commits that were never acknowledged."""
        self.sent_markers: list[Marker] = []
        self.load()

    @property
    def at(self) -> Moment:
        return Moment(self.now, WALL + int(self.now))

    def ref(self) -> int:
        self.refs += 1
        return self.refs

    # --- a coordinator ----------------------------------------------------------------------------------------

    def load(self) -> None:
        self.shard = Shard(0, GroupSettings())
        self.shard.replay(compacted(self.log))
        self.shard.handle(TopicsChanged(self.at, {"t": TopicInfo(topic_id("t"), 8)}, {}))
        self.shard.handle(Loaded(self.at))
        self.outbox: Outbox[Visible] = Outbox(self.shard.group_rows, self.show)
        self.under_way: deque[list[Row]] | None = None
        self.questions: list[EnrolShard] = []
        self.answers: list[tuple[int, HeadraceError | None]] = []
        self.results: dict[object, object] = {}
        self.marking: dict[int, Marker] = {}

    def tell(self, event: Event) -> None:
        effects = self.shard.handle(event)
        self.questions += [e for e in effects if isinstance(e, EnrolShard)]
        self.outbox.take([e for e in effects if not isinstance(e, EnrolShard)], proof=True)

    def show(self, effect: Visible) -> None:
        assert isinstance(effect, Answer)
        assert isinstance(effect.ref, int)
        if isinstance(effect.result, OffsetOutcomes):
            self.answered(effect.ref, effect.result)
        elif isinstance(effect.result, MarkerOutcomes):
            self.acknowledged(self.marking.pop(effect.ref), effect.result)
        else:
            self.results[effect.ref] = effect.result

    @precondition(lambda self: self.under_way is None and self.outbox.append_wanted)
    @rule()
    def begin_append(self) -> None:
        rows = self.outbox.begin()
        self.under_way = deque(rows[n : n + self.part_rows] for n in range(0, len(rows), self.part_rows))

    @precondition(lambda self: self.under_way is not None)
    @rule()
    def append_part(self) -> None:
        assert self.under_way is not None
        if self.under_way:
            self.log.update(self.under_way.popleft())
        if not self.under_way:
            self.under_way = None
            self.outbox.done()

    def flush(self) -> None:
        while self.under_way is not None or self.outbox.append_wanted:
            if self.under_way is None:
                self.begin_append()
            self.append_part()

    @rule()
    def crash(self) -> None:
        for producer in self.producers.values():
            if producer.asked:
                self.lost(producer)
        self.now += 1_000
        self.load()

    # --- producers --------------------------------------------------------------------------------------------

    @rule(n=st.integers(1, 2), group=groups, half=st.integers(0, 1))
    def send(self, n: int, group: str, half: int) -> None:
        producer = self.producers[n]
        if producer.broken:
            return
        self.offset += 1
        ref, partition = self.ref(), 2 * n + half
        producer.asked[ref] = group, partition, self.offset
        entry = OffsetToCommit("t", partition, self.offset)
        self.tell(TxnCommitAsked(group, ref, self.at, "", None, -1, (entry,), f"t{n}", n, producer.epoch))

    @rule(n=st.integers(1, 2), group=groups, half=st.integers(0, 1))
    def send_and_wait(self, n: int, group: str, half: int) -> None:
        """As mostly happens."""
        self.send(n, group, half)
        while self.questions and all(p.ending is None for p in self.producers.values()):
            self.ask(0)
        while self.answers:
            self.hear(0)
        self.flush()

    def answered(self, ref: int, result: OffsetOutcomes) -> None:
        (outcome,) = result.outcomes
        for producer in self.producers.values():
            if ref in producer.asked:
                group, partition, offset = producer.asked.pop(ref)
                if outcome.error is None:
                    producer.acked[group, partition] = offset
                else:
                    self.doomed.add(offset)
                    producer.broken = True

    def lost(self, producer: Producer) -> None:
        self.doomed |= {offset for _, _, offset in producer.asked.values()}
        producer.asked.clear()
        producer.broken = True

    @rule(n=st.integers(1, 2), commit=st.booleans())
    def end(self, n: int, commit: bool) -> None:
        """The coordinator of the transaction decides, as a rule because the producer asked for it."""
        producer = self.producers[n]
        if producer.ending is not None or (commit and (producer.asked or producer.broken)):
            return  # the coordinator lets one end be finished before the next
        if commit:
            self.truth |= producer.acked
        else:
            self.lost(producer)
            self.doomed |= set(producer.acked.values())
        producer.epoch += 1
        if producer.enrolled:
            producer.ending = Marker(n, producer.epoch, commit)
        else:
            assert not producer.acked, "positions are acknowledged after the enrolment"
        producer.acked, producer.broken, producer.enrolled = {}, False, False

    # --- the transactions' coordinator ------------------------------------------------------------------------

    @precondition(lambda self: self.questions)
    @rule(at=st.integers(0, 9))
    def ask(self, at: int) -> None:
        """A question arrives; the answer is on its way."""
        asked = self.questions[at % len(self.questions)]
        producer = self.producers[asked.producer_id]
        if asked.producer_epoch != producer.epoch:
            error: HeadraceError | None = InvalidProducerEpoch("ended")
        elif producer.ending is not None:
            return  # it waits for the end
        else:
            producer.enrolled, error = True, None
        self.questions.remove(asked)
        self.answers.append((asked.number, error))

    @precondition(lambda self: self.answers)
    @rule(at=st.integers(0, 9))
    def hear(self, at: int) -> None:
        number, error = self.answers.pop(at % len(self.answers))
        self.tell(ShardEnrolled(number, self.at, error))

    @rule(n=st.integers(1, 2), commit=st.booleans())
    def end_and_begin_to_write(self, n: int, commit: bool) -> None:
        """So that a crash finds the decision half written."""
        self.end(n, commit)
        self.flush()
        self.drive(n)
        if self.outbox.append_wanted:
            self.begin_append()
            self.append_part()

    @rule(n=st.integers(1, 2))
    def drive(self, n: int) -> None:
        """Send the marker, or send it again."""
        ending = self.producers[n].ending
        if ending is not None:
            self.mark(ending)
            self.sent_markers.append(ending)

    @precondition(lambda self: self.sent_markers)
    @rule(at=st.integers(0, 99))
    def old_marker(self, at: int) -> None:
        """A copy that was under way for long."""
        self.mark(self.sent_markers[at % len(self.sent_markers)])

    def mark(self, marker: Marker) -> None:
        ref = self.ref()
        self.marking[ref] = marker
        self.tell(MarkersAsked(ref, self.at, (marker,)))

    def acknowledged(self, marker: Marker, result: MarkerOutcomes) -> None:
        (error,) = result.outcomes
        assert error is None or error.code is E.INVALID_PRODUCER_EPOCH
        producer = self.producers[marker.producer_id]
        if producer.ending == marker:
            assert error is None, "the present end of a transaction is always taken"
            producer.ending = None
            for key, value in self.log.items():
                pending = read_key(key)
                if value and isinstance(pending, PendingKey) and pending.producer_id == marker.producer_id:
                    assert read_pending(value).epoch >= marker.producer_epoch, "it outlived its marker"
            self.applied |= {k: v for k, v in self.truth.items() if k[1] // 2 == marker.producer_id}

    # --- what must hold ---------------------------------------------------------------------------------------

    def read(self, *, require_stable: bool) -> dict[tuple[str, int], int | HeadraceError]:
        """As it is in memory; what is shown outside is behind an append, and so the same or later."""
        found: dict[tuple[str, int], int | HeadraceError] = {}
        for group in GROUPS:
            (answer,) = self.shard.handle(OffsetsAsked(group, 0, self.at, require_stable=require_stable))
            assert isinstance(answer, Answer)
            assert isinstance(answer.result, OffsetsFound)
            for one in answer.result.offsets:
                if one.error is not None:
                    found[group, one.partition] = one.error
                elif one.committed is not None:
                    found[group, one.partition] = one.committed.offset
        return found

    @invariant()
    def nothing_pending_outlives_its_marker(self) -> None:
        for group in self.shard._groups.values():
            for by_producer in group.offsets.pending.values():
                for n, pending in by_producer.items():
                    producer = self.producers[n]
                    assert pending.epoch >= producer.epoch - (producer.ending is not None)

    @invariant()
    def nothing_but_committed_positions_is_seen(self) -> None:
        seen = {offset for offset in self.read(require_stable=False).values() if isinstance(offset, int)}
        assert not seen & self.doomed
        undecided = {offset for p in self.producers.values() for offset in p.acked.values()}
        undecided |= {offset for p in self.producers.values() for _, _, offset in p.asked.values()}
        assert not seen & undecided

    @invariant()
    def what_was_committed_everywhere_is_seen(self) -> None:
        seen = self.read(require_stable=False)
        for key, offset in self.applied.items():
            found = seen.get(key)
            assert isinstance(found, int)
            assert found >= offset

    @invariant()
    def stable_positions_are_all_that_was_committed(self) -> None:
        """While an end is under way, whoever asks for stable positions waits or gets what it brings."""
        seen = self.read(require_stable=True)
        for key, offset in self.truth.items():
            found = seen.get(key)
            assert isinstance(found, HeadraceError) or (found is not None and found >= offset)

    def teardown(self) -> None:
        if not hasattr(self, "shard"):
            return
        for n in self.producers:
            self.drive(n)
        self.flush()
        assert all(p.ending is None for p in self.producers.values())
        for n in self.producers:
            self.end(n, commit=False)
            self.drive(n)
        self.flush()
        assert self.read(require_stable=True) == self.truth
        self.crash()
        assert self.read(require_stable=True) == self.truth
        assert not pending_keys(self.log)


TestUnderCrashes = UnderCrashes.TestCase
TestUnderCrashes.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
