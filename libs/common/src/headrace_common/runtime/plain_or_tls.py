"""
Decides which server of a port a connection belongs to: the one that speaks TLS, or the one in plain text.

While a cluster is moved to TLS without a stop its ports answer both. gRPC has no port of that kind, so it listens twice
on this machine alone, and each connection is passed on by its first byte: a TLS handshake begins with one that no plain
text of ours has (RFC 8446, 5.1: content type 22). What is passed on costs a copy; nobody else pays for it. gRPC takes
all callers for this machine then: ``peer_of`` has where they come from.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

from typing_extensions import override

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.peers import PEERS, text_of
from headrace_common.runtime.clock import call_later_ms
from headrace_common.runtime.tasks import TaskRunner

TLS_HANDSHAKE: Final = 22
"""The first byte of who speaks TLS."""
FIRST_BYTE_MS_MAX: Final = 10_000.0
"""How long somebody may be connected without a word."""
_BUFFER_BYTES_MAX: Final = 256 << 10
"""What is read from one side and not yet taken by the other."""


class Stoppable(Protocol):
    """A server, however many there are in it."""

    async def stop(self, grace: float | None) -> None:
        """See ``RunningServer.stop``."""
        ...


class PlainOrTls:
    """Listens for a server that has a port for each of the two. Made by ``open``."""

    def __init__(
        self, plain: Endpoint, tls: Endpoint, server: Stoppable, connections_max: int, tasks: TaskRunner
    ) -> None:
        self._server = server
        self._at = {False: (plain.host, plain.port), True: (tls.host, tls.port)}
        self._connections_max = connections_max
        self._tasks = tasks
        self._listening: list[asyncio.Server] = []
        self._open: set[_Side] = set()
        self.port = 0
        """The real one."""

    @staticmethod
    @asynccontextmanager
    async def open(
        sockets: list[socket.socket],
        plain: Endpoint,
        tls: Endpoint,
        server: Stoppable,
        *,
        connections_max: int,
        tasks: TaskRunner,
    ) -> AsyncIterator[PlainOrTls]:
        """
        Pass on who connects to ``sockets``, which are closed with the block.

        Args:
            plain: an address of this machine, where ``server`` speaks plain text; ``tls``: where it speaks that.
            connections_max: at one time; more are closed at once.
            tasks: lives for as long.
        """
        front = PlainOrTls(plain, tls, server, connections_max, tasks)
        loop = asyncio.get_running_loop()
        front.port = sockets[0].getsockname()[1]
        try:
            for listening in sockets:
                front._listening.append(await loop.create_server(front._accepted, sock=listening))
            yield front
        finally:
            front._leave()
            for side in list(front._open):
                side.abort()

    async def stop(self, grace: float | None) -> None:
        """Take nobody new, and stop the server behind it."""
        self._leave()
        await self._server.stop(grace)

    def _leave(self) -> None:
        for server in self._listening:
            server.close()

    def _accepted(self) -> _Side:
        return _Side(self._begin, self._open, self._connections_max)

    def _begin(self, caller: _Side, first: int) -> None:
        self._tasks.start(self._pass_on(caller, self._at[first == TLS_HANDSHAKE]), name="pass a connection on")

    async def _pass_on(self, caller: _Side, to: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        inner = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            inner.setblocking(False)
            await loop.sock_connect(inner, to)
            key = text_of(*inner.getsockname()[:2])
            server = _Side()
            PEERS[key] = text_of(*caller.address)  # before the server gets a byte of it
            server.on_end = lambda: PEERS.pop(key, None)
            await loop.create_connection(lambda: server, sock=inner)
        except OSError:
            inner.close()
            caller.abort()
            return
        caller.join(server)


class _Side(asyncio.Protocol):
    """One of the two connections of somebody: the caller's, or the one to the server."""

    def __init__(
        self,
        begin: Callable[[_Side, int], None] | None = None,
        opened: set[_Side] | None = None,
        connections_max: int = 0,
    ) -> None:
        """``begin``: of a caller's side, called with the first byte; ``opened``: all of those."""
        self._begin = begin
        self._opened: set[_Side] = set() if opened is None else opened
        self._connections_max = connections_max
        self._transport: Any = None  # uvloop's transports are no subclass of asyncio's
        self._other: _Side | None = None
        self._early = bytearray()
        self._ended = False
        self._deadline: asyncio.TimerHandle | None = None
        self.address = ("", 0)
        self.on_end: Callable[[], object] = lambda: None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_BUFFER_BYTES_MAX)
        if self._begin is None:
            return
        if len(self._opened) >= self._connections_max:
            self._transport.abort()
            return
        self._opened.add(self)
        peer = transport.get_extra_info("peername")
        if peer:
            self.address = (str(peer[0]), int(peer[1]))
        self._deadline = call_later_ms(FIRST_BYTE_MS_MAX, self.abort)

    @override
    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.write(data)
            return
        self._early += data
        if self._deadline is not None and self._begin is not None:
            self._in_time()
            self._pause(True)
            self._begin(self, data[0])

    @override
    def eof_received(self) -> bool:
        return False  # neither HTTP/2 nor TLS goes on one way alone

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._in_time()
        self._opened.discard(self)
        self.on_end()
        if self._other is not None:
            self._other.close()

    @override
    def pause_writing(self) -> None:
        if self._other is not None:
            self._other._pause(True)

    @override
    def resume_writing(self) -> None:
        if self._other is not None:
            self._other._pause(False)

    def join(self, server: _Side) -> None:
        """From now on each gets what the other reads."""
        if self._ended:
            server.close()
            return
        self._other, server._other = server, self
        early, self._early = bytes(self._early), bytearray()
        server.write(early)
        if server._early:
            self.write(bytes(server._early))
        if server._ended:
            self.close()
        else:
            self._pause(False)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """When all is sent that was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._other is not None:
            self._other.close()

    def _pause(self, paused: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        with suppress(RuntimeError):  # it was so already
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
