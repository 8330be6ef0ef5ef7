"""
Clients that reach a cluster through forwarders only: no answer sends them to an address of the cluster's own.

The forwarders listen on other ports than the processes do, and a client of a test that is given any other address than
theirs fails at once: on one machine it would reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from libs.common.tests.kit.ports import free_port

from headrace import AdminClient, Consumer, Producer, aio
from headrace._transport.grpc import GrpcTransport
from headrace_common.rpc.channels import open_channel
from headrace_proto.v1 import broker_pb2, controller_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

from .forwarder import forwarding
from .site import HOST, Process, Site

pytestmark = pytest.mark.integration

OUTSIDE = "127.0.0.1"  # inside they are called by another name


@dataclass
class Outside:
    """What clients from outside have of a cluster."""

    bootstrap: str
    admin: str
    addresses: set[str]
    processes: list[Process]
    used: set[str]


@pytest.fixture
async def outside(site: Site, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Outside]:
    listens = [free_port() for _ in range(4)]
    async with forwarding(*listens) as forwarders:
        reached = [f"{OUTSIDE}:{one.port}" for one in forwarders]

        def external(at: int) -> dict[str, str]:
            return {"external_listen": f"0.0.0.0:{listens[at]}", "external_advertise": reached[at]}

        controller = site.controller()
        nodes = [
            site.broker(0, **external(0)),
            site.broker(1, **external(1)),
            site.coordinator(0, **external(2)),
            site.admin(0, **external(3)),
        ]
        await site.start(site.etcd(), controller, *nodes)
        used: set[str] = set()
        real = GrpcTransport._channel

        def only_outside(transport: GrpcTransport, address: str) -> Any:
            assert address in reached, f"{address} is not reachable from outside"
            used.add(address)
            return real(transport, address)

        monkeypatch.setattr(GrpcTransport, "_channel", only_outside)
        yield Outside(reached[0], reached[3], set(reached), [controller, *nodes], used)


async def test_asyncio_clients_work_through_forwarders(outside: Outside) -> None:
    async with aio.AdminClient(outside.bootstrap) as admin:
        await admin.create_topic("orders", partitions=4, replication_factor=2)
        await admin.create_topic("bills", partitions=2, replication_factor=2)
        brokers = {broker.address for broker in await admin.list_brokers()}
        assert brokers < outside.addresses
    async with aio.Producer(outside.bootstrap) as producer:
        for n in range(40):
            await producer.send("orders", b"%d" % n, key=b"%d" % n)
    settings = {"group_id": "billing", "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    async with (
        aio.Consumer("orders", bootstrap_servers=outside.bootstrap, enable_auto_commit=False, **settings) as consumer,
        aio.Producer(outside.bootstrap, transactional_id="billing-1") as writer,
    ):
        seen = 0
        while seen < 40:
            async with writer.transaction(consumer):
                for record in await consumer.poll(timeout_ms=1_000):
                    await writer.send("bills", record.value, key=record.key)
                    seen += 1
    async with aio.Consumer("bills", bootstrap_servers=outside.bootstrap, **{**settings, "group_id": "x"}) as consumer:
        values: list[bytes] = []
        while len(values) < 40:
            values += [record.value for record in await consumer.poll(timeout_ms=1_000)]
    assert sorted(values) == sorted(b"%d" % n for n in range(40))
    assert outside.used == outside.addresses, "each of them was needed: two brokers, a coordinator, an admin"


def run(outside: Outside) -> list[bytes]:
    """The same with clients for threads."""
    with AdminClient(outside.bootstrap) as admin:
        admin.create_topic("orders", partitions=4, replication_factor=2)
        admin.create_topic("bills", partitions=2, replication_factor=2)
    with Producer(outside.bootstrap) as producer:
        producer.send_many("orders", [b"%d" % n for n in range(40)], keys=[b"%d" % n for n in range(40)])
    settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with (
        Consumer(
            "orders",
            bootstrap_servers=outside.bootstrap,
            group_id="billing",
            enable_auto_commit=False,
            **settings,
        ) as consumer,
        Producer(outside.bootstrap, transactional_id="billing-1") as writer,
    ):
        seen = 0
        while seen < 40:
            with writer.transaction(consumer):
                for record in consumer.poll(timeout_ms=1_000):
                    writer.send("bills", record.value, key=record.key)
                    seen += 1
    values: list[bytes] = []
    with Consumer("bills", bootstrap_servers=outside.bootstrap, group_id="x", **settings) as consumer:
        while len(values) < 40:
            values += [record.value for record in consumer.poll(timeout_ms=1_000)]
    return values


async def test_clients_for_threads_work_through_forwarders(outside: Outside) -> None:
    values = await asyncio.wait_for(asyncio.to_thread(run, outside), 120)
    assert sorted(values) == sorted(b"%d" % n for n in range(40))
    assert outside.used == outside.addresses


async def test_no_answer_names_an_address_of_the_clusters_own(outside: Outside) -> None:
    async with open_channel(outside.bootstrap) as channel:
        stub: Any = BrokerStub(channel)
        metadata = await stub.Metadata(broker_pb2.MetadataRequest(all_topics=True), timeout=10)
        found = await stub.FindCoordinator(
            broker_pb2.FindCoordinatorRequest(type=broker_pb2.GROUP, keys=["g"]), timeout=20
        )
    async with open_channel(outside.admin) as channel:
        admin: Any = AdminStub(channel)
        cluster = await admin.DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=10)
    assert len(metadata.nodes) == 3
    inside = {str(one.grpc_port) for one in outside.processes[1:]}
    for answer in (metadata, found):
        assert HOST not in str(answer)
        assert not any(port in str(answer) for port in inside)
    told = {(n.role, n.id): f"{n.grpc.host}:{n.grpc.port}" for n in cluster.nodes}
    assert set(told.values()) == outside.addresses | {outside.processes[0].address}, "a controller has none"
