"""What the port promises, checked on both adapters: the memory store and a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from libs.common.tests.kit.ports import free_port
from services.controller.tests.kit.etcd import EtcdProcess

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.clock import SystemClock
from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.core.store import (
    OPERATIONS_MAX,
    Changes,
    Committed,
    Conflicted,
    CreatedAt,
    Delete,
    DeleteUnder,
    Put,
    Transaction,
    Unchanged,
)
from headrace_controller.ports import (
    HistoryCompacted,
    HistoryRewound,
    LeaseLost,
    MetadataStore,
    StoreOutcomeUnknown,
    StoreUnavailable,
    TransactionTooLarge,
)


@dataclass
class World:
    """A store, a second client of it, and its faults."""

    store: MetadataStore
    other: MetadataStore
    restart: Callable[[], Awaitable[None]]
    compact: Callable[[], Awaitable[None]]
    away: Callable[[], Awaitable[None]]
    back: Callable[[], Awaitable[None]]
    lose_answer: Callable[[], Awaitable[None]]
    """The next transaction gets no answer."""
    found_again: Callable[[], Awaitable[None]]


async def _expiring(store: MemoryStore) -> None:
    while True:
        await asyncio.sleep(0.05)
        await store.expire_leases()


async def _memory() -> AsyncIterator[World]:
    store = MemoryStore(SystemClock())

    async def reach(value: bool) -> None:
        store.reachable = value
        await store.disconnect()

    async def lose() -> None:
        store.answers_lost = 1

    async def nothing() -> None:
        pass

    expiry = asyncio.create_task(_expiring(store))
    yield World(
        store,
        store,
        restart=store.disconnect,
        compact=store.compact,
        away=lambda: reach(False),
        back=lambda: reach(True),
        lose_answer=lose,
        found_again=nothing,
    )
    expiry.cancel()


async def _etcd(directory: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        process = EtcdProcess(directory)
        await process.start()
        stack.push_async_callback(process.stop, kill=True)
        opened = [
            await stack.enter_async_context(EtcdStore.open([process.endpoint], prefix, request_timeout_ms=1_000))
            for prefix in ("/headrace/test/", "/headrace/test/")
        ]

        async def pause() -> None:
            process.pause()

        async def resume() -> None:
            process.resume()

        yield World(
            *opened,
            restart=lambda: process.restart(kill=True),
            compact=process.compact,
            away=process.stop,
            back=process.start,
            lose_answer=pause,
            found_again=resume,
        )


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.integration)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    worlds = _memory() if request.param == "memory" else _etcd(tmp_path)
    async for made in worlds:
        yield made


async def put(store: MetadataStore, key: str, value: bytes = b"x") -> int:
    outcome = await store.commit(Transaction((), (Put(key, value),)))
    assert isinstance(outcome, Committed)
    return outcome.revision


async def eventually(action: Callable[[], Awaitable[object]], *errors: type[Exception]) -> object:
    """The result of ``action`` once it stops raising ``errors``."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await action()
            except errors:
                await asyncio.sleep(0.05)


async def collect(changes: AsyncIterator[Changes], until: int) -> list[Changes]:
    seen: list[Changes] = []
    async with asyncio.timeout(20):
        async for batch in changes:
            seen.append(batch)
            if batch.revision >= until:
                return seen
    return seen


