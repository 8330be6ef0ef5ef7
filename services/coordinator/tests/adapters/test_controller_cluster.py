"""Until when a coordinator surely has its shards, as far as the controller goes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from libs.common.tests.kit.fake_controller import FakeController

from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.adapters.controller_cluster import ControllerCluster

KEY = NodeKey(Role.COORDINATOR, NodeId(1))
NODE = Node(KEY, Endpoint("127.0.0.1", 9492), b"i" * 16, -1)
SESSION_MS = 1_000
"""What the controller in memory gives."""


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    async with FakeController().serve() as fake:
        yield fake


@pytest.fixture
async def client(controller: FakeController) -> AsyncIterator[ControllerClient]:
    assert controller.endpoint is not None
    async with (
        TaskRunner() as tasks,
        ControllerClient.open(
            [controller.endpoint], role=Role.COORDINATOR, id=1, clock=SystemClock(), tasks=tasks
        ) as opened,
    ):
        yield opened


async def test_there_is_no_tenure_before_the_image_in_which_the_node_takes_part(
    controller: FakeController, client: ControllerClient
) -> None:
    cluster = ControllerCluster(client)
    await client.register(Registration(NODE))
    await client.wait_until_unfenced()
    images = cluster.images()
    async for image in images:
        if KEY in image.nodes and not image.nodes[KEY].fenced:
            break
    assert cluster.tenure_until_ms > 0
    controller.change(nodes=(replace(image.nodes[KEY], fenced=True),))
    controller.hold_updates()
    await controller.until_beat(2)  # answered: it is not fenced (any more)
    async for image in images:
        if image.nodes[KEY].fenced:
            break
    assert not client.fenced
    assert cluster.tenure_until_ms == -math.inf
    controller.release_updates()
    async for image in images:
        if not image.nodes[KEY].fenced:
            break
    async with asyncio.timeout(10):
        while cluster.tenure_until_ms == -math.inf:
            await controller.until_beat()


async def test_tenure_is_a_session_from_the_last_beat_that_was_answered(
    controller: FakeController, client: ControllerClient
) -> None:
    cluster = ControllerCluster(client)
    assert cluster.tenure_until_ms == -math.inf
    before = SystemClock().monotonic_ms()
    await client.register(Registration(NODE))
    await client.wait_until_unfenced()
    async for image in cluster.images():
        if KEY in image.nodes and not image.nodes[KEY].fenced:
            break
    assert cluster.image is client.image
    now = SystemClock().monotonic_ms()
    assert before + SESSION_MS <= cluster.tenure_until_ms <= now + SESSION_MS
    controller.active = False  # beats are refused from now on
    await controller.until_called("Heartbeat", controller.calls.count("Heartbeat") + 2)
    held = cluster.tenure_until_ms
    await controller.until_called("Heartbeat", controller.calls.count("Heartbeat") + 2)
    assert cluster.tenure_until_ms == held, "silence does not move it"
