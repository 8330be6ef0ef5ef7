"""Token buckets: KIP-599's numbers, and what they let through."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.quotas.token_bucket import TokenBucket

RUNS = st.lists(st.tuples(st.integers(0, 120).map(lambda eighths: eighths * 125), st.integers(0, 200)), max_size=30)
"""Milliseconds since the last, exact as binary fractions of seconds; and how much."""
QUOTAS = st.sampled_from([0.5, 1, 2, 5, 64])


@given(RUNS, QUOTAS, QUOTAS, st.booleans())
def test_it_counts_as_the_kip_says(run: Sequence[tuple[int, int]], quota: float, later: float, strict: bool) -> None:
    """K = min(K + (now - T) * R, B), done if K >= 0, then K = K - N; else the wait is -K / R. In fractions."""
    bucket, tokens, now_ms = TokenBucket(0), None, 0
    for nth, (step_ms, value) in enumerate(run):
        rate = Fraction(quota if nth < len(run) // 2 else later)
        now_ms += step_ms
        full = 11 * rate
        tokens = full if tokens is None else min(full, tokens + rate * Fraction(step_ms, 1_000))
        done = tokens >= 0 or not strict
        tokens -= value if done else 0
        wait_ms = bucket.take(value, float(rate), now_ms) if strict else bucket.record(value, float(rate), now_ms)
        if strict and done:
            assert wait_ms is None
        else:
            assert wait_ms is not None
            assert abs(wait_ms - max(0, -tokens / rate * 1_000)) <= Fraction(1, 2) + Fraction(1, 1_000)


def test_the_example_of_the_kip() -> None:
    """Its numbers for a bucket of 500 at 5 a second: 560 make a debt of 60, paid after 12 s; ours are of 55 at 5."""
    bucket = TokenBucket(0)
    assert bucket.take(115, 5, 0) is None
    assert bucket.take(1, 5, 0) == 12_000
    assert bucket.take(1, 5, 11_999) == 1
    assert bucket.take(1, 5, 12_000) is None


def test_what_is_refused_costs_nothing() -> None:
    bucket = TokenBucket(0)
    bucket.take(12, 1, 0)
    assert [bucket.take(1_000, 1, 500) for _ in range(3)] == [500, 500, 500]


def test_a_debt_of_less_than_half_a_millisecond_is_a_debt() -> None:
    bucket = TokenBucket(0)
    bucket.record(11_000_001, 1_000_000, 0)
    assert bucket.take(1, 1_000_000, 1) is None
    bucket = TokenBucket(0)
    bucket.record(110_001, 10_000, 0)
    assert bucket.take(1, 10_000, 0) == 0


@given(RUNS, QUOTAS)
def test_over_any_time_there_is_the_quota_a_bucket_and_one_more(run: Sequence[tuple[int, int]], quota: float) -> None:
    """Of whoever tries again and again, without ever waiting."""
    bucket, now_ms = TokenBucket(0), 0
    done: list[tuple[int, int]] = []
    for step_ms, value in run:
        now_ms += step_ms
        if bucket.take(value, quota, now_ms) is None:
            done.append((now_ms, value))
    for first, (since_ms, _) in enumerate(done):
        for last in range(first, len(done)):
            seconds = (done[last][0] - since_ms) / 1_000
            assert sum(value for _, value in done[first:last]) <= quota * (11 + seconds) + 1e-6


@given(RUNS, QUOTAS)
def test_who_is_below_its_quota_never_waits(run: Sequence[tuple[int, int]], quota: float) -> None:
    """What it does has been earned by the time since the last, up to a bucket."""
    bucket, now_ms, earned = TokenBucket(0), 0, 11 * quota
    for step_ms, value in run:
        now_ms += step_ms
        earned = min(11 * quota, earned + quota * step_ms / 1_000)
        some = min(value, int(earned))
        earned -= some
        assert bucket.record(some, quota, now_ms) == 0


@given(RUNS, QUOTAS)
def test_what_is_idle_is_as_good_as_new(run: Sequence[tuple[int, int]], quota: float) -> None:
    bucket, now_ms, wait_ms = TokenBucket(0), 0, 0
    for step_ms, value in run:
        now_ms += step_ms
        wait_ms = bucket.record(value, quota, now_ms)
        assert not (wait_ms and bucket.is_idle(now_ms + wait_ms + 10_998))
        assert bucket.is_idle(now_ms + wait_ms + 11_001)
    now_ms += wait_ms + 11_001 if run else 0
    fresh = TokenBucket(now_ms)
    for step_ms, value in run:
        now_ms += step_ms
        assert bucket.record(value, quota, now_ms) == fresh.record(value, quota, now_ms)
