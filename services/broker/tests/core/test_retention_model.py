"""
Retention, rolling and trims of the real partition core beside a naive model, through any series of events.

The model is a list of segments with their batches, and times; what it does is read off the rules of docs/retention.md.
After each step both agree on where the log starts, on each segment, and on which batches the store has; a restart
from what was written changes nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.batches import batch_of

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core import segments as rolling
from headrace_broker.core.local_log import segment_rows
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    BatchArrived,
    CheckpointAsked,
    Effect,
    ForgetBelow,
    GroupWritten,
    Reconfigured,
    RetentionChecked,
    TrimAsked,
)
from headrace_broker.core.rows import (
    DropPrefix,
    LogId,
    LogWrite,
    PutBatch,
    PutSegment,
    PutState,
)
from headrace_broker.engine.image_applier import restore
from headrace_broker.engine.rebuilding import prepare_trim
from headrace_common.core.batch import read_header
from headrace_common.core.configs import TopicConfig
from headrace_common.core.ids import Offset, PartitionId, TopicId

ID: Final = PartitionId(TopicId(b"t" * 16), 0)
LOG: Final = LogId(1)
SECOND: Final = 1_000
START_MS: Final = 1_700_000_000_000
ROW_LIMIT: Final = 12
"""Offsets that a segment may have here: the limit of an index, made small."""
NO_TIME: Final = -1

CONFIGS: Final = [
    {},
    {"retention.ms": "10000"},
    {"retention.ms": "0"},
    {"retention.ms": "-1"},
    {"retention.ms": "5000", "retention.bytes": "1500"},
    {"retention.ms": "-1", "retention.bytes": "0"},
    {"retention.ms": "-1", "retention.bytes": "2500"},
    {"retention.ms": "4000", "message.timestamp.type": "LogAppendTime"},
    {"retention.ms": "3000", "retention.bytes": "1500", "cleanup.policy": "compact"},
    {"retention.ms": "3000", "retention.bytes": "1500", "cleanup.policy": "compact,delete"},
]
ROLLS: Final = [{"segment.bytes": size, "segment.ms": age} for size in ("1024", "100000") for age in ("2000", "60000")]


@dataclass
class Batch:
    base: int
    end: int
    size: int
    newest: int
    """Largest timestamp of its records; NO_TIME: they have none."""


@dataclass
class Segment:
    base: int
    created: int
    batches: list[Batch] = field(default_factory=list)
    sealed: int | None = None
    end: int | None = None

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches)

    def is_old(self, now: int, retention_ms: int) -> bool:
        """By its newest record; those without a time count from when the segment was sealed, so not before."""
        times = [batch.newest for batch in self.batches]
        if NO_TIME in times:
            if self.sealed is None:
                return False
            times.append(self.sealed)
        return bool(times) and retention_ms >= 0 and now - max(times) > retention_ms


@dataclass
class Model:
    """The log as one would describe it."""

    config: dict[str, str]
    segments: list[Segment]
    start: int = 0
    end: int = 0
    committed: int = 0

    def get(self, name: str, default: int) -> int:
        deletes = "delete" in self.config.get("cleanup.policy", "delete").split(",")
        if name.startswith("retention") and not deletes:
            return -1
        return int(self.config.get(name, default))

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    def aged(self, now: int) -> bool:
        return bool(self.active.batches) and now - self.active.created >= self.get("segment.ms", 7 * 86_400_000)

    def roll(self, now: int) -> None:
        self.active.sealed, self.active.end = now, self.end
        self.segments.append(Segment(self.end, now))
        if self.start == self.end:  # it was trimmed as a whole before
            self.segments = self.segments[-1:]

    def append(self, count: int, size: int, newest: int, now: int) -> None:
        full = self.active.size + size > self.get("segment.bytes", 1 << 30)
        wide = self.end + count - self.active.base > ROW_LIMIT
        if self.active.batches and (full or wide or self.aged(now)):
            self.roll(now)
        if self.config.get("message.timestamp.type") == "LogAppendTime":
            newest = now
        self.active.batches.append(Batch(self.end, self.end + count, size, newest))
        self.end += count

    def retain(self, now: int) -> None:
        """Segment after segment from the oldest on, as long as there is a reason and all of it is committed."""
        if self.aged(now):
            self.roll(now)
        retention_ms, retention_bytes = self.get("retention.ms", 7 * 86_400_000), self.get("retention.bytes", -1)
        while True:
            first, others = self.segments[0], self.segments[1:]
            old = first.is_old(now, retention_ms)
            large = bool(others) and retention_bytes >= 0 and sum(other.size for other in others) >= retention_bytes
            end = self.end if first.end is None else first.end
            if not self.start < end <= self.committed or not (old or large):
                return
            if not others:
                self.roll(now)
            del self.segments[0]
            self.start = max(self.start, self.segments[0].base)

    def trim(self, offset: int) -> None:
        """Records below ``offset`` go; of segments that keep some, the size counts what there was."""
        if offset <= self.start:
            return
        self.start = offset
        boundary = next((b.base for s in self.segments for b in s.batches if b.base <= offset < b.end), offset)
        while (end := self.segments[0].end) is not None and end <= boundary:
            del self.segments[0]

    def forget_what_is_gone(self) -> None:
        """An active segment of which nothing is left counts as empty after a restart."""
        if self.start == self.end:
            self.active.batches.clear()

    def stored(self) -> list[tuple[int, int]]:
        """Batches that must still be there, whole or in part readable."""
        return [(b.base, b.end) for s in self.segments for b in s.batches if b.end > self.start]


class RetentionMachine(RuleBasedStateMachine):
    """Any events in any order."""

    @initialize(config=st.sampled_from(CONFIGS), rolls=st.sampled_from(ROLLS))
    def begin(self, config: dict[str, str], rolls: dict[str, str]) -> None:
        self.limit, rolling.OFFSETS_PER_SEGMENT_MAX = (
            rolling.OFFSETS_PER_SEGMENT_MAX,
            ROW_LIMIT,
        )  # so that it is met
        self.now = START_MS
        own = {**config, **rolls}
        self.model = Model(own, [Segment(0, self.now)])
        self.store = MemoryLogs()
        self.core, writes = Partition.create(ID, LOG, TopicConfig.effective(own, {}), self.now)
        self.store.write(writes)
        self.epoch, self.told = 0, 0
        self.lead()

    def teardown(self) -> None:
        if hasattr(self, "limit"):
            rolling.OFFSETS_PER_SEGMENT_MAX = self.limit  # as it was

    def lead(self) -> None:
        self.epoch += 1
        self.write(self.core.handle(elected(self.epoch)))

    def write(self, effects: list[Effect]) -> None:
        writes = [effect for effect in effects if isinstance(effect, LogWrite)]
        self.check_order(effects)
        if writes:
            self.store.write(writes)

    def check_order(self, effects: list[Effect]) -> None:
        """Where the log starts is written in the same group as what goes, before it, and told to readers."""
        for at, drop in enumerate(effects):
            if isinstance(drop, DropPrefix):
                states = [effect for effect in effects[:at] if isinstance(effect, PutState)]
                assert states, "the start is on disk with the drop"
                assert drop.start <= states[-1].row.log_start <= self.core.high_watermark
        told = [effect for effect in effects if isinstance(effect, ForgetBelow)]
        moved = self.core.log_start != self.told
        assert told == ([ForgetBelow(self.core.log_start)] if moved else [])
        self.told = self.core.log_start

    # --- what happens -------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([0, 1, SECOND, 3 * SECOND, 70 * SECOND]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(
        count=st.integers(1, 5),
        size=st.sampled_from([10, 100, 300, 900]),
        ago=st.sampled_from([None, 0, SECOND, 6 * SECOND, 86_400 * SECOND, -2 * SECOND, -1_000 * SECOND]),
        spread=st.sampled_from([0, 2_500]),
    )
    def append(self, count: int, size: int, ago: int | None, spread: int) -> None:
        """Records of now, of before, of a time to come, or of none; out of order within the batch."""
        newest = NO_TIME if ago is None else self.now - ago
        stamps = [newest if ago is None else newest - spread * (number % 2) for number in range(count)]
        batch = batch_of([b"x" * size] * count, timestamp_ms=stamps)
        header = read_header(batch)
        self.write(self.core.handle(BatchArrived(header, batch, 0, self.now, None, "a")))
        self.model.append(count, len(batch), newest, self.now)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        ends = [b.end for s in self.model.segments for b in s.batches if b.end > self.model.committed]
        if ends:
            self.model.committed = data.draw(st.sampled_from(ends[::-1]))
            self.core.handle(GroupWritten(Offset(self.model.committed)))

    @rule(behind=st.sampled_from([0, 0, 0, 1_500, 86_400 * SECOND]))
    def retention(self, behind: int) -> None:
        """``behind``: the time that it goes by is in doubt."""
        now = self.now - behind
        effects = self.core.handle(RetentionChecked(now, 0))
        self.model.retain(now)
        self.write(effects)
        assert self.core.handle(RetentionChecked(now, 0)) == [], "a second look finds nothing more"
        self.check_a_crash_now()

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        offset = data.draw(st.just(self.model.committed) | st.integers(0, self.model.committed))
        self.write(self.core.handle(prepare_trim(self.store, self.core, Offset(offset), self.now)))
        self.model.trim(offset)
        self.check_a_crash_now()

    @rule(config=st.sampled_from(CONFIGS), rolls=st.sampled_from(ROLLS))
    def configure(self, config: dict[str, str], rolls: dict[str, str]) -> None:
        self.model.config = {**config, **rolls}
        assert self.core.handle(Reconfigured(TopicConfig.effective(self.model.config, {}))) == []

    @precondition(lambda self: self.model.committed == self.model.end)
    @rule()
    def restart(self) -> None:
        """Everything that was written is there again."""
        self.write(self.core.handle(CheckpointAsked()))
        self.store = self.store.reopen()
        [found] = self.store.list_recovered()
        self.core = restore(self.store, found, TopicConfig.effective(self.model.config, {}), self.now)
        self.lead()
        self.model.forget_what_is_gone()

    # --- what holds ---------------------------------------------------------------------------------------

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        core, model = self.core, self.model
        assert (core.log_start, core.log_end, core.high_watermark) == (model.start, model.end, model.committed)
        assert core.log_start <= core.high_watermark
        told = [(row.base_offset, row.created_at_ms, row.sealed_at_ms, row.size) for row in segment_rows(core)]
        assert told == [(one.base, one.created, one.sealed, one.size) for one in model.segments]
        stored = [(row.base_offset, row.next_offset) for row in self.store.index(LOG, Offset(0), core.log_end)]
        assert stored == model.stored()

    def check_a_crash_now(self) -> None:
        """It would find the same start, and the same segments."""
        again = self.store.reopen()
        [found] = again.list_recovered()
        assert found.state.log_start == self.core.log_start
        assert found.log_end == self.core.log_end
        known = restore(again, found, self.core.config, self.now)
        if found.last_row is not None:
            assert segment_rows(known) == segment_rows(self.core)


TestRetention = RetentionMachine.TestCase
TestRetention.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def fresh(**own: str) -> Partition:
    """A led log, two committed records of 900 bytes in each of its two sealed segments, one in the active one."""
    config = TopicConfig.effective({"segment.bytes": "2000", **{k.replace("_", "."): v for k, v in own.items()}}, {})
    core, _ = Partition.create(ID, LOG, config, START_MS)
    core.handle(elected(1))
    for _ in range(5):
        batch = batch_of([b"x" * 900], timestamp_ms=START_MS)
        core.handle(BatchArrived(read_header(batch), batch, 0, START_MS, None, "a"))
    core.handle(GroupWritten(Offset(5)))
    return core


def test_what_goes_is_written_in_one_group_with_where_the_log_starts() -> None:
    core = fresh(retention_ms="1000", retention_bytes="1000")
    effects = core.handle(RetentionChecked(START_MS, 0))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(PutState) < kinds.index(DropPrefix) < kinds.index(ForgetBelow)
    assert core.log_start == 2, "what is left is at least as large as asked for"


def test_nothing_above_the_high_watermark_goes_however_old_or_large_the_log_is() -> None:
    core = fresh(retention_ms="0", retention_bytes="0")
    batch = batch_of([b"y" * 1_900], timestamp_ms=0)
    core.handle(BatchArrived(read_header(batch), batch, 0, START_MS, None, "b"))
    core.handle(RetentionChecked(START_MS + 10 * SECOND, 0))
    assert (core.log_start, core.log_end) == (5, 6)
    core.handle(GroupWritten(Offset(6)))
    core.handle(RetentionChecked(START_MS + 10 * SECOND, 0))
    assert core.log_start == 6


def test_an_old_log_goes_as_a_whole_and_begins_a_segment_where_it_ends() -> None:
    core = fresh(retention_ms="1000")
    assert core.handle(RetentionChecked(START_MS + 1_000, 0)) == [], "older than that, not as old"
    effects = core.handle(RetentionChecked(START_MS + 1_001, 0))
    opened = [effect.row.base_offset for effect in effects if isinstance(effect, PutSegment)]
    assert (core.log_start, opened[-1]) == (5, 5)
    batch = batch_of(1, timestamp_ms=START_MS)
    [put] = core.handle(BatchArrived(read_header(batch), batch, 0, START_MS, None, "c"))
    assert isinstance(put, PutBatch)
    assert put.row.segment_base == 5


def test_a_record_of_the_future_keeps_its_segment_and_all_behind_it_and_no_other() -> None:
    core = fresh(retention_ms="1000")
    late = batch_of([b"z" * 900], timestamp_ms=START_MS + 100 * SECOND)
    core.handle(BatchArrived(read_header(late), late, 0, START_MS, None, "d"))
    for _ in range(2):
        batch = batch_of([b"x" * 900], timestamp_ms=START_MS)
        core.handle(BatchArrived(read_header(batch), batch, 0, START_MS, None, "e"))
    core.handle(GroupWritten(Offset(8)))
    core.handle(RetentionChecked(START_MS + 50 * SECOND, 0))
    assert core.log_start == 4
    core.handle(RetentionChecked(START_MS + 102 * SECOND, 0))
    assert core.log_start == 8


def test_who_does_not_lead_drops_nothing_by_itself() -> None:
    core = fresh(retention_ms="0", retention_bytes="0")
    core.leading = None
    assert core.handle(RetentionChecked(START_MS + 100 * SECOND, 0)) == []


def test_what_was_trimmed_as_a_whole_is_no_segment_after_the_next_roll() -> None:
    core = fresh()
    core.handle(TrimAsked(Offset(5), Offset(5)))
    assert [row.base_offset for row in segment_rows(core)] == [4]
    batch = batch_of([b"x" * 1_900], timestamp_ms=START_MS)
    effects = core.handle(BatchArrived(read_header(batch), batch, 0, START_MS, None, "f"))
    assert [row.base_offset for row in segment_rows(core)] == [5]
    assert [effect.start for effect in effects if isinstance(effect, DropPrefix)] == [5]


def test_settings_that_change_are_those_of_the_next_look() -> None:
    core = fresh(retention_ms="-1")
    later = START_MS + 100 * SECOND
    assert core.handle(RetentionChecked(later, 0)) == []
    core.handle(Reconfigured(replace(core.config, retention_ms=1_000)))
    core.handle(RetentionChecked(later, 0))
    assert core.log_start == 5
