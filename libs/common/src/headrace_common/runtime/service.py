"""
Decides how a service process lives: serve, say that it is ready, and leave in order.

Order of leaving: health says NOT_SERVING, the server takes no new calls, calls under way get ``drain_ms_max``, then
everything closes in reverse order of opening. A second signal ends the process at once. Called by each service's
``main`` and ``__main__``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import grpc.aio
import orjson
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no stubs

from headrace_common.core.bounds import LOG_LEVELS, check, setting
from headrace_common.core.errors import HeadraceError
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import Endpoint, is_loopback
from headrace_common.rpc.interceptor import ErrorInterceptor
from headrace_common.rpc.library import library
from headrace_common.rpc.options import CALLS_PER_CONNECTION_MAX, MESSAGE_BYTES_MAX, ServerLimits, server_options
from headrace_common.runtime.admission import Admission
from headrace_common.runtime.audit_settings import AuditConfig
from headrace_common.runtime.descriptors import connections_max, raise_descriptor_limit
from headrace_common.runtime.held_ports import shared
from headrace_common.runtime.port_claims import listen_alone, prove_port
from headrace_common.runtime.running_server import RunningServer
from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_common.runtime.tls_config import TlsConfig

if TYPE_CHECKING:  # only who has certificates has what reads them
    from headrace_common.runtime.plain_or_tls import Stoppable
    from headrace_common.runtime.tls_server import ServerTls

Servicer = tuple[Callable[[Any, grpc.aio.Server], None], Any]

_WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})  # compared with, never bound to
_FORCED_EXIT: Final = 130
_LOOPBACK: Final = "127.0.0.1"
_DESCRIPTORS_OF_ONE: Final = 3
"""Of a connection that is passed on within the process: the caller's, and both ends of the inner one."""

SOCKET_PATH_BYTES_MAX: Final = 107
"""Of a unix socket, on Linux."""

