"""What ``port.Transport`` promises of coordinators, kept by processes over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count

import pytest

from headrace._transport.grpc import GrpcTransport
from headrace._transport.port import Coordinator, MembershipStream, Transport
from headrace.errors import ErrorCode, HeadraceError, NetworkFailed
from headrace.testing import TestCluster, started_cluster
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import coordinator_pb2 as pb

NUMBERS = count(1)
LEAVE = -1
NOBODY = Coordinator(NodeId(1), "127.0.0.1:1")


@dataclass
class World:
    """A transport, a topic of four partitions, and a group that nobody has used, with its coordinator."""

    transport: Transport
    topic: str
    group: str
    coordinator: Coordinator = NOBODY

    async def begun(self) -> World:
        while True:
            try:
                self.coordinator = await self.transport.find_coordinator(self.group)
                await self.offsets(self.transport)
                return self
            except HeadraceError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(0.02)

    def open(self) -> MembershipStream:
        return self.transport.membership(self.coordinator)

    def beat(self, member: str, epoch: int, owned: list[pb.TopicPartitions] | None = None) -> pb.MembershipRequest:
        request = pb.ConsumerHeartbeat(member_id=member, member_epoch=epoch)
        if epoch == 0:
            request.subscription.topics.append(self.topic)
            request.rebalance_timeout_ms = 60_000
            request.owned.SetInParent()
        if owned is not None:
            request.owned.topics.extend(owned)
        return pb.MembershipRequest(group_id=self.group, consumer_heartbeat=request)

    def join(self, member: str = "") -> pb.MembershipRequest:
        request = pb.ClassicJoin(member_id=member, session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
        request.protocols.add(name="range", subscription=pb.ClassicSubscription(topics=[self.topic], generation=-1))
        return pb.MembershipRequest(group_id=self.group, classic_join=request)

    async def commit(self, member: str, generation: int, offset: int) -> pb.OffsetResult:
        request = pb.CommitOffsetsRequest(group_id=self.group, member_id=member, generation=generation)
        request.offsets.add(topic=self.topic, partition=0, offset=offset, leader_epoch=3, metadata="why")
        call = self.transport.group_call(lambda stub: stub.CommitOffsets, request)
        [result] = (await call(self.coordinator, 5_000)).results
        return result

    async def offsets(self, transport: Transport) -> list[pb.CommittedOffset]:
        """Of the first two partitions."""
        asked = [pb.TopicPartitions(topic=self.topic, partitions=[0, 1])]
        request = pb.FetchOffsetsRequest(group_id=self.group, partitions=asked)
        call = transport.group_call(lambda stub: stub.FetchOffsets, request)
        return list((await call(self.coordinator, 5_000)).offsets)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    settings = {"group.initial.rebalance.delay.ms": "0", "group.rejoin.grace.ms": "3600000"}
    with started_cluster(tmp_path_factory.mktemp("groups"), settings=settings) as running:
        yield running


@pytest.fixture(params=[pytest.param("grpc", marks=pytest.mark.integration)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    running: TestCluster = request.getfixturevalue("cluster")
    transport = GrpcTransport(running.bootstrap_servers)
    yield await World(transport, running.unique_topic(partitions=4), f"contract-{next(NUMBERS)}").begun()
    await transport.close()


async def state(stream: MembershipStream) -> pb.ConsumerState:
    """The next that says what to hold."""
    while True:
        answer = await stream.receive()
        assert answer.WhichOneof("response") == "consumer_state"
        assert not answer.consumer_state.error, answer
        if answer.consumer_state.HasField("assignment"):
            return answer.consumer_state


def held(said: pb.ConsumerState) -> set[int]:
    return {number for entry in said.assignment.topics for number in entry.partitions}


async def test_a_member_is_told_what_to_hold_and_news_is_pushed(world: World) -> None:
    one, two = world.open(), world.open()
    one.send(world.beat("one", 0))
    first = await state(one)
    assert held(first) == {0, 1, 2, 3}
    assert first.member_epoch > 0
    one.send(world.beat("one", first.member_epoch, list(first.assignment.topics)))
    two.send(world.beat("two", 0))
    while len(held(news := await state(one))) != 2:
        pass
    one.send(world.beat("one", news.member_epoch, list(news.assignment.topics)))
    while len(held(second := await state(two))) != 2:
        pass
    assert held(news) | held(second) == {0, 1, 2, 3}
    for stream in (one, two):
        await stream.close()


async def test_a_classic_round(world: World) -> None:
    stream = world.open()
    stream.send(world.join())
    joined = (await stream.receive()).classic_joined
    assert not joined.error, joined
    assert joined.leader == joined.member_id
    assert [member.member_id for member in joined.members] == [joined.member_id]
    sync = pb.ClassicSync(member_id=joined.member_id, generation=joined.generation)
    share = pb.ClassicAssignment(partitions=[pb.TopicPartitions(topic=world.topic, partitions=[0, 1])])
    sync.assignments.add(member_id=joined.member_id, assignment=share)
    stream.send(pb.MembershipRequest(group_id=world.group, classic_sync=sync))
    synced = (await stream.receive()).classic_synced
    assert (synced.error, synced.generation) == (0, joined.generation)
    assert [list(entry.partitions) for entry in synced.assignment.partitions] == [[0, 1]]
    alive = pb.ClassicHeartbeat(member_id=joined.member_id, generation=joined.generation)
    stream.send(pb.MembershipRequest(group_id=world.group, classic_heartbeat=alive))
    assert not (await stream.receive()).classic_state.error
    other = world.open()
    other.send(world.join())
    assert (await stream.receive()).classic_state.error == ErrorCode.REBALANCE_IN_PROGRESS, "at once, unasked"
    stream.send(pb.MembershipRequest(group_id=world.group, leave=pb.LeaveGroup(member_id=joined.member_id)))
    assert not (await stream.receive()).left.error
    assert (await other.receive()).classic_joined.leader
    for each in (stream, other):
        await each.close()


async def test_what_is_committed_is_fetched(world: World) -> None:
    stream = world.open()
    stream.send(world.beat("one", 0))
    epoch = (await state(stream)).member_epoch
    result = await world.commit("one", epoch, 7)
    assert (result.topic, result.partition, result.error) == (world.topic, 0, 0)
    found = {each.partition: each for each in await world.offsets(world.transport)}
    assert (found[0].offset, found[0].leader_epoch, found[0].metadata) == (7, 3, "why")
    assert found[1].offset == -1
    await stream.close()


@pytest.mark.parametrize(
    ("member", "generation", "code"),
    [("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID), ("one", 99, ErrorCode.STALE_MEMBER_EPOCH), ("", -1, None)],
)
async def test_who_may_not_commit(world: World, member: str, generation: int, code: ErrorCode | None) -> None:
    stream = world.open()
    stream.send(world.beat("one", 0))
    await state(stream)
    result = await world.commit(member, generation, 7)
    assert result.error
    assert code is None or result.error == code
    await stream.close()


async def test_an_empty_group_is_committed_by_whoever_asks(world: World) -> None:
    assert not (await world.commit("", -1, 5)).error


async def test_a_stream_that_is_closed_says_so(world: World) -> None:
    stream = world.open()
    stream.send(world.beat("one", 0))
    await state(stream)
    await stream.close()
    await stream.close()
    for _ in range(2):
        with pytest.raises(HeadraceError):
            await stream.receive()


async def test_who_has_left_is_not_waited_for(world: World) -> None:
    one, two = world.open(), world.open()
    one.send(world.beat("one", 0))
    first = await state(one)
    one.send(world.beat("one", first.member_epoch, list(first.assignment.topics)))
    one.send(world.beat("one", LEAVE))
    while (await one.receive()).consumer_state.member_epoch != LEAVE:
        pass
    await one.close()
    two.send(world.beat("two", 0))
    async with asyncio.timeout(20):
        while held(await state(two)) != {0, 1, 2, 3}:  # who only went away has an hour to come back
            pass
    await two.close()


async def test_a_sibling_is_a_connection_of_its_own(world: World) -> None:
    sibling = world.transport.sibling()
    await world.transport.close()
    assert (await world.offsets(sibling))[0].offset == -1
    await sibling.close()


async def test_nobody_there_is_told_by_the_stream() -> None:
    world = World(GrpcTransport([NOBODY.address]), "t", "g")
    stream = world.open()
    stream.send(world.beat("one", 0))
    with pytest.raises(NetworkFailed):
        await stream.receive()
    with pytest.raises(NetworkFailed, match="no broker answered"):
        await world.transport.find_coordinator("g")
    with pytest.raises(NetworkFailed):
        await world.commit("", -1, 1)
    await world.transport.close()