class TestTransactions:
    async def test_all_operations_happen_at_one_revision(self, world: World) -> None:
        outcome = await world.store.commit(Transaction((CreatedAt("a", 0),), (Put("a", b"1"), Put("b", b"2"))))
        assert isinstance(outcome, Committed)
        listing = await world.other.list_all()
        assert [(i.key, i.value, i.mod_revision) for i in listing.items] == [
            ("a", b"1", outcome.revision),
            ("b", b"2", outcome.revision),
        ]

    async def test_a_key_that_changed_makes_the_whole_transaction_fail(self, world: World) -> None:
        first = await put(world.store, "a")
        second = await put(world.other, "a", b"2")
        outcome = await world.store.commit(Transaction((Unchanged("a", first),), (Put("a", b"3"), Put("b", b"3"))))
        assert isinstance(outcome, Conflicted)
        assert outcome.found["a"].mod_revision == second
        assert outcome.found["a"].value == b"2"
        assert await world.store.get("b") is None

    async def test_zero_means_absent_for_both_comparisons(self, world: World) -> None:
        absent = (Unchanged("a", 0), CreatedAt("a", 0))
        assert isinstance(await world.store.commit(Transaction(absent, (Put("a", b"1"),))), Committed)
        outcome = await world.store.commit(Transaction((CreatedAt("a", 0),), (Put("a", b"2"),)))
        assert isinstance(outcome, Conflicted)
        assert set(outcome.found) == {"a"}

    async def test_a_key_created_again_has_another_create_revision(self, world: World) -> None:
        first = await put(world.store, "a")
        await world.store.commit(Transaction((), (Delete("a"),)))
        second = await put(world.store, "a")
        held = await world.store.get("a")
        assert held is not None
        assert (held.create_revision, second > first) == (second, True)
        outcome = await world.store.commit(Transaction((CreatedAt("a", first),), (Put("b", b""),)))
        assert isinstance(outcome, Conflicted)

    async def test_one_of_many_concurrent_writers_wins(self, world: World) -> None:
        bids = [Transaction((CreatedAt("seat", 0),), (Put("seat", str(n).encode()),)) for n in range(20)]
        outcomes = await asyncio.gather(*(world.store.commit(b) for b in bids))
        won = [n for n, o in enumerate(outcomes) if isinstance(o, Committed)]
        assert len(won) == 1
        held = await world.other.get("seat")
        assert held is not None
        assert held.value == str(won[0]).encode()

    async def test_delete_under_takes_exactly_the_prefix(self, world: World) -> None:
        for key in ("p/1", "p/2", "p0", "q"):
            await put(world.store, key)
        await world.store.commit(Transaction((), (DeleteUnder("p/"),)))
        assert [i.key for i in (await world.store.list_all()).items] == ["p0", "q"]

    async def test_limits_are_refused_before_anything_is_sent(self, world: World) -> None:
        full = tuple(Put(f"k{n:03}", b"") for n in range(OPERATIONS_MAX))
        assert isinstance(await world.store.commit(Transaction((), full)), Committed)
        compares = tuple(CreatedAt(f"k{n:03}", 0) for n in range(OPERATIONS_MAX))
        assert isinstance(await world.store.commit(Transaction(compares, (Put("z", b""),))), Conflicted)
        with pytest.raises(TransactionTooLarge):
            await world.store.commit(Transaction((), (*full, Put("one more", b""))))
        with pytest.raises(TransactionTooLarge):
            await world.store.commit(Transaction((*compares, CreatedAt("z", 0)), (Put("z", b""),)))
        with pytest.raises(TransactionTooLarge):
            await world.store.commit(Transaction((), (Put("large", bytes(1_500_001)),)))
        assert isinstance(await world.store.commit(Transaction((), (Put("large", bytes(1_400_000)),))), Committed)

    async def test_a_list_is_larger_than_a_page_and_whole(self, world: World) -> None:
        for start in range(0, 5_100, 100):
            pieces = tuple(Put(f"n/{n:05}", b"v") for n in range(start, start + 100))
            await world.store.commit(Transaction((), pieces))
        listing = await world.store.list_all()
        assert [i.key for i in listing.items] == [f"n/{n:05}" for n in range(5_100)]


