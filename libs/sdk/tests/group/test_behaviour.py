"""What members of a group see, the same with every protocol; against a real coordinator."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import TopicPartition, errors
from headrace._transport.grpc import GrpcTransport
from headrace_proto.v1 import broker_pb2 as pb

from .groups import PATIENCE_S, PROTOCOLS, Member, fill, shared, until


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


GRACE = {
    name: {"group_rejoin_grace_ms": ms}
    for name, ms in {
        "test_who_closes_leaves_also_when_a_function_of_the_application_raises": 60_000,
        "test_a_coordinator_that_goes_and_comes_back_changes_nothing": 10_000,
        "test_without_its_coordinator_for_longer_than_the_grace_nothing_is_handed_out": 60_000,
    }.items()
}
"""For tests that need a long one."""


@pytest.fixture
def memory(labs: Labs, request: pytest.FixtureRequest) -> LabCluster:
    backend = labs(group_consumer_heartbeat_interval_ms=50, **GRACE.get(request.function.__name__, {}))
    backend.create_topic("t", 6)
    return backend


def committed(member: Member, partition: int) -> int | None:
    tp = TopicPartition("t", partition)
    found = member.consumer.committed([tp])[tp]
    return None if found is None else found.offset


def test_members_share_the_partitions_and_each_record_is_read_once(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(60)], 6)
    members = [Member(memory, protocol) for _ in range(3)]
    until(shared(members, 6), *members)
    until(lambda: sum(len(m.values) for m in members) >= 60, *members)
    values = [value for member in members for value in member.values]
    assert sorted(values, key=int) == [b"%d" % n for n in range(60)]
    for member in members:
        member.close()


def test_who_closes_commits_and_the_others_go_on_behind_that(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(12)], 6)
    first, second = Member(memory, protocol), Member(memory, protocol)
    until(shared([first, second], 6), first, second)
    until(lambda: len(first.values) + len(second.values) == 12, first, second)
    first.close()
    assert first.story[-1][0] == "-"
    assert first.consumer._steps.group.core.member_id not in memory.members()
    until(lambda: len(second.held) == 6, second)
    fill(memory, [b"later"], 6)
    until(lambda: b"later" in second.values, second)
    assert len(first.values) + len(second.values) == 13, "nothing was read twice"
    second.close()


def test_partitions_that_stay_are_not_taken_away(memory: LabCluster, protocol: str) -> None:
    first = Member(memory, protocol)
    until(lambda: len(first.held) == 6, first)
    second = Member(memory, protocol)
    until(shared([first, second], 6), first, second)
    revoked = [story for story in first.story if story[0] == "-"]
    if protocol == "eager":
        assert revoked == [("-", [0, 1, 2, 3, 4, 5])]
    else:
        assert [len(partitions) for _, partitions in revoked] == [3]
        assert set(revoked[0][1]) == second.held
        assert [sign for sign, _ in first.story] == ["+", "-"], "what stays is not assigned again"
    first.close()
    second.close()


def test_prefetched_records_of_a_revoked_partition_are_not_handed_out(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(6_000)], 6)
    first = Member(memory, protocol, max_poll_records=1)
    until(lambda: len(first.held) == 6, first)
    read = {p: first.consumer.position(("t", p)) for p in range(6)}
    second = Member(memory, protocol)
    while sum(read.values()) < 6_000:
        for member in (first, second):
            for record in member.consumer.poll(timeout_ms=5, max_records=50):
                assert record.partition in member.held
                assert record.offset == read[record.partition], "neither skipped nor handed out by both"
                read[record.partition] += 1
    assert second.held
    first.close()
    second.close()


def test_who_closes_leaves_also_when_a_function_of_the_application_raises(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(12)], 6)

    def fails(*_: object) -> None:
        raise RuntimeError("the database is away")

    first = Member(memory, protocol)
    until(lambda: len(first.values) == 12, first)
    first.consumer.subscribe(["t"], on_revoke=fails)
    with pytest.raises(RuntimeError, match="the database is away"):
        first.close()
    second = Member(memory, protocol)
    until(lambda: len(second.held) == 6, second)
    second.consumer.commit_async(fails)
    with pytest.raises(RuntimeError, match="the database is away"):
        second.close()
    third = Member(memory, protocol)
    until(lambda: len(third.held) == 6, third)
    assert third.poll() == third.values == second.values == [], "what was handled is committed"
    third.close()


def test_more_members_than_partitions_idle_until_they_are_needed(memory: LabCluster, protocol: str) -> None:
    memory.create_topic("one", 1)
    members = [Member(memory, protocol, "one") for _ in range(3)]
    until(
        lambda: sum(len(m.held) for m in members) == 1 and all(m.consumer.state != "joining" for m in members), *members
    )
    busy = next(m for m in members if m.held)
    idle = [m for m in members if m is not busy]
    assert all(m.consumer.state == "idle" for m in idle)
    assert busy.consumer.state == "reading"
    busy.close()
    until(lambda: sum(len(m.held) for m in idle) == 1, *idle)
    for member in idle:
        member.close()


def test_partitions_that_are_added_are_read(memory: LabCluster, protocol: str) -> None:
    members = [Member(memory, protocol, metadata_max_age_ms=100, auto_offset_reset="latest") for _ in range(2)]
    until(shared(members, 6), *members)
    memory.add_partitions("t", 2)
    with memory.producer() as producer:
        producer.send("t", b"before anybody looked", partition=7).result(timeout=10)
    until(shared(members, 8), *members)
    until(lambda: any(b"before anybody looked" in m.values for m in members), *members)
    for member in members:
        member.close()


def test_a_pattern_sees_topics_that_are_made_later(memory: LabCluster, protocol: str) -> None:
    memory.create_topic("flights-eu", 1)
    member = Member(memory, protocol, pattern="flights-.*", metadata_max_age_ms=100)
    until(lambda: len(member.consumer.assignment()) == 1, member)
    assert member.consumer.subscription() == {"flights-eu"}
    memory.create_topic("flights-us", 2)
    memory.create_topic("no-flights-us", 2)
    until(lambda: len(member.consumer.assignment()) == 3, member)
    assert member.consumer.subscription() == {"flights-eu", "flights-us"}
    member.close()


def test_a_classic_leader_sees_the_topics_of_restored_metadata(
    memory: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same cluster on a new etcd: revisions are low again."""
    asks = GrpcTransport.metadata
    told = {"ahead": 5_000, "incarnation": b"", "looks": 0}

    async def metadata(transport: GrpcTransport, request: pb.MetadataRequest, **how: Any) -> pb.MetadataResponse:
        answer = await asks(transport, request, **how)
        answer.revision += told["ahead"]
        answer.incarnation = told["incarnation"] or answer.incarnation
        told["looks"] += request.all_topics
        return answer

    monkeypatch.setattr(GrpcTransport, "metadata", metadata)
    member = Member(memory, "eager", pattern="[tu]", metadata_max_age_ms=100)
    until(lambda: len(member.consumer.assignment()) == 6, member)
    told["ahead"] = 0
    memory.create_topic("u", 1)
    told["looks"] = 0
    until(lambda: told["looks"] >= 3, member)
    assert member.consumer.subscription() == {"t"}, "the same metadata, of a broker that is behind"
    told["incarnation"] = b"r" * 16
    until(lambda: len(member.consumer.assignment()) == 7, member)
    assert member.consumer.subscription() == {"t", "u"}
    member.close()


