"""Registration, sessions, fencing, leaving and fast death notice, on the memory store with a clock of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from services.controller.tests.kit.dialogue import Cell, broker, cell

from headrace_common.core.errors import (
    Conflict,
    DuplicateRegistration,
    InconsistentClusterId,
    NotFound,
    NotRegistered,
    StaleBrokerEpoch,
)
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ProbeResult


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


def fenced(engine: ControllerEngine, number: int) -> bool:
    return engine.image.nodes[broker(number).key].fenced


async def open_stream(engine: ControllerEngine, key: NodeKey) -> asyncio.Task[None]:
    async def read() -> None:
        async for _ in engine.watch(key):
            pass

    task = asyncio.create_task(read())
    for _ in range(20):
        await asyncio.sleep(0)
    return task


class TestRegistration:
    async def test_epochs_grow_over_all_nodes(self, world: Cell) -> None:
        engine = await world.active()
        epochs = [(await engine.register(Joining(broker(n)))).epoch for n in (1, 2, 3, 1)]
        assert epochs == sorted(set(epochs))

    async def test_many_at_once_get_different_epochs(self, world: Cell) -> None:
        engine = await world.active()
        joined = await asyncio.gather(*(engine.register(Joining(broker(n))) for n in range(20)))
        assert len({j.epoch for j in joined}) == 20

    async def test_fenced_until_it_has_seen_its_registration(self, world: Cell) -> None:
        engine = await world.active()
        before = engine.image.revision
        joined = await engine.register(Joining(broker(1)))
        assert (await engine.heartbeat(Heartbeat(broker(1).key, joined.epoch, before))).fenced
        assert (await world.beat(engine, broker(1), joined.epoch, want_fenced=True)).fenced
        assert not (await world.beat(engine, broker(1), joined.epoch)).fenced

    async def test_an_old_epoch_is_told_so(self, world: Cell) -> None:
        engine = await world.active()
        first = await world.join(engine, broker(1))
        world.probe.results[broker(1).key] = ProbeResult.REFUSED
        await world.join(engine, broker(1, start=1))
        with pytest.raises(StaleBrokerEpoch):
            await world.beat(engine, broker(1), first.epoch)
        with pytest.raises(StaleBrokerEpoch):
            await engine.allocate_producer_ids(broker(1).key.id, first.epoch)
        with pytest.raises(NotRegistered):
            await world.beat(engine, broker(7), 1)

    async def test_a_second_living_process_is_refused(self, world: Cell) -> None:
        engine = await world.active()
        await world.join(engine, broker(1))
        with pytest.raises(DuplicateRegistration, match="lives already"):
            await engine.register(Joining(broker(1, start=1)))
        assert not fenced(engine, 1)

    async def test_a_silent_predecessor_is_replaced(self, world: Cell) -> None:
        engine = await world.active()
        await world.join(engine, broker(1))
        world.probe.results[broker(1).key] = ProbeResult.SILENT
        await world.join(engine, broker(1, start=1))

    async def test_data_of_another_cluster_is_refused(self, world: Cell) -> None:
        engine = await world.active()
        with pytest.raises(InconsistentClusterId):
            await engine.register(Joining(broker(1), cluster_id="other"))
        assert (await engine.register(Joining(broker(1), cluster_id="c1"))).cluster_id == "c1"

    async def test_an_unclean_restart_elects_again_and_a_clean_one_too(self, world: Cell) -> None:
        engine = await world.active()
        first = await world.join(engine, broker(1))
        await world.create(engine, "t")
        world.probe.results[broker(1).key] = ProbeResult.REFUSED
        second = await engine.register(Joining(broker(1, start=1), "c1"))
        down = world.partition(engine, "t")
        assert (down.leader, down.isr, down.last_known_elr) == (NO_NODE, (), (1,))
        await world.beat(engine, broker(1), second.epoch)
        await world.until(lambda: world.partition(engine, "t").leader == 1)
        third = await engine.register(Joining(broker(1, start=2), "c1", second.epoch))
        down = world.partition(engine, "t")
        assert (down.leader, down.isr, down.elr, down.last_known_elr) == (NO_NODE, (), (1,), ())
        await world.beat(engine, broker(1), third.epoch)
        await world.until(lambda: world.partition(engine, "t").leader == 1)
        up = world.partition(engine, "t")
        assert up.leader_epoch == 4
        assert first.epoch < second.epoch < third.epoch

    async def test_a_damaged_replica_stays_offline_and_the_others_come_back(self, world: Cell) -> None:
        engine = await world.active()
        joined = await world.join(engine, broker(1))
        await world.create(engine, "t", 2)
        hurt = world.partition(engine, "t", 0).id
        again = await world.join(engine, broker(1, start=1), previous_epoch=joined.epoch, damaged=frozenset([hurt]))
        await world.until(lambda: world.partition(engine, "t", 1).leader == 1)
        await world.beating(engine, {1: again.epoch}, 3_000)
        lost = world.partition(engine, "t", 0)
        assert (lost.leader, lost.isr, lost.elr, lost.last_known_elr) == (NO_NODE, (), (), ())

    async def test_producer_ids_go_on_above_what_a_broker_reports(self, world: Cell) -> None:
        engine = await world.active()
        joined = await world.join(engine, broker(1), max_producer_id=41_999)
        assert await engine.allocate_producer_ids(broker(1).key.id, joined.epoch) == range(42_000, 43_000)

    async def test_leader_epochs_go_on_above_what_a_broker_reports(self, world: Cell) -> None:
        engine = await world.active()
        first = await world.join(engine, broker(1))
        await world.create(engine, "t")
        again = await world.join(engine, broker(1, start=1), previous_epoch=first.epoch, max_leader_epoch=40)
        await world.until(lambda: world.partition(engine, "t").leader == 1)
        assert world.partition(engine, "t").leader_epoch == 41
        await world.join(engine, broker(1, start=2), previous_epoch=again.epoch, max_leader_epoch=41)
        await world.until(lambda: world.partition(engine, "t").leader == 1)
        assert world.partition(engine, "t").leader_epoch == 43

    async def test_a_previous_epoch_above_the_counter_raises_it(self, world: Cell) -> None:
        engine = await world.active()
        joined = await engine.register(Joining(broker(1), previous_epoch=5_000))
        assert joined.epoch == 5_001


class TestSessions:
    async def test_silence_fences_and_speaking_again_unfences(self, world: Cell) -> None:
        engine = await world.active()
        one, two = await world.join(engine, broker(1)), await world.join(engine, broker(2))
        await engine.create_topic(_placed("t", 1), validate_only=False, timeout_ms=1_000)
        await world.beating(engine, {1: one.epoch, 2: two.epoch}, 20_000)
        assert not fenced(engine, 1)
        await world.beating(engine, {2: two.epoch}, 8_000)
        assert not fenced(engine, 1)
        await world.beating(engine, {2: two.epoch}, 3_000)
        assert fenced(engine, 1)
        assert not fenced(engine, 2)
        await world.until(lambda: world.partition(engine, "t").leader == NO_NODE)
        await world.beat(engine, broker(1), one.epoch)
        await world.until(lambda: world.partition(engine, "t").leader == 1)

    async def test_a_new_controller_gives_everyone_a_full_session(self, world: Cell) -> None:
        first = await world.active(1)
        joined = await world.join(first, broker(1))
        second = await world.controller(2)
        await world.beating(first, {1: joined.epoch}, 1_000)
        await world.pass_ms(7_000)
        await first.candidate.resign()
        await world.until(lambda: second.candidate.term is not None)
        await world.pass_ms(8_000)
        assert not fenced(second, 1), "7 s with the old and 8 s with the new"
        await world.pass_ms(2_000)
        assert fenced(second, 1)


class TestLeaving:
    async def test_leaders_go_then_it_may_stop(self, world: Cell) -> None:
        engine = await world.active()
        one, two = await world.join(engine, broker(1)), await world.join(engine, broker(2))
        await world.create(engine, "t", 4)
        assert not (await world.beat(engine, broker(1), one.epoch)).may_shut_down
        vitals = await world.beat(engine, broker(1), one.epoch, want_shutdown=True)
        assert vitals.may_shut_down
        assert all(p.leader != 1 for p in engine.image.partitions.values())
        assert not vitals.fenced
        assert sum(p.leader == 2 for p in engine.image.partitions.values()) == 2
        assert two.epoch > one.epoch

    async def test_no_topics_are_placed_on_who_leaves(self, world: Cell) -> None:
        engine = await world.active()
        one, _ = await world.join(engine, broker(1)), await world.join(engine, broker(2))
        await world.beat(engine, broker(1), one.epoch, want_shutdown=True)
        await world.create(engine, "t", 4)
        assert {p.leader for p in engine.image.partitions.values()} == {2}

    async def test_unregister_refuses_the_living_and_holders(self, world: Cell) -> None:
        engine = await world.active()
        one = await world.join(engine, broker(1))
        with pytest.raises(Conflict, match="lives"):
            await engine.unregister(broker(1).key)
        await world.create(engine, "t")
        await world.pass_ms(10_000)
        await world.until(lambda: fenced(engine, 1))
        with pytest.raises(Conflict, match="holds 1 replicas"):
            await engine.unregister(broker(1).key)
        await engine.delete_topic("t")
        assert len(engine.image.deletions) == 1
        await engine.unregister(broker(1).key)
        assert not engine.image.deletions, "nobody waits for a broker that is gone for good"
        assert broker(1).key not in engine.image.nodes
        with pytest.raises(NotFound):
            await engine.unregister(broker(1).key)
        assert one.epoch > 0

    async def test_who_keeps_nothing_may_be_forgotten_while_it_leaves(self, world: Cell) -> None:
        engine = await world.active()
        admin = replace(broker(1), key=NodeKey(Role.ADMIN, NodeId(1)))
        joined = await world.join(engine, admin)
        with pytest.raises(Conflict, match="lives"):
            await engine.unregister(admin.key)
        await world.beat(engine, admin, joined.epoch, want_shutdown=True)
        await engine.unregister(admin.key)
        assert admin.key not in engine.image.nodes


class TestDeaths:
    async def refused_once(self, world: Cell) -> ControllerEngine:
        """Broker 1's stream broke, and the first look found that nobody listens there; the second is to come."""
        engine = await world.active()
        await world.join(engine, broker(1))
        stream = await open_stream(engine, broker(1).key)
        world.probe.results[broker(1).key] = ProbeResult.REFUSED
        world.probe.looks.clear()
        stream.cancel()
        await world.until(lambda: broker(1).key in world.probe.looks, ms=200)
        return engine

    async def test_a_refused_connection_fences_at_once(self, world: Cell) -> None:
        engine = await world.active()
        joined = await world.join(engine, broker(1))
        await world.join(engine, broker(2))
        stream = await open_stream(engine, broker(1).key)
        await world.pass_ms(1_000)
        await world.beat(engine, broker(1), joined.epoch)
        world.probe.results[broker(1).key] = ProbeResult.REFUSED
        stream.cancel()
        await world.until(lambda: fenced(engine, 1), ms=700)
        assert not fenced(engine, 2)

    async def test_a_refusal_and_then_nobody_at_all_fences_at_once(self, world: Cell) -> None:
        """A pod that is torn down: its network goes a moment after its processes."""
        engine = await self.refused_once(world)
        world.probe.results[broker(1).key] = ProbeResult.SILENT
        await world.until(lambda: fenced(engine, 1), ms=700)

    async def test_one_refusal_is_not_enough(self, world: Cell) -> None:
        engine = await self.refused_once(world)
        world.probe.results[broker(1).key] = ProbeResult.SAME
        await world.pass_ms(2_000)
        assert len(world.probe.looks) >= 2
        assert not fenced(engine, 1)

    @pytest.mark.parametrize("answer", [ProbeResult.SAME, ProbeResult.SILENT, ProbeResult.ANSWERS])
    async def test_anything_else_waits_for_the_session(self, world: Cell, answer: ProbeResult) -> None:
        engine = await world.active()
        await world.join(engine, broker(1))
        stream = await open_stream(engine, broker(1).key)
        world.probe.results[broker(1).key] = answer
        stream.cancel()
        await world.pass_ms(5_000)
        assert not fenced(engine, 1)
        await world.pass_ms(5_000)
        assert fenced(engine, 1)

    async def test_another_process_at_the_address_fences(self, world: Cell) -> None:
        engine = await world.active()
        await world.join(engine, broker(1))
        stream = await open_stream(engine, broker(1).key)
        world.probe.results[broker(1).key] = ProbeResult.OTHER
        stream.cancel()
        await world.until(lambda: fenced(engine, 1), ms=300)

    async def test_a_second_stream_of_the_same_node_counts(self, world: Cell) -> None:
        engine = await world.active()
        await world.join(engine, broker(1))
        old, _ = await open_stream(engine, broker(1).key), await open_stream(engine, broker(1).key)
        await world.pass_ms(1_000)
        world.probe.looks.clear()
        world.probe.results[broker(1).key] = ProbeResult.REFUSED
        old.cancel()
        await world.pass_ms(2_000)
        assert not world.probe.looks

    async def test_a_controller_that_is_cut_off_fences_nobody_fast(self, world: Cell) -> None:
        engine = await world.active()
        streams = []
        for n in (1, 2, 3):
            await world.join(engine, broker(n))
            streams.append(await open_stream(engine, broker(n).key))
        for n in (1, 2):
            world.probe.results[broker(n).key] = ProbeResult.REFUSED
        world.probe.results[broker(3).key] = ProbeResult.SILENT
        for stream in streams:
            stream.cancel()
        await world.pass_ms(5_000)
        assert [fenced(engine, n) for n in (1, 2, 3)].count(True) == 1, "the first alone is believed"
        world.probe.results[broker(3).key] = ProbeResult.SAME
        await world.until(lambda: fenced(engine, 1) and fenced(engine, 2), ms=2_000)

    async def test_two_that_die_together_are_fenced_while_another_can_be_reached(self, world: Cell) -> None:
        engine = await world.active()
        streams = []
        for n in (1, 2, 3):
            await world.join(engine, broker(n))
            streams.append(await open_stream(engine, broker(n).key))
        for n in (1, 2):
            world.probe.results[broker(n).key] = ProbeResult.REFUSED
            streams[n - 1].cancel()
        await world.until(lambda: fenced(engine, 1) and fenced(engine, 2), ms=900)
        assert not fenced(engine, 3)

    async def test_a_broker_that_follows_a_standby_is_noticed_too(self, world: Cell) -> None:
        first, second = await world.active(1), await world.controller(2)
        await world.join(first, broker(1))
        stream = await open_stream(second, broker(1).key)
        await world.pass_ms(2_000)
        world.probe.results[broker(1).key] = ProbeResult.REFUSED
        stream.cancel()
        await world.until(lambda: fenced(first, 1), ms=1_600)

    async def test_brokers_that_said_goodbye_are_believed_without_a_witness(self, world: Cell) -> None:
        engine = await world.active()
        joined = [await world.join(engine, broker(n)) for n in (1, 2, 3)]
        streams = [await open_stream(engine, broker(n).key) for n in (1, 2, 3)]
        for n in (1, 2, 3):
            vitals = await world.beat(engine, broker(n), joined[n - 1].epoch, want_shutdown=True)
            assert vitals.may_shut_down
            world.probe.results[broker(n).key] = ProbeResult.REFUSED
            streams[n - 1].cancel()
        await world.until(lambda: all(fenced(engine, n) for n in (1, 2, 3)), ms=900)

    async def test_a_new_controller_looks_at_who_has_no_stream(self, world: Cell) -> None:
        first = await world.active(1)
        await world.join(first, broker(1))
        await world.join(first, broker(2))
        second = await world.controller(2)
        await open_stream(second, broker(2).key)
        world.probe.results[broker(1).key] = ProbeResult.REFUSED
        world.probe.looks.clear()
        await first.candidate.resign()
        await world.until(lambda: second.candidate.term is not None)
        await world.until(lambda: fenced(second, 1), ms=1_500)
        assert broker(2).key not in world.probe.looks


def _placed(name: str, *brokers: int) -> Wanted:
    return Wanted(name, assignments=tuple((NodeId(b),) for b in brokers))
