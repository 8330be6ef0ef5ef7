"""State that does not stay in memory: what is evicted, what is not, and how it comes back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_streams import App, agg, counting, json, sliding, tumbling, value
from headrace_streams.core.rows import Coded
from headrace_streams.core.state.cache import StateCache
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.state.objects import ObjectStore, Value
from headrace_streams.core.state.seen import SeenStore
from headrace_streams.core.state.slots import Field, KeyedStore, Layout, WindowedStore
from headrace_streams.core.state.store import Store
from headrace_streams.testing import Driver

LAYOUT = Layout([Field(np.dtype(np.int64), 0)])


class Noting(MemoryCold):
    """Notes what it is asked for, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[bytes]] = []

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked.append(list(keys))
        return super().get(keys)


def coded(keys: Sequence[bytes]) -> Coded:
    return Coded(np.arange(len(keys)), list(keys))


def count(store: KeyedStore, keys: Sequence[bytes]) -> None:
    places = store.places(coded(keys))
    store.slots.columns[0][places] += 1
    store.slots.dirty[places] = True


def commit(store: Store, cold: MemoryCold) -> None:
    cold.write(store.changes())
    store.settle()


def named(numbers: range) -> list[bytes]:
    return [f"key-{number}".encode() for number in numbers]


def in_memory(store: KeyedStore) -> set[bytes]:
    return {store.slots.keys[slot] for slot in store.slots.used().tolist()}


def counted(*keys: bytes) -> tuple[KeyedStore, Noting]:
    store, cold = KeyedStore(LAYOUT), Noting()
    store.open(cold)
    count(store, keys)
    commit(store, cold)
    cold.asked.clear()
    return store, cold