def test_a_topic_that_metadata_does_not_know_yet_pauses_nobody(memory: LabCluster) -> None:
    memory.create_topic("flights-eu", 1)
    member = Member(memory, "server-side", pattern="flights-.*")
    until(lambda: len(member.consumer.assignment()) == 1, member)
    fill(memory, [b"kept"], 1, "flights-eu")
    memory.on_request = lambda api, broker, request: Fault(Does.DROP) if api == "metadata" else None
    memory.create_topic("flights-us", 1)
    until(lambda: len(member.consumer.assignment()) == 2 and member.values == [b"kept"], member)
    assert TopicPartition("flights-us", 0) in member.consumer.health().troubled
    memory.on_request = None
    fill(memory, [b"new"], 1, "flights-us")
    until(lambda: b"new" in member.values, member)
    member.close()


def test_the_subscription_can_be_changed(memory: LabCluster, protocol: str) -> None:
    memory.create_topic("u", 2)
    member = Member(memory, protocol)
    until(lambda: len(member.held) == 6, member)
    member.consumer.subscribe(["u"], on_revoke=member._tell("-"))
    until(lambda: member.consumer.assignment() == {TopicPartition("u", 0), TopicPartition("u", 1)}, member)
    assert member.consumer.subscription() == {"u"}
    member.close()


