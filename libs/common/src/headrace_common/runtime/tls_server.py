"""
Decides how a gRPC server gets new certificates: another server opens on the same port, and the one of before drains.

gRPC has a server whose certificates can be changed (``dynamic_ssl_server_credentials``), but asks for them in each
handshake and frees what another thread still uses: strangers who connect at the same time end the process. Two servers
on one port have no such moment. New connections go to the new one; calls that are under way at the old one go on.
A connection that is just being made when the old one stops to listen may break: nobody got a request on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc

from headrace_common.rpc.channels import GRACE_MS
from headrace_common.rpc.credentials import of_server
from headrace_common.rpc.library import library
from headrace_common.runtime.clock import give_way
from headrace_common.runtime.running_server import RunningServer
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls import Bundle
from headrace_common.runtime.tls_watch import LiveBundle

DRAINING_MAX: Final = 64
"""Servers that drain at one time; more than looks at the files in ``GRACE_MS``. Beyond, the oldest is cut."""

Begin = Callable[[grpc.ServerCredentials], Awaitable[RunningServer]]
"""Makes a server, and starts it on the port."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How a listener speaks TLS."""

    live: LiveBundle
    """What it shows, and whom it trusts."""
    client_certificates: bool = False
    """Who has none of a CA that it trusts is cut off."""
    grace_ms: float = GRACE_MS
    """How long calls may take at a server with old certificates."""
    also_plain: bool = False
    """The port answers plain text too."""


class TlsServer:
    """The server of a port, and those of before, whose calls go on. Made by ``open``."""

    def __init__(self, tls: ServerTls, begin: Begin, server: RunningServer, bundle: Bundle, tasks: TaskRunner) -> None:
        self._tls = tls
        self._begin = begin
        self._server = server
        self._tasks = tasks
        self._stopped = asyncio.Event()
        self._draining: dict[RunningServer, None] = {}
        self.bundle = bundle
        """What new connections are shown."""

    @staticmethod
    async def open(tls: ServerTls, begin: Begin, tasks: TaskRunner) -> TlsServer:
        """``tasks`` lives as long as the server. Raises: OSError: it cannot listen."""
        bundle = tls.live.bundle
        return TlsServer(tls, begin, await begin(_credentials(tls, bundle)), bundle, tasks)

    async def renew(self, bundle: Bundle) -> None:
        """
        Show ``bundle`` to who connects from now on. Who was trusted by a CA that is not trusted any more is cut off.

        Raises:
            OSError: no second server can listen; the first goes on.
        """
        if self._stopped.is_set():
            return
        server = await self._begin(_credentials(self._tls, bundle))
        if self._stopped.is_set():  # meanwhile
            await server.stop(None)
            return
        before, self._server = self._server, server
        grace_ms = 0.0 if bundle.distrusts(self.bundle) else self._tls.grace_ms
        self.bundle = bundle
        self._draining[before] = None
        before.leave()
        self._tasks.start(self._drain(before, grace_ms), name="drain server with old certificates")
        await give_way()  # it listens no more: who connects from now on comes to the new one
        if not grace_ms:  # those of before that one trusted the same
            await self._cut(len(self._draining))
        await self._cut(len(self._draining) - DRAINING_MAX)

    async def stop(self, grace: float | None) -> None:
        """As gRPC's servers do, all at the same time."""
        self._stopped.set()
        await asyncio.gather(*(server.stop(grace) for server in (self._server, *self._draining)))

    async def _drain(self, server: RunningServer, grace_ms: float) -> None:
        await server.stop(grace_ms / 1_000)
        self._draining.pop(server, None)

    async def _cut(self, count: int) -> None:
        """The oldest ``count`` of those that drain."""
        for server in list(self._draining)[: max(0, count)]:
            await self._drain(server, 0)


def _credentials(tls: ServerTls, bundle: Bundle) -> grpc.ServerCredentials:
    return of_server(library(), bundle.pem, client_certificates=tls.client_certificates)
