"""The gRPC face over a real connection, and the way to controllers and brokers behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.fake_controller import FakeController
from services.admin.tests.twin.memory_cluster import MemoryCluster
from services.admin.tests.twin.memory_coordinators import MemoryCoordinators
from services.admin.tests.twin.memory_messages import MemoryMessages
from services.admin.tests.twin.memory_transactions import MemoryTransactions

from headrace_admin.adapters.grpc_brokers import GrpcBrokers
from headrace_admin.adapters.grpc_controllers import GrpcCluster, GrpcControllers
from headrace_admin.config import Limits, TransactionLimits
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.messages import Messages
from headrace_admin.rpc.engines import Engines, Ports
from headrace_admin.rpc.servicer import AdminServicer
from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.errors import (
    ErrorCode,
    InvalidTxnState,
    MetadataUnavailable,
    NetworkFailed,
    NonEmptyGroup,
    NotController,
    Rejected,
    RequestTimedOut,
    UnsupportedVersion,
)
from headrace_common.core.ids import Endpoint, NodeId, PartitionId
from headrace_common.core.image import Node, NodeKey, Role, ShardKind
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import admin_pb2, broker_pb2, cluster_pb2, coordinator_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn
from headrace_proto.v1.admin_pb2_grpc import AdminStub, add_AdminServicer_to_server
from headrace_proto.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server

QUIET = ServerConfig(drain_ms_max=0)
NOW_MS = 1_700_000_000_000


@dataclass
class Face:
    cluster: MemoryCluster
    coordinators: MemoryCoordinators
    transactions: MemoryTransactions
    stub: Any


@pytest.fixture
async def face() -> AsyncIterator[Face]:
    cluster = MemoryCluster()
    engine = Administration(cluster, cluster, cluster)
    clock = FakeClock()
    coordinators = MemoryCoordinators(cluster)
    transactions = MemoryTransactions(cluster)
    messages = Messages(MemoryMessages(), cluster, Limits())
    engines = Engines.over(engine, messages, Ports(coordinators, transactions, clock), TransactionLimits())
    servicer = AdminServicer(engines)
    async with (
        GrpcService.open(QUIET, [(add_AdminServicer_to_server, servicer)]) as server,
        open_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Face(cluster, coordinators, transactions, AdminStub(channel))


async def test_every_operation_answers(face: Face) -> None:
    stub = face.stub
    created = await stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partition_count=2)]))
    topic_id = created.topics[0].topic.topic.topic_id
    assert (await stub.DescribeCluster(pb.DescribeClusterRequest())).topic_count == 1
    assert (await stub.ListTopics(pb.ListTopicsRequest(limit=5))).topics[0].name == "t"
    assert len((await stub.DescribeTopics(pb.DescribeTopicsRequest(names=["t"]))).topics[0].topic.partitions) == 2
    more = await stub.CreatePartitions(pb.CreatePartitionsRequest(name="t", partition_count=3))
    assert len(more.result.topic.partitions) == 3
    resource = pb.ConfigResource(type=pb.TOPIC_CONFIG, name="t")
    assert (await stub.DescribeConfigs(pb.DescribeConfigsRequest(resources=[resource]))).results[0].entries
    change = pb.AlterConfigsResource(resource=resource, changes=[pb.AlterConfig(name="retention.ms", value="1")])
    altered = await stub.IncrementalAlterConfigs(pb.IncrementalAlterConfigsRequest(resources=[change]))
    assert altered.results[0].error == ErrorCode.NONE
    trim = broker_pb2.DeleteRecordsPartition(topic_id=topic_id, partition=0, offset=0)
    assert (await stub.DeleteRecords(broker_pb2.DeleteRecordsRequest(partitions=[trim]))).partitions[0].error == 0
    assert len((await stub.DescribeLogs(admin_pb2.DescribeClusterLogsRequest())).brokers) == 2
    await replication_answers(face, topic_id)
    assert (await stub.DeleteTopics(pb.DeleteTopicsRequest(names=["t"]))).topics[0].error == ErrorCode.NONE


async def test_transactions_answer(face: Face) -> None:
    stub, twin = face.stub, face.transactions
    await stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partition_count=2)]))
    face.cluster.start_coordinators(1)
    face.cluster.make_shards(ShardKind.TRANSACTIONS)
    twin.begin("pay", 4, partitions=[("t", 0)], started_ms=NOW_MS - 11_000)
    twin.begin("sink", 5, partitions=[("t", 1)], started_ms=NOW_MS - 86_400_000)
    token = twin.prepare("sink", prepared_ms=NOW_MS - 86_400_000)
    listed = await stub.ListTransactions(txn.ListTransactionsRequest(states=[txn.TXN_ONGOING]))
    assert [(t.transaction.transactional_id, t.coordinator) for t in listed.transactions] == [("pay", 1)]
    asked = txn.DescribeTransactionsRequest(transactional_ids=["pay", "nope"])
    pay, nope = (await stub.DescribeTransactions(asked)).transactions
    assert [(p.topic, p.partition) for p in pay.partitions] == [("t", 0)]
    assert nope.transaction.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    prepared = await stub.ListPreparedTransactions(admin_pb2.ListPreparedTransactionsRequest())
    assert [t.transaction.token for t in prepared.transactions] == [token]
    still = await stub.ListOpenTransactions(admin_pb2.ListOpenTransactionsRequest(older_than_ms=5_000))
    assert [(t.transactional_id, t.standing) for t in still.transactions] == [
        ("sink", admin_pb2.TXN_COORDINATED),
        ("pay", admin_pb2.TXN_COORDINATED),
    ]
    status = await stub.DescribeStatus(admin_pb2.DescribeStatusRequest())
    assert (status.transaction_shards, [t.producer_id for t in status.holding_back]) == (4, [5, 4])
    assert [p.transactional_id for p in status.prepared_overdue] == ["sink"]
    dry = admin_pb2.AbortClusterTransactionRequest(transactional_id="pay", validate_only=True)
    assert not (await stub.AbortTransaction(dry)).aborted
    other = admin_pb2.AbortClusterTransactionRequest(transactional_id="pay", producer_id=4, producer_epoch=9)
    with pytest.raises(grpc.RpcError) as failed:
        await stub.AbortTransaction(other)
    assert isinstance(error_from_rpc(failed.value), InvalidTxnState)
    assert (await stub.AbortTransaction(admin_pb2.AbortClusterTransactionRequest(transactional_id="pay"))).aborted
    assert (await stub.DecidePrepared(txn.DecidePreparedRequest(token=token, commit=True))).committed
    face.cluster.write("t", 0, 4711, first_offset=0, since_ms=0)
    hanging = await stub.ListOpenTransactions(admin_pb2.ListOpenTransactionsRequest(hanging_only=True))
    assert [t.HasField("transactional_id") for t in hanging.transactions] == [False]
    end = admin_pb2.AbortHangingTransactionRequest(topic="t", partition=0, producer_id=4711)
    assert (await stub.AbortHangingTransaction(end)).aborted
    assert not (await stub.ListOpenTransactions(admin_pb2.ListOpenTransactionsRequest())).transactions


async def replication_answers(face: Face, topic_id: bytes) -> None:
    stub = face.stub
    ref = cluster_pb2.PartitionRef(topic_id=topic_id, partition=0)
    elected = await stub.ElectLeaders(pb.ElectLeadersRequest(type=pb.PREFERRED, partitions=[ref]))
    assert elected.partitions[0].error == ErrorCode.ELECTION_NOT_NEEDED
    assert (await stub.RebalanceCluster(admin_pb2.RebalanceClusterRequest(validate_only=True))).moves == []
    left = await stub.DecommissionBroker(admin_pb2.DecommissionBrokerRequest(broker_id=2, throttle_bytes_per_s=5))
    assert ([m.partition for m in left.moves], left.drained, left.replicas_left) == ([1], True, 1)
    progress = await stub.DescribeReassignments(admin_pb2.DescribeReassignmentsRequest())
    assert (progress.partitions[0].topic, progress.throttle_bytes_per_s) == ("t", 5)
    assert len((await stub.ListReassignments(pb.ListReassignmentsRequest())).partitions) == 1
    with pytest.raises(grpc.aio.AioRpcError, match="holds 1 replicas"):
        await stub.UnregisterNode(pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=2))
    face.cluster.finish_reassignments()
    assert not (await stub.DrainBroker(pb.DrainBrokerRequest(broker_id=2, drained=True))).still_leading
    status = await stub.DescribeStatus(admin_pb2.DescribeStatusRequest())
    assert status.state == admin_pb2.HEALTHY
    assert "broker 2 is drained" in status.verdict
    assert [(b.broker_id, b.leaders, b.drained) for b in status.brokers] == [(1, 3, False), (2, 0, True)]
    face.cluster.node(2, fenced=True)
    await stub.UnregisterNode(pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=2))
    assert len((await stub.DescribeLogs(admin_pb2.DescribeClusterLogsRequest())).brokers) == 1
    again = await stub.AlterReassignments(
        pb.AlterReassignmentsRequest(reassignments=[pb.Reassignment(topic_id=topic_id, partition=0)])
    )
    assert again.partitions[0].error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_errors_keep_their_type(face: Face) -> None:
    face.cluster.failure = MetadataUnavailable("etcd is away")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await face.stub.DescribeCluster(pb.DescribeClusterRequest())
    assert type(error_from_rpc(raised.value)) is MetadataUnavailable


async def test_groups_are_administered(face: Face) -> None:
    stub, coordinators = face.stub, face.coordinators
    await stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partition_count=2)]))
    face.cluster.ends[PartitionId(face.cluster.image.topic_ids["t"], 0)] = 500
    face.cluster.start_coordinators(1)
    face.cluster.make_shards()
    coordinators.commit("g", {("t", 0): 499})
    coordinators.join("live", "m", {"t": [1]})
    listed = await stub.ListGroups(admin_pb2.ListClusterGroupsRequest())
    assert [(g.group.group_id, g.coordinator) for g in listed.groups] == [("g", 1), ("live", 1)]
    described = await stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=["nope", "live"]))
    assert [(g.group_id, g.error) for g in described.groups] == [("nope", ErrorCode.GROUP_ID_NOT_FOUND), ("live", 0)]
    lag = await stub.DescribeGroupLag(admin_pb2.DescribeGroupLagRequest(group_id="g"))
    (one,) = lag.partitions
    assert (one.committed_offset, one.end_offset, one.lag, one.lag_ms) == (499, 500, 1, 501_000)
    assert not one.HasField("member_id")
    assert not one.HasField("error")
    offsets = admin_pb2.ResetOffsetList(offsets=[admin_pb2.ResetOffset(topic="t", partition=0, offset=3)])
    for target, new in (
        ({"to": admin_pb2.EARLIEST}, 0),
        ({"to": admin_pb2.LATEST}, 500),
        ({"to": admin_pb2.CURRENT}, 499),
        ({"to_timestamp_ms": 0}, 0),
        ({"to_offset": 0}, 0),
        ({"shift_by": -9}, 490),
        ({"ago_ms": 600_000}, 400),
        ({"to_offsets": offsets}, 3),
    ):
        planned = await stub.ResetOffsets(admin_pb2.ResetOffsetsRequest(group_id="g", **target))
        assert [(p.old_offset, p.new_offset, p.error) for p in planned.partitions] == [(499, new, 0)], target
        assert not planned.executed
    with pytest.raises(grpc.RpcError) as nowhere:
        await stub.ResetOffsets(admin_pb2.ResetOffsetsRequest(group_id="g"))
    assert "say where to" in str(error_from_rpc(nowhere.value))
    with pytest.raises(grpc.RpcError) as live:
        await stub.ResetOffsets(
            admin_pb2.ResetOffsetsRequest(
                group_id="live",
                to=admin_pb2.LATEST,
                execute=True,
                partitions=[coordinator_pb2.TopicPartitions(topic="t", partitions=[1])],
            )
        )
    assert isinstance(error_from_rpc(live.value), NonEmptyGroup)
    done = await stub.ResetOffsets(admin_pb2.ResetOffsetsRequest(group_id="g", to_offset=5, execute=True))
    assert (done.executed, coordinators.committed("g")) == (True, {("t", 0): 5})
    topics = [coordinator_pb2.TopicPartitions(topic="t")]
    gone = await stub.DeleteOffsets(coordinator_pb2.DeleteOffsetsRequest(group_id="g", partitions=topics))
    assert [(r.topic, r.partition, r.error) for r in gone.results] == [("t", 0, 0)]
    deleted = await stub.DeleteGroups(coordinator_pb2.DeleteGroupsRequest(group_ids=["live", "g"]))
    assert [(r.group_id, r.error) for r in deleted.groups] == [("live", ErrorCode.NON_EMPTY_GROUP), ("g", 0)]


class Behind(FakeController):
    """A controller that also creates and lists, and can lose its answer after it acted."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []
        self.lost = 0

    async def CreateTopics(self, request: pb.CreateTopicsRequest, context: Any) -> pb.CreateTopicsResponse:
        self._entered("CreateTopics")
        self.created += [t.name for t in request.topics]
        if self.lost:
            self.lost -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return pb.CreateTopicsResponse(topics=[pb.TopicResult(name=t.name) for t in request.topics])

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Any) -> pb.ListTopicsResponse:
        self._entered("ListTopics")
        if self.lost:
            self.lost -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return pb.ListTopicsResponse(total=7)


