"""
Answers requests that come over a gRPC stream: each by its number, as soon as its answer is there. See ``asking``.

A servicer's method returns ``answer_stream(...)``; the interceptor awaits it. While ``UNDER_WAY_MAX`` requests are
under way no more are read. One that fails is answered with its error, and the stream goes on; a bug ends the stream as
it would end a call. A stream that breaks cancels what is under way on it, as a call does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc.aio

from headrace_common.core.errors import HeadraceError
from headrace_common.rpc.status import detail_of
from headrace_common.runtime.tasks import TaskRunner

UNDER_WAY_MAX: Final = 1_000
"""Requests of one stream that are being answered; many may wait for something, and are not to keep the others out."""
_EOF: Final[Any] = grpc.aio.EOF

Context = grpc.aio.ServicerContext[Any, Any]


def nobody_else() -> None:
    """Everybody may ask."""


async def answer_stream(
    context: Context,
    draining: asyncio.Event,
    answer: Callable[[Any], Awaitable[Any]],
    response: Callable[..., Any],
    check: Callable[[], None] = nobody_else,
) -> None:
    """
    Serve one stream until its caller ends it, or ``draining`` is set and what is under way has been answered.

    Args:
        answer: what the request's ``ask`` is answered with; may raise ``HeadraceError``.
        response: the class of the stream's answers.
        check: called for each request; raises what ends the stream.
    """
    stream = _Answers(context, answer, response)
    async with TaskRunner() as own:
        reader = own.start(_read(stream, check, own), name="asked-read")
        drainer = own.start(_on_drain(draining, reader), name="asked-drain")
        reader.add_done_callback(lambda _: stream.changed.set())
        try:
            await stream.write_all(reader)
        finally:  # at once: gRPC may cancel this task again while the runner waits for the others
            reader.cancel()
            drainer.cancel()
    if not reader.cancelled() and (error := reader.result()) is not None:
        raise error


class _Answers:
    """What is under way on one stream, and what is to be written to it."""

    def __init__(self, context: Context, answer: Callable[[Any], Awaitable[Any]], response: Callable[..., Any]) -> None:
        self.context = context
        self.under_way = 0
        self.changed = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self.bug: BaseException | None = None
        self._answer = answer
        self._response = response
        self._ready: deque[Any] = deque()

    async def serve(self, request: Any) -> None:
        """Answer one request."""
        number = request.correlation_id
        try:
            self._ready.append(self._response(correlation_id=number, answer=await self._answer(request.ask)))
        except HeadraceError as error:
            self._ready.append(self._response(correlation_id=number, error=detail_of(error)))
        finally:
            self.under_way -= 1
            self.room.set()
            self.changed.set()

    def ended(self, task: asyncio.Task[None]) -> None:
        """A request's task is over; a bug in it is the interceptor's to report."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.bug = self.bug or error
            self.changed.set()

    async def write_all(self, reader: asyncio.Task[HeadraceError | None]) -> None:
        """Write answers until no more are to come."""
        write, ready, changed = self.context.write, self._ready, self.changed
        while True:
            while ready:
                await write(ready.popleft())
            if self.bug is not None:
                raise self.bug
            if reader.done() and not self.under_way:
                return
            changed.clear()
            await changed.wait()


async def _read(stream: _Answers, check: Callable[[], None], own: TaskRunner) -> HeadraceError | None:
    """Begin to answer each request, read when there is room for it; what the caller did wrong."""
    try:
        while True:
            if stream.under_way >= UNDER_WAY_MAX:
                stream.room.clear()
                await stream.room.wait()
            request = await stream.context.read()
            if request is _EOF:
                return None
            check()
            stream.under_way += 1
            own.start(stream.serve(request), name="asked").add_done_callback(stream.ended)
    except grpc.aio.BaseError:
        return None  # the connection is gone
    except HeadraceError as error:
        return error


async def _on_drain(draining: asyncio.Event, reader: asyncio.Task[Any]) -> None:
    await draining.wait()
    reader.cancel()
