"""
One connection of HTTPS before it is one of HTTP: counted from its first moment on, and with an end to its handshake.

A server of asyncio that is given a context tells nobody of a connection before the handshake is over, and waits for
that a minute; whoever says nothing would count for nothing. Here the bounds of HTTP hold for it too.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from headrace_common.core.connections import Refused
from headrace_common.http.protocol import BoundedProtocol, Endable
from headrace_common.runtime.clock import call_later_ms
from headrace_common.runtime.plain_or_tls import TLS_HANDSHAKE
from headrace_common.runtime.tasks import TaskRunner


class Handshaking(asyncio.Protocol, Endable):
    """Becomes ``http`` once both sides have agreed; until then it is one of its server's open connections itself."""

    def __init__(
        self, http: BoundedProtocol, context: ssl.SSLContext, tasks: TaskRunner, *, also_plain: bool = False
    ) -> None:
        """``also_plain``: who begins with something else than TLS is answered in plain text."""
        self._http = http
        self._context = context
        self._tasks = tasks
        self._undecided = also_plain
        self._deadline: asyncio.TimerHandle | None = None
        self._transport: Any = None
        self._early = bytearray()
        """What came before TLS had the connection, and later what came with the last of the handshake."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        outcome = self._http.open_connections.admit(self, str(peer[0]) if peer else "")
        if isinstance(outcome, Refused):
            self._transport.abort()  # nothing can be said in plain text
            return
        if outcome.instead_of is not None:
            outcome.instead_of.give_way()
        if self._undecided:
            self._deadline = call_later_ms(self._http.bounds.head_ms_max, self.give_way)
        else:
            self._begin()

    def _begin(self) -> None:
        self._tasks.start(self._shake_hands(), name="TLS handshake")
        # In the turn after the one in which that begins: TLS has the connection then, and nothing more was read.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._pass_on)

    @override
    def data_received(self, data: bytes) -> None:
        self._early += data
        if self._undecided:
            self._undecided = False
            self._in_time()
            if data[0] == TLS_HANDSHAKE:
                self._begin()
            else:
                self._pass_to_http(self._transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._http.open_connections.closed(self)

    @override
    def give_way(self) -> None:
        self._transport.abort()

    def _pass_on(self) -> None:
        """uvloop begins to read before any task runs, so that a client's first bytes may have come here."""
        first, self._early = self._early, bytearray()
        while first and not self._transport.is_closing():
            buffer = self._transport.get_protocol().get_buffer(len(first))
            count = min(len(first), len(buffer))
            buffer[:count] = first[:count]
            self._transport.get_protocol().buffer_updated(count)
            del first[:count]

    async def _shake_hands(self) -> None:
        if self._transport.is_closing():
            return
        seconds_max = self._http.bounds.head_ms_max / 1_000
        try:
            secure: Any = await asyncio.get_running_loop().start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=seconds_max
            )
        except OSError:  # of TLS and of the network alike
            self._transport.abort()
            self._http.open_connections.closed(self)
            return
        if secure is None or secure.is_closing():
            self._http.open_connections.closed(self)
            return
        self._pass_to_http(secure)

    def _pass_to_http(self, transport: Any) -> None:
        self._http.open_connections.closed(self)
        transport.set_protocol(self._http)
        self._http.connection_made(transport)
        if self._early:
            self._http.data_received(bytes(self._early))

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def secured(
    protocol: type[BoundedProtocol], context: ssl.SSLContext, tasks: TaskRunner, *, also_plain: bool = False
) -> Callable[..., asyncio.Protocol]:
    """
    The protocol of the connections of one server with TLS; ``tasks`` lives as long as the server.

    Args:
        also_plain: plain text is answered too.
    """

    def make(**given: Any) -> asyncio.Protocol:
        return Handshaking(protocol(**given), context, tasks, also_plain=also_plain)

    return make
