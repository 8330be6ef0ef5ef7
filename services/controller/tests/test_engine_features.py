"""The cluster's feature level: when it rises, who holds it back, who is refused, and what happens in its midst."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from services.controller.tests.kit.dialogue import Cell, Link, broker, cell

from headrace_common.core.errors import HeadraceError, UnsupportedVersion
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.runtime.service import ServerConfig
from headrace_controller.config import ControllerConfig
from headrace_controller.core import records
from headrace_controller.core.records import Cluster
from headrace_controller.core.restore_record import RESTORE_KEY, Restore, encode_restore
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.store import Outcome, Put, Transaction
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ProbeResult, StoreOutcomeUnknown


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


def node(number: int, level: int, *, role: Role = Role.BROKER, start: int = 0) -> Node:
    return replace(broker(number, start=start), key=NodeKey(role, NodeId(number)), feature_level_max=level)


async def settled(world: Cell) -> None:
    """Time for several looks at the nodes."""
    await world.pass_ms(2_000)


async def stored_level(world: Cell) -> int:
    found = await world.store.get(records.CLUSTER_KEY)
    assert found is not None
    cluster = records.decode(found.key, found.value)
    assert isinstance(cluster, Cluster)
    return cluster.feature_level


class TestRise:
    async def test_it_rises_once_the_last_of_all_roles_has_the_level(self, world: Cell) -> None:
        engine = await world.active()
        old = [node(n, 0, role=role) for n, role in enumerate(Role)]
        for each in old:
            await engine.register(Joining(each))
        for each in old:
            await settled(world)
            assert (engine.image.feature_level, await stored_level(world)) == (0, 0), f"{each.key} is not replaced yet"
            world.probe.results[each.key] = ProbeResult.REFUSED
            await engine.register(Joining(replace(each, incarnation=b"n" * 16, feature_level_max=1)))
        await world.until(lambda: engine.image.feature_level == 1)
        assert await stored_level(world) == 1

    async def test_with_nobody_registered_it_stays(self, world: Cell) -> None:
        engine = await world.active()
        await settled(world)
        assert engine.image.feature_level == 0

    async def test_a_fenced_node_holds_it_back_until_it_is_unregistered(self, world: Cell) -> None:
        engine = await world.active()
        await engine.register(Joining(node(1, 1)))
        await engine.register(Joining(node(2, 0)))
        await settled(world)
        assert engine.image.feature_level == 0
        await engine.unregister(node(2, 0).key)
        await world.until(lambda: engine.image.feature_level == 1)

    async def test_a_level_that_this_controller_does_not_know_is_not_written(self, world: Cell) -> None:
        engine = await world.active()
        await engine.register(Joining(node(1, HIGHEST + 5)))
        await world.until(lambda: engine.image.feature_level == HIGHEST)
        await settled(world)
        assert await stored_level(world) == HIGHEST

    async def test_standbys_and_followers_of_the_image_see_it_in_one_step(self, world: Cell) -> None:
        engine, standby = await world.active(), await world.controller(2)
        async with aclosing(standby.watch(None)) as steps:
            await anext(steps)
            await engine.register(Joining(node(1, 1)))
            await world.until(lambda: standby.image.feature_level == 1)
            while (step := await anext(steps)).feature_level is None:
                pass
        assert (step.feature_level, step.revision) == (1, engine.image.revision)
        assert step.previous_revision is not None, "a step, no snapshot"
        assert standby.image.revision == engine.image.revision

    async def test_while_a_restore_is_unfinished_it_stays(self, world: Cell) -> None:
        engine = await world.active()
        mirror = engine.follower.mirror
        waiting = Restore(1, 2, 3, (NodeId(7),), 0, (b"o" * 16,), 1)
        await world.store.commit(Transaction((), (Put(RESTORE_KEY, encode_restore(waiting)),)))
        await world.until(lambda: mirror.waits_for_logs)
        await engine.register(Joining(node(1, 1)))
        await settled(world)
        assert engine.image.feature_level == 0
        done = replace(waiting, finished=True)
        await world.store.commit(Transaction((), (Put(RESTORE_KEY, encode_restore(done)),)))
        await world.until(lambda: engine.image.feature_level == 1)


class TestRefusal:
    async def test_a_node_below_the_level_is_refused_with_both_numbers(self, world: Cell) -> None:
        engine = await world.active()
        first = await world.join(engine, node(1, 1))
        await world.until(lambda: engine.image.feature_level == 1)
        world.probe.results[node(1, 0).key] = ProbeResult.REFUSED
        with pytest.raises(
            UnsupportedVersion, match=r"broker-1 .* up to 0, the cluster is at level 1 .* start the newer"
        ):
            await engine.register(Joining(node(1, 0, start=1)))
        assert engine.image.nodes[node(1, 1).key].epoch == first.epoch, "nothing was changed by it"
        assert not engine.image.nodes[node(1, 1).key].fenced

    async def test_going_back_works_before_the_rise(self, world: Cell) -> None:
        engine = await world.active()
        await engine.register(Joining(node(1, 1)))
        await engine.register(Joining(node(2, 0)))
        await settled(world)
        world.probe.results[node(1, 0).key] = ProbeResult.REFUSED
        await world.join(engine, node(1, 0, start=1))
        await engine.unregister(node(2, 0).key)
        await settled(world)
        assert engine.image.feature_level == 0, "the one that went back holds it"

    @pytest.mark.parametrize("level", [-1, 2**31 - 1])
    async def test_a_nonsensical_level_is_refused(self, world: Cell, level: int) -> None:
        engine = await world.active()
        with pytest.raises(HeadraceError, match="feature_level_max"):
            await engine.register(Joining(node(1, level)))

    async def test_a_controller_below_the_level_ends_when_it_sees_it(self, world: Cell) -> None:
        engine = await world.active()
        held_back = replace(world.config, server=ServerConfig(feature_level_max=0))
        world.config = held_back
        older = await world.controller(2)
        world.config = ControllerConfig()
        await engine.register(Joining(node(1, 1)))
        with pytest.raises(AssertionError, match="this controller knows feature levels up to 0"):
            await world.until(lambda: engine.image.feature_level == 1 and older.image.feature_level == 1)


class TestOlderControllers:
    async def test_a_heartbeat_brings_what_an_older_controller_left_out(self, world: Cell) -> None:
        engine = await world.active()
        one = node(1, 0)
        joined = await world.join(engine, one)
        await settled(world)
        assert engine.image.feature_level == 0
        vitals = await engine.heartbeat(Heartbeat(one.key, joined.epoch, engine.image.revision, feature_level_max=1))
        assert not vitals.fenced
        await world.until(lambda: engine.image.feature_level == 1)
        assert engine.image.nodes[one.key].epoch == joined.epoch, "without a new registration"

    async def test_a_heartbeat_never_lowers_it(self, world: Cell) -> None:
        engine = await world.active()
        joined = await world.join(engine, node(1, 1))
        await world.beat(engine, node(1, 1), joined.epoch)
        assert engine.image.nodes[node(1, 1).key].feature_level_max == 1


class Interposed(Link):
    """A way to the store on which something happens just before a key is written."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.target)
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        self.loses_answer = False
        self.rises = 0

    async def commit(self, transaction: Transaction) -> Outcome:
        keys = {o.key for o in transaction.operations if isinstance(o, Put)}
        for key in keys & self.before.keys():
            await self.before.pop(key)()
        rises = keys == {records.CLUSTER_KEY}
        self.rises += rises
        done = await super().commit(transaction)
        if not rises:
            return done
        if self.loses_answer:
            self.loses_answer = False
            raise StoreOutcomeUnknown("the test lost the answer")
        return done