ENVELOPE_BYTES: Final = 1 << 20
"""Room around what a request carries: names and numbers of partitions beside batches of ``request_bytes_max``."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerConfig:
    """Where a process listens and how it leaves."""

    listen: Endpoint = Endpoint("127.0.0.1", 0)
    """Address of the gRPC server; port 0 takes a free one. Only this machine reaches 127.0.0.1."""
    advertise_host: str | None = None
    """Host that others use to reach this process; without it the listen host (or this machine's name for 0.0.0.0)."""
    metrics_listen: Endpoint | None = None
    """Address of the Prometheus endpoint; port 0 takes a free one. Without it metrics are off."""
    health_listen: Endpoint | None = None
    """Address of the gRPC health port, for probes: services live and ready. Without it there is none."""
    drain_ms_max: int = setting(10_000, low=0, high=600_000)
    """How long calls under way may take when the process stops, in ms."""
    concurrent_rpcs_max: int = setting(10_000, low=1)
    """Calls at one time, over all connections; more are refused with OVERLOADED."""
    calls_per_address_max: int = setting(1_000, low=0)
    """Calls at one time of one client address (of IPv6 its /64), streams among them; more are refused with OVERLOADED.
    0 does not tell addresses apart, as it must be behind a proxy that hides them."""
    calls_per_principal_max: int = setting(1_000, low=0)
    """Calls at one time of one principal, streams among them, wherever they come from; more are refused with
    OVERLOADED. Nodes, and who has shown no credential, are not counted. 0: there is no bound."""
    calls_per_connection_max: int = setting(CALLS_PER_CONNECTION_MAX, low=1)
    """Calls at one time on one connection, streams among them; a client that asks for more waits on its side."""
    request_bytes_max: int = setting(4 << 20, low=64 << 10, high=MESSAGE_BYTES_MAX)
    """Largest request, in bytes."""
    connections_max: int | None = setting(None, low=1)
    """Connections of clients at one time; more are closed at once. Without it a quarter of the descriptors that the
    process may have."""
    connection_idle_ms_max: int = setting(300_000, low=0)
    """A client's connection without a call for so long is closed, in ms; it connects again by itself. 0: never."""
    ready_file: Path | None = None
    """File to write, as JSON with name, addresses and pid, once the process serves."""
    log_level: str = setting("info", choices=LOG_LEVELS)
    """From which level on it logs."""
    node_token_file: Path | None = None
    """File with the cluster's node token (or two, a line each, while it is changed): shown to other nodes, and demanded
    of them once all know that there is one. Without it nothing is shown or demanded; nor with TLS, where certificates
    say who is a node."""
    node_token_demanded: bool = True
    """Whether what only nodes may ask is refused without the token. false: it is shown only, while a cluster that runs
    without one gets it node by node."""
    node_token_loopback_only: bool = False
    """Whether the token is shown to nodes on this machine only."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """Its certificates."""
    audit: AuditConfig = field(default_factory=AuditConfig)
    """Its audit."""
    feature_level_max: int = setting(HIGHEST, low=0, high=HIGHEST)
    """Highest feature level of the cluster that this process says it knows; a lower one holds the cluster's level back
    until it is taken away."""

    def __post_init__(self) -> None:
        check(self)

    def limits(self) -> ServerLimits:
        """What its listener takes."""
        return ServerLimits(
            min(MESSAGE_BYTES_MAX, self.request_bytes_max + ENVELOPE_BYTES),
            self.connections_max or connections_max(),
            self.calls_per_connection_max,
            self.connection_idle_ms_max,
        )

    def choose_endpoint(self, port: int, *, listen_host: str | None = None) -> Endpoint:
        """The address to register for a listener on ``port``."""
        host = self.advertise_host or listen_host or self.listen.host
        return Endpoint(socket.gethostname() if host in _WILDCARDS else host, port)

    def reachable(self, listening: Endpoint | None) -> Endpoint | None:
        """Where others reach what listens there; None for None."""
        return None if listening is None else self.choose_endpoint(listening.port, listen_host=listening.host)


class GrpcService:
    """A running gRPC server with health. Made by ``open``."""

    def __init__(
        self,
        server: Stoppable,
        health_service: health.aio.HealthServicer,
        config: ServerConfig,
        port: int,
    ) -> None:
        self._server = server
        self._health = health_service
        self._config = config
        self.port = port
        """The real port."""
        self.endpoint = config.choose_endpoint(port)
        """The address to register with the controller."""
        self.draining = asyncio.Event()
        """Set when the drain begins; a handler of a long stream ends its stream then, after what is under way."""

    @staticmethod
    @asynccontextmanager
    async def open(
        config: ServerConfig,
        servicers: Sequence[Servicer],
        health_names: Sequence[str] = (),
        interceptors: Sequence[grpc.aio.ServerInterceptor | None] = (),
        *,
        serving: bool = True,
        tls: ServerTls | None = None,
    ) -> AsyncIterator[GrpcService]:
        """
        Serve until the block ends, then drain.

        Args:
            servicers: pairs of the generated ``add_XServicer_to_server`` and the servicer.
            health_names: full service names to report beside "" (the process as a whole).
            interceptors: inside the error boundary, outermost first; None entries are left out.
            serving: False starts as NOT_SERVING; ``set_serving`` changes it.
            tls: None: in plain text.

        Raises:
            OSError: the address is taken or not of this machine.
        """
        admission = Admission(config.calls_per_address_max)
        reporter = health.aio.HealthServicer()

        def make(shared_port: bool) -> grpc.aio.Server:
            server: grpc.aio.Server = library().aio.server(
                interceptors=[admission, ErrorInterceptor(), *(i for i in interceptors if i is not None)],
                options=server_options(config.limits(), shared_port=shared_port),
                maximum_concurrent_rpcs=config.concurrent_rpcs_max,
            )
            health_pb2_grpc.add_HealthServicer_to_server(reporter, server)
            for add, servicer in servicers:
                add(servicer, server)
            return server

        for name in health_names:
            await reporter.set(name, status_of(serving))
        await reporter.set("", status_of(serving))
        async with listening(make, config.listen, tls, config.connections_max) as (server, port):
            service = GrpcService(server, reporter, config, port)
            try:
                yield service
            finally:
                await service.drain()

    async def set_serving(self, serving: bool, name: str = "") -> None:
        """What the health service says of ``name``."""
        await self._health.set(name, status_of(serving))

    async def drain(self) -> None:
        """Stop as the module's text says; a second call returns when the first is done."""
        self.draining.set()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(self._config.drain_ms_max / 1_000)


def status_of(serving: bool) -> int:
    """What the health service says of something that serves, or does not."""
    status: int = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    return status


class CannotListen(OSError):
    """An address or a path cannot be listened on; the text says what to do about it."""

    @classmethod
    def at(cls, listen: Endpoint) -> Self:
        """An address that is taken or not of this machine."""
        return cls(f"cannot listen on {listen}: is the port taken, or the address of another machine?")


@asynccontextmanager
async def listening(
    make: Callable[[bool], grpc.aio.Server], listen: Endpoint, tls: ServerTls | None, connections: int | None = None
) -> AsyncIterator[tuple[Stoppable, int]]:
    """
    A server listens there, in plain text, by TLS, or both; the server and the real port.

    Args:
        make: makes one; whether it shares the port.
        connections: as ``connections_max``, of a port that answers both; servers have their own bound.
    """
    if tls is None:
        with _sharing(listen) as is_shared:
            plain = make(is_shared)
            port = bind(plain, listen)
            await plain.start()
        warn_unless_loopback("gRPC", Endpoint(listen.host, port))
        yield RunningServer(plain), port
        return
    from headrace_common.runtime.tls_server import TlsServer

    async with TaskRunner() as tasks, contextlib.AsyncExitStack() as stack:
        with contextlib.ExitStack() as proven:
            inside = _inside(proven) if tls.also_plain else None
            at = Endpoint(listen.host, proven.enter_context(_prove(listen))) if inside is None else _inside(proven)

            async def begin(credentials: grpc.ServerCredentials) -> RunningServer:
                with _sharing(at, first=False):
                    server = make(True)
                    bind(server, at, credentials)
                    if inside is not None:
                        bind(server, inside)
                    await server.start()
                return RunningServer(server)

            secure = await TlsServer.open(tls, begin, tasks)
        with tls.live.takes(secure.renew, secure.bundle):
            if inside is None:
                shown = {"listen": str(at), "client_certificates": tls.client_certificates}
                _log.info("gRPC listens with TLS", extra=shown)
                yield secure, at.port
                return
            from headrace_common.runtime.plain_or_tls import PlainOrTls

            most = (connections or connections_max()) // _DESCRIPTORS_OF_ONE
            front = await stack.enter_async_context(
                PlainOrTls.open(_listen(listen), inside, at, secure, connections_max=most, tasks=tasks)
            )
            warn_unless_loopback("gRPC, which answers TLS and plain text,", Endpoint(listen.host, front.port))
            yield front, front.port


def _listen(listen: Endpoint) -> list[socket.socket]:
    """See ``listen_alone``. Raises: CannotListen: it is not to be had."""
    try:
        return listen_alone(listen, _WILDCARDS)
    except OSError as error:
        raise CannotListen.at(listen) from error


def _inside(proven: contextlib.ExitStack) -> Endpoint:
    """A free port of this machine alone, in ``proven``."""
    return Endpoint(_LOOPBACK, proven.enter_context(_prove(Endpoint(_LOOPBACK, 0))))


@contextlib.contextmanager
def _sharing(listen: Endpoint, *, first: bool = True) -> Iterator[bool]:
    """See ``held_ports.shared``. Raises: CannotListen: it is not to be had."""
    with contextlib.ExitStack() as stack:
        try:
            is_shared = stack.enter_context(shared(listen, first=first))
        except OSError as error:
            raise CannotListen.at(listen) from error
        yield is_shared


@contextlib.contextmanager
def _prove(listen: Endpoint) -> Iterator[int]:
    """See ``prove_port``. Raises: CannotListen: it is not to be had."""
    with contextlib.ExitStack() as stack:
        try:
            port = stack.enter_context(prove_port(listen, _WILDCARDS))
        except OSError as error:
            raise CannotListen.at(listen) from error
        yield port


def bind(server: grpc.aio.Server, listen: Endpoint, credentials: grpc.ServerCredentials | None = None) -> int:
    """
    Have ``server`` listen there, by TLS if there are ``credentials``; the real port.

    Raises:
        CannotListen: the address is taken or not of this machine.
    """
    try:
        if credentials is None:
            port = server.add_insecure_port(str(listen))
        else:
            port = server.add_secure_port(str(listen), credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise CannotListen.at(listen)
    return port


def bind_socket(server: grpc.aio.Server, path: Path) -> None:
    """
    Have ``server`` listen on a unix socket that its own user alone can connect to; one of before is replaced.

    Raises:
        CannotListen: there can be none, for want of a directory or because the path is too long.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise CannotListen(f"cannot listen on {path}: there is a file that is no socket; give another path")
    try:
        listening = server.add_insecure_port(f"unix:{path}") != 0
    except RuntimeError:
        listening = False
    if not listening:
        raise CannotListen(
            f"cannot listen on {path}: its directory must be there and writable, and the path no longer than "
            f"{SOCKET_PATH_BYTES_MAX} bytes"
        )
    path.chmod(0o600)


def warn_unless_loopback(what: str, endpoint: Endpoint) -> None:
    """Say in the log who can reach an interface in plain text; whom it lets in is the cluster's mode to say."""
    if is_loopback(str(endpoint)) or endpoint.host.endswith(".localhost"):
        _log.info("%s listens on loopback only; other machines cannot reach it", what, extra={"listen": str(endpoint)})
        return
    _log.warning(
        "%s listens in plain text on an address that other machines may reach: who sees the traffic reads records and "
        "credentials; give it certificates, or an address of this machine",
        what,
        extra={"listen": str(endpoint)},
    )


@dataclass(frozen=True, slots=True)
class Ready:
    """What a process tells whoever started it."""

    name: str
    """For example ``broker-1``."""
    grpc: Endpoint | None = None
    http: Endpoint | None = None
    metrics: Endpoint | None = None
    health: Endpoint | None = None


def announce_ready(ready: Ready, path: Path | None) -> None:
    """
    Write the ready file, whole or not at all, and the log line "ready". Called once everything serves.

    The file is JSON: ``{"name", "grpc", "http", "metrics", "health", "pid"}``, addresses as ``host:port`` or null.
    """
    addresses = {
        key: None if endpoint is None else str(endpoint)
        for key, endpoint in (
            ("grpc", ready.grpc),
            ("http", ready.http),
            ("metrics", ready.metrics),
            ("health", ready.health),
        )
    }
    if path is not None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_bytes(orjson.dumps({"name": ready.name, **addresses, "pid": os.getpid()}) + b"\n")
        os.replace(partial, path)
    _log.info("ready", extra={"name_": ready.name, **addresses, "pid": os.getpid()})


def install_signal_handlers(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT set ``stop``; a second one ends the process at once."""
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if stop.is_set():
            _log.warning("second signal: leaving at once", extra={"signal": name})
            os._exit(_FORCED_EXIT)
        _log.info("stopping", extra={"signal": name})
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


async def run_until(stop: asyncio.Event, tasks: TaskRunner | None = None) -> None:
    """
    Wait until ``stop`` is set or a background task crashed.

    Raises:
        BaseException: what the crashed task raised; the process then ends with exit code 1.
    """
    if tasks is None:
        await stop.wait()
        return
    await first_of(stop.wait(), tasks.failed.wait())
    if tasks.failure is not None:
        raise tasks.failure


def run_process(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """
    Run ``serve(stop)`` in a new event loop (uvloop where it is installed) with signal handlers; the exit code.

    0: it was told to stop and did. 1: it could not go on, or something crashed; the log has it.
    """
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_with_signals(serve))
        except (CannotListen, HeadraceError) as error:  # the world's doing, and its text says what: no traceback
            _log.critical("the process ends: %s", error)
            return 1
        except Exception:  # noqa: BLE001 - the outermost boundary: a crash is logged as JSON like everything else
            _log.critical("the process ends with an error", exc_info=True)
            return 1
    return 0


async def _with_signals(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    install_signal_handlers(stop)
    await serve(stop)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
