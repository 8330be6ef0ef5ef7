"""Producers that are ahead of their brokers: what waits goes in larger batches, several of a partition in a request."""

from __future__ import annotations

from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace.aio import Consumer, Producer
from headrace.errors import ErrorCode
from headrace_common.core.batch import decode_batch
from headrace_common.core.features import REPEATED_PARTITIONS

VALUES = [b"%04d" % n + b"x" * 96 for n in range(1_000)]
CALLS = 20
USUAL = 131_072
RISEN_S = 5.0
"""The cluster's feature level has risen."""


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs()
    made.create_topic("one", 1)
    made.pass_time(RISEN_S)
    return made


def producer(cluster: LabCluster, **settings: Any) -> Producer:
    return Producer(_transport=cluster.transport(), **{"linger_ms": 0, "retry_backoff_ms": 1, **settings})


async def write_all(p: Producer, topic: str = "one", calls: int = CALLS) -> None:
    """Records for ``calls`` times 116 kB, all before the first leaves; the partition's leader knows the producer."""
    await (await p.send(topic, b"first", partition=0))
    for _ in range(calls):
        await p.send_many(topic, VALUES, partition=0)
    await p.flush()


def values_of(cluster: LabCluster, topic: str = "one", partition: int = 0) -> list[Any]:
    return [value for batch in cluster.log(topic, partition).batches for value in decode_batch(batch).values()]


def sizes_of(cluster: LabCluster, topic: str = "one") -> list[int]:
    return [len(batch) for batch in cluster.log(topic, 0).batches]


async def test_batches_that_wait_grow_to_the_largest_and_nothing_else_changes(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        await write_all(p)
    sizes = sizes_of(cluster)
    assert max(sizes) > 2 * USUAL
    assert all(size <= 1_000_000 for size in sizes)
    assert values_of(cluster) == [b"first", *VALUES * CALLS]


async def test_a_batch_size_that_was_given_is_the_largest(cluster: LabCluster) -> None:
    async with producer(cluster, batch_size=20_000) as p:
        await write_all(p)
    assert all(size <= 30_000 for size in sizes_of(cluster)), "by half at most, rather than leave a runt"
    assert values_of(cluster) == [b"first", *VALUES * CALLS]


async def test_small_batches_of_a_partition_share_requests_and_keep_their_order(cluster: LabCluster) -> None:
    cluster.create_topic("small", 1, max_message_bytes=65_536)
    async with producer(cluster) as p:
        await write_all(p, "small")
        assert p._engine.cluster.feature_level >= REPEATED_PARTITIONS.level
    assert max(sizes_of(cluster, "small")) <= 65_536
    entries = [len(request.partitions) for request in cluster.faults.produced]
    assert max(entries) > 1
    assert all(sum(len(e.batch) for e in request.partitions) <= 1 << 20 for request in cluster.faults.produced)
    assert values_of(cluster, "small") == [b"first", *VALUES * CALLS]


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_requests_that_are_refused_lost_or_answered_late_change_no_order(
    cluster: LabCluster, code: ErrorCode
) -> None:
    ways = [Fault(Does.ERROR, code=code), Fault(Does.DROP, after=True), Fault(Does.ERROR, code=code, after=True)]
    async with producer(cluster, batch_size=8_000) as p:
        await (await p.send("one", b"before", partition=0))
        cluster.inject("produce", *ways, Fault(Does.DROP))
        await write_all(p)
    assert values_of(cluster) == [b"before", b"first", *VALUES * CALLS]


async def test_brokers_of_a_version_before_get_one_batch_of_a_partition_in_a_request(
    cluster: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.aio._client.ClusterClient.feature_level", REPEATED_PARTITIONS.level - 1)
    async with producer(cluster, batch_size=20_000) as p:
        await write_all(p)
    assert {len(request.partitions) for request in cluster.faults.produced} == {1}
    assert values_of(cluster) == [b"first", *VALUES * CALLS]


async def test_consumers_that_fetch_little_at_a_time_get_large_batches(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        await write_all(p)
    read: list[Any] = []
    settings: dict[str, Any] = {"max_partition_fetch_bytes": 65_536, "auto_offset_reset": "earliest"}
    async with Consumer("one", _transport=cluster.transport(), **settings) as consumer:
        while len(read) < CALLS * len(VALUES) + 1:
            read += [record.value for record in await consumer.poll(10_000)]
    assert read == [b"first", *VALUES * CALLS]


async def test_many_partitions_share_the_memory(cluster: LabCluster) -> None:
    partitions, rounds = 100, 40
    cluster.create_topic("wide", partitions)
    keys = [b"%d" % (n % 977) for n in range(len(VALUES))]
    async with producer(cluster, buffer_memory=1 << 20, max_request_size=1 << 18) as p:
        for _ in range(rounds):
            await p.send_many("wide", VALUES, keys)
        await p.flush()
    written = [values_of(cluster, "wide", partition) for partition in range(partitions)]
    assert sum(map(len, written)) == rounds * len(VALUES)
    assert all(values == values[: len(values) // rounds] * rounds for values in written), "in order, each once"
