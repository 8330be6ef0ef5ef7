"""A table that has not changed for a while is found in as Arrow: what is found is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_streams.core.changes import ADDED, REMOVED, with_changes
from headrace_streams.core.operators import tables
from headrace_streams.core.operators.table_rows import TableRows
from headrace_streams.core.operators.tables import Keep, Matched, View
from headrace_streams.core.rows import KEYS, with_system
from headrace_streams.core.state.memory import MemoryCold

SCHEMA = pa.schema([("name", pa.string()), ("rate", pa.float64()), ("tags", pa.list_(pa.string()))])
NAMES = st.sampled_from([b"", b"a", b"b", b"c", b"a\0", "ä".encode(), b"long" * 9])
Row = tuple[bytes, str | None, float | None, bool]


class Kept:
    """A table, and its cold tier."""

    def __init__(self) -> None:
        self.keep, self.cold = Keep(TableRows(SCHEMA)), MemoryCold()
        self.keep.store.open(self.cold)
        self.keep.begin(0)
        self.turn = 0

    def feed(self, given: Sequence[Row]) -> None:
        keys, names, rates, there = zip(*given, strict=True)
        user = pa.table({"name": names, "rate": rates, "tags": [[name] * 2 for name in names]}, schema=SCHEMA)
        times = np.arange(self.turn, self.turn + len(given))
        self.turn += len(given)
        rows = with_system(user, pa.array(keys, pa.binary()), times, times, np.arange(len(given)))
        list(self.keep.feed(with_changes(rows, np.where(there, ADDED, REMOVED)), 0, failed))

    def commit(self) -> None:
        self.cold.write(self.keep.store.changes())
        self.keep.store.settle()

    def found(self, keys: Sequence[bytes | None], *, coded: bool = False) -> list[Any]:
        """For each key its row and its time, as ``find`` says."""
        column: Any = pa.chunked_array([pa.array(keys, pa.binary())])
        return shown(self.keep.find(column.cast(KEYS) if coded else column))

    def looked_up(self, keys: Sequence[bytes | None]) -> list[Any]:
        """The same, each key alone."""
        return [shown(View.find(self.keep, pa.chunked_array([pa.array([key], pa.binary())])))[0] for key in keys]


def failed(rows: pa.Table, error: BaseException) -> None:
    raise error


def shown(matched: Matched) -> list[Any]:
    rows = matched.rows.to_pylist()
    pairs = zip(matched.places.tolist(), matched.times.tolist(), strict=True)
    return [(rows[place], time) if place >= 0 else None for place, time in pairs]


ROWS = st.lists(
    st.tuples(NAMES, st.none() | st.text(max_size=3), st.none() | st.floats(0, 9), st.booleans()), min_size=1
)
STEPS = st.one_of(
    st.tuples(st.just("feed"), ROWS),
    st.tuples(st.just("find"), st.lists(st.none() | NAMES, max_size=9)),
    st.tuples(st.just("coded"), st.lists(st.none() | NAMES, max_size=9)),
    st.tuples(st.sampled_from(["commit", "evict", "contents", "drop"]), st.just([])),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_a_batch_finds_what_each_of_its_keys_finds_alone(steps: list[tuple[str, Any]]) -> None:
    kept = Kept()
    for step, given_ in steps:
        match step:
            case "feed":
                kept.feed(given_)
            case "find" | "coded":
                once = kept.found(given_, coded=step == "coded")
                assert kept.found(given_, coded=step == "coded") == once == kept.looked_up(given_)
            case "commit":
                kept.commit()
            case "evict":
                kept.keep.store.evict(1 << 20)
            case "contents":
                kept.keep.contents()
            case "drop":
                kept.commit()
                kept.keep.store.drop()


@pytest.fixture
def kept() -> Kept:
    kept = Kept()
    kept.feed([(b"a", "A", 1.0, True), (b"b", "B", 2.0, True), (b"c", "C", None, True)])
    kept.commit()
    return kept


def test_a_mirror_is_made_when_as_many_rows_have_asked_as_there_are_and_forgotten_with_a_change(kept: Kept) -> None:
    slots = kept.keep.store.slots
    kept.found([b"a", b"a"])
    assert slots.mirror is None
    assert kept.found([b"b"]) == [({"name": "B", "rate": 2.0, "tags": ["B", "B"]}, 1)]
    assert slots.mirror is not None
    kept.found([b"a", b"a"])
    kept.feed([(b"b", "new", 3.0, True)])
    assert slots.mirror is None
    assert kept.found([b"b"]) == [({"name": "new", "rate": 3.0, "tags": ["new", "new"]}, 3)]
    assert slots.mirror is None, "the change begins the count anew"
    kept.feed([(b"c", "C", None, True)])
    kept.found([b"b", b"b"])
    assert slots.mirror is None, "and so does another one"
    kept.found([b"b"])
    assert slots.mirror is not None
    kept.feed([(b"b", None, None, False)])
    assert kept.found([b"b", None, b"a"])[:2] == [None, None]


def test_a_table_that_is_much_larger_than_the_batch_has_none(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SIZE_MAX", 1)
    for _ in range(5):
        kept.found([b"a", b"b"])
    assert kept.keep.store.slots.mirror is None
    kept.found([b"a", b"b", b"c"])
    assert kept.keep.store.slots.mirror is not None


def test_what_it_takes_is_state_and_goes_first(kept: Kept) -> None:
    store = kept.keep.store
    before = store.kept_bytes()
    kept.found([b"a", b"b", b"c"])
    more = store.kept_bytes() - before
    assert more > 0
    assert store.evict(1) == more
    assert (store.slots.mirror, store.kept_bytes(), len(store.slots)) == (None, before, 3)


def test_what_was_evicted_is_found_beside_the_mirror(kept: Kept) -> None:
    store = kept.keep.store
    store.slots.ask(store.slots.find([b"a"])[0])
    store.evict(1)
    assert len(store.slots) < 3
    kept.found([b"a"] * 3)
    (gone,) = {b"a", b"b", b"c"} - set(store.slots.used_keys())
    assert store.slots.mirror is not None
    wanted = kept.looked_up([b"a", b"nobody"])
    found = kept.found([b"a", gone, b"nobody", gone])
    assert found[::2] == wanted
    assert found[1] == found[3] == kept.looked_up([gone])[0] is not None
    assert store.slots.mirror is None, "the next one has all"


def test_rows_that_are_found_stay_in_memory(kept: Kept) -> None:
    store = kept.keep.store
    kept.found([b"a", b"b", b"c"])
    assert store.slots.mirror is not None
    store.slots.idle(1 << 30)
    hits = store.hits
    kept.found([b"b", b"b", b"nobody"])
    assert store.hits == hits + 2
    store.evict(1 << 30)
    assert b"b" in store.slots.used_keys()
