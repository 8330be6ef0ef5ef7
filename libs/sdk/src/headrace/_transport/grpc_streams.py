"""
One ``Produce`` or ``Fetch`` stream to a broker, or ``End`` stream to a coordinator, over ``grpc.aio``, for ``grpc``:
requests out, answers by their numbers.

A stream lives over any number of calls. What breaks a call fails all that waits on it; the next request opens another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from grpc import aio

from headrace._runtime import Tasks
from headrace_common.core.errors import HeadraceError, NetworkFailed, Overloaded, RequestTimedOut
from headrace_common.rpc.calls import CallTo
from headrace_common.runtime.clock import call_later_ms
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import transaction_pb2

Q = TypeVar("Q", pb.ProduceRequest, pb.FetchRequest, transaction_pb2.EndRequest)
A = TypeVar("A", pb.ProduceResponse, pb.FetchResponse, transaction_pb2.EndResponse)

PENDING_MAX: Final = 10_000
"""Requests that may wait for answers on one stream."""


class StreamCall(Generic[Q, A]):
    """One gRPC call of a stream, from its opening to its end; a broken one is never used again."""

    def __init__(self, call: aio.StreamStreamCall[Q, A], where: str, tasks: Tasks) -> None:
        self.failure: HeadraceError | None = None
        self._call: aio.StreamStreamCall[Q, A] = call
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, tuple[asyncio.Future[Any], asyncio.TimerHandle]] = {}
        self._queue: deque[tuple[Q, bool]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._tasks = (tasks.start(self._write(), f"write {where}"), tasks.start(self._read(), f"read {where}"))

    def send(self, request: Q, answered: bool, timeout_ms: float) -> asyncio.Future[Any]:
        """Queue ``request``; its future ends within ``timeout_ms``."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if len(self._pending) >= PENDING_MAX:
            future.set_exception(Overloaded(f"{PENDING_MAX} requests wait for {self._where}; wait for their answers"))
            return future
        number = request.correlation_id
        timer = call_later_ms(timeout_ms, self._expired, number, timeout_ms)
        self._pending[number] = (future, timer)
        self._queue.append((request, answered))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        return future

    async def _write(self) -> None:
        queue = self._queue
        try:
            with CallTo(self._where):
                while True:
                    while queue:
                        request, answered = queue.popleft()
                        await self._call.write(request)
                        if not answered:
                            self._resolve(request.correlation_id, None)
                    self._wake = self._loop.create_future()
                    await self._wake
        except HeadraceError:
            return  # the reader learns why

    async def _read(self) -> None:
        try:
            with CallTo(self._where):
                while True:
                    answer: Any = await self._call.read()
                    if answer is aio.EOF:
                        self.end(NetworkFailed(f"{self._where} ended the stream; the outcome is unknown"))
                        return
                    self._resolve(answer.correlation_id, answer)
        except HeadraceError as cause:
            self.end(NetworkFailed(f"{self._where}: {cause}", code=cause.code if cause.retriable else None))

    def _resolve(self, number: int, answer: Any) -> None:
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        future, timer = pending
        timer.cancel()
        if not future.done():
            future.set_result(answer)

    def _expired(self, number: int, timeout_ms: float) -> None:
        future, _ = self._pending.pop(number)
        if not future.done():
            future.set_exception(RequestTimedOut(f"{self._where} did not answer within {timeout_ms:g} ms"))
        self.end(NetworkFailed(f"{self._where} did not answer another request; the outcome of this one is unknown"))

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


class Stream(Generic[Q, A]):
    """A stream to one node over any number of calls, one at a time."""

    def __init__(self, open_call: Callable[[], StreamCall[Q, A]]) -> None:
        self._open_call: Callable[[], StreamCall[Q, A]] = open_call
        self._live: StreamCall[Q, A] | None = None
        self._numbers = 0
        self._closed = False

    def _send(self, request: Q, answered: bool, timeout_ms: float) -> Awaitable[Any]:
        live = self._live
        if live is None or live.failure is not None:
            try:
                if self._closed:
                    raise NetworkFailed("the stream is closed")
                live = self._live = self._open_call()
            except HeadraceError as error:
                future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                future.set_exception(error)
                return future
        self._numbers += 1
        request.correlation_id = self._numbers
        return live.send(request, answered, timeout_ms)

    async def close(self) -> None:
        """End the stream; requests in flight fail with ``NetworkFailed``."""
        self._closed = True
        self.end(NetworkFailed("the client was closed before the answer came"))

    def end(self, error: HeadraceError) -> None:
        """Break the call there is; the next request opens another."""
        if self._live is not None:
            self._live.end(error)