def test_who_is_put_out_hears_that_its_partitions_are_lost_and_joins_again(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"a"], 6)
    member = Member(memory, protocol, auto_commit_interval_ms=3_600_000)
    until(lambda: member.values == [b"a"], member)
    known = member.consumer._steps.group.core.member_id
    memory.evict("g", known)
    until(lambda: ("!", [0, 1, 2, 3, 4, 5]) in member.story and len(member.held) == 6, member)
    until(lambda: member.values == [b"a", b"a"], member)
    assert [sign for sign, _ in member.story] == ["+", "!", "+"], "lost is not revoked: nothing was committed"
    member.close()


def test_a_commit_of_one_that_is_out_changes_nothing(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"a"], 6)
    member = Member(memory, protocol, enable_auto_commit=False)
    until(lambda: member.values == [b"a"], member)
    core = member.consumer._steps.group.core
    memory.evict("g", core.member_id)
    with pytest.raises((errors.UnknownMemberId, errors.IllegalGeneration)):
        member.consumer.commit(timeout_ms=2_000)
    assert committed(member, 0) is None
    member.close()


def test_a_coordinator_that_goes_and_comes_back_changes_nothing(memory: LabCluster, protocol: str) -> None:
    members = [Member(memory, protocol) for _ in range(2)]
    until(shared(members, 6), *members)
    stories = [list(m.story) for m in members]
    memory.refuse()
    until(lambda: all(m.consumer.health().group.trouble is not None for m in members), *members)
    fill(memory, [b"meanwhile"], 6)
    until(lambda: any(m.values for m in members), *members)
    memory.accept()
    until(lambda: all(m.consumer.health().group.trouble is None for m in members), *members)
    assert [m.story for m in members] == stories
    members[0].consumer.commit()
    for member in members:
        member.close()


