"""A coordinator's tie to the controllers: the same client as a broker's, and shards that change hands under it."""

from __future__ import annotations

import asyncio

import pytest
from libs.common.tests.kit.fake_controller import FakeController

from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.core.errors import CoordinatorNotAvailable
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId
from headrace_common.core.image import ClusterImage, Node, NodeKey, Role, ShardKey, ShardKind
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import cluster_pb2

NODE = Node(NodeKey(Role.COORDINATOR, NodeId(5)), Endpoint("127.0.0.1", 9600), b"c" * 16, -1)


async def owned(client: ControllerClient, numbers: set[int]) -> ClusterImage:
    async for image in client.images():
        if {s.key.number for s in image.shards.values() if s.owner == client.key.id} == numbers:
            return image
    raise AssertionError("images never end")


async def test_it_registers_gets_shards_and_leaves() -> None:
    async with FakeController().serve() as fake, TaskRunner() as tasks:
        assert fake.endpoint is not None
        opened = ControllerClient.open([fake.endpoint], role=Role.COORDINATOR, id=5, clock=SystemClock(), tasks=tasks)
        async with opened as client, asyncio.timeout(20):
            registered = await client.register(Registration(NODE))
            await client.wait_until_unfenced()
            assert fake.registrations[0].node.role == cluster_pb2.COORDINATOR
            assert client.image.nodes[client.key].epoch == registered.epoch
            revision = await client.ensure_internal_topic(ShardKind.GROUPS)
            image = await owned(client, set())
            assert image.revision >= revision or fake.image.revision >= revision
            fake.give_shards(5, range(2))
            image = await owned(client, {0, 1})
            assert image.shards[ShardKey(ShardKind.GROUPS, 0)].epoch == 2
            fake.give_shards(NO_NODE, [0])
            await owned(client, {1})
            fake.may_shut_down = False
            leaving = asyncio.create_task(client.leave(15_000))
            while not (await fake.until_beat()).want_shutdown:
                pass
            assert not leaving.done()
            fake.give_shards(NO_NODE)
            fake.may_shut_down = True
            assert await leaving


async def test_what_keeps_the_topic_from_being_made_is_told_after_the_time_given() -> None:
    async with FakeController().serve() as fake, TaskRunner() as tasks:
        assert fake.endpoint is not None
        fake.refusals["EnsureInternalTopic"] = [CoordinatorNotAvailable("1 of 3 have joined")] * 1_000
        opened = ControllerClient.open([fake.endpoint], role=Role.BROKER, id=1, clock=SystemClock(), tasks=tasks)
        async with opened as client:
            with pytest.raises(CoordinatorNotAvailable, match="1 of 3"):
                await client.ensure_internal_topic(ShardKind.GROUPS, timeout_ms=300)
        assert fake.calls.count("EnsureInternalTopic") >= 2