@dataclass
class Way:
    controller: Behind
    client: ControllerClient
    controllers: GrpcControllers


@pytest.fixture
async def way() -> AsyncIterator[Way]:
    controller = Behind()
    async with controller.serve(), TaskRunner() as tasks:
        assert controller.endpoint is not None
        async with ControllerClient.open(
            [controller.endpoint], role=Role.ADMIN, id=1, clock=SystemClock(), tasks=tasks
        ) as client:
            yield Way(controller, client, GrpcControllers(client, 2_000))


NEW = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t")], timeout_ms=1_000)


async def test_reads_are_repeated_when_an_answer_is_lost(way: Way) -> None:
    way.controller.lost = 2
    assert (await way.controllers.list_topics(pb.ListTopicsRequest(limit=1))).total == 7


async def test_creations_are_not_repeated_when_an_answer_is_lost(way: Way) -> None:
    way.controller.lost = 1
    with pytest.raises(NetworkFailed):
        await way.controllers.create_topics(NEW)
    assert way.controller.created == ["t"]


async def test_dry_runs_are(way: Way) -> None:
    way.controller.lost = 1
    dry = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t")], timeout_ms=1_000, validate_only=True)
    assert (await way.controllers.create_topics(dry)).topics[0].name == "t"


async def test_a_creation_follows_the_active_controller(way: Way) -> None:
    way.controller.refusals["CreateTopics"] = [NotController("an election is under way")] * 2
    assert (await way.controllers.create_topics(NEW)).topics[0].name == "t"


