"""Whatever happened to a log, compaction at any time, stopped at any step, leaves what it promises: see ``Model``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.core.compaction import cleaning
from headrace_broker.core.compaction.clean_points import CleanPoint, find_passed_end
from headrace_broker.core.compaction.offset_map import OffsetMap
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import ProducerRow
from headrace_common.core.batch import Codec

from .world import DAY_MS, SEED, Disk, Model, World, final

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"long key" * 3, None])
VALUES = st.one_of(st.none(), st.binary(max_size=20))
RECORDS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
PLAIN, IN_TRANSACTIONS = [1, 2], [11, 12]

Append = st.fixed_dictionaries(
    {
        "do": st.just("append"),
        "records": RECORDS,
        "producer": st.sampled_from([-1, -1, *PLAIN, *IN_TRANSACTIONS, *IN_TRANSACTIONS]),
        "codec": st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.GZIP]),
        "rows": st.booleans(),
    }
)
End = st.fixed_dictionaries(
    {"do": st.just("end"), "producer": st.sampled_from(IN_TRANSACTIONS), "commit": st.booleans()}
)
Other = st.sampled_from(
    [
        {"do": "roll"},
        {"do": "roll"},
        {"do": "commit"},
        {"do": "fence"},
        {"do": "epoch"},
        {"do": "wait"},
        {"do": "seal"},
        {"do": "seal"},
    ]
)
Compact = st.fixed_dictionaries(
    {
        "do": st.just("compact"),
        "map_bytes": st.sampled_from([1, 600, 1 << 20]),
        "retention_ms": st.sampled_from([0, DAY_MS, 3 * DAY_MS]),
        "lag_ms": st.sampled_from([0, 0, DAY_MS // 2]),
        "stop_at": st.integers(0, 8),
    }
)
HISTORIES = st.lists(st.one_of(Append, Append, Append, End, Other, Other, Compact), min_size=12, max_size=40)


def known(rows: tuple[ProducerRow, ...]) -> dict[int, Any]:
    return {
        row.producer_id: (
            row.epoch,
            [(batch.first_sequence, batch.last_sequence, batch.base_offset) for batch in row.batches],
            row.transaction_start,
            row.committed,
        )
        for row in rows
    }


def replayed(disk: Disk) -> tuple[ProducerRow, ...]:
    producers = Producers()
    producers.replay(disk.rows(0, 2**60), 0)
    return producers.snapshot()


def check_sound(world: World) -> None:
    """What holds after each step, so after each crash."""
    disk, truth = world.disk, {each.offset: each for each in world.written}
    disk.check()
    records = disk.records()
    assert [each.offset for each in records] == sorted({each.offset for each in records})
    for each in records:
        assert each == truth[each.offset]
    assert known(replayed(disk)) == known(world.log.producers.snapshot())
    seen, committed = world.seen(disk), world.committed()
    assert set(seen) <= set(committed)
    stable = [each for each in committed if each.offset < world.log.last_stable]
    for start in {
        0,
        world.log.log_end // 2,
        *(each.offset for each in seen[-3:]),
        *(each.offset for each in stable[-3:]),
    }:
        assert final(seen, start) == final(stable, start)


def compact(world: World, model: Model, op: dict[str, Any]) -> None:
    before, cleaned = world.disk.copy(), world.log.cleaned_to
    options = {name: op[name] for name in ("map_bytes", "lag_ms", "retention_ms")}
    planned = world.steps(**options)
    if not planned:
        return
    end = planned[-1].cleaned.end  # the last step has it
    whole = before.copy()
    for step in planned:
        assert step.cleaned is None or step is planned[-1]
        whole.apply(step)
    for step in planned[: min(op["stop_at"], len(planned) - 1)]:  # a crash before the last one
        world.apply(step)
        check_sound(world)
    assert world.log.cleaned_to == cleaned
    points = world.points
    for step in world.steps(**options):
        world.apply(step)
    check_sound(world)
    if world.log.cleaned_to == end:
        assert world.disk == whole
    else:  # what went before the crash left room in the map for more
        assert op["map_bytes"] < 1 << 20
        assert world.log.cleaned_to > end
        end = world.log.cleaned_to
    for base, batch in before.batches.items():
        if base >= end:
            assert (world.disk.batches[base], world.disk.index[base].size) == (batch, len(batch))
    horizon = find_passed_end((*points, CleanPoint(end, world.now_ms)), world.now_ms, op["retention_ms"])
    model.compact(world, end, horizon)
    assert world.disk.records() == model.records
    check_clean_stays(world, op["retention_ms"])


def check_clean_stays(world: World, retention_ms: int) -> None:
    end = world.log.cleaned_to
    map = OffsetMap(1 << 20, SEED)
    map.complete()
    (step,) = world.passes(world.rules(end, retention_ms), map, end, end)
    assert (step.writes, step.segments) == ([], {})
    assert step.cleaned is not None
    assert (step.cleaned.end, step.cleaned.points) == (end, world.points)


def run(history: list[dict[str, Any]]) -> World:
    world, model = World(segment_bytes=500), Model([])
    for op in history:
        world.now_ms += 1000
        had = len(world.written)
        match op["do"]:
            case "append":
                transactional = op["producer"] in IN_TRANSACTIONS
                options = {name: op[name] for name in ("producer", "codec", "rows")}
                world.append(op["records"], transactional=transactional, **options)
            case "end":
                world.end(op["producer"], op["commit"])
            case "roll":
                world.roll()
            case "commit":
                world.commit_all()
            case "seal":
                world.roll()
                world.commit_all()
            case "fence":
                world.fence()
            case "epoch":
                world.begin_epoch()
            case "wait":
                world.now_ms += DAY_MS
            case "compact":
                compact(world, model, op)
        model.records += world.written[had:]
    return world


@given(HISTORIES)
@settings(max_examples=250, deadline=None)
def test_any_history(history: list[dict[str, Any]]) -> None:
    run(history)


@given(st.lists(st.one_of(Append, Append, End, Other), min_size=8, max_size=30), Compact, Compact)
@settings(max_examples=80, deadline=None)
def test_small_steps(history: list[dict[str, Any]], first: dict[str, Any], second: dict[str, Any]) -> None:
    """All of a log twice, at another time, in steps of two writes: each is a place to stop at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "STEP_WRITES_MAX", 2)
        whole = [{"do": "commit"}, {"do": "roll"}]
        run([*history, *whole, first, {"do": "wait"}, *history, *whole, second, {"do": "wait"}, first])


@given(st.lists(st.one_of(Append, Append, End, Other, Compact), min_size=5, max_size=40), Compact)
@settings(max_examples=100, deadline=None)
def test_a_copy_of_a_compacted_log_knows_the_same(history: list[dict[str, Any]], last: dict[str, Any]) -> None:
    """Of producers, transactions, fences and what readers of committed records see."""
    world = run([*history, {"do": "seal"}, last])
    copy = world.copied()
    assert copy.log.log_end == world.log.log_end
    assert known(copy.log.producers.snapshot()) == known(world.log.producers.snapshot())
    assert copy.log.fences.token == world.log.fences.token
    assert copy.log.last_stable == world.log.last_stable
    assert copy.seen(copy.disk) == world.seen(world.disk)
