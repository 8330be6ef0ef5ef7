"""What the admin client makes of leaders and replicas, against an admin service that answers what a test says."""

from __future__ import annotations

from typing import Any

import pytest
from libs.sdk.tests.kit.admin_service import AdminTransport, Service

from headrace import TopicPartition, aio
from headrace.admin_types import PartitionInfo, Reassignment
from headrace.errors import ElectionNotNeeded, ErrorCode, Rejected, UnknownTopicOrPartition
from headrace_proto.v1 import cluster_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb

A, B = b"a" * 16, b"b" * 16
ZERO, ONE = TopicPartition("a", 0), TopicPartition("a", 1)


class Known(Service):
    """Knows two topics."""

    async def ListTopics(self, request: Any, timeout: float) -> pb.ListTopicsResponse:
        return pb.ListTopicsResponse(
            topics=[
                cluster_pb2.Topic(topic_id=A, name="a", partition_count=2),
                cluster_pb2.Topic(topic_id=B, name="b", partition_count=1, internal=True),
            ]
        )


@pytest.fixture
def service() -> Service:
    return Known()


@pytest.fixture
def admin(service: Service) -> aio.AdminClient:
    return aio.AdminClient(_transport=AdminTransport(service))


def partition(topic_id: bytes, number: int, **fields: Any) -> cluster_pb2.Partition:
    return cluster_pb2.Partition(
        topic_id=topic_id, partition=number, leader=2, leader_epoch=4, replicas=[2, 1], isr=[2], **fields
    )


async def test_preferred_leaders_of_all_partitions(service: Service, admin: aio.AdminClient) -> None:
    service.answer = pb.ElectLeadersResponse(
        partitions=[pb.PartitionOutcome(topic_id=B, partition=0, current=partition(B, 0, elr=[1]))]
    )
    moved = await admin.elect_leaders()
    assert moved == {TopicPartition("b", 0): PartitionInfo(0, 2, 4, (2, 1), (2,), (1,))}
    assert service.asked == [pb.ElectLeadersRequest(type=pb.PREFERRED)]


async def test_an_election_tells_of_each_partition(service: Service, admin: aio.AdminClient) -> None:
    service.answer = pb.ElectLeadersResponse(
        partitions=[
            pb.PartitionOutcome(topic_id=A, partition=0, error=errors_pb2.ELECTION_NOT_NEEDED, message="it leads"),
            pb.PartitionOutcome(topic_id=A, partition=1, current=partition(A, 1, recovering=True)),
        ]
    )
    told = await admin.elect_leaders([ZERO, ("a", 1)], kind="unclean")
    refused, elected = told[ZERO], told[ONE]
    assert isinstance(refused, ElectionNotNeeded)
    assert "a-0" in str(refused)
    assert "it leads" in str(refused)
    assert isinstance(elected, PartitionInfo)
    assert elected.recovering
    [request] = service.asked
    assert [(ref.topic_id, ref.partition) for ref in request.partitions] == [(A, 0), (A, 1)]
    assert request.type == pb.UNCLEAN


async def test_what_may_lose_records_needs_names(service: Service, admin: aio.AdminClient) -> None:
    for kind in ("unclean", "without_missing"):
        with pytest.raises(Rejected, match="name the partitions"):
            await admin.elect_leaders(kind=kind)
    with pytest.raises(Rejected, match="'preferred'"):
        await admin.elect_leaders([ZERO], kind="clean")
    with pytest.raises(UnknownTopicOrPartition, match="nobody"):
        await admin.elect_leaders([("nobody", 0)])
    assert not service.asked


async def test_replicas_are_changed_and_the_change_cancelled(service: Service, admin: aio.AdminClient) -> None:
    service.answer = pb.AlterReassignmentsResponse(
        partitions=[
            pb.PartitionOutcome(topic_id=A, partition=0, current=partition(A, 0, adding=[3])),
            pb.PartitionOutcome(topic_id=A, partition=1, error=errors_pb2.NO_REASSIGNMENT_IN_PROGRESS),
        ]
    )
    told = await admin.alter_reassignments({ZERO: [3, 2], ONE: None}, validate_only=True)
    assert isinstance(told[ZERO], PartitionInfo)
    assert getattr(told[ONE], "code", None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    [request] = service.asked
    assert [list(one.replicas) for one in request.reassignments] == [[3, 2], []]
    assert request.validate_only
    with pytest.raises(Rejected, match="None cancels"):
        await admin.alter_reassignments({ZERO: []})


async def test_changes_under_way_are_listed(service: Service, admin: aio.AdminClient) -> None:
    service.answer = pb.ListReassignmentsResponse(
        partitions=[partition(B, 0, adding=[3], removing=[1]), partition(A, 1, adding=[3])]
    )
    found = await admin.list_reassignments()
    assert found == [
        Reassignment(ONE, (2, 1), (3,), (), (2,)),
        Reassignment(TopicPartition("b", 0), (2, 1), (3,), (1,), (2,)),
    ]


async def test_a_drained_broker_tells_what_it_still_leads(service: Service, admin: aio.AdminClient) -> None:
    service.answer = pb.DrainBrokerResponse(still_leading=3)
    assert await admin.drain_broker(7) == 3
    assert await admin.drain_broker(7, drained=False) == 3
    assert [(request.broker_id, request.drained) for request in service.asked] == [(7, True), (7, False)]


async def test_a_cluster_in_trouble_is_described(service: Service, admin: aio.AdminClient) -> None:
    service.answer = pb.DescribeClusterResponse(
        cluster_id="c",
        nodes=[cluster_pb2.Node(role=cluster_pb2.BROKER, id=2, drained=True)],
        under_min_isr_partition_count=1,
        not_preferred_partition_count=2,
        reassigning_partition_count=3,
        recovering_partition_count=4,
        troubled=[partition(A, 1, last_known_elr=[1])],
    )
    cluster = await admin.describe_cluster()
    assert cluster.brokers[0].drained
    assert (cluster.under_min_isr_partitions, cluster.not_preferred_partitions) == (1, 2)
    assert (cluster.reassigning_partitions, cluster.recovering_partitions) == (3, 4)
    [troubled] = cluster.troubled
    assert (troubled.topic_id, troubled.state.partition, troubled.state.last_known_elr) == (A, 1, (1,))