def test_without_its_coordinator_for_longer_than_the_grace_nothing_is_handed_out(
    memory: LabCluster, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace._core.phases.REJOIN_GRACE_MS", 100)
    member = Member(memory, protocol)
    until(lambda: len(member.held) == 6, member)
    memory.refuse()
    until(lambda: member.consumer.state == "disconnected", member)
    fill(memory, [b"x"], 6)
    until(lambda: member.consumer.health().buffered_bytes > 0, member)
    assert not member.poll(timeout_ms=50)
    assert not member.consumer.health().ok
    memory.accept()
    until(lambda: member.values == [b"x"], member)
    assert [sign for sign, _ in member.story] == ["+"]
    member.close()


def test_a_silent_coordinator_is_looked_for_again(
    memory: LabCluster, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace._core.phases.SILENCE_MS", 100)
    member = Member(memory, protocol)
    until(lambda: len(member.held) == 6, member)
    memory.pause_coordinator()
    until(lambda: member.consumer.health().group.trouble is not None, member)
    memory.resume_coordinator()
    until(lambda: member.consumer.health().group.trouble is None and len(member.held) == 6, member)
    member.close()


def test_no_coordinator_at_all_is_raised(memory: LabCluster, protocol: str) -> None:
    memory.refuse()
    member = Member(memory, protocol, default_api_timeout_ms=200)
    with pytest.raises(
        (errors.CoordinatorNotAvailable, errors.NetworkFailed), match="group 'g' has not taken this member for"
    ):
        until(lambda: False, member)
    assert member.consumer.state in ("joining", "disconnected")
    member.close()


def test_who_does_not_poll_leaves_and_its_next_poll_joins_again(memory: LabCluster, protocol: str) -> None:
    slow = Member(memory, protocol, max_poll_interval_ms=300)
    other = Member(memory, protocol)
    until(shared([slow, other], 6), slow, other)
    until(lambda: len(other.held) == 6, other)
    assert slow.consumer.state == "out"
    until(shared([slow, other], 6), slow, other)
    assert "!" in [sign for sign, _ in slow.story]
    slow.close()
    other.close()


def test_a_handler_of_any_slowness_does_not_stop_heartbeats(memory: LabCluster, protocol: str) -> None:
    slow = Member(memory, protocol)
    until(lambda: len(slow.held) == 6, slow)
    heard = slow.consumer._steps.group.core.heard_ms
    done = threading.Event()
    threading.Timer(0.4, done.set).start()
    done.wait()  # the handler
    assert slow.consumer._steps.group.core.heard_ms > heard
    slow.close()


def test_iteration_follows_rebalances(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(600)], 6)
    first = Member(memory, protocol)
    seen: list[bytes] = []
    second: Member | None = None
    for record in first.consumer:
        if record.value == b"end":
            break
        seen.append(record.value)
        if len(seen) == 100:
            second = Member(memory, protocol)
        if second is not None and not second.held:
            second.poll(timeout_ms=20)  # the first iterates on meanwhile, record by record
        if len(seen) == 300:
            fill(memory, [b"end"] * 6, 6)
    assert second is not None
    until(lambda: b"end" in second.values and len({*seen, *second.values}) == 601, second)
    assert len(seen) < 600
    first.close()
    second.close()


def test_two_groups_read_everything_each(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(12)], 6)
    one, two = Member(memory, protocol), Member(memory, protocol, group_id="h")
    until(lambda: len(one.values) == len(two.values) == 12, one, two)
    one.close()
    two.close()


def test_pauses_and_positions_of_what_stays_are_kept(memory: LabCluster) -> None:
    first = Member(memory, "cooperative")
    until(lambda: len(first.held) == 6, first)
    fill(memory, [b"%d" % n for n in range(12)], 6)
    until(lambda: len(first.values) == 12, first)
    first.consumer.pause()
    second = Member(memory, "cooperative")
    until(shared([first, second], 6), first, second)
    assert {tp.partition for tp in first.consumer.paused()} == first.held
    assert all(first.consumer.position(tp) == 2 for tp in first.consumer.assignment())
    first.close()
    second.close()


def test_a_static_member_comes_back_to_its_partitions(memory: LabCluster, protocol: str) -> None:
    static = Member(memory, protocol, group_instance_id="one")
    other = Member(memory, protocol)
    until(shared([static, other], 6), static, other)
    held, story = static.held, list(other.story)
    static.close()
    again = Member(memory, protocol, group_instance_id="one")
    until(lambda: again.held == held, again, other)
    assert other.story == story, "nobody else noticed"
    again.close()
    other.close()


def test_a_static_name_that_is_taken_over_is_told(memory: LabCluster) -> None:
    old = Member(memory, "eager", group_instance_id="one")
    until(lambda: len(old.held) == 6, old)
    new = Member(memory, "eager", group_instance_id="one")
    until(lambda: len(new.held) == 6, new)
    with pytest.raises(errors.FencedInstanceId):
        until(lambda: False, old)
    assert old.consumer.state == "stuck"
    assert not old.held, "and reads nothing any more"
    with pytest.raises(errors.FencedInstanceId):
        old.poll()
    old.close()
    new.close()


