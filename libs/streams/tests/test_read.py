"""What a store is read as from outside: the same as its task shows it, whole or one key of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace_streams import App, agg, counting, json, session, tumbling, value
from headrace_streams.core.state.chosen import OfKey
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.plan.cut import Assembly
from headrace_streams.testing import Driver

ROWS = [{"user": user, "x": x, "at": at} for user, x, at in (("ann", 1, 0), ("bob", 2, 5_000), ("ann", 3, 12_000))]


def by_key(app: App) -> None:
    stream(app).group_by("user").agg(n=agg.count(), total=agg.sum("x"), name="kept").to("out")


def by_window(app: App) -> None:
    windows = stream(app).group_by("user").window(tumbling("10s", grace="1m"), late="drop")
    windows.agg(n=agg.count(), name="kept").to("out")


def by_session(app: App) -> None:
    stream(app).group_by("user").window(session("1m"), late="drop").agg(n=agg.count(), name="kept").to("out")


def by_count(app: App) -> None:
    stream(app).group_by("user").window(counting(5)).agg(n=agg.count(), name="kept").to("out")


def as_table(app: App) -> None:
    app.table("in", value=json("x bigint, at timestamp"), key="user", name="kept").to("out")


def by_join(app: App) -> None:
    left = stream(app)
    right = app.stream("other", value=json("y bigint, at timestamp"), key="user", timestamp="at").select("user", "y")
    left.join(right, within="1h", grace="1h", how="left", late="drop", name="kept").to("out")


def stream(app: App) -> Any:
    return app.stream("in", value=json("x bigint, at timestamp"), key="user", timestamp="at")


def read(make: Callable[[App], None], key: bytes | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """From outside, and as the task shows it."""
    app = App("a")
    make(app)
    with Driver(app) as driver:
        driver.pipe("in", ROWS)
        shown = driver.store("kept")
        (committed,) = driver._committed.values()
        cold: MemoryCold = committed.stores["kept"]
    found = Assembly("a", app.graph, {"in": 1, "other": 1}).read("kept", 0, cold, key)
    return [] if found is None else found.to_pylist(), shown


@pytest.mark.parametrize("make", [by_key, by_window, by_session, by_count, as_table, by_join])
def test_a_store_is_read_whole_and_by_key(make: Callable[[App], None]) -> None:
    found, shown = read(make, None)
    assert sorted(map(str, found)) == sorted(map(str, shown))
    assert len(shown) >= 2
    for user in ("ann", "bob", "nobody"):
        found, shown = read(make, user.encode())
        assert sorted(map(str, found)) == sorted(str(row) for row in shown if row["user"] == user)


def test_the_values_of_a_function_are_read() -> None:
    app = App("a")
    state = {"n": value(int), "tags": value(list, [])}

    @stream(app).process(name="kept", state=state)
    def note(row: dict[str, Any], kept: Any, context: Any) -> None:
        kept.n += row["x"]
        kept.tags = [*kept.tags, row["x"]]

    note.to("out")
    with Driver(app) as driver:
        driver.pipe("in", ROWS)
        driver.commit()
        cold = driver._committed["in", 0].stores["kept"]
    assembly = Assembly("a", app.graph, {"in": 1})
    found = assembly.read("kept", 0, cold, b"ann")
    assert found is not None
    assert found.to_pylist() == [{"key": b"ann", "n": 4, "tags": "[1,3]"}]
    assert len(assembly.read("kept", 0, cold) or []) == 2


def test_of_one_key_no_more_is_read_than_its_rows() -> None:
    """The rest may be millions."""
    cold = MemoryCold()
    cold.write([(b"ann", b"1"), (b"bob", b"2"), (b"12345678ann", b"3"), (b"87654321ann", b"4"), (b"12345678bob", b"5")])
    assert list(OfKey(cold, b"ann", 0).scan()) == [(b"ann", b"1")]
    assert list(OfKey(cold, b"nobody", 0).scan()) == []
    assert list(OfKey(cold, b"ann", 8).scan()) == [(b"12345678ann", b"3"), (b"87654321ann", b"4")]
    assert list(OfKey(cold, b"ann", 8).scan(b"1234")) == [(b"12345678ann", b"3")]
