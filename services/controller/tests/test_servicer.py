"""The service over a real connection: what goes in and out, and that bad input is a typed refusal, never a crash."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from services.controller.tests.kit.client import Client, Watcher, active_of
from services.controller.tests.kit.dialogue import FakeInventories, FakeIssuers, FakeLogEnds, FakeProbe

from headrace_common.core.errors import ErrorCode, HeadraceError, Kind, NotFound, Rejected
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import NodeKey, Role, Topic
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.config import ControllerConfig
from headrace_controller.core.held import HeldLog, HeldTopic, Inventory
from headrace_controller.core.records import Cluster
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.term import Outside
from headrace_controller.rpc.servicer import ControllerServicer
from headrace_proto.v1 import cluster_pb2, controller_pb2_grpc
from headrace_proto.v1 import controller_pb2 as pb


@pytest.fixture
def inventories() -> FakeInventories:
    """What brokers say that they have."""
    return FakeInventories()


@pytest.fixture
async def client(inventories: FakeInventories) -> AsyncIterator[Client]:
    """A client of an active controller over a memory store."""
    config = ControllerConfig(server=ServerConfig(drain_ms_max=100))
    endpoint = Endpoint("127.0.0.1", 1)
    engine = ControllerEngine(
        config=config,
        outside=Outside(
            MemoryStore(SystemClock()), FakeProbe(), FakeLogEnds(), inventories, FakeIssuers(), SystemClock()
        ),
        endpoint=lambda: endpoint,
        new_cluster=lambda: Cluster("c1", b"i" * 16),
    )
    servicer = ControllerServicer(engine, config.liveness, NodeGate())
    add = controller_pb2_grpc.add_ControllerServicer_to_server
    async with TaskRunner() as tasks, GrpcService.open(config.server, [(add, servicer)]) as server:
        engine.start(tasks)
        async with Client.open(server.endpoint) as opened:
            await active_of([opened])
            yield opened
        await engine.stop()
        assert tasks.failure is None


def node(number: int = 1, **fields: Any) -> cluster_pb2.Node:
    given = {"grpc": cluster_pb2.Endpoint(host="127.0.0.1", port=9), "incarnation": bytes(16), **fields}
    return cluster_pb2.Node(role=cluster_pb2.BROKER, id=number, **given)


async def test_a_broker_s_life(client: Client) -> None:
    joined = await client.call("RegisterNode", pb.RegisterNodeRequest(node=node(), max_producer_id=-1))
    assert (joined.cluster_id, joined.heartbeat_interval_ms, joined.session_timeout_ms) == ("c1", 2_000, 9_000)
    assert (await client.beat(node(), joined.epoch, joined.revision - 1)).fenced
    assert not (await client.beat(node(), joined.epoch, joined.revision)).fenced
    watcher = Watcher(client, node())
    await client.create("t", 3)
    await watcher.until(lambda image: len(image.partitions) == 3)
    assert watcher.image.cluster_id == "c1"
    assert not watcher.image.nodes[NodeKey(Role.BROKER, watcher.image.brokers()[0].key.id)].fenced
    block = await client.call(
        "AllocateProducerIds", pb.AllocateProducerIdsRequest(broker_id=1, broker_epoch=joined.epoch)
    )
    assert (block.first_id, block.count) == (1_000, 1_000)
    gone = await client.call("DeleteTopics", pb.DeleteTopicsRequest(names=["t"]))
    assert gone.topics[0].error == ErrorCode.NONE
    await watcher.until(lambda image: len(image.deletions) == 1)
    (order,) = watcher.image.deletions.values()
    confirm = pb.ConfirmDeletionsRequest(broker_id=1, broker_epoch=joined.epoch, topic_ids=[order.topic_id, b"x" * 16])
    await client.call("ConfirmDeletions", confirm)
    await watcher.until(lambda image: not image.deletions)
    last = await client.beat(node(), joined.epoch, joined.revision, want_shutdown=True)
    assert last.may_shut_down
    await watcher.close()


async def test_each_topic_of_a_request_succeeds_or_fails_by_itself(client: Client) -> None:
    await client.register(node())
    topics = [
        pb.NewTopic(name="good", partition_count=2, replication_factor=1, configs={"retention.ms": "5"}),
        pb.NewTopic(name="bad name", partition_count=1, replication_factor=1),
        pb.NewTopic(name="three", partition_count=1, replication_factor=3),
        pb.NewTopic(name="default", partition_count=-1, replication_factor=-1),
    ]
    answer = await client.call("CreateTopics", pb.CreateTopicsRequest(topics=topics, timeout_ms=5_000))
    assert [t.error for t in answer.topics] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.NONE,
    ]
    assert answer.topics[0].topic.topic.configs == {"retention.ms": "5"}
    assert "ask for at most 1" in answer.topics[2].message
    assert answer.topics[3].topic.notes
    listed = await client.call("ListTopics", pb.ListTopicsRequest(limit=1))
    assert ([t.name for t in listed.topics], listed.more, listed.total) == (["default"], True, 2)
    grown = await client.call("CreatePartitions", pb.CreatePartitionsRequest(name="good", partition_count=4))
    assert len(grown.result.topic.partitions) == 4
    both = await client.call("DescribeTopics", pb.DescribeTopicsRequest(names=["good", "none"]))
    assert [t.error for t in both.topics] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    cluster = await client.cluster()
    assert (cluster.topic_count, cluster.partition_count, cluster.offline_partition_count) == (2, 5, 0)
    assert cluster.metadata_store_reachable


async def test_configs_over_the_wire(client: Client) -> None:
    await client.register(node())
    await client.create("t", 1)
    topic = pb.ConfigResource(type=pb.TOPIC_CONFIG, name="t")
    brokers = pb.ConfigResource(type=pb.BROKER_CONFIG, name="")
    change = pb.AlterConfig(name="retention.ms", op=pb.SET, value="77")
    answer = await client.call(
        "IncrementalAlterConfigs",
        pb.IncrementalAlterConfigsRequest(
            resources=[
                pb.AlterConfigsResource(resource=topic, changes=[change]),
                pb.AlterConfigsResource(resource=brokers, changes=[change]),
                pb.AlterConfigsResource(resource=pb.ConfigResource(type=pb.BROKER_CONFIG, name="one"), changes=[]),
            ]
        ),
    )
    assert [r.error for r in answer.results] == [ErrorCode.NONE, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST]
    described = await client.call("DescribeConfigs", pb.DescribeConfigsRequest(resources=[topic, brokers]))
    (entry,) = [e for e in described.results[0].entries if e.name == "retention.ms"]
    assert (entry.value, entry.source, entry.type) == ("77", pb.DYNAMIC_TOPIC_CONFIG, "long")
    assert all(e.documentation for r in described.results for e in r.entries)
    assert any(e.read_only for e in described.results[1].entries)


def ref(partition: cluster_pb2.Partition) -> cluster_pb2.PartitionRef:
    return cluster_pb2.PartitionRef(topic_id=partition.topic_id, partition=partition.partition)


async def test_replication_over_the_wire(client: Client) -> None:
    joined = {n: await client.register(node(n, incarnation=bytes([n]) * 16)) for n in (1, 2, 3)}
    await client.create("t", 3, 3)
    partitions = list((await client.describe("t")).topic.partitions)
    (first,) = [p for p in partitions if p.leader == 1]
    change = pb.AlterPartition(
        topic_id=first.topic_id,
        partition=first.partition,
        leader_epoch=first.leader_epoch,
        partition_epoch=first.partition_epoch,
        isr=[pb.IsrMember(broker_id=1)],
    )
    stale = pb.AlterPartition(topic_id=b"x" * 16, partition=0, isr=[pb.IsrMember(broker_id=1)])
    request = pb.AlterPartitionsRequest(broker_id=1, broker_epoch=joined[1].epoch, partitions=[change, stale])
    answer = await client.call("AlterPartitions", request)
    assert [r.error for r in answer.partitions] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (list(answer.partitions[0].current.isr), len(answer.partitions[0].current.elr)) == ([1], 2)
    assert not answer.partitions[1].HasField("current")

    drained = await client.call("DrainBroker", pb.DrainBrokerRequest(broker_id=1, drained=True))
    assert drained.still_leading == 1
    cluster = await client.cluster()
    assert [n.id for n in cluster.nodes if n.drained] == [1]
    assert (cluster.under_min_isr_partition_count, cluster.not_preferred_partition_count) == (1, 0)
    assert (cluster.reassigning_partition_count, cluster.recovering_partition_count) == (0, 0)
    assert [(p.topic_id, p.partition) for p in cluster.troubled] == [(first.topic_id, first.partition)]

    elected = await client.call(
        "ElectLeaders", pb.ElectLeadersRequest(type=pb.PREFERRED, partitions=[ref(p) for p in partitions])
    )
    assert {o.error for o in elected.partitions} == {ErrorCode.ELECTION_NOT_NEEDED}
    led = await client.call("ElectLeaders", pb.ElectLeadersRequest(type=pb.UNCLEAN, partitions=[ref(first)]))
    assert [o.error for o in led.partitions] == [ErrorCode.ELECTION_NOT_NEEDED]

    moves = [
        pb.Reassignment(topic_id=first.topic_id, partition=first.partition, replicas=[2, 1]),
        pb.Reassignment(topic_id=first.topic_id, partition=99, replicas=[2]),
    ]
    moved = await client.call("AlterReassignments", pb.AlterReassignmentsRequest(reassignments=moves))
    assert [o.error for o in moved.partitions] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert list(moved.partitions[0].current.removing) == [3]
    listed = await client.call("ListReassignments", pb.ListReassignmentsRequest())
    assert list(listed.partitions) == [moved.partitions[0].current]
    moves = [pb.Reassignment(topic_id=first.topic_id, partition=first.partition)]
    back = await client.call("AlterReassignments", pb.AlterReassignmentsRequest(reassignments=moves))
    assert sorted(back.partitions[0].current.replicas) == [1, 2, 3]
    assert not (await client.call("ListReassignments", pb.ListReassignmentsRequest())).partitions


TOO_MANY = [cluster_pb2.PartitionRef(topic_id=b"t" * 16, partition=n) for n in range(10_001)]
TWICE = [pb.IsrMember(broker_id=1), pb.IsrMember(broker_id=1)]

BAD: list[tuple[str, Any]] = [
    ("RegisterNode", pb.RegisterNodeRequest()),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(-1))),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(incarnation=b"short"))),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(grpc=cluster_pb2.Endpoint(host="", port=9)))),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(grpc=cluster_pb2.Endpoint(host="h", port=70_000)))),
    (
        "RegisterNode",
        pb.RegisterNodeRequest(node=node(), damaged=[cluster_pb2.PartitionRef(topic_id=b"x", partition=-1)]),
    ),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(), cluster_id="other")),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(), previous_epoch=2**63 - 1)),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(), previous_epoch=-1)),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(), max_producer_id=2**63 - 1)),
    ("RegisterNode", pb.RegisterNodeRequest(node=node(), max_leader_epoch=2**31 - 1)),
    ("Heartbeat", pb.HeartbeatRequest()),
    ("Heartbeat", pb.HeartbeatRequest(role=cluster_pb2.BROKER, id=-5, epoch=-1)),
    ("Heartbeat", pb.HeartbeatRequest(role=99, id=1, epoch=1)),  # newer than this version
    ("UnregisterNode", pb.UnregisterNodeRequest()),
    ("UnregisterNode", pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=404)),
    ("CreateTopics", pb.CreateTopicsRequest()),
    ("CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t")], timeout_ms=0)),
    ("CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t")], timeout_ms=2**31 - 1)),
    ("CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t")] * 2, timeout_ms=1)),
    ("CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t")] * 1_001, timeout_ms=1)),
    ("DeleteTopics", pb.DeleteTopicsRequest()),
    ("DeleteTopics", pb.DeleteTopicsRequest(names=["a", "a"])),
    ("ListTopics", pb.ListTopicsRequest(limit=0)),
    ("ListTopics", pb.ListTopicsRequest(limit=-1)),
    ("DescribeTopics", pb.DescribeTopicsRequest()),
    ("DescribeTopics", pb.DescribeTopicsRequest(names=["x"] * 10_001)),
    ("DescribeConfigs", pb.DescribeConfigsRequest()),
    ("IncrementalAlterConfigs", pb.IncrementalAlterConfigsRequest()),
    ("AllocateProducerIds", pb.AllocateProducerIdsRequest(broker_id=-1, broker_epoch=0)),
    (
        "ConfirmDeletions",
        pb.ConfirmDeletionsRequest(broker_id=1, broker_epoch=1, partitions=[cluster_pb2.PartitionRef()]),
    ),
    ("AlterPartitions", pb.AlterPartitionsRequest()),
    ("AlterPartitions", pb.AlterPartitionsRequest(broker_id=404, partitions=[pb.AlterPartition(topic_id=bytes(16))])),
    ("AlterPartitions", pb.AlterPartitionsRequest(partitions=[pb.AlterPartition(topic_id=b"short")])),
    ("AlterPartitions", pb.AlterPartitionsRequest(partitions=[pb.AlterPartition(topic_id=bytes(16), isr=TWICE)])),
    ("AlterPartitions", pb.AlterPartitionsRequest(partitions=[pb.AlterPartition(topic_id=bytes(16))] * 2)),
    ("AlterPartitions", pb.AlterPartitionsRequest(partitions=[pb.AlterPartition(topic_id=bytes(16))] * 1_001)),
    ("ElectLeaders", pb.ElectLeadersRequest()),
    ("ElectLeaders", pb.ElectLeadersRequest(type=99)),  # newer than this version
    ("ElectLeaders", pb.ElectLeadersRequest(type=pb.UNCLEAN)),
    ("ElectLeaders", pb.ElectLeadersRequest(type=pb.WITHOUT_MISSING)),
    ("ElectLeaders", pb.ElectLeadersRequest(type=pb.PREFERRED, partitions=TOO_MANY)),
    ("AlterReassignments", pb.AlterReassignmentsRequest()),
    ("AlterReassignments", pb.AlterReassignmentsRequest(reassignments=[pb.Reassignment(partition=-1)])),
    ("AlterReassignments", pb.AlterReassignmentsRequest(reassignments=[pb.Reassignment(topic_id=bytes(16))] * 2)),
    ("ListReassignments", pb.ListReassignmentsRequest(partitions=TOO_MANY)),
    ("DrainBroker", pb.DrainBrokerRequest(broker_id=404, drained=True)),
    ("DrainBroker", pb.DrainBrokerRequest(broker_id=-1)),
    ("ConfirmDeletions", pb.ConfirmDeletionsRequest(broker_id=1, broker_epoch=1, topic_ids=[b"short"])),
    ("AdoptTopic", pb.AdoptTopicRequest()),
    ("AdoptTopic", pb.AdoptTopicRequest(topic_id=b"short")),
    ("AdoptTopic", pb.AdoptTopicRequest(topic_id=bytes(16), partition_count=-1)),
    ("AdoptTopic", pb.AdoptTopicRequest(topic_id=bytes(16), partition_count=2**31 - 1)),
]


async def test_strays_over_the_wire(client: Client, inventories: FakeInventories) -> None:
    await client.register(node(incarnation=b"p" * 16))
    described = await client.call("DescribeRestore", pb.DescribeRestoreRequest(strays=True))
    assert (described.HasField("restore"), list(described.strays), list(described.silent)) == (False, [], [])
    answer = await client.call("AdoptTopic", pb.AdoptTopicRequest(topic_id=bytes(16), name="x"))
    assert answer.result.error == ErrorCode.UNKNOWN_TOPIC_ID
    assert "list the strays" in answer.result.message
    stray = bytes(range(16))
    log, known = HeldLog(3, 9, known_epoch=4, damaged=True), HeldLog(3, 7, known_epoch=3)
    logs = {PartitionId(TopicId(stray), 0): known, PartitionId(TopicId(stray), 1): log}
    note = HeldTopic(Topic("late", TopicId(stray), 3, {"retention.ms": "5"}), b"i" * 16, 1)
    inventories.held[NodeId(1)] = Inventory((note,), logs)
    described = await client.call("DescribeRestore", pb.DescribeRestoreRequest(strays=True))
    (found,) = described.strays
    assert (found.topic_id, found.topic.name, found.topic.partition_count) == (stray, "late", 3)
    assert [(x.partition, x.broker_id, x.log_end_offset, x.damaged) for x in found.logs] == [
        (0, 1, 7, False),
        (1, 1, 9, True),
    ]
    for only, shown in ((True, 0), (False, 1)):
        made = await client.call("AdoptTopic", pb.AdoptTopicRequest(topic_id=stray, validate_only=only))
        assert (made.result.error, made.result.name, len(made.result.topic.partitions)) == (0, "late", 3)
        assert (await client.cluster()).topic_count == shown


@pytest.mark.parametrize(("method", "request_"), BAD, ids=[f"{m}-{n}" for n, (m, _) in enumerate(BAD)])
async def test_bad_input_is_refused_with_a_type_and_a_sentence(client: Client, method: str, request_: Any) -> None:
    with pytest.raises(HeadraceError) as refusal:
        await client.call(method, request_)
    assert refusal.value.kind is not Kind.INTERNAL
    assert refusal.value.code is not ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(str(refusal.value)) > 20
    assert (await client.cluster()).cluster_id == "c1"


async def test_bad_names_and_numbers_inside_a_request(client: Client) -> None:
    await client.register(node())
    names = ["", ".", "..", "x" * 250, "é", "a\0b", "__x", "a b", "a/b"]
    numbers = [0, -2, 100_001, 2**31 - 1, -(2**31)]
    topics = [pb.NewTopic(name=n, partition_count=1, replication_factor=1) for n in names]
    topics += [pb.NewTopic(name=f"p{i}", partition_count=n, replication_factor=1) for i, n in enumerate(numbers)]
    topics += [pb.NewTopic(name=f"r{i}", partition_count=1, replication_factor=n) for i, n in enumerate(numbers)]
    answer = await client.call("CreateTopics", pb.CreateTopicsRequest(topics=topics, timeout_ms=5_000))
    assert len(answer.topics) == len(topics)
    known = {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    }
    assert {t.error for t in answer.topics} == known
    assert (await client.cluster()).topic_count == 0


async def test_mutated_bytes_are_refused_or_understood_but_never_break_the_server(client: Client) -> None:
    await client.register(node())
    valid = pb.CreateTopicsRequest(
        topics=[pb.NewTopic(name="t", partition_count=2, replication_factor=1, configs={"retention.ms": "1"})],
        timeout_ms=1_000,
        validate_only=True,
    ).SerializeToString()
    call = client.channel.unary_unary("/headrace.v1.Controller/CreateTopics")
    chance = random.Random(7)
    for _ in range(300):
        raw = bytearray(valid)
        for _ in range(chance.randint(1, 4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        status = await outcome(call(bytes(raw), timeout=5))
        assert "failed inside the server" not in status
    assert (await client.cluster()).cluster_id == "c1"


async def outcome(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.details() or ""
    return "ok"


async def test_unknown_things_are_told_by_name(client: Client) -> None:
    with pytest.raises(NotFound, match="broker-404 is not registered"):
        await client.call("UnregisterNode", pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=404))
    with pytest.raises(Rejected, match="split it"):
        await client.call("DeleteTopics", pb.DeleteTopicsRequest(names=[str(n) for n in range(1_001)]))


async def test_shards_over_the_wire(client: Client) -> None:
    await client.register(node())
    change = pb.AlterConfig(name="offsets.topic.num.partitions", op=pb.SET, value="3")
    resource = pb.ConfigResource(type=pb.BROKER_CONFIG, name="")
    altered = pb.AlterConfigsResource(resource=resource, changes=[change])
    await client.call("IncrementalAlterConfigs", pb.IncrementalAlterConfigsRequest(resources=[altered]))
    answer = await client.call("EnsureInternalTopic", pb.EnsureInternalTopicRequest(kind=cluster_pb2.GROUPS))
    watcher = Watcher(client, node())
    await watcher.until(lambda image: len(image.shards) == 3)
    assert watcher.image.revision >= answer.revision > 0
    cluster = await client.cluster()
    assert (cluster.shard_count, cluster.unowned_shard_count) == (3, 3)
    coordinator = node(7)
    coordinator.role = cluster_pb2.COORDINATOR
    joined = await client.call("RegisterNode", pb.RegisterNodeRequest(node=coordinator, max_producer_id=-1))
    await client.beat(coordinator, joined.epoch, joined.revision)
    await watcher.until(lambda image: {s.owner for s in image.shards.values()} == {7})
    assert (await client.cluster()).unowned_shard_count == 0
    with pytest.raises(Rejected):
        await client.call("EnsureInternalTopic", pb.EnsureInternalTopicRequest())
    await watcher.close()
