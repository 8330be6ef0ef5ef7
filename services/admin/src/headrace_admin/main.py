"""The composition root: opens what the service needs, serves, joins the cluster, and leaves it again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from headrace_admin.adapters.aes_seals import AesSeals
from headrace_admin.adapters.grpc_brokers import GrpcBrokers
from headrace_admin.adapters.grpc_controllers import GrpcCluster, GrpcControllers
from headrace_admin.adapters.grpc_coordinators import GrpcCoordinators
from headrace_admin.adapters.grpc_nodes import GrpcNodes
from headrace_admin.adapters.grpc_workers import GrpcWorkers
from headrace_admin.adapters.headrace_messages import HeadraceMessages
from headrace_admin.adapters.otel_waiting import publish
from headrace_admin.config import AdminConfig, Limits
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.messages import Messages
from headrace_admin.engine.waiting_watch import WaitingWatch
from headrace_admin.rpc.access_table import ACCESS
from headrace_admin.rpc.engines import Engines
from headrace_admin.rpc.rest import rest_app
from headrace_admin.rpc.servicer import AdminServicer
from headrace_common.adapters.audit_delivery import write_audit
from headrace_common.adapters.auth_service import AuthServicer
from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.adapters.controller_heartbeat import HeartbeatThread, MakeHeartbeats
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.http.foreign_pages import Hosts
from headrace_common.http.problems import refusal
from headrace_common.http.protocol import HttpBounds
from headrace_common.http.server import HttpServer
from headrace_common.rpc.channels import Security
from headrace_common.runtime.access_gate import current_bearer
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_incarnation
from headrace_common.runtime.health import HealthPort
from headrace_common.runtime.listeners import Guard, Listeners
from headrace_common.runtime.logs import configure_logs, logger
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.node_tokens import NodeTokens, open_tokens
from headrace_common.runtime.rpc_metrics import RpcMetrics
from headrace_common.runtime.service import Ready, announce_ready, run_until
from headrace_common.runtime.service_tls import ServiceTls, open_tls
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tracing import open_tracing
from headrace_proto.v1.admin_pb2_grpc import add_AdminServicer_to_server
from headrace_proto.v1.auth_pb2_grpc import add_AuthServicer_to_server

VERSION: Final = "0.1.0"
SERVICE: Final = "headrace.v1.Admin"
_LEAVE_MS: Final = 1_500.0
_HOSTS_HOW: Final = "--hosts, HEADRACE_ADMIN_HOSTS, or admin.hosts of the chart"
_COORDINATOR_MS_MAX: Final = 8_000
"""One call to a coordinator: longer than it waits for its own log, short enough to find the next one."""

OpenHttp = Callable[..., AbstractAsyncContextManager[HttpServer]]
"""Serves REST, as ``HttpServer.open`` does, but what it is given makes the app: that takes 0.1 s."""

_log = logger(__name__)


@dataclass
class _State:
    """What the health endpoints tell."""

    ready: bool = False


async def serve(config: AdminConfig, stop: asyncio.Event) -> None:
    """Run one admin service, which has this process for itself, until ``stop`` is set."""
    configure_logs("admin", config.node_id, config.server.log_level)
    await run(config, stop)


async def run(
    config: AdminConfig,
    stop: asyncio.Event,
    open_http: OpenHttp = lambda make_app, *args, **bounds: HttpServer.open(make_app(), *args, **bounds),
    beats: MakeHeartbeats = HeartbeatThread,
) -> None:
    """Run one admin service until ``stop`` is set; resources close in reverse order of opening."""
    state, server, limits = _State(), config.server, config.limits
    async with AsyncExitStack() as stack:
        health = await stack.enter_async_context(HealthPort.open(server))
        metrics = stack.enter_context(open_metrics("admin", config.node_id, server.metrics_listen))
        metrics_at = server.reachable(metrics.endpoint)
        tracing = stack.enter_context(open_tracing("admin", config.node_id))
        tasks = await stack.enter_async_context(TaskRunner())
        key = NodeKey(Role.ADMIN, NodeId(config.node_id))
        tls = await stack.enter_async_context(
            open_tls(server.tls, key, SystemClock(), metrics.meter, tasks, config.mtls.mtls_client_ca)
        )
        client = await stack.enter_async_context(
            ControllerClient.open(
                config.controllers,
                role=Role.ADMIN,
                id=config.node_id,
                clock=SystemClock(),
                tasks=tasks,
                tokens=open_tokens(server, SystemClock()),
                tls=tls,
                beats=beats,
            )
        )
        client.access.stale_ms_max = config.access_stale_ms_max
        client.access.calls_per_principal_max = config.server.calls_per_principal_max
        await stack.enter_async_context(write_audit(client, server.audit, tasks, metrics.meter))
        engines = _make_engines(config, client, tls, stack, tasks)
        tasks.start(engines.statuses.absences.follow(client.images()), name="absences")
        watch = WaitingWatch(engines.open_transactions, SystemClock())
        publish(metrics.meter, watch.readings())
        tasks.start(watch.follow(), name="waiting readers")
        hosts = _hosts(config)
        make_app = partial(
            rest_app,
            engines,
            limits,
            ready=lambda: state.ready and not stop.is_set(),
            hosts=hosts,
            access=client.access,
            seals=_seals(config),
            meter=metrics.meter,
        )
        http = await stack.enter_async_context(
            open_http(
                make_app, config.http_listen, tasks, _http_bounds(limits), drain_ms_max=server.drain_ms_max, tls=tls
            )
        )
        auth = add_AuthServicer_to_server, AuthServicer(client, SystemClock())
        grpc = await stack.enter_async_context(
            Listeners.open(
                server,
                lambda listener: [(add_AdminServicer_to_server, AdminServicer(engines, listener)), auth],
                external=config.external,
                mtls=config.mtls,
                health_names=[SERVICE],
                interceptors=[tracing, RpcMetrics(metrics.meter)],
                guard=Guard(client.gate, tls, client.access, ACCESS),
            )
        )
        http_endpoint = server.choose_endpoint(http.endpoint.port, listen_host=config.http_listen.host)
        node = replace(_node(config, grpc.endpoint, http_endpoint, metrics_at), mtls=grpc.mtls)
        ready = Ready(f"admin-{config.node_id}", grpc.endpoint, http_endpoint, metrics_at, health.endpoint)
        tasks.start(_join(client, node, grpc, state, ready, config), name="join")
        tasks.start(_ready_once_following(client, health), name="health")
        await run_until(stop, tasks)
        await health.leaving()
        await _leave(client)


def _make_engines(
    config: AdminConfig, client: ControllerClient, tls: ServiceTls | None, stack: AsyncExitStack, tasks: TaskRunner
) -> Engines:
    """All of them over gRPC; ``stack`` closes their connections."""

    def credential() -> str | None:
        """Of the caller, where brokers ask for it; while they only count, it does not go out in plain text."""
        mode = client.access.view.mode
        return current_bearer() if mode is Mode.CLOSED or (mode is Mode.PERMISSIVE and tls is not None) else None

    cluster = GrpcCluster(client)
    brokers = GrpcBrokers(cluster, config.limits.call_ms_max, client.security)
    coordinators = GrpcCoordinators(min(config.limits.call_ms_max, _COORDINATOR_MS_MAX), client.security)
    nodes = GrpcNodes(client.key, min(config.limits.call_ms_max, _COORDINATOR_MS_MAX), client.security, tls)
    trust = None if tls is None else Security(pem=tls.cas)
    workers = GrpcWorkers(
        min(config.limits.call_ms_max, _COORDINATOR_MS_MAX), brokers.issue_ticket, SystemClock(), trust
    )
    log = HeadraceMessages(cluster, None if tls is None else str(tls.ca), credential)
    tasks.start(log.follow(SystemClock()), name="idle producers")
    for port in (brokers, coordinators, workers, nodes, log):
        stack.push_async_callback(port.close)
    administration = Administration(cluster, GrpcControllers(client, config.limits.call_ms_max), brokers)
    messages = Messages(log, cluster, config.limits)
    return Engines.over(
        administration,
        messages,
        coordinators,
        workers,
        nodes,
        config.transactions,
        SystemClock(),
        lambda: client.access.view,
    )


def _hosts(config: AdminConfig) -> Hosts:
    """The names of this process, and those of the setting."""
    advertised = config.external.external_advertise
    own = [socket.gethostname(), config.server.advertise_host, config.http_listen.host, advertised and advertised.host]
    return Hosts.of([*(name for name in own if name), *config.hosts], _HOSTS_HOW)


def _seals(config: AdminConfig) -> AesSeals:
    """
    Of the cookies of browsers.

    Raises:
        InvalidConfig: the file with their key cannot be read, or holds something else.
    """
    file = config.cookie_key_file or config.server.node_token_file
    return AesSeals.of_this_process() if file is None else AesSeals(NodeTokens(file, SystemClock()).read)


def _http_bounds(limits: Limits) -> HttpBounds:
    return HttpBounds(
        connections_max=limits.http_connections_max,
        connections_per_address_max=limits.http_connections_per_address_max,
        head_ms_max=limits.http_head_ms_max,
        body_ms_max=limits.http_body_ms_max,
        refusal=refusal,
    )


def _node(config: AdminConfig, grpc: Endpoint, http: Endpoint, metrics: Endpoint | None) -> Node:
    return Node(
        key=NodeKey(Role.ADMIN, NodeId(config.node_id)),
        grpc=grpc,
        http=http,
        metrics=metrics,
        incarnation=new_incarnation(),
        epoch=-1,
        version=VERSION,
        external=config.external.external_advertise,
        feature_level_max=config.server.feature_level_max,
    )


async def _join(
    client: ControllerClient, node: Node, grpc: Listeners, state: _State, ready: Ready, config: AdminConfig
) -> None:
    await client.register(Registration(node))
    async for image in client.images():
        if node.key in image.nodes:
            break
    await grpc.serving(SERVICE)
    state.ready = True
    announce_ready(ready, config.server.ready_file)


async def _ready_once_following(client: ControllerClient, health: HealthPort) -> None:
    """Ready means: it has an image to answer from. It stays so while the controllers are away."""
    await anext(client.images())
    await health.reached()


async def _leave(client: ControllerClient) -> None:
    """Take this process off the list, so that no client tries it; its silence does the same a little later."""
    if client.registered is None:
        return
    try:
        if await client.leave(_LEAVE_MS):
            await client.unregister(timeout_ms=_LEAVE_MS)
    except HeadraceError as error:
        _log.info("the registration stays until its session ends: %s", error)
