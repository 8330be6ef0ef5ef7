"""
Composition root of the coordinator: serves, joins the cluster, keeps the shards it is given, and leaves.

It keeps nothing on disk. Leaving, it asks the controller to give its shards to others and serves until they have moved,
so that members find their new coordinator at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

from headrace_common.adapters.audit_delivery import write_audit
from headrace_common.adapters.certificates_service import CertificatesServicer
from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.adapters.controller_heartbeat import HeartbeatThread, MakeHeartbeats
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.entropy import new_incarnation
from headrace_common.runtime.health import HealthPort
from headrace_common.runtime.listeners import Guard, Listeners
from headrace_common.runtime.logs import configure_logs, logger
from headrace_common.runtime.memory import keep_freed_memory, take_turns_quickly
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.node_tokens import open_tokens
from headrace_common.runtime.rpc_metrics import RpcMetrics
from headrace_common.runtime.service import Ready, Servicer, announce_ready, run_until
from headrace_common.runtime.service_tls import open_tls
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tracing import open_tracing
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.adapters.broker_producer_ids import BrokerProducerIds
from headrace_coordinator.adapters.controller_cluster import ControllerCluster
from headrace_coordinator.adapters.grpc_enrolments import GrpcEnrolments
from headrace_coordinator.adapters.grpc_log_ends import GrpcLogEnds
from headrace_coordinator.adapters.grpc_markers import GrpcMarkers
from headrace_coordinator.adapters.grpc_shard_log import GrpcShardLogs
from headrace_coordinator.adapters.otel_measures import OtelMeasures, Reading
from headrace_coordinator.adapters.re2_patterns import Re2Patterns
from headrace_coordinator.config import CoordinatorConfig
from headrace_coordinator.core import room
from headrace_coordinator.engine.coordinator import Coordinator, Who
from headrace_coordinator.engine.host_ports import HostPorts, TransactionHostPorts
from headrace_coordinator.engine.lag import LagWatch
from headrace_coordinator.engine.marker_driver import MarkerDriver
from headrace_coordinator.engine.near import NearEnrolments, NearMarkers
from headrace_coordinator.engine.producer_ids import SpareProducerIds
from headrace_coordinator.engine.transaction_watch import TransactionWatch
from headrace_coordinator.engine.transactions import Transactions
from headrace_coordinator.rpc.access_table import ACCESS
from headrace_coordinator.rpc.servicer import CoordinatorServicer
from headrace_coordinator.rpc.transaction_servicer import TransactionServicer
from headrace_proto.v1.certificates_pb2_grpc import add_CertificatesServicer_to_server
from headrace_proto.v1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server
from headrace_proto.v1.transaction_pb2_grpc import add_TransactionCoordinatorServicer_to_server

VERSION: Final = "0.1.0"
SERVICES: Final = ("headrace.v1.Coordinator", "headrace.v1.TransactionCoordinator")
UNREGISTER_MS_MAX: Final = 1_500.0

_log = logger(__name__)


async def serve(config: CoordinatorConfig, stop: asyncio.Event) -> None:
    """Run one coordinator, which has this process for itself, until ``stop`` is set."""
    configure_logs("coordinator", config.node_id, config.server.log_level)
    keep_freed_memory()
    take_turns_quickly()
    await run(config, stop)


async def run(config: CoordinatorConfig, stop: asyncio.Event, beats: MakeHeartbeats = HeartbeatThread) -> None:
    """Run one coordinator until ``stop`` is set; resources close in reverse order of opening."""
    async with AsyncExitStack() as stack:
        health = await stack.enter_async_context(HealthPort.open(config.server))
        metrics = stack.enter_context(open_metrics("coordinator", config.node_id, config.server.metrics_listen))
        metrics_at = config.server.reachable(metrics.endpoint)
        tracing = stack.enter_context(open_tracing("coordinator", config.node_id, config.otlp_endpoint))
        tasks = await stack.enter_async_context(TaskRunner())
        clock = SystemClock()
        key = NodeKey(Role.COORDINATOR, NodeId(config.node_id))
        tls = await stack.enter_async_context(
            open_tls(config.server.tls, key, clock, metrics.meter, tasks, config.mtls.mtls_client_ca)
        )
        client = await stack.enter_async_context(
            ControllerClient.open(
                config.controllers,
                role=Role.COORDINATOR,
                id=config.node_id,
                clock=clock,
                tasks=tasks,
                tokens=open_tokens(config.server, clock),
                tls=tls,
                beats=beats,
            )
        )
        client.access.stale_ms_max = config.access_stale_ms_max
        client.access.calls_per_principal_max = config.server.calls_per_principal_max
        await stack.enter_async_context(write_audit(client, config.server.audit, tasks, metrics.meter))
        connections = BrokerConnections(tasks, client.security)
        stack.push_async_callback(connections.close)
        engines = _engines(config, client, connections, OtelMeasures(metrics), clock, tasks)
        draining = asyncio.Event()
        servicers: list[Servicer] = [  # their answers name no addresses, so all listeners have the same
            (add_CoordinatorServicer_to_server, CoordinatorServicer(engines.groups, draining, client.gate)),
            (
                add_TransactionCoordinatorServicer_to_server,
                TransactionServicer(engines.transactions, draining, client.gate),
            ),
            (add_CertificatesServicer_to_server, CertificatesServicer(key, tls)),
        ]
        server = await stack.enter_async_context(
            Listeners.open(
                config.server,
                lambda _: servicers,
                external=config.external,
                mtls=config.mtls,
                internal=config.internal,
                health_names=SERVICES,
                interceptors=[tracing, RpcMetrics(metrics.meter)],
                guard=Guard(client.gate, tls, client.access, ACCESS),
            )
        )
        node = replace(
            _node(config, engines.groups.who, server.endpoint, metrics_at), internal=server.internal, mtls=server.mtls
        )
        ready = Ready(f"coordinator-{config.node_id}", server.endpoint, metrics=metrics_at, health=health.endpoint)
        tasks.start(_join(engines, client, node, server, ready, config), name="join")
        tasks.start(_report_ready(client, health), name="health")
        try:
            await run_until(stop, tasks)
            await health.leaving()
            await _leave(client, config.shutdown_ms_max)
        finally:
            draining.set()
            engines.groups.stop()
            engines.transactions.stop()
        await server.drain()


@dataclass(frozen=True, slots=True)
class _Engines:
    groups: Coordinator
    transactions: Transactions


def _engines(
    config: CoordinatorConfig,
    client: ControllerClient,
    connections: BrokerConnections,
    measures: OtelMeasures,
    clock: Clock,
    tasks: TaskRunner,
) -> _Engines:
    """The engines with their loops, all but those that bring them shards."""
    cluster = ControllerCluster(client)
    logs = GrpcShardLogs(cluster, connections, clock)
    enrolments = NearEnrolments(GrpcEnrolments(cluster, connections), cluster)
    ports = HostPorts(
        logs=logs,
        cluster=cluster,
        patterns=Re2Patterns(),
        measures=measures,
        enrolments=enrolments,
        clock=clock,
        tasks=tasks,
        settings=config.groups,
        append_timeout_ms=config.coordinator_append_timeout_ms,
        room=room.groups(config.groups_max),
        access=client.access.control,
    )
    groups = Coordinator(Who(NodeId(config.node_id), new_incarnation()), ports)
    lag = LagWatch(
        groups,
        GrpcLogEnds(cluster, connections),
        clock,
        interval_ms=config.group_lag_interval_ms,
        partitions_max=config.group_lag_partitions_max,
    )
    spares = SpareProducerIds(BrokerProducerIds(cluster, connections), clock)
    markers = NearMarkers(GrpcMarkers(cluster, connections), cluster, groups.who.node_id, groups)
    driver = MarkerDriver(markers, cluster, cluster, clock, tasks)
    transactions = enrolments.own = Transactions(
        NodeId(config.node_id),
        TransactionHostPorts(
            ports, config.transactions, spares, driver, room.transactional_ids(config.transactional_ids_max)
        ),
    )
    watch = TransactionWatch(transactions, driver, clock, prepared_ms_max=config.transaction_prepared_max_ms)
    measures.publish({**_readings(lag), **_transaction_readings(watch)})
    tasks.start(logs.follow(), name="connections")
    tasks.start(lag.run(), name="lag")
    tasks.start(spares.fill(), name="producer-ids")
    tasks.start(driver.follow(), name="markers")
    tasks.start(watch.run(), name="transactions-watch")
    return _Engines(groups, transactions)


async def _join(
    engines: _Engines,
    client: ControllerClient,
    node: Node,
    server: Listeners,
    ready: Ready,
    config: CoordinatorConfig,
) -> None:
    """Register, then follow the image: shards come with it."""
    registered = await client.register(Registration(node))
    engines.groups.who = replace(engines.groups.who, cluster_id=registered.cluster_id)
    async for image in client.images():
        if image.revision >= registered.revision:
            break
    await server.serving(*SERVICES)
    announce_ready(ready, config.server.ready_file)
    await asyncio.gather(engines.groups.follow(), engines.transactions.follow())


async def _report_ready(client: ControllerClient, health: HealthPort) -> None:
    """Ready means: the controller gives it shards. It stays so while the controllers are away."""
    await client.wait_until_unfenced()
    await health.reached()


async def _leave(client: ControllerClient, timeout_ms: float) -> None:
    """Give the shards up; then take this process off the list, so that it is not counted among those that are away."""
    if client.registered is None or not await client.leave(timeout_ms):
        return
    try:
        await client.unregister(timeout_ms=UNREGISTER_MS_MAX)
    except HeadraceError as error:
        _log.info("the registration stays until its session ends: %s", error)


def _node(config: CoordinatorConfig, who: Who, grpc: Endpoint, metrics: Endpoint | None) -> Node:
    return Node(
        key=NodeKey(Role.COORDINATOR, who.node_id),
        grpc=grpc,
        incarnation=who.incarnation,
        epoch=0,
        metrics=metrics,
        version=VERSION,
        external=config.external.external_advertise,
        feature_level_max=config.server.feature_level_max,
    )


def _readings(watch: LagWatch) -> Mapping[str, Reading]:
    def by(name: str, counts: Mapping[str, int]) -> Iterable[tuple[float, Mapping[str, str]]]:
        return [(count, {name: value}) for value, count in counts.items()]

    return {
        "shards": lambda: by("phase", watch.census.shards),
        "groups": lambda: by("state", watch.census.groups),
        "members": lambda: [(watch.census.members, {})],
        "group_lag": lambda: [
            (lag.records, {"group": lag.group_id, "topic": lag.topic, "partition": str(lag.partition)})
            for lag in watch.census.lags
        ],
        "groups_without_lag": lambda: [(watch.census.groups_left_out, {})],
    }


def _transaction_readings(watch: TransactionWatch) -> Mapping[str, Reading]:
    def by_state() -> Iterable[tuple[float, Mapping[str, str]]]:
        census = watch.census
        counts = {"open": census.open, "prepared": census.prepared, "ending": census.ending}
        return [(count, {"state": state}) for state, count in counts.items()]

    return {
        "transactions": by_state,
        "transactions_waiting": lambda: [(watch.census.waiting, {})],
        "transaction_oldest_open_age_seconds": lambda: [(watch.census.oldest_open_ms / 1_000, {})],
        "transaction_oldest_prepared_age_seconds": lambda: [(watch.census.oldest_prepared_ms / 1_000, {})],
        "transactions_prepared_overdue": lambda: [(watch.census.overdue, {})],
        "transactions_without_markers": lambda: [(watch.census.without_markers, {})],
    }
