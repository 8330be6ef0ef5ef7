"""What the engine relies on of coordinators: for the twin in memory, for the way over gRPC, and for a real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Protocol
from uuid import uuid4

import pytest
from libs.common.tests.kit.as_node import as_node
from services.admin.tests.twin.memory_cluster import MemoryCluster
from services.admin.tests.twin.memory_coordinators import MemoryCoordinators

import headrace
from headrace_admin.adapters.grpc_coordinators import CHANNELS_MAX, GrpcCoordinators
from headrace_admin.ports import CoordinatorPlace, Coordinators
from headrace_cli.local import LocalCluster
from headrace_common.core.errors import ErrorCode, NetworkFailed, NotCoordinator, RequestTimedOut
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import broker_pb2, controller_pb2
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2_grpc import (
    CoordinatorServicer,
    CoordinatorStub,
    add_CoordinatorServicer_to_server,
)

QUIET = ServerConfig(drain_ms_max=0)
HERE = CoordinatorPlace(NodeId(1), Endpoint("127.0.0.1", 9601))
PATIENCE_S = 20


class Behind(CoordinatorServicer):
    """A coordinator that answers as the twin does."""

    def __init__(self, twin: MemoryCoordinators) -> None:
        self._twin = twin

    async def ListGroups(self, request: Any, context: Any) -> Any:
        return await self._twin.list_groups(HERE, request)

    async def DescribeGroups(self, request: Any, context: Any) -> Any:
        return await self._twin.describe_groups(HERE, request)

    async def FetchOffsets(self, request: Any, context: Any) -> Any:
        return await self._twin.fetch_offsets(HERE, request)

    async def CommitOffsets(self, request: Any, context: Any) -> Any:
        return await self._twin.commit_offsets(HERE, request)

    async def DeleteGroups(self, request: Any, context: Any) -> Any:
        return await self._twin.delete_groups(HERE, request)

    async def DeleteOffsets(self, request: Any, context: Any) -> Any:
        return await self._twin.delete_offsets(HERE, request)


class Way(Protocol):
    """Coordinators, and members that join their groups; topics t, of two partitions, and u, of one."""

    coordinators: Coordinators

    async def place(self, group: str) -> CoordinatorPlace:
        """Who has a group."""
        ...

    async def join(self, group: str) -> None:
        """A member that holds all of topic t."""
        ...


class TwinWay:
    def __init__(self, twin: MemoryCoordinators, coordinators: Coordinators, place: CoordinatorPlace) -> None:
        self.twin = twin
        self.coordinators = coordinators
        self._place = place

    async def place(self, group: str) -> CoordinatorPlace:
        return self._place

    async def join(self, group: str) -> None:
        self.twin.join(group, "m", {"t": [0, 1]})


class RealWay:
    def __init__(self, cluster: LocalCluster, stack: AsyncExitStack) -> None:
        self.coordinators: Coordinators = GrpcCoordinators(5_000, as_node(cluster.directory.path))
        self._stack = stack
        self._bootstrap = cluster.bootstrap_servers[0]

    async def place(self, group: str) -> CoordinatorPlace:
        async with open_channel(self._bootstrap) as channel:
            request = broker_pb2.FindCoordinatorRequest(keys=[group])
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    stub: Any = BrokerStub(channel)
                    (found,) = (await stub.FindCoordinator(request)).coordinators
                    if not found.error:
                        return CoordinatorPlace(
                            NodeId(found.coordinator), Endpoint(found.endpoint.host, found.endpoint.port)
                        )
                    await asyncio.sleep(0.05)

    async def join(self, group: str) -> None:
        channel = await self._stack.enter_async_context(open_channel(str((await self.place(group)).endpoint)))
        stub: Any = CoordinatorStub(channel)
        stream = stub.Membership()
        self._stack.callback(stream.cancel)
        join = pb.ConsumerHeartbeat(
            member_id=str(uuid4()),
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscription=pb.ConsumerSubscription(topics=["t"]),
            owned=pb.PartitionSet(),
            client_id="app",
        )
        await stream.write(pb.MembershipRequest(group_id=group, consumer_heartbeat=join))
        async with asyncio.timeout(PATIENCE_S):
            while not (await stream.read()).consumer_state.assignment.topics:
                pass


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("contract") / "data"
    with LocalCluster(directory, brokers=1, coordinators=1, restart=False) as cluster:
        with headrace.AdminClient(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 2)
            admin.create_topic("u", 1)
            admin.reset_offsets("first", "t", to="latest", execute=True)  # makes the internal topic
            until_served(admin)
        yield cluster


def until_served(admin: headrace.AdminClient) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while missing := admin.list_groups().missing:
        assert time.monotonic() < deadline, missing
        time.sleep(0.05)


async def twin_of_a_cluster() -> MemoryCoordinators:
    cluster = MemoryCluster()
    topics = [controller_pb2.NewTopic(name=name, partition_count=count) for name, count in (("t", 2), ("u", 1))]
    await cluster.create_topics(controller_pb2.CreateTopicsRequest(topics=topics))
    cluster.start_coordinators(1)
    cluster.make_shards()
    return MemoryCoordinators(cluster)


@pytest.fixture(params=["memory", "grpc", pytest.param("real", marks=pytest.mark.integration)])
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    async with AsyncExitStack() as stack:
        if request.param == "real":
            real = RealWay(request.getfixturevalue("real_cluster"), stack)
            stack.push_async_callback(real.coordinators.close)  # it is gRPC's
            yield real
        else:
            yield await stack.enter_async_context(_twin(request.param))


def _twin(kind: str) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def opened() -> AsyncIterator[TwinWay]:
        twin = await twin_of_a_cluster()
        if kind == "memory":
            yield TwinWay(twin, twin, HERE)
            return
        coordinators = GrpcCoordinators(5_000)
        async with GrpcService.open(QUIET, [(add_CoordinatorServicer_to_server, Behind(twin))]) as server:
            yield TwinWay(twin, coordinators, CoordinatorPlace(NodeId(1), server.endpoint))
            await coordinators.close()

    return opened()


@pytest.fixture
def group() -> str:
    """A name that no other test has."""
    return f"g-{uuid4()}"


async def commit(way: Way, group: str, offsets: Mapping[tuple[str, int], int]) -> list[int]:
    request = pb.CommitOffsetsRequest(group_id=group, generation=-1)
    for (topic, n), offset in offsets.items():
        request.offsets.add(topic=topic, partition=n, offset=offset, leader_epoch=-1)
    done = await way.coordinators.commit_offsets(await way.place(group), request)
    assert [(r.topic, r.partition) for r in done.results] == list(offsets)
    return [int(r.error) for r in done.results]


async def test_what_is_committed_is_there_and_makes_the_group(way: Way, group: str) -> None:
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    offsets = {("t", 0): 5, ("t", 1): 6, ("t", 7): 7, ("no-such-topic", 0): 1}
    assert await commit(way, group, offsets) == [0, 0, unknown, unknown]
    place = await way.place(group)
    fetched = await way.coordinators.fetch_offsets(place, pb.FetchOffsetsRequest(group_id=group))
    assert sorted((o.topic, o.partition, o.offset) for o in fetched.offsets) == [("t", 0, 5), ("t", 1, 6)]
    assert all(o.committed_at_ms > 0 for o in fetched.offsets)
    parts = [pb.TopicPartitions(topic="t", partitions=[1]), pb.TopicPartitions(topic="u", partitions=[0])]
    named = pb.FetchOffsetsRequest(group_id=group, partitions=parts)
    assert [o.offset for o in (await way.coordinators.fetch_offsets(place, named)).offsets] == [6, -1]
    listed = (await way.coordinators.list_groups(place, pb.ListGroupsRequest())).groups
    assert [(g.state, g.members) for g in listed if g.group_id == group] == [(pb.EMPTY, 0)]
    stable = await way.coordinators.list_groups(place, pb.ListGroupsRequest(states=[pb.STABLE]))
    assert group not in {g.group_id for g in stable.groups}


async def test_nothing_is_known_of_a_group_that_is_not_there(way: Way, group: str) -> None:
    place = await way.place(group)
    assert not (await way.coordinators.fetch_offsets(place, pb.FetchOffsetsRequest(group_id=group))).offsets
    (nope,) = (await way.coordinators.describe_groups(place, pb.DescribeGroupsRequest(group_ids=[group]))).groups
    assert (nope.group_id, nope.error) == (group, ErrorCode.GROUP_ID_NOT_FOUND)


async def test_nobody_else_commits_while_there_are_members(way: Way, group: str) -> None:
    await way.join(group)
    refusals = {int(ErrorCode.UNKNOWN_MEMBER_ID), int(ErrorCode.NON_EMPTY_GROUP)}
    assert set(await commit(way, group, {("t", 0): 5, ("u", 0): 1})) <= refusals
    request = pb.DescribeGroupsRequest(group_ids=[group])
    (there,) = (await way.coordinators.describe_groups(await way.place(group), request)).groups
    (member,) = there.members
    assert (there.error, there.protocol, member.client_id) == (0, pb.CONSUMER, "app")
    assert member.client_address
    assert [(t.topic, list(t.partitions)) for t in member.assigned] == [("t", [0, 1])]


async def test_groups_with_members_stay(way: Way, group: str) -> None:
    old = f"{group}-old"
    await commit(way, old, {("t", 0): 1})
    await way.join(group)
    for one, code in ((group, ErrorCode.NON_EMPTY_GROUP), (old, 0), (old, ErrorCode.GROUP_ID_NOT_FOUND)):
        request = pb.DeleteGroupsRequest(group_ids=[one])
        (done,) = (await way.coordinators.delete_groups(await way.place(one), request)).groups
        assert (done.group_id, done.error) == (one, code)
    gone = pb.FetchOffsetsRequest(group_id=old)
    assert not (await way.coordinators.fetch_offsets(await way.place(old), gone)).offsets


async def test_offsets_that_a_member_subscribes_to_stay(way: Way, group: str) -> None:
    await commit(way, group, {("t", 0): 1, ("u", 0): 2})
    await way.join(group)
    topics = [pb.TopicPartitions(topic=t, partitions=[0]) for t in "tu"]
    request = pb.DeleteOffsetsRequest(group_id=group, partitions=topics)
    done = (await way.coordinators.delete_offsets(await way.place(group), request)).results
    assert [(r.topic, r.error) for r in done] == [("t", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("u", 0)]
    left = await way.coordinators.fetch_offsets(await way.place(group), pb.FetchOffsetsRequest(group_id=group))
    assert [(o.topic, o.offset) for o in left.offsets] == [("t", 1)]


@pytest.mark.parametrize("kind", ["memory", "grpc"])
async def test_who_does_not_serve_the_shard_says_so(kind: str) -> None:
    async with _twin(kind) as way:
        way.twin.loading |= {0, 1, 2, 3}
        with pytest.raises(NotCoordinator):
            await commit(way, "g", {("t", 0): 5})
        listed = await way.coordinators.list_groups(await way.place("g"), pb.ListGroupsRequest())
        assert list(listed.loading) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["memory", "grpc"])
async def test_one_that_is_away_is_an_unknown_outcome(kind: str) -> None:
    async with _twin(kind) as way:
        way.twin.down.add(1)
        with pytest.raises(NetworkFailed):
            await commit(way, "g", {("t", 0): 5})


async def test_channels_are_bounded() -> None:
    coordinators = GrpcCoordinators(1)
    for port in range(1, CHANNELS_MAX + 9):
        with pytest.raises((NetworkFailed, RequestTimedOut)):
            await coordinators.list_groups(
                CoordinatorPlace(NodeId(port), Endpoint("127.0.0.1", port)), pb.ListGroupsRequest()
            )
    assert coordinators.channels == CHANNELS_MAX
    await coordinators.close()
    assert coordinators.channels == 0


async def test_a_coordinator_that_moved_is_asked_where_it_is() -> None:
    behind = Behind(await twin_of_a_cluster())
    coordinators = GrpcCoordinators(2_000)
    try:
        nowhere = CoordinatorPlace(NodeId(1), Endpoint("127.0.0.1", 1))
        with pytest.raises((NetworkFailed, RequestTimedOut)):
            await coordinators.list_groups(nowhere, pb.ListGroupsRequest())
        async with GrpcService.open(QUIET, [(add_CoordinatorServicer_to_server, behind)]) as server:
            await coordinators.list_groups(CoordinatorPlace(NodeId(1), server.endpoint), pb.ListGroupsRequest())
    finally:
        await coordinators.close()
