"""Consumer groups over coordinators and brokers in memory: who is asked, how often, and what is made of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from libs.common.tests.kit.clock import FakeClock
from services.admin.tests.twin.memory_cluster import MemoryCluster
from services.admin.tests.twin.memory_coordinators import MemoryCoordinators
from services.admin.tests.twin.memory_reading import TIME_ZERO_MS

from headrace_admin.core.resets import At, Earliest, Given, Latest, ShiftBy, Since
from headrace_admin.engine.coordination import Coordination
from headrace_admin.engine.groups import AGES_AT_ONCE_MAX, Groups
from headrace_admin.engine.log_offsets import LogOffsets
from headrace_admin.engine.resets import Ago, Resets
from headrace_common.core.batch import build_gap_batch, read_header
from headrace_common.core.batch.header import rewritten
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
from headrace_common.core.ids import NodeId, PartitionId, TopicPartition
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_proto.v1 import broker_pb2, coordinator_pb2
from headrace_proto.v1 import controller_pb2 as pb

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Hurried(FakeClock):
    """Waiting moves the time."""

    async def sleep_ms(self, ms: float) -> None:
        self._move_to(self._monotonic_ms + ms)
        await asyncio.sleep(0)


@dataclass
class World:
    cluster: MemoryCluster
    coordinators: MemoryCoordinators
    groups: Groups
    resets: Resets
    clock: FakeClock

    def holds(self, partition: int, start: int, end: int, topic: str = "t") -> None:
        i = PartitionId(self.cluster.image.topic_ids[topic], partition)
        self.cluster.starts[i], self.cluster.ends[i] = start, end


@pytest.fixture
async def world() -> World:
    cluster, clock = MemoryCluster(), Hurried()
    await cluster.create_topics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partition_count=2)]))
    cluster.start_coordinators(1, 2)
    coordinators = MemoryCoordinators(cluster)
    coordination = Coordination(ShardKind.GROUPS, cluster, cluster, clock)
    groups = Groups(cluster, coordinators, coordination, LogOffsets(cluster, cluster), clock)
    made = World(cluster, coordinators, groups, Resets(groups, clock), clock)
    made.holds(0, 10, 500)
    made.holds(1, 0, 900)
    return made


class TestListing:
    async def test_looking_makes_nothing(self, world: World) -> None:
        assert (await world.groups.listing()).groups == ()
        described = await world.groups.describe(["g"])
        assert isinstance(described["g"], GroupNotFound)
        assert isinstance((await world.groups.delete(["g"]))["g"], GroupNotFound)
        with pytest.raises(GroupNotFound):
            await world.groups.lag("g")
        assert world.cluster.image.topic(INTERNAL_TOPICS[ShardKind.GROUPS]) is None

    async def test_all_coordinators_are_merged_by_id(self, world: World) -> None:
        world.cluster.make_shards()
        for n in range(9):
            world.coordinators.commit(f"g{n}", {("t", 0): 5})
        world.coordinators.join("g3", "m", {"t": [0]})
        listing = await world.groups.listing()
        assert [g.group.group_id for g in listing.groups] == [f"g{n}" for n in range(9)]
        assert {g.coordinator for g in listing.groups} == {1, 2}
        assert listing.unanswered == ()
        stable = await world.groups.listing([coordinator_pb2.STABLE])
        assert [g.group.group_id for g in stable.groups] == ["g3"]

    async def test_shards_that_cannot_answer_are_named_with_the_reason(self, world: World) -> None:
        world.cluster.make_shards()  # shards 0 and 2 at coordinator 1, 1 and 3 at 2
        world.coordinators.down.add(2)
        world.coordinators.loading.add(0)
        world.cluster.give_shard(2, -1)
        missing = (await world.groups.listing()).unanswered
        assert [(u.shard, u.coordinator, type(u.error)) for u in missing] == [
            (0, 1, CoordinatorLoading),
            (1, 2, NetworkFailed),
            (2, None, CoordinatorNotAvailable),
            (3, 2, NetworkFailed),
        ]

    async def test_what_nobody_has_made_is_not_waited_for(self, world: World) -> None:
        assert (await world.groups.listing()).groups == ()
        await world.groups.describe(["g"])
        with pytest.raises(UnknownTopicOrPartition):
            await world.resets.reset("g", [("nosuch", [])], Earliest(), execute=False)
        assert world.cluster.waits == 0


class TestDescribing:
    async def test_each_group_at_its_coordinator_or_its_error(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.join("a", "m1", {"t": [0, 1]})
        world.coordinators.commit("b", {("t", 0): 1})
        found = await world.groups.describe(["a", "nope", "b"])
        assert list(found) == ["a", "nope", "b"]
        a = found["a"]
        assert not isinstance(a, HeadraceError)
        assert (a.members[0].client_id, list(a.members[0].assigned[0].partitions)) == ("app", [0, 1])
        assert isinstance(found["nope"], GroupNotFound)
        assert world.coordinators.asked.count("describe_groups") == len({*map(world.cluster.coordinator_of, found)})

    async def test_a_shard_that_moves_is_followed(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("a", {("t", 0): 1})
        shard = world.cluster.shard_of("a")
        world.cluster.give_shard(shard, -1)

        async def moved() -> None:
            while world.clock.monotonic_ms() < 2_000:
                await asyncio.sleep(0)
            world.cluster.give_shard(shard, 2)

        found, _ = await asyncio.gather(world.groups.describe(["a"]), moved())
        assert not isinstance(found["a"], HeadraceError)

    async def test_waiting_for_a_coordinator_has_an_end(self, world: World) -> None:
        world.cluster.make_shards()
        world.cluster.give_shard(world.cluster.shard_of("a"), -1)
        found = await world.groups.describe(["a"])
        assert isinstance(found["a"], CoordinatorNotAvailable)
        assert world.clock.monotonic_ms() == 15_000

    async def test_another_broker_is_asked_where_one_is_silent(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("a", {("t", 0): 1})
        world.cluster.down.add(1)
        assert not isinstance((await world.groups.describe(["a"]))["a"], HeadraceError)

    async def test_bounds(self, world: World) -> None:
        for ids in ([], ["g"] * 1_001):
            with pytest.raises(Rejected, match="1 to 1000"):
                await world.groups.describe(ids)


class TestLag:
    async def test_in_records_and_in_time(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.join("g", "m1", {"t": [0]}, client="reader")
        world.coordinators.commit("g", {T0: 495, T1: 900})
        _, (zero, one) = await world.groups.lag("g")
        assert (zero.lag, one.lag) == (5, 0)
        written = TIME_ZERO_MS + 495_000
        assert (zero.lag_ms, one.lag_ms) == (world.clock.now_ms() - written, 0)
        assert zero.owner is not None
        assert (zero.owner.client_id, one.owner) == ("reader", None)
        assert zero.committed is not None
        assert zero.committed.committed_at_ms == 1_700_000_000_000

    async def test_what_was_trimmed_is_not_to_be_read_any_more(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 3})
        _, (zero,) = await world.groups.lag("g")
        assert (zero.lag, zero.lag_ms) == (490, world.clock.now_ms() - TIME_ZERO_MS - 10_000)

    async def test_the_age_of_compacted_partitions_is_that_of_the_first_record_that_is_left(self, world: World) -> None:
        """What is unread may begin with gaps, one in each segment of which nothing is left."""
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 20, T1: 899})
        fetch, asked = world.cluster.fetch, list[int]()

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

        world.cluster.fetch = compacted
        _, (zero, one) = await world.groups.lag("g")
        assert (zero.lag, zero.lag_ms) == (480, world.clock.now_ms() - TIME_ZERO_MS - 495_000)
        assert (one.lag, one.lag_ms is None) == (1, False)
        assert asked == [20, 23, 323], "one at first, then many at once"

    async def test_partitions_that_cannot_be_asked_say_why_and_the_others_are_told(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 20, T1: 899, ("gone", 0): 4})
        world.cluster.lead("t", 0, -1)
        _, found = await world.groups.lag("g")
        assert [(one.partition.topic, one.lag, one.error and one.error.code) for one in found] == [
            ("gone", None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", None, ErrorCode.LEADER_NOT_AVAILABLE),
            ("t", 1, None),
        ]

    async def test_a_batch_that_cannot_be_read_is_named_and_the_others_are_told(self, world: World) -> None:
        """A sound header around columns that are none, as a broker took them before it looked."""
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 20, T1: 899})
        fetch = world.cluster.fetch

        async def poisoned(broker: NodeId, request: broker_pb2.FetchRequest) -> broker_pb2.FetchResponse:
            answer = await fetch(broker, request)
            for got in answer.partitions:
                if got.partition == 0:
                    good = bytes(got.batches[0])
                    bad = rewritten(good[:64] + b"k" * (len(good) - 64), read_header(good))
                    del got.batches[:]
                    got.batches.append(bad)
            return answer

        world.cluster.fetch = poisoned
        _, (zero, one) = await world.groups.lag("g")
        assert (zero.lag, zero.lag_ms, one.lag, one.error) == (480, None, 1, None)
        assert one.lag_ms is not None
        assert str(zero.error).startswith("t-0@20: column 107 was written by a newer version")
        assert "consumers stop here" in str(zero.error)

    async def test_many_lookups_of_ages_at_once_are_refused_and_not_queued(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 495})
        fetch, gate, waiting = world.cluster.fetch, asyncio.Event(), 0

        async def slow(*given: object) -> object:
            nonlocal waiting
            waiting += 1
            await gate.wait()
            return await fetch(*given)  # passed on as they came

        world.cluster.fetch = slow  # it takes its time
        running = [asyncio.ensure_future(world.groups.lag("g")) for _ in range(AGES_AT_ONCE_MAX)]
        while waiting < AGES_AT_ONCE_MAX:
            await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await world.groups.lag("g")
        _, (without,) = await world.groups.lag("g", ages=False)
        gate.set()
        for _, (one,) in await asyncio.gather(*running):
            assert (one.lag, one.lag_ms is None) == (without.lag, False)
        assert (await world.groups.lag("g"))[1][0].lag_ms is not None

    async def test_some_topics_and_without_ages(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 20, ("gone", 0): 4})
        _, found = await world.groups.lag("g", ["t"], ages=False)
        assert [(one.partition, one.lag, one.lag_ms) for one in found] == [(T0, 480, None)]

    async def test_a_member_that_has_committed_nothing_yet_has_no_lag(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.join("g", "m", {"t": [1]})
        _, (one,) = await world.groups.lag("g")
        assert (one.partition, one.committed, one.lag, one.lag_ms) == (T1, None, None, None)


class TestReset:
    async def test_a_plan_changes_nothing_and_its_execution_does(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 495, T1: 2})
        reset = await world.resets.reset("g", [], Earliest(), execute=False)
        assert [(m.planned.old, m.planned.new) for m in reset.moved] == [(495, 10), (2, 0)]
        assert (reset.executed, world.coordinators.committed("g")) == (False, {T0: 495, T1: 2})
        done = await world.resets.reset("g", [], Earliest(), execute=True)
        assert (done.executed, world.coordinators.committed("g")) == (True, {T0: 10, T1: 0})

    async def test_times_are_looked_up_at_the_leaders(self, world: World) -> None:
        world.cluster.make_shards()
        since = Since(TIME_ZERO_MS + 499_500)
        reset = await world.resets.reset("g", [("t", [])], since, execute=True)
        assert world.coordinators.committed("g") == {T0: 500, T1: 500}
        assert [m.planned.note is None for m in reset.moved] == [False, True]
        await world.resets.reset("g", [("t", [1])], Ago(200_000), execute=True)
        assert world.coordinators.committed("g")[T1] == 800

    async def test_a_new_group_is_made_and_its_topic_too(self, world: World) -> None:
        planned = await world.resets.reset("new", [("t", [1])], Latest(), execute=False)
        assert planned.new_group
        assert world.cluster.image.topic(INTERNAL_TOPICS[ShardKind.GROUPS]) is None, "a plan makes nothing"
        done = await world.resets.reset("new", [("t", [1])], Latest(), execute=True)
        assert (done.new_group, world.coordinators.committed("new")) == (True, {T1: 900})

    async def test_members_are_named_and_nothing_is_changed(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.join("g", "m1", {"t": [0]}, client="reader")
        world.coordinators.commit("g", {T0: 20})
        with pytest.raises(NonEmptyGroup, match=r"1 members \(reader at 10.0.0.7:4711\); stop"):
            await world.resets.reset("g", [], Earliest(), execute=True)
        assert world.coordinators.committed("g") == {T0: 20}
        assert (await world.resets.reset("g", [], Earliest(), execute=False)).members == 1
        world.coordinators.leave("g", "m1")
        await world.resets.reset("g", [], Earliest(), execute=True)
        assert world.coordinators.committed("g") == {T0: 10}

    async def test_a_member_that_joins_meanwhile_is_a_member_too(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 20})
        find = world.cluster.list_offsets

        async def joins(*given: object) -> object:
            world.coordinators.join("g", "late", {"t": [0]})
            return await find(*given)  # passed on as they came

        world.cluster.list_offsets = joins  # something happens meanwhile
        with pytest.raises(NonEmptyGroup, match="has members; stop"):
            await world.resets.reset("g", [], Earliest(), execute=True)
        assert world.coordinators.committed("g") == {T0: 20}

    async def test_a_lost_answer_is_asked_for_again(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 20})
        world.coordinators.lost = 3
        done = await world.resets.reset("g", [], At(77), execute=True)
        assert [m.error for m in done.moved] == [None]
        assert world.coordinators.committed("g") == {T0: 77}

    async def test_what_cannot_be_known_changes_nothing(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 20, T1: 30})
        with pytest.raises(UnknownTopicOrPartition):
            await world.resets.reset("g", [("nope", [])], Latest(), execute=True)
        with pytest.raises(Rejected, match="name no topics"):
            await world.resets.reset("g", [("t", [])], Given({T0: 11}), execute=True)
        world.cluster.lead("t", 0, -1)
        with pytest.raises(LeaderNotAvailable, match="t-0"):
            await world.resets.reset("g", [], ShiftBy(-1), execute=True)
        assert world.coordinators.committed("g") == {T0: 20, T1: 30}

    async def test_many_partitions_are_committed_in_several_parts(self, world: World) -> None:
        new = pb.NewTopic(name="wide", partition_count=2_500)
        await world.cluster.create_topics(pb.CreateTopicsRequest(topics=[new]))
        await world.resets.reset("g", [("wide", [])], Latest(), execute=True)
        assert len(world.coordinators.committed("g")) == 2_500
        assert world.coordinators.asked.count("commit_offsets") == 3

    async def test_a_part_that_fails_later_says_so_for_each_of_its_partitions(self, world: World) -> None:
        new = pb.NewTopic(name="wide", partition_count=1_500)
        await world.cluster.create_topics(pb.CreateTopicsRequest(topics=[new]))
        commit = world.coordinators.commit_offsets

        async def once(*given: object) -> object:
            world.coordinators.join("g", "late", {"wide": [0]}) if world.coordinators.committed("g") else None
            return await commit(*given)  # passed on as they came

        world.coordinators.commit_offsets = once  # something happens meanwhile
        done = await world.resets.reset("g", [("wide", [])], Latest(), execute=True)
        assert sum(m.error is None for m in done.moved) == 1_000
        assert {m.error.code for m in done.moved if m.error is not None} == {ErrorCode.UNKNOWN_MEMBER_ID}


class TestForgetting:
    async def test_groups_each_by_itself(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("old", {T0: 20})
        world.coordinators.join("busy", "m", {"t": [0]})
        done = await world.groups.delete(["old", "busy", "nope"])
        assert [type(e) for e in done.values()] == [type(None), NonEmptyGroup, GroupNotFound]
        assert [g.group.group_id for g in (await world.groups.listing()).groups] == ["busy"]
        with pytest.raises(Rejected, match="twice"):
            await world.groups.delete(["a", "a"])

    async def test_a_deletion_whose_answer_was_lost_is_not_repeated(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("old", {T0: 20})
        world.coordinators.lost = 1
        done = await world.groups.delete(["old"])
        assert isinstance(done["old"], NetworkFailed), "the second answer would be that there is no such group"
        assert world.coordinators.asked.count("delete_groups") == 1

    async def test_offsets_of_a_topic_or_of_a_partition(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.commit("g", {T0: 20, T1: 30, ("gone", 3): 4})
        assert await world.groups.delete_offsets("g", [("t", [1])]) == {T1: None}
        assert await world.groups.delete_offsets("g", [("gone", [])]) == {TopicPartition("gone", 3): None}
        assert world.coordinators.committed("g") == {T0: 20}
        with pytest.raises(NotFound, match="committed nothing in 'gone'"):
            await world.groups.delete_offsets("g", [("gone", [])])
        with pytest.raises(Rejected, match="name the topics"):
            await world.groups.delete_offsets("g", [])

    async def test_offsets_that_members_need_stay(self, world: World) -> None:
        world.cluster.make_shards()
        world.coordinators.join("g", "m", {"t": [0]})
        world.coordinators.commit("g", {T0: 20, ("other", 0): 1})
        with pytest.raises(HeadraceError, match="stop it") as refused:
            await world.groups.delete_offsets("g", [("t", [])])
        assert refused.value.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        done = await world.groups.delete_offsets("g", [("t", []), ("other", [])])
        assert [e is None for _, e in sorted(done.items())] == [True, False]
        assert world.coordinators.committed("g") == {T0: 20}
