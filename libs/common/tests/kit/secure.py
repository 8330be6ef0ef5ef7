"""A listener with TLS on this machine, whose certificates a test replaces."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from libs.common.tests.kit.authority import BROKER, Authority
from libs.common.tests.kit.clock import FakeClock

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import GRACE_MS, Security, open_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.peers import peer_of
from headrace_common.runtime.certificates import Leaf, Pair
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.service import GrpcService, ServerConfig, Servicer
from headrace_common.runtime.tls import Wanted
from headrace_common.runtime.tls_config import TlsFiles
from headrace_common.runtime.tls_server import ServerTls
from headrace_common.runtime.tls_watch import LiveBundle, TlsMetrics


def shown(authority: Authority, pair: Pair | None = None) -> Pem:
    """What a client has that trusts ``authority``, and shows ``pair``."""
    if pair is None:
        return Pem(authority.ca.certificate_pem)
    return Pem(authority.ca.certificate_pem, pair.certificate_pem, pair.key_pem)


@dataclass
class Secure:
    """
    A server that says back what it is told, by ``/t.T/echo`` and a stream ``/t.T/echoes``, and where from, by
    ``/t.T/peer``. Made by ``open``.
    """

    authority: Authority
    files: TlsFiles
    live: LiveBundle
    service: GrpcService
    told: list[bytes] = field(default_factory=list)
    """All requests that arrived."""

    @property
    def port(self) -> int:
        return self.service.port

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @staticmethod
    @asynccontextmanager
    async def open(
        authority: Authority,
        directory: Path,
        *,
        leaf: Leaf = BROKER,
        listen: Endpoint = Endpoint("127.0.0.1", 0),  # noqa: B008 - never changes
        client_certificates: bool = False,
        grace_ms: float = GRACE_MS,
        also_plain: bool = False,
        connections_max: int | None = None,
    ) -> AsyncIterator[Secure]:
        """Serve until the block ends. Time stands still for what checks certificates, at ``authority.now``."""
        files = authority.files(directory / "server", leaf)
        clock = FakeClock(int(authority.now.timestamp() * 1_000))
        told: list[bytes] = []
        config = ServerConfig(listen=listen, drain_ms_max=0, connections_max=connections_max)
        with open_metrics("t", 1, None) as metrics:
            live = LiveBundle("internal", files, Wanted(), clock, TlsMetrics(metrics.meter))
        tls = ServerTls(live, client_certificates, grace_ms, also_plain)
        async with GrpcService.open(config, [_echoes(told)], tls=tls) as service:
            yield Secure(authority, files, live, service, told)

    async def replace(self, authority: Authority | None = None, *also: Authority, leaf: Leaf = BROKER) -> None:
        """Have a new pair of ``authority`` (the same CA), with ``also`` trusted, and have it seen."""
        authority = authority or self.authority
        authority.write(self.files, authority.make(leaf, life=timedelta(days=2)), *also)
        await self.live.look()

    async def until_shown(self, host: str = "127.0.0.1") -> None:
        """Return once who connects gets the newest: gRPC's threads close the old one's socket when they come to it."""
        newest = ssl.PEM_cert_to_DER_cert(self.files.cert.read_text())
        in_a_row = 0
        while in_a_row < 5:
            in_a_row = in_a_row + 1 if await self._connect(host) == newest else 0

    async def _connect(self, host: str) -> bytes | None:
        """The certificate that is shown; None: that connection broke."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        try:
            _, writer = await asyncio.open_connection(host, self.port, ssl=context)
        except OSError:
            return None
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return shown

    def channel(self, pem: Pem | None, **more: Any) -> grpc.aio.Channel:
        """A connection of its own."""
        return open_channel(self.target, Security(pem=pem, **more), own_connection=True)

    async def ask(self, pem: Pem | None, request: bytes = b"word", what: str = "echo", **more: Any) -> bytes:
        """One call, on a connection of its own."""
        async with self.channel(pem, **more) as channel:
            call: Any = channel.unary_unary(f"/t.T/{what}")
            answer: bytes = await call(request, timeout=20)
            return answer


def _echoes(told: list[bytes]) -> Servicer:
    async def echo(request: bytes, context: Any) -> bytes:
        told.append(request)
        await asyncio.sleep(0)
        return request

    async def echoes(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def peer(_: bytes, context: Any) -> bytes:
        secure = b"ssl" in context.auth_context()["transport_security_type"]
        return f"{peer_of(context)} {'TLS' if secure else 'plain'}".encode()

    def add(_: object, server: Any) -> None:
        handlers: dict[str, Any] = {
            "peer": grpc.unary_unary_rpc_method_handler(peer),
            "echo": grpc.unary_unary_rpc_method_handler(echo),
            "echoes": grpc.stream_stream_rpc_method_handler(echoes),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", handlers)])

    return add, None