class TestUnknownOutcome:
    async def test_no_answer_is_an_unknown_outcome_and_the_change_may_have_happened(self, world: World) -> None:
        await put(world.store, "before")
        await world.lose_answer()
        with pytest.raises(StoreOutcomeUnknown):
            await world.store.commit(Transaction((CreatedAt("a", 0),), (Put("a", b"1"),)))
        await world.found_again()
        held = await eventually(lambda: world.store.get("before"), StoreUnavailable)
        assert held is not None
        again = await eventually(
            lambda: world.store.commit(Transaction((CreatedAt("a", 0),), (Put("a", b"2"),))),
            StoreUnavailable,
            StoreOutcomeUnknown,
        )
        found = await world.store.get("a")
        assert found is not None
        assert found.value == (b"1" if isinstance(again, Conflicted) else b"2")

    async def test_away_means_nothing_was_changed(self, world: World) -> None:
        await put(world.store, "a")
        await world.away()
        with pytest.raises((StoreUnavailable, StoreOutcomeUnknown)):  # the first may have been on the wire
            await world.store.commit(Transaction((), (Put("a", b"2"),)))
        with pytest.raises(StoreUnavailable):
            await world.store.commit(Transaction((), (Put("a", b"3"),)))
        with pytest.raises(StoreUnavailable):
            await world.store.list_all()
        with pytest.raises(StoreUnavailable):
            await world.store.grant_lease(5)
        await world.back()
        held = await eventually(lambda: world.store.get("a"), StoreUnavailable)
        assert getattr(held, "value", None) != b"3"


class TestWatch:
    async def test_changes_come_in_order_each_once_revisions_whole(self, world: World) -> None:
        start = (await world.store.list_all()).revision
        async with world.store.watch(start + 1) as changes:
            await put(world.other, "a")
            await world.other.commit(Transaction((), (Put("b", b"1"), Put("c", b"2"), Delete("a"))))
            last = await put(world.other, "b", b"3")
            seen = await collect(changes, last)
        flat = [(c.key, None if c.current is None else c.current.value) for b in seen for c in b.changes]
        assert flat[0] == ("a", b"x")
        assert sorted(flat[1:4], key=str) == [("a", None), ("b", b"1"), ("c", b"2")]
        assert flat[4] == ("b", b"3")
        revisions = [c.revision for b in seen for c in b.changes]
        assert revisions == sorted(revisions)
        for batch, following in pairwise(seen):
            assert batch.changes[-1].revision < following.changes[0].revision, "no revision is torn apart"

    async def test_a_large_revision_is_not_torn_apart(self, world: World) -> None:
        for start in range(0, 2_000, 100):
            await world.store.commit(
                Transaction((), tuple(Put(f"n/{n:05}" + "k" * 900, b"v") for n in range(start, start + 100)))
            )
        async with world.store.watch((await world.store.list_all()).revision + 1) as changes:
            outcome = await world.store.commit(Transaction((), (DeleteUnder("n/"),)))
            (batch,) = await collect(changes, outcome.revision)
        assert len(batch.changes) == 2_000
        assert {c.revision for c in batch.changes} == {outcome.revision}

    async def test_from_an_old_revision_the_past_is_told_first(self, world: World) -> None:
        first = await put(world.store, "a", b"1")
        second = await put(world.store, "a", b"2")
        async with world.store.watch(first) as changes:
            seen = await collect(changes, second)
        values = [c.current.value for b in seen for c in b.changes if c.current is not None]
        assert values == [b"1", b"2"]

    async def test_keys_outside_the_prefix_are_not_told(self, world: World) -> None:
        async with world.store.watch((await world.store.list_all()).revision + 1) as changes:
            last = await put(world.other, "mine")
            seen = await collect(changes, last)
        assert [c.key for b in seen for c in b.changes] == ["mine"]

    async def test_resumes_after_the_store_was_restarted(self, world: World) -> None:
        revision = await put(world.store, "a")
        async with world.store.watch(revision + 1) as changes:
            second = await put(world.store, "b")
            await collect(changes, second)
            await world.restart()
            with pytest.raises(StoreUnavailable):
                await collect(changes, second + 1)
        third = await eventually(lambda: put(world.other, "c"), StoreUnavailable, StoreOutcomeUnknown)
        assert isinstance(third, int)

        async def resumed() -> list[Changes]:
            async with world.store.watch(second + 1) as again:
                return await collect(again, third)

        seen = await eventually(resumed, StoreUnavailable)
        assert isinstance(seen, list)
        assert [c.key for b in seen for c in b.changes][-1] == "c"

    async def test_a_compacted_past_is_said_so(self, world: World) -> None:
        first = await put(world.store, "a")
        await put(world.store, "a", b"2")
        await world.compact()
        with pytest.raises(HistoryCompacted):
            async with world.store.watch(first) as changes:
                await collect(changes, first)
        listing = await world.store.list_all()
        async with world.store.watch(listing.revision + 1) as changes:
            last = await put(world.store, "b")
            assert (await collect(changes, last))[-1].revision == last

    async def test_a_future_that_the_store_has_not_reached_is_said_so(self, world: World) -> None:
        revision = (await world.store.list_all()).revision
        with pytest.raises(HistoryRewound):
            async with world.store.watch(revision + 100):
                pass

    async def test_two_watches_see_the_same(self, world: World) -> None:
        start = (await world.store.list_all()).revision
        async with world.store.watch(start + 1) as one, world.other.watch(start + 1) as two:
            for n in range(50):
                last = await put(world.store, f"k{n}")
            flat = [[c for b in await collect(w, last) for c in b.changes] for w in (one, two)]
        assert flat[0] == flat[1]
        assert len(flat[0]) == 50


