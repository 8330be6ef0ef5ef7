"""The admin client on consumer groups: what it asks the admin service, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from grpc.aio import AioRpcError, Metadata

import headrace
from headrace import TopicPartition
from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupNotFound,
    LeaderNotAvailable,
    NetworkFailed,
    NonEmptyGroup,
    Rejected,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from headrace_common.rpc.status import STATUS_DETAILS_KEY
from headrace_proto.v1 import admin_pb2 as pb
from headrace_proto.v1 import coordinator_pb2 as coordinator
from headrace_proto.v1 import errors_pb2

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


FAILING = {
    "unled": (errors_pb2.COORDINATOR_NOT_AVAILABLE, "no coordinator has shard 3; start one"),
    "unknown": (errors_pb2.UNKNOWN_TOPIC_OR_PARTITION, "topic 'x' does not exist"),
}


def failed(code: grpc.StatusCode, text: str, detail: errors_pb2.ErrorDetail | None = None) -> grpc.RpcError:
    """As gRPC raises it."""
    trailing = Metadata()
    if detail is not None:
        status = status_pb2.Status(code=code.value[0], message=text)
        status.details.add().Pack(detail)
        trailing.add(STATUS_DETAILS_KEY, status.SerializeToString())
    return AioRpcError(code, Metadata(), trailing, text)


class FakeStub:
    """Two groups: g, read by one member, and old. Remembers the requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def ListGroups(self, request: Any, timeout: float) -> Any:
        self.asked.append(request)
        listed = coordinator.GroupListing(
            group_id="g", protocol=coordinator.CONSUMER, state=coordinator.STABLE, members=1
        )
        error = errors_pb2.ErrorDetail(code=errors_pb2.NETWORK_EXCEPTION, message="coordinator 2 does not answer")
        return pb.ListClusterGroupsResponse(
            groups=[pb.ListedGroup(group=listed, coordinator=1)],
            unanswered=[pb.UnansweredShard(shard=7, error=error)],
        )

    async def DescribeGroups(self, request: Any, timeout: float) -> Any:
        member = coordinator.MemberDescription(
            member_id="m",
            client_id="app",
            client_address="10.0.0.1:5",
            member_epoch=-1,
            state="STABLE",
            topics=["t"],
            assigned=[coordinator.TopicPartitions(topic="t", partitions=[0, 1])],
        )
        known = {
            "g": coordinator.GroupDescription(
                group_id="g",
                protocol=coordinator.CLASSIC,
                state=coordinator.STABLE,
                generation=4,
                assignment_epoch=-1,
                assignor="range",
                coordinator=1,
                shard=7,
                members=[member],
            )
        }
        unknown = {"error": errors_pb2.GROUP_ID_NOT_FOUND, "message": "there is no such group"}
        return coordinator.DescribeGroupsResponse(
            groups=[known.get(i) or coordinator.GroupDescription(group_id=i, **unknown) for i in request.group_ids]
        )

    async def DescribeGroupLag(self, request: Any, timeout: float) -> Any:
        self.asked.append(request)
        lost = errors_pb2.ErrorDetail(code=errors_pb2.LEADER_NOT_AVAILABLE, message="nobody leads t-1")
        return pb.DescribeGroupLagResponse(
            state=coordinator.STABLE,
            partitions=[
                pb.PartitionLag(
                    topic="t",
                    partition=0,
                    committed_offset=5,
                    leader_epoch=-1,
                    log_start_offset=0,
                    end_offset=9,
                    lag=4,
                    lag_ms=100,
                    member_id="m",
                ),
                pb.PartitionLag(topic="t", partition=1, leader_epoch=3, error=lost),
            ],
        )

    async def ResetOffsets(self, request: Any, timeout: float) -> Any:
        self.asked.append(request)
        if request.group_id in FAILING:
            code, message = FAILING[request.group_id]
            detail = errors_pb2.ErrorDetail(code=code, message=message)
            if len(self.asked) > 1:
                raise failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            raise failed(grpc.StatusCode.UNAVAILABLE, message, detail)
        return pb.ResetOffsetsResponse(
            partitions=[pb.PlannedReset(topic="t", partition=0, new_offset=3, end_offset=9, note="to the end")],
            executed=request.execute,
            members=2,
        )

    async def DeleteGroups(self, request: Any, timeout: float) -> Any:
        wrong = {"g": errors_pb2.NON_EMPTY_GROUP}
        return coordinator.DeleteGroupsResponse(
            groups=[coordinator.GroupResult(group_id=i, error=wrong.get(i, errors_pb2.NONE)) for i in request.group_ids]
        )

    async def DeleteOffsets(self, request: Any, timeout: float) -> Any:
        self.asked.append(request)
        return coordinator.DeleteOffsetsResponse(results=[coordinator.OffsetResult(topic="t", partition=1)])


class FakeTransport:
    """Only the way to the admin service."""

    def __init__(self, stub: FakeStub) -> None:
        self._stub = stub

    async def admin(self) -> FakeStub:
        return self._stub

    async def close(self) -> None:
        pass


@pytest.fixture
def stub() -> FakeStub:
    return FakeStub()


@pytest.fixture
def admin(stub: FakeStub) -> Iterator[headrace.AdminClient]:
    transport: Any = FakeTransport(stub)
    with headrace.AdminClient(_transport=transport, default_api_timeout_ms=5_000) as client:
        yield client


def test_a_list_with_what_is_missing(admin: headrace.AdminClient, stub: FakeStub) -> None:
    found = admin.list_groups(states=["stable"])
    (group,) = found.groups
    assert (group.group_id, group.protocol, group.state, group.members) == ("g", "consumer", "stable", 1)
    (missing,) = found.missing
    assert (missing.shard, missing.coordinator, type(missing.error)) == (7, None, NetworkFailed)
    assert list(stub.asked[0].states) == [coordinator.STABLE]
    with pytest.raises(Rejected, match="there are empty, preparing_rebalance"):
        admin.list_groups(states=["happy"])


