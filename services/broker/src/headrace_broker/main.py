"""
Composition root of the broker: opens the logs, serves, joins the cluster, leaves it, closes in reverse order.

It leaves when a signal or ``prestop`` asks for it, and ends with the signal. A clean end flushes everything and leaves
the broker epoch as a token in the data directory, as the very last step. A store that failed, or any other crash of a
background task, ends the process with exit code 1 and without a token.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from typing import Final

import grpc

from headrace_broker.adapters.controller_cluster import ControllerCluster
from headrace_broker.adapters.data_directory import DataDirectory, open_when_free
from headrace_broker.adapters.grpc_leaders import GrpcLeaders
from headrace_broker.adapters.grpc_transactions import GrpcTransactions
from headrace_broker.adapters.otel_measures import publish
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.adapters.time_file import TimeFile
from headrace_broker.adapters.topic_notes_file import TopicNotesFile
from headrace_broker.config import BrokerConfig
from headrace_broker.core.readiness import Readiness
from headrace_broker.core.recovered import RecoveryReport
from headrace_broker.engine.broker import Broker, EngineSettings, Who
from headrace_broker.engine.departure import Departure
from headrace_broker.engine.readiness import until_caught_up
from headrace_broker.engine.storage_queue import Flush, QueueLimits
from headrace_broker.ports import Directory, Disk, Storage
from headrace_broker.rpc.access_table import ACCESS
from headrace_broker.rpc.leaving import serve_leave_requests
from headrace_broker.rpc.servicer import BrokerServicer
from headrace_broker.rpc.tickets import TicketsServicer
from headrace_common.adapters.audit_delivery import write_audit
from headrace_common.adapters.auth_service import AuthServicer
from headrace_common.adapters.certificates_service import CertificatesServicer
from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.adapters.controller_heartbeat import HeartbeatThread, MakeHeartbeats
from headrace_common.core.features import TRANSACTION_STREAMS
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Listener, Node, NodeKey, Role
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.entropy import new_incarnation
from headrace_common.runtime.health import HealthPort
from headrace_common.runtime.listeners import Guard, Listeners
from headrace_common.runtime.logs import configure_logs
from headrace_common.runtime.memory import keep_freed_memory
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.node_tokens import open_tokens
from headrace_common.runtime.private_files import narrow
from headrace_common.runtime.rpc_metrics import RpcMetrics
from headrace_common.runtime.service import Ready, Servicer, announce_ready, run_until
from headrace_common.runtime.service_tls import ServiceTls, open_tls
from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_common.runtime.threads import run_in_thread
from headrace_common.runtime.tracing import open_tracing
from headrace_proto.v1.auth_pb2_grpc import add_AuthServicer_to_server
from headrace_proto.v1.broker_pb2_grpc import add_BrokerServicer_to_server
from headrace_proto.v1.certificates_pb2_grpc import add_CertificatesServicer_to_server
from headrace_proto.v1.tickets_pb2_grpc import add_TicketsServicer_to_server

VERSION = "0.1.0"
SERVICE = "headrace.v1.Broker"

SWITCH_S: Final = 0.001
"""How long the event loop waits at most for the interpreter while another thread computes, as the cleaner's does for
seconds; Python's own 5 ms would be added to every answer meanwhile. Switching so often costs nothing to speak of."""

LEFT_MS_MAX: Final = 30_000.0
"""How long a broker that ``prestop`` had leave waits for the signal to end, before it ends by itself."""

OpenStorage = Callable[[BrokerConfig, Clock, asyncio.Event], AbstractAsyncContextManager[Storage | None]]
"""Gives what a broker keeps; None when the event was set before it could be had."""

_log = logging.getLogger(__name__)


async def serve(config: BrokerConfig, stop: asyncio.Event) -> None:
    """Run one broker, which has this process for itself, until ``stop`` is set."""
    configure_logs("broker", config.node_id, config.server.log_level)
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_S)
    await run(config, stop, in_data_directory)