async def interposed(world: Cell, number: int = 1) -> tuple[ControllerEngine, Interposed]:
    link = Interposed(Link(world.store))
    world.links[number] = link
    return await world.active(number), link


class TestMidst:
    async def test_a_node_that_registers_just_before_the_rise_is_seen(self, world: Cell) -> None:
        engine, link = await interposed(world)
        link.before[records.CLUSTER_KEY] = lambda: engine.register(Joining(node(2, 0)))
        await engine.register(Joining(node(1, 1)))
        await world.until(lambda: link.rises > 0)
        await settled(world)
        assert await stored_level(world) == 0
        assert link.rises == 1

    async def test_a_registration_that_meets_the_rise_is_refused(self, world: Cell) -> None:
        """It was decided at level 0; its write compares the cluster's record, and finds that it has changed."""
        engine, link = await interposed(world)
        await engine.register(Joining(node(1, 1)))
        term = engine.candidate.term
        assert term is not None
        link.before[records.node_key(node(2, 0).key)] = term.features.rise
        with pytest.raises(UnsupportedVersion):
            await engine.register(Joining(node(2, 0)))
        assert engine.image.feature_level == 1
        assert node(2, 0).key not in engine.image.nodes

    async def test_an_answer_that_is_lost_is_looked_up(self, world: Cell) -> None:
        engine, link = await interposed(world)
        link.loses_answer = True
        await engine.register(Joining(node(1, 1)))
        await world.until(lambda: engine.image.feature_level == 1)
        await settled(world)
        assert link.rises == 1

    @pytest.mark.parametrize("written", [False, True])
    async def test_a_controller_that_dies_in_the_midst_leaves_it_to_the_next(self, world: Cell, written: bool) -> None:
        engine, link = await interposed(world)
        standby = await world.controller(2)

        async def cut() -> None:
            link.up = written  # either it reaches the store and nothing after it does, or it does not

        link.before[records.CLUSTER_KEY] = cut
        link.loses_answer = written
        await engine.register(Joining(node(1, 1)))
        await world.until(lambda: link.rises > 0)
        link.up = False
        await world.until(lambda: standby.candidate.term is not None)
        await world.until(lambda: standby.image.feature_level == 1)
        assert await stored_level(world) == 1
        with pytest.raises(UnsupportedVersion):
            await standby.register(Joining(node(3, 0)))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("register"), st.integers(1, 4), st.integers(0, HIGHEST + 1)),
            st.tuples(st.just("beat"), st.integers(1, 4), st.integers(0, HIGHEST + 1)),
            st.tuples(st.just("unregister"), st.integers(1, 4), st.just(0)),
            st.tuples(st.just("next controller"), st.just(0), st.just(0)),
        ),
        max_size=14,
    )
)
def test_it_never_falls_and_is_never_above_the_lowest_registered(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(walk(steps))


async def walk(steps: list[tuple[str, int, int]]) -> None:
    async with cell() as world:
        number, highest = 1, 0
        engine = await world.active(number)
        for starts, (what, who, level) in enumerate(steps, 1):
            key = node(who, 0).key
            world.probe.results[key] = ProbeResult.REFUSED
            found = engine.image.nodes.get(key)
            if what == "register":
                below = level < engine.image.feature_level
                try:
                    await engine.register(Joining(node(who, level, start=starts)))
                    assert not below
                except UnsupportedVersion:
                    assert below
            elif what == "beat" and found is not None:
                await engine.heartbeat(Heartbeat(key, found.epoch, 0, feature_level_max=level))
            elif what == "unregister" and found is not None:
                await engine.unregister(key)
            elif what == "next controller":
                world.links[number].up = False
                number += 1
                engine = await world.active(number)
            await world.pass_ms(500)
            image = engine.image
            lowest = min((n.feature_level_max for n in image.nodes.values()), default=None)
            assert image.feature_level >= highest, "never falls"
            assert image.feature_level <= HIGHEST
            if lowest is not None:
                assert image.feature_level <= lowest, "never above the lowest registered"
                assert image.feature_level == max(highest, min(lowest, HIGHEST)), "and as high as it may be"
            highest = image.feature_level
