"""Segments: when they roll, and what retention may drop, as examples and against a naive oracle."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.retention_clock import DRIFT_MS_MAX, JUMP_BELIEVED_AFTER_MS, RetentionClock
from headrace_broker.core.rows import SegmentRow
from headrace_broker.core.segments import OFFSETS_PER_SEGMENT_MAX, Segments
from headrace_common.core.ids import Offset

HOUR = 3_600_000


def test_rolls_when_the_next_batch_would_not_fit() -> None:
    segments = Segments.fresh(Offset(0), 0)
    assert not segments.must_roll(5_000, Offset(1), 0, segment_bytes=1_000, segment_ms=HOUR), "never an empty one"
    segments.append(Offset(0), 600, 1, 1)
    assert not segments.must_roll(400, Offset(2), 0, segment_bytes=1_000, segment_ms=HOUR)
    assert segments.must_roll(401, Offset(2), 0, segment_bytes=1_000, segment_ms=HOUR)


def test_rolls_by_age_earlier_by_the_jitter_and_not_when_the_clock_went_back() -> None:
    segments = Segments.fresh(Offset(0), 10_000, roll_jitter=0.5)
    segments.append(Offset(0), 1, 1, 1)
    assert not segments.is_aged(10_899, 1_000, 200)
    assert segments.is_aged(10_900, 1_000, 200)
    assert not segments.is_aged(0, 1_000, 200)
    assert not segments.is_aged(10_049, 100, 200), "the jitter is at most half of the age"
    assert segments.is_aged(10_050, 100, 200)


def test_rolls_before_an_offset_would_not_fit_the_index() -> None:
    segments = Segments.fresh(Offset(0), 0)
    segments.append(Offset(0), 1, 1, 1)
    limit = OFFSETS_PER_SEGMENT_MAX
    assert not segments.must_roll(1, Offset(limit), 0, segment_bytes=1 << 30, segment_ms=HOUR)
    assert segments.must_roll(1, Offset(limit + 1), 0, segment_bytes=1 << 30, segment_ms=HOUR)


def test_keeps_running_timestamps_per_segment() -> None:
    segments = Segments.fresh(Offset(0), 0)
    segments.append(Offset(0), 10, 5, 9)
    segments.append(Offset(1), 10, 3, 7)
    assert (segments.active.min_timestamp, segments.active.max_timestamp, segments.active.size) == (3, 9, 20)
    sealed, opened = segments.roll(Offset(2), 50)
    assert (sealed.end_offset, sealed.sealed_at_ms, sealed.max_timestamp) == (2, 50, 9)
    assert opened == SegmentRow(Offset(2), 50)
    segments.append(Offset(2), 10, 1, 1)
    assert segments.active.max_timestamp == 1


@dataclass(frozen=True)
class Piece:
    """One segment of a generated log."""

    size: int
    newest: int


pieces = st.lists(st.builds(Piece, st.integers(1, 100), st.integers(0, 100)), min_size=1, max_size=12)


def build(parts: list[Piece]) -> tuple[Segments, Offset]:
    """One record per segment; the last one stays active."""
    segments = Segments.fresh(Offset(0), 0)
    for number, piece in enumerate(parts):
        if number:
            segments.roll(Offset(number), 0)
        segments.append(Offset(number), piece.size, piece.newest, piece.newest)
    return segments, Offset(len(parts))


def oracle(parts: list[Piece], now: int, watermark: int, retention_ms: int, retention_bytes: int) -> int:
    """How many segments go, by trying every number of them."""
    old = [retention_ms >= 0 and now - piece.newest > retention_ms for piece in parts]
    best = 0
    for count in range(1, len(parts) + 1):
        dropped, kept = parts[:count], parts[count:]
        by_size = retention_bytes >= 0 and sum(p.size for p in kept) >= retention_bytes
        last_is_active = count == len(parts)
        reason = old[count - 1] or (by_size and not last_is_active)
        if not reason or count > watermark:
            break
        del dropped
        best = count
    return best


@given(
    pieces,
    st.integers(0, 300),
    st.integers(0, 12),
    st.sampled_from([-1, 0, 10, 100]),
    st.sampled_from([-1, 0, 50, 500]),
)
def test_retention_drops_what_the_oracle_drops(
    parts: list[Piece], now: int, watermark: int, retention_ms: int, retention_bytes: int
) -> None:
    segments, end = build(parts)
    high = Offset(min(watermark, end))
    start = segments.find_expired(now, end, high, retention_ms=retention_ms, retention_bytes=retention_bytes)
    assert (start or 0) == oracle(parts, now, high, retention_ms, retention_bytes)


def test_records_without_time_count_from_when_their_segment_was_sealed() -> None:
    segments = Segments.fresh(Offset(0), 1_000)
    segments.append(Offset(0), 10, -1, -1)
    segments.roll(Offset(1), 5_000)
    wanted = {"retention_ms": 100, "retention_bytes": -1}
    assert segments.find_expired(5_100, Offset(1), Offset(1), **wanted) is None
    assert segments.find_expired(5_101, Offset(1), Offset(1), **wanted) == 1


def test_records_without_time_are_not_old_before_their_segment_is_sealed() -> None:
    """Whenever it was begun, and whatever others in it say: they may have been written just now."""
    wanted = {"retention_ms": 100, "retention_bytes": -1}
    for stamps in ([-1], [-1, 5], [5, -1]):
        segments, end = Segments.fresh(Offset(0), 1_000), Offset(len(stamps))
        for at, stamp in enumerate(stamps):
            segments.append(Offset(at), 10, stamp, stamp)
        assert segments.find_expired(9_000_000, end, end, **wanted) is None
        segments.roll(end, 9_000_000)
        assert segments.find_expired(9_000_100, end, end, **wanted) is None
        assert segments.find_expired(9_000_101, end, end, **wanted) == end


def test_a_recovered_log_goes_on_where_it_was() -> None:
    segments, end = build([Piece(10, 5), Piece(20, 7)])
    rows = [*segments.sealed, SegmentRow(Offset(1), 0)]
    again = Segments.recover(rows, None, end, 99)
    assert again.active.size == 0
    assert again.sealed == segments.sealed


def test_a_clock_that_jumps_ahead_is_not_believed_at_once() -> None:
    clock = RetentionClock(1_000_000, 0.0)
    assert clock.now(1_000_000 + 5_000, 5_000.0) == 1_005_000
    jumped = 1_005_000 + 24 * HOUR
    assert clock.now(jumped + 1_000, 6_000.0) == 1_006_000
    assert clock.now(jumped + JUMP_BELIEVED_AFTER_MS, 5_000.0 + JUMP_BELIEVED_AFTER_MS) < jumped
    late = 6_000.0 + JUMP_BELIEVED_AFTER_MS
    assert clock.now(jumped + JUMP_BELIEVED_AFTER_MS + 1_000, late) == jumped + JUMP_BELIEVED_AFTER_MS + 1_000


def test_a_clock_that_goes_back_is_followed_and_small_corrections_are_not_jumps() -> None:
    clock = RetentionClock(1_000_000, 0.0)
    assert clock.now(1_000_000 + DRIFT_MS_MAX, 0.0) == 1_000_000 + DRIFT_MS_MAX
    assert clock.now(500_000, 1.0) == 500_000
    assert clock.now(500_001, 2.0) == 500_001