async def run(
    config: BrokerConfig, stop: asyncio.Event, open_storage: OpenStorage, beats: MakeHeartbeats = HeartbeatThread
) -> None:
    """Run one broker on what ``open_storage`` opens, until ``stop`` is set."""
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        departure = Departure(
            NodeId(config.node_id), clock, wait_ms_max=config.restart_wait_ms_max, leave_ms_max=config.shutdown_ms_max
        )
        health = await stack.enter_async_context(HealthPort.open(config.server))
        await stack.enter_async_context(serve_leave_requests(config.leave_socket, departure.ask))
        metrics = stack.enter_context(open_metrics("broker", config.node_id, config.server.metrics_listen))
        metrics_at = config.server.reachable(metrics.endpoint)
        tracing = stack.enter_context(open_tracing("broker", config.node_id, config.otlp_endpoint))
        storage = await stack.enter_async_context(open_storage(config, clock, stop))
        if storage is None:
            return
        tasks = await stack.enter_async_context(TaskRunner())
        key = NodeKey(Role.BROKER, NodeId(config.node_id))
        tls = await stack.enter_async_context(
            open_tls(config.server.tls, key, clock, metrics.meter, tasks, config.mtls.mtls_client_ca)
        )
        client = await stack.enter_async_context(_connect(config, clock, tasks, tls, beats))
        client.access.stale_ms_max = config.access_stale_ms_max
        client.access.calls_per_principal_max = config.server.calls_per_principal_max
        await stack.enter_async_context(write_audit(client, config.server.audit, tasks, metrics.meter))
        identity = storage.directory.identity
        who = Who(NodeId(config.node_id), new_incarnation(), "" if identity is None else identity.cluster_id)
        transactions = GrpcTransactions(tasks, client.security, lambda: client.image.has(TRANSACTION_STREAMS))
        stack.push_async_callback(transactions.close)
        broker = Broker(
            who,
            _engine_settings(config),
            disk=storage.disk,
            cluster=ControllerCluster(client),
            leaders=GrpcLeaders(client.security),
            transactions=transactions,
            clock=clock,
            tasks=tasks,
        )
        broker.upkeep.remember(storage.times)
        publish(metrics, broker.measures, broker.gauges(), broker.partition_gauges, broker.topic_gauges)
        draining = asyncio.Event()
        interceptors = [tracing, RpcMetrics(metrics.meter)]
        server = await stack.enter_async_context(_listen(config, broker, client, clock, draining, interceptors, tls))
        node = replace(_as_node(config, who, server.endpoint, metrics_at), internal=server.internal, mtls=server.mtls)
        ready = Ready(f"broker-{config.node_id}", server.endpoint, metrics=metrics_at, health=health.endpoint)
        member = _Member(broker, client, storage.directory, server, ready)
        joining = tasks.start(member.join(node, config), name="join")
        readiness = Readiness(who.broker_id, who.incarnation, config.ready_ms_max)
        tasks.start(_report_ready(readiness, client, health, clock), name="health")
        try:
            await _depart(departure, client, health, joining, stop, tasks)
            if not stop.is_set():
                await first_of(run_until(stop, tasks), clock.sleep_ms(LEFT_MS_MAX))
            draining.set()
            broker.drain()
            await server.drain()
            await broker.checkpoint()
            # A broker that never joined has changed nothing: the token it found stays true.
            storage.clean_epoch = storage.directory.token if client.registered is None else client.registered.epoch
        finally:
            draining.set()
            broker.drain()


def _connect(
    config: BrokerConfig, clock: Clock, tasks: TaskRunner, tls: ServiceTls | None, beats: MakeHeartbeats
) -> AbstractAsyncContextManager[ControllerClient]:
    return ControllerClient.open(
        config.controllers,
        role=Role.BROKER,
        id=config.node_id,
        clock=clock,
        tasks=tasks,
        tokens=open_tokens(config.server, clock),
        tls=tls,
        beats=beats,
    )


def _listen(
    config: BrokerConfig,
    broker: Broker,
    client: ControllerClient,
    clock: Clock,
    draining: asyncio.Event,
    interceptors: Sequence[grpc.aio.ServerInterceptor | None],
    tls: ServiceTls | None,
) -> AbstractAsyncContextManager[Listeners]:
    def servicers(listener: Listener) -> list[Servicer]:
        outside = listener is Listener.EXTERNAL
        per_address = config.external.external_calls_per_address_max if outside else config.server.calls_per_address_max
        servicer = BrokerServicer(
            broker,
            draining,
            client.gate,
            request_bytes_max=config.server.request_bytes_max,
            listener=listener,
            apart=per_address > 0,
        )
        return [(add_BrokerServicer_to_server, servicer), *beside]

    beside: list[Servicer] = [
        (add_AuthServicer_to_server, AuthServicer(client, SystemClock())),
        (add_TicketsServicer_to_server, TicketsServicer(NodeId(config.node_id), client.access, clock)),
        (add_CertificatesServicer_to_server, CertificatesServicer(client.key, tls)),
    ]
    return Listeners.open(
        config.server,
        servicers,
        external=config.external,
        mtls=config.mtls,
        internal=config.internal,
        health_names=[SERVICE],
        interceptors=interceptors,
        guard=Guard(client.gate, tls, client.access, ACCESS),
    )


