"""What the engine relies on of coordinators, for the twin in memory and for the way over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from headrace_admin.adapters.grpc_coordinators import GrpcCoordinators
from headrace_admin.adapters.memory_cluster import MemoryCluster
from headrace_admin.adapters.memory_coordinators import MemoryCoordinators
from headrace_admin.ports import CoordinatorPlace, Coordinators
from headrace_common.core.errors import ErrorCode, NetworkFailed, NotCoordinator, RequestTimedOut
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server

QUIET = ServerConfig(drain_ms_max=0)


class Behind(CoordinatorServicer):
    """A coordinator that answers as the twin does."""

    def __init__(self, twin: MemoryCoordinators, place: CoordinatorPlace) -> None:
        self._twin = twin
        self._place = place

    async def ListGroups(self, request: Any, context: Any) -> Any:
        return await self._twin.list_groups(self._place, request)

    async def DescribeGroups(self, request: Any, context: Any) -> Any:
        return await self._twin.describe_groups(self._place, request)

    async def FetchOffsets(self, request: Any, context: Any) -> Any:
        return await self._twin.fetch_offsets(self._place, request)

    async def CommitOffsets(self, request: Any, context: Any) -> Any:
        return await self._twin.commit_offsets(self._place, request)

    async def DeleteGroups(self, request: Any, context: Any) -> Any:
        return await self._twin.delete_groups(self._place, request)

    async def DeleteOffsets(self, request: Any, context: Any) -> Any:
        return await self._twin.delete_offsets(self._place, request)


@dataclass
class Way:
    twin: MemoryCoordinators
    coordinators: Coordinators
    place: CoordinatorPlace


@pytest.fixture(params=["memory", "grpc"])
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    cluster = MemoryCluster()
    new = controller_pb2.NewTopic(name="t", partition_count=2)
    await cluster.create_topics(controller_pb2.CreateTopicsRequest(topics=[new]))
    cluster.start_coordinators(1)
    cluster.make_groups_topic()
    twin = MemoryCoordinators(cluster)
    if request.param == "memory":
        yield Way(twin, twin, CoordinatorPlace(NodeId(1), Endpoint("127.0.0.1", 9601)))
        return
    behind = Behind(twin, CoordinatorPlace(NodeId(1), Endpoint("127.0.0.1", 9601)))
    coordinators = GrpcCoordinators(5_000)
    async with GrpcService.open(QUIET, [(add_CoordinatorServicer_to_server, behind)]) as server:
        yield Way(twin, coordinators, CoordinatorPlace(NodeId(1), server.endpoint))
        await coordinators.close()


def commit(group: str, *offsets: int) -> pb.CommitOffsetsRequest:
    entries = [pb.OffsetCommit(topic="t", partition=n, offset=o, leader_epoch=-1) for n, o in enumerate(offsets)]
    return pb.CommitOffsetsRequest(group_id=group, generation=-1, offsets=entries)


async def test_what_is_committed_is_there_and_makes_the_group(way: Way) -> None:
    done = await way.coordinators.commit_offsets(way.place, commit("g", 5, 6, 7))
    assert [r.error for r in done.results] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    fetched = await way.coordinators.fetch_offsets(way.place, pb.FetchOffsetsRequest(group_id="g"))
    assert [(o.topic, o.partition, o.offset) for o in fetched.offsets] == [("t", 0, 5), ("t", 1, 6)]
    assert all(o.committed_at_ms > 0 for o in fetched.offsets)
    named = pb.FetchOffsetsRequest(group_id="g", partitions=[pb.TopicPartitions(topic="t", partitions=[1, 9])])
    assert [o.offset for o in (await way.coordinators.fetch_offsets(way.place, named)).offsets] == [6, -1]
    (listed,) = (await way.coordinators.list_groups(way.place, pb.ListGroupsRequest())).groups
    assert (listed.group_id, listed.state, listed.members) == ("g", pb.EMPTY, 0)


async def test_nobody_else_commits_while_there_are_members(way: Way) -> None:
    way.twin.join("g", "m", {"t": [0, 1]})
    done = await way.coordinators.commit_offsets(way.place, commit("g", 5))
    assert [r.error for r in done.results] == [ErrorCode.UNKNOWN_MEMBER_ID]
    request = pb.DescribeGroupsRequest(group_ids=["g", "nope"])
    there, nope = (await way.coordinators.describe_groups(way.place, request)).groups
    assert (there.error, there.state, there.members[0].member_id) == (0, pb.STABLE, "m")
    assert (nope.group_id, nope.error) == ("nope", ErrorCode.GROUP_ID_NOT_FOUND)


async def test_groups_with_members_stay(way: Way) -> None:
    way.twin.join("g", "m", {"t": [0]})
    way.twin.commit("old", {("t", 0): 1})
    request = pb.DeleteGroupsRequest(group_ids=["g", "old", "nope"])
    done = (await way.coordinators.delete_groups(way.place, request)).groups
    assert [r.error for r in done] == [ErrorCode.NON_EMPTY_GROUP, 0, ErrorCode.GROUP_ID_NOT_FOUND]


async def test_offsets_that_a_member_subscribes_to_stay(way: Way) -> None:
    way.twin.join("g", "m", {"t": [0]})
    way.twin.commit("g", {("t", 0): 1, ("u", 0): 2})
    topics = [pb.TopicPartitions(topic=t, partitions=[0]) for t in "tu"]
    request = pb.DeleteOffsetsRequest(group_id="g", partitions=topics)
    done = (await way.coordinators.delete_offsets(way.place, request)).results
    assert [(r.topic, r.error) for r in done] == [("t", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("u", 0)]


async def test_who_does_not_serve_the_shard_says_so(way: Way) -> None:
    way.twin.loading.add(way.twin._cluster.shard_of("g"))
    with pytest.raises(NotCoordinator):
        await way.coordinators.commit_offsets(way.place, commit("g", 5))
    listed = await way.coordinators.list_groups(way.place, pb.ListGroupsRequest())
    assert list(listed.loading) == [way.twin._cluster.shard_of("g")]


async def test_one_that_is_away_is_an_unknown_outcome(way: Way) -> None:
    way.twin.down.add(1)
    with pytest.raises(NetworkFailed):
        await way.coordinators.commit_offsets(way.place, commit("g", 5))


async def test_a_coordinator_that_moved_is_asked_where_it_is() -> None:
    cluster = MemoryCluster()
    cluster.start_coordinators(1)
    behind = Behind(MemoryCoordinators(cluster), CoordinatorPlace(NodeId(1), Endpoint("127.0.0.1", 9601)))
    coordinators = GrpcCoordinators(2_000)
    try:
        with pytest.raises((NetworkFailed, RequestTimedOut)):
            await coordinators.list_groups(
                CoordinatorPlace(NodeId(1), Endpoint("127.0.0.1", 1)), pb.ListGroupsRequest()
            )
        async with GrpcService.open(QUIET, [(add_CoordinatorServicer_to_server, behind)]) as server:
            await coordinators.list_groups(CoordinatorPlace(NodeId(1), server.endpoint), pb.ListGroupsRequest())
    finally:
        await coordinators.close()