def test_a_static_name_that_is_not_free_yet_is_waited_for(memory: LabCluster) -> None:
    old = Member(memory, "server-side", group_instance_id="one")
    until(lambda: len(old.held) == 6, old)
    new = Member(memory, "server-side", group_instance_id="one")
    until(lambda: new.consumer.health().group.trouble is not None, old, new)
    assert not new.held
    old.close()
    until(lambda: len(new.held) == 6, new)
    new.close()


def test_the_other_protocol_is_refused(memory: LabCluster) -> None:
    old = Member(memory, "eager")
    until(lambda: len(old.held) == 6, old)
    new = Member(memory, "cooperative", partition_assignment_strategy=["sticky"])
    with pytest.raises(errors.InconsistentGroupProtocol):
        until(lambda: False, new)
    old.close()
    new.close()


class Backwards:
    """An assignor of one's own: the last member gets everything."""

    name = "backwards"

    def assign(self, members, partitions):
        last = max(members)
        return {last: {topic: list(range(count)) for topic, count in partitions.items()}}


def test_an_assignor_of_ones_own_decides(memory: LabCluster) -> None:
    members = [Member(memory, "eager", partition_assignment_strategy=[Backwards()]) for _ in range(2)]
    until(lambda: sorted(len(m.held) for m in members) == [0, 6], *members)
    last = max(members, key=lambda m: m.consumer.health().group.member_id)
    until(lambda: len(last.held) == 6, *members)
    for member in members:
        member.close()


class Weighed:
    """An assignor of one's own: who says that it is the heaviest gets everything."""

    name = "weighed"

    def __init__(self, weight: int) -> None:
        self.weight = weight

    def user_data(self, topics):
        assert set(topics) == {"t"}
        return b"%d" % self.weight

    def assign(self, members, partitions):
        heaviest = max(members, key=lambda member: int(members[member].user_data))
        return {heaviest: {topic: list(range(count)) for topic, count in partitions.items()}}


def test_members_tell_the_leaders_assignor_what_it_cannot_know(memory: LabCluster) -> None:
    members = [Member(memory, "eager", partition_assignment_strategy=[Weighed(weight)]) for weight in (3, 20, 1)]
    until(lambda: [len(member.held) for member in members] == [0, 6, 0], *members)
    for member in members:
        member.close()


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ("text", "user_data of the assignor 'weighed' returns bytes, not str"),
        (bytes(2**20 + 1), "returned 1048577 bytes; 1048576 are the most"),
        (KeyError("weight"), "'weighed' raised KeyError: 'weight'"),
    ],
)
def test_user_data_that_cannot_be_told_is_an_error_of_the_program(memory: LabCluster, told: object, text: str) -> None:
    class Wrong(Weighed):
        def user_data(self, topics):
            if isinstance(told, Exception):
                raise told
            return told

    member = Member(memory, "eager", partition_assignment_strategy=[Wrong(1)])
    with pytest.raises(errors.Rejected, match=text):
        until(lambda: False, member)
    member.close()


def test_an_assignor_that_raises_is_told(memory: LabCluster) -> None:
    class Broken(Backwards):
        name = "broken"

        def assign(self, members, partitions):
            raise ValueError("no idea")

    member = Member(memory, "eager", partition_assignment_strategy=[Broken()])
    with pytest.raises(errors.Rejected, match="'broken' raised ValueError: no idea"):
        until(lambda: False, member)
    member.close()


