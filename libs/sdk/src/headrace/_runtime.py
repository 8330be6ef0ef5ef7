"""
Decides where a client's code runs: time, background tasks, the one loop thread of the sync twins, forks and exit.

Used by the shells (``aio`` and the sync clients); nothing in ``_core`` knows of it. All sync clients of a process
share one daemon thread with one event loop (uvloop where it is installed), started when the first is made. A child
after a fork has neither the thread nor the connections: clients made before the fork are told so, and refuse.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, Protocol, TypeVar

from headrace.errors import Rejected, WaitTimedOut

T = TypeVar("T")

EXIT_FLUSH_MS: Final = 5_000
"""How long the end of the process waits for clients that were never closed, all together."""
CLOSE_ROUNDS_MAX: Final = 16
"""How often closing looks whether tasks that ended have started others."""

_log = logging.getLogger("headrace")


def new_id() -> str:
    """A UUID that nobody else has."""
    return str(uuid.uuid4())


class Clock(Protocol):
    """Time as a client sees it; a test owns its own. The same shape as in ``headrace_common.runtime.clock``."""

    def now_ms(self) -> int:
        """Wall clock, UTC, milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some moment in the past; never goes back."""
        ...

    async def sleep_ms(self, ms: float) -> None:
        """Wait; 0 or less lets other tasks run once."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall clock, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Monotonic clock."""
        return time.monotonic() * 1_000

    async def sleep_ms(self, ms: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(max(0.0, ms) / 1_000)


class Tasks:
    """
    The background tasks of one client. They belong to the loop that started them.

    A task that raises has met a bug: it is logged, and ``on_crash`` is told, which fails the client; nothing waits
    for an answer that will never come.
    """

    def __init__(self, on_crash: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_crash = on_crash

    def start(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run ``coro`` in the background."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("background task %s of a client crashed", task.get_name(), exc_info=error)
            if self._on_crash is not None:
                self._on_crash(error)

    async def close(self) -> None:
        """Cancel all that run, and wait until they have ended."""
        me = asyncio.current_task()
        for _ in range(CLOSE_ROUNDS_MAX):  # a task that ends may have started another
            tasks = [task for task in self._tasks if task is not me]
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class ExitClosed(Protocol):
    """A sync client, as this module sees it."""

    def _abandon(self) -> None:
        """The process was forked and this is the child: refuse every further call; touch no lock and no connection."""
        ...

    def _close_at_exit(self, timeout: float) -> None:
        """The process ends and nobody has closed this client: warn if something is lost, flush within ``timeout`` s."""
        ...


class LoopThread:
    """An event loop on a daemon thread. Any thread may call its methods; none may be called on the loop itself."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        self.loop = _new_loop()
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._ready.set)
        self.loop.run_forever()

    @property
    def here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.current_thread() is self._thread

    def call(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """
        Run ``coro`` on the loop and wait; Ctrl+C ends the wait and cancels it.

        Args:
            timeout: seconds; None: the coroutine has its own bound.

        Raises:
            WaitTimedOut: it took longer than ``timeout``; it was cancelled.
        """
        if self.here:
            coro.close()
            raise Rejected("a sync client cannot wait on its own background thread, where callbacks run")
        future: ThreadFuture[T] = asyncio.run_coroutine_threadsafe(coro, self.loop)
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            if future.done():  # the coroutine's own
                raise
            future.cancel()
            raise WaitTimedOut(f"not finished within {timeout:g} s") from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Run ``callback`` on the loop, soon."""
        self.loop.call_soon_threadsafe(callback, *args)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _Process:
    """What this process has of sync clients."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew in a child; with a new lock, for another thread may have held the old one at the fork."""
        self.lock = threading.Lock()
        self.loop: LoopThread | None = None
        self.clients: weakref.WeakSet[Any] = weakref.WeakSet()


_process = _Process()


def loop_thread() -> LoopThread:
    """The loop that all sync clients of this process share."""
    with _process.lock:
        if _process.loop is None:
            _process.loop = LoopThread()
        return _process.loop


def enroll(client: ExitClosed) -> None:
    """Tell ``client`` of forks and of the end of the process, until it calls ``dismiss`` or is collected."""
    with _process.lock:
        _process.clients.add(client)


def dismiss(client: ExitClosed) -> None:
    """The client was closed."""
    with _process.lock:
        _process.clients.discard(client)


def _after_fork() -> None:
    clients = list(_process.clients)
    _process.reset()
    for client in clients:
        client._abandon()


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT_FLUSH_MS / 1_000
    with _process.lock:
        clients = list(_process.clients)
    for client in clients:
        client._close_at_exit(max(0.1, deadline - time.monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def loaded(module: str) -> bool:
    """Whether the application has imported ``module``; asked so that the client does not load it for nothing."""
    return module in sys.modules
