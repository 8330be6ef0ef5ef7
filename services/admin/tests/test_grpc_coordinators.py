"""What the engine relies on of coordinators, by way of gRPC: on those of a cluster in the lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster
from services.admin.tests.kit.world import World

from headrace_admin.adapters.grpc_coordinators import CHANNELS_MAX, GrpcCoordinators
from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.errors import ErrorCode, NetworkFailed, NotCoordinator, RequestTimedOut
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_lab.nodes import address
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server

QUIET = ServerConfig(drain_ms_max=0)


@pytest.fixture
async def way(lab: LabCluster, world: World) -> World:
    """Topics t, of two partitions, and u, of one."""
    lab.create_topic("t", 2)
    lab.create_topic("u")
    await world.make_shards()
    return world


@pytest.fixture
def group() -> str:
    return "g"


async def commit(way: World, group: str, offsets: Mapping[tuple[str, int], int]) -> list[int]:
    request = pb.CommitOffsetsRequest(group_id=group, generation=-1)
    for (topic, n), offset in offsets.items():
        request.offsets.add(topic=topic, partition=n, offset=offset, leader_epoch=-1)
    done = await way.coordinators.ask_group(await way.place(group), lambda stub: stub.CommitOffsets, request)
    assert [(r.topic, r.partition) for r in done.results] == list(offsets)
    return [int(r.error) for r in done.results]


async def test_what_is_committed_is_there_and_makes_the_group(way: World, group: str) -> None:
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    offsets = {("t", 0): 5, ("t", 1): 6, ("t", 7): 7, ("no-such-topic", 0): 1}
    assert await commit(way, group, offsets) == [0, 0, unknown, unknown]
    place = await way.place(group)
    fetched = await way.coordinators.ask_group(
        place, lambda stub: stub.FetchOffsets, pb.FetchOffsetsRequest(group_id=group)
    )
    assert sorted((o.topic, o.partition, o.offset) for o in fetched.offsets) == [("t", 0, 5), ("t", 1, 6)]
    assert all(o.committed_at_ms > 0 for o in fetched.offsets)
    parts = [pb.TopicPartitions(topic="t", partitions=[1]), pb.TopicPartitions(topic="u", partitions=[0])]
    named = pb.FetchOffsetsRequest(group_id=group, partitions=parts)
    assert [
        o.offset for o in (await way.coordinators.ask_group(place, lambda stub: stub.FetchOffsets, named)).offsets
    ] == [6, -1]
    listed = (await way.coordinators.ask_group(place, lambda stub: stub.ListGroups, pb.ListGroupsRequest())).groups
    assert [(g.state, g.members) for g in listed if g.group_id == group] == [(pb.EMPTY, 0)]
    stable = await way.coordinators.ask_group(
        place, lambda stub: stub.ListGroups, pb.ListGroupsRequest(states=[pb.STABLE])
    )
    assert group not in {g.group_id for g in stable.groups}


async def test_nothing_is_known_of_a_group_that_is_not_there(way: World, group: str) -> None:
    place = await way.place(group)
    assert not (
        await way.coordinators.ask_group(place, lambda stub: stub.FetchOffsets, pb.FetchOffsetsRequest(group_id=group))
    ).offsets
    (nope,) = (
        await way.coordinators.ask_group(
            place, lambda stub: stub.DescribeGroups, pb.DescribeGroupsRequest(group_ids=[group])
        )
    ).groups
    assert (nope.group_id, nope.error) == (group, ErrorCode.GROUP_ID_NOT_FOUND)


async def test_nobody_else_commits_while_there_are_members(way: World, group: str) -> None:
    async with await way.join(group, "t", client="app"):
        assert await commit(way, group, {("t", 0): 5, ("u", 0): 1}) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
        request = pb.DescribeGroupsRequest(group_ids=[group])
        (there,) = (
            await way.coordinators.ask_group(await way.place(group), lambda stub: stub.DescribeGroups, request)
        ).groups
    (member,) = there.members
    assert (there.error, there.protocol, member.client_id) == (0, pb.CONSUMER, "app")
    assert member.client_address
    assert [(t.topic, list(t.partitions)) for t in member.assigned] == [("t", [0, 1])]


async def test_groups_with_members_stay(way: World, group: str) -> None:
    old = f"{group}-old"
    await commit(way, old, {("t", 0): 1})
    async with await way.join(group, "t"):
        for one, code in ((group, ErrorCode.NON_EMPTY_GROUP), (old, 0), (old, ErrorCode.GROUP_ID_NOT_FOUND)):
            request = pb.DeleteGroupsRequest(group_ids=[one])
            (done,) = (
                await way.coordinators.ask_group(await way.place(one), lambda stub: stub.DeleteGroups, request)
            ).groups
            assert (done.group_id, done.error) == (one, code)
    gone = pb.FetchOffsetsRequest(group_id=old)
    assert not (await way.coordinators.ask_group(await way.place(old), lambda stub: stub.FetchOffsets, gone)).offsets


async def test_offsets_that_a_member_subscribes_to_stay(way: World, group: str) -> None:
    await commit(way, group, {("t", 0): 1, ("u", 0): 2})
    async with await way.join(group, "t"):
        topics = [pb.TopicPartitions(topic=t, partitions=[0]) for t in "tu"]
        request = pb.DeleteOffsetsRequest(group_id=group, partitions=topics)
        done = (
            await way.coordinators.ask_group(await way.place(group), lambda stub: stub.DeleteOffsets, request)
        ).results
    assert [(r.topic, r.error) for r in done] == [("t", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("u", 0)]
    left = await way.coordinators.ask_group(
        await way.place(group), lambda stub: stub.FetchOffsets, pb.FetchOffsetsRequest(group_id=group)
    )
    assert [(o.topic, o.offset) for o in left.offsets] == [("t", 1)]


async def test_who_does_not_serve_the_shard_says_so(way: World, group: str) -> None:
    place = await way.place(group)
    other = NodeId(3 - place.id)
    request = pb.CommitOffsetsRequest(group_id=group, generation=-1)
    request.offsets.add(topic="t", partition=0, offset=5, leader_epoch=-1)
    with pytest.raises(NotCoordinator):
        await way.coordinators.ask_group(
            CoordinatorPlace(other, address(f"coordinator-{other}")), lambda stub: stub.CommitOffsets, request
        )


async def test_one_that_is_away_is_an_unknown_outcome(way: World, group: str) -> None:
    place = await way.place(group)
    way.lab.kill_coordinator(place.id)
    with pytest.raises(NetworkFailed):
        await way.coordinators.ask_group(
            place, lambda stub: stub.CommitOffsets, pb.CommitOffsetsRequest(group_id=group, generation=-1)
        )


async def test_channels_are_bounded() -> None:
    coordinators = GrpcCoordinators(1)
    for port in range(1, CHANNELS_MAX + 9):
        with pytest.raises((NetworkFailed, RequestTimedOut)):
            await coordinators.ask_group(
                CoordinatorPlace(NodeId(port), Endpoint("127.0.0.1", port)),
                lambda stub: stub.ListGroups,
                pb.ListGroupsRequest(),
            )
    assert coordinators.channels == CHANNELS_MAX
    await coordinators.close()
    assert coordinators.channels == 0


class Empty(CoordinatorServicer):
    """One without groups."""

    async def ListGroups(self, request: Any, context: Any) -> Any:
        return pb.ListGroupsResponse()


async def test_a_coordinator_that_moved_is_asked_where_it_is() -> None:
    coordinators = GrpcCoordinators(2_000)
    try:
        nowhere = CoordinatorPlace(NodeId(1), Endpoint("127.0.0.1", 1))
        with pytest.raises((NetworkFailed, RequestTimedOut)):
            await coordinators.ask_group(nowhere, lambda stub: stub.ListGroups, pb.ListGroupsRequest())
        async with GrpcService.open(QUIET, [(add_CoordinatorServicer_to_server, Empty())]) as server:
            await coordinators.ask_group(
                CoordinatorPlace(NodeId(1), server.endpoint), lambda stub: stub.ListGroups, pb.ListGroupsRequest()
            )
    finally:
        await coordinators.close()
