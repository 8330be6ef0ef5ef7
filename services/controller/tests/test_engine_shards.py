"""Internal topics and owners of shards through a whole controller: joins, deaths, restarts and leaving."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from services.controller.tests.kit.dialogue import Cell, broker, cell

from headrace_common.core.errors import CoordinatorNotAvailable, HeadraceError, InvalidTopic, MetadataUnavailable
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role, ShardKind
from headrace_controller.core import shards
from headrace_controller.core.settings import Alteration, BrokerResource, Op, TopicResource
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ProbeResult

TOPIC = "__consumer_offsets"


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


def coordinator(number: int, *, start: int = 0) -> Node:
    return Node(
        key=NodeKey(Role.COORDINATOR, NodeId(number)),
        grpc=Endpoint("127.0.0.1", 9600 + number),
        incarnation=bytes([100 + number, start]) * 8,
        epoch=0,
    )


def owned(engine: ControllerEngine) -> Counter[int]:
    return Counter(s.owner for s in engine.image.shards.values())


async def set_cluster(engine: ControllerEngine, name: str, value: str) -> None:
    await engine.alter_configs(BrokerResource(None), [Alteration(name, Op.SET, value)], validate_only=False)


class TestTheTopic:
    async def test_it_is_made_once_however_many_ask(self, world: Cell) -> None:
        engine = await world.active()
        for number in (1, 2, 3):
            await world.join(engine, broker(number))
        answers = asyncio.gather(
            *(engine.ensure_internal_topic(ShardKind.GROUPS) for _ in range(5)), return_exceptions=True
        )
        await world.until(answers.done)
        results = answers.result()
        assert sum(isinstance(r, int) for r in results) >= 1
        assert all(isinstance(r, int | CoordinatorNotAvailable) for r in results)
        topic = engine.image.topic(TOPIC)
        assert topic is not None
        assert topic.internal
        revision = await engine.ensure_internal_topic(ShardKind.GROUPS)
        assert revision <= engine.image.revision
        assert engine.image.topic(TOPIC) is topic
        assert len(engine.image.partitions) == 50

    async def test_it_waits_for_the_expected_brokers(self, world: Cell) -> None:
        engine = await world.active()
        await world.join(engine, broker(1))
        await set_cluster(engine, "cluster.expected.brokers", "2")
        with pytest.raises(CoordinatorNotAvailable, match="1 of 2"):
            await engine.ensure_internal_topic(ShardKind.GROUPS)
        await world.join(engine, broker(2))
        await engine.ensure_internal_topic(ShardKind.GROUPS)
        assert world.partition(engine, TOPIC).replicas in {(1, 2), (2, 1)}

    async def test_users_cannot_hurt_it(self, world: Cell) -> None:
        engine = await world.active()
        await world.join(engine, broker(1))
        await engine.ensure_internal_topic(ShardKind.GROUPS)
        with pytest.raises(InvalidTopic, match="internal"):
            await engine.delete_topic(TOPIC)
        with pytest.raises(InvalidTopic, match="internal"):
            await engine.create_partitions(TOPIC, 60, (), validate_only=False)
        change = Alteration("unclean.leader.election.enable", Op.SET, "true")
        with pytest.raises(InvalidTopic, match="internal"):
            await engine.alter_configs(TopicResource(TOPIC), [change], validate_only=False)

    async def test_brokers_that_join_take_replicas(self, world: Cell) -> None:
        engine = await world.active()
        await set_cluster(engine, "offsets.topic.num.partitions", "6")
        await world.join(engine, broker(1))
        await engine.ensure_internal_topic(ShardKind.GROUPS)
        assert world.partition(engine, TOPIC).replicas == (1,)
        await world.join(engine, broker(2))
        await world.until(lambda: all(set(p.replicas) == {1, 2} for p in engine.image.partitions.values()))
        assert all(p.adding == (2,) for p in engine.image.partitions.values())


class TestOwners:
    async def start(self, world: Cell, *members: int) -> tuple[ControllerEngine, dict[int, int]]:
        engine = await world.active()
        await world.join(engine, broker(1))
        epochs = {n: (await world.join(engine, coordinator(n))).epoch for n in members}
        await engine.ensure_internal_topic(ShardKind.GROUPS)
        await world.until(lambda: len(engine.image.shards) == 50)
        return engine, epochs

    async def test_without_coordinators_nobody_owns_them(self, world: Cell) -> None:
        engine, _ = await self.start(world)
        assert owned(engine) == {NO_NODE: 50}
        assert engine.describe_cluster().shards.unowned == 50
        await world.join(engine, coordinator(1))
        await world.until(lambda: owned(engine) == {1: 50})
        assert {s.epoch for s in engine.image.shards.values()} == {2}
        assert engine.describe_cluster().shards.unowned == 0

    async def test_a_second_one_takes_half(self, world: Cell) -> None:
        engine, _ = await self.start(world, 1)
        before = dict(engine.image.shards)
        await world.join(engine, coordinator(2))
        await world.until(lambda: owned(engine) == {1: 25, 2: 25})
        for key, shard in engine.image.shards.items():
            moved = shard.owner != before[key].owner
            assert shard.epoch == before[key].epoch + moved

    async def test_a_dead_process_loses_its_shards_at_once(self, world: Cell) -> None:
        engine, _ = await self.start(world, 1, 2)
        gone = coordinator(2).key
        stream = asyncio.create_task(self.read(engine, gone))
        await asyncio.sleep(0)
        world.probe.results[gone] = ProbeResult.REFUSED
        stream.cancel()
        await world.until(lambda: owned(engine) == {1: 50}, ms=2_000)

    async def test_silence_costs_the_shards_after_the_session(self, world: Cell) -> None:
        engine, epochs = await self.start(world, 1, 2)
        world.probe.results[coordinator(2).key] = ProbeResult.SILENT
        for _ in range(8):
            await world.beat(engine, coordinator(1), epochs[1])
            await world.pass_ms(1_000)
        assert owned(engine) == {1: 25, 2: 25}
        for _ in range(3):
            await world.beat(engine, coordinator(1), epochs[1])
            await world.pass_ms(1_000)
        await world.until(lambda: owned(engine) == {1: 50}, ms=1_000)

    async def test_a_new_process_under_the_same_id_never_gets_the_old_epochs(self, world: Cell) -> None:
        engine, _ = await self.start(world, 1)
        before = dict(engine.image.shards)
        world.probe.results[coordinator(1).key] = ProbeResult.REFUSED
        joined = await engine.register(Joining(coordinator(1, start=1)))
        assert owned(engine) == {NO_NODE: 50}, "taken away before the registration is answered"
        await world.beat(engine, coordinator(1, start=1), joined.epoch)
        await world.until(lambda: owned(engine) == {1: 50})
        assert all(s.epoch > before[k].epoch for k, s in engine.image.shards.items())

    async def test_a_registration_waits_for_the_pass_that_takes_the_shards_away(self, world: Cell) -> None:
        engine, _ = await self.start(world, 1)
        world.probe.results[coordinator(1).key] = ProbeResult.REFUSED
        term = engine.candidate.term
        assert term is not None
        async with term.shards._turn:  # the loop is held up, as by a slow store
            joining = asyncio.ensure_future(engine.register(Joining(coordinator(1, start=1))))
            await world.pass_ms(500)
            assert engine.image.nodes[coordinator(1).key].fenced
            assert owned(engine) == {1: 50}
            assert not joining.done()
        await world.until(joining.done)
        assert owned(engine) == {NO_NODE: 50}

    async def test_leaving_waits_until_it_owns_nothing(self, world: Cell) -> None:
        engine, epochs = await self.start(world, 1, 2)
        world.links[1].up = False
        leaving = asyncio.ensure_future(world.beat(engine, coordinator(2), epochs[2], want_shutdown=True))
        with pytest.raises(MetadataUnavailable):
            await leaving
        assert owned(engine) == {1: 25, 2: 25}
        world.links[1].up = True
        await world.until(lambda: engine.follower.reachable)
        leaving = asyncio.ensure_future(world.beat(engine, coordinator(2), epochs[2], want_shutdown=True))
        await world.until(leaving.done)
        assert leaving.result().may_shut_down
        assert owned(engine) == {1: 50}
        assert not engine.image.nodes[coordinator(2).key].fenced

    async def test_the_last_one_may_leave_too(self, world: Cell) -> None:
        engine, epochs = await self.start(world, 1)
        leaving = asyncio.ensure_future(world.beat(engine, coordinator(1), epochs[1], want_shutdown=True))
        await world.until(leaving.done)
        assert leaving.result().may_shut_down
        assert owned(engine) == {NO_NODE: 50}

    async def test_another_controller_goes_on_where_the_first_stopped(self, world: Cell) -> None:
        engine, _ = await self.start(world, 1)
        second = await world.controller(2)
        await engine.stop()
        await world.until(lambda: second.candidate.term is not None)
        assert owned(second) == {1: 50}
        assert {s.epoch for s in second.image.shards.values()} == {1}
        await world.join(second, coordinator(2))
        await world.until(lambda: owned(second) == {1: 25, 2: 25})

    @staticmethod
    async def read(engine: ControllerEngine, key: NodeKey) -> None:
        async for _ in engine.watch(key):
            pass


@pytest.mark.parametrize("seed", range(4))
async def test_in_a_storm_no_epoch_has_two_owners_and_in_the_end_all_is_balanced(world: Cell, seed: int) -> None:
    """Coordinators join, die, come back and leave, controllers change; every image in between is looked at."""
    rng = random.Random(seed)
    engines = {n: await world.controller(n) for n in (1, 2)}
    await world.until(lambda: any(e.candidate.term is not None for e in engines.values()))
    seen: dict[tuple[int, int], int] = {}

    def look(engine: ControllerEngine) -> None:
        for shard in engine.image.shards.values():
            owner = seen.setdefault((shard.key.number, shard.epoch), shard.owner)
            assert owner == shard.owner, f"shard {shard.key.number} has two owners in epoch {shard.epoch}"

    async def follow(engine: ControllerEngine) -> None:
        async for _ in engine.watch(None):
            look(engine)

    def active() -> ControllerEngine | None:
        return next((e for e in engines.values() if e.candidate.term is not None), None)

    watches = [asyncio.create_task(follow(e)) for e in engines.values()]
    living: dict[int, tuple[Node, int]] = {}
    starts = 0
    for step in range(60):
        engine = active()
        if engine is None:
            await world.pass_ms(500)
            continue
        with suppress(HeadraceError):
            if step == 0:
                await world.join(engine, broker(1))
                await set_cluster(engine, "offsets.topic.num.partitions", "7")
            if engine.image.topic(TOPIC) is None:
                await world.join(engine, broker(1))
                await engine.ensure_internal_topic(ShardKind.GROUPS)
            number = rng.randint(1, 4)
            match rng.choice(["start", "start", "kill", "leave", "depose"]):
                case "start":
                    starts += 1
                    node = coordinator(number, start=starts)
                    world.probe.results[node.key] = ProbeResult.REFUSED  # whoever was there is gone
                    living[number] = node, (await world.join(engine, node)).epoch
                case "kill" if number in living:
                    node, epoch = living.pop(number)
                    assert engine.candidate.term is not None
                    await engine.candidate.term.nodes.fence(node.key, "the test says so", epoch=epoch)
                case "leave" if number in living:
                    node, epoch = living.pop(number)
                    await world.beat(engine, node, epoch, want_shutdown=True)
                case "depose" if rng.random() < 0.3:
                    world.links[next(n for n, e in engines.items() if e is engine)].up = False
                    await world.pass_ms(4_000)
                    for link in world.links.values():
                        link.up = True
        await world.pass_ms(rng.choice([0, 100, 300]))
    await world.until(lambda: active() is not None)
    last = active()
    assert last is not None
    for number in (1, 2, 3):
        starts += 1
        node = coordinator(number, start=starts)
        world.probe.results[node.key] = ProbeResult.REFUSED
        await world.join(last, node)
    await world.until(lambda: shards.find_due(last.image) == [] and len(last.image.shards) == 7)
    sizes = Counter(s.owner for s in last.image.shards.values())
    assert max(sizes.values()) - min(sizes.values()) <= 1
    assert NO_NODE not in sizes
    by_shard: dict[int, list[int]] = {}
    for number, epoch in sorted(seen):
        by_shard.setdefault(number, []).append(epoch)
    assert all(epochs == list(range(1, len(epochs) + 1)) for epochs in by_shard.values()), "epochs grow one by one"
    assert len(seen) > 20, "something happened"
    for watch in watches:
        watch.cancel()
