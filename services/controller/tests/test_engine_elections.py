"""Who is active: hand-over, zombies, the store away; and what watchers see of it all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from services.controller.tests.kit.dialogue import Cell, broker, cell

from headrace_common.core.errors import MetadataUnavailable, NotController
from headrace_common.core.ids import Endpoint, NodeId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ActiveController, ClusterImage, ImageDelta
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.core import records
from headrace_controller.core.records import Cluster
from headrace_controller.core.store import Put, Transaction
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.feed import Feed


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


class Watcher:
    """Follows a controller as a broker does."""

    def __init__(self, engine: ControllerEngine) -> None:
        self.image: ClusterImage = EMPTY_IMAGE
        self.snapshots = 0
        self._engine = engine
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for step in self._engine.watch(None):
            self.snapshots += step.previous_revision is None
            self.image = self.image.apply(step)


class TestElection:
    async def test_one_is_active_the_other_says_who(self, world: Cell) -> None:
        first, second = await world.active(1), await world.controller(2)
        await world.join(first, broker(1))
        await world.create(first, "t")
        await world.until(lambda: second.image.revision == first.image.revision)
        assert second.describe_topic("t") == first.describe_topic("t")
        assert second.describe_cluster().image.active_controller == first.image.active_controller
        with pytest.raises(NotController) as refusal:
            await world.create(second, "u")
        assert refusal.value.endpoint_hint == "127.0.0.1:9391"

    async def test_resigning_hands_over_at_once(self, world: Cell) -> None:
        first, second = await world.active(1), await world.controller(2)
        before = world.clock.monotonic_ms()
        await first.candidate.resign()
        await world.until(lambda: second.candidate.term is not None)
        assert world.clock.monotonic_ms() - before < 500
        with pytest.raises(NotController):
            await world.create(first, "t")

    async def test_a_dead_one_is_not_waited_for(self, world: Cell) -> None:
        """Its process is gone; its lease of a minute is not."""
        world.config = replace(world.config, lease_ttl_s=60)
        first = await world.active(1)
        second = await world.controller(2)
        first.candidate._lease, held = 0, first.candidate._lease
        world.links[1].up = False
        world.probe.deaf.add(Endpoint("127.0.0.1", 9391))
        before = world.clock.monotonic_ms()
        await world.until(lambda: second.candidate.term is not None)
        assert world.clock.monotonic_ms() - before < 1_500
        first.candidate._lease = held

    async def test_one_that_is_silent_is(self, world: Cell) -> None:
        first, second = await world.active(1), await world.controller(2)
        terms = first.candidate.terms
        await world.pass_ms(10_000)
        assert (first.candidate.terms, second.candidate.term) == (terms, None)

    async def test_a_restart_on_the_same_address_succeeds_itself(self, world: Cell) -> None:
        key = records.CONTROLLER_KEY
        lease = await world.store.grant_lease(60)
        dead = ActiveController(NodeId(1), 7, Endpoint("127.0.0.1", 9391))
        await world.store.commit(
            Transaction(
                (),
                (
                    Put(records.FORMAT_KEY, records.encode_number(records.FORMAT)),
                    Put(records.CLUSTER_KEY, records.encode(Cluster("c1", b"i" * 16))),
                    Put(records.EPOCH_KEY, records.encode_number(7)),
                    Put(key, records.encode(dead), lease),
                ),
            )
        )
        before = world.clock.monotonic_ms()
        engine = await world.active(1)
        assert world.clock.monotonic_ms() - before < 1_500
        assert engine.candidate.term is not None
        assert engine.candidate.term.epoch == 8

    async def test_epochs_of_controllers_and_nodes_never_repeat(self, world: Cell) -> None:
        first, second = await world.active(1), await world.controller(2)
        joined = await world.join(first, broker(1))
        await first.candidate.resign()
        await world.until(lambda: second.candidate.term is not None)
        assert second.candidate.term is not None
        assert second.candidate.term.epoch > joined.epoch

    async def test_a_zombie_changes_nothing(self, world: Cell) -> None:
        """The first was paused: its lease ended, the second was elected, and it does not know yet."""
        first, second = await world.active(1), await world.controller(2)
        joined = await world.join(first, broker(1))
        lease = first.candidate._lease
        await world.store.revoke_lease(lease)
        await world.until(lambda: second.candidate.term is not None, ms=500)
        zombie = first.candidate.term
        assert zombie is not None
        assert zombie.is_sure()
        revision = world.store.revision
        with pytest.raises(NotController):
            await zombie.topics.create(_wanted("t", 300), validate_only=False, timeout_ms=1_000)
        with pytest.raises(NotController):
            await zombie.nodes.fence(broker(1).key, "test", epoch=joined.epoch)
        with pytest.raises(NotController):
            await zombie.producer_ids.allocate()
        assert world.store.revision == revision
        await world.until(lambda: first.candidate.term is None)
        assert second.candidate.term is not None

    async def test_a_new_active_controller_sweeps_and_settles_what_the_old_one_left(self, world: Cell) -> None:
        first = await world.active(1)
        joined = await world.join(first, broker(1))
        await world.create(first, "t", 250)
        await first.candidate.resign()
        node = first.image.nodes[broker(1).key]
        half = world.partition(first, "t", 0)
        orphan = replace(half, id=half.id._replace(topic_id=TopicId(b"o" * 16)))
        await world.store.commit(
            Transaction(
                (),
                (
                    Put(records.node_key(node.key), records.encode(replace(node, fenced=True))),
                    Put(records.partition_key(orphan.id), records.encode(orphan)),
                ),
            )
        )
        second = await world.active(2)
        await world.until(lambda: all(p.offline for p in second.image.partitions.values()))
        await world.until(lambda: not second.follower.mirror.hidden)
        assert len(second.image.partitions) == 250
        assert await world.store.get(records.partition_key(orphan.id)) is None
        assert joined.epoch == node.epoch


class TestStoreAway:
    async def test_reads_go_on_writes_are_refused_and_all_recovers(self, world: Cell) -> None:
        engine = await world.active()
        joined = await world.join(engine, broker(1))
        await world.create(engine, "t")
        watcher = Watcher(engine)
        world.store.reachable = False
        await world.store.disconnect()
        with pytest.raises(MetadataUnavailable):
            await world.create(engine, "u")
        await world.pass_ms(20_000)
        assert engine.describe_topic("t") is not None
        with pytest.raises(MetadataUnavailable):
            await world.beat(engine, broker(1), joined.epoch)
        world.store.reachable = True
        await world.until(lambda: engine.candidate.term is not None)
        assert not (await world.beat(engine, broker(1), joined.epoch)).fenced, "a full session with the new term"
        await world.create(engine, "u")
        await world.until(lambda: watcher.image.revision == engine.image.revision)
        assert watcher.image.topics == engine.image.topics
        watcher.task.cancel()

    async def test_it_starts_without_the_store(self, world: Cell) -> None:
        world.store.reachable = False
        starting = asyncio.create_task(world.controller(1))
        await world.pass_ms(3_000)
        with pytest.raises(MetadataUnavailable):
            world.engines[1].describe_cluster()
        world.store.reachable = True
        engine = await starting
        await world.until(lambda: engine.candidate.term is not None)

    async def test_who_has_seen_its_image_is_not_told_that_there_is_no_store(self, world: Cell) -> None:
        await world.active()
        seen: list[bool] = []
        second = world.make(2)
        second.follower.on_step = lambda _: seen.append(second.follower.reachable)
        await world.until(lambda: second.follower.mirror.loaded)
        assert seen
        assert all(seen)

    async def test_compaction_means_listing_again_and_publishing_the_difference(self, world: Cell) -> None:
        first, second = await world.active(1), await world.controller(2)
        await world.join(first, broker(1))
        await world.create(first, "old", 3)
        await world.until(lambda: second.image.revision == first.image.revision)
        watcher = Watcher(second)
        await world.until(lambda: watcher.image.revision == first.image.revision)
        world.links[2].up = False
        await world.store.disconnect()
        await world.until(lambda: not second.follower.reachable and first.follower.reachable)
        await first.delete_topic("old")
        await world.create(first, "new", 2)
        await world.store.compact()
        world.links[2].up = True
        await world.until(lambda: watcher.image.topic("new") is not None)
        await world.until(lambda: watcher.image.revision == first.image.revision)
        assert watcher.image.topic_ids == first.image.topic_ids
        assert watcher.image.partitions == first.image.partitions
        assert watcher.image.deletions == first.image.deletions
        assert watcher.snapshots == 1
        watcher.task.cancel()

    async def test_a_store_that_lost_changes_does_not_take_the_image_back(self, world: Cell) -> None:
        engine = await world.active()
        await world.join(engine, broker(1))
        await world.create(engine, "t")
        held = engine.image
        older = MemoryStore(world.clock)
        cluster = await world.store.get(records.CLUSTER_KEY)
        assert cluster is not None
        await older.commit(Transaction((), (Put(records.CLUSTER_KEY, cluster.value),)))
        world.links[1].target = older
        await world.store.disconnect()
        await world.pass_ms(10_000)
        assert engine.image is held
        with pytest.raises(MetadataUnavailable):
            await world.create(engine, "u")
        restored = records.encode(Cluster("c1", b"r" * 16))
        await older.commit(Transaction((), (Put(records.CLUSTER_KEY, restored),)))
        await world.until(lambda: engine.image.incarnation == b"r" * 16)
        assert not engine.image.topics


class TestFeed:
    async def test_a_slow_watcher_gets_a_snapshot_instead_of_a_long_queue(self) -> None:
        feed = Feed(EMPTY_IMAGE, queue_max=4)
        image = EMPTY_IMAGE
        seen: list[ImageDelta] = []
        watch = feed.follow()

        def move() -> None:
            nonlocal image
            previous = image.revision or None
            step = ImageDelta(b"i" * 16, previous, image.revision + 1, "c")
            image = image.apply(step)
            feed.publish(image, step)

        move()
        seen.append(await anext(watch))
        for _ in range(4):
            move()
        seen += [await anext(watch) for _ in range(4)]
        assert [s.previous_revision for s in seen] == [None, 1, 2, 3, 4]
        for _ in range(9):
            move()
        step = await anext(watch)
        assert (step.previous_revision, step.revision) == (None, 14)
        assert feed.overflows == 1
        move()
        step = await anext(watch)
        assert (step.previous_revision, step.revision) == (14, 15)

    async def test_watchers_share_one_snapshot(self, world: Cell) -> None:
        engine = await world.active()
        one, two = engine.watch(None), engine.watch(None)
        assert await anext(one) is await anext(two)


def _wanted(name: str, count: int) -> Wanted:
    return Wanted(name, count, 1)