def test_a_bound_holds_after_each_commit_and_nothing_is_lost() -> None:
    bound, batch = 1 << 20, 20_000
    store, cold, cache = KeyedStore(LAYOUT), Noting(), StateCache(1 << 20)
    store.open(cold)
    for first in [*range(0, 300_000, batch), *range(0, 60_000, batch)]:
        count(store, named(range(first, first + batch)))
        assert len(store.slots) <= bound // LAYOUT.slot_bytes + batch
        commit(store, cold)
        cache.fit([store])
        assert cache.bytes == store.kept_bytes() <= bound
    assert len(store.slots.dirty) <= 4 * (bound // LAYOUT.slot_bytes + batch), "what was evicted is used again"
    store.slots.load()
    expected = {key: 2 if number < 60_000 else 1 for number, key in enumerate(named(range(300_000)))}
    assert {store.slots.keys[s]: int(store.slots.columns[0][s]) for s in store.slots.used().tolist()} == expected


def test_what_is_asked_for_again_stays() -> None:
    store, _ = counted(b"a", b"b", b"c", b"d")
    each = store.kept_bytes() // 4
    store.known([b"a", b"c"])
    assert store.evict(1) == each
    assert in_memory(store) == {b"a", b"c", b"d"}, "the hand passes a, and b goes"
    assert store.evict(1) == each
    assert in_memory(store) == {b"a", b"c"}, "c was asked for, d was not"
    assert store.evict(1) == 0, "the end of the round: a and c are given another chance"
    assert store.evict(10 * each) == 2 * each
    assert in_memory(store) == set()


def test_what_was_changed_stays_until_it_is_committed() -> None:
    store, cold = counted(b"a", b"b")
    count(store, [b"b", b"c"])
    store.evict(1_000)
    store.evict(1_000)
    assert in_memory(store) == {b"b", b"c"}
    commit(store, cold)
    store.evict(1_000)
    store.evict(1_000)
    assert in_memory(store) == set()


def test_what_was_evicted_is_read_in_one_go() -> None:
    store, cold = counted(b"a", b"b", b"c")
    store.evict(1_000)
    count(store, [b"a", b"new", b"c"])
    store.known([b"b", b"none"])
    assert cold.asked == [[b"a", b"new", b"c"], [b"b", b"none"]]
    assert (store.hits, store.misses) == (0, 8), "three that were new at first"
    count(store, [b"a", b"b"])
    assert (store.hits, store.misses) == (2, 8)
    commit(store, cold)
    assert dict(cold.scan()).keys() == {b"a", b"b", b"c", b"new"}
    assert [int(store.slots.columns[0][s]) for s in store.known([b"a", b"b", b"c", b"new"])] == [3, 2, 2, 1]


def test_a_key_that_was_released_begins_anew_though_the_cold_tier_has_it() -> None:
    store, cold = counted(b"a")
    store.release(store.known([b"a"]))
    count(store, [b"a"])
    assert cold.asked == []
    commit(store, cold)
    store.evict(1_000)
    assert store.slots.columns[0][store.known([b"a"])].tolist() == [1]


def windowed(store: WindowedStore, start: int, keys: Sequence[bytes]) -> None:
    places = store.places(np.full(len(keys), start), coded(keys))
    store.slots.columns[0][places] += 1
    store.slots.dirty[places] = True


def test_a_window_closes_with_what_was_evicted() -> None:
    store, cold = WindowedStore(LAYOUT), Noting()
    store.open(cold)
    windowed(store, 0, [b"a", b"b"])
    windowed(store, 10, [b"a"])
    commit(store, cold)
    store.evict(1_000)
    assert store.kept_bytes() == 0
    windowed(store, 0, [b"b", b"c"])
    windowed(store, 20, [b"d"])
    assert [len(keys) for keys in cold.asked] == [2], "of a window that is new nothing is asked for"
    slots = store.close_oldest()
    assert {store.slots.key_of(s): int(store.slots.columns[0][s]) for s in slots.tolist()} == {
        b"a": 1,
        b"b": 2,
        b"c": 1,
    }
    store.release(slots)
    assert store.close_oldest(whole=False).tolist() == [], "what is not to be told stays where it is"
    commit(store, cold)
    assert [key[8:] for key, _ in cold.scan()] == [b"d"], "and is deleted there"


def test_room_is_given_back() -> None:
    store, cold = WindowedStore(LAYOUT), MemoryCold()
    store.open(cold)
    windowed(store, 0, named(range(20_000)))
    windowed(store, 10, [b"a", b"b"])
    commit(store, cold)
    store.release(store.close_oldest())
    assert len(store.slots.dirty) >= 20_000
    commit(store, cold)
    assert len(store.slots.dirty) < 1_024
    windowed(store, 10, [b"b", b"c"])
    windowed(store, 20, [b"a"])
    assert store.evict(10_000) > 0, "a"
    slots = store.close_oldest()
    assert {store.slots.key_of(s): int(store.slots.columns[0][s]) for s in slots.tolist()} == {
        b"a": 1,
        b"b": 2,
        b"c": 1,
    }


def test_the_hand_goes_round_all_stores() -> None:
    stores = [counted(b"a", b"b")[0], SeenStore(), counted(b"c", b"d")[0]]
    given: Sequence[Any] = stores
    each = stores[0].kept_bytes() // 2
    bounds = [3 * each, 2 * each, each, 0]
    for bound, kept in zip(bounds, [(1, 2), (0, 2), (0, 1), (0, 0)], strict=True):
        cache = StateCache(bound)
        cache.fit(given)
        assert (stores[0].kept_bytes() // each, stores[2].kept_bytes() // each) == kept
        assert cache.bytes == bound
    StateCache(0).fit([])


@settings(max_examples=40, deadline=None)
@given(
    asked=st.lists(st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=3, unique=True), max_size=8),
    bound=st.integers(0, 1_000),
)
def test_it_is_at_most_the_bound_whatever_was_asked_for(asked: list[list[bytes]], bound: int) -> None:
    one, other = counted(b"a", b"b", b"c")[0], counted(b"b", b"c", b"d")[0]
    cache = StateCache(bound)
    for keys in asked:
        one.known(keys)
        other.known(keys[:1])
        cache.fit([one, other])
        assert one.kept_bytes() + other.kept_bytes() == cache.bytes <= bound
        cache.fit([other, one])


VALUES = {"n": Value(int, 0), "listed": Value(list, [])}
keys = st.sampled_from([b"a", b"b", b"c"])
ends = st.sampled_from(["", "commit", "drop", "reopen", "evict", "evict one"])


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.lists(st.tuples(keys, st.integers(-1, 2)), max_size=4), ends), max_size=8))
def test_values_of_functions_are_a_dict(steps: list[tuple[list[tuple[bytes, int]], str]]) -> None:
    store, cold = ObjectStore(VALUES), MemoryCold()
    store.open(cold)
    now: dict[bytes, dict[str, Any]] = {}
    committed: dict[bytes, dict[str, Any]] = {}
    for batch, end in steps:
        store.fetch({key for key, _ in batch})
        for key, number in batch:
            changed = {"n": number, "listed": [number] * number}
            store.set(key, changed)
            now[key] = changed
        if end in ("drop", "reopen"):
            store.drop() if end == "drop" else store.open(cold)
            now = dict(committed)
        elif end:
            commit(store, cold)
            committed = dict(now)
        if end.startswith("evict"):
            kept = store.kept_bytes()
            freed = store.evict(1 if end == "evict one" else kept) + store.evict(0)
            assert store.kept_bytes() == kept - freed
    for key in (b"a", b"b", b"c"):
        found = store.of(key)
        assert {name: found.get(name, VALUES[name].default) for name in VALUES} == now.get(key, {"n": 0, "listed": []})
    commit(store, cold)
    while store.kept_bytes():
        store.evict(store.kept_bytes())