def test_groups_with_their_members(admin: headrace.AdminClient) -> None:
    group = admin.describe_group("g")
    assert (group.protocol, group.generation, group.assignment_epoch, group.assignor) == ("classic", 4, None, "range")
    (member,) = group.members
    assert (member.assigned, member.target, member.member_epoch, member.pattern) == ((T0, T1), (), None, None)
    with pytest.raises(GroupNotFound):
        admin.describe_group("nope")
    assert isinstance(admin.describe_groups(["g", "nope"])["nope"], GroupNotFound)


def test_lag_says_what_is_not_known_and_why(admin: headrace.AdminClient, stub: FakeStub) -> None:
    lags = admin.group_lag("g", "t", ages=False)
    assert (lags[T0].lag, lags[T0].lag_ms, lags[T0].leader_epoch, lags[T0].error) == (4, 100, None, None)
    assert (lags[T1].lag, lags[T1].committed_offset, lags[T1].leader_epoch) == (None, None, 3)
    assert isinstance(lags[T1].error, LeaderNotAvailable)
    assert (list(stub.asked[0].topics), stub.asked[0].without_age) == (["t"], True)


NOON = datetime(2025, 11, 21, 12, 0, tzinfo=UTC)
NOON_MS = 1_763_726_400_000


@pytest.mark.parametrize(
    ("where", "target", "value"),
    [
        ({"to": "latest"}, "to", pb.LATEST),
        ({"to_offset": 5}, "to_offset", 5),
        ({"to_offset": 0}, "to_offset", 0),
        ({"shift_by": -5}, "shift_by", -5),
        ({"to_datetime": NOON}, "to_timestamp_ms", NOON_MS),
        ({"to_datetime": NOON.astimezone(timezone(timedelta(hours=9)))}, "to_timestamp_ms", NOON_MS),
        ({"to_datetime": "2025-11-21T13:00:00+01:00"}, "to_timestamp_ms", NOON_MS),
        ({"to_datetime": NOON_MS}, "to_timestamp_ms", NOON_MS),
        ({"by_duration": timedelta(minutes=1.5)}, "ago_ms", 90_000),
        ({"by_duration": "1m30s"}, "ago_ms", 90_000),
    ],
)
def test_where_a_group_goes_on(
    admin: headrace.AdminClient, stub: FakeStub, where: Any, target: str, value: object
) -> None:
    plan = admin.reset_offsets("g", ["a", T1, ("t", 0)], **where)
    (request,) = stub.asked
    assert request.WhichOneof("target") == target
    assert getattr(request, target) == value
    assert {(t.topic, tuple(t.partitions)) for t in request.partitions} == {("a", ()), ("t", (0, 1))}
    assert (request.execute, plan.executed, plan.members) == (False, False, 2)
    (planned,) = plan.partitions
    assert (planned.old_offset, planned.new_offset, planned.note, planned.error) == (None, 3, "to the end", None)


def test_what_does_not_exist_is_said_at_once(admin: headrace.AdminClient, stub: FakeStub) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="'x' does not exist"):
        admin.reset_offsets("unknown", "x", to="latest")
    assert len(stub.asked) == 1


def test_the_last_thing_said_is_raised_and_not_our_own_timeout(stub: FakeStub) -> None:
    transport: Any = FakeTransport(stub)
    with headrace.AdminClient(_transport=transport, default_api_timeout_ms=500) as admin:
        with pytest.raises(CoordinatorNotAvailable, match="no coordinator has shard 3"):
            admin.reset_offsets("unled", "t", to="latest")
        assert len(stub.asked) > 1
        with pytest.raises(RequestTimedOut):
            admin.reset_offsets("unled", "t", to="latest", execute=True)


def test_offsets_per_partition_are_carried_out_when_told(admin: headrace.AdminClient, stub: FakeStub) -> None:
    assert admin.reset_offsets("g", to_offset={T0: 3, ("t", 1): 4}, execute=True).executed
    (request,) = stub.asked
    assert [(o.topic, o.partition, o.offset) for o in request.to_offsets.offsets] == [("t", 0, 3), ("t", 1, 4)]


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"to": "latest", "shift_by": 1},
        {"to": "nowhere"},
        {"to_datetime": NOON.replace(tzinfo=None)},
        {"to_datetime": "noon"},
        {"by_duration": "soon"},
        {"to_offset": 2**70},
        {"to_offset": {T0: -(2**70)}},
    ],
)
def test_what_makes_no_sense_is_not_asked(admin: headrace.AdminClient, stub: FakeStub, where: Any) -> None:
    with pytest.raises(Rejected):
        admin.reset_offsets("g", "t", **where)
    assert stub.asked == []


def test_groups_are_deleted_each_by_itself(admin: headrace.AdminClient) -> None:
    admin.delete_group("old")
    with pytest.raises(NonEmptyGroup):
        admin.delete_group("g")
    done = admin.delete_groups(["old", "g"])
    assert done["old"] is None
    assert done["g"] is not None
    assert done["g"].code is ErrorCode.NON_EMPTY_GROUP


def test_offsets_of_a_topic_and_of_a_partition_are_deleted(admin: headrace.AdminClient, stub: FakeStub) -> None:
    assert admin.delete_offsets("g", ["u", T0, "t"]) == {T1: None}
    (request,) = stub.asked
    assert {(t.topic, tuple(t.partitions)) for t in request.partitions} == {("u", ()), ("t", ())}, "the whole of it"
