"""
A partition through random lives: appends, duplicates, flushes, elections, trims, retention, crashes.

What it writes goes to a store in memory; after a crash the partition is built again from there. The model is a list.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.local_log import segment_rows
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    Answer,
    BatchArrived,
    CheckpointAsked,
    Deposed,
    Effect,
    Event,
    GroupWritten,
    Refuse,
    RetentionChecked,
    TrimAsked,
)
from headrace_broker.core.rows import PutBatch
from headrace_broker.engine.image_applier import restore
from headrace_common.core.batch import read_header
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import ErrorCode, NotLeader
from headrace_common.core.ids import Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
CONFIG = TopicConfig.effective({"segment.bytes": "1024", "retention.ms": "5000", "segment.ms": "3000"}, {})


class PartitionMachine(RuleBasedStateMachine):
    """The leader and its log against a list of records."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryLogs()
        self.now = NOW_MS
        self.epoch = 0
        self.next_ref = 0
        self.waiting: dict[int, tuple[int, int]] = {}  # ref -> base offset it must get, acks
        self.answered: set[int] = set()
        self.ends = [0]
        self.sequence = 0
        self.sent: list[tuple[int, int, int]] = []  # first sequence, records, base offset

    @initialize()
    def create(self) -> None:
        self.core, writes = Partition.create(ID, self.store.new_log_id(), CONFIG, self.now)
        self.store.write(writes)
        self.handle(elected(0))

    def handle(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event)
        writes: list[Any] = [effect for effect in effects if hasattr(effect, "log")]
        if writes:
            self.store.write(writes)
        for effect in effects:
            if isinstance(effect, Answer):
                base, acks = self.waiting.pop(effect.ref)  # refs are our ints
                assert effect.base_offset == base
                safe = self.core.written_end if acks == 1 else self.core.high_watermark
                assert self._end_of(base) <= safe, "not before it is as safe as was asked"
                self.answered.add(effect.ref)
            elif isinstance(effect, Refuse):
                self.waiting.pop(effect.ref, None)
        return effects

    def arrive(self, batch: bytes, expected_base: int, acks: int) -> list[Effect]:
        self.next_ref += 1
        if self.core.leader_epoch is not None and acks != 0:
            self.waiting[self.next_ref] = (expected_base, acks)
        return self.handle(BatchArrived(read_header(batch), batch, acks, self.now, None, self.next_ref))

    @rule(records=st.integers(1, 4), size=st.sampled_from([1, 200, 700]), acks=st.sampled_from([-1, 0, 1]))
    def append(self, records: int, size: int, acks: int) -> None:
        end = self.core.log_end
        effects = self.arrive(batch_of([b"x" * size] * records, timestamp_ms=self.now), end, acks)
        leads = self.core.leader_epoch is not None
        puts = [effect for effect in effects if isinstance(effect, PutBatch)]
        assert len(puts) == leads
        if leads:
            assert puts[0].row.base_offset == end
            self.ends.append(end + records)

    def leads(self) -> bool:
        return self.core.leader_epoch is not None

    @precondition(leads)
    @rule(records=st.integers(1, 3), acks=st.sampled_from([-1, 1]))
    def append_next_in_sequence(self, records: int, acks: int) -> None:
        base = self.core.log_end
        batch = batch_of(records, timestamp_ms=self.now, producer_id=9, epoch=0, sequence=self.sequence)
        self.arrive(batch, base, acks)
        self.sent.append((self.sequence, records, base))
        self.sequence += records
        self.ends.append(base + records)

    @precondition(lambda self: self.leads() and self.sent)
    @rule(back=st.integers(1, 5), acks=st.sampled_from([-1, 1]))
    def send_again(self, back: int, acks: int) -> None:
        first, records, base = self.sent[-min(back, len(self.sent))]
        end = self.core.log_end
        batch = batch_of(records, timestamp_ms=self.now, producer_id=9, epoch=0, sequence=first)
        self.arrive(batch, base, acks)
        assert self.core.log_end == end, "a duplicate is not appended"

    @precondition(lambda self: self.leads() and self.sent)
    @rule(gap=st.integers(1, 3))
    def skip_a_sequence(self, gap: int) -> None:
        batch = batch_of(1, timestamp_ms=self.now, producer_id=9, epoch=0, sequence=self.sequence + gap)
        [refusal] = self.arrive(batch, -1, -1)
        assert isinstance(refusal, Refuse)
        assert refusal.error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @precondition(lambda self: self.core.log_end > self.core.written_end)
    @rule(data=st.data())
    def group_written(self, data: st.DataObject) -> None:
        candidates = [end for end in self.ends if end >= self.core.written_end]
        end = data.draw(st.sampled_from(candidates or [self.core.log_end]))
        self.handle(GroupWritten(Offset(end)))
        waiting_for = self.core.high_watermark
        assert not self.waiting or self.core.leader_epoch is not None
        overdue = [
            ref for ref, (base, _) in self.waiting.items() if base < waiting_for and self._end_of(base) <= waiting_for
        ]
        assert overdue == [], "who waited for this was answered"

    @precondition(lambda self: self.core.high_watermark > self.core.log_start)
    @rule()
    def trim_everything_and_crash(self) -> None:
        self.handle(GroupWritten(self.core.log_end))
        if self.leads():
            self.handle(TrimAsked(self.core.high_watermark, self.core.high_watermark))
        self.crash()

    def _end_of(self, base: int) -> int:
        return min(end for end in self.ends if end > base)

    @precondition(lambda self: not self.leads())
    @rule(up=st.integers(0, 2))
    def elected(self, up: int) -> None:
        self.epoch += up
        self.handle(elected(self.epoch))
        assert self.core.leader_epoch == self.epoch
        assert self.core.epochs.latest == self.epoch

    @precondition(leads)
    @rule()
    def deposed(self) -> None:
        self.handle(Deposed(NotLeader("moved")))
        assert not self.waiting, "nobody is left waiting"
        self.epoch += 1

    @precondition(lambda self: self.core.high_watermark > self.core.log_start)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        offset = Offset(data.draw(st.integers(self.core.log_start, self.core.high_watermark)))
        row = self.store.floor(self.core.log, offset)
        inside = row is not None and row.base_offset <= offset < row.next_offset
        boundary = row.base_offset if row is not None and inside else offset
        self.handle(TrimAsked(offset, boundary))
        assert self.core.log_start >= offset

    @rule(passed=st.integers(0, 4_000))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        self.handle(RetentionChecked(self.now, 0))

    @rule()
    def checkpoint(self) -> None:
        self.handle(CheckpointAsked())

    @rule()
    def crash(self) -> None:
        before = self.core
        self.waiting.clear()
        self.store = self.store.reopen()
        [log] = self.store.list_recovered()
        assert log.damage is None
        self.core = restore(self.store, log, CONFIG, self.now)
        assert (self.core.log_start, self.core.log_end) == (before.log_start, before.log_end)
        assert self.core.epochs.end_offset_for(1 << 30, self.core.log_end) == before.epochs.end_offset_for(
            1 << 30, before.log_end
        )
        known = {row.producer_id: (row.epoch, [(b.first_sequence, b.base_offset) for b in row.batches])
                 for row in before.producers.snapshot()}  # fmt: skip
        again = {row.producer_id: (row.epoch, [(b.first_sequence, b.base_offset) for b in row.batches])
                 for row in self.core.producers.snapshot()}  # fmt: skip
        assert again == known
        self.epoch += 1

    @invariant()
    def ends_are_in_order(self) -> None:
        core = getattr(self, "core", None)
        if core is not None:
            assert core.log_start <= core.high_watermark <= core.written_end <= core.log_end

    @invariant()
    def the_log_is_dense_and_its_rows_say_what_its_segments_say(self) -> None:
        core = getattr(self, "core", None)
        if core is None:
            return
        rows = list(self.store.index(core.log, Offset(0), core.log_end))
        if rows:
            assert rows[0].base_offset <= core.log_start
            assert rows[-1].next_offset == core.log_end
        else:
            assert core.log_start == core.log_end
        for one, following in pairwise(rows):
            assert following.base_offset == one.next_offset
        segments = segment_rows(core)
        for one, after in pairwise(segments):
            assert one.end_offset == after.base_offset
        last = [row for row in rows if row.segment_base == core.segments.active.base_offset]
        assert core.segments.active.size == (last[-1].segment_bytes if last else core.segments.active.size)


PartitionMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestPartitionMachine = PartitionMachine.TestCase
