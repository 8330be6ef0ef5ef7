"""
Decides what a process says of its health to whoever runs it (a kubelet), on a port of its own and in plain text.

Three names of ``grpc.health.v1``: ``live`` is SERVING for as long as the event loop answers at all; nothing else is
asked, so that no other machine's trouble restarts this process. ``ready`` is a latch: reached once, it stays until the
process leaves. "" is ``ready``. Each service's ``main`` opens the port first and closes it last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc  # type: ignore[import-untyped]  # ships no stubs

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.interceptor import ErrorInterceptor
from headrace_common.rpc.options import ServerLimits, server_options
from headrace_common.runtime.descriptors import connections_max
from headrace_common.runtime.service import ServerConfig, bind, status_of

LIVE: Final = "live"
READY: Final = "ready"
_READY_NAMES: Final = (READY, "")
_RPCS_MAX: Final = 1_000
_MESSAGE_BYTES_MAX: Final = 64 << 10


class HealthPort:
    """What the process says of itself. Made by ``open``; one event loop."""

    def __init__(self, reporter: health.aio.HealthServicer | None, endpoint: Endpoint | None) -> None:
        self._reporter = reporter
        self._left = False
        self.endpoint = endpoint
        """Where it listens, for others; None: no port was asked for, and nobody hears what is said here."""
        self.is_ready = False
        """Whether ``ready`` was reached and the process is not leaving."""

    @staticmethod
    @asynccontextmanager
    async def open(config: ServerConfig) -> AsyncIterator[HealthPort]:
        """
        Answer until the block ends: ``live`` at once, ``ready`` from ``reached`` to ``leaving``.

        Raises:
            OSError: the address is taken or not of this machine.
        """
        if config.health_listen is None:
            yield HealthPort(None, None)
            return
        server = grpc.aio.server(
            interceptors=[ErrorInterceptor()],
            options=server_options(ServerLimits(_MESSAGE_BYTES_MAX, connections_max())),
            maximum_concurrent_rpcs=_RPCS_MAX,
        )
        reporter = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(reporter, server)
        port = bind(server, config.health_listen)
        await reporter.set(LIVE, status_of(True))
        for name in _READY_NAMES:
            await reporter.set(name, status_of(False))
        await server.start()
        try:
            yield HealthPort(reporter, config.choose_endpoint(port, listen_host=config.health_listen.host))
        finally:
            await server.stop(None)

    async def reached(self) -> None:
        """The process does its work now: ``ready``, for good. Without effect on one that is leaving."""
        if not self._left:
            await self._say(True)

    async def leaving(self) -> None:
        """The process ends: not ``ready`` any more, and never again."""
        self._left = True
        await self._say(False)

    async def _say(self, ready: bool) -> None:
        self.is_ready = ready
        if self._reporter is not None:
            for name in _READY_NAMES:
                await self._reporter.set(name, status_of(ready))
