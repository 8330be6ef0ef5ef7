"""Windows: the waits are Kafka's, who is below its quota never waits, and what waiting as told comes to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libs.common.tests.kit.quotas import KafkaRate

from headrace_common.core.quotas.windows import THROTTLE_MS_MAX, Windows, most_at_once, whole_ms

STEPS_MS = st.one_of(st.integers(0, 50), st.integers(0, 1_100), st.sampled_from([999, 1_000, 10_000, 10_999, 11_000]))
RUNS = st.lists(st.tuples(STEPS_MS, st.integers(0, 3_000), st.booleans()), max_size=40)
QUOTAS = st.integers(1, 1_000)
Done = tuple[int, float]
"""When, and how much."""


@example([(0, 100, False), (1_000, 1, False), (10_000, 1, False)], 1, 1)
@given(RUNS, QUOTAS, QUOTAS)
def test_waits_are_kafkas(run: Sequence[tuple[int, int, bool]], quota: int, later: int) -> None:
    """With a quota that becomes another one midway; what is taken back is not asked about."""
    now_ms = 12_345
    windows, kafka = Windows(now_ms + (run[0][0] if run else 0)), KafkaRate()
    for nth, (step_ms, value, back) in enumerate(run):
        now_ms += step_ms
        holds = quota if nth < len(run) // 2 else later
        kafka.count(value, now_ms)
        assert windows.record(value, holds, now_ms) == kafka.wait_ms(holds, now_ms)
        if back:
            windows.add(-value, now_ms)
            kafka.count(-value, now_ms)


def test_the_wait_of_a_burst_is_what_kafkas_formula_says() -> None:
    """(O - T) / T * W: 560 in ten windows and this one is 56 a second; to 5 a second it is 102 s more."""
    assert Windows(0).record(560, 5, 0) == 102_000


def test_ten_seconds_worth_may_be_done_at_once_and_no_more() -> None:
    assert most_at_once(7) == 70
    windows = Windows(0)
    assert windows.record(most_at_once(7), 7, 0) == 0
    assert windows.record(1, 7, 0) == round(1_000 / 7)


@settings(max_examples=50)
@given(RUNS, QUOTAS)
def test_who_is_below_its_quota_never_waits(run: Sequence[tuple[int, int, bool]], quota: int) -> None:
    """Each is cut to what keeps every stretch of time, seen as ten seconds at least, within the quota."""
    windows, now_ms = Windows(0), 0
    done: list[Done] = []
    for step_ms, value, _ in run:
        now_ms += step_ms
        room = value
        for since_ms in {0, now_ms} | {at_ms for at_ms, _ in done}:
            stretch_s = max(10_000, now_ms - since_ms) / 1_000
            room = min(room, int(quota * stretch_s - _done_between(done, since_ms, now_ms)))
        done.append((now_ms, room))
        assert windows.record(room, quota, now_ms) == 0


@given(RUNS, QUOTAS)
def test_eleven_seconds_have_a_window_more_than_the_quota_and_the_wait_after_them_at_most(
    run: Sequence[tuple[int, int, bool]], quota: int
) -> None:
    """Of who waits as told, and longer if it likes; however large what it does is, and for as long as it goes on."""
    windows, now_ms, wait_ms = Windows(0), 0, 0
    done: list[Done] = []
    for step_ms, value, idle in run:
        now_ms += wait_ms + (step_ms if idle else 0)
        done.append((now_ms, value))
        wait_ms = windows.record(value, quota, now_ms)
        assert _done_between(done, now_ms - 10_999, now_ms) <= quota * (12_000 + wait_ms + 0.5) / 1_000
    rest = _done_between(done, now_ms - 10_999, now_ms)
    blocks = now_ms // 11_000 + 1
    assert _done_between(done, 0, now_ms) - rest <= quota * (now_ms * 23 / 11 + blocks) / 1_000


def test_a_debt_that_is_older_than_the_windows_is_forgotten_as_in_kafka() -> None:
    windows, kafka = Windows(0), KafkaRate()
    for now_ms in range(0, 110_000, 11_000):
        kafka.count(210, now_ms)
        assert windows.record(210, 10, now_ms) == kafka.wait_ms(10, now_ms) == 11_000


@given(RUNS, QUOTAS)
def test_what_is_idle_is_as_good_as_new(run: Sequence[tuple[int, int, bool]], quota: int) -> None:
    windows, now_ms = Windows(0), 0
    for step_ms, value, _ in run:
        now_ms += step_ms
        windows.record(value, quota, now_ms)
    assert not windows.is_idle(now_ms + 10_999)
    now_ms += 11_000
    assert windows.is_idle(now_ms)
    fresh = Windows(now_ms + (run[0][0] if run else 0))
    for step_ms, value, _ in run:
        now_ms += step_ms
        assert windows.record(value, quota, now_ms) == fresh.record(value, quota, now_ms)


@pytest.mark.parametrize(
    ("wait_ms", "whole"),
    [(0.4, 0), (0.49999999999999994, 0), (0.5, 1), (1.5, 2), (2.5, 3), (1e300, THROTTLE_MS_MAX)],
)
def test_waits_are_rounded_as_kafka_rounds(wait_ms: float, whole: int) -> None:
    assert whole_ms(wait_ms) == whole


def test_windows_that_are_never_asked_do_not_grow() -> None:
    windows = Windows(0)
    for now_ms in range(0, 100_000, 500):
        windows.add(1, now_ms)
    assert len(windows._older) <= 11


def _done_between(done: Sequence[Done], since_ms: int, until_ms: int) -> float:
    return sum(value for at_ms, value in done if since_ms <= at_ms <= until_ms)
