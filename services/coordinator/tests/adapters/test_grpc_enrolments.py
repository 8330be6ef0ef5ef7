"""Enrolments over gRPC, at a coordinator of transactions that serves over the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from services.coordinator.tests.kit.dialogue import Running, serving_coordinator
from services.coordinator.tests.kit.ports import MemoryCluster

from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    NetworkFailed,
    NotCoordinator,
)
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import EMPTY_IMAGE, INTERNAL_TOPICS, NodeKey, Role, ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.adapters.grpc_enrolments import GrpcEnrolments, coordinator_in
from headrace_coordinator.core.transactions.values import Producer

SHARDS = 4


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving_coordinator({"t": 4}, shards=SHARDS) as world:
        yield world


@pytest.fixture
async def enrolments(running: Running) -> AsyncIterator[GrpcEnrolments]:
    running.cluster.join(1, running.endpoint)
    connections = BrokerConnections(running.tasks)
    yield GrpcEnrolments(running.cluster, connections)
    await connections.close()


async def init(running: Running, transactional_id: str = "tid") -> Producer:
    return (await running.transactions.init(transactional_id, 60_000, None)).producer


@pytest.mark.parametrize("transactional_id", ["tid", "other", "x" * 249])
async def test_a_shard_becomes_part_of_the_transaction(
    running: Running, enrolments: GrpcEnrolments, transactional_id: str
) -> None:
    producer = await init(running, transactional_id)
    for shard in (2, 3, 2):
        await enrolments.enrol(transactional_id, producer.producer_id, producer.epoch, shard)
    found = (await running.transactions.describe(transactional_id)).found
    topic = running.cluster.image.topic(INTERNAL_TOPICS[ShardKind.GROUPS])
    assert topic is not None
    assert sorted(found.partitions) == [(topic.topic_id, 2), (topic.topic_id, 3)]  # described


async def test_refusals_are_typed(running: Running, enrolments: GrpcEnrolments) -> None:
    producer = await init(running)
    with pytest.raises(InvalidProducerIdMapping):
        await enrolments.enrol("tid", producer.producer_id + 1, producer.epoch, 0)
    with pytest.raises(InvalidProducerEpoch):
        await enrolments.enrol("tid", producer.producer_id, producer.epoch + 1, 0)


async def test_a_coordinator_that_is_not_the_one(running: Running, enrolments: GrpcEnrolments) -> None:
    producer = await init(running)
    running.cluster.give(2, *range(SHARDS), kind=ShardKind.TRANSACTIONS)
    with pytest.raises(CoordinatorNotAvailable, match="nobody coordinates 'tid'"):
        await enrolments.enrol("tid", producer.producer_id, producer.epoch, 0)
    running.cluster.join(2, running.endpoint)  # another node's address, by mistake
    with pytest.raises(NotCoordinator):
        await enrolments.enrol("tid", producer.producer_id, producer.epoch, 0)


async def test_a_coordinator_that_is_gone(running: Running, enrolments: GrpcEnrolments) -> None:
    running.cluster.join(1, Endpoint("127.0.0.1", 1))
    with pytest.raises(NetworkFailed):
        await enrolments.enrol("tid", 1, 0, 0)


def test_ids_of_one_owner_are_with_its_coordinator() -> None:
    cluster = MemoryCluster(shards=16)
    for node in range(16):
        cluster.join(node)
        cluster.give(node, node, kind=ShardKind.TRANSACTIONS)
    owners = {coordinator_in(cluster.image, f"job/{n}").key for n in range(50)}
    assert owners == {coordinator_in(cluster.image, "job").key}
    assert len({coordinator_in(cluster.image, f"job-{n}").key for n in range(50)}) > 5
    shard = partition_for(b"tid", 16)  # as FindCoordinator says
    assert coordinator_in(cluster.image, "tid").key == NodeKey(Role.COORDINATOR, NodeId(shard))


def test_without_transactions_there_is_nobody() -> None:
    with pytest.raises(CoordinatorNotAvailable, match="no transactions yet"):
        coordinator_in(EMPTY_IMAGE, "tid")
