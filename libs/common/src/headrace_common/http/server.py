"""
The HTTP server: uvicorn inside the service's own event loop, on a socket that is bound before it starts.

Connections are bounded in sum and per address, and each has an end to every wait (``protocol``), so that nobody
keeps others out with requests that never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from headrace_common.core.connections import Connections
from headrace_common.core.ids import Endpoint
from headrace_common.http.protocol import Endable, HttpBounds, bounded
from headrace_common.runtime.held_ports import shared
from headrace_common.runtime.service import CannotListen, warn_unless_loopback
from headrace_common.runtime.service_tls import ServiceTls
from headrace_common.runtime.tasks import TaskRunner, first_of

if TYPE_CHECKING:  # only who has certificates has what reads them
    from headrace_common.runtime.tls import Bundle

_DESCRIPTORS_SHARE: Final = 4
"""Of the descriptors of the process one in so many is for HTTP; the rest is for gRPC, files and the cluster."""
_IDLE_SECONDS: Final = 30

_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Leaves signals to the process, and says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serves.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Made by ``open``."""

    def __init__(self, endpoint: Endpoint, *, secure: bool = False) -> None:
        self.endpoint = endpoint
        """Where it listens, with the real port."""
        self.scheme = "https" if secure else "http"
        """By which others are to ask it."""

    @staticmethod
    @asynccontextmanager
    async def open(
        app: Any,
        listen: Endpoint,
        tasks: TaskRunner,
        bounds: HttpBounds,
        *,
        drain_ms_max: int,
        option: str = "--http-listen",
        tls: ServiceTls | None = None,
    ) -> AsyncIterator[HttpServer]:
        """
        Serve ``app`` until the block ends, then finish what is under way within ``drain_ms_max``.

        Args:
            option: what sets ``listen``, for messages.
            tls: its certificates; None: in plain text.

        Raises:
            OSError: the address is taken or not of this machine.
        """
        bound = _bound(listen, option)
        total = min(bounds.connections_max, _descriptors_max() // _DESCRIPTORS_SHARE)
        connections: Connections[Endable] = Connections(total, bounds.connections_per_address_max)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=bounded(connections, bounds),
            server_header=False,
            proxy_headers=False,  # whoever connects could say to call from anywhere, and rules may name addresses
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=max(1, drain_ms_max // 1_000),
        )
        endpoint = Endpoint(listen.host, bound.getsockname()[1])
        with _speaking(config, endpoint, tls, tasks):
            server = _Server(config)
            serving = tasks.start(server.serve(sockets=[bound]), name="http")
            try:
                await first_of(server.serves.wait(), asyncio.wait([serving]))
                yield HttpServer(endpoint, secure=tls is not None and tls.dials)
            finally:
                server.should_exit = True
                await asyncio.wait([serving])
                bound.close()


@contextlib.contextmanager
def _speaking(config: uvicorn.Config, endpoint: Endpoint, tls: ServiceTls | None, tasks: TaskRunner) -> Iterator[None]:
    """Have the server of ``config`` speak TLS, if there are certificates; new ones are shown to who connects next."""
    if tls is None:
        warn_unless_loopback("HTTP", endpoint)
        yield
        return
    from headrace_common.http.handshakes import secured
    from headrace_common.runtime.tls_contexts import make_server_context, renew_context

    context = make_server_context(tls.live.bundle)
    uvicorns: Any = config  # it only calls what it names a class
    uvicorns.http = secured(uvicorns.http, context, tasks, also_plain=tls.also_plain)

    async def take(bundle: Bundle) -> None:
        renew_context(context, bundle)

    if tls.also_plain:
        warn_unless_loopback("HTTP, which answers TLS and plain text,", endpoint)
    _log.info("HTTP listens with TLS", extra={"listen": str(endpoint)})
    with tls.live.takes(take, tls.live.bundle):
        yield


def _bound(listen: Endpoint, option: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with shared(listen) as is_shared:
            if is_shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((listen.host, listen.port))
            if is_shared:
                bound.listen()  # later it may not any more
    except OSError as error:
        bound.close()
        raise CannotListen(f"cannot listen on {listen}: {error.strerror}; choose another with {option}") from error
    return bound


def _descriptors_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
