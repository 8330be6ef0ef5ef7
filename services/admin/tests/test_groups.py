"""Consumer groups of a cluster in the lab: who is asked, how often, and what is made of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs
from services.admin.tests.kit.world import SESSION_S, TIME_ZERO_MS, World

from headrace_admin.core.resets import At, Earliest, Given, Latest, ShiftBy, Since
from headrace_admin.engine.groups import AGES_AT_ONCE_MAX
from headrace_admin.engine.resets import Ago
from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.batch import build_gap_batch, read_header
from headrace_common.core.batch.header import replace_header
from headrace_common.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupNotFound,
    HeadraceError,
    LeaderNotAvailable,
    NetworkFailed,
    NonEmptyGroup,
    NotFound,
    Overloaded,
    Rejected,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import NodeId, TopicPartition
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_proto.v1 import broker_pb2, coordinator_pb2

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
JUST_NOW_MS = 5_000


@pytest.fixture
def lab(labs: Labs) -> LabCluster:
    """The internal topics are well with two of the brokers."""
    return labs(3, coordinators=2)


@pytest.fixture
async def world(lab: LabCluster, world: World) -> World:
    """Topic t, whose leaders are brokers 1 and 2 alone: 10 to 500, and 0 to 900. Topic u is empty."""
    lab.create_topic("t", on=[[1], [2]])
    lab.create_topic("u")
    await world.fill("t", 0, 500)
    await world.fill("t", 1, 900)
    lab.trim("t", 0, 10)
    return world


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed at once, so that a topic need not be wide."""
    monkeypatch.setattr("headrace_admin.engine.resets._COMMITS_MAX", 10)


class TestListing:
    async def test_looking_makes_nothing(self, world: World) -> None:
        assert (await world.engines.groups.listing()).groups == ()
        described = await world.engines.groups.describe(["g"])
        assert isinstance(described["g"], GroupNotFound)
        assert isinstance((await world.engines.groups.delete(["g"]))["g"], GroupNotFound)
        with pytest.raises(GroupNotFound):
            await world.engines.groups.lag("g")
        assert world.image.topic(INTERNAL_TOPICS[ShardKind.GROUPS]) is None

    async def test_all_coordinators_are_merged_by_id(self, world: World) -> None:
        await world.make_shards()
        for n in range(9):
            await world.commit(f"g{n}", {T0: 5})
        async with await world.join("g3", "t"):
            listing = await world.engines.groups.listing()
            assert [g.group.group_id for g in listing.groups] == [f"g{n}" for n in range(9)]
            assert {g.coordinator for g in listing.groups} == {1, 2}
            assert listing.unanswered == ()
            stable = await world.engines.groups.listing([coordinator_pb2.STABLE])
            assert [g.group.group_id for g in stable.groups] == ["g3"]

    async def test_shards_that_cannot_answer_are_named_with_the_reason(self, world: World) -> None:
        await world.make_shards()
        owned = [(key.number, shard.owner) for key, shard in sorted(world.image.shards.items())]
        first = next(number for number, who in owned if who == 1)
        ask = world.group_calls.ListGroups

        async def loading(
            place: CoordinatorPlace, request: coordinator_pb2.ListGroupsRequest
        ) -> coordinator_pb2.ListGroupsResponse:
            answer = await ask(place, request)
            answer.loading.append(first)
            return answer

        world.group_calls.ListGroups = loading
        world.lab.kill_coordinator(2)
        missing = (await world.engines.groups.listing()).unanswered
        assert [(u.shard, u.coordinator, type(u.error)) for u in missing] == [
            (number, who, CoordinatorLoading if who == 1 else NetworkFailed)
            for number, who in owned
            if who == 2 or number == first
        ]
        world.lab.kill_coordinator(1)
        await asyncio.sleep(SESSION_S)
        missing = (await world.engines.groups.listing()).unanswered
        assert [(u.shard, u.coordinator, type(u.error)) for u in missing] == [
            (number, None, CoordinatorNotAvailable) for number, _ in owned
        ]

    async def test_what_nobody_has_made_is_not_waited_for(self, world: World) -> None:
        began_ms = world.clock.monotonic_ms()
        assert (await world.engines.groups.listing()).groups == ()
        await world.engines.groups.describe(["g"])
        with pytest.raises(UnknownTopicOrPartition):
            await world.engines.resets.reset("g", [("nosuch", [])], Earliest(), execute=False)
        assert world.clock.monotonic_ms() - began_ms < 100


