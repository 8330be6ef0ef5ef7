"""What is committed, when, and what a consumer reads from then on; sync twin, coordinator in the lab."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

import headrace
from headrace import TopicPartition, errors
from headrace.errors import ErrorCode, HeadraceError, InvalidConfig
from headrace.records import Committed

from .groups import PROTOCOLS, Member, fill, until

ONE = TopicPartition("t", 0)


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", 1)
    fill(backend, [b"%d" % n for n in range(10)], 1)
    backend.await_group()
    return backend


def committed(memory: LabCluster) -> int | None:
    found = memory.committed("g").get(ONE)
    return None if found is None else found.offset


def reader(memory: LabCluster, protocol: str, **settings: Any) -> Member:
    member = Member(memory, protocol, **settings)
    until(lambda: len(member.values) == 10, member)
    return member


def test_automatic_commits_come_with_polls_after_the_interval(memory: LabCluster, protocol: str) -> None:
    member = reader(memory, protocol, auto_commit_interval_ms=50)
    until(lambda: committed(memory) == 10, member)
    member.close()


def test_what_was_handed_out_and_not_followed_by_a_poll_is_not_committed_by_itself(
    memory: LabCluster, protocol: str
) -> None:
    member = reader(memory, protocol, auto_commit_interval_ms=0, max_poll_records=10)
    assert committed(memory) in (None, 0), "nobody has said yet that they are handled"
    member.poll()
    until(lambda: committed(memory) == 10, member)
    member.close()


def test_closing_commits_and_an_exception_only_what_was_handled(memory: LabCluster, protocol: str) -> None:
    settings = {"group_id": "g", **PROTOCOLS[protocol]}

    def fails_at(value: bytes) -> None:
        with memory.consumer("t", **settings) as consumer:
            for record in consumer:
                if record.value == value:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_at(b"5")
    assert committed(memory) is not None
    assert 0 < (committed(memory) or 0) <= 5, "up to the slice in which it failed"
    with memory.consumer("t", **settings) as consumer:
        for record in consumer:
            if record.value == b"7":
                break
    assert committed(memory) == 8, "what the loop has got"


def test_without_automatic_commits_nothing_is_committed(memory: LabCluster, protocol: str) -> None:
    member = reader(memory, protocol, enable_auto_commit=False, auto_commit_interval_ms=0)
    member.poll()
    member.close()
    assert committed(memory) is None


def test_commit_is_repeated_until_it_is_done(memory: LabCluster, protocol: str) -> None:
    member = reader(memory, protocol, enable_auto_commit=False)
    memory.inject("commit_offsets", *[Fault(Does.DROP)] * 3)
    member.consumer.commit()
    assert committed(memory) == 10
    member.close()


def test_commit_gives_up_in_time_and_says_why(memory: LabCluster, protocol: str) -> None:
    member = reader(memory, protocol, enable_auto_commit=False)
    memory.on_request = lambda api, broker, request: Fault(Does.DROP) if api == "commit_offsets" else None
    with pytest.raises(errors.HeadraceError, match="connection failed"):
        member.consumer.commit(timeout_ms=50)
    member.close()


def test_asynchronous_commits_are_not_repeated_and_tell_how_it_went(memory: LabCluster, protocol: str) -> None:
    member = reader(memory, protocol, enable_auto_commit=False)
    told: list[tuple[int, HeadraceError | None, str]] = []

    def tell(offsets: dict[TopicPartition, Committed], error: HeadraceError | None) -> None:
        told.append((offsets[ONE].offset, error, threading.current_thread().name))

    memory.inject("commit_offsets", Fault(Does.ERROR, code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    member.consumer.commit_async(tell)
    until(lambda: len(told) == 1, member)
    assert isinstance(told[0][1], HeadraceError)
    assert committed(memory) is None
    for offset in range(1, 6):
        member.consumer.commit_async(tell, {ONE: offset})
    until(lambda: len(told) == 6, member)
    assert [(offset, error) for offset, error, _ in told[1:]] == [(n, None) for n in range(1, 6)]
    assert committed(memory) == 5
    assert {name for _, _, name in told} == {threading.current_thread().name}
    member.close()


def test_asynchronous_commits_that_nobody_answers_are_bounded(
    memory: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.aio._group_steps.ASYNC_MAX", 3)
    member = reader(memory, "server-side", enable_auto_commit=False)
    for offset in range(1, 4):
        member.consumer.commit_async(lambda offsets, error: None, {ONE: offset})
    with pytest.raises(errors.Overloaded, match="poll, then commit"):
        member.consumer.commit_async(None, {ONE: 4})
    until(lambda: committed(memory) == 3, member)
    until(lambda: not member.consumer._steps._answers, member)
    member.consumer.commit_async(None, {ONE: 4})
    member.close()
    assert committed(memory) == 4


def test_closing_waits_for_asynchronous_commits(memory: LabCluster, protocol: str) -> None:
    member = reader(memory, protocol, enable_auto_commit=False)
    told: list[HeadraceError | None] = []
    member.consumer.commit_async(lambda offsets, error: told.append(error), {ONE: 3})
    member.close()
    assert told == [None]
    assert committed(memory) == 3


def test_offsets_of_ones_own_with_metadata(memory: LabCluster, protocol: str) -> None:
    member = reader(memory, protocol, enable_auto_commit=False)
    member.consumer.commit({ONE: Committed(4, metadata="halfway")})
    assert member.consumer.committed([ONE]) == {ONE: Committed(4, -1, "halfway")}
    member.consumer.commit({("t", 0): 10})
    assert member.consumer.committed([("t", 0)])[ONE] == Committed(10, 0), "the epoch of a position is known"
    member.close()


@pytest.mark.parametrize("offsets", [{ONE: -1}, {ONE: "7"}, {ONE: True}, {("u", 0): 1}, {("t", 9): 1}])
def test_offsets_that_make_no_sense_are_refused(memory: LabCluster, offsets: Any) -> None:
    member = reader(memory, "server-side", enable_auto_commit=False)
    with pytest.raises(errors.Rejected):
        member.consumer.commit(offsets)
    with pytest.raises(errors.Rejected):
        member.consumer.commit_async(None, offsets)
    member.close()


def test_in_on_revoke_one_can_still_commit(memory: LabCluster, protocol: str) -> None:
    member = Member(memory, protocol, enable_auto_commit=False)
    member.consumer.subscribe(["t"], on_revoke=lambda partitions: member.consumer.commit())
    until(lambda: len(member.values) == 10, member)
    member.close()
    assert committed(memory) == 10


def test_in_on_assign_one_can_seek(memory: LabCluster, protocol: str) -> None:
    member = Member(memory, protocol)
    member.consumer.subscribe(["t"], on_assign=lambda partitions: member.consumer.seek(partitions[0], 8))
    until(lambda: b"9" in member.values, member)
    assert member.values == [b"8", b"9"]
    member.close()


@pytest.mark.parametrize(("reset", "first"), [("earliest", b"0"), ("latest", b"new"), ("by_duration:P3650D", b"0")])
def test_without_a_committed_offset_the_reset_decides(memory: LabCluster, reset: str, first: bytes) -> None:
    member = Member(memory, "server-side", auto_offset_reset=reset)
    until(lambda: bool(member.held), member)
    member.consumer.position(ONE)
    fill(memory, [b"new"], 1)
    until(lambda: bool(member.values), member)
    assert member.values[0] == first
    member.close()


def test_without_a_committed_offset_none_is_raised(memory: LabCluster, protocol: str) -> None:
    member = Member(memory, protocol, auto_offset_reset="none")
    with pytest.raises(errors.NoPosition):
        until(lambda: False, member)
    member.consumer.seek(ONE, 9)
    until(lambda: member.values == [b"9"], member)
    member.close()


def test_a_committed_offset_that_is_gone_is_reset(memory: LabCluster, protocol: str) -> None:
    member = reader(memory, protocol)
    member.consumer.commit({ONE: 2})
    member.consumer.seek(ONE, 2)
    member.close()
    memory.trim("t", 0, 6)
    again = Member(memory, protocol)
    until(lambda: bool(again.values), again)
    assert again.values[0] == b"6"
    assert again.consumer.health().resets == 1
    again.close()


def test_committed_offsets_that_cannot_be_had_are_raised_not_waited_for(memory: LabCluster, protocol: str) -> None:
    memory.on_request = lambda api, broker, request: Fault(Does.DROP) if api == "fetch_offsets" else None
    member = Member(memory, protocol, default_api_timeout_ms=1_000)
    with pytest.raises(errors.WaitTimedOut, match="committed offsets of group 'g', within 1000 ms"):
        until(lambda: False, member)
    memory.on_request = None
    until(lambda: len(member.values) == 10, member)
    member.close()


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({"group_id": ""}, ["group_id takes a text of 1 to 249"]),
        ({"group_id": "x" * 250}, ["group_id takes a text of 1 to 249"]),
        ({"group_instance_id": "a"}, ["group_instance_id needs a group_id"]),
        ({"group_id": "g", "group_protocol": "new"}, ["group_protocol takes consumer, classic"]),
        (
            {"group_id": "g", "session_timeout_ms": 9_000, "partition_assignment_strategy": "range"},
            ["session_timeout_ms, partition_assignment_strategy are for group_protocol='classic'"],
        ),
        (
            {
                "group_id": "g",
                "group_protocol": "classic",
                "session_timeout_ms": 10,
                "partition_assignment_strategy": ["best", "range", "range", object()],
                "group_remote_assignor": "uniform",
            },
            [
                "heartbeat_interval_ms (3000) must be below session_timeout_ms (10)",
                "'best' is none of range, roundrobin, sticky, cooperative-sticky",
                "has no name and assign",
                "names one twice",
                "group_remote_assignor is for group_protocol='consumer'",
            ],
        ),
        ({"group_id": "g", "group_remote_assignor": "sticky"}, ["group_remote_assignor takes 'uniform' or 'range'"]),
        ({"partition_assignment_strategy": []}, ["takes 1 to 16 assignors"]),
        ({"group_id": "g", "group_instance_id": "\ud800"}, ["group_instance_id takes a text that UTF-8 can write"]),
        ({"group_id": "a\udfffb"}, ["group_id takes a text that UTF-8 can write"]),
    ],
)
def test_settings_that_cannot_be_are_all_named(settings: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(InvalidConfig) as raised:
        headrace.Consumer("t", **settings)
    for text in texts:
        assert text in str(raised.value)


def test_a_group_needs_topics_that_exist_and_one_way_to_name_them(memory: LabCluster) -> None:
    with memory.consumer(group_id="g") as consumer:
        with pytest.raises(errors.UnknownTopicOrPartition):
            consumer.subscribe(["nobody"])
        with pytest.raises(errors.Rejected, match="topics or a pattern"):
            consumer.subscribe(["t"], pattern="t")
        with pytest.raises(errors.Rejected, match="topics or a pattern"):
            consumer.subscribe([])
        with pytest.raises(errors.InvalidRegularExpression):
            consumer.subscribe(pattern="(")
        with pytest.raises(errors.Rejected, match="which is internal; read it without a group_id"):
            consumer.subscribe(["t", "__consumer_offsets"])

        async def on_assign(partitions: list[TopicPartition]) -> None: ...

        with pytest.raises(errors.Rejected, match=r"headrace\.aio\.Consumer"):
            consumer.subscribe(["t"], on_assign=on_assign)
        consumer.subscribe("t")
        with pytest.raises(errors.Rejected, match="make another to assign"):
            consumer.assign([("t", 0)])
