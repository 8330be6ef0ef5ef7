"""A coordinator's tie to the controllers: the same client as a broker's, and shards that change hands under it."""

from __future__ import annotations

import asyncio

import pytest
from libs.common.tests.kit.lab_node import open_tie

from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.core.errors import CoordinatorNotAvailable
from headrace_common.core.ids import NO_NODE, Endpoint
from headrace_common.core.image import Node, NodeKey, Role, ShardKind
from headrace_common.runtime.clock import SystemClock
from headrace_lab.testing import lab

SEED = 7
SESSION_S = 10.0


async def wait_for_shards(client: ControllerClient, owners: set[int]) -> None:
    """Until all shards are theirs."""
    async for image in client.images():
        if image.shards and {shard.owner for shard in image.shards.values()} == owners:
            return


async def join(client: ControllerClient) -> None:
    """As a coordinator."""
    node = Node(NodeKey(Role.COORDINATOR, client.key.id), Endpoint("127.0.0.1", 9600), bytes([client.key.id]) * 16, -1)
    registered = await client.register(Registration(node))
    await client.wait_until_unfenced()
    async for image in client.images():
        if client.key in image.nodes and not image.nodes[client.key].fenced:
            assert image.nodes[client.key].epoch == registered.epoch
            return


async def test_it_registers_gets_shards_and_leaves() -> None:
    async with lab(SEED, coordinators=0) as cluster, open_tie(cluster, Role.COORDINATOR, 5) as five:
        await join(five)
        revision = await five.ensure_internal_topic(ShardKind.GROUPS)
        await wait_for_shards(five, {5})
        assert five.image.revision >= revision
        assert {shard.epoch for shard in five.image.shards.values()} == {1}
        async with open_tie(cluster, Role.COORDINATOR, 6) as six:
            await join(six)
            await wait_for_shards(five, {5, 6})
            assert await six.leave(15_000)
            await wait_for_shards(five, {5})
        assert await five.leave(15_000)
        await wait_for_shards(five, {NO_NODE})


async def test_what_keeps_the_topic_from_being_made_is_told_after_the_time_given() -> None:
    async with lab(SEED, coordinators=0) as cluster, open_tie(cluster, Role.COORDINATOR, 5) as client:
        cluster.kill(broker=1)
        await asyncio.sleep(SESSION_S)
        began_ms = SystemClock().monotonic_ms()
        with pytest.raises(CoordinatorNotAvailable, match="0 of 1"):
            await client.ensure_internal_topic(ShardKind.GROUPS, timeout_ms=300)
        assert 50 <= SystemClock().monotonic_ms() - began_ms <= 300, "it was asked again, as long as there was time"
