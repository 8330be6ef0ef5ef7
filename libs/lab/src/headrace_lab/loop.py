"""
An event loop whose time is virtual and whose order comes from one seed.

Time moves only when nothing can run: to the next timer, at once. As far as order goes each node is a process of its
own: what is ready on one node runs in the order in which it became ready, as asyncio promises, and which node runs next
is drawn. A node can be paused, and killed: what it still had to do never runs.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import socket
import sys
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NODE: Final[ContextVar[Node]] = ContextVar("headrace_lab_node")
"""Whose code runs."""


THREAD_S_MAX: Final = 0.001
"""How long what is handed to a thread takes at most."""


BURIALS_MAX: Final = 16
BURIAL_S_MAX: Final = 60.0


class Stuck(RuntimeError):
    """Nothing can ever run again: what the test awaits will not come."""


class Node:
    """What has one order of its own: a process of the cluster, or the test with its clients."""

    __slots__ = ("alive", "context", "name", "paused", "ready", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.paused = False
        self.alive = True
        self.context: Context
        """In which what others bring to it runs."""
        self.join(copy_context())

    def join(self, context: Context) -> None:
        """What runs in ``context`` is its own from now on."""
        self.context = context
        context.run(NODE.set, self)

    def __repr__(self) -> str:
        return self.name


class _Numbered:
    """
    Its hash is the number it gets when it is first asked for, not its address: ``asyncio.wait`` goes through sets. Most
    are never asked.
    """

    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            loop = self.get_loop()  # type: ignore[attr-defined]  # of futures
            loop._count += 1
            self._number = loop._count
        return self._number


class LabFuture(_Numbered, asyncio.Future[Any]):
    """A future of the loop."""


class LabTask(_Numbered, asyncio.Task[Any]):
    """A task of the loop."""


@contextmanager
def _silence() -> Iterator[None]:
    """What the dead say on their way out is heard by nobody."""
    level, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable()
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(level)


async def _cancel_all(nodes: Sequence[Node]) -> None:
    me = asyncio.current_task()
    for _ in range(BURIALS_MAX):  # a task that ends may have started another
        tasks = [task for node in nodes for task in node.tasks if task is not me]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=BURIAL_S_MAX)


async def _refuse(host: str, port: int) -> None:
    raise ConnectionRefusedError(f"nobody listens at {host}:{port}")


class _Mute(asyncio.Transport):
    """A connection on which nothing is said."""

    protocol: Any = None
    _closing = False

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing


class LabLoop(asyncio.BaseEventLoop):
    """See the module's text. One thread; no sockets, no processes, no executor."""

    virtual = True
    """Whether its time is."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.begin(seed)

    def begin(self, seed: int) -> None:
        """A new history: nothing has run, and it is the first moment of virtual time."""
        self.random = Random(seed)
        self.test = Node("test")
        self.set_task_factory(self._keep)
        self.steps = 0
        """How many callbacks have run."""
        self.fired = 0
        """How many timers: messages that were delivered and disk completions are among them."""
        self.trace: Callable[[Node, asyncio.Handle], object] | None = None
        """Told of each before it runs."""
        self.connect: Callable[[str, int], Awaitable[None]] = _refuse
        """What a plain connection to a host and port comes to; a network sets it."""
        self._now = 0.0
        self._runnable: list[Node] = []
        """Nodes that have something ready and are not paused."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._dead: list[Node] = []
        self._nodes: dict[Node, None] = {}
        """All that have had a task."""
        self._before: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]  # it is asyncio's own
        """What an adopted loop had to do when the history began."""

    def time(self) -> float:
        """Virtual seconds since the history began."""
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        return LabFuture(loop=self)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """On the node whose context it is."""
        handle = asyncio.Handle(callback, args, self, context)
        self._make_ready(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As ``call_soon``: there is no other thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def pause(self, node: Node) -> None:
        """Nothing of it runs until ``resume``."""
        if not node.paused:
            node.paused = True
            if node.ready:
                self._runnable.remove(node)

    def resume(self, node: Node) -> None:
        """It goes on with all that came meanwhile."""
        if node.paused:
            node.paused = False
            if node.ready:
                self._runnable.append(node)

    def kill(self, node: Node) -> None:
        """Nothing of it runs any more; ``bury`` frees it."""
        self.pause(node)
        node.alive = False
        self._dead.append(node)

    async def bury(self) -> None:
        """
        Free what killed nodes were in the midst of. It cleans up after itself here, so this is for the end, when nobody
        notices any more. Nothing of it is heard.
        """
        dead, self._dead = self._dead, []
        with _silence():
            for node in dead:
                self.resume(node)
            await _cancel_all(dead)

    async def end_tasks(self) -> None:
        """End what the test has begun in the history and not ended: nothing could wake it later."""
        await _cancel_all([self.test])

    def kill_all(self) -> None:
        """All nodes but the test's, and that which asks."""
        spared = (self.test, NODE.get(self.test))
        for node in self._nodes:
            if node.alive and node not in spared:
                self.kill(node)

    def _keep(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """A task, known to its node while it runs."""
        del loop
        task = LabTask(coroutine, loop=self, context=context)
        node = NODE.get(self.test) if context is None else context.get(NODE) or self.test
        self._nodes[node] = None
        node.tasks[task] = None
        task.add_done_callback(node.tasks.pop)
        return task

    def leave(self) -> list[asyncio.Handle]:
        """
        What the test still has to do at once when the history ends; the timers of its tasks are dropped. A task that
        did not end when it was cancelled never will: ``asyncio.run`` is not to wait for it.
        """
        for node in self._nodes:
            for task in node.tasks:
                asyncio.tasks._unregister_task(task)
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody is to be told
        left = list(self.test.ready)
        self.test.ready.clear()
        return left

    def _make_ready(self, handle: asyncio.Handle) -> None:
        node = handle._context.get(NODE) or self.test  # type: ignore[attr-defined]  # a handle has its context
        if not node.ready and not node.paused:
            self._runnable.append(node)
        node.ready.append(handle)

    def _run_once(self) -> None:
        runnable = self._runnable
        while self._before:
            self._make_ready(self._before.popleft())
        if not runnable:
            self._advance()
        count = len(runnable)
        place = int(self.random.random() * count) if count > 1 else 0
        node = runnable[place]
        ready = node.ready
        turn = len(ready)
        self.steps += turn
        for _ in range(turn):
            if node.paused or not ready:
                break  # paused, or left, since this turn began
            handle = ready.popleft()
            if self.trace is not None:
                self.trace(node, handle)
            if not ready and not node.paused:
                runnable.remove(node)
            if not handle._cancelled:
                handle._run()

    def _advance(self) -> None:
        timers = self._timers
        while timers:
            when, _, timer = heapq.heappop(timers)
            if timer._cancelled:
                continue
            self._now = max(self._now, when)
            self.fired += 1
            self._make_ready(timer)
            while timers and timers[0][0] <= self._now:
                _, _, timer = heapq.heappop(timers)
                if not timer._cancelled:
                    self.fired += 1
                    self._make_ready(timer)
            if self._runnable:
                return
        raise Stuck("nothing can run any more, and something is awaited")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def create_connection(  # type: ignore[override]  # what of it is used
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, Any]:
        """A connection that says nothing: who makes it wants to know whether somebody listens. Raises: OSError."""
        await self.connect(host, port)
        transport, protocol = _Mute(), protocol_factory()
        protocol.connection_made(transport)
        transport.protocol = protocol
        return transport, protocol

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """In a turn of its own, a little later: a thread has no place in one order."""
        del executor
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)

        self.call_later(self.random.random() * THREAD_S_MAX, run)
        return future
