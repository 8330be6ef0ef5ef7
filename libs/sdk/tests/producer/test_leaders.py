"""Producers while leaders change: who is asked next, how soon, and that one broker's trouble is nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace.aio import Producer
from headrace.errors import DeliveryTimedOut, ErrorCode
from headrace_common.core.batch import read_header
from headrace_proto.v1 import broker_pb2 as pb

T = TypeVar("T")
LONG_MS = 600_000
"""A pause that no test survives: what passes did not wait for it."""
PAUSES = {"retry_backoff_ms": LONG_MS, "retry_backoff_max_ms": LONG_MS}


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs(brokers=3)
    made.create_topic("t", 3)
    return made


def producer(cluster: LabCluster, **settings: Any) -> Producer:
    return Producer(_transport=cluster.transport(), **{"linger_ms": 0, **settings})


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, 20)


async def metadata_is_asked(cluster: LabCluster, times: int) -> None:
    """Return when so many questions for metadata have come in from now on."""
    left, done = times, asyncio.Event()

    def count(api: str, *_: Any) -> None:
        nonlocal left
        left -= api == "metadata"
        if left <= 0:
            done.set()

    cluster.on_request = count
    await soon(done.wait())
    cluster.on_request = None


def asked_epochs(cluster: LabCluster, partition: int = 0) -> list[int]:
    entries = [entry for request in cluster.faults.produced for entry in request.partitions]
    return [entry.leader_epoch for entry in entries if entry.partition == partition]


async def test_the_leader_that_an_answer_names_is_asked_at_once_under_its_epoch(cluster: LabCluster) -> None:
    asked: list[str] = []
    never = asyncio.Event()
    async with producer(cluster, **PAUSES) as client:
        await soon(await client.send("t", b"0", partition=0))
        cluster.move_leader("t", 0, 2)
        cluster.on_request = lambda api, *_: (
            asked.append(api) or (Fault(Does.HOLD, until=never) if api == "metadata" else None)
        )
        await soon(await client.send("t", b"1", partition=0))
        await soon(await client.send("t", b"2", partition=0))
    assert asked_epochs(cluster) == [0, 0, 1, 1], "refused once, then at the new leader as the new leader counts"
    assert cluster.values("t", 0) == [b"0", b"1", b"2"]
    assert asked.count("metadata") <= 1, "asked in the background, and nobody waited for it"


async def test_who_is_elected_after_a_kill_is_found_without_the_pauses_of_retries(cluster: LabCluster) -> None:
    async with producer(cluster, **PAUSES) as client:
        await soon(await client.send("t", b"0", partition=0))
        cluster.kill(1)
        deliveries = [await client.send("t", b"%d" % n, partition=0) for n in range(1, 20)]
        await metadata_is_asked(cluster, 3)
        assert not any(delivery.done() for delivery in deliveries)
        for delivery in deliveries:
            await soon(delivery)
    assert cluster.values("t", 0) == [b"%d" % n for n in range(20)]


async def test_a_leaderless_time_is_bridged(cluster: LabCluster) -> None:
    async with producer(cluster, **PAUSES) as client:
        cluster.create_topic("lone", on=[[3]])
        await soon(await client.send("lone", b"0"))
        cluster.stop(3)
        delivery = await client.send("lone", b"1")
        await metadata_is_asked(cluster, 3)
        cluster.restart(3)
        assert (await soon(delivery)).offset == 1


async def test_a_broker_that_is_silent_is_not_waited_for_once_another_leads(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        for n in range(3):
            await soon(await client.send("t", b"0", partition=n))
        cluster.pause(1)
        stuck = await client.send("t", b"1", partition=0)
        await soon(await client.send("t", b"1", partition=1))
        assert (await soon(stuck)).offset == 1, "long before the request times out"
        cluster.resume(1)
        await soon(await client.send("t", b"2", partition=0))
    assert cluster.values("t", 0) == [b"0", b"1", b"2"]


async def test_a_silent_leader_is_not_the_one_who_is_asked_for_another(
    cluster: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off from the controllers it goes on answering with the metadata that it knew."""
    transport = cluster.transport()
    async with Producer(_transport=transport, linger_ms=0) as client:
        await soon(await client.send("t", b"0", partition=0))
        old, asks = await transport.metadata(pb.MetadataRequest(topics=["t"])), transport.metadata

        async def metadata(request: pb.MetadataRequest, *, elsewhere: bool = False) -> pb.MetadataResponse:
            return await asks(request) if elsewhere else old

        monkeypatch.setattr(transport, "metadata", metadata)
        cluster.pause(1)
        stuck = await client.send("t", b"1", partition=0)
        assert (await soon(stuck)).offset == 1
        cluster.resume(1)


