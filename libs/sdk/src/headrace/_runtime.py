"""
Decides where a client's code runs: time, background tasks, the one loop thread of the sync twins, forks and exit.

Used by the shells (``aio`` and the sync clients); nothing in ``_core`` knows of it. All sync clients of a process
share one daemon thread with one event loop (uvloop where it is installed), started when the first is made. A child
after a fork has neither the thread nor the connections: clients made before the fork are told so, and refuse; new ones
work (``headrace_common.rpc.library``).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from headrace._callbacks import BLOCKED_LOOK_S, warn_of_blocked
from headrace._descriptors import needing_descriptors
from headrace.errors import ClientClosed, Rejected, WaitTimedOut
from headrace_common.runtime.threads import run_in_thread

T = TypeVar("T")

EXIT_FLUSH_MS: Final = 5_000
"""How long the end of the process waits for clients that were never closed, all together."""
EXIT_STEP_S: Final = 1.0
"""And then for each of these: connections to close, tasks to end, the thread to end."""
CLOSE_ROUNDS_MAX: Final = 16
"""How often closing looks whether tasks that ended have started others."""

_log = logging.getLogger("headrace")


class Tasks:
    """
    The background tasks of one client. They belong to the loop that started them.

    A task that raises has met a bug: it is logged, and ``on_crash`` is told, which fails the client; nothing waits
    for an answer that will never come.
    """

    def __init__(self, on_crash: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_crash = on_crash

    def start(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run ``coro`` in the background."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
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


class Connections(Protocol):
    """What a client has open, as this module sees it."""

    async def close(self) -> None:
        """Close all. Idempotent."""
        ...


class LoopThread:
    """An event loop on a daemon thread. Any thread may call its methods; none may be called on the loop itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.pid = os.getpid()
        self._ended = False
        with needing_descriptors():
            self.loop = loop or _new_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._ready.set)
        self.loop.run_forever()

    @property
    def here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.current_thread() is self._thread

    def check_elsewhere(self) -> None:
        """Raises: Rejected: the caller is on the loop's thread, so that it cannot wait for the loop."""
        if self.here:
            raise Rejected("a sync client cannot wait on its own background thread, where callbacks run")

    def call(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """
        Run ``coro`` on the loop and wait; Ctrl+C ends the wait and cancels it.

        Args:
            timeout: seconds; None: the coroutine has its own bound.

        Raises:
            WaitTimedOut: it took longer than ``timeout``; it was cancelled.
        """
        if self._ended:
            coro.close()
            raise ClientClosed("the process ends, and its clients were closed")
        try:
            self.check_elsewhere()
        except Rejected:
            coro.close()
            raise
        future: ThreadFuture[T] = asyncio.run_coroutine_threadsafe(coro, self.loop)
        try:
            return self._wait(future, timeout)
        except FutureTimeoutError:
            if not future.done():
                future.cancel()
                raise WaitTimedOut(f"not finished within {timeout:g} s") from None
        except BaseException:
            future.cancel()
            raise
        return future.result()  # it is done by now, or the error was its own

    def _wait(self, future: ThreadFuture[T], timeout: float | None) -> T:
        while timeout is None or timeout > BLOCKED_LOOK_S:
            with contextlib.suppress(FutureTimeoutError):
                return future.result(BLOCKED_LOOK_S)
            if future.done():
                break
            warn_of_blocked(self._thread.ident)
            timeout = None if timeout is None else timeout - BLOCKED_LOOK_S
        return future.result(timeout)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Run ``callback`` on the loop, soon."""
        self.loop.call_soon_threadsafe(callback, *args)

    def end(self, connections: Collection[Connections]) -> None:
        """The process ends: close ``connections``, end all tasks, then the thread. Each is given little time."""
        self._ended = True
        ending = asyncio.run_coroutine_threadsafe(_end_all(connections), self.loop)
        with contextlib.suppress(FutureTimeoutError):
            ending.result(3 * EXIT_STEP_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(EXIT_STEP_S)


async def _end_all(connections: Collection[Connections]) -> None:
    closing = [asyncio.ensure_future(each.close()) for each in connections]
    if closing:
        await asyncio.wait(closing, timeout=EXIT_STEP_S)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=EXIT_STEP_S)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_exception_handler(_report)
    return loop


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """
    As usual, but for one thing: any loop that runs hands on what gRPC has completed, also to a loop that has ended
    meanwhile, as that of ``asyncio.run(main())``. Nobody waits for it there, and nothing is wrong.
    """
    is_of_grpc = "PollerCompletionQueue" in str(context.get("handle"))
    if not (is_of_grpc and str(context.get("exception")) == "Event loop is closed"):
        loop.default_exception_handler(context)


class _Process:
    """What this process has of sync clients."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew in a child; with a new lock, for another thread may have held the old one at the fork."""
        self.lock = threading.RLock()
        self.loop: LoopThread | None = None
        self.clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self.connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self.opened: weakref.WeakSet[Any] = weakref.WeakSet()
        """All connections, also those of the application's own loops."""


_process = _Process()


INSTEAD: Final[ContextVar[LoopThread | None]] = ContextVar("headrace_loop_thread", default=None)
"""What stands where the process's loop thread stands, for who runs a cluster in one process."""


def loop_thread() -> LoopThread:
    """The loop that all sync clients of this process share."""
    other = INSTEAD.get()
    if other is not None:
        return other
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


def connected(connections: Connections) -> None:
    """These were opened on the current loop; what belongs to the loop thread is closed at the end of the process."""
    with _process.lock:
        _process.opened.add(connections)
        if _process.loop is not None and _process.loop.here:
            _process.connections.add(connections)


async def in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` beside the loop; at the end of the process, when no threads are given out any more, on it."""
    try:
        return await run_in_thread(work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        return work()


_inherited: Final[list[Any]] = []
"""In a child: what its parents had open. Held for ever."""


def _after_fork() -> None:
    """
    In a child. Its copies of connections must not be closed, not even by the collector at the very end: they would say
    good-bye on sockets that are the parent's too.
    """
    clients = list(_process.clients)
    if _process.opened:
        if not _inherited:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_inherited))
        _inherited.extend(_process.opened)
    _process.reset()
    for client in clients:
        client._abandon()


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT_FLUSH_MS / 1_000
    with _process.lock:
        clients, loop = list(_process.clients), _process.loop
    try:
        for client in clients:
            client._close_at_exit(max(0.1, deadline - time.monotonic()))
    finally:  # a thread that wakes after the interpreter's end crashes the process
        if loop is not None and loop.pid == os.getpid():
            loop.end(list(_process.connections))
        _end_as_interrupted()


def _end_as_interrupted() -> None:
    """
    Ctrl+C ends the process: so say it again. The interpreter notes that when a program's text ends by it, and forgets
    it when another text is run, which importing a module with a named tuple does. One line of text has it note it.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def loaded(module: str) -> bool:
    """Whether the application has imported ``module``; asked so that the client does not load it for nothing."""
    return module in sys.modules
