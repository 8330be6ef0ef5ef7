"""The engine feeds readiness from images as they come, and from the clock for the limit only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from libs.common.tests.kit.clock import FakeClock

from headrace_broker.core.readiness import Readiness
from headrace_broker.engine.readiness import until_caught_up
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Node, NodeKey, Partition, Role
from headrace_common.runtime.tasks import TaskRunner

ME, OURS = NodeId(0), b"o" * 16
ID = PartitionId(TopicId(b"a" * 16), 0)


class Images:
    """Those that a test sends, in turn."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[ClusterImage] = asyncio.Queue()

    def send(self, *, in_sync: bool, fenced: bool = False) -> None:
        me = Node(NodeKey(Role.BROKER, ME), Endpoint("b", 1), OURS, epoch=1, fenced=fenced)
        isr = (ME, NodeId(1)) if in_sync else (NodeId(1),)
        partition = Partition(ID, (ME, NodeId(1)), isr, NodeId(1), leader_epoch=1, partition_epoch=1)
        self._waiting.put_nowait(replace(EMPTY_IMAGE, nodes={me.key: me}, partitions={ID: partition}))

    async def __aiter__(self) -> AsyncIterator[ClusterImage]:
        while True:
            image = await self._waiting.get()
            yield image
            self._waiting.task_done()

    async def taken(self) -> None:
        await self._waiting.join()


async def test_it_returns_when_the_last_replica_is_in_sync() -> None:
    images, clock = Images(), FakeClock()
    async with TaskRunner() as tasks:
        waiting = tasks.start(until_caught_up(Readiness(ME, OURS, 1_000.0), aiter(images), clock), name="w")
        images.send(in_sync=False, fenced=True)
        images.send(in_sync=False)
        await images.taken()
        assert not waiting.done()
        images.send(in_sync=True)
        await asyncio.wait_for(waiting, 10)


async def test_it_returns_at_the_limit_and_says_what_is_behind(caplog: pytest.LogCaptureFixture) -> None:
    images, clock = Images(), FakeClock()
    async with TaskRunner() as tasks:
        waiting = tasks.start(until_caught_up(Readiness(ME, OURS, 1_000.0), aiter(images), clock), name="w")
        images.send(in_sync=False, fenced=True)
        await images.taken()
        await clock.advance(5_000)
        assert not waiting.done(), "the limit counts from when it takes part"
        images.send(in_sync=False)
        await images.taken()
        await clock.advance(999)
        assert not waiting.done()
        await clock.advance(1)
        await asyncio.wait_for(waiting, 10)
    assert str(ID) in str(caplog.records[-1].__dict__["partitions"])
