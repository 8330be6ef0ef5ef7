"""
The batch law: how input is cut into batches is not seen. With "every" and "final" the output of each key is the same,
in the same order, for any cutting and any commits, aborts and restarts; with "changes" the last row of each key is.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Record, by_key, cuts, run_cut, run_one_by_one

from headrace_streams import App, Stream, agg, col, hopping, json, tumbling, value
from headrace_streams.testing import Driver

SCHEMA = "n bigint, x double, s string, b boolean, at timestamp"
EVERYTHING: dict[str, Any] = {
    "rows": agg.count(),
    "xs": agg.count("x"),
    "n_sum": agg.sum("n"),
    "x_sum": agg.sum("x"),
    "x_mean": agg.mean("x"),
    "x_var": agg.var("x"),
    "x_min": agg.min("x"),
    "n_max": agg.max("n"),
    "s_min": agg.min("s"),
    "s_first": agg.first("s"),
    "s_last": agg.last("s"),
    "at_max": agg.max("at"),
    "some": agg.any("b"),
    "each": agg.all("b"),
    "different": agg.distinct("s"),
    "some_s": agg.collect("s", 3),
    "about": agg.distinct("n", approx=True),
    "median": agg.quantile("x", 0.5),
    "twice": agg.sum(col("n") * 2),
}
WINDOWS = {"tumbling": tumbling(10, grace=3), "hopping": hopping(10, 4, grace=3), "long": tumbling(40, offset=5)}


def source(app: App) -> Stream:
    return app.stream("in", value=json(SCHEMA), key="k", timestamp="at")


def windowed(window: str, emit: str) -> App:
    app = App("law")
    groups = source(app).group_by("k").window(WINDOWS[window], late="late")
    groups.agg(name="state", emit=emit, **EVERYTHING).to("out")
    return app


def keyed(emit: str) -> App:
    app = App("law")
    source(app).group_by("k").agg(name="state", emit=emit, **EVERYTHING).to("out")
    return app


def stateless() -> App:
    app = App("law")
    stream = source(app).filter(col("n") > 1, ~col("x").is_null()).with_columns(y=col("x") + col("n"))
    branches = stream.split(big=col("y") > 4, rest=col("y") <= 4)
    branches["big"].merge(branches["rest"].filter(col("b"))).select("k", "y", z=col("y") * 2).to("out")
    return app


values = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-5, 5),
        "x": st.none() | st.floats(-1e6, 1e6) | st.sampled_from([0.1, 0.2, 0.7, 1e17]),
        "s": st.none() | st.sampled_from(["", "a", "b", "ä"]),
        "b": st.none() | st.booleans(),
        "at": st.integers(0, 60),
    }
)
records = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), values, st.just(0)), min_size=1, max_size=30)


@pytest.mark.parametrize("topic", ["out", "late"])
@pytest.mark.parametrize("emit", ["every", "final"])
@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_windows(window: str, emit: str, topic: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = windowed(window, emit)
    assert by_key(run_cut(app, given, cutting, topic)) == by_key(run_one_by_one(app, given, topic))


@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_keys_with_every(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = keyed("every")
    assert by_key(run_cut(app, given, cutting, "out")) == by_key(run_one_by_one(app, given, "out"))


@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_keys_with_changes_end_alike(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = keyed("changes")
    last = {key: found[-1] for key, found in by_key(run_cut(app, given, cutting, "out")).items()}
    every = by_key(run_one_by_one(keyed("every"), given, "out"))
    assert {key: value for key, (value, _) in last.items()} == {key: found[-1][0] for key, found in every.items()}


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_windows_with_changes_end_alike(window: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    def last(found: list[Any]) -> dict[Any, Any]:
        return {(key, value["window_start"]): (value, time) for key, value, time in found}

    changed = run_cut(windowed(window, "changes"), given, cutting, "out")
    assert last(changed) == last(run_one_by_one(windowed(window, "every"), given, "out"))


@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_columns(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = stateless()
    assert by_key(run_cut(app, given, cutting, "out")) == by_key(run_one_by_one(app, given, "out"))


def test_rows_of_branches_that_meet_again_are_in_the_order_of_their_records() -> None:
    app = App("law")
    branches = source(app).split(odd=col("n") % 2 == 1, rest=col("n") >= 0)
    branches["rest"].merge(branches["odd"].with_columns(n=col("n") * 10)).to("out")
    given: list[Record] = [(b"a", {"n": n, "at": 0}, 0) for n in range(6)]
    for cutting in ([], [(2, "")], [(1, "")] * 6):
        assert [value["n"] for _, value, _ in run_cut(app, given, cutting, "out")] == [0, 10, 2, 30, 4, 50]


def meeting(emit: str) -> App:
    """Two branches of one stream, one of them through a filter and windows, meet in other windows."""
    app = App("law")
    stream = source(app)
    sums = (
        stream.filter(col("n") > 0)
        .group_by("k")
        .window(tumbling(5), late="drop")
        .agg(n=agg.sum("n"), name="inner", emit=emit)
    )
    both = stream.select("k", "n").merge(sums.select("k", "n"))
    outer = both.group_by("k").window(tumbling(10, grace=2), late="late")
    outer.agg(rows=agg.count(), ns=agg.collect("n", 50), name="outer", emit="final").to("out")
    return app


@pytest.mark.parametrize("topic", ["out", "late"])
@pytest.mark.parametrize("emit", ["every", "final"])
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_branches_that_meet_in_windows(
    emit: str, topic: str, given: list[Record], cutting: list[tuple[int, str]]
) -> None:
    app = meeting(emit)
    assert by_key(run_cut(app, given, cutting, topic)) == by_key(run_one_by_one(app, given, topic))


def chained(second: Any) -> App:
    app = App("law")
    first = (
        source(app).group_by("k").window(tumbling(5, grace=1), late="drop").agg(n=agg.count(), name="5", emit="final")
    )
    again = first.select("k", "n").group_by("k").window(second, late="late")
    again.agg(n=agg.sum("n"), rows=agg.count(), name="10", emit="final").to("out")
    return app


@settings(max_examples=20, deadline=None)
@given(given=records, cutting=cuts)
def test_what_windows_close_with_is_not_late_for_the_next(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = chained(tumbling(10, grace=1))
    assert by_key(run_cut(app, given, cutting, "out")) == by_key(run_one_by_one(app, given, "out"))
    assert run_cut(app, given, cutting, "late") == []


def timed() -> App:
    """Timers of rows that a filter lets through, due by those that it does not."""
    app = App("law")

    def on_row(row: Any, state: Any, context: Any) -> Any:
        context.timer("t", at=context.time + row["n"])
        state.seen.append(row["n"])

    def on_timer(name: str, state: Any, context: Any) -> Any:
        return {"seen": state.seen, "at": context.time, "watermark": context.watermark}

    stream = source(app)
    rang = stream.filter(col("n") > 0).process(
        on_row,
        name="p",
        state={"seen": value(list)},
        on_timer=on_timer,
        schema="seen array<bigint>, at bigint, watermark bigint",
    )
    plain = stream.select(seen=col("n") - 100, at=col("n"), watermark=col("n")).map(
        lambda row: {**row, "seen": []}, schema="seen array<bigint>, at bigint, watermark bigint"
    )
    rang.merge(plain).to("out")
    return app


@settings(max_examples=20, deadline=None)
@given(given=records, cutting=cuts)
def test_timers_fire_where_they_would_one_by_one(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    assert by_key(run_cut(timed(), given, cutting, "out")) == by_key(run_one_by_one(timed(), given, "out"))


@settings(max_examples=15, deadline=None)
@given(given=records, seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_behind_a_repartition(given: list[Record], seeds: tuple[int, int]) -> None:
    """From one partition, so that there is one order; through two tasks."""
    found = []
    for seed in seeds:
        app = App("law")
        stream = source(app).key_by("s").repartition(2, name="by-s")
        sums = stream.group_by().window(tumbling(5), late="drop")
        sums.agg(n=agg.collect("n", 50), name="inner", emit="final").to("out")
        with Driver(app, seed=seed) as driver:
            driver.pipe_raw("in", [key for key, _, _ in given], [orjson.dumps(row) for _, row, _ in given])
            driver.advance_to(1_000)
            found.append(sorted(map(repr, driver.read("out"))))
    assert found[0] == found[1]