class TestDescribing:
    async def test_each_group_at_its_coordinator_or_its_error(self, world: World) -> None:
        await world.make_shards()
        await world.commit("b", {T0: 1})
        places = {(await world.place(group)).id for group in ("a", "nope", "b")}
        async with await world.join("a", "t", client="app"):
            world.lab.faults.asked.clear()
            found = await world.engines.groups.describe(["a", "nope", "b"])
        assert list(found) == ["a", "nope", "b"]
        a = found["a"]
        assert not isinstance(a, HeadraceError)
        assert (a.members[0].client_id, list(a.members[0].assigned[0].partitions)) == ("app", [0, 1])
        assert isinstance(found["nope"], GroupNotFound)
        assert world.lab.faults.asked.count("describe_groups") == len(places)

    async def test_a_shard_that_moves_is_followed(self, world: World) -> None:
        await world.make_shards()
        await world.commit("a", {T0: 1})
        before = (await world.place("a")).id
        world.lab.kill_coordinator(before)
        found = (await world.engines.groups.describe(["a"]))["a"]
        assert not isinstance(found, HeadraceError)
        assert found.coordinator != before

    async def test_waiting_for_a_coordinator_has_an_end(self, world: World) -> None:
        await world.make_shards()
        for number in (1, 2):
            world.lab.kill_coordinator(number)
        await asyncio.sleep(SESSION_S)
        began_ms = world.clock.monotonic_ms()
        found = await world.engines.groups.describe(["a"])
        assert isinstance(found["a"], CoordinatorNotAvailable)
        assert 15_000 <= world.clock.monotonic_ms() - began_ms < 15_100

    async def test_another_broker_is_asked_where_one_is_silent(self, world: World) -> None:
        await world.make_shards()
        await world.commit("a", {T0: 1})
        world.lab.refuse("broker-1")
        assert not isinstance((await world.engines.groups.describe(["a"]))["a"], HeadraceError)

    async def test_bounds(self, world: World) -> None:
        for ids in ([], ["g"] * 1_001):
            with pytest.raises(Rejected, match="1 to 1000"):
                await world.engines.groups.describe(ids)


