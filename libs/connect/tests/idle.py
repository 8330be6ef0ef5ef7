"""Runs a source's task for as long as it has something to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace_common.runtime.clock import limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core.source_steps import CloseAsked
from headrace_connect.runtime.source_task import SourceTask


async def run_until_idle(task: SourceTask, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    """
    Args:
        meanwhile: awaited while it runs; only then it is looked whether it is idle.

    Raises:
        TaskFailed: it has ended otherwise.
    """

    async def close() -> None:
        if meanwhile is not None:
            await meanwhile()
        while not task.is_idle:
            await pause_ms(1)
        task.ask(CloseAsked())

    async with limit_s(30), TaskRunner() as runner:
        runner.start(close(), name="close")
        await task.run()