class TestLeases:
    async def test_a_lease_that_is_not_kept_takes_its_keys_along(self, world: World) -> None:
        start = (await world.store.list_all()).revision
        lease = await world.store.grant_lease(2)
        outcome = await world.store.commit(Transaction((), (Put("seat", b"me", lease), Put("other", b""))))
        async with world.store.watch(start + 1) as changes:
            seen = await collect(changes, outcome.revision + 1)
        assert [(c.key, c.current) for b in seen for c in b.changes][-1] == ("seat", None)
        with pytest.raises(LeaseLost):
            await world.store.keep_lease(lease)
        with pytest.raises(LeaseLost):
            await world.store.commit(Transaction((), (Put("seat", b"me", lease),)))
        assert [i.key for i in (await world.store.list_all()).items] == ["other"]

    async def test_a_kept_lease_outlives_its_time(self, world: World) -> None:
        lease = await world.store.grant_lease(2)
        await world.store.commit(Transaction((), (Put("seat", b"me", lease),)))
        for _ in range(6):
            await asyncio.sleep(0.5)
            await world.store.keep_lease(lease)
        assert await world.store.get("seat") is not None

    async def test_a_revoked_lease_is_gone_at_once_and_twice_is_no_error(self, world: World) -> None:
        lease = await world.store.grant_lease(60)
        await world.store.commit(Transaction((), (Put("seat", b"me", lease),)))
        await world.store.revoke_lease(lease)
        assert await world.store.get("seat") is None
        await world.store.revoke_lease(lease)

    async def test_away_neither_loses_nor_keeps_a_lease(self, world: World) -> None:
        lease = await world.store.grant_lease(30)
        await world.away()
        with pytest.raises(StoreUnavailable):
            await world.store.keep_lease(lease)
        await world.back()
        await eventually(lambda: world.store.keep_lease(lease), StoreUnavailable)


@pytest.mark.integration
async def test_etcd_is_found_behind_the_second_address(tmp_path: Path) -> None:
    process = EtcdProcess(tmp_path)
    await process.start()
    nobody = Endpoint("127.0.0.1", free_port())
    try:
        async with EtcdStore.open([nobody, process.endpoint], "/headrace/test/") as store:
            with pytest.raises(StoreUnavailable):
                await put(store, "a")
            assert await put(store, "a") > 0
            async with store.watch((await store.list_all()).revision + 1) as changes:
                last = await put(store, "b")
                assert (await collect(changes, last))[-1].revision == last
    finally:
        await process.stop(kill=True)
