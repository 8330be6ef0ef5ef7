"""A restore that dies between any two writes leaves no cluster, and is whole when it is repeated."""

from __future__ import annotations

import pytest
from libs.common.tests.kit.clock import FakeClock
from services.controller.tests.kit.dialogue import broker, cell

from headrace_common.core.errors import Conflict, HeadraceError, MetadataUnavailable
from headrace_common.core.ids import NodeId
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.backup import take
from headrace_controller.core import records
from headrace_controller.core.backup_file import Backup, Row
from headrace_controller.core.records import Cluster, Configs
from headrace_controller.core.restore_record import RESTORING_KEY
from headrace_controller.core.restored import Restored, restore_metadata
from headrace_controller.core.store import CreatedAt, Listing, Outcome, Put, Transaction
from headrace_controller.engine import restore_writing
from headrace_controller.engine.restore_writing import ControllersRun
from headrace_controller.ports import StoreOutcomeUnknown, StoreUnavailable


def made(configs: int = 320, name: str = "new", incarnation: bytes = b"n" * 16) -> Restored:
    rows = [
        Row("format", b"1"),
        Row("cluster", records.encode(Cluster("id", b"o" * 16))),
        *(Row(f"configs/brokers/{n}", records.encode(Configs(NodeId(n), {name: "x"}))) for n in range(configs)),
    ]
    return restore_metadata(Backup("c", 5, 1, tuple(rows)), [NodeId(1)], 2, incarnation)


async def filled(store: MemoryStore, keys: int = 250) -> None:
    """A cluster that is there already."""
    cluster = (Put("format", b"1"), Put("cluster", records.encode(Cluster("id", b"x" * 16))))
    await store.commit(Transaction((), cluster))
    for n in range(keys):
        old = Put(f"configs/brokers/{10_000 + n}", records.encode(Configs(NodeId(10_000 + n), {})))
        await store.commit(Transaction((), (old,)))


async def content(store: MemoryStore) -> dict[str, bytes]:
    return {item.key: item.value for item in (await store.list_all()).items}


def whole(of: Restored) -> dict[str, bytes]:
    return {row.key: row.value for row in (*of.rows, *of.last)}


class Dying(MemoryStore):
    """Lets so many transactions happen; then the program is dead, before or after the next one happened."""

    left = 1_000_000
    late = False

    async def commit(self, transaction: Transaction) -> Outcome:
        if self.left == 0:
            if self.late:
                await super().commit(transaction)
            raise StoreUnavailable("killed")
        self.left -= 1
        return await super().commit(transaction)


async def test_into_an_empty_store() -> None:
    store = MemoryStore(FakeClock())
    ready = made()
    revision = await restore_writing.write(store, ready, replace=False)
    assert await content(store) == whole(ready)
    assert revision == store.revision


async def test_a_cluster_that_is_there_is_replaced_only_on_demand() -> None:
    store = MemoryStore(FakeClock())
    await filled(store)
    before = await content(store)
    with pytest.raises(Conflict, match="--replace"):
        await restore_writing.write(store, made(), replace=False)
    assert await content(store) == before
    ready = made()
    await restore_writing.write(store, ready, replace=True)
    assert await content(store) == whole(ready)


async def test_not_beside_an_active_controller() -> None:
    store = MemoryStore(FakeClock())
    await filled(store, 1)
    await store.commit(Transaction((), (Put("controller", b"somebody"),)))
    before = await content(store)
    with pytest.raises(ControllersRun):
        await restore_writing.write(store, made(), replace=True)
    assert await content(store) == before


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("replace", [False, True])
async def test_killed_between_any_two_writes(replace: bool, late: bool) -> None:
    for lives in range(12):
        store = Dying(FakeClock())
        if replace:
            await filled(store)
        store.left, store.late = lives, late
        first, second = made(name="first"), made(name="second", incarnation=b"m" * 16)
        try:
            await restore_writing.write(store, first, replace=replace)
        except StoreUnavailable:
            found = await content(store)
            if "cluster" in found and found["cluster"] == whole(first)["cluster"]:
                assert found == whole(first), "the cluster comes last"
            elif "cluster" in found:
                assert lives <= 1, "what was there goes first"
                assert replace
            elif RESTORING_KEY in found:
                with pytest.raises(Conflict, match="finish it"):
                    take("c", await store.list_all(), 0)
            else:
                assert lives == 0, "nothing happened yet"
            store.left, store.late = 1_000_000, False
            again = replace or "cluster" in found
            await restore_writing.write(store, second, replace=again)
            assert await content(store) == whole(second)
        else:
            assert await content(store) == whole(first)
            assert lives >= 5
            return
    raise AssertionError("it never got through")


