"""One more node of a cluster in the lab: its tie to the controllers alone, which is in the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import ClusterImage, Role
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.node_tokens import open_tokens
from headrace_common.runtime.service import ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_lab.cluster import Cluster
from headrace_lab.heartbeat import HeartbeatTask
from headrace_lab.nodes import address


@asynccontextmanager
async def open_tie(
    cluster: Cluster, role: Role, number: int, *bootstrap: Endpoint, tasks: TaskRunner | None = None
) -> AsyncIterator[ControllerClient]:
    """It is not registered yet. ``bootstrap``: controllers to begin with; none: the first."""
    clock = SystemClock()
    tokens = open_tokens(ServerConfig(node_token_file=cluster.token), clock)
    async with (
        TaskRunner() as own,
        ControllerClient.open(
            bootstrap or [address("controller-1")],
            role=role,
            id=number,
            clock=clock,
            tasks=own if tasks is None else tasks,
            tokens=tokens,
            beats=HeartbeatTask,
        ) as client,
    ):
        yield client


async def wait_for_image(client: ControllerClient, condition: Callable[[ClusterImage], bool]) -> ClusterImage:
    """The first image that fulfils it."""
    async for image in client.images():
        if condition(image):
            return image
    raise AssertionError("images never end")
