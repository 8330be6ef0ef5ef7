"""Aggregates before a repartition topic are not seen in what comes out, only in what goes through it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_streams import App, NotAllowed, agg, col, json, tumbling
from headrace_streams.core.errors import StateFailed
from headrace_streams.core.operators import hop
from headrace_streams.testing import Driver

EXACT: dict[str, Any] = {
    "rows": agg.count(),
    "ns": agg.count("n"),
    "n_sum": agg.sum("n"),
    "n_min": agg.min("n"),
    "at_max": agg.max("at"),
    "some": agg.any("b"),
    "each": agg.all("b"),
    "twice": agg.sum(col("n") * 2),
    "words": agg.count("s"),
}
HOP = "combine.by-k.repartition"


def program(*, combine: bool, windowed: bool, emit: str = "changes", **aggregates: Any) -> App:
    app = App("combine")
    stream = app.stream(
        "in", value=json("k string, n bigint, b boolean, s string, x double, at bigint"), timestamp="at"
    )
    groups = stream.group_by("k", name="by-k", combine=combine)
    if windowed:
        groups = groups.window(tumbling(10, grace=5), late="drop")
    groups.agg(name="state", emit=emit, **(aggregates or EXACT)).to("out")
    return app


rows = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.none() | st.sampled_from("abc"),
            "n": st.none() | st.integers(-3, 3),
            "b": st.none() | st.booleans(),
            "s": st.none() | st.just("s"),
            "at": st.integers(0, 40),
        }
    ),
    min_size=1,
    max_size=30,
)


def outcome(app: App, given: list[dict[str, Any]], seed: int) -> tuple[dict[Any, Any], Driver]:
    """The last row of each key and window."""
    driver = Driver(app, partitions=1, seed=seed)
    driver.pipe("in", given)
    driver.crash()
    driver.restart()
    driver.advance_to(1_000)
    return {(row["k"], row.get("window_start")): row for row in driver.read("out")}, driver


@pytest.mark.parametrize("windowed", [False, True])
@settings(max_examples=40, deadline=None)
@given(given=rows, seed=st.integers(0, 50))
def test_the_result_is_the_same(windowed: bool, given: list[dict[str, Any]], seed: int) -> None:
    """Late rows too: those that come more than the grace behind are late with and without it."""
    plain, _ = outcome(program(combine=False, windowed=windowed), given, seed)
    combined, _ = outcome(program(combine=True, windowed=windowed), given, seed + 1)
    assert combined == plain


@settings(max_examples=20, deadline=None)
@given(given=rows, seed=st.integers(0, 50))
def test_final_windows_are_the_same(given: list[dict[str, Any]], seed: int) -> None:
    plain, _ = outcome(program(combine=False, windowed=True, emit="final"), given, seed)
    combined, _ = outcome(program(combine=True, windowed=True, emit="final"), given, seed + 1)
    assert combined == plain


def through(app: App, given: list[dict[str, Any]]) -> int:
    """How many rows go through the repartition topic."""
    driver = Driver(app, partitions=1, seed=3)
    driver.pipe("in", given)
    driver.commit()
    flushes = [hop.decode(record["value"]) for record in driver.read_raw(HOP)]
    return sum(flush.rows.num_rows for flush in flushes if flush.rows is not None)


def test_fewer_rows_go_through() -> None:
    given = [{"k": "abc"[n % 3], "n": n, "at": 1} for n in range(300)]
    assert through(program(combine=False, windowed=False), given) == 300
    assert through(program(combine=True, windowed=False), given) < 100


@pytest.mark.parametrize(
    "aggregates",
    [{"x": agg.sum("x")}, {"m": agg.mean("n")}, {"s": agg.min("s")}, {"d": agg.distinct("s")}, {"f": agg.first("n")}],
)
def test_what_does_not_add_up_exactly_is_not_combined(aggregates: dict[str, Any]) -> None:
    kinds = [node.kind for node in program(combine=True, windowed=False, **aggregates).graph.nodes]
    assert "combine" not in kinds


def test_every_row_is_emitted_where_that_is_asked_for() -> None:
    assert "combine" not in [n.kind for n in program(combine=True, windowed=False, emit="every").graph.nodes]


def test_late_rows_that_are_kept_go_through_whole() -> None:
    app = App("kept")
    stream = app.stream("in", value=json("k string, at bigint"), timestamp="at")
    stream.group_by("k", name="by-k").window(tumbling(10), late="late").agg(n=agg.count(), name="n").to("out")
    assert "combine" not in [node.kind for node in app.graph.nodes]


def test_a_sum_that_does_not_fit_stops_before_the_topic() -> None:
    driver = Driver(program(combine=True, windowed=False, s=agg.sum("n")), partitions=1)
    with pytest.raises(StateFailed, match="'s' of key b'a'"):
        driver.pipe("in", [{"k": "a", "n": 2**62, "at": 1}] * 3)


def test_a_name_is_needed_as_without() -> None:
    app = App("unnamed")
    stream = app.stream("in", value=json("k string"))
    with pytest.raises(NotAllowed, match="needs a name: say name="):
        stream.group_by("k").agg(n=agg.count(), name="n")
