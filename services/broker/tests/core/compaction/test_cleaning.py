"""What one compaction does to the batches of a log, case by case."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from headrace_broker.core.compaction import cleaning
from headrace_broker.core.compaction.rules import HORIZON_BIT
from headrace_broker.core.compaction.steps import DropBatch, Step
from headrace_broker.core.rows import COMMITS_BIT, IndexRow, PutBatch
from headrace_common.core.batch import HEADER_SIZE, decode_batch, read_header
from headrace_common.core.configs import LONG_MAX
from headrace_common.core.errors import CorruptBatch
from headrace_common.core.ids import Offset

from .world import DAY_MS, World


def compacted(build: Callable[[World], None], *, retention_ms: int = DAY_MS) -> World:
    world = World(segment_bytes=1 << 20)
    build(world)
    return again(world, retention_ms=retention_ms)


def again(world: World, *, retention_ms: int = DAY_MS) -> World:
    """Compact all that there is, with one more record so that something is dirty."""
    world.append([(b"last", b"word")])
    world.roll()
    world.commit_all()
    for step in world.steps(retention_ms=retention_ms):
        world.apply(step)
    world.disk.check()
    return world


def shape(world: World) -> Sequence[tuple[int, int, int, int]]:
    """Base, next offset, records and producer of each batch."""
    return [(row.base_offset, row.next_offset, row.record_count, row.producer_id) for row in world.disk.rows(0, 2**60)][
        :-1
    ]


def kept(world: World) -> list[tuple[int, bytes | None]]:
    return [(each.offset, each.value) for each in world.disk.records()][:-1]


def test_runs_of_dead_batches_become_one_gap() -> None:
    def build(world: World) -> None:
        for at in range(5):
            world.append([(b"k", b"%d" % at)] * 2)

    world = compacted(build)
    assert shape(world) == [(0, 8, 0, -1), (8, 10, 1, -1)]
    assert kept(world) == [(9, b"4")]
    world.append([(b"k", b"5")])
    assert shape(again(world))[0] == (0, 11, 0, -1), "with the last word of before"


def test_a_gap_ends_with_its_epoch_and_its_segment() -> None:
    def build(world: World) -> None:
        world.append([(b"k", b"0")])
        world.begin_epoch()
        world.append([(b"k", b"1")])
        world.roll()
        world.append([(b"k", b"2")])
        world.append([(b"k", b"3")])

    assert shape(compacted(build)) == [(0, 1, 0, -1), (1, 2, 0, -1), (2, 3, 0, -1), (3, 4, 1, -1)]


def test_tombstones_stay_for_their_time() -> None:
    def build(world: World) -> None:
        world.append([(b"k", b"v"), (b"k", None), (b"other", b"v")])

    world = compacted(build)
    assert kept(world) == [(1, None), (2, b"v")]
    world.now_ms += DAY_MS - 1
    assert (1, None) in kept(again(world))
    world.now_ms += 1
    assert (1, None) not in kept(again(world))


def test_no_retention_no_tombstones() -> None:
    def build(world: World) -> None:
        world.append([(b"k", b"v")])
        world.append([(b"k", None)])

    assert kept(compacted(build, retention_ms=0)) == []


def test_records_without_a_key_go() -> None:
    def build(world: World) -> None:
        world.append([(None, b"v"), (b"k", b"v"), (None, None)])
        world.append([(None, b"v")])

    assert kept(compacted(build)) == [(1, b"v")]


def test_the_last_batches_of_a_producer_stay_as_headers() -> None:
    def build(world: World) -> None:
        for at in range(7):
            world.append([(b"k", b"%d" % at)] * 2, producer=5)
        world.append([(b"k", b"other")])

    world = compacted(build)
    assert shape(world) == [(0, 4, 0, -1), *((at, at + 2, 0, 5) for at in range(4, 14, 2)), (14, 15, 1, -1)]
    world.log.producers.expire(2**60)
    assert shape(again(world))[:2] == [(0, 14, 0, -1), (14, 15, 1, -1)]


def transactions(world: World) -> None:
    """An aborted one, and a committed one whose record is overwritten; other markers are each producer's last word."""
    for producer, commit in ((11, False), (12, True)):
        world.append([(b"k", b"%d" % producer)], producer=producer, transactional=True)
        world.end(producer, commit)
    for producer in (11, 12):
        world.append([(b"other", b"v")], producer=producer, transactional=True)
        world.end(producer, commit=True)
    world.append([(b"k", b"v")])


def test_markers_stay_for_a_time_after_their_records() -> None:
    world = compacted(transactions)
    assert shape(world) == [
        (0, 1, 0, -1),
        (1, 2, 1, 11),
        (2, 3, 0, -1),
        (3, 4, 1, 12),
        (4, 5, 0, -1),
        (5, 6, 1, 11),
        (6, 7, 1, 12),
        (7, 8, 1, 12),
        (8, 9, 1, -1),
    ]
    horizons = [read_header(world.disk.batches[at]) for at in (1, 3, 5, 7)]
    assert [bool(header.attributes & HORIZON_BIT) for header in horizons] == [True, True, False, False]
    verdicts = [bool(world.disk.index[at].attributes & COMMITS_BIT) for at in (1, 3, 5, 7)]
    assert verdicts == [False, True, True, True]
    assert horizons[0].base_timestamp == world.now_ms + DAY_MS
    assert list(world.disk.aborted) == [1]
    world.now_ms += DAY_MS - 1
    assert (1, 2, 1, 11) in shape(again(world))
    world.now_ms += 1
    assert shape(again(world))[:2] == [(0, 5, 0, -1), (5, 6, 1, 11)]
    assert not world.disk.aborted


