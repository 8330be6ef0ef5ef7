"""Ends of logs from a real broker; what nobody leads, or whose leader is silent, is left out."""

from __future__ import annotations

from dataclasses import replace

from services.broker.tests.kit.cluster import FakeCluster, image_of
from services.broker.tests.kit.dialogue import running_broker

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.adapters.grpc_log_ends import GrpcLogEnds
from headrace_coordinator.adapters.log_batches import build
from headrace_proto.v1 import broker_pb2 as pb


class Tenured(FakeCluster):
    tenure_until_ms = 0.0


async def test_ends_of_those_that_are_led_and_answer() -> None:
    cluster = Tenured()
    async with running_broker(MemoryLogs(), cluster) as (broker, server), TaskRunner() as tasks:
        dead = Node(NodeKey(Role.BROKER, NodeId(2)), Endpoint("127.0.0.1", 1), b"d" * 16, 1)
        image = image_of({"t": 4}, endpoint=server.endpoint, nodes=[dead])
        topic_id = image.topic_ids["t"]
        ids = [PartitionId(topic_id, n) for n in range(4)]
        moved = {
            ids[2]: replace(image.partitions[ids[2]], leader=NO_NODE),
            ids[3]: replace(image.partitions[ids[3]], leader=NodeId(2)),
        }
        cluster.show(replace(image, partitions={**image.partitions, **moved}))
        await broker.follower.changed.wait()
        connections = BrokerConnections(tasks)
        batch = build([(b"k", b"v")] * 5, timestamp_ms=-1, producer=(1, 0), sequence=0)
        entry = pb.ProducePartition(topic_id=topic_id, partition=1, batch=batch)
        assert (await connections.produce(server.endpoint, entry, 1_000)).error == 0
        asked = {*ids, PartitionId(topic_id, 9)}
        assert await GrpcLogEnds(cluster, connections).ends(asked) == {ids[0]: 0, ids[1]: 5}
        await connections.close()
