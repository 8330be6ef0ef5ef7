"""What the admin client makes of the cluster's state and of moves, against a service that answers what a test says."""

from __future__ import annotations

import copy
import pickle

import pytest
from libs.sdk.tests.kit.admin_service import AdminTransport, Service

from headrace import TopicPartition, aio
from headrace.admin_cluster_types import ClusterStatus, ReplicaProgress
from headrace.errors import InvalidReplicaAssignment, NetworkFailed, Rejected
from headrace_proto.v1 import admin_pb2, cluster_pb2, errors_pb2, transaction_pb2
from headrace_proto.v1 import controller_pb2 as pb

ZERO = TopicPartition("a", 0)
STATE = cluster_pb2.Partition(partition=0, leader=2, replicas=[2, 1], isr=[2], adding=[3])


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def admin(service: Service) -> aio.AdminClient:
    return aio.AdminClient(_transport=AdminTransport(service), retry_backoff_ms=1)


async def test_the_status_with_all_that_is_wrong(service: Service, admin: aio.AdminClient) -> None:
    service.answer = admin_pb2.DescribeStatusResponse(
        state=admin_pb2.DEGRADED,
        verdict="degraded: one broker is away",
        brokers=[admin_pb2.BrokerStatus(broker_id=1, fenced=True, away_since_ms=5)],
        troubled=[admin_pb2.TroubledPartition(topic="a", partition=STATE, min_isr=2)],
        under_min_isr=1,
        holding_back=[admin_pb2.OpenTransaction(topic="a", standing=admin_pb2.TXN_HANGING, held_back=9)],
        prepared_overdue=[transaction_pb2.TransactionListing(transactional_id="t", prepared_at_ms=7)],
        stuck_compactions=[admin_pb2.StuckCompaction(topic="a", broker_id=2, reason="batch 7 cannot be read")],
        stuck_compactions_more=3,
    )
    found = await admin.describe_status()
    assert (found.state, found.verdict, found.controller_id) == ("degraded", "degraded: one broker is away", None)
    (broker,) = found.brokers
    assert (broker.fenced, broker.rack, broker.away_since_ms, broker.disk_free_bytes) == (True, None, 5, None)
    (trouble,) = found.troubled
    assert (trouble.partition, trouble.state.isr, trouble.min_isr) == (ZERO, (2,), 2)
    assert (found.holding_back[0].standing, found.holding_back[0].held_back) == ("hanging", 9)
    assert (found.prepared_overdue[0].transactional_id, found.prepared_overdue[0].prepared_at_ms) == ("t", 7)
    assert (found.stuck_compactions[0].partition, found.stuck_compactions[0].broker_id) == (ZERO, 2)
    assert found.stuck_compactions_more == 3


async def test_a_value_keeps_its_message_and_is_compared_and_copied_without_it(
    service: Service, admin: aio.AdminClient
) -> None:
    service.answer = admin_pb2.DescribeStatusResponse(state=admin_pb2.HEALTHY, verdict="healthy")
    found = await admin.describe_status()
    assert found.wire is service.answer
    assert "wire" not in repr(found)
    for same in (copy.copy(found), pickle.loads(pickle.dumps(found)), ClusterStatus.of(service.answer)):
        assert same == found


async def test_how_far_moves_are(service: Service, admin: aio.AdminClient) -> None:
    service.answer = admin_pb2.DescribeReassignmentsResponse(
        partitions=[
            admin_pb2.ReassignmentProgress(
                topic="a",
                partition=STATE,
                leader_bytes=80,
                replicas=[admin_pb2.ReplicaProgress(broker_id=3, bytes=40, percent=50)],
                waits_for=[3],
            )
        ]
    )
    found = await admin.describe_progress(measure_ms=100)
    (moving,) = found.partitions
    assert (moving.partition, moving.state.adding, moving.leader_bytes, moving.waits_for) == (ZERO, (3,), 80, (3,))
    assert moving.replicas == (ReplicaProgress(3, 40, 50, False, None),)
    assert found.throttle_bytes_per_s is None
    assert service.asked == [admin_pb2.DescribeReassignmentsRequest(measure_ms=100)]


MOVES = [
    admin_pb2.PlannedMove(topic="a", replicas_before=[1], replicas=[2], size_bytes=7),
    admin_pb2.PlannedMove(topic="a", partition=1, error=errors_pb2.INVALID_REPLICA_ASSIGNMENT, message="broker 2"),
]
LOADS = [admin_pb2.BrokerLoad(broker_id=1, replicas_before=2, leaders_after=1)]


async def test_rebalancing_tells_of_each_move(service: Service, admin: aio.AdminClient) -> None:
    service.answer = admin_pb2.RebalanceClusterResponse(moves=MOVES, brokers=LOADS, bytes_to_copy=7)
    plan = await admin.rebalance("a", validate_only=True)
    moved, refused = plan.moves
    assert (moved.partition, moved.replicas_before, moved.replicas, moved.size_bytes) == (ZERO, (1,), (2,), 7)
    assert moved.error is None
    assert isinstance(refused.error, InvalidReplicaAssignment)
    assert refused.size_bytes is None
    assert (plan.brokers[0].replicas_before, plan.brokers[0].leaders_after, plan.bytes_to_copy) == (2, 1, 7)
    await admin.rebalance(throttle_bytes_per_s=9)
    assert service.asked == [
        admin_pb2.RebalanceClusterRequest(topics=["a"], validate_only=True),
        admin_pb2.RebalanceClusterRequest(throttle_bytes_per_s=9),
    ]


async def test_a_rebalance_is_not_repeated_where_it_may_have_begun(service: Service, admin: aio.AdminClient) -> None:
    service.answer = admin_pb2.RebalanceClusterResponse()
    service.failures = [NetworkFailed("gone")]
    with pytest.raises(NetworkFailed):
        await admin.rebalance()
    service.failures = [NetworkFailed("gone")]
    await admin.rebalance(validate_only=True)
    assert [request.validate_only for request in service.asked] == [False, True, True]


async def test_emptying_a_broker_is_repeated_for_it_goes_on(service: Service, admin: aio.AdminClient) -> None:
    service.failures = [NetworkFailed("gone")]
    service.answer = admin_pb2.DecommissionBrokerResponse(
        moves=MOVES, drained=True, replicas_left=4, moving=1, next_step="wait"
    )
    left = await admin.decommission_broker(3, throttle_bytes_per_s=5)
    assert (left.drained, left.replicas_left, left.leaders_left, left.moving) == (True, 4, 0, 1)
    assert (len(left.moves), left.next_step) == (2, "wait")
    assert service.asked == [admin_pb2.DecommissionBrokerRequest(broker_id=3, throttle_bytes_per_s=5)] * 2
    service.failures, service.answer = [NetworkFailed("gone")], pb.DrainBrokerResponse(still_leading=2)
    assert await admin.drain_broker(3) == 2


async def test_nodes_are_forgotten_by_role_and_id(service: Service, admin: aio.AdminClient) -> None:
    await admin.unregister_node("coordinator", 2)
    await admin.unregister_node("broker", 0)
    assert service.asked == [
        pb.UnregisterNodeRequest(role=cluster_pb2.COORDINATOR, id=2),
        pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=0),
    ]
    with pytest.raises(Rejected, match="broker, controller, coordinator, admin"):
        await admin.unregister_node("king", 1)
