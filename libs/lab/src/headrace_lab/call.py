"""
One RPC between two nodes: its two streams of messages, its deadline, and how it ended.

A message is bytes on its way, so nobody shares one. A sender waits while ``WINDOW_BYTES`` of it are unread. What each
end sees is what gRPC for Python shows: the client learns one status; the server's handler is cancelled when its caller
has gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from headrace_lab.loop import LabLoop
from headrace_lab.network import Connection

EOF: Final[Any] = grpc.aio.EOF
WINDOW_BYTES: Final = 1 << 20

Metadata = tuple[tuple[str, str | bytes], ...]


class Status(NamedTuple):
    """How a call ended, for its client."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Metadata = ()


CANCELLED: Final = Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
LATE: Final = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Pipe:
    """One direction of a call, at its reading end."""

    __slots__ = ("_ended", "_items", "_loop", "_reader", "_unread", "_writer", "bytes_max")

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """Largest message that its reader takes."""
        self._loop = loop
        self._items: deque[bytes] = deque()
        self._ended = False
        self._unread = 0
        """Bytes that were sent and not read."""
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    async def room(self) -> None:
        """Wait, at the writing end, until another message may go out, or none is wanted any more."""
        while self._unread >= WINDOW_BYTES and not self._ended:
            self._writer = self._loop.create_future()
            await self._writer

    def sent(self, size: int) -> None:
        """So much is on its way here."""
        self._unread += size

    def put(self, raw: bytes) -> None:
        if not self._ended:
            self._items.append(raw)
            _wake(self._reader)

    def end(self, *, drop: bool = False) -> None:
        """There will be no more; with ``drop`` what arrived is forgotten."""
        self._ended = True
        if drop:
            self._items.clear()
        _wake(self._reader)
        _wake(self._writer)

    async def get(self) -> bytes | None:
        """The next message; None: the end."""
        while not self._items:
            if self._ended:
                return None
            self._reader = self._loop.create_future()
            await self._reader
        raw = self._items.popleft()
        self._unread -= len(raw)
        if self._unread < WINDOW_BYTES:
            _wake(self._writer)
        return raw


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Call:
    """Both ends of an RPC. ``connection`` None: nobody was there, and ``broken`` says so soon."""

    def __init__(
        self,
        loop: LabLoop,
        connection: Connection | None,
        method: str,
        metadata: Sequence[tuple[str, str | bytes]],
        timeout_s: float | None,
        bytes_max: tuple[int, int],
    ) -> None:
        self.loop, self.connection = loop, connection
        self.method, self.metadata = method, tuple(metadata)
        self.requests, self.responses = Pipe(loop, bytes_max[0]), Pipe(loop, bytes_max[1])
        self.status: Status | None = None
        """None: it is under way, as far as the client knows."""
        self.cancelled = False
        """By the client itself."""
        self.ended: asyncio.Future[Status] = loop.create_future()
        self.served = True
        """Whether the server's end may still do something."""
        self.handler: asyncio.Task[None] | None = None
        self._deadline = None if timeout_s is None else loop.call_later(timeout_s, self.cancel, LATE)
        if connection is not None:
            connection.calls[self] = None
            connection.to_server(self._begin)
            if timeout_s is not None:
                at = loop.time() + timeout_s
                connection.to_server(loop.call_at, at, self.abandon)

    # --- the client's end -----------------------------------------------------------------------------------

    def finish(self, status: Status, *, drop: bool = False) -> None:
        """The client learns how it ended, after what has arrived or, with ``drop``, at once."""
        if self.status is not None:
            return
        self.status = status
        if self.connection is not None:
            self.connection.calls.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        self.responses.end(drop=drop)
        self.requests.end()
        self.ended.set_result(status)

    def cancel(self, status: Status = CANCELLED) -> bool:
        """End it from here; whether it was under way."""
        if self.status is not None:
            return False
        self.cancelled = status is CANCELLED
        self.finish(status, drop=True)
        if self.connection is not None:
            self.connection.to_server(self.abandon)
        return True

    def broken(self, why: str) -> None:
        """The connection is gone."""
        self.finish(Status(grpc.StatusCode.UNAVAILABLE, why), drop=True)

    async def wait_for_connection(self) -> None:
        """Wait until it is known whether somebody is there; if not, it ends."""
        if self.connection is None:
            await asyncio.shield(self.ended)

    async def room(self) -> None:
        """Wait until another request may go out."""
        await self.requests.room()

    def send(self, raw: bytes) -> None:
        if self.connection is None:
            return
        self.requests.sent(len(raw))
        self.connection.to_server(self._take_request, raw)

    def send_end(self) -> None:
        if self.connection is not None:
            self.connection.to_server(self.requests_over)

    # --- the server's end -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        assert self.connection is not None, "somebody is there"
        self.handler = self.connection.server.serve(self)

    def _take_request(self, raw: bytes) -> None:
        if len(raw) > self.requests.bytes_max:
            text = f"SERVER: Received message larger than max ({len(raw)} vs. {self.requests.bytes_max})"
            self.respond_end(Status(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
            self._stop_handler()
        else:
            self.requests.put(raw)

    def requests_over(self) -> None:
        """The client has said that it sends no more."""
        self.requests.end()

    def respond(self, raw: bytes) -> None:
        assert self.connection is not None, "somebody asked"
        self.responses.sent(len(raw))
        self.connection.to_client(self._take_response, raw)

    def _take_response(self, raw: bytes) -> None:
        if len(raw) > self.responses.bytes_max:
            text = f"CLIENT: Received message larger than max ({len(raw)} vs. {self.responses.bytes_max})"
            self.cancel(Status(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
        else:
            self.responses.put(raw)

    def respond_end(self, status: Status) -> None:
        """The server is done with it; the first status counts."""
        if not self.served:
            return
        self.served = False
        assert self.connection is not None, "somebody asked"
        self.connection.to_client(self.finish, status)

    def abandon(self) -> None:
        """The caller has gone, or its deadline has passed: nobody reads what is still written."""
        if self.served:
            self.served = False
            self._stop_handler()

    def _stop_handler(self) -> None:
        self.requests.end(drop=True)
        self.responses.end()
        if self.handler is not None:
            self.handler.cancel()
