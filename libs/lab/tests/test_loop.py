"""The loop: virtual time, one order for each node and a drawn one between them, pauses, kills, and one seed for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from headrace_lab.adopting import adopt_loop
from headrace_lab.loop import LabLoop, Node, Stuck

T = TypeVar("T")
WEEK_S = 7 * 24 * 3_600


@pytest.fixture
def loop() -> Iterator[LabLoop]:
    made = LabLoop(1)
    yield made
    made.close()


def run(loop: LabLoop, scenario: Coroutine[Any, Any, T]) -> T:
    return loop.run_until_complete(scenario)


def test_time_passes_at_once_and_in_order(loop: LabLoop) -> None:
    async def scenario() -> list[tuple[float, str]]:
        seen: list[tuple[float, str]] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            seen.append((loop.time(), name))

        await asyncio.gather(after(WEEK_S, "week"), after(1, "second"), after(0.001, "millisecond"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return seen

    began = time.monotonic()
    assert run(loop, scenario()) == [(0.001, "millisecond"), (1, "second"), (WEEK_S, "week")]
    assert loop.time() == WEEK_S + 5
    assert time.monotonic() - began < WEEK_S


def steps_of(seed: int) -> list[str]:
    """Three nodes of three tasks, which each take three steps."""
    loop = LabLoop(seed)
    seen: list[str] = []

    async def work(name: str) -> None:
        for step in range(3):
            seen.append(f"{name}{step}")
            await asyncio.sleep(0)

    async def scenario() -> None:
        nodes = [Node(name) for name in "ABC"]
        await asyncio.wait(
            [loop.create_task(work(f"{node}{n}"), context=node.context) for node in nodes for n in "abc"]
        )

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    return seen


def test_the_seed_decides_which_node_is_next_and_nothing_else_does() -> None:
    assert steps_of(3) == steps_of(3)
    orders = {tuple(steps_of(seed)) for seed in range(20)}
    assert len(orders) > 10
    for order in orders:
        for node in "ABC":
            own = [step for step in order if step[0] == node]
            assert own == [f"{node}{task}{step}" for step in range(3) for task in "abc"], "as asyncio has it"


def test_a_paused_node_does_nothing_and_then_all_of_it(loop: LabLoop) -> None:
    node = Node("n")
    beats: list[float] = []

    async def beat() -> None:
        while True:
            await asyncio.sleep(1)
            beats.append(loop.time())

    async def scenario() -> None:
        task = loop.create_task(beat(), context=node.context)
        await asyncio.sleep(2.5)
        loop.pause(node)
        await asyncio.sleep(10)
        assert beats == [1, 2]
        loop.resume(node)
        await asyncio.sleep(1.2)
        assert beats == [1, 2, 12.5, 13.5]
        task.cancel()

    run(loop, scenario())


def test_a_killed_node_never_goes_on(loop: LabLoop) -> None:
    node = Node("n")
    seen: list[str] = []

    async def work() -> None:
        try:
            seen.append("begun")
            await asyncio.sleep(1)
            seen.append("went on")
        finally:
            await asyncio.sleep(1)
            seen.append("cleaned up")

    async def scenario() -> None:
        task = loop.create_task(work(), context=node.context)
        await asyncio.sleep(0.5)
        loop.kill(node)
        await asyncio.sleep(10)
        assert seen == ["begun"]
        assert not task.done()
        await loop.bury()
        assert seen == ["begun", "cleaned up"]
        assert task.cancelled()

    run(loop, scenario())


def test_what_can_never_come_is_said(loop: LabLoop) -> None:
    with pytest.raises(Stuck):
        run(loop, asyncio.Event().wait())


def test_threads_are_turns(loop: LabLoop) -> None:
    async def scenario() -> tuple[int, float]:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7), loop.time()

    answer, at = run(loop, scenario())
    assert answer == 7
    assert 0 < at < 1


async def test_a_node_that_does_not_end_is_not_waited_for() -> None:
    async def stay() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    with adopt_loop(1) as loop:
        task = loop.create_task(stay(), context=Node("client").context.copy())
        await asyncio.sleep(1)
        loop.kill_all()
        await loop.bury()
    assert not task.done()
    assert task not in asyncio.all_tasks(), "asyncio.run would wait for it"
