"""A task on a worker: its loop is started again after the world's failures, and not after others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace_common.runtime.clock import SystemClock, pause_ms
from headrace_connect.core.backoff import Backoff
from headrace_connect.core.errors import Fault, RetriableError
from headrace_connect.core.task import State, TaskLife
from headrace_connect.runtime.seat import Seat


class Loop:
    """Opens, then raises what it is given, or runs until it is closed."""

    def __init__(self, error: Exception | None, on_open: Callable[[], None]) -> None:
        self.error = error
        self.on_open = on_open
        self.closed = asyncio.Event()
        self.is_idle = True

    async def run(self) -> None:
        self.on_open()
        if self.error is not None:
            raise self.error
        await self.closed.wait()

    def suspend(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None:
        self.closed.set()


def seat(*errors: Exception | None, first_ms: float = 1) -> tuple[Seat, list[Loop]]:
    loops: list[Loop] = []

    def make(on_open: Callable[[], None], on_commit: Callable[[], None]) -> Loop:
        loops.append(Loop(errors[len(loops)], on_open))
        return loops[-1]

    return Seat("task 0", make, SystemClock(), TaskLife(Backoff(first_ms, first_ms))), loops


async def test_a_loop_that_fails_by_the_worlds_fault_is_started_again() -> None:
    tested, loops = seat(RetriableError("away"), OSError("away"), None)
    running = asyncio.create_task(tested.run())
    while not tested.is_idle:
        await pause_ms(1)
    assert (len(loops), tested.life.state) == (3, State.RUNNING)
    tested.close()
    await running
    assert tested.life.state is State.UNASSIGNED


@pytest.mark.parametrize("error", [KeyError("x"), AssertionError("ours")])
async def test_a_loop_that_fails_by_a_bug_is_not(error: Exception) -> None:
    tested, loops = seat(error)
    await tested.run()
    assert (len(loops), tested.life.state) == (1, State.FAILED)
    assert type(error).__name__ in tested.life.reason


async def test_a_task_that_waits_can_be_closed() -> None:
    tested, _ = seat(OSError("away"), first_ms=60_000)
    running = asyncio.create_task(tested.run())
    while tested.life.state is not State.RESTARTING:
        await pause_ms(1)
    tested.close()
    await running
    assert tested.life.state is State.UNASSIGNED


async def test_where_it_failed_is_known_until_it_commits_again() -> None:
    told: list[tuple[State, bool]] = []
    loops: list[Loop] = []
    commits: list[Callable[[], None]] = []

    def make(on_open: Callable[[], None], on_commit: Callable[[], None]) -> Loop:
        loops.append(Loop([OSError("away"), None][len(loops)], on_open))
        commits.append(on_commit)
        return loops[-1]

    def on_change() -> None:
        told.append((tested.life.state, "OSError: away" in tested.trace))

    tested = Seat("task 0", make, SystemClock(), TaskLife(Backoff(1, 1)), on_change)
    running = asyncio.create_task(tested.run())
    while not tested.is_idle:
        await pause_ms(1)
    assert tested.fault is Fault.WORLD
    commits[-1]()
    assert (tested.fault, tested.trace) == (None, "")
    tested.close()
    await running
    assert told == [
        (State.STARTING, False),
        (State.RUNNING, False),
        (State.RESTARTING, True),
        (State.STARTING, True),
        (State.RUNNING, True),
        (State.RUNNING, False),
        (State.RUNNING, False),
        (State.UNASSIGNED, False),
    ]
