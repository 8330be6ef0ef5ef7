"""A runner that closes leaves nothing behind."""

from __future__ import annotations

import asyncio

from headrace_common.runtime.tasks import TaskRunner


async def test_a_close_that_is_cancelled_leaves_no_task_running() -> None:
    started = [asyncio.Event(), asyncio.Event()]
    ended: list[int] = []

    async def lingers(number: int) -> None:
        started[number].set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    runner = TaskRunner()
    tasks = [runner.start(lingers(number), name=f"lingers-{number}") for number in (0, 1)]
    for event in started:
        await event.wait()
    closing = asyncio.ensure_future(runner.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing, *tasks], timeout=10)
    assert sorted(ended) == [0, 1]