async def test_a_dead_broker_stalls_only_what_it_leads(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        for n in range(3):
            await soon(await client.send("t", b"0", partition=n))
        cluster.create_topic("lone", on=[[1]])
        await soon(await client.send("lone", b"0"))
        cluster.kill(1)
        stuck = await client.send("lone", b"1")
        for n in range(50):
            await soon(await client.send("t", b"%d" % n, partition=1 + n % 2))
        assert not stuck.done()
        cluster.restart(1)
        await soon(stuck)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
@pytest.mark.parametrize("carried_out", [False, True])
async def test_what_passes_is_repeated_once_and_in_order(
    cluster: LabCluster, code: ErrorCode, carried_out: bool
) -> None:
    async with producer(cluster, retry_backoff_ms=1) as client:
        await soon(await client.send("t", b"0", partition=0))
        cluster.inject("produce", *[Fault(Does.ERROR, code=code, after=carried_out)] * 3)
        deliveries = [await client.send("t", b"%d" % n, partition=0) for n in range(1, 9)]
        assert [(await soon(delivery)).offset for delivery in deliveries] == list(range(1, 9))
    assert cluster.values("t", 0) == [b"%d" % n for n in range(9)]


async def test_leaders_that_move_all_the_time_lose_nothing(cluster: LabCluster) -> None:
    async with producer(cluster, batch_size=200, retry_backoff_ms=1, retry_backoff_max_ms=20) as client:
        deliveries = []
        for n in range(600):
            deliveries.append(await client.send("t", b"%06d" % n, partition=n % 3))
            if n % 20 == 0:
                cluster.move_leader("t", n // 20 % 3, 1 + n // 60 % 3)
            if n % 150 == 75:
                cluster.kill(1 + n // 150 % 3)
                await asyncio.sleep(0.01)
                cluster.restart(1 + n // 150 % 3)
            await asyncio.sleep(0)
        for delivery in deliveries:
            await soon(delivery)
    for partition in range(3):
        assert cluster.values("t", partition) == [b"%06d" % n for n in range(partition, 600, 3)]


async def test_a_timed_out_batch_leaves_its_sequence_and_the_next_epoch_goes_on(cluster: LabCluster) -> None:
    settings = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 300, "retry_backoff_ms": 10}
    cluster.create_topic("lone", on=[[2]])
    async with producer(cluster, **settings) as client:
        await soon(await client.send("lone", b"0"))
        cluster.on_request = lambda api, *_: Fault(Does.DROP) if api == "produce" else None
        lost = await client.send("lone", b"lost")
        with pytest.raises(DeliveryTimedOut, match="may have been written"):
            await soon(lost)
        cluster.on_request = None
        assert (await soon(await client.send("lone", b"1"))).offset == 1
    assert cluster.values("lone") == [b"0", b"1"]
    headers = [read_header(entry.batch) for request in cluster.faults.produced for entry in request.partitions]
    assert list(dict.fromkeys((header.producer_epoch, header.base_sequence) for header in headers)) == [
        (0, 0),
        (0, 1),
        (1, 0),
    ]