async def test_what_a_controller_does_not_offer_is_told_as_such(way: Way) -> None:
    with pytest.raises(UnsupportedVersion, match="DeleteTopics"):
        await way.controllers.delete_topics(pb.DeleteTopicsRequest(names=["t"]))


async def test_tries_have_an_end(way: Way) -> None:
    way.controller.active = False
    controllers = GrpcControllers(way.client, 300)
    with pytest.raises(RequestTimedOut, match=r"no controller was active|no answer came in time"):
        await controllers.list_topics(pb.ListTopicsRequest(limit=1))


async def test_brokers_are_asked_where_the_image_has_them(way: Way) -> None:
    class Broker(BrokerServicer):
        async def DescribeLogs(self, request: Any, context: Any) -> Any:
            return broker_pb2.DescribeLogsResponse(disk_total_bytes=5)

    cluster = GrpcCluster(way.client)
    brokers = GrpcBrokers(cluster, 2_000)
    key = NodeKey(Role.BROKER, NodeId(1))
    try:
        with pytest.raises(NetworkFailed, match="not registered"):
            await brokers.describe_logs(NodeId(1), broker_pb2.DescribeLogsRequest())
        revision = way.client.image.revision
        way.controller.change(nodes=(Node(key, Endpoint("127.0.0.1", 1), bytes(16), 1),))
        assert key in (await cluster.newer(revision, 5_000)).nodes
        with pytest.raises(NetworkFailed):
            await brokers.describe_logs(NodeId(1), broker_pb2.DescribeLogsRequest())
        async with GrpcService.open(QUIET, [(add_BrokerServicer_to_server, Broker())]) as server:
            revision = way.client.image.revision
            way.controller.change(nodes=(Node(key, server.endpoint, bytes(16), 2),))
            await cluster.newer(revision, 5_000)
            logs = await brokers.describe_logs(NodeId(1), broker_pb2.DescribeLogsRequest())
            assert logs.disk_total_bytes == 5
    finally:
        await brokers.close()


