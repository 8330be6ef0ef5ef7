"""Replication as the active controller runs it: ISR changes, recovery, commands, moves; over a memory store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from services.controller.tests.kit.dialogue import Cell, broker, cell

from headrace_common.core.errors import (
    ErrorCode,
    HeadraceError,
    IneligibleReplica,
    InvalidReplicaAssignment,
    NotController,
    NotFound,
    Rejected,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition, ReplicaRemoval
from headrace_controller.core.isr_changes import Proposal
from headrace_controller.core.leadership import Election
from headrace_controller.core.settings import Alteration, BrokerResource, Op, TopicResource
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ProbeResult


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


async def ready(world: Cell, brokers: int = 3) -> ControllerEngine:
    engine = await world.active()
    for n in range(1, brokers + 1):
        await world.join(engine, broker(n))
    return engine


def epoch_of(engine: ControllerEngine, number: int) -> int:
    return engine.image.nodes[broker(number).key].epoch


def proposal(engine: ControllerEngine, partition: Partition, *members: int) -> Proposal:
    isr = {NodeId(m): None if m in partition.isr else epoch_of(engine, m) for m in members}
    return Proposal(partition.id, partition.leader_epoch, partition.partition_epoch, isr)


async def propose(engine: ControllerEngine, partition: Partition, *members: int) -> Partition | HeadraceError:
    leader = partition.leader
    asked = [proposal(engine, partition, *members)]
    return (await engine.alter_partitions(leader, epoch_of(engine, leader), asked))[0]


async def kill(engine: ControllerEngine, *numbers: int) -> None:
    term = engine.candidate.term
    assert term is not None
    for n in numbers:
        await term.nodes.fence(broker(n).key, "the test killed it", epoch=epoch_of(engine, n))


async def back(world: Cell, engine: ControllerEngine, number: int, start: int, **claims: object) -> None:
    """The broker starts anew after a crash."""
    world.probe.results[broker(number).key] = ProbeResult.REFUSED
    await world.join(engine, broker(number, start=start), **claims)
    world.probe.results.pop(broker(number).key)


class TestIsrChanges:
    async def test_many_are_written_in_chunks_and_answered_one_by_one(self, world: Cell) -> None:
        engine = await ready(world, 2)
        await world.create(engine, "t", 500, 2)
        led = [p for p in engine.image.partitions.values() if p.leader == 1]
        before = world.store.commits
        asked = [proposal(engine, p, 1) for p in led[:-1]] + [proposal(engine, led[-1], 2)]
        results = await engine.alter_partitions(NodeId(1), epoch_of(engine, 1), asked)
        assert world.store.commits - before == 3
        assert all(isinstance(r, Partition) and (r.isr, r.elr) == (ids(1), ()) for r in results[:-1])
        assert isinstance(results[-1], Rejected)

    async def test_a_lost_answer_asked_again_is_done(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 1, 3)
        old = world.partition(engine, "t")
        world.store.answers_lost = 1
        first = await propose(engine, old, old.leader)
        again = await engine.alter_partitions(
            old.leader, epoch_of(engine, old.leader), [proposal(engine, old, old.leader)]
        )
        assert first == again[0] == world.partition(engine, "t")

    async def test_only_a_current_broker_and_only_the_active_controller(self, world: Cell) -> None:
        first, second = await ready(world), await world.controller(2)
        await world.create(first, "t", 1, 3)
        old = world.partition(first, "t")
        asked = [proposal(first, old, old.leader)]
        with pytest.raises(StaleBrokerEpoch):
            await first.alter_partitions(old.leader, epoch_of(first, old.leader) - 1, asked)
        with pytest.raises(NotController):
            await second.alter_partitions(old.leader, epoch_of(first, old.leader), asked)
        gone = Proposal(PartitionId(TopicId(b"x" * 16), 0), 0, 0, {old.leader: None})
        (result,) = await first.alter_partitions(old.leader, epoch_of(first, old.leader), [gone])
        assert isinstance(result, UnknownTopicOrPartition)

    async def test_a_zombie_s_isr_changes_and_moves_change_nothing(self, world: Cell) -> None:
        """The first was paused; the second is elected; the first still believes."""
        first, second = await ready(world), await world.controller(2)
        await world.create(first, "t", 150, 3)
        led = [p for p in first.image.partitions.values() if p.leader == 1]
        await world.store.revoke_lease(first.candidate._lease)
        await world.until(lambda: second.candidate.term is not None, ms=500)
        zombie = first.candidate.term
        assert zombie is not None
        revision = world.store.revision
        with pytest.raises(NotController):
            await zombie.isr_changes.alter(NodeId(1), [proposal(first, p, 1) for p in led])
        with pytest.raises(NotController):
            await zombie.reassignments.alter({led[0].id: ids(2)}, validate_only=False)
        with pytest.raises(NotController):
            await zombie.nodes.drain(NodeId(1), drained=True)
        assert world.store.revision == revision

    async def test_who_was_started_anew_joins_only_with_its_new_epoch(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 1, 3)
        leader = world.partition(engine, "t").leader
        other = next(n for n in (1, 2, 3) if n != leader)
        stale = epoch_of(engine, other)
        await back(world, engine, other, start=1)
        now = world.partition(engine, "t")
        assert other not in now.isr
        asked = Proposal(now.id, now.leader_epoch, now.partition_epoch, {leader: None, NodeId(other): stale})
        (refused,) = await engine.alter_partitions(leader, epoch_of(engine, leader), [asked])
        assert isinstance(refused, IneligibleReplica)
        joined = await propose(engine, now, leader, other)
        assert isinstance(joined, Partition)
        assert set(joined.isr) == {leader, other}


class TestRecovery:
    async def test_all_replicas_died_and_the_longest_log_leads(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 1, 3)
        id = world.partition(engine, "t").id
        await kill(engine, 1, 2, 3)
        await world.until(lambda: world.partition(engine, "t").offline)
        eligible = world.partition(engine, "t").elr
        assert len(eligible) == 2
        for n in (1, 2, 3):
            world.log_ends.ends[NodeId(n)] = {id: (3, 100 + n)}
        world.log_ends.silent.add(eligible[0])
        first, second, third = eligible[0], eligible[1], ({1, 2, 3} - set(eligible)).pop()
        await back(world, engine, third, start=1)
        await back(world, engine, first, start=1)
        await world.pass_ms(1_000)
        assert world.partition(engine, "t").offline, "one is missing"
        assert not world.log_ends.asked
        await back(world, engine, second, start=1)
        await world.pass_ms(1_000)
        assert world.partition(engine, "t").offline, "one has not answered"
        world.log_ends.silent.clear()
        await world.until(lambda: not world.partition(engine, "t").offline)
        now = world.partition(engine, "t")
        assert (now.leader, now.isr, now.last_known_elr, now.recovering) == (max(eligible), (max(eligible),), (), False)
        assert engine.gauges()["balanced_recoveries"] == 1
        assert engine.gauges()["unclean_elections"] == 0

    async def test_an_answer_counts_only_for_the_process_that_gave_it(self, world: Cell) -> None:
        """It was started anew after it had said where its log ends, and that start cost it records."""
        engine = await ready(world)
        await world.create(engine, "t", 1, 3)
        id = world.partition(engine, "t").id
        await kill(engine, 1, 2, 3)
        await world.until(lambda: len(world.partition(engine, "t").elr) == 2)
        one, other = world.partition(engine, "t").elr
        world.log_ends.open.clear()
        world.log_ends.ends = {one: {id: (3, 20)}, other: {id: (3, 10)}}
        await back(world, engine, one, start=1)
        await back(world, engine, other, start=1)
        await world.until(lambda: len(world.log_ends.asked) == 2)
        world.log_ends.ends[one] = {id: (3, 5)}
        await back(world, engine, one, start=2)
        world.log_ends.open.set()
        await world.until(lambda: not world.partition(engine, "t").offline)
        assert world.partition(engine, "t").leader == other

    async def test_a_wiped_disk_never_leads_and_an_operator_decides(self, world: Cell) -> None:
        engine = await ready(world, 1)
        await world.create(engine, "t", 2)
        await kill(engine, 1)
        await back(world, engine, 1, start=1, cluster_id=None)
        await world.pass_ms(2_000)
        down = world.partition(engine, "t")
        assert (down.offline, down.last_known_elr) == (True, ())
        id = down.id
        outcomes = await engine.elect(Election.WITHOUT_MISSING, [id])
        assert [getattr(r, "code", None) for _, r in outcomes] == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
        outcomes = await engine.elect(Election.UNCLEAN, [id])
        now = world.partition(engine, "t")
        assert outcomes == [(id, now)]
        assert (now.leader, now.recovering) == (1, True)
        assert engine.gauges()["unclean_elections"] == 1
        assert engine.describe_cluster().health.recovering == 1

    async def test_a_log_that_is_not_there_never_leads(self, world: Cell) -> None:
        engine = await ready(world, 1)
        await world.create(engine, "t")
        world.log_ends.ends[NodeId(1)] = {}
        await back(world, engine, 1, start=1)
        await world.pass_ms(3_000)
        assert world.partition(engine, "t").last_known_elr == (1,)
        assert world.partition(engine, "t").offline

    async def test_without_missing_gives_up_who_is_away(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 1, 3)
        await kill(engine, 1, 2, 3)
        await world.until(lambda: len(world.partition(engine, "t").elr) == 2)
        one = world.partition(engine, "t").elr[0]
        await back(world, engine, one, start=1)
        id = world.partition(engine, "t").id
        ((_, now),) = await engine.elect(Election.WITHOUT_MISSING, [id])
        assert isinstance(now, Partition)
        assert (now.leader, now.isr, now.recovering) == (one, (one,), True)
        ((_, refused),) = await engine.elect(Election.WITHOUT_MISSING, [id])
        assert isinstance(refused, HeadraceError)
        assert refused.code == ErrorCode.ELECTION_NOT_NEEDED
        await back(world, engine, one % 3 + 1, start=1)
        joined = await propose(engine, now, one, one % 3 + 1)
        assert isinstance(joined, Partition)
        assert joined.recovering, "the third is still missing"
        assert engine.gauges()["unclean_elections"] == 1
        third = (one + 1) % 3 + 1
        await back(world, engine, third, start=1)
        now = world.partition(engine, "t")
        whole = await propose(engine, now, one, *now.isr, third)
        assert isinstance(whole, Partition)
        assert (set(whole.isr), whole.recovering) == ({1, 2, 3}, False)

    async def test_giving_up_needs_names(self, world: Cell) -> None:
        engine = await ready(world)
        with pytest.raises(Rejected, match="name the partitions"):
            await engine.elect(Election.UNCLEAN, ())


class TestPreferredLeaders:
    async def astray(self, world: Cell) -> ControllerEngine:
        """Broker 1 was away; all its leaderships are elsewhere, and it is in sync again."""
        engine = await ready(world)
        await world.create(engine, "t", 30, 3)
        await kill(engine, 1)
        await world.until(lambda: all(p.leader not in {1, NO_NODE} for p in engine.image.partitions.values()))
        await world.join(engine, broker(1), previous_epoch=epoch_of(engine, 1))
        for p in list(engine.image.partitions.values()):
            await propose(engine, p, 1, 2, 3)
        assert engine.describe_cluster().health.not_preferred == 10
        return engine

    async def test_not_because_the_broker_is_back_but_after_the_interval(self, world: Cell) -> None:
        engine = await self.astray(world)
        members = {n: epoch_of(engine, n) for n in (1, 2, 3)}
        await world.beating(engine, members, 60_000)
        assert engine.describe_cluster().health.not_preferred == 10
        await world.beating(engine, members, 245_000)
        assert engine.describe_cluster().health.not_preferred == 0
        assert engine.gauges()["leaders_given_back"] == 10

    async def test_not_where_it_is_switched_off_but_by_command(self, world: Cell) -> None:
        engine = await self.astray(world)
        off = [
            Alteration("auto.leader.rebalance.enable", Op.SET, "false"),
            Alteration("leader.imbalance.check.interval.seconds", Op.SET, "1"),
        ]
        await engine.alter_configs(BrokerResource(None), off, validate_only=False)
        await world.beating(engine, {n: epoch_of(engine, n) for n in (1, 2, 3)}, 5_000)
        assert engine.describe_cluster().health.not_preferred == 10
        outcomes = await engine.elect(Election.PREFERRED, ())
        assert len(outcomes) == 10
        assert engine.describe_cluster().health.not_preferred == 0
        id = world.partition(engine, "t").id
        ((_, refused),) = await engine.elect(Election.PREFERRED, [id])
        assert isinstance(refused, HeadraceError)
        assert refused.code == ErrorCode.ELECTION_NOT_NEEDED

    async def test_a_controlled_stop_moves_leaders_and_shrinks_the_isr_first(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 30, 3)
        vitals = await world.beat(engine, broker(1), epoch_of(engine, 1), want_shutdown=True)
        for p in engine.image.partitions.values():
            assert (p.leader != 1, set(p.isr)) == (True, {2, 3})
        assert not vitals.may_shut_down, "the others have not seen it"
        for n in (2, 3):
            await world.beat(engine, broker(n), epoch_of(engine, n))
        assert (await world.beat(engine, broker(1), epoch_of(engine, 1), want_shutdown=True)).may_shut_down


class TestFullDisks:
    """Brokers that say with their heartbeats that they have no room."""

    async def say(self, world: Cell, engine: ControllerEngine, *crowded: int, ms: int = 3_000) -> None:
        for _ in range(ms // 1_000):
            for n in (1, 2, 3):
                await world.beat(engine, broker(n), epoch_of(engine, n), disk_low=n in crowded)
            await world.pass_ms(1_000)

    def led(self, engine: ControllerEngine) -> list[int]:
        leaders = [p.leader for p in engine.image.partitions.values()]
        return [leaders.count(NodeId(n)) for n in (1, 2, 3)]

    async def test_others_lead_until_there_is_room_and_then_it_leads_again(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 30, 3)
        assert self.led(engine) == [10, 10, 10]
        await self.say(world, engine, 1)
        assert self.led(engine)[0] == 0
        assert all(len(p.isr) == 3 for p in engine.image.partitions.values()), "it stays in sync"
        await self.say(world, engine, 1, ms=400_000)
        assert self.led(engine)[0] == 0, "nothing goes back while it is full"
        await self.say(world, engine, ms=400_000)
        assert self.led(engine) == [10, 10, 10]

    async def test_a_partition_moves_once_in_ten_minutes(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 3, 3)
        await self.say(world, engine, 1, 2)
        assert self.led(engine) == [0, 0, 3]
        epochs = [p.leader_epoch for p in engine.image.partitions.values()]
        await self.say(world, engine, 2, 3)
        assert self.led(engine)[2] >= 2, "what was moved to it stays, though 1 has room now"
        stayed = [p.leader_epoch for p in engine.image.partitions.values()]
        assert sum(now != before for now, before in zip(stayed, epochs, strict=True)) <= 1, "only what it led before"
        await self.say(world, engine, 2, 3, ms=600_000)
        assert self.led(engine) == [3, 0, 0]

    async def test_nobody_has_room(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 6, 3)
        revision = engine.image.revision
        await self.say(world, engine, 1, 2, 3, ms=20_000)
        assert (self.led(engine), engine.image.revision) == ([2, 2, 2], revision)

    async def test_the_next_controller_hears_of_it_with_the_next_heartbeat(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 3, 3)
        await self.say(world, engine, 1)
        assert self.led(engine)[0] == 0
        second = await world.controller(2)
        await engine.candidate.resign()
        await world.until(lambda: second.candidate.term is not None)
        await self.say(world, second, 1, ms=5_000)
        first = next(p.id for p in second.image.partitions.values() if p.replicas[0] == 1)
        [(_, refused)] = await second.elect(Election.PREFERRED, [first])
        assert "without room on its disk" in str(refused)


class TestDrain:
    async def test_leaders_go_and_stay_away_over_restarts(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 30, 3)
        assert await engine.drain(NodeId(1), drained=True) == 0
        assert all(p.leader != 1 and len(p.isr) == 3 for p in engine.image.partitions.values())
        await back(world, engine, 1, start=1)
        assert engine.image.nodes[broker(1).key].drained
        await world.create(engine, "u", 6, 2)
        assert all(1 not in p.replicas for p in engine.describe_topic("u").partitions)  # there
        assert engine.gauges()["drained_brokers"] == 1
        await engine.drain(NodeId(1), drained=False)
        assert not engine.image.nodes[broker(1).key].drained

    async def test_where_nobody_else_can_it_leads_on_and_says_so(self, world: Cell) -> None:
        engine = await ready(world, 2)
        await world.create(engine, "t", 4, 1)
        led = sum(p.leader == 1 for p in engine.image.partitions.values())
        assert led == 2
        assert await engine.drain(NodeId(1), drained=True) == led
        with pytest.raises(NotFound):
            await engine.drain(NodeId(9), drained=True)


class TestReassignment:
    async def test_start_finish_and_the_logs_left_behind(self, world: Cell) -> None:
        engine = await ready(world, 4)
        await engine.create_topic(_by_hand("t", (1, 2, 3)), validate_only=False, timeout_ms=1_000)
        id = world.partition(engine, "t").id
        (on,) = await engine.alter_reassignments({id: ids(4, 2, 3)}, validate_only=False)
        assert isinstance(on, Partition)
        assert (on.replicas, on.adding, on.removing) == (ids(4, 2, 3, 1), ids(4), ids(1))
        assert engine.list_reassignments(()) == engine.list_reassignments([id]) == [on]
        assert engine.describe_cluster().health.reassigning == 1
        await propose(engine, on, 1, 2, 3, 4)
        await world.until(lambda: not engine.list_reassignments(()))
        done = world.partition(engine, "t")
        assert (done.replicas, done.isr, done.leader) == (ids(4, 2, 3), ids(4, 2, 3), 4)
        assert engine.image.removals == {id: ReplicaRemoval(id, ids(1))}
        await engine.confirm_deletions(NodeId(2), epoch_of(engine, 2), (), [id])
        assert engine.image.removals[id].pending == (1,)
        await engine.confirm_deletions(NodeId(1), epoch_of(engine, 1), (), [id])
        assert not engine.image.removals
        standby = await world.controller(2)
        assert standby.image.removals == {}
        assert standby.image.revision == engine.image.revision

    async def test_the_next_controller_finishes_it(self, world: Cell) -> None:
        """The ISR grew, and the controller died before it looked."""
        first = await ready(world, 4)
        await world.create(first, "t", 120, 3)
        targets = {p.id: ids(*({1, 2, 3, 4} - {p.replicas[0]})) for p in first.image.partitions.values()}
        await first.alter_reassignments(targets, validate_only=False)
        term = first.candidate.term
        assert term is not None
        term.settling.reassignments_changed = lambda topics: None  # it dies before it looks
        for leader in (1, 2, 3, 4):
            led = [p for p in first.image.partitions.values() if p.leader == leader]
            asked = [proposal(first, p, *p.replicas) for p in led]
            await first.alter_partitions(NodeId(leader), epoch_of(first, leader), asked)
        assert len(first.list_reassignments(())) == 120
        await first.candidate.resign()
        second = await world.active(2)
        await world.until(lambda: not second.list_reassignments(()))
        assert len(second.image.removals) == 120
        assert all(set(p.replicas) == set(targets[p.id]) for p in second.image.partitions.values())
        assert all(p.leader in p.replicas for p in second.image.partitions.values())

    async def test_who_gets_the_replica_back_is_not_to_delete_it(self, world: Cell) -> None:
        engine = await ready(world)
        await engine.create_topic(_by_hand("t", (1, 2)), validate_only=False, timeout_ms=1_000)
        id = world.partition(engine, "t").id
        await engine.alter_reassignments({id: ids(2)}, validate_only=False)
        assert engine.image.removals[id].pending == (1,)
        await engine.alter_reassignments({id: ids(2, 1)}, validate_only=False)
        assert not engine.image.removals
        (back_again,) = await engine.alter_reassignments({id: ()}, validate_only=False)
        assert isinstance(back_again, Partition)
        assert back_again.replicas == (2,)
        assert engine.image.removals[id].pending == (1,)

    async def test_hundreds_of_replicas_taken_away_at_once(self, world: Cell) -> None:
        """Each brings an order to delete a log along, and fits its transaction."""
        engine = await ready(world)
        await world.create(engine, "t", 350, 3)
        every = list(engine.image.partitions)
        results = await engine.alter_reassignments({i: ids(2) for i in every}, validate_only=False)
        assert all(isinstance(r, Partition) and (r.replicas, r.leader) == (ids(2), 2) for r in results)
        assert {r.pending for r in engine.image.removals.values()} == {ids(1, 3)}
        await engine.alter_reassignments({i: ids(2, 1, 3) for i in every}, validate_only=False)
        assert not engine.image.removals

    async def test_deleting_the_topic_meanwhile_takes_everybody_in(self, world: Cell) -> None:
        engine = await ready(world, 4)
        await engine.create_topic(_by_hand("t", (1, 2), (3, 2)), validate_only=False, timeout_ms=1_000)
        zero, one = (world.partition(engine, "t", n).id for n in (0, 1))
        await engine.alter_reassignments({zero: ids(2), one: ids(4, 2)}, validate_only=False)
        topic = await engine.delete_topic("t")
        await world.until(lambda: not engine.image.removals)
        assert engine.image.deletions[topic.topic_id].pending == (1, 2, 3, 4)
        assert not [i for i in (await world.store.list_all()).items if i.key.startswith(("removals/", "partitions/"))]

    async def test_a_broker_that_leaves_for_good_confirms(self, world: Cell) -> None:
        engine = await ready(world)
        await engine.create_topic(_by_hand("t", (1, 2)), validate_only=False, timeout_ms=1_000)
        id = world.partition(engine, "t").id
        await engine.alter_reassignments({id: ids(2)}, validate_only=False)
        await kill(engine, 1)
        await engine.unregister(broker(1).key)
        assert not engine.image.removals

    async def test_each_is_refused_by_itself_and_validation_changes_nothing(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 3)
        a, b, c = (world.partition(engine, "t", n).id for n in range(3))
        revision = world.store.revision
        wanted = {a: ids(1, 2, 3), b: ids(9), c: (), PartitionId(a.topic_id, 7): ids(1)}
        planned = await engine.alter_reassignments(wanted, validate_only=True)
        assert world.store.revision == revision
        assert isinstance(planned[0], Partition)
        assert set(planned[0].replicas) == {1, 2, 3}
        assert isinstance(planned[1], InvalidReplicaAssignment)
        codes = [getattr(r, "code", None) for r in planned[2:]]
        assert codes == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert [type(r) for r in await engine.alter_reassignments(wanted, validate_only=False)] == [
            type(r) for r in planned
        ]


class TestMinIsr:
    async def test_a_lower_minimum_clears_who_is_eligible_before_anybody_sees_it(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 1, 3)
        await kill(engine, 3)
        await world.until(lambda: 3 not in world.partition(engine, "t").isr)
        await kill(engine, 2)
        await world.until(lambda: world.partition(engine, "t").elr == (2,))
        steps: list[tuple[tuple[NodeId, ...], str | None]] = []

        async def follow() -> None:
            async for _ in engine.watch(None):
                topic = engine.image.topic("t")
                assert topic is not None
                steps.append((world.partition(engine, "t").elr, topic.configs.get("min.insync.replicas")))

        watch = asyncio.create_task(follow())
        await asyncio.sleep(0)
        lower = [Alteration("min.insync.replicas", Op.SET, "1")]
        await engine.alter_configs(TopicResource("t"), lower, validate_only=False)
        await world.until(lambda: steps[-1] == ((), "1"))
        assert ((2,), "1") not in steps
        watch.cancel()


def _by_hand(name: str, *replicas: tuple[int, ...]) -> Wanted:
    return Wanted(name, assignments=tuple(ids(*r) for r in replicas))


async def test_a_registration_of_a_broker_that_holds_nothing_is_no_loss(world: Cell) -> None:
    engine = await world.active()
    joined = await engine.register(Joining(broker(1)))
    assert joined.cluster_id == "c1"
    assert not (await world.beat(engine, broker(1), joined.epoch)).fenced