def test_an_assignor_that_gives_a_partition_twice_or_ends_the_program_is_told(memory: LabCluster) -> None:
    class Everything(Backwards):
        name = "everything"

        def assign(self, members, partitions):
            if len(members) > 1:
                return {member: {topic: range(count) for topic, count in partitions.items()} for member in members}
            raise SystemExit(3)

    members = [Member(memory, "eager", partition_assignment_strategy=[Everything()]) for _ in range(2)]
    with pytest.raises(errors.Rejected, match=r"'everything' (gave t-\d to .* and to|raised SystemExit: 3)"):
        until(lambda: False, *members)
    for member in members:
        member.close()
    alone = Member(memory, "eager", partition_assignment_strategy=[Everything()])
    with pytest.raises(errors.Rejected, match="'everything' raised SystemExit: 3"):
        until(lambda: False, alone)
    alone.close()


def test_a_callback_that_raises_is_told_and_the_group_goes_on(memory: LabCluster, protocol: str) -> None:
    member = Member(memory, protocol)

    def refuse(partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    member.consumer.subscribe(["t"], on_assign=refuse)
    with pytest.raises(ZeroDivisionError):
        until(lambda: False, member)
    until(lambda: len(member.held) == 6 and member.consumer.state == "reading", member)
    member.close()


def test_a_bug_of_ours_is_raised_each_time_and_nothing_hangs(memory: LabCluster) -> None:
    member = Member(memory, "server-side")
    until(lambda: len(member.held) == 6, member)

    def broken(response: object) -> None:
        raise ZeroDivisionError

    member.consumer._steps.group._wire.answer = broken
    with pytest.raises(errors.Internal, match="ZeroDivisionError"):
        until(lambda: False, member)
    with pytest.raises(errors.Internal):
        member.poll()
    assert member.consumer.state == "stuck"
    member.consumer.close(timeout=0.2)


def test_subscribing_again_to_the_same_changes_only_the_callbacks(memory: LabCluster, protocol: str) -> None:
    member = Member(memory, protocol, pattern="t")
    until(lambda: len(member.held) == 6, member)
    generation = member.consumer.health().group.generation
    again: list[list[TopicPartition]] = []
    member.consumer.subscribe(pattern="t", on_revoke=again.append)
    heard = member.consumer._steps.group.core.heard_ms
    until(lambda: member.consumer._steps.group.core.heard_ms > heard, member)
    assert member.consumer.health().group.generation == generation
    other = Member(memory, protocol, pattern="t")
    until(shared([member, other], 6), member, other)
    assert len(again) == 1
    member.close()
    other.close()


def test_polling_in_a_callback_is_refused(memory: LabCluster, protocol: str) -> None:
    member = Member(memory, protocol)
    refused: list[str] = []

    def poll(partitions: list[TopicPartition]) -> None:
        try:
            member.consumer.poll()
        except errors.Rejected as error:
            refused.append(str(error))

    member.consumer.subscribe(["t"], on_assign=poll)
    until(lambda: bool(refused), member)
    member.close()


@pytest.fixture(autouse=True)
def no_member_is_left(memory: LabCluster) -> Iterator[None]:
    yield
    deadline = time.monotonic() + PATIENCE_S
    while memory.all_members():
        assert time.monotonic() < deadline, "every test closes its members"


def test_an_assignment_by_hand_uses_the_positions_of_the_group(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(12)], 6)
    member = Member(memory, protocol)
    until(lambda: len(member.values) == 12, member)
    member.close()
    fill(memory, [b"later"], 6)
    with memory.consumer(group_id="g", **PROTOCOLS[protocol]) as alone:
        alone.assign([("t", 0)])
        assert [record.value for record in alone.poll(timeout_ms=10_000)] == [b"later"]
        alone.commit()
        assert alone.subscription() == set()
        with pytest.raises(errors.Rejected, match="make another one to subscribe"):
            alone.subscribe(["t"])
    with memory.consumer(group_id="g") as other:
        assert other.committed([("t", 0)])[TopicPartition("t", 0)].offset == 3
