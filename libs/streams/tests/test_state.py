"""Slots against a dict: what a store holds, tells and keeps, with commits, aborts and restarts anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_streams.core.rows import Coded
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.state.slots import Field, KeyedStore, Layout, Slots, WindowedStore, prefix_of, start_of
from headrace_streams.core.state.timers import Timer, Timers

LAYOUT = Layout([Field(np.dtype(np.int64), 0), Field(np.dtype(object), list, list), Field(np.dtype(np.int64), -1)])


def coded(keys: list[bytes]) -> Coded:
    """As a batch has them: each key once, and some that no row has."""
    values = [b"unused", *dict.fromkeys(keys)]
    return Coded(np.array([values.index(key) for key in keys], np.int64), values)


def put(slots: Slots, places: Any, numbers: list[int]) -> None:
    for place, number in zip(places.tolist(), numbers, strict=True):
        slots.columns[0][place] += number
        slots.columns[1][place].append(number)
        slots.columns[2][place] = number
        slots.dirty[place] = True


def held(slots: Slots) -> dict[bytes, Any]:
    return {
        slots.keys[s]: (int(slots.columns[0][s]), slots.columns[1][s], int(slots.columns[2][s]))
        for s in slots.used().tolist()
    }


def commit(store: Any, cold: MemoryCold) -> None:
    changes = store.changes()
    assert changes == sorted(changes), "in the order of their bytes"
    assert len({key for key, _ in changes}) == len(changes), "each once"
    cold.write(changes)
    store.settle()
    assert store.changes() == []


keys = st.sampled_from([b"", b"a", b"b", b"ab", b"c"])
batches = st.lists(st.tuples(keys, st.integers(-9, 9)), max_size=6)
ends = st.sampled_from(["", "", "commit", "drop", "reopen", "halve", "evict"])


def evict(store: KeyedStore | WindowedStore, end: str) -> None:
    """Some of what is committed is not in memory any more, or all of it that was not asked for."""
    if end in ("halve", "evict"):
        kept = store.kept_bytes()
        freed = store.evict(kept // 2 if end == "halve" else kept)
        assert store.kept_bytes() == kept - freed


def weighed(slots: Slots) -> None:
    """What they take is the sum of what each takes."""
    keys = sum(len(slots.keys[slot]) for slot in slots.used().tolist())
    objects = sum(LAYOUT.object_bytes(LAYOUT.pack(slots.columns, slots.used())))
    assert slots.bytes == len(slots) * LAYOUT.slot_bytes + keys + objects


def apply(expected: dict[Any, Any], key: Any, number: int) -> None:
    total, listed, _ = expected.get(key, (0, [], -1))
    expected[key] = (total + number, [*listed, number], number)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(batches, st.sets(keys, max_size=2), ends), max_size=8))
def test_keyed_slots_are_a_dict(steps: list[tuple[list[tuple[bytes, int]], set[bytes], str]]) -> None:
    cold = MemoryCold()
    store = KeyedStore(LAYOUT)
    store.open(cold)
    now: dict[bytes, Any] = {}
    committed: dict[bytes, Any] = {}
    for batch, released, end in steps:
        if batch:
            put(store.slots, store.places(coded([key for key, _ in batch])), [number for _, number in batch])
        for key, number in batch:
            apply(now, key, number)
        gone = [key for key in sorted(released) if store.slots.find([key])[0][0] >= 0]
        store.release(store.slots.find(gone)[0])
        for key in gone:
            now.pop(key, None)
        if end in ("commit", "halve", "evict"):
            commit(store, cold)
            committed = dict(now)
            weighed(store.slots)
            evict(store, end)
            weighed(store.slots)
        elif end:
            store.drop() if end == "drop" else store.open(cold)
            now = dict(committed)
    commit(store, cold)
    for _ in range(2):
        store.slots.load()
        assert held(store.slots) == now
        store.open(cold)


starts = st.integers(-2, 3).map(lambda number: number * 10)
windowed = st.lists(st.tuples(starts, keys, st.integers(-9, 9)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(windowed, st.integers(0, 2), ends), max_size=8))
def test_windowed_slots_are_a_dict_of_dicts(steps: list[tuple[list[tuple[int, bytes, int]], int, str]]) -> None:
    cold = MemoryCold()
    store = WindowedStore(LAYOUT)
    store.open(cold)
    now: dict[tuple[int, bytes], Any] = {}
    committed: dict[tuple[int, bytes], Any] = {}
    watermark = committed_watermark = -100
    for batch, close, end in steps:
        on_time = [row for row in batch if row[0] > watermark]
        if on_time:
            begins = np.array([start for start, _, _ in on_time], np.int64)
            places = store.places(begins, coded([key for _, key, _ in on_time]))
            put(store.slots, places, [number for _, _, number in on_time])
            assert store.starts_of(places).tolist() == begins.tolist()
        for start, key, number in on_time:
            apply(now, (start, key), number)
        for _ in range(close):
            oldest = store.oldest
            assert oldest == min((start for start, _ in now), default=None)
            if oldest is None:
                break
            slots = store.close_oldest()
            told = {store.slots.key_of(slot): int(store.slots.columns[0][slot]) for slot in slots.tolist()}
            assert told == {key: now.pop((start, key))[0] for start, key in list(now) if start == oldest}, "whole"
            store.release(slots)
            watermark = max(watermark, oldest)
        if end in ("commit", "halve", "evict"):
            commit(store, cold)
            committed, committed_watermark = dict(now), watermark
            evict(store, end)
            weighed(store.slots)
        elif end:
            store.drop() if end == "drop" else store.open(cold)
            now, watermark = dict(committed), committed_watermark
    commit(store, cold)
    for _ in range(2):
        store.load()
        assert held(store.slots) == {prefix_of(start) + key: value for (start, key), value in now.items()}
        store.open(cold)


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), st.binary(max_size=3))
def test_starts_sort_as_their_bytes_do(one: int, other: int, key: bytes) -> None:
    assert start_of(prefix_of(one) + key) == one
    assert (prefix_of(one) < prefix_of(other)) == (one < other)


KINDS = [
    Field(np.dtype(np.int64), 0),
    Field(np.dtype(np.float64), 0.0),
    Field(np.dtype(object), list, list),
    Field(np.dtype(np.bool_), False),
]
OF_KIND: list[Any] = [
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.lists(st.none() | st.text(max_size=3) | st.integers(-9, 9) | st.binary(max_size=3), max_size=3),
    st.booleans(),
]


@settings(max_examples=60)
@given(st.data())
def test_what_is_packed_is_unpacked(data: Any) -> None:
    kinds = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    layout = Layout([KINDS[kind] for kind in kinds])
    rows = data.draw(st.lists(st.tuples(*(OF_KIND[kind] for kind in kinds)), max_size=4))
    columns = [layout.fresh(KINDS[kind], len(rows)) for kind in kinds]
    for place, row in enumerate(rows):
        for column, value in zip(columns, row, strict=True):
            column[place] = value
    order = np.arange(len(rows))[::-1]
    packed = layout.pack(columns, order)
    assert repr([column.tolist() for column in layout.unpack(packed)] if rows else []) == repr(
        [column[order].tolist() for column in columns] if rows else []
    )


def test_a_slot_that_is_used_again_is_as_new() -> None:
    slots = Slots(LAYOUT, MemoryCold())
    first = slots.add([b"a", b"b"], [True, True])
    put(slots, first, [1, 2])
    slots.release(first[:1])
    again = slots.add([b"c"], [True])
    assert again.tolist() == first[:1].tolist()
    assert held(slots) == {b"b": (2, [2], 2), b"c": (0, [], -1)}
    assert slots.dirty[again].tolist() == [False]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1_000])
def test_any_number_of_keys(count: int) -> None:
    store = KeyedStore(LAYOUT)
    cold = MemoryCold()
    store.open(cold)
    listed = [str(number).encode() for number in range(count)]
    put(store.slots, store.places(coded(listed)), list(range(count)))
    commit(store, cold)
    store.open(cold)
    places = store.places(coded(listed))
    assert store.slots.columns[0][places].tolist() == list(range(count))


timer_steps = st.lists(st.tuples(st.sampled_from(["add", "add", "take", "commit", "abort"]), st.integers(0, 6)))


@settings(max_examples=100)
@given(do=timer_steps)
def test_timers_are_what_is_committed_of_them(do: list[tuple[str, int]]) -> None:
    cold, timers = MemoryCold(), Timers(b"t")
    committed: set[Timer] = set()
    now: set[Timer] = set()
    for what, at in do:
        match what:
            case "add":
                timers.add((at, b"k", "n"))
                now.add((at, b"k", "n"))
            case "take":
                due = min((timer for timer in now if timer[0] <= at), default=None)
                assert timers.take_due(at) == due
                now -= {due} if due else set()
            case "commit":
                changes = timers.changes()
                assert len(changes) == len(now ^ committed), "what is as it was is not written again"
                cold.write(changes)
                timers.settle()
                committed = set(now)
            case "abort":
                timers.open(cold)
                now = set(committed)
    again = Timers(b"t")
    again.open(cold)
    assert {again.take_due(9) for _ in committed} == committed
    assert again.next_due is None
