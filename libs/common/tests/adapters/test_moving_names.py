"""Pods come back under their names with other addresses, and at first their names are not known: nodes get through."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from libs.common.tests.kit.lab_node import wait_for_image
from libs.common.tests.kit.names import FakeNames

from headrace_common.adapters import controller_heartbeat
from headrace_common.adapters.controller_calls import ControllerCalls
from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.core.errors import NetworkFailed
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.rpc import channels
from headrace_common.rpc.channels import Security, open_channel, open_sync_channel
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.health import HealthPort
from headrace_common.runtime.service import ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.config import ControllerConfig, LivenessConfig
from headrace_controller.main import run as run_controller
from headrace_proto.v1 import controller_pb2 as pb

HOST = "controller-0.example"
NODE = Node(NodeKey(Role.BROKER, NodeId(0)), Endpoint("broker-0.example", 9292), b"i" * 16, -1)


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeNames]:
    """The name server that nodes ask."""
    async with FakeNames.serve() as served:

        def channel(to: str, *_: Security, **__: object) -> grpc.aio.Channel:
            return open_channel(served.target(to), own_connection=True)

        def sync_channel(to: str, security: Security, *, own_connection: bool) -> grpc.Channel:
            return open_sync_channel(served.target(to), security, own_connection=own_connection)

        monkeypatch.setattr(channels, "open_channel", channel)
        monkeypatch.setattr(controller_heartbeat, "open_sync_channel", sync_channel)
        yield served


async def answered(channel: grpc.aio.Channel) -> None:
    """A call that goes to the old server and breaks off with it is made again, as clients do."""
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service="live")
    async with asyncio.timeout(30):
        while True:
            try:
                await stub.Check(request, timeout=30, wait_for_ready=True)
            except grpc.aio.AioRpcError as broken:
                if broken.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                return


async def test_a_channel_finds_a_name_that_comes_and_moves(names: FakeNames) -> None:
    async with HealthPort.open(ServerConfig(health_listen=Endpoint("127.0.0.1", 0))) as first:
        assert first.endpoint is not None
        port = first.endpoint.port
        channel = open_channel(names.target(Endpoint(HOST, port)), own_connection=True)
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest(service="live"), timeout=30)
        names.addresses[HOST] = "127.0.0.1"
        await answered(channel)
    async with HealthPort.open(ServerConfig(health_listen=Endpoint("127.0.0.2", port))):
        names.addresses[HOST] = "127.0.0.2"
        await answered(channel)
    await channel.close()


@asynccontextmanager
async def controlling(store: MemoryStore, at: Endpoint) -> AsyncIterator[None]:
    """A controller over gRPC, which others know by its name."""
    config = ControllerConfig(
        server=ServerConfig(listen=at, advertise_host=HOST, drain_ms_max=0), liveness=LivenessConfig(100, 2_000)
    )
    stop = asyncio.Event()
    running = asyncio.create_task(run_controller(config, stop, store))
    yield
    stop.set()
    await running


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def heard(client: ControllerClient) -> None:
    """One more heartbeat was answered."""
    before = client.contact_ms
    while client.contact_ms in {before, None}:
        await asyncio.sleep(0.01)


async def test_a_node_joins_controllers_whose_names_come_late(names: FakeNames) -> None:
    store, at = MemoryStore(SystemClock()), Endpoint(HOST, free_port())
    async with (
        TaskRunner() as tasks,
        controlling(store, Endpoint("127.0.0.1", at.port)),
        ControllerClient.open([at], role=Role.BROKER, id=0, clock=SystemClock(), tasks=tasks) as client,
    ):
        joining = tasks.start(client.register(Registration(NODE)), name="join")
        await names.until_asked(2)
        assert not joining.done()
        names.addresses[HOST] = "127.0.0.1"
        await joining
        await client.wait_until_unfenced()
        del names.addresses[HOST]  # what is connected stays so
        for _ in range(2):
            await heard(client)
    assert tasks.failure is None


async def test_a_controller_that_moved_is_found_again(names: FakeNames) -> None:
    names.addresses[HOST] = "127.0.0.1"
    store, at = MemoryStore(SystemClock()), Endpoint(HOST, free_port())
    async with TaskRunner() as tasks, AsyncExitStack() as stack:
        async with controlling(store, Endpoint("127.0.0.1", at.port)):
            opened = ControllerClient.open([at], role=Role.BROKER, id=0, clock=SystemClock(), tasks=tasks)
            client = await stack.enter_async_context(opened)
            await client.register(Registration(NODE))
            await client.wait_until_unfenced()
        del names.addresses[HOST]
        async with controlling(store, Endpoint("127.0.0.2", at.port)):
            names.addresses[HOST] = "127.0.0.2"
            await heard(client)
            new = pb.NewTopic(name="t", partition_count=1, replication_factor=1)
            request = pb.CreateTopicsRequest(topics=[new], timeout_ms=10_000)
            await client.calls.active(lambda stub: stub.CreateTopics, request, timeout_ms=20_000)
            await wait_for_image(client, lambda image: "t" in image.topic_ids)
            assert await client.allocate_producer_ids()
            await stack.aclose()


class HastyClock(SystemClock):
    """Time passes with each wait, and none is waited."""

    def __init__(self) -> None:
        self._now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self._now_ms

    async def sleep_ms(self, ms: float) -> None:
        self._now_ms += ms
        await asyncio.sleep(0)


async def test_each_attempt_asks_for_a_name_that_was_not_known(names: FakeNames) -> None:
    """Channels ask again after 1 s, 1.6 s and so on: a cluster that starts would wait for its names' sake."""
    calls = ControllerCalls(ControllerRoute([Endpoint(HOST, 1)]), HastyClock())
    with pytest.raises(NetworkFailed, match="resolving"):
        await calls.active(
            lambda stub: stub.DescribeCluster,
            pb.DescribeClusterRequest(),
            timeout_ms=9_000,
            repeatable=True,
        )
    assert len(names.asked) >= 8
    assert not calls.addresses
    await calls.close()