async def test_a_fetch_is_one_request_and_its_answer(way: Way) -> None:
    class Broker(BrokerServicer):
        async def Fetch(self, requests: Any, context: Any) -> Any:
            async for request in requests:
                if request.max_bytes == 1:
                    return
                refused = errors_pb2.INVALID_REQUEST if request.max_bytes == 2 else errors_pb2.NONE
                yield broker_pb2.FetchResponse(correlation_id=request.correlation_id, error=refused, message="no")

    cluster = GrpcCluster(way.client)
    brokers = GrpcBrokers(cluster, 5_000)
    async with GrpcService.open(QUIET, [(add_BrokerServicer_to_server, Broker())]) as server:
        revision = way.client.image.revision
        way.controller.change(nodes=(Node(NodeKey(Role.BROKER, NodeId(1)), server.endpoint, bytes(16), 1),))
        await cluster.newer(revision, 5_000)
        try:
            answer = await brokers.fetch(NodeId(1), broker_pb2.FetchRequest(correlation_id=7, max_bytes=3))
            assert answer.correlation_id == 7
            with pytest.raises(NetworkFailed, match="without an answer"):
                await brokers.fetch(NodeId(1), broker_pb2.FetchRequest(max_bytes=1))
            with pytest.raises(Rejected, match="no"):
                await brokers.fetch(NodeId(1), broker_pb2.FetchRequest(max_bytes=2))
        finally:
            await brokers.close()


async def test_waiting_for_a_newer_image_has_an_end(way: Way) -> None:
    cluster = GrpcCluster(way.client)
    assert (await cluster.newer(10**9, 50)) is way.client.image


async def test_an_image_as_new_as_the_controllers_is_not_waited_for(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    async def described(_: Any, request: Any, context: Any) -> pb.DescribeClusterResponse:
        return pb.DescribeClusterResponse(revision=way.controller.image.revision)

    monkeypatch.setattr(FakeController, "DescribeCluster", described)
    cluster = GrpcCluster(way.client)
    newest = await cluster.newer(way.controller.image.revision - 1, 5_000)
    assert await cluster.caught_up(600_000) is newest  # no change comes, so it would wait as long as that
    way.controller.hold_updates()
    way.controller.put_topic("t", 1)
    waiting = asyncio.ensure_future(cluster.caught_up(600_000))
    way.controller.release_updates()
    assert (await waiting).topic("t") is not None


async def test_without_a_controller_the_image_is_the_present_one(way: Way) -> None:
    way.controller.active = False
    assert await GrpcCluster(way.client).caught_up(50) is way.client.image