class TestLag:
    async def test_in_records_and_in_time(self, world: World) -> None:
        await world.make_shards()
        began_ms = world.clock.now_ms()
        await world.commit("g", {T0: 495, T1: 900, U0: 0})
        async with await world.join("g", "t"):
            _, (zero, one, other) = await world.engines.groups.lag("g")
        assert (zero.lag, one.lag, other.lag) == (5, 0, 0)
        assert self.is_age_of(zero.lag_ms, 495, world)
        assert one.lag_ms == 0
        assert zero.owner is not None
        assert (zero.owner.client_id, other.owner) == ("reader", None)
        assert zero.committed is not None
        assert 0 <= zero.committed.committed_at_ms - began_ms <= JUST_NOW_MS

    def is_age_of(self, lag_ms: int | None, record: int, world: World) -> bool:
        """Of the record with this offset."""
        assert lag_ms is not None
        return 0 <= world.clock.now_ms() - TIME_ZERO_MS - record * 1_000 - lag_ms <= JUST_NOW_MS

    async def test_what_was_trimmed_is_not_to_be_read_any_more(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 3})
        _, (zero,) = await world.engines.groups.lag("g")
        assert zero.lag == 490
        assert self.is_age_of(zero.lag_ms, 10, world)

    async def test_the_age_of_compacted_partitions_is_that_of_the_first_record_that_is_left(self, world: World) -> None:
        """What is unread may begin with gaps, one in each segment of which nothing is left."""
        await world.make_shards()
        await world.commit("g", {T0: 20, T1: 899})
        fetch, asked = world.brokers.fetch, list[int]()

        async def compacted(broker: NodeId, request: broker_pb2.FetchRequest) -> broker_pb2.FetchResponse:
            answer = await fetch(broker, request)
            for wanted, got in zip(request.partitions, answer.partitions, strict=True):
                at = wanted.fetch_offset
                if wanted.partition == 0 and at < 495:
                    asked.append(at)
                    size = 1 if wanted.max_bytes == 1 else 100
                    gaps = [(low, min(low + 3, 495)) for low in range(at, 495, 3)][:size]
                    del got.batches[:]
                    got.batches.extend(build_gap_batch(*gap, 0, base_timestamp=5, max_timestamp=5) for gap in gaps)
            return answer

        world.brokers.fetch = compacted
        _, (zero, one) = await world.engines.groups.lag("g")
        assert zero.lag == 480
        assert self.is_age_of(zero.lag_ms, 495, world)
        assert (one.lag, one.lag_ms is None) == (1, False)
        assert asked == [20, 23, 323], "one at first, then many at once"

    async def test_partitions_that_cannot_be_asked_say_why_and_the_others_are_told(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 20, T1: 899})
        fetch = world.group_calls.FetchOffsets

        async def with_one_that_is_gone(
            place: CoordinatorPlace, request: coordinator_pb2.FetchOffsetsRequest
        ) -> coordinator_pb2.FetchOffsetsResponse:
            """Its coordinator has not heard yet that the topic was deleted."""
            answer = await fetch(place, request)
            answer.offsets.add(topic="gone", partition=0, offset=4, leader_epoch=-1, committed_at_ms=1)
            return answer

        world.group_calls.FetchOffsets = with_one_that_is_gone
        world.lab.stop(1)
        _, found = await world.engines.groups.lag("g")
        assert [(one.partition.topic, one.lag, one.error and one.error.code) for one in found] == [
            ("gone", None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", None, ErrorCode.LEADER_NOT_AVAILABLE),
            ("t", 1, None),
        ]

    async def test_a_batch_that_cannot_be_read_is_named_and_the_others_are_told(self, world: World) -> None:
        """A sound header around columns that are none, as a broker took them before it looked."""
        await world.make_shards()
        await world.commit("g", {T0: 20, T1: 899})
        fetch = world.brokers.fetch

        async def poisoned(broker: NodeId, request: broker_pb2.FetchRequest) -> broker_pb2.FetchResponse:
            answer = await fetch(broker, request)
            for got in answer.partitions:
                if got.partition == 0:
                    good = bytes(got.batches[0])
                    bad = replace_header(good[:64] + b"k" * (len(good) - 64), read_header(good))
                    del got.batches[:]
                    got.batches.append(bad)
            return answer

        world.brokers.fetch = poisoned
        _, (zero, one) = await world.engines.groups.lag("g")
        assert (zero.lag, zero.lag_ms, one.lag, one.error) == (480, None, 1, None)
        assert one.lag_ms is not None
        assert str(zero.error).startswith("t-0@20: column 107 was written by a newer version")
        assert "consumers stop here" in str(zero.error)

    async def test_many_lookups_of_ages_at_once_are_refused_and_not_queued(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 495})
        fetch, gate, waiting = world.brokers.fetch, asyncio.Event(), 0

        async def slow(*given: object) -> object:
            nonlocal waiting
            waiting += 1
            await gate.wait()
            return await fetch(*given)  # passed on as they came

        world.brokers.fetch = slow  # it takes its time
        running = [asyncio.ensure_future(world.engines.groups.lag("g")) for _ in range(AGES_AT_ONCE_MAX)]
        while waiting < AGES_AT_ONCE_MAX:
            await asyncio.sleep(0.001)
        with pytest.raises(Overloaded):
            await world.engines.groups.lag("g")
        _, (without,) = await world.engines.groups.lag("g", ages=False)
        gate.set()
        for _, (one,) in await asyncio.gather(*running):
            assert (one.lag, one.lag_ms is None) == (without.lag, False)
        assert (await world.engines.groups.lag("g"))[1][0].lag_ms is not None

    async def test_some_topics_and_without_ages(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 20, U0: 0})
        _, found = await world.engines.groups.lag("g", ["t"], ages=False)
        assert [(one.partition, one.lag, one.lag_ms) for one in found] == [(T0, 480, None)]

    async def test_a_member_that_has_committed_nothing_yet_has_no_lag(self, world: World) -> None:
        await world.make_shards()
        async with await world.join("g", "u"):
            _, (one,) = await world.engines.groups.lag("g")
        assert (one.partition, one.committed, one.lag, one.lag_ms) == (U0, None, None, None)


