"""
Decides where a service is served: to clients in the cluster's network, to clients who reach it by other addresses from
outside, and to the other nodes of the cluster, each by a server with limits of its own.

Who asks on the external listener is told external addresses only, so each listener has servicers of its own. Brokers,
coordinators and admin processes open their servers through ``Listeners``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import grpc.aio

from headrace_common.core.bounds import check, setting
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.access_rules import AccessTable
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.rpc.options import MESSAGE_BYTES_MAX
from headrace_common.runtime.access_gate import Access, AccessGate
from headrace_common.runtime.descriptors import connections_max
from headrace_common.runtime.service import GrpcService, ServerConfig, Servicer
from headrace_common.runtime.service_tls import ServiceTls

CALLS_OF_NODES: Final = 10_000
"""At least so many calls of other nodes are taken at one time, whatever the number for clients is."""

CALLS_OF_A_NODE: Final = 1_000
"""Of one node on one connection: a coordinator that starts reads all of its shards at the same time."""


@dataclass(frozen=True)
class ExternalListener:
    """A second listener, for clients outside of the cluster's network."""

    external_listen: Endpoint | None = None
    """Address of the gRPC server for clients from outside; port 0 takes a free one. Without it there is none."""
    external_advertise: Endpoint | None = None
    """Host and port by which clients outside reach external_listen, through whatever forwards to it."""
    external_calls_per_address_max: int = setting(0, low=0)
    """As calls_per_address_max, for external_listen. 0: what forwards to it may hide the addresses of clients."""

    def __post_init__(self) -> None:
        check(
            self,
            (
                (self.external_listen is None) == (self.external_advertise is None),
                "external_listen and external_advertise are set together: where it listens, and its name",
            ),
            (
                self.external_advertise is None or self.external_advertise.port != 0,
                "external_advertise takes the port that clients connect to, 1 to 65535, not 0",
            ),
        )


@dataclass(frozen=True)
class InternalListener:
    """A listener for the other nodes of the cluster, whose limits clients do not use up."""

    internal_listen: Endpoint | None = None
    """Address of the gRPC server for other nodes; port 0 takes a free one. Without it they come to listen, as nodes of
    a version before internal listeners always do."""

    def check_beside(self, config: ServerConfig) -> tuple[bool, str]:
        """What must hold of both, for ``check``, and what is said where it does not."""
        return (
            not config.tls.on or self.internal_listen is not None,
            "tls_cert needs internal_listen: nodes show certificates there, and clients, who have none, come to listen",
        )

    def over(self, config: ServerConfig) -> list[ServerConfig]:
        """The settings of its server; none where there is no such listener."""
        if self.internal_listen is None:
            return []
        return [
            replace(
                config,
                listen=self.internal_listen,
                concurrent_rpcs_max=max(CALLS_OF_NODES, config.concurrent_rpcs_max),
                calls_per_address_max=0,
                calls_per_connection_max=CALLS_OF_A_NODE,
                request_bytes_max=MESSAGE_BYTES_MAX,
                connections_max=None,
                connection_idle_ms_max=0,
            )
        ]


NOBODY_BESIDE: Final = InternalListener()
"""Other nodes come where clients come."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Whom the servers of a process let in."""

    gate: NodeGate
    """What nodes alone may ask; the innermost interceptor."""
    tls: ServiceTls | None
    """All of them speak it, and the one for nodes asks for certificates. None: in plain text."""
    access: Access | None = None
    """Who calls, and what they may; None: everybody everything."""
    table: AccessTable = field(default_factory=lambda: MappingProxyType({}))
    """What each operation asks for; it is read where there is ``access``."""

    def interceptors(self, *, nodes: bool) -> list[grpc.aio.ServerInterceptor]:
        """Of a server for clients, or for nodes; the outermost first."""
        inner = self.gate if nodes else self.gate.of_clients()
        if self.access is None:
            return [inner]
        takes_nodes = nodes or not self.gate.by_certificates
        return [AccessGate(self.access, self.table, takes_nodes=takes_nodes), inner]


UNGUARDED: Final = Guard(NodeGate(), None)
"""Everybody."""


class Listeners:
    """The gRPC servers of one process. Made by ``open``."""

    def __init__(self, servers: Sequence[GrpcService], internal: Endpoint | None, server_name: str) -> None:
        self._servers = servers
        self.endpoint = replace(servers[0].endpoint, server_name=server_name)
        """The address to register with the controller, of clients in the cluster's network."""
        self.internal = internal
        """The address to register for other nodes; None: they come to ``endpoint``."""

    @staticmethod
    @asynccontextmanager
    async def open(
        config: ServerConfig,
        external: ExternalListener,
        inside: Sequence[Servicer],
        outside: Sequence[Servicer],
        *,
        internal: InternalListener = NOBODY_BESIDE,
        health_names: Sequence[str],
        interceptors: Sequence[grpc.aio.ServerInterceptor | None],
        guard: Guard = UNGUARDED,
    ) -> AsyncIterator[Listeners]:
        """
        Serve until the block ends, then drain; health is NOT_SERVING until ``serving``.

        Args:
            inside: for clients in the cluster's network, and for other nodes wherever they come.
            outside: for clients from outside, where there is such a listener.
            guard: whom each of them lets in.

        Raises:
            OSError: an address is taken or not of this machine.
        """
        between = [(server, inside) for server in internal.over(config)]
        ways = [(config, inside)]
        if external.external_listen is not None:
            share = max(1, (config.connections_max or connections_max()) // 2)
            config = replace(config, connections_max=share)
            beyond = replace(
                config,
                listen=external.external_listen,
                calls_per_address_max=external.external_calls_per_address_max,
            )
            ways = [(config, inside), (beyond, outside)]
        opened: list[GrpcService] = []
        async with AsyncExitStack() as stack:
            for nodes, listeners in ((False, ways), (True, between)):
                inner = guard.interceptors(nodes=nodes)
                tls = guard.tls and guard.tls.serving(nodes=nodes)
                opened += [
                    await stack.enter_async_context(
                        GrpcService.open(
                            server, servicers, health_names, [*interceptors, *inner], serving=False, tls=tls
                        )
                    )
                    for server, servicers in listeners
                ]
            yield Listeners(opened, opened[-1].endpoint if between else None, guard.tls.host if guard.tls else "")

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
        """The real ports: of clients in the cluster's network, of those outside, of other nodes."""
        return [server.port for server in self._servers]