async def test_an_answer_that_is_lost_at_the_end_is_looked_up() -> None:
    ready = made(configs=0)

    class LosesLast(MemoryStore):
        async def commit(self, transaction: Transaction) -> Outcome:
            outcome = await super().commit(transaction)
            if CreatedAt(records.CLUSTER_KEY, 0) in transaction.compares:
                raise StoreOutcomeUnknown("lost")
            return outcome

    store = LosesLast(FakeClock())
    assert await restore_writing.write(store, ready, replace=False) == store.revision
    assert await content(store) == whole(ready)


async def test_two_restores_at_once_do_not_mix() -> None:
    class Interrupted(MemoryStore):
        """In the middle of the first restore a second one begins."""

        commits_until = 2

        async def commit(self, transaction: Transaction) -> Outcome:
            if self.commits == self.commits_until:
                self.commits_until = -1
                await restore_writing.write(self, second, replace=False)
            return await super().commit(transaction)

    first, second = made(name="first"), made(name="second", incarnation=b"m" * 16)
    store = Interrupted(FakeClock())
    with pytest.raises(Conflict, match="another program"):
        await restore_writing.write(store, first, replace=False)
    assert await content(store) == whole(second)


class TestControllersThatRun:
    """Nobody should run beside a restore. Those who do change nothing, and see the new cluster when it is there."""

    async def test_nobody_makes_a_cluster_or_is_elected_meanwhile(self) -> None:
        async with cell() as world:
            world.store = Dying(world.clock)
            world.store.left = 2
            with pytest.raises(StoreUnavailable):
                await restore_writing.write(world.store, made(), replace=False)
            half = await content(world.store)
            engine = world.make(1)
            await world.pass_ms(5_000)
            assert engine.candidate.term is None
            with pytest.raises(MetadataUnavailable, match="restored"):
                _ = engine.image
            assert await content(world.store) == half
            world.store.left = 1_000_000
            await restore_writing.write(world.store, made(), replace=False)
            await world.until(lambda: engine.candidate.term is not None)
            assert engine.image.incarnation == b"n" * 16

    async def test_a_standby_sees_the_new_cluster_and_its_watchers_a_snapshot(self) -> None:
        async with cell() as world:
            engine = await world.active(1)
            await world.join(engine, broker(1))
            topic = await world.create(engine, "t", 2)
            backup = take("c", await world.store.list_all(), 7)
            assert backup is not None
            steps = engine.watch(None)
            assert (await anext(steps)).previous_revision is None
            await engine.candidate.resign()
            ready = restore_metadata(backup, [NodeId(1)], 8, b"n" * 16)
            await restore_writing.write(world.store, ready, replace=True)
            await world.until(lambda: engine.follower.mirror.image.incarnation == b"n" * 16)
            step = await anext(steps)
            while step.incarnation != b"n" * 16:
                step = await anext(steps)
            assert step.previous_revision is None, "a snapshot"
            assert step.topics == (topic.topic,)
            assert all(p.offline and not p.isr for p in step.partitions)


def test_there_may_be_nothing_to_back_up() -> None:
    assert take("c", Listing(1, ()), 0) is None


def test_errors_say_what_to_do() -> None:
    assert "stop all controllers" in str(ControllersRun())
    assert isinstance(ControllersRun(), HeadraceError)
