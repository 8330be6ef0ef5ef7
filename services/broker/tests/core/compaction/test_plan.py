"""Which part of a log is dirty, and which log is next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_broker.core.compaction.plan import (
    CompactionSettings,
    DirtyRange,
    dirty_range,
    next_to_clean,
    why_it_waits,
)
from headrace_common.core.ids import Offset, PartitionId, TopicId

from .world import World

SETTINGS = CompactionSettings(0.5, 0, 2**62, 1000)


def of(world: World, lag_ms: int = 0) -> tuple[int, int]:
    dirty = dirty_range(world.log, world.disk.floor, lag_ms, world.now_ms)
    return dirty.start, dirty.end


def three_segments() -> World:
    world = World(segment_bytes=1 << 20)
    for _ in range(3):
        world.append([(b"k", b"v")] * 2)
        world.append([(b"k", b"v")] * 3)
        world.roll()
        world.now_ms += 1000
    world.commit_all()
    return world


def test_from_what_is_clean_to_the_active_segment() -> None:
    world = three_segments()
    assert of(world) == (0, 15)
    world.append([(b"k", b"v")])
    world.commit_all()
    assert of(world) == (0, 15)
    world.log.cleaned_to = Offset(10)
    assert of(world) == (10, 15)
    world.log.cleaned_to = Offset(15)
    assert of(world) == (15, 15)


def test_not_below_the_first_batch() -> None:
    world = three_segments()
    world.log.first_batch = Offset(5)
    assert of(world) == (5, 15)


def test_not_past_what_is_committed_or_undecided() -> None:
    world = three_segments()
    world.log.high_watermark = Offset(7)
    world.log.settle()
    assert of(world) == (0, 7)
    world.log.high_watermark = Offset(8)
    world.log.settle()
    assert of(world) == (0, 7), "a whole batch or nothing of it"
    world = World()
    world.append([(b"k", b"v")])
    world.append([(b"k", b"v")], producer=11, transactional=True)
    world.append([(b"k", b"v")])
    world.roll()
    world.commit_all()
    assert of(world) == (0, 1)
    world.end(11, commit=True)
    assert of(world) == (0, 1), "the marker is not committed yet"
    world.commit_all()
    assert of(world) == (0, 3)


@pytest.mark.parametrize(
    ("lag_ms", "end"), [(0, 15), (500, 15), (1000, 15), (1001, 10), (2000, 10), (2001, 5), (9999, 0)]
)
def test_the_young_are_left_alone(lag_ms: int, end: int) -> None:
    assert of(three_segments(), lag_ms) == (0, end)


def test_bytes_and_age() -> None:
    world = three_segments()
    sizes = [row.size for row in world.disk.rows(0, 99)]
    for clean, batches in ((0, 0), (5, 2), (7, 3), (10, 4)):
        world.log.cleaned_to = Offset(clean)
        dirty = dirty_range(world.log, world.disk.floor, 0, world.now_ms)
        assert (dirty.clean_bytes, dirty.dirty_bytes) == (sum(sizes[:batches]), sum(sizes[batches:]))
        assert dirty.oldest_ms == world.disk.floor(Offset(clean)).segment_max_timestamp
    world.log.high_watermark = Offset(12)
    world.log.settle()
    dirty = dirty_range(world.log, world.disk.floor, 0, world.now_ms)
    assert (dirty.clean_bytes, dirty.dirty_bytes) == (sum(sizes[:4]), sizes[4])


def test_due_by_ratio_or_by_age() -> None:
    dirty = DirtyRange(Offset(0), Offset(10), clean_bytes=60, dirty_bytes=40, oldest_ms=1000)
    assert not dirty.due(SETTINGS, 5000)
    assert dirty.due(replace(SETTINGS, dirty_ratio_min=0.4), 5000)
    assert dirty.due(replace(SETTINGS, lag_ms_max=3999), 5000)
    assert not dirty.due(replace(SETTINGS, lag_ms_max=4000), 5000)
    assert not replace(dirty, oldest_ms=-1).due(replace(SETTINGS, lag_ms_max=0), 5000)
    assert not replace(dirty, end=Offset(0)).due(replace(SETTINGS, dirty_ratio_min=0, lag_ms_max=0), 5000)


def test_what_it_waits_for_is_below_what_it_says() -> None:
    dirty = DirtyRange(Offset(0), Offset(10), clean_bytes=99_130, dirty_bytes=870, oldest_ms=1000)
    said = why_it_waits(World().log, dirty, replace(SETTINGS, dirty_ratio_min=0.01), 5000)
    assert said == "0.0087 of it is dirty, below min.cleanable.dirty.ratio=0.01"


def test_the_dirtiest_is_next() -> None:
    ids = [PartitionId(TopicId(b"t" * 16), at) for at in range(3)]
    dirty = [DirtyRange(Offset(0), Offset(9), 100 - bytes, bytes, 0) for bytes in (60, 80, 20)]
    logs = [(id, each, SETTINGS) for id, each in zip(ids, dirty, strict=True)]
    assert next_to_clean(logs, 0) == (ids[1], dirty[1])
    assert next_to_clean(logs[2:], 0) is None