class TestReset:
    async def test_a_plan_changes_nothing_and_its_execution_does(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 495, T1: 2})
        reset = await world.engines.resets.reset("g", [], Earliest(), execute=False)
        assert [(m.planned.old, m.planned.new) for m in reset.moved] == [(495, 10), (2, 0)]
        assert (reset.executed, await world.committed("g")) == (False, {T0: 495, T1: 2})
        done = await world.engines.resets.reset("g", [], Earliest(), execute=True)
        assert (done.executed, await world.committed("g")) == (True, {T0: 10, T1: 0})

    async def test_times_are_looked_up_at_the_leaders(self, world: World) -> None:
        await world.make_shards()
        since = Since(TIME_ZERO_MS + 499_500)
        reset = await world.engines.resets.reset("g", [("t", [])], since, execute=True)
        assert await world.committed("g") == {T0: 500, T1: 500}
        assert [m.planned.note is None for m in reset.moved] == [False, True]
        await world.engines.resets.reset("g", [("t", [1])], Ago(200_000), execute=True)
        assert (await world.committed("g"))[T1] == 801

    async def test_a_new_group_is_made_and_its_topic_too(self, world: World) -> None:
        planned = await world.engines.resets.reset("new", [("t", [1])], Latest(), execute=False)
        assert planned.new_group
        assert world.image.topic(INTERNAL_TOPICS[ShardKind.GROUPS]) is None, "a plan makes nothing"
        done = await world.engines.resets.reset("new", [("t", [1])], Latest(), execute=True)
        assert (done.new_group, await world.committed("new")) == (True, {T1: 900})

    async def test_members_are_named_and_nothing_is_changed(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 20})
        async with await world.join("g", "t"):
            with pytest.raises(NonEmptyGroup, match=r"1 members \(reader at 127.0.0.1:\d+\); stop"):
                await world.engines.resets.reset("g", [], Earliest(), execute=True)
            assert await world.committed("g") == {T0: 20}
            assert (await world.engines.resets.reset("g", [], Earliest(), execute=False)).members == 1
        await world.engines.resets.reset("g", [], Earliest(), execute=True)
        assert await world.committed("g") == {T0: 10}

    async def test_a_member_that_joins_meanwhile_is_a_member_too(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 20})
        find = world.broker_calls.ListOffsets
        async with AsyncExitStack() as members:

            async def joins(*given: object) -> object:
                world.broker_calls.ListOffsets = find  # once
                await members.enter_async_context(await world.join("g", "t"))
                return await find(*given)  # passed on as they came

            world.broker_calls.ListOffsets = joins
            with pytest.raises(NonEmptyGroup, match="has members; stop"):
                await world.engines.resets.reset("g", [], Earliest(), execute=True)
            assert await world.committed("g") == {T0: 20}

    async def test_a_lost_answer_is_asked_for_again(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 20})
        for api in ("describe_groups", "fetch_offsets", "commit_offsets"):
            world.lab.inject(api, Fault(Does.DROP, after=True))
        done = await world.engines.resets.reset("g", [], At(77), execute=True)
        assert [m.error for m in done.moved] == [None]
        assert not any(world.lab.faults.queued.values())
        assert await world.committed("g") == {T0: 77}

    async def test_what_cannot_be_known_changes_nothing(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 20, T1: 30})
        with pytest.raises(UnknownTopicOrPartition):
            await world.engines.resets.reset("g", [("nope", [])], Latest(), execute=True)
        with pytest.raises(Rejected, match="name no topics"):
            await world.engines.resets.reset("g", [("t", [])], Given({T0: 11}), execute=True)
        world.lab.stop(1)
        with pytest.raises(LeaderNotAvailable, match="t-0"):
            await world.engines.resets.reset("g", [], ShiftBy(-1), execute=True)
        assert await world.committed("g") == {T0: 20, T1: 30}

    async def test_many_partitions_are_committed_in_several_parts(self, world: World, small_parts: None) -> None:
        await world.make_shards()
        world.lab.create_topic("wide", 25)
        await world.engines.resets.reset("g", [("wide", [])], Latest(), execute=True)
        assert len(await world.committed("g")) == 25
        assert world.lab.faults.asked.count("commit_offsets") == 3

    async def test_a_part_that_fails_later_says_so_for_each_of_its_partitions(
        self, world: World, small_parts: None
    ) -> None:
        world.lab.create_topic("wide", 15)
        commit = world.group_calls.CommitOffsets
        async with AsyncExitStack() as members:

            async def once(*given: object) -> object:
                if await world.committed("g"):
                    await members.enter_async_context(await world.join("g", "u"))
                return await commit(*given)  # passed on as they came

            world.group_calls.CommitOffsets = once  # something happens meanwhile
            done = await world.engines.resets.reset("g", [("wide", [])], Latest(), execute=True)
        assert sum(m.error is None for m in done.moved) == 10
        assert {m.error.code for m in done.moved if m.error is not None} == {ErrorCode.UNKNOWN_MEMBER_ID}


