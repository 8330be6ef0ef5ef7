"""The service over a loopback connection: streams, unary calls, and what no client may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from services.coordinator.tests.kit.dialogue import Running, serving_coordinator
from services.coordinator.tests.kit.members import GROUP, classic, consumer, member, worker

from headrace_common.core.errors import (
    ErrorCode,
    HeadraceError,
    InvalidGroupId,
    NotCoordinator,
    Rejected,
)
from headrace_common.core.features import WORK_GROUPS
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving_coordinator({"t": 4}) as world:
        yield world


@pytest.fixture
async def stub(running: Running) -> AsyncIterator[Any]:
    async with running.channel() as channel:
        yield CoordinatorStub(channel)


async def failure(call: Any) -> HeadraceError:
    try:
        async with asyncio.timeout(10):
            answer = await call
    except grpc.RpcError as error:
        return error_from_rpc(error)
    raise AssertionError(f"it did not fail: {answer}")


# --- membership -------------------------------------------------------------------------------------------------


async def test_server_side_protocol_from_join_to_leave(stub: Any) -> None:
    async with member(stub) as one:
        await one.say(consumer_heartbeat=consumer("m1", 0))
        state = (await one.hear()).consumer_state
        assert (state.error, state.member_id) == (0, "m1")
        assert [(t.topic, list(t.partitions)) for t in state.assignment.topics] == [("t", [0, 1, 2, 3])]
        await one.say(consumer_heartbeat=consumer("m1", state.member_epoch, owned=state.assignment))
        assert (await one.hear()).consumer_state.member_epoch == state.member_epoch
        await one.say(leave=pb.LeaveGroup(member_id="m1"))
        await one.call.done_writing()
        answer = await one.hear()
        assert answer.WhichOneof("response") == "left"
        assert answer.left.error == 0
        assert await one.ended()


async def test_a_work_group_from_join_to_leave(running: Running, stub: Any) -> None:
    async with member(stub) as one:
        await one.say(work_heartbeat=worker("m1", 0))
        state = (await one.hear()).work_state
        assert (state.error, state.member_id) == (ErrorCode.UNSUPPORTED_VERSION, "m1")
        assert "work group needs feature level 6" in state.message
        running.cluster.rise(WORK_GROUPS.level)
        await one.say(work_heartbeat=worker("m1", 0, zone="z", endpoint="h:1"))
        state = (await one.hear()).work_state
        assert [(i.id, i.epoch > 0) for i in state.assignment.active] == [("x", True), ("y", True)]
        beat = worker("m1", state.member_epoch, owned=pb.ItemIds(ids=["x", "y"]))
        await one.say(work_heartbeat=beat)
        assert not (await one.hear()).work_state.HasField("assignment")
        (group,) = (await stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[GROUP]))).groups
        assert (group.protocol, group.members[0].zone, group.members[0].endpoint) == (pb.WORK, "z", "h:1")
        assert [(i.item.id, i.owner, i.epoch) for i in group.items] == [
            (i.id, "m1", i.epoch) for i in state.assignment.active
        ]
        await one.say(work_heartbeat=worker("m1", -1))
        await one.call.done_writing()
        assert (await one.hear()).work_state.member_epoch == -1
        assert await one.ended()


WRONG_WORK: dict[str, dict[str, Any]] = {
    "member_id is empty": {"member_id": ""},
    "-1 or more": {"member_epoch": -2},
    "rebalance_timeout_ms": {"rebalance_timeout_ms": 0},
    "zone has 256": {"zone": "z" * 256},
    "no fingerprint": {"declaration": pb.WorkDeclaration(max_warmup=1)},
    "declared twice": {
        "declaration": pb.WorkDeclaration(fingerprint="f", max_warmup=1, items=[pb.WorkItem(id="x", weight=1)] * 2)
    },
    "1 to 249 characters": {
        "declaration": pb.WorkDeclaration(fingerprint="f", max_warmup=1, items=[pb.WorkItem(id="x" * 250, weight=1)])
    },
    "has weight 0": {"declaration": pb.WorkDeclaration(fingerprint="f", max_warmup=1, items=[pb.WorkItem(id="x")])},
    "standbys and no state": {
        "declaration": pb.WorkDeclaration(
            fingerprint="f", max_warmup=1, items=[pb.WorkItem(id="x", weight=1, standbys=1)]
        )
    },
    "has 17 standbys": {
        "declaration": pb.WorkDeclaration(
            fingerprint="f", max_warmup=1, items=[pb.WorkItem(id="x", weight=1, stateful=True, standbys=17)]
        )
    },
    "max_warmup is 0": {"declaration": pb.WorkDeclaration(fingerprint="f")},
    "acceptable_recovery_lag is -1": {
        "declaration": pb.WorkDeclaration(fingerprint="f", max_warmup=1, acceptable_recovery_lag=-1)
    },
    "terms": {
        "declaration": pb.WorkDeclaration(fingerprint="f", max_warmup=1, terms={str(n): "" for n in range(1_001)})
    },
    "a term's name": {"declaration": pb.WorkDeclaration(fingerprint="f", max_warmup=1, terms={"": "x"})},
    "256 characters": {"declaration": pb.WorkDeclaration(fingerprint="f", max_warmup=1, terms={"x": "y" * 256})},
    "version 0": {"declaration": pb.WorkDeclaration(fingerprint="f", max_warmup=1, version=0)},
    "20000": {"owned": pb.ItemIds(ids=["x"] * 20_001)},
    "0 or more": {"lags": pb.ItemLags(items=[pb.ItemLag(id="x", lag=-1)])},
    "cannot be passed": {"refused": [pb.RefusedItem(id="x", token=2**62)]},
}


@pytest.mark.parametrize("said", WRONG_WORK)
async def test_what_no_member_of_a_work_group_may_say_ends_its_stream(running: Running, stub: Any, said: str) -> None:
    running.cluster.rise(WORK_GROUPS.level)
    fields: dict[str, Any] = {"member_id": "m", "member_epoch": 0} | WRONG_WORK[said]
    async with member(stub) as one:
        await one.say(work_heartbeat=pb.WorkHeartbeat(**fields))
        with pytest.raises(Rejected, match=said):
            await one.hear()
    assert running.tasks.failure is None


async def test_classic_protocol_from_join_to_news(stub: Any) -> None:
    async with member(stub) as one, member(stub) as two:
        await one.say(classic_join=classic())
        joined = (await one.hear()).classic_joined
        assert joined.error == 0
        assert joined.leader == joined.member_id
        assert [m.member_id for m in joined.members] == [joined.member_id]
        everything = pb.ClassicAssignment(partitions=[pb.TopicPartitions(topic="t", partitions=[0, 1, 2, 3])])
        await one.say(
            classic_sync=pb.ClassicSync(
                member_id=joined.member_id,
                generation=joined.generation,
                assignments=[pb.ClassicMemberAssignment(member_id=joined.member_id, assignment=everything)],
            )
        )
        assert (await one.hear()).classic_synced.assignment == everything
        beat = pb.ClassicHeartbeat(member_id=joined.member_id, generation=joined.generation)
        await one.say(classic_heartbeat=beat)
        assert (await one.hear()).classic_state.error == 0
        await two.say(classic_join=classic())
        news = (await one.hear()).classic_state
        assert news.error == ErrorCode.REBALANCE_IN_PROGRESS
        await one.say(classic_join=classic(joined.member_id))
        second = (await one.hear()).classic_joined
        other = (await two.hear()).classic_joined
        assert second.generation == other.generation == joined.generation + 1
        assert len(second.members) == 2
        assert not other.members


async def test_where_a_member_is_and_that_it_is_gone(running: Running, stub: Any) -> None:
    async with member(stub) as one:
        await one.say(consumer_heartbeat=consumer("m1", 0, client_id="me"))
        await one.hear()
        described = (await stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[GROUP, "none"]))).groups
        assert described[0].state == pb.STABLE
        assert described[0].protocol == pb.CONSUMER
        (found,) = described[0].members
        assert (found.member_id, found.client_id, found.state) == ("m1", "me", "STABLE")
        host, _, port = found.client_address.rpartition(":")
        assert host == "127.0.0.1"
        assert port.isdigit()
        assert described[1].error == ErrorCode.GROUP_ID_NOT_FOUND
        assert described[0].coordinator == 1
    async with asyncio.timeout(10):
        while running.coordinator.list_groups([])[0][0].members:  # the grace ends
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "request_",
    [
        pb.MembershipRequest(group_id=GROUP),
        pb.MembershipRequest(group_id=GROUP, classic_join=classic(protocols=[])),
        pb.MembershipRequest(group_id=GROUP, classic_join=classic(rebalance_timeout_ms=0)),
        pb.MembershipRequest(group_id=GROUP, classic_join=classic(group_instance_id="")),
        pb.MembershipRequest(group_id=GROUP, classic_join=classic(member_id="x" * 256)),
        pb.MembershipRequest(group_id=GROUP, consumer_heartbeat=consumer("", 0)),
        pb.MembershipRequest(group_id=GROUP, consumer_heartbeat=consumer("m", -3)),
        pb.MembershipRequest(group_id=GROUP, consumer_heartbeat=consumer("m", 0, rebalance_timeout_ms=0)),
        pb.MembershipRequest(
            group_id=GROUP,
            consumer_heartbeat=consumer("m", 0, subscription=pb.ConsumerSubscription(topics=["x" * 250])),
        ),
        pb.MembershipRequest(
            group_id=GROUP,
            consumer_heartbeat=consumer(
                "m", 0, owned=pb.PartitionSet(topics=[pb.TopicPartitions(topic_id=b"short", partitions=[1])])
            ),
        ),
        pb.MembershipRequest(
            group_id=GROUP,
            consumer_heartbeat=consumer("m", 0, owned=pb.PartitionSet(topics=[pb.TopicPartitions(partitions=[-1])])),
        ),
    ],
)
async def test_what_no_member_may_say_ends_its_stream_and_nothing_else(
    running: Running, stub: Any, request_: pb.MembershipRequest
) -> None:
    async with member(stub) as one:
        await one.call.write(request_)
        with pytest.raises(Rejected):
            await one.hear()
    assert running.tasks.failure is None


@pytest.mark.parametrize("group_id", ["", "x" * 250])
async def test_group_ids_have_1_to_249_characters(stub: Any, group_id: str) -> None:
    async with member(stub, group_id) as one:
        await one.say(consumer_heartbeat=consumer("m", 0))
        with pytest.raises(InvalidGroupId):
            await one.hear()
    assert isinstance(await failure(stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=group_id))), InvalidGroupId)


async def test_a_stream_is_for_one_group_and_one_protocol(stub: Any) -> None:
    async with member(stub) as one:
        await one.say(consumer_heartbeat=consumer("m", 0))
        await one.hear()
        await one.call.write(pb.MembershipRequest(group_id="other", consumer_heartbeat=consumer("m", 0)))
        with pytest.raises(Rejected, match="stream is for group"):
            await one.hear()
    async with member(stub, "h") as two:
        await two.say(consumer_heartbeat=consumer("m", 0))
        await two.hear()
        await two.say(classic_join=classic())
        with pytest.raises(Rejected, match="speaks the consumer protocol"):
            await two.hear()


async def test_bytes_that_are_no_message(running: Running) -> None:
    async with running.channel() as channel:
        raw: Any = channel.stream_stream("/headrace.v1.Coordinator/Membership")()
        await raw.write(b"\xff\xff\xff")
        with pytest.raises(grpc.RpcError) as error:
            await raw.read()
        assert isinstance(error_from_rpc(error.value), Rejected)


async def test_a_flood_of_requests_waits_in_its_own_stream(running: Running, stub: Any) -> None:
    async with member(stub) as one, member(stub, "h") as two:
        await one.say(consumer_heartbeat=consumer("m", 0))
        epoch = (await one.hear()).consumer_state.member_epoch
        for _ in range(2_000):
            await one.say(consumer_heartbeat=consumer("m", epoch))
        await two.say(consumer_heartbeat=consumer("m", 0))
        assert (await two.hear()).consumer_state.error == 0
        for _ in range(2_000):
            assert (await one.hear()).consumer_state.error == 0
    assert running.tasks.failure is None


async def test_a_newer_stream_replaces_the_older(stub: Any) -> None:
    async with member(stub) as one, member(stub) as two:
        await one.say(consumer_heartbeat=consumer("m", 0))
        epoch = (await one.hear()).consumer_state.member_epoch
        await two.say(consumer_heartbeat=consumer("m", epoch))
        assert (await two.hear()).consumer_state.error == 0
        assert await one.ended()


async def test_a_shard_that_moves_ends_its_streams_with_the_reason(running: Running, stub: Any) -> None:
    async with member(stub) as one:
        await one.say(consumer_heartbeat=consumer("m", 0))
        await one.hear()
        running.cluster.give(2, *range(4))
        with pytest.raises(NotCoordinator):
            await one.hear()
        assert isinstance(await failure(stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=GROUP))), NotCoordinator)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=6), st.integers(0, 200))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_mangled_requests_are_answered_or_refused_and_break_nothing(
    running: Running, harm: list[tuple[int, int]], cut: int
) -> None:
    running.cluster.rise(WORK_GROUPS.level)
    said = [
        pb.MembershipRequest(group_id=GROUP, consumer_heartbeat=consumer("m", 0, rack="r", assignor="range")),
        pb.MembershipRequest(group_id="h", classic_join=classic()),
        pb.MembershipRequest(group_id="h", leave=pb.LeaveGroup(member_id="x")),
        pb.MembershipRequest(group_id="w", work_heartbeat=worker("m", 0, lags=pb.ItemLags(), zone="z")),
    ]
    async with running.channel() as channel:
        for request in said:
            raw = bytearray(request.SerializeToString())
            for at, byte in harm:
                raw[at % len(raw)] = byte
            call: Any = channel.stream_stream("/headrace.v1.Coordinator/Membership")()
            await call.write(bytes(raw[: len(raw) - cut % len(raw)]))
            await call.done_writing()
            with suppress(TimeoutError):  # a join may have to wait for others
                async with asyncio.timeout(0.2):
                    with suppress(grpc.RpcError):
                        await call.read()
            if call.done():
                assert await call.code() is not grpc.StatusCode.INTERNAL
            call.cancel()
    assert running.tasks.failure is None


# --- unary ------------------------------------------------------------------------------------------------------


async def test_offsets_are_committed_read_and_forgotten(stub: Any) -> None:
    commits = [
        pb.OffsetCommit(topic="t", partition=n, offset=10 + n, leader_epoch=3, metadata=f"m{n}") for n in range(2)
    ]
    unknown = pb.OffsetCommit(topic="nowhere", partition=0, offset=1, leader_epoch=-1)
    request = pb.CommitOffsetsRequest(group_id=GROUP, generation=-1, offsets=[*commits, unknown])
    results = (await stub.CommitOffsets(request)).results
    assert [(r.topic, r.partition, r.error != 0) for r in results] == [
        ("t", 0, False),
        ("t", 1, False),
        ("nowhere", 0, True),
    ]
    found = (await stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=GROUP))).offsets
    assert [(o.partition, o.offset, o.leader_epoch, o.metadata) for o in found] == [(0, 10, 3, "m0"), (1, 11, 3, "m1")]
    assert all(o.committed_at_ms > 0 for o in found)
    wanted = [pb.TopicPartitions(topic="t", partitions=[3, 0])]
    some = (await stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=GROUP, partitions=wanted))).offsets
    assert [(o.partition, o.offset) for o in some] == [(3, -1), (0, 10)]
    deletion = pb.DeleteOffsetsRequest(group_id=GROUP, partitions=[pb.TopicPartitions(topic="t", partitions=[0])])
    assert [r.error for r in (await stub.DeleteOffsets(deletion)).results] == [0]
    left = (await stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=GROUP))).offsets
    assert [o.partition for o in left] == [1]


async def test_groups_are_listed_by_state_and_deleted(stub: Any) -> None:
    offsets = [pb.OffsetCommit(topic="t", partition=0, offset=1, leader_epoch=-1)]
    for group_id in ("a", "b"):
        request = pb.CommitOffsetsRequest(group_id=group_id, generation=-1, offsets=offsets)
        assert (await stub.CommitOffsets(request)).results[0].error == 0
    async with member(stub) as one:
        await one.say(consumer_heartbeat=consumer("m", 0))
        await one.hear()
        groups = (await stub.ListGroups(pb.ListGroupsRequest())).groups
        assert [(g.group_id, g.members) for g in groups] == [("a", 0), ("b", 0), (GROUP, 1)]
        stable = (await stub.ListGroups(pb.ListGroupsRequest(states=[pb.STABLE]))).groups
        assert [g.group_id for g in stable] == [GROUP]
        deleted = (await stub.DeleteGroups(pb.DeleteGroupsRequest(group_ids=["a", GROUP, "none"]))).groups
        assert [g.error for g in deleted] == [0, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    assert isinstance(
        await failure(stub.ListGroups(pb.ListGroupsRequest(states=[77]))), Rejected
    )  # from a newer client


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("CommitOffsets", pb.CommitOffsetsRequest(group_id=GROUP)),
        ("CommitOffsets", pb.CommitOffsetsRequest(group_id=GROUP, offsets=[pb.OffsetCommit()] * 10_001)),
        ("CommitOffsets", pb.CommitOffsetsRequest(group_id=GROUP, offsets=[pb.OffsetCommit(topic="x" * 250)])),
        ("DescribeGroups", pb.DescribeGroupsRequest()),
        ("DescribeGroups", pb.DescribeGroupsRequest(group_ids=["g", "x" * 250])),
        ("DescribeGroups", pb.DescribeGroupsRequest(group_ids=["g"] * 1_001)),
        ("DeleteGroups", pb.DeleteGroupsRequest()),
        ("DeleteOffsets", pb.DeleteOffsetsRequest(group_id=GROUP)),
        (
            "FetchOffsets",
            pb.FetchOffsetsRequest(
                group_id=GROUP, partitions=[pb.TopicPartitions(topic="t", partitions=range(100_001))]
            ),
        ),
    ],
)
async def test_requests_that_are_empty_or_too_large_are_refused(stub: Any, method: str, request_: Any) -> None:
    assert isinstance(await failure(getattr(stub, method)(request_)), Rejected)


async def test_says_which_process_it_is(stub: Any) -> None:
    answer = await stub.IdentifyCoordinator(pb.IdentifyCoordinatorRequest())
    assert (answer.id, answer.incarnation, answer.cluster_id) == (1, b"\x01" * 16, "standalone")
