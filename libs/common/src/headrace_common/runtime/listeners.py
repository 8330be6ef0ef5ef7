"""
Decides where a service is served: to clients in the cluster's network, to clients who reach it by other addresses from
outside, to clients with certificates of their own, and to the other nodes of the cluster, each by a server with limits
of its own.

Who asks at a listener is told the addresses of the same, so each has servicers of its own. Brokers, coordinators and
admin processes open their servers through ``Listeners``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import grpc.aio

from headrace_common.core.bounds import check, setting
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import Listener
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

    def over(self, config: ServerConfig) -> list[ServerConfig]:
        """The settings of its server; none where there is no such listener."""
        if self.external_listen is None:
            return []
        return [replace(config, listen=self.external_listen, calls_per_address_max=self.external_calls_per_address_max)]


@dataclass(frozen=True)
class MtlsListener:
    """A listener for clients that show certificates of a CA of their own; they are who those name."""

    mtls_listen: Endpoint | None = None
    """Address of the gRPC server for clients with certificates; port 0 takes a free one. Without it there is none."""
    mtls_client_ca: Path | None = None
    """File with the CAs of their certificates, one or more (PEM), looked at every 10 s; not the CA of the nodes. Who
    has no certificate of these is cut off, and so is everybody of one that is taken away."""

    def __post_init__(self) -> None:
        check(
            self,
            (
                (self.mtls_listen is None) == (self.mtls_client_ca is None),
                "mtls_listen and mtls_client_ca are set together: where it listens, and whose certificates it takes",
            ),
        )

    def check_beside(self, config: ServerConfig) -> tuple[bool, str]:
        """What must hold of both, for ``check``, and what is said where it does not."""
        return (
            config.tls.on or self.mtls_listen is None,
            "mtls_listen needs tls_cert: clients show certificates by TLS alone",
        )

    def over(self, config: ServerConfig) -> list[ServerConfig]:
        """The settings of its server; none where there is no such listener."""
        return [] if self.mtls_listen is None else [replace(config, listen=self.mtls_listen)]


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
NOBODY_OUTSIDE: Final = ExternalListener()
NO_CERTIFICATES: Final = MtlsListener()

ServicersOf: TypeAlias = Callable[[Listener], Sequence[Servicer]]
"""What is served at a listener: who asks there is told the addresses of the same."""


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

    def interceptors(self, listener: Listener) -> list[grpc.aio.ServerInterceptor]:
        """Of the server of a listener; the outermost first."""
        nodes = listener is Listener.INTERNAL
        inner = self.gate if nodes else self.gate.of_clients()
        if self.access is None:
            return [inner]
        if listener is Listener.MTLS:
            from headrace_common.runtime.client_certificates import ClientCertificates

            assert self.tls is not None, "checked with the settings"
            certificates = ClientCertificates(self.tls.trust_domain)
            return [AccessGate(self.access, self.table, takes_nodes=False, certificates=certificates), inner]
        takes_nodes = nodes or not self.gate.by_certificates
        return [AccessGate(self.access, self.table, takes_nodes=takes_nodes), inner]


UNGUARDED: Final = Guard(NodeGate(), None)
"""Everybody."""


class Listeners:
    """The gRPC servers of one process. Made by ``open``."""

    def __init__(self, servers: Sequence[tuple[Listener, GrpcService]], server_name: str) -> None:
        self._servers = [server for _, server in servers]
        at = {listener: server.endpoint for listener, server in servers}
        self.endpoint = replace(at[Listener.CLIENT], server_name=server_name)
        """The address to register with the controller, of clients in the cluster's network."""
        self.internal = at.get(Listener.INTERNAL)
        """The address to register for other nodes; None: they come to ``endpoint``."""
        mtls = at.get(Listener.MTLS)
        self.mtls = None if mtls is None else replace(mtls, server_name=server_name)
        """The address to register for clients with certificates."""

    @staticmethod
    @asynccontextmanager
    async def open(
        config: ServerConfig,
        servicers: ServicersOf,
        *,
        external: ExternalListener = NOBODY_OUTSIDE,
        mtls: MtlsListener = NO_CERTIFICATES,
        internal: InternalListener = NOBODY_BESIDE,
        health_names: Sequence[str],
        interceptors: Sequence[grpc.aio.ServerInterceptor | None],
        guard: Guard = UNGUARDED,
    ) -> AsyncIterator[Listeners]:
        """
        Serve until the block ends, then drain; health is NOT_SERVING until ``serving``.

        Args:
            servicers: asked once for each listener that there is; other nodes may come to that of clients too.
            guard: whom each of them lets in.

        Raises:
            OSError: an address is taken or not of this machine.
        """
        share = 1 + len(external.over(config)) + len(mtls.over(config))
        if share > 1:
            config = replace(config, connections_max=max(1, (config.connections_max or connections_max()) // share))
        listeners = [
            (Listener.CLIENT, [config]),
            (Listener.EXTERNAL, external.over(config)),
            (Listener.MTLS, mtls.over(config)),
            (Listener.INTERNAL, internal.over(config)),
        ]
        opened: list[tuple[Listener, GrpcService]] = []
        async with AsyncExitStack() as stack:
            for listener, servers in listeners:
                for server in servers:
                    service = GrpcService.open(
                        server,
                        servicers(listener),
                        health_names,
                        [*interceptors, *guard.interceptors(listener)],
                        serving=False,
                        tls=guard.tls and guard.tls.serving(listener),
                    )
                    opened.append((listener, await stack.enter_async_context(service)))
            yield Listeners(opened, guard.tls.host if guard.tls else "")

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
        """The real ports: of clients in the cluster's network, outside, with certificates, of other nodes."""
        return [server.port for server in self._servers]
