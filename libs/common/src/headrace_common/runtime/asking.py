"""
Asks one process over a gRPC stream that stays open: requests out, answers by their numbers, in any order.

What a unary call does, for less than half of its cost. A stream is opened by the first request and again by the first
after it broke; a broken one is never used again, and what was under way on it has an unknown fate. Services use it
among themselves; ``answering`` is the other end. Decides nothing about what is asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc.aio

from headrace_common.core.errors import HeadraceError, NetworkFailed, Overloaded, RequestTimedOut
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.status import error_of
from headrace_common.runtime.clock import call_later_ms
from headrace_common.runtime.tasks import TaskRunner

UNANSWERED_MAX: Final = 10_000
"""Requests that may wait for answers on one stream."""
_EOF: Final[Any] = grpc.aio.EOF


class Numbered(Protocol):
    """A request or an answer of such a stream."""

    correlation_id: int


Q = TypeVar("Q", bound=Numbered)
A = TypeVar("A", bound=Numbered)


class Asking(Generic[Q, A]):
    """One call from its opening to its end."""

    def __init__(self, call: Any, where: str, tasks: TaskRunner) -> None:
        self.failure: HeadraceError | None = None
        self._call = call
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._numbers = 0
        self._heard = 0
        """Answers that have come."""
        self._pending: dict[int, tuple[asyncio.Future[A], asyncio.TimerHandle]] = {}
        self._queue: deque[Q] = deque()
        self._filled = asyncio.Event()
        self._tasks = (
            tasks.start(self._write(), name=f"write to {where}"),
            tasks.start(self._read(), name=f"read from {where}"),
        )

    def ask(self, request: Q, timeout_ms: float) -> asyncio.Future[A]:
        """Queue ``request`` and return its answer to come, within ``timeout_ms``; see ``AskingStreams.ask``."""
        future: asyncio.Future[A] = self._loop.create_future()
        if len(self._pending) >= UNANSWERED_MAX:
            future.set_exception(Overloaded(f"{UNANSWERED_MAX} requests wait for {self._where}; ask again in a second"))
            return future
        self._numbers += 1
        request.correlation_id = self._numbers
        timer = call_later_ms(timeout_ms, self._expire, self._numbers, self._heard, timeout_ms)
        self._pending[self._numbers] = future, timer
        self._queue.append(request)
        self._filled.set()
        return future

    async def _write(self) -> None:
        queue, filled = self._queue, self._filled
        try:
            with CallTo(self._where):
                while True:
                    while queue:
                        await self._call.write(queue.popleft())
                    filled.clear()
                    await filled.wait()
        except HeadraceError:
            return  # the reader learns why

    async def _read(self) -> None:
        try:
            with CallTo(self._where):
                while (answer := await self._call.read()) is not _EOF:
                    self._heard += 1
                    self._take(answer)
            self.end(NetworkFailed(f"{self._where} ended the stream; the outcome is unknown"))
        except HeadraceError as error:
            code = error.code if error.retriable else None
            self.end(NetworkFailed(f"{self._where}: {error}", code=code))

    def _take(self, answer: A) -> None:
        future, timer = self._pending.pop(answer.correlation_id, (None, None))
        if future is None or timer is None:
            return  # nobody waits any more
        timer.cancel()
        if not future.done():
            future.set_result(answer)

    def _expire(self, number: int, heard: int, timeout_ms: float) -> None:
        """Who answers others meanwhile only needs long for this one; who is silent is entrusted with nothing more."""
        future, _ = self._pending.pop(number)
        if not future.done():
            future.set_exception(RequestTimedOut(f"{self._where} did not answer within {timeout_ms:g} ms"))
        if heard == self._heard:
            self.end(NetworkFailed(f"{self._where} was silent for {timeout_ms:g} ms; the outcome is unknown"))

    def end(self, error: HeadraceError) -> None:
        """Fail what waits; idempotent."""
        if self.failure is not None:
            return
        self.failure = error
        for future, timer in self._pending.values():
            timer.cancel()
            if not future.done():
                future.set_exception(NetworkFailed(str(error), code=error.code))
                future.exception()  # whoever still waits sees it; nobody is warned about the others
        self._pending.clear()
        self._queue.clear()
        self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


class AskingStreams(Generic[Q, A]):
    """
    One stream to each address; one event loop. Whoever closes a connection says so before.

    Args:
        open_call: a new call of the operation to an address.
        who: the kind of node that is asked, for errors.
    """

    def __init__(self, open_call: Callable[[Endpoint], Any], who: str, tasks: TaskRunner) -> None:
        self._open_call = open_call
        self._who = who
        self._tasks = tasks
        self._live: dict[Endpoint, Asking[Q, A]] = {}

    async def ask(self, at: Endpoint, request: Q, timeout_ms: float) -> A:
        """
        The answer to ``request``, whose number is set here. What it says of the request as a whole is the caller's.

        Raises:
            NetworkFailed, RequestTimedOut: the outcome is unknown.
            Overloaded: too many wait for answers; it was not sent.
        """
        live = self._live.get(at)
        if live is None or live.failure is not None:
            where = f"the {self._who} at {at}"
            with CallTo(where):
                live = self._live[at] = Asking(self._open_call(at), where, self._tasks)
        return await live.ask(request, timeout_ms)

    def drop(self, at: Endpoint) -> None:
        """The connection to ``at`` is being closed: what is under way fails, its outcome unknown."""
        live = self._live.pop(at, None)
        if live is not None:
            live.end(NetworkFailed(f"the connection to {at} was closed; the outcome is unknown"))

    def keep(self, known: Collection[Endpoint]) -> None:
        """``drop`` all other addresses."""
        for at in [at for at in self._live if at not in known]:
            self.drop(at)


def raise_error(answer: Any) -> None:
    """Raises: HeadraceError: the one of an answer that says why its request failed as a whole."""
    if answer.HasField("error"):
        raise error_of(answer.error)
