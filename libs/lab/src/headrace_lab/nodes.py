"""
Nodes of a cluster in the lab: the real engines and servicers, on stores in memory.

What a service's ``main`` opens of its machine (ports for probes and metrics, a data directory, RocksDB, etcd) is left
out or in memory here; what is left is wired as there.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from headrace_broker.adapters.controller_cluster import ControllerCluster
from headrace_broker.adapters.grpc_leaders import GrpcLeaders
from headrace_broker.adapters.grpc_transactions import GrpcTransactions
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.adapters.memory_topic_notes import MemoryTopicNotes
from headrace_broker.engine.broker import Broker, EngineSettings, Who
from headrace_broker.ports import Disk
from headrace_broker.rpc.servicer import BrokerServicer
from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_incarnation
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.adapters.grpc_inventory import GrpcInventory
from headrace_controller.adapters.grpc_log_ends import GrpcLogEnds
from headrace_controller.adapters.grpc_peer import GrpcPeer
from headrace_controller.adapters.grpc_probe import GrpcProbe
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.config import ControllerConfig
from headrace_controller.core.records import Cluster
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.membership import Membership
from headrace_controller.rpc.servicer import ControllerServicer
from headrace_lab.heartbeat import HeartbeatTask
from headrace_proto.v1.broker_pb2_grpc import add_BrokerServicer_to_server
from headrace_proto.v1.controller_pb2_grpc import add_ControllerServicer_to_server

PORT: Final = 9_000
LEASES_MS: Final = 100
"""How often the store of metadata looks for leases that have ended."""
VERSION: Final = "lab"


def address(name: str) -> Endpoint:
    """Where the node of this name serves."""
    return Endpoint(name, PORT)


async def run_store(store: MemoryStore) -> None:
    """What etcd does by itself."""
    clock = SystemClock()
    while True:
        await clock.sleep_ms(LEASES_MS)
        await store.expire_leases()


async def run_controller(number: int, store: MemoryStore, stop: asyncio.Event) -> None:
    """A controller, until ``stop`` is set."""
    name, clock = f"controller-{number}", SystemClock()
    server = ServerConfig(listen=address(name))
    config = ControllerConfig(node_id=number, server=server)
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(GrpcPeer.open())
        engine = ControllerEngine(
            config=config,
            store=store,
            probe=GrpcProbe(lambda: engine.follower.mirror.image.cluster_id),
            log_ends=GrpcLogEnds(),
            inventories=GrpcInventory(),
            clock=clock,
            endpoint=lambda: address(name),
            new_cluster=lambda: Cluster(id=new_incarnation().hex(), incarnation=new_incarnation()),
        )
        tasks = await stack.enter_async_context(TaskRunner())
        servicer = ControllerServicer(engine, config.liveness, NodeGate())
        await stack.enter_async_context(GrpcService.open(server, [(add_ControllerServicer_to_server, servicer)]))
        node = _node(NodeKey(Role.CONTROLLER, NodeId(number)), new_incarnation())
        engine.start(tasks)
        membership = Membership(engine, peer, clock, node, config.liveness.heartbeat_interval_ms)
        tasks.start(membership.run(), name="membership")
        try:
            await stop.wait()
        finally:
            await engine.stop()


async def run_broker(
    number: int, logs: MemoryLogs, notes: MemoryTopicNotes, controllers: list[Endpoint], stop: asyncio.Event
) -> None:
    """A broker on ``logs``, until ``stop`` is set."""
    name, clock = f"broker-{number}", SystemClock()
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(TaskRunner())
        client = await stack.enter_async_context(
            ControllerClient.open(
                controllers, role=Role.BROKER, id=number, clock=clock, tasks=tasks, beats=HeartbeatTask
            )
        )
        who = Who(NodeId(number), new_incarnation(), "")
        transactions = GrpcTransactions(client.security)
        stack.push_async_callback(transactions.close)
        broker = Broker(
            who,
            EngineSettings(),
            disk=Disk(logs, notes),
            cluster=ControllerCluster(client),
            leaders=GrpcLeaders(client.security),
            transactions=transactions,
            clock=clock,
            tasks=tasks,
        )
        draining = asyncio.Event()
        servicer = BrokerServicer(broker, draining, client.gate)
        server = ServerConfig(listen=address(name))
        await stack.enter_async_context(GrpcService.open(server, [(add_BrokerServicer_to_server, servicer)]))
        node = _node(NodeKey(Role.BROKER, who.broker_id), who.incarnation)
        tasks.start(_join(broker, client, node), name="join")
        try:
            await stop.wait()
        finally:
            draining.set()
            broker.drain()


async def _join(broker: Broker, client: ControllerClient, node: Node) -> None:
    registration = Registration(node, damaged=lambda: broker.damaged, claims=lambda: broker.highest)
    registered = await client.register(registration, want_fenced=True)
    broker.who = replace(broker.who, cluster_id=registered.cluster_id)
    broker.start()
    client.want_unfenced()
    await client.until_unfenced()
    broker.producer_ids.prefetch()


def _node(key: NodeKey, incarnation: bytes) -> Node:
    return Node(
        key=key,
        grpc=address(str(key)),
        incarnation=incarnation,
        epoch=0,
        metrics=None,
        rack=None,
        version=VERSION,
        feature_level_max=HIGHEST,
    )
