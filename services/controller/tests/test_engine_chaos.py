"""
Seeded storms: three controllers, brokers that come and go, a store that fails in every way it can; then all is
healed, and everything that was promised must hold. A seed replays its storm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from services.controller.tests.kit.dialogue import Cell, broker, cell

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Node, Partition
from headrace_controller.config import ControllerConfig
from headrace_controller.core import records
from headrace_controller.core.isr_changes import Proposal
from headrace_controller.core.leadership import Election
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ProbeResult

STEPS = 40
CONFIG = ControllerConfig(etcd_timeout_ms=100)


class Storm:
    """What was done, and what was promised in return."""

    def __init__(self, world: Cell, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        self.blocks: list[range] = []
        self.epochs: list[int] = []
        self.members: dict[int, int] = {}
        self.starts = dict.fromkeys((1, 2, 3), 0)
        self._names = count()
        self._watches: list[asyncio.Task[None]] = []
        self.images: list[ClusterImage] = []

    def anyone(self) -> ControllerEngine:
        """Mostly whoever believes to be active: the others only refuse."""
        engines = list(self.world.engines.values())
        active = [e for e in engines if e.candidate.term is not None]
        return self.chance.choice(active if active and self.chance.random() < 0.9 else engines)

    async def create(self) -> None:
        name = f"t{next(self._names)}"
        sizes = [1, 3, 99, 100, 101, 350]
        await self.anyone().create_topic(
            Wanted(name, self.chance.choice(sizes), self.chance.choice([1, 1, 2, 3])),
            validate_only=False,
            timeout_ms=200,
        )
        self.created.add(name)

    async def grow(self) -> None:
        engine = self.anyone()
        name = self.chance.choice(sorted(engine.image.topic_ids) or ["none"])
        topic = engine.image.topic(name)
        more = 1 if topic is None else topic.partition_count + self.chance.choice([1, 150])
        await engine.create_partitions(name, more, (), validate_only=False)

    async def delete(self) -> None:
        engine = self.anyone()
        name = self.chance.choice(sorted(engine.image.topic_ids) or ["none"])
        self.deleted.add(name)  # from here on it may be gone, whatever the answer
        await engine.delete_topic(name)

    async def allocate(self) -> None:
        number = self.chance.choice(list(self.members) or [1])
        self.blocks.append(await self.anyone().allocate_producer_ids(NodeId(number), self.members.get(number, 0)))

    async def register(self) -> None:
        number = self.chance.choice([1, 2, 3])
        clean = self.chance.random() < 0.5
        if self.chance.random() < 0.7:
            self.starts[number] += 1
            self.world.probe.results[broker(number).key] = ProbeResult.REFUSED
        previous = self.members.get(number) if clean else None
        joined = await self.anyone().register(Joining(self.process(number), "c1", previous))
        self.members[number] = joined.epoch
        self.epochs.append(joined.epoch)
        self.world.probe.results.pop(broker(number).key, None)

    def process(self, number: int) -> Node:
        """A broker as it was last started: some are of a version before feature levels."""
        start = self.starts[number]
        return replace(broker(number, start=start), feature_level_max=int((start * 7 + number) % 5 > 0))

    async def beat(self) -> None:
        engine = self.anyone()
        for number, epoch in list(self.members.items()):
            await self.world.beat(engine, broker(number), epoch)

    async def confirm(self) -> None:
        engine = self.anyone()
        for number, epoch in list(self.members.items()):
            removals = [i for i in engine.image.removals if self.chance.random() < 0.5]
            await engine.confirm_deletions(NodeId(number), epoch, list(engine.image.deletions), removals)

    async def change_isr(self) -> None:
        """Leaders ask for every replica, or for themselves alone; some know less than the controller."""
        engine = self.anyone()
        image = engine.image
        led = [p for p in image.partitions.values() if p.leader in self.members]
        for leader in sorted({p.leader for p in led}):
            wide = self.chance.random() < 0.6
            asked = [p for p in led if p.leader == leader][: self.chance.choice([1, 150])]
            await engine.alter_partitions(
                leader, self.members[leader], [_proposal(p, self.members, wide=wide) for p in asked]
            )

    async def reassign(self) -> None:
        engine = self.anyone()
        some = self.chance.sample(sorted(engine.image.partitions), k=min(60, len(engine.image.partitions)))
        targets = [(1, 2, 3), (2, 3), (3,), (3, 1), ()]
        wanted = {i: tuple(map(NodeId, self.chance.choice(targets))) for i in some}
        await engine.alter_reassignments(wanted, validate_only=False)

    async def elect(self) -> None:
        await self.anyone().elect(Election.PREFERRED, ())

    async def drain(self) -> None:
        await self.anyone().drain(NodeId(self.chance.choice([1, 2, 3])), drained=self.chance.random() < 0.5)

    async def lose_answers(self) -> None:
        self.world.store.answers_lost = self.chance.randint(1, 3)

    async def cut(self) -> None:
        self.world.links[self.chance.choice(list(self.world.links))].up = False
        await self.world.store.disconnect()

    async def mend(self) -> None:
        for link in self.world.links.values():
            link.up = True
        self.world.store.reachable = True

    async def away(self) -> None:
        self.world.store.reachable = self.chance.random() < 0.5
        await self.world.store.disconnect()

    async def compact(self) -> None:
        await self.world.store.compact()

    async def depose(self) -> None:
        """The lease ends while its holder believes in it: what a pause does."""
        for engine in self.world.engines.values():
            if engine.candidate.term is not None:
                await self.world.store.revoke_lease(engine.candidate._lease)

    async def time(self) -> None:
        await self.world.pass_ms(self.chance.choice([100, 500, 3_000, 12_000]))

    def watch(self, engine: ControllerEngine) -> None:
        """A watcher that checks each step: images go forward, epochs never back."""
        slot = len(self.images)
        self.images.append(EMPTY_IMAGE)

        async def follow() -> None:
            async for step in engine.watch(None):
                old, new = self.images[slot], self.images[slot].apply(step)
                for id, partition in new.partitions.items():
                    _check(partition)
                    before = old.partitions.get(id)
                    if before is not None and before != partition:
                        assert partition.partition_epoch > before.partition_epoch
                        assert partition.leader_epoch >= before.leader_epoch
                assert new.feature_level >= old.feature_level, "it never falls"
                assert all(node.feature_level_max >= new.feature_level for node in new.nodes.values())
                for topic in new.topics.values():
                    assert len(new.partitions_of(topic)) == topic.partition_count, "whole or not at all"
                self.images[slot] = new

        self._watches.append(asyncio.create_task(follow()))

    async def step(self) -> None:
        often: list[Callable[[], Awaitable[None]]] = [self.create, self.register, self.allocate, self.grow]
        often += [self.beat, self.beat, self.mend, self.mend]
        rare = [self.delete, self.confirm, self.lose_answers, self.cut, self.away, self.compact, self.depose, self.time]
        often += [self.change_isr, self.change_isr, self.reassign]
        rare += [self.elect, self.drain]
        actions = self.chance.choices(often * 3 + rare, k=self.chance.randint(1, 3))
        tasks = [asyncio.create_task(_tried(action)) for action in actions]
        for _ in range(self.chance.randint(0, 40)):
            await asyncio.sleep(0)
        for _ in range(300):
            if all(t.done() for t in tasks):
                break
            await self.world.pass_ms(100)
            await asyncio.sleep(0.001)
        for task in tasks:
            await task

    async def healed(self) -> ControllerEngine:
        self.world.store.answers_lost = 0
        await self.mend()
        await self.world.pass_ms(6_000)  # who was deposed has found out
        engines = list(self.world.engines.values())
        await self.world.until(
            lambda: sum(_sure(e) for e in engines) == 1 and all(e.follower.reachable for e in engines)
        )
        (engine,) = [e for e in engines if _sure(e)]
        for number in (1, 2, 3):
            self.world.probe.results.clear()
            self.starts[number] += 1
            self.world.probe.results[broker(number).key] = ProbeResult.REFUSED
            joined = await self.world.join(engine, replace(self.process(number), feature_level_max=1))
            self.members[number] = joined.epoch
            self.epochs.append(joined.epoch)
        self.world.probe.results.clear()
        await self.world.beating(engine, self.members, 3_000)
        await self.world.until(lambda: all(p.leader != NO_NODE for p in engine.image.partitions.values()))
        await self.world.until(lambda: engine.image.feature_level == 1)
        await self.finish_moves(engine)
        await self.confirm_all(engine)
        await self.world.until(lambda: all(e.image.revision == engine.image.revision for e in engines))
        await self.world.until(lambda: all(i.revision == engine.image.revision for i in self.images))
        return engine

    async def finish_moves(self, engine: ControllerEngine) -> None:
        """Every replica catches up, every leader says so, and that ends all reassignments."""
        for leader, epoch in self.members.items():
            led = [p for p in engine.image.partitions.values() if p.leader == leader]
            proposals = [_proposal(p, self.members, wide=True) for p in led]
            answers = await engine.alter_partitions(NodeId(leader), epoch, proposals)
            assert not [a for a in answers if isinstance(a, HeadraceError)]
        await self.world.until(lambda: not engine.list_reassignments(()))

    async def confirm_all(self, engine: ControllerEngine) -> None:
        for number, epoch in self.members.items():
            image = engine.image
            await engine.confirm_deletions(NodeId(number), epoch, list(image.deletions), list(image.removals))

    async def close(self) -> None:
        for task in self._watches:
            assert not task.done(), "a watcher found a broken promise" if not task.cancelled() else ""
            task.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)


def _proposal(partition: Partition, members: dict[int, int], *, wide: bool) -> Proposal:
    joining = [r for r in partition.replicas if r in members] if wide else [partition.leader]
    isr = {r: members[r] if r not in partition.isr else None for r in joining}
    return Proposal(partition.id, partition.leader_epoch, partition.partition_epoch, isr)


def _check(partition: Partition) -> None:
    """What holds in every image that anybody sees."""
    assert not set(partition.isr) & set(partition.elr)
    assert partition.leader == NO_NODE or partition.leader in partition.isr
    own = set(partition.replicas)
    assert {*partition.isr, *partition.elr, *partition.last_known_elr, *partition.adding, *partition.removing} <= own


def _sure(engine: ControllerEngine) -> bool:
    term = engine.candidate.term
    return term is not None and term.is_sure()


async def _tried(action: Callable[[], Awaitable[None]]) -> None:
    with suppress(HeadraceError):
        await action()


@pytest.mark.parametrize("seed", range(15))
async def test_after_any_storm_every_promise_holds(seed: int) -> None:
    async with cell(CONFIG) as world:
        for number in (1, 2, 3):
            await world.controller(number)
        await world.until(lambda: any(_sure(e) for e in world.engines.values()))
        storm = Storm(world, random.Random(seed))
        for engine in world.engines.values():
            storm.watch(engine)
        for _ in range(STEPS):
            await storm.step()
            assert world.tasks.failure is None, repr(world.tasks.failure)
        engine = await storm.healed()
        image = engine.image

        assert storm.created - storm.deleted <= set(image.topic_ids), "what was created is there"
        owned = {PartitionId(t.topic_id, n) for t in image.topics.values() for n in range(t.partition_count)}
        assert set(image.partitions) == owned
        stored = {i.key for i in (await world.store.list_all()).items if i.key.startswith(records.PARTITIONS_PREFIX)}
        assert stored == {records.partition_key(i) for i in owned}, "nothing is left behind"
        assert len(set(storm.epochs)) == len(storm.epochs), "an epoch is given once"
        ids = [i for block in storm.blocks for i in (block.start, block.stop - 1)]
        assert len(set(ids)) == len(ids), "a producer id is given once"
        assert all(p.leader != NO_NODE for p in image.partitions.values()), "all brokers are back"
        assert not image.deletions
        assert not image.removals
        for partition in image.partitions.values():
            assert set(partition.isr) == set(partition.replicas)
            assert not partition.elr
            assert not partition.recovering, "nobody allowed a loss"
        for other in (*(e.image for e in world.engines.values()), *storm.images):
            assert other.partitions == image.partitions
            assert other.topics == image.topics
            assert other.nodes == image.nodes
            assert other.feature_level == image.feature_level
            assert other.active_controller == image.active_controller
        await storm.close()