def test_a_marker_may_stay_for_ever() -> None:
    world = compacted(transactions, retention_ms=LONG_MAX)
    horizons = [read_header(world.disk.batches[at]) for at in (1, 3)]
    assert all(header.attributes & HORIZON_BIT and header.base_timestamp == LONG_MAX for header in horizons)
    world.now_ms += 1_000 * DAY_MS
    assert (1, 2, 1, 11) in shape(again(world, retention_ms=LONG_MAX))


def test_a_marker_stays_with_the_records_of_its_transaction() -> None:
    def build(world: World) -> None:
        world.append([(b"k", b"v")], producer=11, transactional=True)
        world.end(11, commit=True)
        world.append([(b"x", b"v")], producer=11, transactional=True)
        world.end(11, commit=True)

    world = compacted(build)
    world.now_ms += 100 * DAY_MS
    assert (1, 2, 1, 11) in shape(again(world))


def test_the_last_fence_never_goes() -> None:
    def build(world: World) -> None:
        world.fence()
        world.fence()

    world = compacted(build)
    assert shape(world) == [(0, 1, 1, -1), (1, 2, 1, -1)]
    world.now_ms += DAY_MS
    assert shape(again(world))[:2] == [(0, 1, 0, -1), (1, 2, 1, -1)]
    assert decode_batch(world.disk.batches[1]).is_control


def test_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "STEP_BYTES_MAX", 2000)
    world = World(segment_bytes=1 << 20)
    for at in range(100):
        world.append([(b"k", b"v" * 300), (b"%d" % at, b"v" * 300)])
    world.append([(b"last", b"word")])
    world.roll()
    world.commit_all()
    steps = world.steps()
    for step in steps:
        batches = [write.batch for write in step.writes if isinstance(write, PutBatch)]
        assert sum(map(len, batches[:-1])) < 2000
        world.apply(step)
    world.disk.check()
    assert len(steps) > 20
    assert [step.end for step in steps] == sorted({step.end for step in steps})


def test_an_open_gap_is_written_with_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "STEP_WRITES_MAX", 3)
    world = World(segment_bytes=1 << 20)
    for _ in range(20):
        world.append([(b"k", b"v")])
    world.roll()
    world.commit_all()
    steps = world.steps()
    assert len(steps) > 4
    for step in steps:
        world.apply(step)
        world.disk.check()
        if any(isinstance(write, DropBatch) for write in step.writes):
            assert step.start == 0, "the gap begins at the first batch, so the log must still begin there"
            assert not step.applies(step.end)
    puts = [write for step in steps for write in step.writes if isinstance(write, PutBatch)]
    assert len(puts) == len(set(puts)) == 6, "once for three batches, and not again where it ends"


def test_a_bad_batch_is_named_and_nothing_is_written() -> None:
    world = World()
    world.append([(b"k", b"v")])
    world.append([(b"k", b"v")])
    world.roll()
    world.commit_all()
    batch = world.disk.batches[1]
    world.disk.batches[1] = batch[:HEADER_SIZE] + b"\0" * (len(batch) - HEADER_SIZE)
    with pytest.raises(CorruptBatch, match="t-0@1"):
        world.steps()


def test_dead_and_wholly_live_batches_are_not_read_twice() -> None:
    world = World()
    world.append([(b"k", b"v")])
    world.append([(b"a", b"v"), (b"b", b"v")])
    world.append([(b"k", b"v"), (b"c", b"v"), (b"c", b"v")])
    world.roll()
    world.commit_all()
    reads: list[int] = []
    plain = cleaning.Cleaning.take

    def counted(self: cleaning.Cleaning, row: IndexRow, batch: bytes | None) -> Step | None:
        if batch is not None:
            reads.append(row.base_offset)
        return plain(self, row, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning.Cleaning, "take", counted)
        world.steps()
    assert reads == [3]


def test_a_segment_whose_beginning_was_trimmed_keeps_count() -> None:
    """What was dropped in front still counts for the segment, in its row and in those of its batches."""
    world = World(segment_bytes=1 << 20)
    for at in range(6):
        world.append([(b"k", b"%d" % at)])
    world.roll()
    world.commit_all()
    for at in (0, 1):
        del world.disk.batches[at], world.disk.index[at]
    world.log.first_batch = world.log.log_start = Offset(2)
    dropped = world.disk.index[Offset(2)].segment_bytes - world.disk.index[Offset(2)].size
    for step in world.steps():
        assert step.applies(Offset(2))
        world.apply(step)
    gap, last = world.disk.rows(0, 99)
    assert (gap.base_offset, gap.next_offset, last.base_offset) == (2, 5, 5)
    assert gap.segment_bytes == dropped + gap.size
    assert last.segment_bytes == dropped + gap.size + last.size == world.disk.segments[Offset(0)].size
