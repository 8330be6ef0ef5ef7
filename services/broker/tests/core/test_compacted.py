"""One step of a compaction in the partition machine: when it applies, what it writes, what a cut leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.compaction.clean_points import cut_points
from headrace_broker.core.compaction.steps import Cleaned, Step, StepOutdated
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    BatchArrived,
    Compacted,
    Effect,
    Followed,
    GroupWritten,
    MarkerArrived,
    Rebuilt,
    RetentionChecked,
    TrimAsked,
    Truncated,
)
from headrace_broker.core.rows import (
    AbortedRow,
    CleanPoint,
    DropAborted,
    DropBatch,
    LogWrite,
    PutBatch,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_broker.engine.image_applier import restore
from headrace_broker.engine.rebuilding import prepare_trim, rebuild
from headrace_common.core.batch import build_gap_batch, build_marker_batch, read_header
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import NotLeader
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
ONE = len(batch_of(1))
CONFIG = replace(TopicConfig.effective({"cleanup.policy": "compact"}, {}), segment_bytes=4 * ONE)
DAY_MS = 86_400_000


class Log:
    """A led partition core on a store in memory, with single records in segments of four."""

    def __init__(self, records: int = 10, config: TopicConfig = CONFIG) -> None:
        self.store = MemoryLogs()
        self.core, writes = Partition.create(ID, self.store.new_log_id(), config, NOW_MS)
        self.store.write(writes)
        self.take(self.core.handle(elected(1)))
        for _ in range(records):
            self.append(batch_of(1))
        self.take(self.core.handle(GroupWritten(self.core.log_end)))

    def take(self, effects: Sequence[Effect]) -> list[LogWrite]:
        writes = [effect for effect in effects if isinstance(effect, LogWrite)]
        self.store.write(writes)
        return writes

    def append(self, batch: bytes, commit: bool | None = None) -> None:
        header = read_header(batch)
        if commit is None:
            self.take(self.core.handle(BatchArrived(header, batch, 1, NOW_MS, None, None)))
        else:
            self.take(self.core.handle(MarkerArrived(header, batch, commit, NOW_MS, None)))

    def gap(self, start: int, end: int) -> Step:
        """Nothing is left of the batches from ``start`` to ``end``, in one segment."""
        rows = list(self.store.index(self.core.log, Offset(start), Offset(end)))
        batch = build_gap_batch(start, end, 1, base_timestamp=NOW_MS, max_timestamp=NOW_MS)
        row = replace(
            rows[-1],
            base_offset=Offset(start),
            last_offset_delta=end - start - 1,
            size=len(batch),
            record_count=0,
            segment_bytes=rows[0].segment_bytes - rows[0].size + len(batch),
        )
        step = Step(Offset(start), Offset(end), [PutBatch(self.core.log, row, batch)])
        step.writes += [DropBatch(self.core.log, each.base_offset) for each in rows[1:]]
        saved = sum(each.size for each in rows) - len(batch)
        segment = next(each for each in self.core.segments.sealed if each.base_offset == row.segment_base)
        step.segments = {segment.base_offset: replace(segment, size=segment.size - saved)}
        return step

    def compact(self, step: Step) -> list[LogWrite]:
        return self.take(self.core.handle(Compacted(step, self.core.truncations)))

    def reopened(self) -> Partition:
        store = self.store.reopen()
        [found] = store.list_recovered()
        return restore(store, found, CONFIG, NOW_MS)


def finished(end: int, *points: CleanPoint, **more: object) -> Step:
    return replace(Step(Offset(end), Offset(end), cleaned=Cleaned(Offset(end), points)), **more)


def test_a_step_writes_its_batches_and_the_sizes_of_their_segments() -> None:
    log = Log()
    before, step = log.core.segments.size, log.gap(0, 4)
    writes = log.compact(step)
    assert writes == [*step.writes, PutSegment(log.core.log, step.segments[Offset(0)]), log.core.state()]
    assert log.core.segments.size < before
    assert log.core.segments.sealed[0] == step.segments[Offset(0)]
    assert log.core.rewrites == 1
    assert log.reopened().segments == log.core.segments


def test_the_last_step_says_how_far_the_log_is_clean() -> None:
    log = Log()
    point = CleanPoint(Offset(8), NOW_MS)
    [state] = log.compact(finished(8, point))
    assert isinstance(state, PutState)
    assert (state.row.cleaned_to, state.row.clean_points) == (8, (point,))
    again = log.reopened()
    assert (again.cleaned_to, again.clean_points) == (8, (point,))


def test_no_step_is_taken_below_where_the_log_begins_by_now() -> None:
    log = Log()
    low, high = log.gap(0, 4), log.gap(4, 8)
    log.take(log.core.handle(prepare_trim(log.store, log.core, Offset(4), NOW_MS)))
    with pytest.raises(StepOutdated, match="begins at 4"):
        log.core.handle(Compacted(low, 0))
    assert log.core.rewrites == 0
    log.compact(high)
    assert log.store.floor(log.core.log, Offset(7)).record_count == 0


def test_no_step_is_taken_after_the_end_was_cut() -> None:
    log = Log()
    step = log.gap(0, 4)
    log.core.handle(Followed(NodeId(2), 2, NotLeader("")))
    log.take(log.core.handle(Truncated(2, Offset(9), rebuild(log.store, log.core, Offset(9), NOW_MS))))
    with pytest.raises(StepOutdated, match="was cut"):
        log.core.handle(Compacted(step, 0))
    log.compact(step)


def test_a_size_of_a_segment_that_is_gone_is_not_written() -> None:
    log = Log()
    step = log.gap(4, 8)
    step.segments[Offset(0)] = log.core.segments.sealed[0]
    log.take(log.core.handle(TrimAsked(Offset(4), Offset(4))))
    assert [write.row.base_offset for write in log.compact(step) if isinstance(write, PutSegment)] == [4]


@pytest.mark.parametrize(
    ("end", "clean", "points"),
    [
        (9, 8, (CleanPoint(Offset(4), 1), CleanPoint(Offset(8), 2))),
        (6, 6, (CleanPoint(Offset(4), 1), CleanPoint(Offset(6), 2))),
        (4, 4, (CleanPoint(Offset(4), 1),)),
        (2, 2, (CleanPoint(Offset(2), 1),)),
    ],
)
def test_a_cut_takes_the_clean_part_along(end: int, clean: int, points: tuple[CleanPoint, ...]) -> None:
    log = Log()
    log.compact(finished(8, CleanPoint(Offset(4), 1), CleanPoint(Offset(8), 2)))
    log.core.handle(Followed(NodeId(2), 2, NotLeader("")))
    log.take(log.core.handle(Truncated(2, Offset(end), rebuild(log.store, log.core, Offset(end), NOW_MS))))
    assert (log.core.cleaned_to, log.core.clean_points) == (clean, points)
    again = log.reopened()
    assert (again.cleaned_to, again.clean_points) == (clean, points)


def test_nothing_is_clean_of_a_log_that_is_cut_to_nothing() -> None:
    assert cut_points((CleanPoint(Offset(4), 1),), Offset(0)) == (CleanPoint(Offset(0), 1),)
    assert cut_points((), Offset(3)) == ()


def test_a_cut_that_was_found_before_batches_were_merged_is_found_anew() -> None:
    log = Log()
    log.core.handle(Followed(NodeId(2), 2, NotLeader("")))
    asked = Truncated(2, Offset(6), rebuild(log.store, log.core, Offset(6), NOW_MS), log.core.rewrites)
    log.compact(log.gap(4, 8))
    assert log.core.handle(asked) == []
    assert log.core.log_end == 10
    fresh = Rebuilt(log.core.producers, log.core.segments, 0)
    assert log.core.handle(replace(asked, end=Offset(4), rebuilt=fresh, rewrites=log.core.rewrites)) != []


def test_a_log_that_begins_inside_a_gap_is_restored_with_the_gap() -> None:
    log = Log()
    log.compact(log.gap(4, 8))
    log.take(log.core.handle(prepare_trim(log.store, log.core, Offset(6), NOW_MS)))
    assert (log.core.log_start, log.core.first_batch) == (6, 4)
    again = log.reopened()
    assert (again.log_start, again.first_batch) == (6, 4)


def test_what_is_left_of_an_aborted_transaction_goes_from_memory_too() -> None:
    log = Log(0)
    for at in range(3):
        log.append(batch_of(1, producer_id=at, epoch=0, sequence=0))
        log.core.producers.open[at] = Offset(log.core.log_end - 1)  # as if it were transactional
        log.core.producers._known[at].transaction_start = Offset(log.core.log_end - 1)
        log.append(build_marker_batch(at, 1, commit=False, timestamp_ms=NOW_MS), commit=False)
    log.take(log.core.handle(GroupWritten(log.core.log_end)))
    rows = log.core.aborted.rows()
    assert [row.last for row in rows] == [1, 3, 5]
    step = Step(Offset(0), Offset(4), [DropAborted(log.core.log, Offset(3))])
    log.compact(step)
    assert log.core.aborted.rows() == [rows[0], rows[2]] == log.reopened().aborted.rows()
    assert log.core.aborted.find_overlapping(Offset(0), Offset(6)) == [rows[0], rows[2]]


def test_a_compacted_log_is_sealed_by_the_age_at_which_it_must_be_compacted() -> None:
    config = replace(CONFIG, compaction_lag_ms_max=1_000)
    log = Log(1, config)
    log.core.segments.roll_jitter = 1.0  # of segment.jitter.ms=0, which is none
    assert log.core.handle(RetentionChecked(NOW_MS + 999, 0)) == []
    assert len(log.take(log.core.handle(RetentionChecked(NOW_MS + 1_000, 0)))) > 0
    assert [row.end_offset for row in log.core.segments.sealed] == [1]
    plain = Log(1, replace(config, compacts=False))
    assert plain.core.handle(RetentionChecked(NOW_MS + 1_000, 0)) == []
    early = Log(1, replace(config, segment_jitter_ms=100))
    early.core.segments.roll_jitter = 1.0
    assert early.core.handle(RetentionChecked(NOW_MS + 899, 0)) == []
    assert len(early.take(early.core.handle(RetentionChecked(NOW_MS + 900, 0)))) > 0


def test_a_follower_seals_what_it_compacts_and_drops_nothing() -> None:
    log = Log(1, replace(CONFIG, compaction_lag_ms_max=1_000, retention_ms=1))
    log.core.handle(Followed(NodeId(2), 2, NotLeader("")))
    writes = log.take(log.core.handle(RetentionChecked(NOW_MS + DAY_MS, 0)))
    assert [type(write) for write in writes if isinstance(write, PutSegment)] == [PutSegment, PutSegment]
    assert (log.core.log_start, len(log.core.segments.sealed)) == (0, 1)


def test_what_was_recovered_is_never_clean_beyond_its_end() -> None:
    state = StateRow(ID, Offset(0), Offset(0), (), Offset(9), (CleanPoint(Offset(9), 5),))
    log = Log(0)
    segments = log.core.segments
    core = Partition.recover(state, log.core.log, CONFIG, segments, Offset(4), (), log.core.producers)
    assert (core.cleaned_to, core.clean_points) == (4, (CleanPoint(Offset(4), 5),))
    assert SegmentRow(Offset(0), NOW_MS) == segments.active
    assert AbortedRow(1, Offset(0), Offset(1), Offset(2)) not in core.aborted.rows()
