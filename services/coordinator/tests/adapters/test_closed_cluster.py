"""What a coordinator asks of brokers in a closed cluster, where it is a node and nobody has given it a right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from services.broker.tests.kit.cluster import image_of
from services.broker.tests.kit.guarded import guarded_broker, node

from headrace_common.core.errors import ClusterAuthorizationFailed, TopicAuthorizationFailed, Unauthenticated
from headrace_common.core.ids import Endpoint, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, Role, ShardKey, ShardKind
from headrace_common.rpc.channels import Metadata, Security
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.adapters.broker_producer_ids import BrokerProducerIds
from headrace_coordinator.adapters.grpc_log_ends import GrpcLogEnds
from headrace_coordinator.adapters.grpc_shard_log import GrpcShardLogs

KEY = ShardKey(ShardKind.GROUPS, 0)


@dataclass
class Asking:
    """The adapters of a process that shows something."""

    logs: GrpcShardLogs
    ends: GrpcLogEnds
    ids: BrokerProducerIds
    of_users: PartitionId


@asynccontextmanager
async def asking(shows: Metadata) -> AsyncIterator[Asking]:
    """A broker leads an internal topic and one of users; who asks it shows this."""
    async with guarded_broker() as guarded, TaskRunner() as tasks:
        connections = BrokerConnections(tasks, Security(lambda _: shows))
        image = _led(guarded.target)
        await guarded.show(image)
        cluster = guarded.cluster
        yield Asking(
            GrpcShardLogs(cluster, connections, SystemClock()),
            GrpcLogEnds(cluster, connections),
            BrokerProducerIds(cluster, connections),
            PartitionId(image.topic_ids["orders"], 0),
        )
        await connections.close()


def _led(target: str) -> ClusterImage:
    image = image_of({INTERNAL_TOPICS[ShardKind.GROUPS]: 1, "orders": 1}, endpoint=Endpoint.parse(target))
    topics = {id: replace(topic, internal=topic.name.startswith("__")) for id, topic in image.topics.items()}
    return replace(image, topics=topics)


async def test_a_coordinator_keeps_its_log_and_asks_where_others_end() -> None:
    async with asking(node(Role.COORDINATOR)) as by:
        log = by.logs.open(KEY, 1)
        begin = await log.take_over()
        await log.append([(b"a", b"1")])
        until = await by.logs.open(KEY, 2).take_over()
        found = [record async for part in log.read(until) for record in zip(part.keys, part.values, strict=True)]
        assert (begin > 0, found) == (True, [(b"a", b"1")])
        assert await by.ends.ends([by.of_users]) == {by.of_users: 0}
        assert await by.ids.next_id() > 0


async def test_another_node_has_nothing_of_that() -> None:
    async with asking(node(Role.BROKER)) as by:
        with pytest.raises((TopicAuthorizationFailed, ClusterAuthorizationFailed)):
            await by.logs.open(KEY, 1).take_over()
        assert await by.ends.ends([by.of_users]) == {}
        with pytest.raises(TopicAuthorizationFailed):
            await by.ids.next_id()


async def test_nobody_has_nothing_of_that() -> None:
    async with asking(()) as by:
        assert await by.ends.ends([by.of_users]) == {}
        with pytest.raises(Unauthenticated):
            await by.ids.next_id()
