"""Background tasks and the clocks."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.clock import FakeClock

from headrace_common.runtime.clock import SystemClock, until_beat_ms
from headrace_common.runtime.entropy import backoff_ms, jitter, new_incarnation, new_topic_id
from headrace_common.runtime.service import run_until
from headrace_common.runtime.tasks import TaskRunner, first_of


async def forever(log: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append(name)


async def test_tasks_end_with_their_runner_newest_first() -> None:
    log: list[str] = []
    async with TaskRunner() as tasks:
        for name in ("one", "two", "three"):
            tasks.start(forever(log, name), name=name)
        await asyncio.sleep(0)
        assert len(tasks) == 3
    assert log == ["three", "two", "one"]
    assert not tasks.failed.is_set()


async def test_a_crash_is_logged_and_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    async def crash() -> None:
        raise ValueError("a bug")

    async with TaskRunner() as tasks:
        tasks.start(crash(), name="crashing")
        with pytest.raises(ValueError, match="a bug"):
            await run_until(asyncio.Event(), tasks)
    assert any(getattr(r, "task", "") == "crashing" and r.levelno == logging.CRITICAL for r in caplog.records)


async def test_stop_ends_the_wait_without_a_failure() -> None:
    stop = asyncio.Event()
    async with TaskRunner() as tasks:
        waiting = asyncio.ensure_future(run_until(stop, tasks))
        await asyncio.sleep(0)
        assert not waiting.done()
        stop.set()
        await waiting


async def test_nothing_starts_after_the_end() -> None:
    async with TaskRunner() as tasks:
        pass
    with pytest.raises(RuntimeError, match="late"):
        tasks.start(forever([], "late"), name="late")


async def test_first_of_ends_the_others_and_raises_what_came_first() -> None:
    log: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("first")

    with pytest.raises(KeyError):
        await first_of(forever(log, "cancelled"), fails())
    assert log == ["cancelled"]


async def test_a_fake_clock_wakes_sleepers_in_their_order() -> None:
    clock, log = FakeClock(), []

    async def sleeper(ms: float) -> None:
        await clock.sleep_ms(ms)
        log.append((ms, clock.monotonic_ms()))

    async with TaskRunner() as tasks:
        for ms in (30, 10, 20):
            tasks.start(sleeper(ms), name=str(ms))
        await clock.until_asleep()
        start = clock.now_ms()
        await clock.advance(25)
        assert log == [(10, 10), (20, 20)]
        assert (clock.monotonic_ms(), clock.now_ms() - start) == (25, 25)
        assert clock.sleepers == 1


async def test_the_system_clock_moves_forward() -> None:
    clock = SystemClock()
    before = clock.monotonic_ms()
    await clock.sleep_ms(5)
    assert clock.monotonic_ms() - before >= 4
    assert clock.now_ms() > 1_700_000_000_000


@given(st.integers(1, 10_000))
def test_backoff_grows_to_its_bound(attempt: int) -> None:
    pause = backoff_ms(attempt, first_ms=100, ms_max=1_000)
    ideal = min(1_000, 100 * 2 ** min(attempt - 1, 10))
    assert 0.8 * ideal <= pause <= 1.2 * ideal


def test_chance() -> None:
    assert jitter(100, ratio=0) == 100
    assert len({new_incarnation() for _ in range(100)}) == 100
    assert all(len(i) == 16 and i[0] for i in (new_topic_id() for _ in range(300)))


@pytest.mark.parametrize(
    ("now_ms", "left_ms"), [(0, 500), (499, 501), (499.5, 500.5), (500, 500), (750, 250), (5_100, 400)]
)
def test_who_waits_for_a_beat_wakes_with_others_and_never_twice_for_one(now_ms: float, left_ms: float) -> None:
    assert until_beat_ms(now_ms, 500) == left_ms
