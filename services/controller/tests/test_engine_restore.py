"""A restore through whole controllers: who is waited for, who leads then, what is refused, and crashes in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from services.controller.tests.kit.dialogue import Cell, Link, broker, cell

from headrace_common.core.errors import (
    HeadraceError,
    InvalidPartitions,
    InvalidTopic,
    MetadataUnavailable,
    Rejected,
    TopicAlreadyExists,
    UnknownTopicId,
)
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import Node, NodeKey, Role, ShardKey, ShardKind, Topic
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.backup import take
from headrace_controller.core.backup_file import Backup
from headrace_controller.core.held import HeldLog, HeldTopic, Inventory
from headrace_controller.core.leadership import Election
from headrace_controller.core.restored import restore_metadata
from headrace_controller.core.store import Outcome, Put, Transaction
from headrace_controller.core.topics import Wanted
from headrace_controller.engine import restore_writing
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ProbeResult, StoreUnavailable

STRAY = TopicId(b"s" * 16)
OFFSETS = TopicId(b"o" * 16)
OLD = b"i" * 16


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


def held(logs: dict[PartitionId, HeldLog], *topics: Topic, revision: int = 10_000) -> Inventory:
    return Inventory(tuple(HeldTopic(t, OLD, revision) for t in topics), logs)


async def backed_up(world: Cell, partitions: int = 2, brokers: tuple[int, ...] = (0, 1, 2)) -> tuple[Backup, Topic]:
    """A backup of a cluster with topic ``t`` on all brokers; nobody runs any more."""
    engine = await world.active(1)
    for number in brokers:
        await world.join(engine, broker(number))
    topic = (await world.create(engine, "t", partitions, min(3, len(brokers)))).topic
    backup = take("headrace", await world.store.list_all(), 7)
    assert backup is not None
    await engine.candidate.resign()
    return backup, topic


async def restore(world: Cell, backup: Backup, expected: tuple[int, ...] = (0, 1, 2)) -> ControllerEngine:
    """Restored, and a controller is active."""
    ready = restore_metadata(backup, [NodeId(b) for b in expected], 8, b"n" * 16)
    await restore_writing.write(world.store, ready, replace=True)
    engine = world.make(2)
    await world.until(lambda: engine.candidate.term is not None)
    return engine


async def finished(world: Cell, engine: ControllerEngine) -> None:
    await world.until(lambda: not engine.follower.mirror.waits_for_logs)
    await world.until(lambda: not any(p.offline for p in engine.image.partitions.values()))


async def test_nobody_leads_before_all_are_there(world: Cell) -> None:
    backup, topic = await backed_up(world)
    ids = [PartitionId(topic.topic_id, n) for n in range(2)]
    world.inventories.held = {
        NodeId(0): held({ids[0]: HeldLog(3, 10, known_epoch=5), ids[1]: HeldLog(2, 90, known_epoch=2)}),
        NodeId(1): held({ids[0]: HeldLog(3, 12, known_epoch=3), ids[1]: HeldLog(2, 90, known_epoch=2)}),
        NodeId(2): held({ids[0]: HeldLog(2, 99, known_epoch=2), ids[1]: HeldLog(3, 4, known_epoch=3)}),
    }
    engine = await restore(world, backup)
    await world.join(engine, broker(0, start=1))
    await world.join(engine, broker(2, start=1))
    await world.pass_ms(3_000)
    assert all(p.offline for p in engine.image.partitions.values())
    assert world.inventories.asked == []
    status = await engine.describe_restore(strays=False)
    assert status.restore is not None
    assert (status.missing, status.restore.finished, status.restore.expected) == ([1], False, (0, 1, 2))
    assert engine.gauges()["restore_unfinished"] == 1
    refused = [
        engine.create_topic(Wanted("new", 1, 1), validate_only=False, timeout_ms=1_000),
        engine.delete_topic("t"),
        engine.create_partitions("t", 5, (), validate_only=False),
        engine.ensure_internal_topic(ShardKind.GROUPS),
        engine.elect(Election.UNCLEAN, ids),
        engine.alter_reassignments({ids[0]: (NodeId(0),)}, validate_only=False),
        engine.unregister(NodeKey(Role.BROKER, NodeId(1))),
        engine.adopt_topic(STRAY, None, 0, validate_only=False),
    ]
    for call in refused:
        with pytest.raises(MetadataUnavailable, match="brokers 1 have not joined; start them"):
            await call
    assert (await engine.allocate_producer_ids(NodeId(0), world_epoch(engine, 0))).start > 2**32
    await world.join(engine, broker(1, start=1))
    await finished(world, engine)
    first, second = (engine.image.partitions[i] for i in ids)
    assert (first.leader, first.isr, first.elr, first.leader_epoch) == (1, (1,), (), 6)
    assert (second.leader, second.isr, second.leader_epoch) == (2, (2,), 4)
    status = await engine.describe_restore(strays=False)
    assert status.restore is not None
    assert (status.missing, status.restore.finished, status.restore.empty_topics) == ([], True, 0)
    assert engine.gauges()["restore_unfinished"] == 0
    await world.create(engine, "new", 1, 1)


def world_epoch(engine: ControllerEngine, number: int) -> int:
    return engine.image.nodes[NodeKey(Role.BROKER, NodeId(number))].epoch


async def test_equal_logs_stand_in_for_each_other(world: Cell) -> None:
    backup, topic = await backed_up(world, 1)
    log = {PartitionId(topic.topic_id, 0): HeldLog(1, 5, known_epoch=1)}
    world.inventories.held = {NodeId(b): held(log) for b in range(3)}
    engine = await restore(world, backup)
    epochs = {b: (await world.join(engine, broker(b, start=1))).epoch for b in range(3)}
    await finished(world, engine)
    partition = world.partition(engine, "t")
    assert len(partition.elr) == 2, "the other two hold the same"
    dead = NodeKey(Role.BROKER, partition.leader)
    await engine.candidate.term.nodes.fence(dead, "a test", epoch=epochs[partition.leader])  # type: ignore[union-attr]
    await world.until(lambda: world.partition(engine, "t").leader not in {NO_NODE, dead.id})


async def test_a_silent_broker_is_asked_until_it_answers(world: Cell) -> None:
    backup, _ = await backed_up(world)
    engine = await restore(world, backup)
    world.inventories.silent = {NodeId(1)}
    epochs = {b: (await world.join(engine, broker(b, start=1))).epoch for b in range(3)}
    await world.beating(engine, {}, 0)
    await world.until(lambda: world.inventories.asked.count(NodeId(1)) > 1, 8_000)
    assert engine.follower.mirror.waits_for_logs
    status = await engine.describe_restore(strays=False)
    assert (status.missing, status.silent) == ([], (1,))
    with pytest.raises(MetadataUnavailable, match="try again in a moment"):
        await engine.delete_topic("t")
    world.inventories.silent = set()
    for b, epoch in epochs.items():
        await world.beat(engine, broker(b, start=1), epoch)
    await finished(world, engine)


async def test_a_broker_that_is_started_anew_while_it_is_asked_is_asked_again(world: Cell) -> None:
    backup, topic = await backed_up(world, 1)
    id = PartitionId(topic.topic_id, 0)
    shorter, longer = HeldLog(1, 5, known_epoch=1), HeldLog(1, 9, known_epoch=1)
    world.inventories.held = {NodeId(0): held({id: shorter}), NodeId(1): held({id: longer}), NodeId(2): held({})}
    engine = await restore(world, backup)
    starts = iter(range(2, 9))

    async def restart(number: NodeId) -> None:
        if number == 2:
            world.inventories.on_asked = None
            world.inventories.held[NodeId(1)] = held({id: HeldLog(1, 9, damaged=True, known_epoch=1)})
            world.probe.results[NodeKey(Role.BROKER, NodeId(1))] = ProbeResult.OTHER
            await world.join(engine, broker(1, start=next(starts)), damaged=frozenset({id}))
            world.probe.results = {}

    world.inventories.on_asked = restart
    for b in range(3):
        await world.join(engine, broker(b, start=1))
    await finished(world, engine)
    assert engine.image.partitions[id].leader == 0
    assert engine.image.partitions[id].recovering, "the damaged log was longer: nobody says that nothing is lost"


async def test_only_damaged_logs_wait_for_an_operator(world: Cell) -> None:
    backup, topic = await backed_up(world, 1)
    id = PartitionId(topic.topic_id, 0)
    damaged, blank = HeldLog(1, 9, damaged=True, known_epoch=1), HeldLog()
    world.inventories.held = {
        NodeId(0): held({id: blank}),
        NodeId(1): held({id: damaged}),
        NodeId(2): held({id: blank}),
    }
    engine = await restore(world, backup)
    for b in range(3):
        await world.join(engine, broker(b, start=1))
    await world.until(lambda: not engine.follower.mirror.waits_for_logs)
    await world.pass_ms(2_000)
    assert engine.image.partitions[id].offline
    world.log_ends.ends = {NodeId(b): {} for b in range(3)}
    ((_, result),) = await engine.elect(Election.UNCLEAN, [id])
    assert not isinstance(result, HeadraceError)


async def test_what_nobody_has_begins_empty_and_is_counted(world: Cell) -> None:
    backup, topic = await backed_up(world)
    world.inventories.held = {NodeId(0): held({PartitionId(topic.topic_id, 0): HeldLog()})}
    engine = await restore(world, backup)
    for b in range(3):
        await world.join(engine, broker(b, start=1))
    await finished(world, engine)
    status = await engine.describe_restore(strays=False)
    assert status.restore is not None
    assert status.restore.empty_topics == 1


async def test_logs_on_other_brokers_than_the_backup_says(world: Cell) -> None:
    backup, topic = await backed_up(world, 1, brokers=(0, 1, 2))
    id = PartitionId(topic.topic_id, 0)
    world.inventories.held = {
        **{NodeId(b): held({id: HeldLog()}) for b in (0, 1, 2)},  # made when they saw the restored image
        **{NodeId(b): held({id: HeldLog(4, 50 + b, known_epoch=4)}) for b in (3, 4, 5, 6)},
    }
    engine = await restore(world, backup, expected=(0, 1, 2, 3, 4, 5))
    await world.join(engine, broker(6, start=1))  # not named, but there: it is asked too
    for b in range(6):
        await world.join(engine, broker(b, start=1))
    await finished(world, engine)
    partition = engine.image.partitions[id]
    assert (partition.leader, set(partition.replicas)) == (6, {4, 5, 6})
    assert engine.image.removals[id].pending == (0, 1, 2), "empty logs go"
    status = await engine.describe_restore(strays=True)
    assert [(s.topic_id, list(s.logs)) for s in status.strays] == [(topic.topic_id, [(0, 3)])]
    assert "other replicas" in (status.strays[0].note or "")


def brokers_with(stray: Topic, tokens: bool = False) -> dict[NodeId, Inventory]:
    ids = [PartitionId(stray.topic_id, n) for n in range(stray.partition_count)]
    return {
        NodeId(b): held({i: HeldLog(1, 5 + b, known_epoch=2, token=70 + b if tokens else None) for i in ids}, stray)
        for b in (0, 1, 2)
    }


class TestTopicsAfterTheBackup:
    async def test_they_are_adopted(self, world: Cell) -> None:
        backup, _ = await backed_up(world)
        late = Topic("late", STRAY, 120, {"retention.ms": "5", "fencing.required": "true"})
        world.inventories.held = brokers_with(late)
        engine = await restore(world, backup)
        for b in range(3):
            await world.join(engine, broker(b, start=1))
        await finished(world, engine)
        topic = engine.image.topic("late")
        assert topic == late, "with settings of a feature level that the backup does not have too"
        assert {p.leader for p in engine.image.partitions_of(topic)} == {2}
        assert all(set(p.replicas) == {0, 1, 2} for p in engine.image.partitions_of(topic))
        status = await engine.describe_restore(strays=True)
        assert status.restore is not None
        assert (status.restore.adopted_topics, status.strays) == (1, [])

    async def test_leaders_of_what_is_adopted_are_spread(self, world: Cell) -> None:
        backup, _ = await backed_up(world)
        alike = Topic("late", STRAY, 6)
        ids = [PartitionId(STRAY, n) for n in range(6)]
        world.inventories.held = {
            NodeId(b): held(dict.fromkeys(ids, HeldLog(1, 5, known_epoch=2)), alike) for b in range(3)
        }
        engine = await restore(world, backup)
        for b in range(3):
            await world.join(engine, broker(b, start=1))
        await finished(world, engine)
        partitions = engine.image.partitions_of(alike)
        assert [p.replicas[0] for p in partitions] == [0, 1, 2, 0, 1, 2]
        assert all(set(p.replicas) == {0, 1, 2} for p in partitions)

    async def test_one_that_was_deleted_and_made_again_takes_its_name(self, world: Cell) -> None:
        backup, old = await backed_up(world)
        world.inventories.held = brokers_with(Topic("t", STRAY, 1))
        engine = await restore(world, backup)
        for b in range(3):
            await world.join(engine, broker(b, start=1))
        await finished(world, engine)
        shown = engine.image.topic("t")
        assert shown is not None
        assert shown.topic_id == STRAY
        assert engine.image.deletions[old.topic_id].pending == (0, 1, 2), "only blank logs of the old one are left"
        await world.until(lambda: not engine.follower.mirror.hidden)

    async def test_an_older_one_stays_stray(self, world: Cell) -> None:
        backup, old = await backed_up(world)
        world.inventories.held = {
            b: replace(i, topics=tuple(replace(t, revision=1) for t in i.topics))
            for b, i in brokers_with(Topic("t", STRAY, 1)).items()
        }
        engine = await restore(world, backup)
        for b in range(3):
            await world.join(engine, broker(b, start=1))
        await finished(world, engine)
        assert engine.image.topic("t") == old
        status = await engine.describe_restore(strays=True)
        assert [(s.topic_id, s.note) for s in status.strays] == [(STRAY, "its name t is taken")]

    async def test_partitions_and_settings_that_came_later(self, world: Cell) -> None:
        backup, topic = await backed_up(world)
        later = replace(topic, partition_count=4, configs={"retention.ms": "7"})
        world.inventories.held = brokers_with(later)
        engine = await restore(world, backup)
        for b in range(3):
            await world.join(engine, broker(b, start=1))
        await finished(world, engine)
        assert engine.image.topic("t") == later
        assert [p.leader for p in engine.image.partitions_of(later)] == [2, 2, 2, 2]

    async def test_an_internal_one_and_the_tokens_in_its_logs(self, world: Cell) -> None:
        backup, _ = await backed_up(world)
        world.inventories.held = brokers_with(Topic("__consumer_offsets", OFFSETS, 3, internal=True), tokens=True)
        engine = await restore(world, backup)
        coordinator = Node(NodeKey(Role.COORDINATOR, NodeId(0)), Endpoint("127.0.0.1", 9_600), b"c" * 16, 0)
        await world.join(engine, coordinator)
        for b in range(3):
            await world.join(engine, broker(b, start=1))
            assert not engine.image.shards
        await finished(world, engine)
        keys = [ShardKey(ShardKind.GROUPS, n) for n in range(3)]
        await world.until(lambda: all(k in engine.image.shards and engine.image.shards[k].owner == 0 for k in keys))
        assert [engine.image.shards[k].epoch for k in keys] == [73, 73, 73]


class Dying(MemoryStore):
    """After so many writes of decisions the controller that makes them reaches nobody any more."""

    left = 1_000_000
    cut: Link | None = None

    async def commit(self, transaction: Transaction) -> Outcome:
        keys = [o.key for o in transaction.operations if isinstance(o, Put)]
        if any(key.startswith(("partitions/", "topics/", "restore")) for key in keys):
            self.left -= 1
            if self.left < 0 and self.cut is not None:
                self.cut.up = False
                self.cut = None
                raise StoreUnavailable("dead")
        return await super().commit(transaction)


async def survived(backup: Backup, inventories: dict[NodeId, Inventory], writes: int) -> tuple[Cell, bool]:
    """Restored, by a controller that died after ``writes`` and then by another one; whether the first one finished."""
    async with cell() as world:
        store = world.store = Dying(world.clock)
        world.inventories.held = dict(inventories)
        await restore_writing.write(
            store, restore_metadata(backup, [NodeId(b) for b in range(3)], 8, b"n" * 16), replace=False
        )
        first = world.make(1)
        await world.until(lambda: first.candidate.term is not None)
        for b in (0, 1):
            await world.join(first, broker(b, start=1))
        link = world.links[1]
        store.left, store.cut = writes, link
        await world.join(first, broker(2, start=1))
        await world.until(lambda: not link.up or not first.follower.mirror.waits_for_logs)
        done, link.up, store.left = link.up, False, 1_000_000
        first.candidate.leave()
        second = world.make(2)
        await world.until(lambda: second.candidate.term is not None, 60_000)
        if not done:
            world.inventories.held[NodeId(2)] = Inventory()
            world.probe.results = {NodeKey(Role.BROKER, NodeId(b)): ProbeResult.OTHER for b in range(3)}
            await world.join(second, broker(2, start=2), cluster_id=None)
        for b in (0, 1) if not done else range(3):
            await world.join(second, broker(b, start=1 if done else 2))
        world.probe.results = {}
        await finished(world, second)
        return world, done


async def test_a_controller_that_dies_after_any_write_is_succeeded(world: Cell) -> None:
    """The same end, wherever the first controller was killed; and a disk that was wiped in between is seen."""
    backup, topic = await backed_up(world, 160)
    late = Topic("late", STRAY, 110)
    some = {PartitionId(topic.topic_id, n): HeldLog(1, 5, known_epoch=1) for n in range(160)}
    inventories = {b: replace(i, logs={**i.logs, **some}) for b, i in brokers_with(late).items()}
    for writes in range(12):
        end, done = await survived(backup, inventories, writes)
        image, restore = end.engines[2].image, end.engines[2].follower.mirror.restore
        assert image.topic("late") == late
        assert len(image.partitions) == 270
        assert done or all(p.leader != 2 for p in image.partitions.values()), f"{writes}: a wiped disk leads"
        assert restore is not None
        assert (restore.finished, restore.adopted_topics) == (True, 1)
        if done:
            assert writes > 6
            return
    raise AssertionError("it never got through")


class TestAdoptionByCommand:
    async def stray(self, world: Cell, topic: Topic | None = None) -> ControllerEngine:
        engine = await world.active(1)
        for b in range(3):
            await world.join(engine, broker(b))
        made = topic or Topic("late", STRAY, 2, {"retention.ms": "5"})
        world.inventories.held = brokers_with(made)
        return engine

    async def test_under_its_own_name(self, world: Cell) -> None:
        engine = await self.stray(world)
        before = await engine.describe_restore(strays=True)
        assert before.restore is None
        assert [(s.topic and s.topic.name, len(s.logs), s.note) for s in before.strays] == [("late", 6, None)]
        planned = await engine.adopt_topic(STRAY, None, 0, validate_only=True)
        assert engine.image.topic("late") is None
        made = await engine.adopt_topic(STRAY, None, 0, validate_only=False)
        assert made.topic == planned.topic == engine.image.topic("late")
        await world.until(lambda: [p.leader for p in engine.image.partitions_of(made.topic)] == [2, 2])
        assert (await engine.describe_restore(strays=True)).strays == []
        with pytest.raises(TopicAlreadyExists):
            await engine.adopt_topic(STRAY, "again", 0, validate_only=False)

    async def test_under_another_name_with_more_partitions(self, world: Cell) -> None:
        engine = await self.stray(world)
        made = await engine.adopt_topic(STRAY, "other", 5, validate_only=False)
        assert (made.topic.name, made.topic.partition_count, dict(made.topic.configs)) == (
            "other",
            5,
            {"retention.ms": "5"},
        )

    async def test_what_cannot_be(self, world: Cell) -> None:
        engine = await self.stray(world)
        await world.create(engine, "late")
        for name, count, error in (
            (None, 0, TopicAlreadyExists),
            ("__x", 0, InvalidTopic),
            ("a/b", 0, InvalidTopic),
            ("x", 1, InvalidPartitions),
            ("x", 10**6, InvalidPartitions),
        ):
            with pytest.raises(error):
                await engine.adopt_topic(STRAY, name, count, validate_only=True)
        with pytest.raises(UnknownTopicId):
            await engine.adopt_topic(OFFSETS, "x", 0, validate_only=True)
        logs = {b: Inventory((), i.logs) for b, i in world.inventories.held.items()}
        world.inventories.held = logs
        with pytest.raises(Rejected, match="give one"):
            await engine.adopt_topic(STRAY, None, 0, validate_only=True)

    async def test_a_silent_broker_may_have_a_longer_log(self, world: Cell) -> None:
        engine = await self.stray(world)
        world.inventories.silent = {NodeId(1)}
        with pytest.raises(MetadataUnavailable, match="brokers 1 do not say"):
            await engine.adopt_topic(STRAY, None, 0, validate_only=False)
        assert (await engine.describe_restore(strays=True)).silent == (1,)

    async def test_a_broker_that_is_started_anew_meanwhile(self, world: Cell) -> None:
        engine = await self.stray(world)

        async def restart(number: NodeId) -> None:
            if number == 2:
                world.probe.results[NodeKey(Role.BROKER, number)] = ProbeResult.OTHER
                await engine.register(Joining(broker(2, start=9), cluster_id=engine.image.cluster_id))

        world.inventories.on_asked = restart
        with pytest.raises(MetadataUnavailable, match="changed while"):
            await engine.adopt_topic(STRAY, None, 0, validate_only=False)
        assert engine.image.topic("late") is None
