"""
Decides what becomes of background tasks: who owns them, and what their failure means.

A service starts every loop through one ``TaskRunner``. A loop handles the errors it expects; whatever else it raises
is a bug, and a half-dead service is worse than a restarted one: the runner logs it, sets ``failed``, and the process
stops with exit code 1 (``run_until`` watches it).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from headrace_common.core.errors import HeadraceError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class TaskRunner:
    """
    Owns background tasks from ``async with`` to its end, where all that still run are cancelled, newest first.

    Tasks run on the loop that entered the runner; ``start`` is called on that loop only.
    """

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.failed = asyncio.Event()
        """Set when a task has raised."""
        self.failure: BaseException | None = None
        """What the first failing task raised."""
        self._closed = False

    def start(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``coro`` in the background until it ends or the runner closes."""
        if self._closed:
            coro.close()
            raise RuntimeError(f"task {name} was started after its runner had closed")
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    async def __aenter__(self) -> TaskRunner:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """
        Cancel what runs, newest first, and wait until each has ended.

        Whoever waits may be cancelled meanwhile, as gRPC does with a handler more than once: then the rest is
        cancelled all the same.
        """
        self._closed = True
        try:
            for task in reversed(list(self._tasks)):
                task.cancel()
                await asyncio.wait([task])
        finally:
            for task in list(self._tasks):
                if not task.cancelling():
                    task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        about = {"task": task.get_name()}
        if isinstance(error, HeadraceError):  # the world's doing, and its text says what: no traceback
            _log.critical("the process stops: %s", error, extra={**about, "code": error.code.name})
        else:
            _log.critical("a background task crashed; the process stops", exc_info=error, extra=about)
        self.failure = self.failure or error
        self.failed.set()


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """
    Return when the first of ``waits`` has ended; the others are cancelled and have ended too.

    Raises:
        BaseException: what a wait raised that ended first.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
