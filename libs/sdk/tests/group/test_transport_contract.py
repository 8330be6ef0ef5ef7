"""What ``port.Transport`` promises of coordinators, by a real one over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from services.coordinator.tests.kit.standalone import standalone_coordinator

from headrace._transport.grpc import GrpcTransport
from headrace._transport.port import Coordinator, MembershipStream, Transport
from headrace.errors import ErrorCode, HeadraceError, NetworkFailed
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import coordinator_pb2 as pb

World = tuple[Transport, Coordinator]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with standalone_coordinator({"t": 4}) as running:
        transport = GrpcTransport(["127.0.0.1:1"])
        yield transport, Coordinator(NodeId(1), str(running.endpoint))
        await transport.close()


def beat(member: str, epoch: int, owned: list[pb.TopicPartitions] | None = None) -> pb.MembershipRequest:
    request = pb.ConsumerHeartbeat(member_id=member, member_epoch=epoch)
    if epoch == 0:
        request.subscription.topics.append("t")
        request.rebalance_timeout_ms = 60_000
        request.owned.SetInParent()
    if owned is not None:
        request.owned.topics.extend(owned)
    return pb.MembershipRequest(group_id="g", consumer_heartbeat=request)


def join(member: str = "") -> pb.MembershipRequest:
    request = pb.ClassicJoin(member_id=member, session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
    request.protocols.add(name="range", subscription=pb.ClassicSubscription(topics=["t"], generation=-1))
    return pb.MembershipRequest(group_id="g", classic_join=request)


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
    transport, coordinator = world
    one, two = transport.membership(coordinator), transport.membership(coordinator)
    one.send(beat("one", 0))
    first = await state(one)
    assert held(first) == {0, 1, 2, 3}
    assert first.member_epoch > 0
    one.send(beat("one", first.member_epoch, list(first.assignment.topics)))
    two.send(beat("two", 0))
    while len(held(news := await state(one))) != 2:
        pass
    one.send(beat("one", news.member_epoch, list(news.assignment.topics)))
    while len(held(second := await state(two))) != 2:
        pass
    assert held(news) | held(second) == {0, 1, 2, 3}
    for stream in (one, two):
        await stream.close()


async def test_a_classic_round(world: World) -> None:
    transport, coordinator = world
    stream = transport.membership(coordinator)
    stream.send(join())
    joined = (await stream.receive()).classic_joined
    assert not joined.error, joined
    assert joined.leader == joined.member_id
    assert [member.member_id for member in joined.members] == [joined.member_id]
    sync = pb.ClassicSync(member_id=joined.member_id, generation=joined.generation)
    share = pb.ClassicAssignment(partitions=[pb.TopicPartitions(topic="t", partitions=[0, 1])])
    sync.assignments.add(member_id=joined.member_id, assignment=share)
    stream.send(pb.MembershipRequest(group_id="g", classic_sync=sync))
    synced = (await stream.receive()).classic_synced
    assert (synced.error, synced.generation) == (0, joined.generation)
    assert [list(entry.partitions) for entry in synced.assignment.partitions] == [[0, 1]]
    alive = pb.ClassicHeartbeat(member_id=joined.member_id, generation=joined.generation)
    stream.send(pb.MembershipRequest(group_id="g", classic_heartbeat=alive))
    assert not (await stream.receive()).classic_state.error
    other = transport.membership(coordinator)
    other.send(join())
    assert (await stream.receive()).classic_state.error == ErrorCode.REBALANCE_IN_PROGRESS, "at once, unasked"
    stream.send(pb.MembershipRequest(group_id="g", leave=pb.LeaveGroup(member_id=joined.member_id)))
    assert not (await stream.receive()).left.error
    assert (await other.receive()).classic_joined.leader
    for each in (stream, other):
        await each.close()


def commit(member: str, generation: int, offset: int, partition: int = 0) -> pb.CommitOffsetsRequest:
    request = pb.CommitOffsetsRequest(group_id="g", member_id=member, generation=generation)
    request.offsets.add(topic="t", partition=partition, offset=offset, leader_epoch=3, metadata="why")
    return request


async def test_what_is_committed_is_fetched(world: World) -> None:
    transport, coordinator = world
    stream = transport.membership(coordinator)
    stream.send(beat("one", 0))
    epoch = (await state(stream)).member_epoch
    [result] = (
        await transport.group_call(lambda stub: stub.CommitOffsets, commit("one", epoch, 7))(coordinator, 5_000)
    ).results
    assert (result.topic, result.partition, result.error) == ("t", 0, 0)
    request = pb.FetchOffsetsRequest(group_id="g", partitions=[pb.TopicPartitions(topic="t", partitions=[0, 1])])
    found = {
        o.partition: o
        for o in (await transport.group_call(lambda stub: stub.FetchOffsets, request)(coordinator, 5_000)).offsets
    }
    assert (found[0].offset, found[0].leader_epoch, found[0].metadata) == (7, 3, "why")
    assert found[1].offset == -1
    await stream.close()


@pytest.mark.parametrize(
    ("member", "generation", "code"),
    [("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID), ("one", 99, ErrorCode.STALE_MEMBER_EPOCH), ("", -1, None)],
)
async def test_who_may_not_commit(world: World, member: str, generation: int, code: ErrorCode | None) -> None:
    transport, coordinator = world
    stream = transport.membership(coordinator)
    stream.send(beat("one", 0))
    await state(stream)
    [result] = (
        await transport.group_call(lambda stub: stub.CommitOffsets, commit(member, generation, 7))(coordinator, 5_000)
    ).results
    assert result.error
    assert code is None or result.error == code
    await stream.close()


async def test_an_empty_group_is_committed_by_whoever_asks(world: World) -> None:
    transport, coordinator = world
    [result] = (
        await transport.group_call(lambda stub: stub.CommitOffsets, commit("", -1, 5))(coordinator, 5_000)
    ).results
    assert not result.error


async def test_a_stream_that_is_closed_says_so(world: World) -> None:
    transport, coordinator = world
    stream = transport.membership(coordinator)
    stream.send(beat("one", 0))
    await state(stream)
    await stream.close()
    await stream.close()
    for _ in range(2):
        with pytest.raises(HeadraceError):
            await stream.receive()


async def test_what_was_said_before_the_end_is_heard(world: World) -> None:
    transport, coordinator = world
    one, two = transport.membership(coordinator), transport.membership(coordinator)
    one.send(beat("one", 0))
    first = await state(one)
    one.send(beat("one", first.member_epoch, list(first.assignment.topics)))
    one.send(beat("one", -1))
    await one.close()
    two.send(beat("two", 0))
    assert held(await state(two)) == {0, 1, 2, 3}, "at once: it has left, and is not waited for"
    await two.close()


async def test_a_sibling_is_a_connection_of_its_own(world: World) -> None:
    transport, coordinator = world
    sibling = transport.sibling()
    await transport.close()
    request = pb.FetchOffsetsRequest(group_id="g", partitions=[pb.TopicPartitions(topic="t", partitions=[0])])
    assert (await sibling.group_call(lambda stub: stub.FetchOffsets, request)(coordinator, 5_000)).offsets[
        0
    ].offset == -1
    await sibling.close()


async def test_nobody_there_is_told_by_the_stream() -> None:
    transport = GrpcTransport(["127.0.0.1:1"])
    stream = transport.membership(Coordinator(NodeId(1), "127.0.0.1:1"))
    stream.send(beat("one", 0))
    with pytest.raises(NetworkFailed):
        await stream.receive()
    with pytest.raises(NetworkFailed, match="no broker answered"):
        await transport.find_coordinator("g")
    with pytest.raises(NetworkFailed):
        await transport.group_call(lambda stub: stub.CommitOffsets, commit("", -1, 1))(
            Coordinator(NodeId(1), "127.0.0.1:1"), 1_000
        )
    await transport.close()
