"""
Asks one process over a gRPC stream that stays open: requests out, answers by their numbers, in any order.

What a unary call does, for less than half of its cost. A stream is opened by the first request and again by the first
after it broke; a broken one is never used again, and what was under way on it has an unknown fate. Clients use it to
produce, fetch and end transactions, services among themselves; ``answering`` is the other end of most. Decides nothing
about what is asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from copy import copy
from typing import Any, Final, Generic, Protocol, TypeVar

from headrace_common.core.errors import HeadraceError, NetworkFailed, Overloaded, RequestTimedOut
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.library import library
from headrace_common.rpc.status import error_of
from headrace_common.runtime.clock import call_later_ms

UNANSWERED_MAX: Final = 10_000
"""Requests that may wait for answers on one stream."""
ENDING_MS: Final = 1_000.0
"""How long the other side may take to end a call on which all was answered and nothing more comes."""


class Numbered(Protocol):
    """A request or an answer of such a stream."""

    correlation_id: int


class Starter(Protocol):
    """Who owns the tasks of a stream: a ``TaskRunner``, or a client's own."""

    def start(self, coro: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run ``coro`` in the background."""
        ...


Q = TypeVar("Q", bound=Numbered)
A = TypeVar("A", bound=Numbered)


class Asking(Generic[Q, A]):
    """
    One call from its opening to its end.

    Args:
        where: who is asked, for errors.
        strict: a request that is not answered in its time ends the call, even if others were answered meanwhile.
        is_final: whether what the other side ended the call with is what requests fail with; else it broke, for them.
    """

    def __init__(
        self,
        call: Any,
        where: str,
        tasks: Starter,
        *,
        strict: bool = False,
        is_final: Callable[[HeadraceError], bool] = lambda error: False,
    ) -> None:
        self.failure: HeadraceError | None = None
        self.retired = False
        """It is given no more requests."""
        self.before: Asking[Q, A] | None = None
        """The retired one that this one goes on for, until that has ended."""
        self._over = asyncio.Event()
        self._lost = False
        """It ended while requests waited for their answers."""
        self._ending: asyncio.TimerHandle | None = None
        self._call = call
        self._where = where
        self._strict = strict
        self._is_final = is_final
        self._loop = asyncio.get_running_loop()
        self._numbers = 0
        self._heard = 0
        """Answers that have come."""
        self._pending: dict[int, tuple[asyncio.Future[A], asyncio.TimerHandle]] = {}
        self._queue: deque[tuple[Q, bool]] = deque()
        """What is to be written, and whether it will be answered."""
        self._filled = asyncio.Event()
        self._tasks = (
            tasks.start(self._write(), name=f"write to {where}"),
            tasks.start(self._read(), name=f"read from {where}"),
        )

    def ask(self, request: Q, timeout_ms: float, *, answered: bool) -> asyncio.Future[A]:
        """See ``AskingStream.ask``."""
        future: asyncio.Future[A] = self._loop.create_future()
        if len(self._pending) >= UNANSWERED_MAX:
            future.set_exception(Overloaded(f"{UNANSWERED_MAX} requests wait for {self._where}; ask again in a second"))
            return future
        self._numbers += 1
        request.correlation_id = self._numbers
        timer = call_later_ms(timeout_ms, self._expire, self._numbers, self._heard, timeout_ms)
        self._pending[self._numbers] = future, timer
        self._queue.append((request, answered))
        self._filled.set()
        return future

    def follow(self, before: Asking[Q, A]) -> None:
        """
        Write nothing before ``before``, which is retired, has ended: what was asked first is carried out first. Where
        that breaks, this one does too, as if it were the same.
        """
        self.before = before

    def retire(self) -> None:
        """Take no more requests; the call ends when those that there are have been answered."""
        self.retired = True
        self._filled.set()

    async def _write(self) -> None:
        queue, filled = self._queue, self._filled
        try:
            with CallTo(self._where):
                if self.before is not None:
                    await self._wait_for(self.before)
                while True:
                    while queue:
                        request, answered = queue.popleft()
                        await self._call.write(request)
                        if not answered:
                            self._take(request.correlation_id, None)
                        del request
                    if self.retired and not self._pending:
                        late = NetworkFailed(f"{self._where} did not end the stream")
                        self._ending = call_later_ms(ENDING_MS, self.end, late)
                        await self._call.done_writing()
                        return
                    filled.clear()
                    await filled.wait()
        except HeadraceError:
            return  # the reader learns why

    async def _wait_for(self, before: Asking[Q, A]) -> None:
        await before._over.wait()
        self.before = None
        if before._lost:
            error = NetworkFailed(f"{before.failure}; what was asked behind that was not sent")
            self.end(error)
            raise error

    async def _read(self) -> None:
        end = library().aio.EOF
        try:
            with CallTo(self._where):
                while (answer := await self._call.read()) is not end:
                    self._heard += 1
                    self._take(answer.correlation_id, answer)
            self.end(NetworkFailed(f"{self._where} ended the stream; the outcome is unknown"))
        except HeadraceError as error:
            if self._is_final(error):
                self.end(error)
                return
            code = error.code if error.retriable else None
            self.end(NetworkFailed(f"{self._where}: {error}", code=code))

    def _take(self, number: int, answer: Any) -> None:
        future, timer = self._pending.pop(number, (None, None))
        if future is None or timer is None:
            return  # nobody waits any more
        timer.cancel()
        if not future.done():
            future.set_result(answer)
        if self.retired:
            self._filled.set()

    def _expire(self, number: int, heard: int, timeout_ms: float) -> None:
        """Who answers others meanwhile only needs long for this one; who is silent is entrusted with nothing more."""
        future, _ = self._pending.pop(number)
        if not future.done():
            future.set_exception(RequestTimedOut(f"{self._where} did not answer within {timeout_ms:g} ms"))
        if self.retired:
            self._filled.set()
        if self._strict or heard == self._heard:
            self.end(NetworkFailed(f"{self._where} did not answer within {timeout_ms:g} ms; the outcome is unknown"))

    def end(self, error: HeadraceError) -> None:
        """Fail what waits; idempotent."""
        if self.failure is not None:
            return
        self.failure = error
        self._lost = bool(self._pending)
        self._over.set()
        if self._ending is not None:
            self._ending.cancel()
        for future, timer in self._pending.values():
            timer.cancel()
            if not future.done():
                future.set_exception(copy(error))
                future.exception()  # whoever still waits sees it; nobody is warned about the others
        self._pending.clear()
        self._queue.clear()
        self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


class AskingStream(Generic[Q, A]):
    """A stream to one process over any number of calls, one at a time; ``open_call`` opens them."""

    def __init__(self, open_call: Callable[[], Asking[Q, A]]) -> None:
        self._open_call = open_call
        self._live: Asking[Q, A] | None = None
        self._closed = False

    def ask(self, request: Q, timeout_ms: float, *, answered: bool = True) -> asyncio.Future[A]:
        """
        Queue ``request``, whose number is set here, and return its answer to come. What that says of the request as a
        whole is the caller's. One that is not ``answered`` is done with None when it was written.

        The future raises:
            NetworkFailed, RequestTimedOut: the outcome is unknown.
            Overloaded: too many wait for answers; it was not sent.
            HeadraceError: what the call ended with, where that is final.
        """
        live = self._live
        if live is None or live.failure is not None or live.retired:
            try:
                if self._closed:
                    raise NetworkFailed("the stream is closed")
                opened = self._open_call()
                if live is not None and live.failure is None:
                    opened.follow(live)
                live = self._live = opened
            except HeadraceError as error:
                future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
                future.set_exception(error)
                return future
        return live.ask(request, timeout_ms, answered=answered)

    def renew(self) -> None:
        """
        Have the next request open another call, with nothing lost and in the same order: what is under way is answered
        on the one there is, and what comes meanwhile is written behind that.
        """
        if self._live is not None:
            self._live.retire()

    def end(self, error: HeadraceError) -> None:
        """Break the call there is, so that what is under way fails with ``error``; the next request opens another."""
        call = self._live
        while call is not None:
            before = call.before
            call.end(error)
            call = before

    def close(self) -> None:
        """End for good; what is under way fails with ``NetworkFailed``."""
        self._closed = True
        self.end(NetworkFailed("the client was closed before the answer came"))


class AskingStreams(Generic[Q, A]):
    """
    One stream to each address; one event loop. Whoever closes a connection says so before.

    Args:
        open_call: a new call of the operation to an address.
        who: the kind of node that is asked, for errors.
    """

    def __init__(self, open_call: Callable[[Endpoint], Any], who: str, tasks: Starter) -> None:
        self._open_call = open_call
        self._who = who
        self._tasks = tasks
        self._streams: dict[Endpoint, AskingStream[Q, A]] = {}

    async def ask(self, at: Endpoint, request: Q, timeout_ms: float) -> A:
        """The answer to ``request``; as ``AskingStream.ask``."""
        stream = self._streams.get(at)
        if stream is None:
            stream = self._streams[at] = AskingStream(lambda: self._open(at))
        return await stream.ask(request, timeout_ms)

    def _open(self, at: Endpoint) -> Asking[Q, A]:
        where = f"the {self._who} at {at}"
        with CallTo(where):
            return Asking(self._open_call(at), where, self._tasks)

    def drop(self, at: Endpoint) -> None:
        """The connection to ``at`` is being closed: what is under way fails, its outcome unknown."""
        stream = self._streams.pop(at, None)
        if stream is not None:
            stream.end(NetworkFailed(f"the connection to {at} was closed; the outcome is unknown"))

    def keep(self, known: Collection[Endpoint]) -> None:
        """``drop`` all other addresses."""
        for at in [at for at in self._streams if at not in known]:
            self.drop(at)


def raise_error(answer: Any) -> None:
    """Raises: HeadraceError: the one of an answer that says why its request failed as a whole."""
    if answer.HasField("error"):
        raise error_of(answer.error)
