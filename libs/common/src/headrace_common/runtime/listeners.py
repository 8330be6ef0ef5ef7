"""
Decides where a service is served twice: to the cluster, and to clients who reach it by other addresses from outside.

Who asks on the external listener is told external addresses only, so each listener has servicers of its own. Brokers,
coordinators and admin processes open their servers through ``Listeners``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import grpc.aio

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.service import GrpcService, ServerConfig, Servicer


@dataclass(frozen=True)
class ExternalListener:
    """A second listener, for clients outside of the cluster's network."""

    external_listen: Endpoint | None = None
    """Address of the gRPC server for clients from outside; port 0 takes a free one. Without it there is none."""
    external_advertise: Endpoint | None = None
    """Host and port by which clients outside reach external_listen, through whatever forwards to it."""

    def __post_init__(self) -> None:
        if (self.external_listen is None) != (self.external_advertise is None):
            raise ValueError("external_listen and external_advertise are set together: where it listens, and its name")
        if self.external_advertise is not None and self.external_advertise.port == 0:
            raise ValueError("external_advertise takes the port that clients connect to, 1 to 65535, not 0")


class Listeners:
    """The gRPC servers of one process. Made by ``open``."""

    def __init__(self, servers: Sequence[GrpcService]) -> None:
        self._servers = servers
        self.endpoint = servers[0].endpoint
        """The address to register with the controller: that of the cluster's own listener."""

    @staticmethod
    @asynccontextmanager
    async def open(
        config: ServerConfig,
        external: ExternalListener,
        inside: Sequence[Servicer],
        outside: Sequence[Servicer],
        *,
        health_names: Sequence[str],
        interceptors: Sequence[grpc.aio.ServerInterceptor | None],
    ) -> AsyncIterator[Listeners]:
        """
        Serve until the block ends, then drain; health is NOT_SERVING until ``serving``.

        Args:
            inside: for the cluster and clients in its network.
            outside: for clients from outside, where there is such a listener.

        Raises:
            OSError: an address is taken or not of this machine.
        """
        ways = [(config, inside)]
        if external.external_listen is not None:
            ways.append((replace(config, listen=external.external_listen), outside))
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(
                    GrpcService.open(server, servicers, health_names, interceptors, serving=False)
                )
                for server, servicers in ways
            ]
            yield Listeners(opened)

    async def serving(self, *names: str) -> None:
        """The process and these services of it are healthy from now on."""
        for server in self._servers:
            for name in ("", *names):
                await server.set_serving(True, name)

    async def drain(self) -> None:
        """See ``GrpcService.drain``; all at the same time."""
        await asyncio.gather(*(server.drain() for server in self._servers))

    @property
    def ports(self) -> list[int]:
        """The real ports, the cluster's own first."""
        return [server.port for server in self._servers]
