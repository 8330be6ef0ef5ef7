"""The gRPC face of the admin service of a cluster in the lab, and the way to controllers and brokers behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster
from services.admin.tests.kit.known import Known
from services.admin.tests.kit.world import SESSION_S, SHARDS, TIME_ZERO_MS, World

from headrace_admin.adapters.grpc_brokers import GrpcBrokers
from headrace_admin.adapters.grpc_controllers import GrpcCluster, GrpcControllers
from headrace_common.core.errors import (
    ErrorCode,
    InvalidTxnState,
    MetadataUnavailable,
    NetworkFailed,
    NonEmptyGroup,
    Rejected,
    RequestTimedOut,
    UnsupportedVersion,
)
from headrace_common.core.ids import NodeId
from headrace_common.core.image import ShardKind
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import abort_with, error_from_rpc
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_lab.nodes import address
from headrace_proto.v1 import admin_pb2, broker_pb2, cluster_pb2, coordinator_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server

QUIET = ServerConfig(drain_ms_max=0)


@pytest.fixture
async def stub(world: World) -> AsyncIterator[Any]:
    """Of the admin service that runs in the lab; ``world`` is beside it."""
    async with open_channel(str(address("admin-1"))) as channel:
        yield AdminStub(channel)


@dataclass
class Instead:
    """A ``grpc.aio.ServerInterceptor``: a method of controllers is another, or not there as in an older version."""

    method: str
    handler: Any

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        mine = details.method == f"/headrace.v1.Controller/{self.method}"
        return self.handler if mine else await continuation(details)


def replace_controller(world: World, method: str, handler: Any) -> None:
    """By one in which ``method`` is another."""
    world.lab.lab.network.interceptors.append(Instead(method, handler))
    world.lab.nodes.restart(controller=1)


async def test_every_operation_answers(world: World, stub: Any) -> None:
    placed = [pb.ReplicaAssignment(replicas=[leader]) for leader in (1, 2)]
    new = pb.NewTopic(name="t", partition_count=-1, replication_factor=-1, assignments=placed)
    created = await stub.CreateTopics(pb.CreateTopicsRequest(topics=[new], timeout_ms=5_000))
    assert not created.topics[0].error, created
    topic_id = created.topics[0].topic.topic.topic_id
    assert (await stub.DescribeCluster(pb.DescribeClusterRequest())).topic_count == 1
    assert (await stub.ListTopics(pb.ListTopicsRequest(limit=5))).topics[0].name == "t"
    assert len((await stub.DescribeTopics(pb.DescribeTopicsRequest(names=["t"]))).topics[0].topic.partitions) == 2
    third = [pb.ReplicaAssignment(replicas=[1])]
    more = await stub.CreatePartitions(pb.CreatePartitionsRequest(name="t", partition_count=3, assignments=third))
    assert len(more.result.topic.partitions) == 3
    resource = pb.ConfigResource(type=pb.TOPIC_CONFIG, name="t")
    assert (await stub.DescribeConfigs(pb.DescribeConfigsRequest(resources=[resource]))).results[0].entries
    change = pb.AlterConfigsResource(resource=resource, changes=[pb.AlterConfig(name="retention.ms", value="1")])
    altered = await stub.IncrementalAlterConfigs(pb.IncrementalAlterConfigsRequest(resources=[change]))
    assert altered.results[0].error == ErrorCode.NONE
    trim = broker_pb2.DeleteRecordsPartition(topic_id=topic_id, partition=0, offset=0)
    assert (await stub.DeleteRecords(broker_pb2.DeleteRecordsRequest(partitions=[trim]))).partitions[0].error == 0
    assert len((await stub.DescribeLogs(admin_pb2.DescribeClusterLogsRequest())).brokers) == 2
    await replication_answers(world, stub, topic_id)
    assert (await stub.DeleteTopics(pb.DeleteTopicsRequest(names=["t"]))).topics[0].error == ErrorCode.NONE


async def replication_answers(world: World, stub: Any, topic_id: bytes) -> None:
    ref = cluster_pb2.PartitionRef(topic_id=topic_id, partition=0)
    elected = await stub.ElectLeaders(pb.ElectLeadersRequest(type=pb.PREFERRED, partitions=[ref]))
    assert elected.partitions[0].error == ErrorCode.ELECTION_NOT_NEEDED
    assert (await stub.RebalanceCluster(admin_pb2.RebalanceClusterRequest(validate_only=True))).moves == []
    world.lab.nodes.cut(1, 2)  # so that what is moved stays under way
    left = await stub.DecommissionBroker(admin_pb2.DecommissionBrokerRequest(broker_id=2, throttle_bytes_per_s=5))
    assert ([m.partition for m in left.moves], left.drained, left.replicas_left) == ([1], True, 1)
    progress = await stub.DescribeReassignments(admin_pb2.DescribeReassignmentsRequest())
    assert (progress.partitions[0].topic, progress.throttle_bytes_per_s) == ("t", 5)
    assert len((await stub.ListReassignments(pb.ListReassignmentsRequest())).partitions) == 1
    with pytest.raises(grpc.aio.AioRpcError, match="holds 1 replicas"):
        await stub.UnregisterNode(pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=2))
    world.lab.nodes.heal()
    while (await stub.ListReassignments(pb.ListReassignmentsRequest())).partitions:
        await asyncio.sleep(0.1)
    assert not (await stub.DrainBroker(pb.DrainBrokerRequest(broker_id=2, drained=True))).still_leading
    status = await stub.DescribeStatus(admin_pb2.DescribeStatusRequest())
    assert status.state == admin_pb2.HEALTHY
    assert "broker 2 is drained" in status.verdict
    assert "it is open: whoever reaches it may do everything" in status.verdict
    assert [(b.broker_id, b.leaders, b.drained) for b in status.brokers] == [(1, 3, False), (2, 0, True)]
    world.lab.kill(2)
    await asyncio.sleep(SESSION_S)
    await stub.UnregisterNode(pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=2))
    assert len((await stub.DescribeLogs(admin_pb2.DescribeClusterLogsRequest())).brokers) == 1
    again = await stub.AlterReassignments(
        pb.AlterReassignmentsRequest(reassignments=[pb.Reassignment(topic_id=topic_id, partition=0)])
    )
    assert again.partitions[0].error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_transactions_answer(world: World, stub: Any) -> None:
    world.lab.create_topic("t", 2)
    await world.begin("sink", ("t", 1))
    token = await world.prepare("sink")
    world.lab.nodes.jump_clocks(days=1)
    await world.begin("pay", ("t", 0))
    world.lab.nodes.jump_clocks(seconds=11)
    listed = await stub.ListTransactions(txn.ListTransactionsRequest(states=[txn.TXN_ONGOING]))
    place = await world.place("pay", ShardKind.TRANSACTIONS)
    assert [(t.transaction.transactional_id, t.coordinator) for t in listed.transactions] == [("pay", place.id)]
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
    producers = [token.producer_id, pay.transaction.producer_id]
    assert (status.transaction_shards, [t.producer_id for t in status.holding_back]) == (SHARDS, producers)
    assert [p.transactional_id for p in status.prepared_overdue] == ["sink"]
    dry = admin_pb2.AbortClusterTransactionRequest(transactional_id="pay", validate_only=True)
    assert not (await stub.AbortTransaction(dry)).aborted
    other = admin_pb2.AbortClusterTransactionRequest(
        transactional_id="pay", producer_id=pay.transaction.producer_id, producer_epoch=9
    )
    with pytest.raises(grpc.RpcError) as failed:
        await stub.AbortTransaction(other)
    assert isinstance(error_from_rpc(failed.value), InvalidTxnState)
    assert (await stub.AbortTransaction(admin_pb2.AbortClusterTransactionRequest(transactional_id="pay"))).aborted
    assert (await stub.DecidePrepared(txn.DecidePreparedRequest(token=token, commit=True))).committed
    lost = await world.hang("t", 0)
    world.lab.nodes.jump_clocks(minutes=20)
    hanging = await stub.ListOpenTransactions(admin_pb2.ListOpenTransactionsRequest(hanging_only=True))
    assert [(t.producer_id, t.HasField("transactional_id")) for t in hanging.transactions] == [(lost, False)]
    end = admin_pb2.AbortHangingTransactionRequest(topic="t", partition=0, producer_id=lost)
    assert (await stub.AbortHangingTransaction(end)).aborted
    assert not (await stub.ListOpenTransactions(admin_pb2.ListOpenTransactionsRequest())).transactions


async def test_errors_keep_their_type(world: World, stub: Any) -> None:
    async def refuse(request: Any, context: Any) -> Any:
        await abort_with(context, MetadataUnavailable("etcd is away"))

    handler = grpc.unary_unary_rpc_method_handler(refuse, pb.ListTopicsRequest.FromString)
    replace_controller(world, "ListTopics", handler)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.ListTopics(LIST)
    assert type(error_from_rpc(raised.value)) is MetadataUnavailable


async def test_groups_are_administered(world: World, stub: Any) -> None:
    world.lab.create_topic("t", 2)
    await world.fill("t", 0, 500)
    await world.make_shards()
    await world.commit("g", {("t", 0): 499})
    async with await world.join("live", "t"):
        await groups_answer(world, stub)


async def groups_answer(world: World, stub: Any) -> None:
    listed = await stub.ListGroups(admin_pb2.ListClusterGroupsRequest())
    places = [(group, (await world.place(group)).id) for group in ("g", "live")]
    assert [(g.group.group_id, g.coordinator) for g in listed.groups] == places
    described = await stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=["nope", "live"]))
    assert [(g.group_id, g.error) for g in described.groups] == [("nope", ErrorCode.GROUP_ID_NOT_FOUND), ("live", 0)]
    lag = await stub.DescribeGroupLag(admin_pb2.DescribeGroupLagRequest(group_id="g"))
    (one,) = lag.partitions
    assert (one.committed_offset, one.end_offset, one.lag) == (499, 500, 1)
    assert 0 <= world.clock.now_ms() - TIME_ZERO_MS - 499_000 - one.lag_ms < 1_000
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
        ({"ago_ms": 600_000}, 401),
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
    assert (done.executed, await world.committed("g")) == (True, {("t", 0): 5})
    topics = [coordinator_pb2.TopicPartitions(topic="t")]
    gone = await stub.DeleteOffsets(coordinator_pb2.DeleteOffsetsRequest(group_id="g", partitions=topics))
    assert [(r.topic, r.partition, r.error) for r in gone.results] == [("t", 0, 0)]
    deleted = await stub.DeleteGroups(coordinator_pb2.DeleteGroupsRequest(group_ids=["live", "g"]))
    assert [(r.group_id, r.error) for r in deleted.groups] == [("live", ErrorCode.NON_EMPTY_GROUP), ("g", 0)]


NEW = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partition_count=1, replication_factor=1)], timeout_ms=1_000)
LIST = pb.ListTopicsRequest(limit=1)
LOST = Fault(Does.DROP, after=True)


async def test_reads_are_repeated_when_an_answer_is_lost(world: World) -> None:
    world.lab.inject("list_topics", LOST, LOST)
    assert (await world.controllers.ask(lambda stub: stub.ListTopics, LIST)).total == 0
    assert not world.lab.faults.queued["list_topics"]


async def test_creations_are_not_repeated_when_an_answer_is_lost(world: World) -> None:
    asked: list[str] = []
    world.lab.inject("create_topics", LOST)
    world.lab.on_request = lambda api, *_: asked.append(api)
    with pytest.raises(NetworkFailed):
        await world.controllers.ask(lambda stub: stub.CreateTopics, NEW)
    assert "create_topics" not in asked, "only what was lost"
    assert (await world.controllers.ask(lambda stub: stub.ListTopics, LIST)).total == 1


async def test_dry_runs_are(world: World) -> None:
    world.lab.inject("create_topics", LOST)
    dry = pb.CreateTopicsRequest(topics=NEW.topics, timeout_ms=1_000, validate_only=True)
    assert (await world.controllers.ask(lambda stub: stub.CreateTopics, dry)).topics[0].name == "t"
    assert not world.lab.faults.queued["create_topics"]


async def test_a_creation_follows_the_active_controller(world: World) -> None:
    world.lab.inject("create_topics", *[Fault(Does.ERROR, code=ErrorCode.NOT_CONTROLLER)] * 2)
    assert not (await world.controllers.ask(lambda stub: stub.CreateTopics, NEW)).topics[0].error
    assert not world.lab.faults.queued["create_topics"]


async def test_what_a_controller_does_not_offer_is_told_as_such(world: World) -> None:
    replace_controller(world, "DeleteTopics", None)
    with pytest.raises(UnsupportedVersion, match="does not know this operation"):
        await world.controllers.ask(lambda stub: stub.DeleteTopics, pb.DeleteTopicsRequest(names=["t"]))


async def test_tries_have_an_end(world: World) -> None:
    world.lab.nodes.pause(controller=1)
    controllers = GrpcControllers(world.client, 300)
    with pytest.raises(RequestTimedOut, match=r"no controller was active|no answer came in time"):
        await controllers.ask(lambda stub: stub.ListTopics, LIST)


async def test_brokers_are_asked_where_the_image_has_them(world: World) -> None:
    request = broker_pb2.DescribeLogsRequest()
    with pytest.raises(NetworkFailed, match="not registered"):
        await world.brokers.ask(NodeId(9), lambda stub: stub.DescribeLogs, request)
    world.lab.kill(2)
    with pytest.raises(NetworkFailed):
        await world.brokers.ask(NodeId(2), lambda stub: stub.DescribeLogs, request)
    world.lab.restart(2)
    assert (await world.brokers.ask(NodeId(2), lambda stub: stub.DescribeLogs, request)).disk_total_bytes > 0


async def test_a_fetch_is_one_request_and_its_answer() -> None:
    class Broker(BrokerServicer):
        async def Fetch(self, requests: Any, context: Any) -> Any:
            async for request in requests:
                if request.max_bytes == 1:
                    return
                refused = errors_pb2.INVALID_REQUEST if request.max_bytes == 2 else errors_pb2.NONE
                yield broker_pb2.FetchResponse(correlation_id=request.correlation_id, error=refused, message="no")

    async with GrpcService.open(QUIET, [(add_BrokerServicer_to_server, Broker())]) as server:
        brokers = GrpcBrokers(Known({NodeId(1): server.endpoint}), 5_000)
        try:
            answer = await brokers.fetch(NodeId(1), broker_pb2.FetchRequest(correlation_id=7, max_bytes=3))
            assert answer.correlation_id == 7
            with pytest.raises(NetworkFailed, match="without an answer"):
                await brokers.fetch(NodeId(1), broker_pb2.FetchRequest(max_bytes=1))
            with pytest.raises(Rejected, match="no"):
                await brokers.fetch(NodeId(1), broker_pb2.FetchRequest(max_bytes=2))
        finally:
            await brokers.close()


async def test_waiting_for_a_newer_image_has_an_end(world: World) -> None:
    assert (await world.cluster.newer(10**9, 50)) is world.image


async def test_an_image_as_new_as_the_controllers_is_not_waited_for(world: World) -> None:
    began_ms = world.clock.monotonic_ms()
    assert await world.cluster.caught_up(600_000) is world.image  # no change comes, so it would wait as long as that
    assert world.clock.monotonic_ms() - began_ms < 100


async def test_an_image_that_is_behind_is_waited_for(world: World, lab: LabCluster) -> None:
    behind = world.image
    lab.create_topic("t")
    come = asyncio.Event()

    async def images() -> AsyncIterator[Any]:
        yield behind
        await come.wait()
        late.image = world.image
        yield late.image

    late: Any = SimpleNamespace(image=behind, images=images, calls=world.client.calls)
    waiting = asyncio.ensure_future(GrpcCluster(late).caught_up(600_000))
    await asyncio.sleep(10)
    assert not waiting.done()
    come.set()
    assert (await waiting).topic("t") is not None


async def test_without_a_controller_the_image_is_the_present_one(world: World) -> None:
    world.lab.nodes.kill(controller=1)
    assert await world.cluster.caught_up(50) is world.image
