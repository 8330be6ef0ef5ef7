"""Real processes and a cleaner in a hurry: what a coordinator reads when it takes shards over is what lives."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from services.coordinator.tests.kit.processes import Cluster, answered, running_cluster, until_answered
from services.coordinator.tests.kit.transactional import TransactionalProducer, until_stable

from headrace_proto.v1 import broker_pb2, controller_pb2
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

GROUPS = [f"g{n}" for n in range(4)]
PARTITIONS = 10
ROUNDS = 500
TOPIC = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
SEGMENT_BYTES = 16 << 10
PATIENCE_S = 60


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as found:
        await found.create_topic("t", PARTITIONS)
        yield found


async def configure(cluster: Cluster, kind: Any, name: str, **settings: str) -> None:
    changes = [controller_pb2.AlterConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    resource = controller_pb2.ConfigResource(type=kind, name=name)
    change = controller_pb2.AlterConfigsResource(resource=resource, changes=changes)
    stub: Any = ControllerStub(cluster.channel(cluster.controller.address))
    answer = await stub.IncrementalAlterConfigs(controller_pb2.IncrementalAlterConfigsRequest(resources=[change]))
    assert [result.error for result in answer.results] == [0], answer


async def commit(cluster: Cluster, group_id: str, offset: int) -> None:
    offsets = [pb.OffsetCommit(topic="t", partition=n, offset=offset, leader_epoch=-1) for n in range(PARTITIONS)]
    request = pb.CommitOffsetsRequest(group_id=group_id, generation=-1, offsets=offsets)
    _, stub = await cluster.find(group_id)
    await until_answered(lambda: stub.CommitOffsets(request, timeout=6))


async def committed(cluster: Cluster, group_id: str, *, but: int | None = None) -> set[int]:
    _, stub = await cluster.find(group_id, but=but)
    answer = await until_answered(lambda: stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=group_id), timeout=6))
    assert len(answer.offsets) == PARTITIONS
    return {one.offset for one in answer.offsets}


async def logs_of(cluster: Cluster, topic: str) -> list[broker_pb2.LogDescription]:
    stub: Any = BrokerStub(cluster.channel(cluster.brokers[0].address))
    found = await stub.Metadata(broker_pb2.MetadataRequest(topics=[topic]))
    answer = await stub.DescribeLogs(broker_pb2.DescribeLogsRequest(topic_ids=[found.topics[0].topic_id]))
    return list(answer.logs)


async def until_clean(cluster: Cluster, topic: str, left: int) -> None:
    """Until no log has more than ``left`` offsets above what was compacted."""
    async with asyncio.timeout(PATIENCE_S):
        while any(one.log_end_offset - one.compaction.cleaned_to > left for one in await logs_of(cluster, topic)):
            await asyncio.sleep(0.1)


async def test_a_load_takes_as_long_as_there_are_keys_not_as_there_were_commits(cluster: Cluster) -> None:
    for group_id in GROUPS:
        await commit(cluster, group_id, 0)
    await configure(cluster, controller_pb2.BROKER_CONFIG, "", log_cleaner_backoff_ms="100")
    hurry = {"segment_bytes": str(SEGMENT_BYTES), "min_cleanable_dirty_ratio": "0.01"}
    await configure(cluster, controller_pb2.TOPIC_CONFIG, TOPIC, **hurry)

    async def write(group_id: str) -> None:
        for offset in range(1, ROUNDS + 1):
            await commit(cluster, group_id, offset)

    await asyncio.gather(*map(write, GROUPS))
    written = sum(one.log_end_offset for one in await logs_of(cluster, TOPIC))
    assert written >= len(GROUPS) * PARTITIONS * ROUNDS
    await until_clean(cluster, TOPIC, 1_000)

    owner, _ = await cluster.find(GROUPS[0])
    heir = cluster.of(3 - owner)
    before = len(heir.logged("shard is served"))
    await cluster.of(owner).stop(signal.SIGKILL)
    for group_id in GROUPS:
        assert await committed(cluster, group_id, but=owner) == {ROUNDS}
    loads = heir.logged("shard is served")[before:]
    assert sum(load["records"] for load in loads) < written / 5, loads
    for group_id in GROUPS:
        await commit(cluster, group_id, ROUNDS + 1)
        assert await committed(cluster, group_id) == {ROUNDS + 1}


async def test_groups_that_were_deleted_stay_deleted_when_nothing_of_them_is_left(cluster: Cluster) -> None:
    await commit(cluster, "gone", 7)
    await commit(cluster, "stays", 7)
    await configure(cluster, controller_pb2.BROKER_CONFIG, "", log_cleaner_backoff_ms="100")
    hurry = {"segment_bytes": "1024", "min_cleanable_dirty_ratio": "0.01"}
    await configure(cluster, controller_pb2.TOPIC_CONFIG, TOPIC, **hurry)
    owner, stub = await cluster.find("gone")
    await answered(stub.DeleteGroups(pb.DeleteGroupsRequest(group_ids=["gone"])))
    for offset in range(8, 60):
        await commit(cluster, "stays", offset)
    await cluster.of(owner).stop(signal.SIGKILL)
    _, other = await cluster.find("gone", but=owner)
    found = await until_answered(lambda: other.FetchOffsets(pb.FetchOffsetsRequest(group_id="gone"), timeout=6))
    assert list(found.offsets) == []


async def test_ids_of_transactions_are_loaded_not_their_history(cluster: Cluster) -> None:
    producers = [TransactionalProducer(cluster, f"id-{number}") for number in range(4)]
    for producer in producers:
        await producer.init()
    await configure(cluster, controller_pb2.BROKER_CONFIG, "", log_cleaner_backoff_ms="100")
    hurry = {"segment_bytes": "1024", "min_cleanable_dirty_ratio": "0.01"}
    await configure(cluster, controller_pb2.TOPIC_CONFIG, TRANSACTIONS, **hurry)

    async def write(producer: TransactionalProducer) -> None:
        for number in range(60):
            await producer.send("t", 0, f"{producer.id}-{number}".encode())
            await producer.end(commit=True)

    await asyncio.gather(*map(write, producers))
    written = sum(one.log_end_offset for one in await logs_of(cluster, TRANSACTIONS))
    assert written >= 4 * 60 * 2
    await until_clean(cluster, TRANSACTIONS, 30)

    owner, _ = await cluster.locate(broker_pb2.TRANSACTION, "id-0")
    heir = cluster.of(3 - owner)
    before = len(heir.logged("shard is served"))
    await cluster.of(owner).stop(signal.SIGKILL)
    for producer in producers:
        await producer.send("t", 0, b"after")
        await producer.end(commit=True)
    loads = heir.logged("shard is served")[before:]
    assert sum(load["records"] for load in loads) < written / 4, loads
    values = await until_stable(cluster, "t", 0)
    assert len(values) == len(producers) * 61
    assert values.count(b"after") == len(producers)