class TestForgetting:
    async def test_groups_each_by_itself(self, world: World) -> None:
        await world.make_shards()
        await world.commit("old", {T0: 20})
        async with await world.join("busy", "t"):
            done = await world.engines.groups.delete(["old", "busy", "nope"])
            assert [type(e) for e in done.values()] == [type(None), NonEmptyGroup, GroupNotFound]
            assert [g.group.group_id for g in (await world.engines.groups.listing()).groups] == ["busy"]
        with pytest.raises(Rejected, match="twice"):
            await world.engines.groups.delete(["a", "a"])

    async def test_a_deletion_whose_answer_was_lost_is_not_repeated(self, world: World) -> None:
        await world.make_shards()
        await world.commit("old", {T0: 20})
        world.lab.inject("delete_groups", Fault(Does.DROP, after=True))
        done = await world.engines.groups.delete(["old"])
        assert isinstance(done["old"], NetworkFailed), "the second answer would be that there is no such group"
        assert world.lab.faults.asked.count("delete_groups") == 1

    async def test_offsets_of_a_topic_or_of_a_partition(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 20, T1: 30, U0: 0})
        assert await world.engines.groups.delete_offsets("g", [("t", [1])]) == {T1: None}
        assert await world.engines.groups.delete_offsets("g", [("u", [])]) == {U0: None}
        assert await world.committed("g") == {T0: 20}
        with pytest.raises(NotFound, match="committed nothing in 'u'"):
            await world.engines.groups.delete_offsets("g", [("u", [])])
        with pytest.raises(Rejected, match="name the topics"):
            await world.engines.groups.delete_offsets("g", [])

    async def test_offsets_that_members_need_stay(self, world: World) -> None:
        await world.make_shards()
        await world.commit("g", {T0: 20, U0: 0})
        async with await world.join("g", "t"):
            with pytest.raises(HeadraceError, match="stop it") as refused:
                await world.engines.groups.delete_offsets("g", [("t", [])])
            assert refused.value.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            done = await world.engines.groups.delete_offsets("g", [("t", []), ("u", [])])
            assert [e is None for _, e in sorted(done.items())] == [False, True]
            assert await world.committed("g") == {T0: 20}
