"""Composition root of the controller: opens adapters, builds the engine, serves, resigns, drains, closes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

from headrace_common.adapters.audit_delivery import open_delivery
from headrace_common.adapters.certificates_service import CertificatesServicer
from headrace_common.core.access.principal import BREAKGLASS
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import ClusterImage, Listener, Node, NodeKey, Role
from headrace_common.rpc.node_gate import KnownNodes, NodeGate, node_security
from headrace_common.runtime.access_gate import Access, AccessGate
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_incarnation
from headrace_common.runtime.health import HealthPort
from headrace_common.runtime.logs import configure_logs
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.node_tokens import open_tokens
from headrace_common.runtime.rpc_metrics import RpcMetrics
from headrace_common.runtime.service import GrpcService, Ready, announce_ready, run_until
from headrace_common.runtime.service_tls import open_tls
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tracing import open_tracing
from headrace_controller.adapters.admin_key_file import read_admin_keys
from headrace_controller.adapters.etcd_certificates import EtcdTlsFiles, follow
from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_controller.adapters.grpc_inventory import GrpcInventory
from headrace_controller.adapters.grpc_log_ends import GrpcLogEnds
from headrace_controller.adapters.grpc_peer import GrpcPeer
from headrace_controller.adapters.grpc_probe import GrpcProbe
from headrace_controller.adapters.issuer_keys import IssuerKeySource
from headrace_controller.adapters.issuers_file import read_issuers
from headrace_controller.adapters.otel_gauges import publish
from headrace_controller.config import ControllerConfig
from headrace_controller.core import breakglass
from headrace_controller.core.records import Cluster
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.membership import Membership
from headrace_controller.engine.term import Outside
from headrace_controller.ports import MetadataStore
from headrace_controller.rpc.access_table import ACCESS
from headrace_controller.rpc.servicer import ControllerServicer
from headrace_proto.v1.certificates_pb2_grpc import add_CertificatesServicer_to_server
from headrace_proto.v1.controller_pb2_grpc import add_ControllerServicer_to_server

VERSION = "0.1.0"
SERVICE = "headrace.v1.Controller"


async def serve(config: ControllerConfig, stop: asyncio.Event) -> None:
    """Run one controller, which has this process for itself, until ``stop`` is set; etcd may come later."""
    configure_logs("controller", config.node_id, config.server.log_level)
    files = EtcdTlsFiles(config.etcd_ca, config.etcd_cert, config.etcd_key)
    tls = files.read()
    async with (
        EtcdStore.open(config.etcd, config.prefix, request_timeout_ms=config.etcd_timeout_ms, tls=tls) as store,
        TaskRunner() as tasks,
    ):
        if tls is not None:
            tasks.start(follow(files, tls, SystemClock(), store.renew), name="watch certificates for etcd")
        await run(config, stop, store)


async def run(config: ControllerConfig, stop: asyncio.Event, store: MetadataStore) -> None:
    """Run one controller on ``store`` until ``stop`` is set."""
    config = replace(
        config,
        admin_keys=read_admin_keys(config.admin_key_file),
        issuers=read_issuers(config.oidc_issuers_file, config.kubernetes_audience),
    )
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        health = await stack.enter_async_context(HealthPort.open(config.server))
        metrics = stack.enter_context(open_metrics("controller", config.node_id, config.server.metrics_listen))
        metrics_at = config.server.reachable(metrics.endpoint)
        tracing = stack.enter_context(open_tracing("controller", config.node_id, config.otlp_endpoint))
        tasks = await stack.enter_async_context(TaskRunner())
        key = NodeKey(Role.CONTROLLER, NodeId(config.node_id))
        tls = await stack.enter_async_context(open_tls(config.server.tls, key, clock, metrics.meter, tasks))
        tokens = open_tokens(config.server, clock)
        gate = NodeGate(
            tokens,
            lambda: engine.follower.mirror.image,
            tls and tls.trust_domain,
            also_plain=bool(tls and tls.also_plain),
        )
        security = node_security(
            key,
            tokens,
            KnownNodes(lambda: engine.follower.mirror.image, lambda: _active(engine.follower.mirror.image)),
            tls and tls.dialing,
        )
        peer = await stack.enter_async_context(GrpcPeer.open(security))
        serving: list[Endpoint] = []  # known once the server is bound, which needs the engine
        engine = ControllerEngine(
            config=config,
            outside=Outside(
                store=store,
                probe=GrpcProbe(lambda: engine.follower.mirror.image.cluster_id, security),
                log_ends=GrpcLogEnds(security),
                inventories=GrpcInventory(security),
                issuers=IssuerKeySource(clock),
                clock=clock,
            ),
            endpoint=lambda: serving[0],
            new_cluster=_new_cluster,
        )
        access = Access(lambda: engine.follower.mirror.image, gate, clock, engine.follower.reader)

        access.calls_per_principal_max = config.server.calls_per_principal_max

        def on_image() -> None:
            access.look()
            is_open = breakglass.is_open(engine.follower.mirror.image.access)
            access.auditing.breakglass(str(BREAKGLASS), is_open=is_open)

        engine.follower.on_image = on_image
        await stack.enter_async_context(
            open_delivery(
                access.auditing,
                config.server.audit,
                key,
                tasks,
                metrics.meter,
                lambda: engine.follower.mirror.image,
                security,
            )
        )
        server = await stack.enter_async_context(
            GrpcService.open(
                config.server,
                servicers=[
                    (
                        add_ControllerServicer_to_server,
                        ControllerServicer(engine, config.liveness, gate, access.auditing),
                    ),
                    (add_CertificatesServicer_to_server, CertificatesServicer(key, tls)),
                ],
                health_names=[SERVICE],
                interceptors=[tracing, RpcMetrics(metrics.meter), AccessGate(access, ACCESS, takes_nodes=True), gate],
                serving=False,
                tls=tls and tls.serving(Listener.INTERNAL),
            )
        )
        serving.append(server.endpoint)
        node = _as_node(config, server.endpoint, metrics_at)
        membership = Membership(engine, peer, clock, node, config.liveness.heartbeat_interval_ms, access.auditing)
        engine.start(tasks)
        publish(metrics.meter, engine.gauges)
        tasks.start(membership.run(), name="membership")
        tasks.start(_report_ready(engine, server, health), name="health")
        announce_ready(
            Ready(f"controller-{config.node_id}", server.endpoint, metrics=metrics_at, health=health.endpoint),
            config.server.ready_file,
        )
        try:
            await run_until(stop, tasks)
        finally:
            await health.leaving()
            await engine.stop()


async def _report_ready(engine: ControllerEngine, server: GrpcService, health: HealthPort) -> None:
    """Healthy means: answers reads. It stays so while etcd is away, since the last image is still served."""
    await engine.follower.until(lambda: engine.follower.mirror.loaded)
    for name in ("", SERVICE):
        await server.set_serving(True, name)
    await health.reached()


def _active(image: ClusterImage) -> tuple[Endpoint, ...]:
    """Where the active controller is; it registers as a node a moment after it is elected."""
    active = image.active_controller
    return () if active is None or active.grpc is None else (active.grpc,)


def _new_cluster() -> Cluster:
    return Cluster(id=new_incarnation().hex(), incarnation=new_incarnation())


def _as_node(config: ControllerConfig, grpc: Endpoint, metrics: Endpoint | None) -> Node:
    return Node(
        key=NodeKey(Role.CONTROLLER, NodeId(config.node_id)),
        grpc=grpc,
        incarnation=new_incarnation(),
        epoch=0,
        metrics=metrics,
        rack=config.rack,
        version=VERSION,
        feature_level_max=config.server.feature_level_max,
    )
