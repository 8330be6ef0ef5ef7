"""Creation, growth, deletion and settings of topics, and producer ids, with the store failing in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from services.controller.tests.kit.dialogue import Cell, broker, cell

from headrace_common.core.errors import (
    ErrorCode,
    HeadraceError,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    MetadataUnavailable,
    NotFound,
    Overloaded,
    RequestTimedOut,
    StaleBrokerEpoch,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId
from headrace_controller.core import records
from headrace_controller.core.settings import Alteration, BrokerResource, Entry, Op, Source, TopicResource
from headrace_controller.core.store import Outcome, Transaction
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.topics import CREATED_AT_ONCE
from headrace_controller.ports import StoreOutcomeUnknown


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


async def ready(world: Cell, brokers: int = 3) -> ControllerEngine:
    engine = await world.active()
    for n in range(1, brokers + 1):
        await world.join(engine, broker(n))
    return engine


async def make(engine: ControllerEngine, wanted: Wanted, *, validate_only: bool = False) -> object:
    return await engine.create_topic(wanted, validate_only=validate_only, timeout_ms=30_000)


class TestCreate:
    async def test_a_topic_is_there_with_all_its_partitions(self, world: Cell) -> None:
        engine = await ready(world)
        described = await world.create(engine, "t", 450)
        assert len(described.partitions) == 450
        topic = engine.image.topic("t")
        assert topic is not None
        held = engine.image.partitions_of(topic)
        assert list(described.partitions) == held
        assert [sum(p.leader == b for p in held) for b in (1, 2, 3)] == [150, 150, 150]
        assert all((p.leader_epoch, p.partition_epoch, p.isr) == (0, 0, p.replicas) for p in held)
        assert not engine.follower.mirror.hidden

    async def test_many_at_once_leave_room_in_the_store_for_others(
        self, world: Cell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = await ready(world)
        commit, at_once, most = world.store.commit, 0, 0

        async def counted(transaction: Transaction) -> Outcome:
            nonlocal at_once, most
            at_once, most = at_once + 1, max(most, at_once + 1)
            await asyncio.sleep(0)
            try:
                return await commit(transaction)
            finally:
                at_once -= 1

        monkeypatch.setattr(world.store, "commit", counted)
        await asyncio.gather(*(make(engine, Wanted(f"t{n}", 1, 1)) for n in range(200)))
        assert len(engine.image.topics) == 200
        assert 1 < most <= CREATED_AT_ONCE + 2, "the engine writes a little of its own meanwhile"

    async def test_what_does_not_come_to_its_turn_was_not_begun(
        self, world: Cell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = await ready(world)
        commit, free = world.store.commit, asyncio.Event()

        async def held(transaction: Transaction) -> Outcome:
            await free.wait()
            return await commit(transaction)

        monkeypatch.setattr(world.store, "commit", held)
        first = [asyncio.ensure_future(make(engine, Wanted(f"t{n}", 1, 1))) for n in range(CREATED_AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="nothing was changed"):
            await engine.create_topic(Wanted("late", 1, 1), validate_only=False, timeout_ms=10)
        free.set()
        await asyncio.gather(*first)
        assert engine.image.topic("late") is None
        await make(engine, Wanted("late", 1, 1))

    async def test_of_a_creation_that_the_end_of_the_controller_broke_off_nobody_says_that_it_was_not_made(
        self, world: Cell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = await ready(world)

        async def ended(_: Transaction) -> Outcome:
            raise asyncio.CancelledError

        monkeypatch.setattr(world.store, "commit", ended)
        with pytest.raises(RequestTimedOut, match="whether the topic exists is unknown"):
            await make(engine, Wanted("half", 1, 1))

    async def test_validate_only_writes_nothing(self, world: Cell) -> None:
        engine = await ready(world)
        before = world.store.revision
        described = await engine.create_topic(Wanted("t", 6, 1), validate_only=True, timeout_ms=1_000)
        assert len(described.partitions) == 6
        assert world.store.revision == before

    async def test_defaults_come_from_the_cluster_and_are_noted(self, world: Cell) -> None:
        engine = await ready(world)
        await engine.alter_configs(
            BrokerResource(None), [Alteration("num.partitions", Op.SET, "4")], validate_only=False
        )
        described = await engine.create_topic(Wanted("t"), validate_only=False, timeout_ms=1_000)
        assert (len(described.partitions), described.notes) == (4, ())
        assert all(len(p.replicas) == 3 for p in described.partitions)

    async def test_fewer_replicas_than_the_default_are_noted(self, world: Cell) -> None:
        engine = await ready(world, 2)
        described = await engine.create_topic(Wanted("t"), validate_only=False, timeout_ms=1_000)
        assert [len(p.replicas) for p in described.partitions] == [2]
        assert described.notes == (
            "created with 2 of 3 replicas (default.replication.factor): there are no more brokers",
        )

    async def test_replicas_may_wait_for_a_registered_broker_that_is_away(self, world: Cell) -> None:
        engine = await ready(world)
        term = engine.candidate.term
        assert term is not None
        await term.nodes.fence(broker(2).key, "test", epoch=engine.image.nodes[broker(2).key].epoch)
        described = await engine.create_topic(Wanted("t", 6, 3), validate_only=False, timeout_ms=1_000)
        assert all(p.replicas[2] == 2 and set(p.isr) == {1, 3} for p in described.partitions)
        assert {p.leader for p in described.partitions} == {1, 3}

    @pytest.mark.parametrize(
        ("wanted", "error", "text"),
        [
            (
                Wanted("t", 1, 4),
                InvalidReplicationFactor,
                "4 was asked and 3 brokers are registered",
            ),
            (Wanted("t", 1, 0), InvalidReplicationFactor, "1 to 32"),
            (Wanted("t", 1, 33), InvalidReplicationFactor, "1 to 32"),
            (Wanted("t", 0, 1), InvalidPartitions, "1 to 100000"),
            (Wanted("t", 100_001, 1), InvalidPartitions, "1 to 100000"),
            (Wanted("t", -7, 1), InvalidPartitions, "1 to 100000"),
            (Wanted("", 1, 1), InvalidTopic, "empty"),
            (Wanted("..", 1, 1), InvalidTopic, "called"),
            (Wanted("a\0b", 1, 1), InvalidTopic, "characters"),
            (Wanted("x" * 250, 1, 1), InvalidTopic, "249"),
            (Wanted("__mine", 1, 1), InvalidTopic, "internal"),
            (Wanted("t", 1, 1, {"retention.ms": "soon"}), InvalidConfig, "number"),
            (Wanted("t", 1, 1, {"nonsense": "1"}), InvalidConfig, "not a topic setting"),
            (Wanted("t", assignments=((NodeId(9),),)), InvalidReplicaAssignment, "not registered"),
            (Wanted("t", assignments=((NodeId(1), NodeId(1)),)), InvalidReplicaAssignment, "twice"),
            (Wanted("t", assignments=((NodeId(1),), ())), InvalidReplicaAssignment, "same number"),
            (Wanted("t", 1, -1, assignments=((NodeId(1),),)), HeadraceError, "either"),
        ],
    )
    async def test_refusals(self, world: Cell, wanted: Wanted, error: type[HeadraceError], text: str) -> None:
        engine = await ready(world)
        before = world.store.revision
        with pytest.raises(error, match=text):
            await make(engine, wanted)
        assert world.store.revision == before

    async def test_names_that_exist_or_look_alike(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "a.b")
        with pytest.raises(TopicAlreadyExists):
            await world.create(engine, "a.b")
        with pytest.raises(InvalidTopic, match="look alike"):
            await world.create(engine, "a_b")
        both = await asyncio.gather(world.create(engine, "new"), world.create(engine, "new"), return_exceptions=True)
        assert [isinstance(b, TopicAlreadyExists) for b in both] == [False, True]

    async def test_without_brokers_it_says_so(self, world: Cell) -> None:
        engine = await world.active()
        with pytest.raises(InvalidReplicationFactor, match="0 brokers are alive; start"):
            await world.create(engine, "t")

    async def test_placement_by_hand_and_on_a_dead_broker(self, world: Cell) -> None:
        engine = await ready(world)
        placed = Wanted("t", assignments=((NodeId(3),), (NodeId(1),)))
        await make(engine, placed)
        assert [world.partition(engine, "t", n).leader for n in (0, 1)] == [3, 1]
        await world.pass_ms(10_000)
        with pytest.raises(InvalidReplicaAssignment, match="not alive"):
            await make(engine, replace(placed, name="u"))

    async def test_more_replicas_follow_the_brokers(self) -> None:
        async with cell() as world:
            engine = await ready(world)
            described = await engine.create_topic(Wanted("t", 9, 3), validate_only=False, timeout_ms=1_000)
            assert all(len(p.replicas) == 3 for p in described.partitions)
            entries = {e.setting.name: e for e in engine.describe_configs(TopicResource("t"))}
            assert entries["min.insync.replicas"].value == "2"
            await world.pass_ms(10_000)
            await world.until(lambda: all(p.leader == NO_NODE for p in engine.image.partitions.values()))
            assert all(len(p.elr) == 2 for p in engine.image.partitions.values())


class TestUnknownOutcomes:
    @pytest.mark.parametrize("lost", [1, 2, 3])
    async def test_a_lost_answer_is_looked_up(self, world: Cell, lost: int) -> None:
        engine = await ready(world)
        world.store.answers_lost = lost
        described = await world.create(engine, "t", 250)
        assert len(described.partitions) == 250
        assert len(engine.image.partitions) == 250
        assert not engine.follower.mirror.hidden

    async def test_lost_answers_never_give_ids_twice(self, world: Cell) -> None:
        engine = await ready(world, 1)
        epoch = engine.image.nodes[broker(1).key].epoch
        given: set[int] = set()
        for n in range(6):
            world.store.answers_lost = n % 2
            block = set(await engine.allocate_producer_ids(NodeId(1), epoch))
            assert len(block) == 1_000
            assert not block & given
            given |= block
        with pytest.raises(StaleBrokerEpoch):
            await engine.allocate_producer_ids(NodeId(1), epoch + 1)

    async def test_the_store_going_away_in_the_middle_leaves_no_half_topic(self, world: Cell) -> None:
        engine = await ready(world)
        creation = asyncio.create_task(world.create(engine, "t", 1_000))
        await world.until(lambda: len(engine.follower.mirror.hidden) >= 100, ms=100)
        world.store.reachable = False
        await world.store.disconnect()
        with pytest.raises((MetadataUnavailable, StoreOutcomeUnknown)):
            await creation
        assert engine.image.topic("t") is None
        assert engine.list_topics("", 10, include_internal=True).total == 0
        assert not engine.describe_cluster().store_reachable
        with pytest.raises(MetadataUnavailable):
            await world.create(engine, "u")
        world.store.reachable = True
        await world.until(lambda: engine.candidate.term is not None and engine.candidate.term.is_sure())
        await world.until(lambda: not engine.follower.mirror.hidden and engine.follower.reachable)
        assert not [i for i in (await world.store.list_all()).items if i.key.startswith(records.PARTITIONS_PREFIX)]
        assert len((await world.create(engine, "t", 1_000)).partitions) == 1_000


class TestGrowAndDelete:
    async def test_partitions_are_added(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 2)
        described = await engine.create_partitions("t", 300, (), validate_only=False)
        assert [p.id.partition for p in described.partitions] == list(range(300))
        topic = engine.image.topic("t")
        assert topic is not None
        assert len(engine.image.partitions_of(topic)) == 300

    async def test_growth_refusals(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 2)
        for count in (2, 1, 0, -1):
            with pytest.raises(InvalidPartitions, match="more than 2"):
                await engine.create_partitions("t", count, (), validate_only=False)
        with pytest.raises(InvalidReplicaAssignment, match="1 partitions are new"):
            await engine.create_partitions("t", 3, ((NodeId(1),), (NodeId(2),)), validate_only=False)
        with pytest.raises(UnknownTopicOrPartition):
            await engine.create_partitions("nope", 3, (), validate_only=False)
        before = world.store.revision
        await engine.create_partitions("t", 3, (), validate_only=True)
        assert world.store.revision == before

    async def test_a_deletion_waits_for_its_brokers(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t", 6)
        topic = await engine.delete_topic("t")
        assert engine.image.topic("t") is None
        assert not engine.image.partitions
        assert engine.image.deletions[topic.topic_id].pending == (1, 2, 3)
        assert not engine.follower.mirror.hidden, "the partitions are gone from the store"
        await world.create(engine, "t", 1)
        for n, pending in ((2, (1, 3)), (2, (1, 3)), (1, (3,))):
            epoch = engine.image.nodes[broker(n).key].epoch
            await engine.confirm_deletions(NodeId(n), epoch, [topic.topic_id])
            assert engine.image.deletions[topic.topic_id].pending == pending
        with pytest.raises(StaleBrokerEpoch):
            await engine.confirm_deletions(NodeId(3), 999, [topic.topic_id])
        epoch = engine.image.nodes[broker(3).key].epoch
        await engine.confirm_deletions(NodeId(3), epoch, [topic.topic_id])
        assert not engine.image.deletions
        assert PartitionId(engine.image.topic_ids["t"], 0) in engine.image.partitions

    async def test_deleting_what_is_not_there(self, world: Cell) -> None:
        engine = await ready(world)
        with pytest.raises(UnknownTopicOrPartition):
            await engine.delete_topic("t")

    async def test_pages(self, world: Cell) -> None:
        engine = await ready(world)
        for name in ("c", "a", "b", "d", "e"):
            await world.create(engine, name)
        page = engine.list_topics("", 2, include_internal=False)
        assert ([t.name for t in page.topics], page.more, page.total) == (["a", "b"], True, 5)
        page = engine.list_topics("d", 2, include_internal=False)
        assert ([t.name for t in page.topics], page.more) == (["e"], False)
        for limit in (0, -1, 10_001):
            with pytest.raises(HeadraceError, match="limit takes"):
                engine.list_topics("", limit, include_internal=False)


def value(entries: list[Entry], name: str) -> tuple[str, Source]:
    entry = next(e for e in entries if e.setting.name == name)
    return entry.value, entry.source


class TestSettings:
    async def test_a_topic_takes_all_changes_or_none(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t")
        t = TopicResource("t")
        good = [Alteration("retention.ms", Op.SET, "1000"), Alteration("segment.bytes", Op.SET, "4096")]
        entries = await engine.alter_configs(t, good, validate_only=False)
        assert value(entries, "retention.ms") == ("1000", Source.TOPIC)
        bad = [Alteration("retention.ms", Op.SET, "5"), Alteration("segment.bytes", Op.SET, "x")]
        with pytest.raises(InvalidConfig):
            await engine.alter_configs(t, bad, validate_only=False)
        assert value(engine.describe_configs(t), "retention.ms") == ("1000", Source.TOPIC)
        back = [Alteration("retention.ms", Op.DELETE)]
        planned = await engine.alter_configs(t, back, validate_only=True)
        assert value(planned, "retention.ms") == ("604800000", Source.DEFAULT)
        assert value(engine.describe_configs(t), "retention.ms") == ("1000", Source.TOPIC)
        await engine.alter_configs(t, back, validate_only=False)
        assert value(engine.describe_configs(t), "retention.ms") == ("604800000", Source.DEFAULT)

    async def test_lists_are_appended_to_and_subtracted_from(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t")
        t = TopicResource("t")
        await engine.alter_configs(t, [Alteration("cleanup.policy", Op.APPEND, "delete")], validate_only=False)
        assert value(engine.describe_configs(t), "cleanup.policy") == ("delete", Source.TOPIC)
        await engine.alter_configs(t, [Alteration("cleanup.policy", Op.APPEND, "compact")], validate_only=False)
        assert value(engine.describe_configs(t), "cleanup.policy") == ("delete,compact", Source.TOPIC)
        await engine.alter_configs(t, [Alteration("cleanup.policy", Op.SUBTRACT, "delete")], validate_only=False)
        assert value(engine.describe_configs(t), "cleanup.policy") == ("compact", Source.TOPIC)
        with pytest.raises(InvalidConfig, match="no list"):
            await engine.alter_configs(t, [Alteration("retention.ms", Op.APPEND, "1")], validate_only=False)
        with pytest.raises(InvalidConfig, match="empty"):
            await engine.alter_configs(t, [Alteration("cleanup.policy", Op.SUBTRACT, "compact")], validate_only=False)
        twice = [Alteration("retention.ms", Op.SET, "1"), Alteration("retention.ms", Op.DELETE)]
        with pytest.raises(InvalidConfig, match="more than once"):
            await engine.alter_configs(t, twice, validate_only=False)

    async def test_one_broker_over_all_brokers_over_the_default(self, world: Cell) -> None:
        engine = await ready(world)
        name = "log.retention.check.interval.ms"
        one, everyone = BrokerResource(NodeId(1)), BrokerResource(None)
        await engine.alter_configs(everyone, [Alteration(name, Op.SET, "50")], validate_only=False)
        await engine.alter_configs(one, [Alteration(name, Op.SET, "60")], validate_only=False)
        assert value(engine.describe_configs(one), name) == ("60", Source.BROKER)
        assert value(engine.describe_configs(BrokerResource(NodeId(2))), name) == ("50", Source.CLUSTER)
        await engine.alter_configs(one, [Alteration(name, Op.DELETE)], validate_only=False)
        assert value(engine.describe_configs(one), name) == ("50", Source.CLUSTER)
        await engine.alter_configs(everyone, [Alteration(name, Op.DELETE)], validate_only=False)
        assert value(engine.describe_configs(one), name) == ("300000", Source.DEFAULT)
        with pytest.raises(InvalidConfig, match="fixed at start"):
            await engine.alter_configs(
                one, [Alteration("broker.session.timeout.ms", Op.SET, "9000")], validate_only=False
            )

    async def test_a_topic_inherits_from_the_cluster(self, world: Cell) -> None:
        engine = await ready(world)
        await world.create(engine, "t")
        change = [Alteration("message.max.bytes", Op.SET, "2000")]
        await engine.alter_configs(BrokerResource(None), change, validate_only=False)
        assert value(engine.describe_configs(TopicResource("t")), "max.message.bytes") == ("2000", Source.CLUSTER)

    async def test_resources_that_are_not_there(self, world: Cell) -> None:
        engine = await ready(world)
        for resource in (TopicResource("nope"), BrokerResource(NodeId(77))):
            with pytest.raises(NotFound):
                await engine.alter_configs(resource, [], validate_only=False)
            with pytest.raises(NotFound) as refusal:
                engine.describe_configs(resource)
            wanted = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if resource == TopicResource("nope")
                else ErrorCode.RESOURCE_NOT_FOUND
            )
            assert refusal.value.code is wanted
