"""A consumer of replicated partitions: leaders that move, die or fall silent, followers in its rack, lost tails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import TopicPartition
from headrace.aio import Consumer
from headrace.errors import LogTruncated

ZERO = TopicPartition("t", 0)
LONG_MS = 600_000


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs(3, racks={2: "here"})
    made.create_topic("t", 1)
    return made


@asynccontextmanager
async def reading(cluster: LabCluster, **settings: Any) -> AsyncIterator[Consumer]:
    async with cluster.aio_consumer("t", **settings) as consumer:
        yield consumer


async def write(cluster: LabCluster, *numbers: int, acks: str | int = "all") -> None:
    async with cluster.aio_producer(linger_ms=0, acks=acks, enable_idempotence=acks == "all") as producer:
        for number in numbers:
            await (await producer.send("t", b"%d" % number))


@pytest.fixture
def fetched(cluster: LabCluster) -> list[int]:
    """Whom consumers fetched from, with what came several times in a row once."""
    asked: list[int] = []

    def note(api: str, broker: int, _: Any) -> None:
        if api == "fetch" and asked[-1:] != [broker]:
            asked.append(broker)

    cluster.on_request = note
    return asked


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    taken: list[bytes | None] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            taken += [record.value for record in await consumer.poll(timeout_ms=1_000)]
    return taken


@pytest.mark.parametrize("leave", [LabCluster.stop, LabCluster.kill])
async def test_reading_goes_on_at_the_new_leader_without_pauses(
    cluster: LabCluster, leave: Callable[[LabCluster, int], None]
) -> None:
    await write(cluster, 0)
    async with reading(cluster, retry_backoff_ms=LONG_MS, retry_backoff_max_ms=LONG_MS) as consumer:
        assert await values(consumer, 1) == [b"0"]
        for number, step in enumerate((lambda: cluster.move_leader("t", 0, 2), lambda: leave(cluster, 2)), start=1):
            step()
            await write(cluster, number)
            assert await values(consumer, 1) == [b"%d" % number]


async def test_a_silent_leader_is_left_when_another_is_elected(cluster: LabCluster) -> None:
    await write(cluster, 0)
    async with reading(cluster, fetch_max_wait_ms=50) as consumer:
        assert await values(consumer, 1) == [b"0"]
        cluster.pause(1)
        await write(cluster, 1)
        [record] = await consumer.poll(timeout_ms=15_000)
        assert (record.value, record.leader_epoch) == (b"1", 1)
        cluster.resume(1)
        await write(cluster, 2)
        assert await values(consumer, 1) == [b"2"]


async def test_a_follower_in_the_rack_is_read_from_and_left_when_it_dies(
    cluster: LabCluster, fetched: list[int]
) -> None:
    await write(cluster, 0, 1)
    async with reading(cluster, client_rack="here") as consumer:
        assert await values(consumer, 2) == [b"0", b"1"]
        assert fetched == [1, 2]
        cluster.kill(2)
        await write(cluster, 2)
        assert await values(consumer, 1) == [b"2"]
        assert fetched == [1, 2, 1]
    assert cluster.leader("t") == (1, 0)


async def test_without_a_rack_only_leaders_are_asked(cluster: LabCluster, fetched: list[int]) -> None:
    await write(cluster, 0)
    async with reading(cluster) as consumer:
        assert await values(consumer, 1) == [b"0"]
    assert fetched == [1]


async def test_a_follower_that_is_behind_makes_nobody_go_back(cluster: LabCluster, fetched: list[int]) -> None:
    await write(cluster, 0, 1, 2)
    async with reading(cluster, client_rack="here", retry_backoff_ms=1, fetch_max_wait_ms=10) as consumer:
        assert await values(consumer, 3) == [b"0", b"1", b"2"]
        cluster.nodes.delay(1, 2, ms=(300, 300))
        await write(cluster, 3)
        consumer.seek_to_end(ZERO)
        assert await consumer.position(ZERO) == 4, "the follower has it, and knows not yet that it is committed"
        await write(cluster, 4)
        assert await values(consumer, 1) == [b"4"], "from the leader, as the follower knows no better"
        assert fetched == [1, 2, 1]
        assert consumer.health().resets == 0


@pytest.fixture
def uncleanly_led(labs: Labs) -> LabCluster:
    """Broker 1 leads; broker 2 leads if it has to, with what it has."""
    made = labs(2)
    made.create_topic("t", 1, min_insync_replicas=1, unclean_leader_election_enable="true")
    return made


async def lose_tail(cluster: LabCluster, consumer: Consumer) -> None:
    """Records 1 and 2 are read and lost."""
    await write(cluster, 0)
    assert await values(consumer, 1) == [b"0"]
    cluster.nodes.cut(1, 2)
    await write(cluster, 1, 2)
    assert await values(consumer, 2) == [b"1", b"2"]
    cluster.kill(1)
    await write(cluster, 10, 11, 12)


async def test_what_an_unclean_election_lost_is_an_error_that_says_where_to_go_on(uncleanly_led: LabCluster) -> None:
    async with reading(uncleanly_led, auto_offset_reset="none") as consumer:
        consumer.seek_to_beginning()
        await lose_tail(uncleanly_led, consumer)
        with pytest.raises(LogTruncated, match="records 1 to 2 were read and are lost") as told:
            await values(consumer, 1)
        assert told.value.partition == ZERO
        consumer.seek(ZERO, told.value.offset)
        assert await values(consumer, 3) == [b"10", b"11", b"12"]


async def test_with_a_reset_it_goes_on_there_and_counts_it(uncleanly_led: LabCluster) -> None:
    async with reading(uncleanly_led, auto_offset_reset="latest") as consumer:
        consumer.seek_to_beginning()
        await lose_tail(uncleanly_led, consumer)
        assert await values(consumer, 3) == [b"10", b"11", b"12"], "nothing between is skipped"
        assert consumer.health().resets == 1


async def test_the_end_that_a_new_leader_does_not_know_yet_is_waited_for(cluster: LabCluster) -> None:
    for other in (1, 2):
        cluster.nodes.cut(3, other)
    await write(cluster, 0, acks=1)
    cluster.stop(1)
    assert cluster.leader("t") == (2, 1), "which has the record, and cannot commit it without broker 3"
    async with reading(cluster, auto_offset_reset="latest", retry_backoff_ms=5) as consumer:
        asking = asyncio.ensure_future(consumer.end_offsets([ZERO]))
        position = asyncio.ensure_future(consumer.position(ZERO))
        await asyncio.sleep(1)
        assert not asking.done()
        assert not position.done()
        cluster.nodes.heal()
        assert await asking == {ZERO: 1}
        assert await position == 1
