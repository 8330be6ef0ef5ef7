"""Which time deletes and which one stamps, while the wall clock jumps: examples, and properties beside a true time."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.retention_clock import (
    DRIFT_MS_MAX,
    JUMP_BELIEVED_AFTER_MS,
    RESTART_MS_MAX,
    RetentionClock,
    StampClock,
)

NOW = 1_700_000_000_000
HOUR, DAY, MINUTE = 3_600_000, 86_400_000, 60_000


@dataclass(frozen=True)
class Change:
    """So long after the last one the wall clock is off by so much."""

    after_ms: int
    off_ms: int


offs = st.sampled_from([0, DAY, -DAY, 2 * DAY, 90 * MINUTE, -90 * MINUTE])
short = st.lists(st.builds(Change, st.integers(1, 10 * MINUTE), offs), max_size=5)
looks = st.lists(st.integers(1, 7 * MINUTE), min_size=1, max_size=40)


def readings(changes: list[Change], gaps: list[int]) -> list[tuple[int, int]]:
    """True time since the start, and the wall clock, at each look."""
    at, moments, off, edges = 0, list[tuple[int, int]](), 0, list[tuple[int, int]]()
    for change in changes:
        at += change.after_ms
        edges.append((at, change.off_ms))
    edges.append((at + 10 * MINUTE, 0))  # in the end it is right again
    now = 0
    for gap in gaps:
        now += gap
        off = next((edge_off for edge_at, edge_off in reversed(edges) if edge_at <= now), 0)
        moments.append((now, NOW + now + off))
    return moments


@given(short, looks)
def test_while_a_clock_jumps_for_less_than_an_hour_nothing_is_older_than_it_is(
    changes: list[Change], gaps: list[int]
) -> None:
    """Deleting goes by no later time than the true one, stamping by no earlier one."""
    deletes, stamps = RetentionClock(NOW, 0.0), StampClock(NOW, 0.0)
    for now, wall in readings(changes, gaps):
        assert deletes.now(wall, float(now)) <= min(wall, NOW + now)
        assert stamps.now(wall, float(now)) >= max(wall, NOW + now)


@given(short, looks, st.integers(0, 5 * MINUTE), st.integers(0, 3))
def test_so_it_is_with_a_restart_at_any_time(
    changes: list[Change], gaps: list[int], down_ms: int, kept_ago: int
) -> None:
    """The process knows what it believed at its last looks but a few, and was away for a while."""
    moments = readings(changes, gaps)
    clock, believed = RetentionClock(NOW, 0.0), [NOW]
    half = len(moments) // 2
    for now, wall in moments[:half]:
        believed.append(clock.now(wall, float(now)))
    at = (moments[half - 1][0] if half else 0) + down_ms
    off = moments[half][1] - moments[half][0] - NOW
    last = believed[-1 - min(kept_ago, len(believed) - 1)]
    again = RetentionClock(NOW + at + off, 0.0, last)
    for now, wall in [(at, NOW + at + off), *moments[half:]]:
        if now >= at:
            assert again.now(wall, float(now - at)) <= min(wall, NOW + now)


@given(offs, st.lists(st.integers(1, 7 * MINUTE), min_size=1, max_size=20))
def test_what_stands_for_an_hour_is_believed(off: int, gaps: list[int]) -> None:
    deletes, stamps = RetentionClock(NOW, 0.0), StampClock(NOW, 0.0)
    now = 0
    for gap in [*gaps, JUMP_BELIEVED_AFTER_MS]:
        now += gap
        last = deletes.now(NOW + now + off, float(now)), stamps.now(NOW + now + off, float(now))
    assert last == (NOW + now + off, NOW + now + off)


def test_each_jump_has_its_own_hour() -> None:
    clock = RetentionClock(NOW, 0.0)
    assert clock.now(NOW + DAY, 0.0) == NOW
    later = 50 * MINUTE
    assert clock.now(NOW + later + 3 * DAY, float(later)) == NOW + later
    first_hour = HOUR + 1
    assert clock.now(NOW + first_hour + 3 * DAY, float(first_hour)) == NOW + first_hour, "it has stood for 10 minutes"
    both = later + HOUR
    assert clock.now(NOW + both + 3 * DAY, float(both)) == NOW + both + 3 * DAY


def test_a_clock_that_is_a_day_ahead_at_the_start_is_not_believed_for_an_hour() -> None:
    clock = RetentionClock(NOW + DAY, 5.0, NOW)
    assert clock.now(NOW + DAY + 1_000, 1_005.0) == NOW + 1_000
    assert clock.now(NOW + DAY + HOUR, 5.0 + HOUR) == NOW + DAY + HOUR


def test_a_restart_within_minutes_is_no_jump_and_one_without_a_memory_believes_the_clock() -> None:
    assert RetentionClock(NOW + RESTART_MS_MAX, 0.0, NOW).now(NOW + RESTART_MS_MAX, 0.0) == NOW + RESTART_MS_MAX
    assert RetentionClock(NOW + RESTART_MS_MAX + 1, 0.0, NOW).now(NOW + RESTART_MS_MAX + 1, 0.0) == NOW
    assert RetentionClock(NOW, 0.0, None).now(NOW, 0.0) == NOW
    assert RetentionClock(NOW - DAY, 0.0, NOW).now(NOW - DAY, 0.0) == NOW - DAY


def test_small_corrections_are_not_jumps() -> None:
    deletes, stamps = RetentionClock(NOW, 0.0), StampClock(NOW, 0.0)
    assert deletes.now(NOW + DRIFT_MS_MAX, 0.0) == NOW + DRIFT_MS_MAX
    assert stamps.now(NOW - DRIFT_MS_MAX, 0.0) == NOW - DRIFT_MS_MAX