def test_values_that_are_asked_for_again_stay() -> None:
    store, cold = ObjectStore(VALUES), Noting()
    store.open(cold)
    for key in (b"a", b"b", b"c"):
        store.set(key, {"n": 1})
    commit(store, cold)
    cold.asked.clear()
    store.fetch([b"a"])
    store.evict(1)
    store.set(b"c", {"n": 2})
    store.evict(1_000)
    store.fetch([b"a", b"b", b"c"])
    assert cold.asked == [[], [b"sa", b"sb"]], "c was not committed"
    assert (store.hits, store.misses) == (2, 5)
    commit(store, cold)
    assert store.dirty_bytes() == 0


def everything() -> App:
    """A program with each kind of state that can be evicted, and some that cannot."""
    app = App("all")

    def on_row(row: Any, state: Any, context: Any) -> Any:
        state.listed.append(row["n"])
        context.timer("later", at=context.time + 20)

    def on_timer(name: str, state: Any, context: Any) -> Any:
        return {"seen": state.listed, "at": context.time}

    stream = app.stream("in", value=json("n bigint, at timestamp"), key="k", timestamp="at")
    groups = stream.group_by("k")
    groups.agg(n=agg.sum("n"), listed=agg.collect("n", 9), name="sums", emit="every").to("out")
    for emit in ("final", "changes", "every"):
        groups.window(tumbling(20, grace=5), late="drop").agg(n=agg.sum("n"), name=emit, emit=emit).to(emit)
    groups.window(counting(3)).agg(n=agg.sum("n"), name="counted", emit="final").to("out")
    groups.window(sliding(10), late="drop").agg(n=agg.sum("n"), name="sliding", emit="final").to("out")
    stream.process(
        on_row, name="p", state={"listed": value(list)}, on_timer=on_timer, schema="seen array<bigint>, at bigint"
    ).to("out")
    table = app.table("t", value=json("s string"), key="k", name="t")
    stream.join(table, how="left").to("out")
    names = app.table("names", value=json("name string"), key="s", name="names")
    table.join(names, on="s", how="left", suffix="_2", name="named").to("joined")
    return app


records = st.lists(
    st.tuples(
        st.sampled_from(["in", "in", "t", "names"]), st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 60)
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=8, deadline=None)
@given(given=records, seed=st.integers(0, 9), bound=st.sampled_from([0, 1_000, 3_000]))
def test_what_a_program_writes_does_not_show_what_is_in_memory(
    given: list[tuple[str, str, int, int]], seed: int, bound: int
) -> None:
    found = []
    for state_cache_bytes in (bound, 1 << 30):
        with Driver(everything(), seed=seed, state_cache_bytes=state_cache_bytes) as driver:
            for topic, key, n, at in given:
                rows = {
                    "in": {"k": key, "n": n, "at": datetime.fromtimestamp(at / 1e3, UTC)},
                    "t": {"k": key, "s": "xyz"[n % 3]},
                    "names": {"s": "xyz"[n % 3], "name": str(at)},
                }
                driver.pipe(topic, [rows[topic]])
                driver.commit()
            driver.advance_to(1_000)
            told = [(topic, sorted(map(repr, driver.read(topic)))) for topic in ("out", "final", "every", "joined")]
            found.append([*told, *(sorted(map(repr, driver.store(name))) for name in ("sums", "t", "names", "p"))])
    assert found[0] == found[1]


def test_a_driver_keeps_to_its_bound() -> None:
    app = App("counts")
    stream = app.stream("in", value=json("x bigint"), key="k")
    stream.group_by("k").agg(n=agg.count(), name="counts").to("out")
    with Driver(app, state_cache_bytes=0) as driver:
        for _ in range(3):
            driver.pipe("in", [{"k": key, "x": 1} for key in "abc"])
            driver.commit()
        (running,) = driver._running
        (store,) = running.task.stores
        assert store.kept_bytes() == 0
        assert (store.hits, store.misses) == (0, 9)
        assert driver.store("counts") == [{"k": key, "n": 3} for key in "abc"]