async def _keep_private(directory: DataDirectory) -> None:
    narrowed = str(await run_in_thread(narrow, directory.path))  # with many files it takes a second, once
    if narrowed:
        _log.warning("the data directory was not private: %s", narrowed, extra={"path": str(directory.path)})


async def _depart(
    departure: Departure,
    client: ControllerClient,
    health: HealthPort,
    joining: asyncio.Task[None],
    stop: asyncio.Event,
    tasks: TaskRunner,
) -> None:
    """Wait until somebody wants the broker to go, then have it leave the cluster; it still serves."""
    await first_of(run_until(stop, tasks), departure.wait_asked())
    # A signal while prestop waits means that the pod's grace is over. A second signal ends the process at once.
    hurry = asyncio.Event() if stop.is_set() else stop
    if joining.done():
        await first_of(run_until(asyncio.Event(), tasks), departure.wait_allowed(client, hurry))
    joining.cancel()
    await health.leaving()
    await departure.leave(client)


async def _report_ready(readiness: Readiness, client: ControllerClient, health: HealthPort, clock: Clock) -> None:
    """Ready means: another broker may be restarted now. It stays so while the controllers are away."""
    await until_caught_up(readiness, client.images(), clock)
    await health.reached()


@asynccontextmanager
async def in_data_directory(config: BrokerConfig, clock: Clock, stop: asyncio.Event) -> AsyncIterator[Storage | None]:
    """The data directory of ``config``, once no other process uses it; None when ``stop`` was set meanwhile."""
    directory = await open_when_free(config.data_dir, config.lock_wait_ms_max, clock, stop)
    if directory is None:
        yield None
        return
    with closing(directory):
        await _keep_private(directory)
        directory.check(None, config.node_id)
        logs = await run_in_thread(RocksDbLogs.open, directory)  # takes long after a crash; probes go on
        _tell(logs.report)
        storage = Storage(directory, Disk(logs, TopicNotesFile(directory.path)), TimeFile(directory.path))
        try:
            yield storage
        finally:
            await logs.close(storage.clean_epoch)


def _tell(report: RecoveryReport) -> None:
    _log.info(
        "logs are open",
        extra={
            "clean": report.clean,
            "seconds": round(report.seconds, 3),
            "logs": report.logs,
            "bytes_checked": report.bytes_checked,
        },
    )
    for cut in report.cuts:
        _log.warning("cut while opening: %s", cut)
    for damage in report.damaged:
        _log.error("a log lost acknowledged records: %s", damage.reason, extra={"partition": str(damage.partition)})


class _Member:
    """Joins the cluster once storage is open; runs in the background so that a broker can be stopped meanwhile."""

    def __init__(
        self,
        broker: Broker,
        client: ControllerClient,
        directory: Directory,
        server: Listeners,
        ready: Ready,
    ) -> None:
        self._broker = broker
        self._client = client
        self._directory = directory
        self._server = server
        self._ready = ready

    async def join(self, node: Node, config: BrokerConfig) -> None:
        """Register, start fenced, begin to work, and say so."""
        identity = self._directory.identity
        registered = await self._client.register(
            Registration(
                node,
                cluster_id=None if identity is None or self._directory.emptied else identity.cluster_id,
                previous_epoch=self._directory.token,
                damaged=lambda: self._broker.damaged,
                claims=lambda: self._broker.highest,
            ),
            want_fenced=True,
        )
        self._directory.bind(registered.cluster_id, config.node_id)
        self._directory.forget_gone()
        self._broker.who = replace(self._broker.who, cluster_id=registered.cluster_id)
        self._broker.start()
        self._client.want_unfenced()
        await self._client.wait_until_unfenced()
        self._broker.producer_ids.prefetch()
        await self._server.serving(SERVICE)
        announce_ready(self._ready, config.server.ready_file)


def _engine_settings(config: BrokerConfig) -> EngineSettings:
    return EngineSettings(
        flush=Flush(config.flush),
        tail_cache_bytes=config.tail_cache_bytes,
        limits=QueueLimits(
            bytes_max=config.queue_bytes, refuse_bytes=4 * config.queue_bytes, stall_ms_max=config.stall_ms_max
        ),
        disk_reserve_bytes=config.disk_reserve_bytes,
    )


def _as_node(config: BrokerConfig, who: Who, grpc: Endpoint, metrics: Endpoint | None) -> Node:
    return Node(
        key=NodeKey(Role.BROKER, who.broker_id),
        grpc=grpc,
        incarnation=who.incarnation,
        epoch=0,
        metrics=metrics,
        rack=config.rack,
        version=VERSION,
        external=config.external.external_advertise,
        feature_level_max=config.server.feature_level_max,
    )
