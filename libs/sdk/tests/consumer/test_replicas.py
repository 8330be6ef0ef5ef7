"""A consumer of replicated partitions: leaders that move, die or fall silent, followers in its rack, lost tails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from libs.sdk.tests.twin.memory import MemoryCluster

from headrace import TopicPartition
from headrace.aio import Consumer, Producer
from headrace.errors import LogTruncated
from headrace_common.core.ids import NodeId

ZERO = TopicPartition("t", 0)
LONG_MS = 600_000
B = NodeId(2)


@pytest.fixture
def cluster() -> MemoryCluster:
    made = MemoryCluster(brokers=3)
    made.create_topic("t", 1)
    return made


@asynccontextmanager
async def reading(cluster: MemoryCluster, **settings: Any) -> AsyncIterator[Consumer]:
    given = {"auto_offset_reset": "earliest", **settings}
    async with Consumer("t", _transport=cluster.transport(), **given) as consumer:
        yield consumer


async def write(cluster: MemoryCluster, *numbers: int) -> None:
    async with Producer(_transport=cluster.transport(), linger_ms=0) as producer:
        for number in numbers:
            await (await producer.send("t", b"%d" % number))


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    taken: list[bytes | None] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            taken += [record.value for record in await consumer.poll(timeout_ms=1_000)]
    return taken


async def test_reading_goes_on_at_the_new_leader_without_pauses(cluster: MemoryCluster) -> None:
    await write(cluster, 0)
    async with reading(cluster, retry_backoff_ms=LONG_MS, retry_backoff_max_ms=LONG_MS) as consumer:
        assert await values(consumer, 1) == [b"0"]
        for number, step in enumerate((lambda: cluster.move_leader("t", 0, 2), lambda: cluster.kill(2)), start=1):
            step()
            await write(cluster, number)
            assert await values(consumer, 1) == [b"%d" % number]


async def test_a_silent_leader_is_left_when_another_is_elected(cluster: MemoryCluster) -> None:
    await write(cluster, 0)
    async with reading(cluster, fetch_max_wait_ms=50) as consumer:
        assert await values(consumer, 1) == [b"0"]
        cluster.pause(1)
        cluster.depose(1)
        await write(cluster, 1)
        [record] = await consumer.poll(timeout_ms=15_000)
        assert (record.value, record.leader_epoch) == (b"1", 1)
        cluster.resume(1)
        await write(cluster, 2)
        assert await values(consumer, 1) == [b"2"]


async def test_a_follower_in_the_rack_is_read_from_and_left_when_it_dies(cluster: MemoryCluster) -> None:
    cluster.racks = {B: "here"}
    asked: list[NodeId] = []
    cluster.on_request = lambda api, broker, _: asked.append(broker) if api == "fetch" else None
    await write(cluster, 0, 1)
    async with reading(cluster, client_rack="here") as consumer:
        assert await values(consumer, 2) == [b"0", b"1"]
        assert asked[:2] == [1, B]
        assert B in asked
        cluster.kill(B, elect=False)
        await write(cluster, 2)
        assert await values(consumer, 1) == [b"2"]
        assert asked[-1] == 1
    assert cluster.partition("t", 0).leader_epoch == 0


async def test_without_a_rack_only_leaders_are_asked(cluster: MemoryCluster) -> None:
    cluster.racks = {B: "here"}
    asked: set[NodeId] = set()
    cluster.on_request = lambda api, broker, _: asked.add(broker) if api == "fetch" else None
    await write(cluster, 0)
    async with reading(cluster) as consumer:
        assert await values(consumer, 1) == [b"0"]
    assert asked == {1}


async def test_a_follower_that_is_behind_makes_nobody_go_back(cluster: MemoryCluster) -> None:
    cluster.racks = {B: "here"}
    await write(cluster, 0, 1, 2)
    async with reading(cluster, client_rack="here", retry_backoff_ms=1, fetch_max_wait_ms=10) as consumer:
        assert await values(consumer, 3) == [b"0", b"1", b"2"]
        cluster.partition("t", 0).known[B] = 1
        await write(cluster, 3)
        assert await values(consumer, 1) == [b"3"], "from the leader, as the follower knows no better"
        assert await consumer.position(ZERO) == 4
        assert consumer.health().resets == 0


async def test_what_an_unclean_election_lost_is_an_error_that_says_where_to_go_on(cluster: MemoryCluster) -> None:
    await write(cluster, 0, 1, 2)
    async with reading(cluster, auto_offset_reset="none") as consumer:
        consumer.seek_to_beginning()
        assert await values(consumer, 3) == [b"0", b"1", b"2"]
        cluster.lose("t", 0, 1, 2)
        await write(cluster, 10, 11, 12)
        with pytest.raises(LogTruncated, match="records 1 to 2 were read and are lost") as told:
            await values(consumer, 1)
        assert told.value.partition == ZERO
        consumer.seek(ZERO, told.value.offset)
        assert await values(consumer, 3) == [b"10", b"11", b"12"]


async def test_with_a_reset_it_goes_on_there_and_counts_it(cluster: MemoryCluster) -> None:
    await write(cluster, 0, 1, 2)
    async with reading(cluster, auto_offset_reset="latest") as consumer:
        consumer.seek_to_beginning()
        assert await values(consumer, 3) == [b"0", b"1", b"2"]
        cluster.lose("t", 0, 1, 2)
        await write(cluster, 10, 11, 12)
        assert await values(consumer, 3) == [b"10", b"11", b"12"], "nothing between is skipped"
        assert consumer.health().resets == 1


async def test_the_end_that_a_new_leader_does_not_know_yet_is_waited_for(cluster: MemoryCluster) -> None:
    await write(cluster, 0)
    partition = cluster.partition("t", 0)
    partition.end_known = False
    async with reading(cluster, auto_offset_reset="latest", retry_backoff_ms=5) as consumer:
        asking = asyncio.ensure_future(consumer.end_offsets([ZERO]))
        position = asyncio.ensure_future(consumer.position(ZERO))
        await asyncio.sleep(0.1)
        assert not asking.done()
        assert not position.done()
        partition.end_known = True
        async with asyncio.timeout(20):
            assert await asking == {ZERO: 1}
            assert await position == 1
