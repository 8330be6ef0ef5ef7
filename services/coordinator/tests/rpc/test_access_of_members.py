"""Members of groups in a cluster that decides who may what: who may be one, what it sees, and when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from services.coordinator.tests.kit.closed import NOBODY, Closed, Granted, as_node, as_user, closed_coordinator
from services.coordinator.tests.kit.members import GROUP, Member, classic, consumer, member, worker
from services.coordinator.tests.kit.processes import answered

from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import (
    CredentialsRevoked,
    ErrorCode,
    GroupAuthorizationFailed,
    NotCoordinator,
    Unauthenticated,
)
from headrace_common.core.image import Role
from headrace_proto.v1 import coordinator_pb2 as pb

MEMBER: Granted = (ResourceType.GROUP, GROUP, Operation.READ)


def topic(name: str, operation: Operation = Operation.DESCRIBE) -> Granted:
    return (ResourceType.TOPIC, name, operation)


@pytest.fixture
async def world() -> AsyncIterator[Closed]:
    async with closed_coordinator({"a": 2, "b": 2}) as found:
        yield found


def reads(*topics: str, pattern: str | None = None) -> dict[str, Any]:
    return {"subscription": pb.ConsumerSubscription(topics=topics, pattern=pattern)}


async def assigned(one: Member) -> dict[str, list[int]]:
    """What it is to hold, by the next message that says so."""
    while True:
        state = (await one.hear()).consumer_state
        assert state.error == 0, state.message
        if state.HasField("assignment"):
            return {entry.topic: list(entry.partitions) for entry in state.assignment.topics}


async def joined(one: Member, member_id: str = "m", **fields: Any) -> tuple[int, dict[str, list[int]]]:
    """Its epoch, and what it is to hold, which it says that it does."""
    await one.say(consumer_heartbeat=consumer(member_id, 0, **fields))
    state = (await one.hear()).consumer_state
    assert state.error == 0, state.message
    owned = pb.PartitionSet(topics=state.assignment.topics)
    await one.say(consumer_heartbeat=consumer(member_id, state.member_epoch, owned=owned))
    await one.hear()
    return state.member_epoch, {entry.topic: list(entry.partitions) for entry in state.assignment.topics}


async def until_empty(world: Closed) -> None:
    async with asyncio.timeout(10):
        while world.running.coordinator.list_groups([])[0][0].members:  # the grace ends
            await asyncio.sleep(0.01)


# --- who may be a member ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [{"consumer_heartbeat": consumer("m", 0)}, {"work_heartbeat": worker("m", 0)}, {"classic_join": classic()}],
    ids=["consumer", "work", "classic"],
)
async def test_who_may_not_read_a_group_is_no_member_of_it(world: Closed, request_: dict[str, Any]) -> None:
    world.grant("alice", topic("a", Operation.READ), (ResourceType.GROUP, GROUP, Operation.DESCRIBE))
    async with member(await world.stub(as_user("alice"))) as one:
        await one.say(**request_)
        with pytest.raises(GroupAuthorizationFailed, match="headrace access allow User:alice read group g"):
            await one.hear()
    assert world.running.coordinator.list_groups([])[0] == []
    world.grant("alice", MEMBER)
    async with member(await world.stub(as_user("alice"))) as one:
        await one.say(**request_)
        answer = await one.hear()
        assert getattr(answer, str(answer.WhichOneof("response"))).error == 0


@pytest.mark.parametrize("protocol", ["consumer", "work"])
async def test_a_member_whose_right_is_taken_away_is_told_at_once_and_its_offsets_stay(
    world: Closed, protocol: str
) -> None:
    world.grant("alice", MEMBER, topic("a", Operation.READ))
    world.grant("bob", (ResourceType.GROUP, "h", Operation.READ), topic("b", Operation.READ))
    stub = await world.stub(as_user("alice"))
    async with member(stub) as one, member(await world.stub(as_user("bob")), "h") as other:
        await other.say(consumer_heartbeat=consumer("m", 0, **reads("b")))
        assert await assigned(other) == {"b": [0, 1]}
        if protocol == "work":
            await one.say(work_heartbeat=worker("m", 0))
            epoch = (await one.hear()).work_state.member_epoch
        else:
            epoch, _ = await joined(one, **reads("a"))
        offsets = [pb.OffsetCommit(topic="a", partition=0, offset=7, leader_epoch=-1)]
        commit = pb.CommitOffsetsRequest(group_id=GROUP, member_id="m", generation=epoch, offsets=offsets)
        assert (await answered(stub.CommitOffsets(commit))).results[0].error == 0
        world.grant("alice", topic("a", Operation.READ))
        with pytest.raises(GroupAuthorizationFailed):
            await one.hear()
        with pytest.raises(GroupAuthorizationFailed):
            await answered(stub.CommitOffsets(commit))
        await other.say(consumer_heartbeat=consumer("m", 0, **reads("b")))
        assert await assigned(other) == {"b": [0, 1]}, "its stream goes on"
    await until_empty(world)
    world.grant("alice", MEMBER, topic("a", Operation.READ))
    found = await answered(stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=GROUP)))
    assert [(one.topic, one.offset) for one in found.offsets] == [("a", 7)]


async def test_a_right_that_is_given_back_within_the_grace_finds_the_member_where_it_was() -> None:
    async with closed_coordinator({"a": 2}, grace_ms=60_000) as world:
        world.grant("alice", MEMBER, topic("a"))
        stub = await world.stub(as_user("alice"))
        async with member(stub) as one:
            epoch, held = await joined(one, **reads("a"))
            world.grant("alice", topic("a"))
            with pytest.raises(GroupAuthorizationFailed):
                await one.hear()
        world.grant("alice", MEMBER, topic("a"))
        async with member(stub) as again:
            await again.say(consumer_heartbeat=consumer("m", epoch))
            assert await assigned(again) == held


async def test_a_member_is_out_when_its_key_is_deleted(world: Closed) -> None:
    world.grant("alice", MEMBER, topic("a"))
    async with member(await world.stub(as_user("alice"))) as one:
        await joined(one, **reads("a"))
        world.rows.keys = [key for key in world.rows.keys if str(key.owner) != "User:alice"]
        world.tell()
        with pytest.raises(CredentialsRevoked):
            await one.hear()
    await until_empty(world)


async def test_closing_the_cluster_ends_the_streams_of_who_showed_nothing(world: Closed) -> None:
    world.turn(Mode.OPEN)
    async with member(await world.stub(NOBODY)) as one:
        _, held = await joined(one, **reads("a", "b"))
        assert held == {"a": [0, 1], "b": [0, 1]}
        world.turn(Mode.CLOSED)
        with pytest.raises(Unauthenticated):
            await one.hear()


async def test_before_the_cluster_is_closed_it_is_written_down_who_will_not_be_a_member(world: Closed) -> None:
    world.turn(Mode.PERMISSIVE)
    async with member(await world.stub(as_user("bob"))) as one:
        epoch, held = await joined(one, **reads(pattern=".*"))
        assert held == {"a": [0, 1], "b": [0, 1]}
        await one.say(consumer_heartbeat=consumer("m", epoch))
        await one.hear()
    written = [(one.principal, one.operation, one.name) for one in world.access.control.report().refusals]
    assert written == [("User:bob", Operation.READ, GROUP)]


# --- which topics it sees ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "subscription",
    [reads("a", "b", "c"), reads(pattern="[abc]"), reads("a", pattern="b|c")],
    ids=["names", "pattern", "both"],
)
async def test_topics_that_a_member_may_not_describe_are_as_if_they_did_not_exist(
    world: Closed, subscription: dict[str, Any]
) -> None:
    world.grant("alice", MEMBER, topic("a"))
    async with member(await world.stub(as_user("alice"))) as one:
        _, held = await joined(one, **subscription)
        assert held == {"a": [0, 1]}
        world.running.cluster.put_topic("c", 1)
        world.grant("alice", MEMBER, topic("a"), topic("b"))
        assert await assigned(one) == {"a": [0, 1], "b": [0, 1]}, "it is told, and of c nothing"
        world.grant("alice", MEMBER, topic("a"), topic("b"), topic("c"))
        assert await assigned(one) == {"a": [0, 1], "b": [0, 1], "c": [0]}


async def test_a_topic_that_a_member_may_not_describe_any_more_is_taken_from_it(world: Closed) -> None:
    world.grant("alice", MEMBER, topic("a"), topic("b"))
    async with member(await world.stub(as_user("alice"))) as one:
        _, held = await joined(one, **reads("a", "b"))
        assert held == {"a": [0, 1], "b": [0, 1]}
        world.grant("alice", MEMBER, topic("a"))
        assert await assigned(one) == {"a": [0, 1]}


async def test_members_of_one_group_see_different_topics(world: Closed) -> None:
    world.grant("alice", MEMBER, topic("a"), topic("b"))
    world.grant("bob", MEMBER, topic("a"))
    async with member(await world.stub(as_user("bob"))) as one, member(await world.stub(as_user("alice"))) as two:
        _, held = await joined(one, "bob", **reads("a", "b"))
        assert held == {"a": [0, 1]}
        await joined(two, "alice", **reads("a", "b"))
        admin = await world.stub(as_node(Role.ADMIN))
        (group,) = (await answered(admin.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[GROUP])))).groups
        targets = {m.member_id: {t.topic: list(t.partitions) for t in m.target} for m in group.members}
        assert targets == {"bob": {"a": [0, 1]}, "alice": {"b": [0, 1]}}
        world.grant("bob", (ResourceType.GROUP, GROUP, Operation.DESCRIBE), topic("a"))
        asks = await world.stub(as_node(Role.ADMIN, "bob"))
        (group,) = (await answered(asks.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[GROUP])))).groups
        named = {t.topic for m in group.members for t in (*m.assigned, *m.target)}
        assert ({m.member_id for m in group.members}, named) == ({"alice", "bob"}, {"a"})
        assert {topic for m in group.members for topic in m.topics} == {"a"}


async def test_the_leader_of_a_classic_group_is_told_of_topics_that_each_member_sees(world: Closed) -> None:
    world.grant("alice", MEMBER, topic("b"))
    said = pb.ClassicSubscription(topics=["b", "a", "none"], generation=-1)
    protocols = [pb.ClassicProtocol(name=name, subscription=said) for name in ("range", "sticky")]
    async with member(await world.stub(as_user("alice"))) as one:
        await one.say(classic_join=classic(protocols=protocols))
        (self_,) = (await one.hear()).classic_joined.members
        assert list(self_.subscription.topics) == ["b"]
    world.turn(Mode.OPEN)
    async with member(await world.stub(as_user("alice")), "open") as one:
        await one.say(classic_join=classic(protocols=protocols))
        (self_,) = (await one.hear()).classic_joined.members
        assert list(self_.subscription.topics) == ["b", "a", "none"]


async def test_a_move_of_the_shard_shows_nobody_what_it_may_not_describe(world: Closed) -> None:
    world.grant("alice", MEMBER, topic("a"))
    async with member(await world.stub(as_user("alice"))) as one:
        epoch, _ = await joined(one, **reads("a", "b"))
        cluster = world.running.cluster
        cluster.give(2, 0)
        with pytest.raises(NotCoordinator):
            await one.hear()
    cluster.give(1, 0)
    await world.running.until_served(0)
    async with member(await world.stub(as_user("alice"))) as again:
        await again.say(consumer_heartbeat=consumer("m", epoch))
        state = (await again.hear()).consumer_state
        assert [entry.topic for entry in state.assignment.topics] == ["a"]
        assert state.member_epoch == epoch, "and nothing was decided anew"


# --- entries ----------------------------------------------------------------------------------------------------

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def errors(results: Iterable[Any]) -> list[tuple[str, int, int]]:
    return [(one.topic, one.partition, one.error) for one in results]


async def test_entries_of_other_topics_go_on(world: Closed) -> None:
    delete = (ResourceType.GROUP, GROUP, Operation.DELETE)
    world.grant("alice", MEMBER, delete, topic("a", Operation.READ))
    stub = await world.stub(as_user("alice"))
    asked = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("none", 0)]
    expected = [("a", 0, 0), ("b", 0, DENIED), ("a", 1, 0), ("b", 1, DENIED), ("none", 0, DENIED)]
    offsets = [pb.OffsetCommit(topic=name, partition=at, offset=at + 5, leader_epoch=-1) for name, at in asked]
    commit = pb.CommitOffsetsRequest(group_id=GROUP, generation=-1, offsets=offsets)
    assert errors((await stub.CommitOffsets(commit)).results) == expected
    named = [pb.TopicPartitions(topic=name, partitions=[at]) for name, at in asked]
    found = (await answered(stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=GROUP, partitions=named)))).offsets
    assert errors(found) == expected
    assert [one.offset for one in found] == [5, -1, 6, -1, -1]
    by_admin = await world.stub(as_node(Role.ADMIN, "alice"))
    deletion = pb.DeleteOffsetsRequest(group_id=GROUP, partitions=named)
    assert errors((await by_admin.DeleteOffsets(deletion)).results) == expected
    left = (await answered(stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=GROUP)))).offsets
    assert not left


async def test_all_offsets_of_a_group_are_those_of_topics_that_the_caller_may_describe(world: Closed) -> None:
    world.grant("alice", MEMBER, topic("a", Operation.READ), topic("b", Operation.READ))
    stub = await world.stub(as_user("alice"))
    offsets = [pb.OffsetCommit(topic=name, partition=0, offset=5, leader_epoch=-1) for name in ("a", "b")]
    await answered(stub.CommitOffsets(pb.CommitOffsetsRequest(group_id=GROUP, generation=-1, offsets=offsets)))
    world.grant("alice", MEMBER, topic("b"))
    found = (await answered(stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=GROUP)))).offsets
    assert [one.topic for one in found] == ["b"]


async def test_groups_of_one_request_are_decided_one_by_one(world: Closed) -> None:
    groups = [(ResourceType.GROUP, name, Operation.READ) for name in ("g", "h")]
    world.grant("alice", *groups, topic("a", Operation.READ))
    stub = await world.stub(as_user("alice"))
    offset = pb.OffsetCommit(topic="a", offset=5, leader_epoch=-1)
    for name in ("g", "h"):
        await answered(stub.CommitOffsets(pb.CommitOffsetsRequest(group_id=name, generation=-1, offsets=[offset])))
    world.grant("bob", (ResourceType.GROUP, "h", Operation.DELETE))
    by_admin = await world.stub(as_node(Role.ADMIN, "bob"))
    listed = (await answered(by_admin.ListGroups(pb.ListGroupsRequest()))).groups
    assert [one.group_id for one in listed] == ["h"]
    names = ["g", "h", "none"]
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    described = (await answered(by_admin.DescribeGroups(pb.DescribeGroupsRequest(group_ids=names)))).groups
    assert [(one.group_id, one.error) for one in described] == [("g", denied), ("h", 0), ("none", denied)]
    deleted = (await answered(by_admin.DeleteGroups(pb.DeleteGroupsRequest(group_ids=names)))).groups
    assert [(one.group_id, one.error) for one in deleted] == [("g", denied), ("h", 0), ("none", denied)]
    assert [one.group_id for one in world.running.coordinator.list_groups([])[0]] == ["g"]
