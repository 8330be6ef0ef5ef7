"""The batch law (see ``test_batch_law``) of any operators one behind the other, and of branches that meet again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Record, by_key, cuts, run_cut

from headrace_streams import App, Stream, agg, at_most_every, col, counting, hopping, json, session, sliding, tumbling
from headrace_streams import value as value_of

Part = Callable[[Stream, str], Stream]
"""Takes and gives the columns ``k`` and ``n``; keeps state under this name."""
SCHEMA: Final = "k string, n bigint"


def _windows(window: Any, emit: Any, rows: Stream, name: str) -> Stream:
    late = {} if isinstance(window, type(counting(1))) else {"late": "late"}
    groups = rows.group_by("k").window(window, **late)
    return groups.agg(n=agg.sum("n"), name=name, emit=emit).select("k", "n")


def _sums(emit: Any, rows: Stream, name: str) -> Stream:
    return rows.group_by("k").agg(n=agg.sum("n"), name=name, emit=emit)


def _timers(rows: Stream, name: str) -> Stream:
    def on_row(row: Any, state: Any, context: Any) -> Any:
        state.n += row["n"]
        context.timer("t", at=context.time + 1 + abs(row["n"]) % 5)
        if state.n % 2:
            return {"k": row["k"], "n": state.n}
        return None

    def on_timer(timer: str, state: Any, context: Any) -> Any:
        return {"k": context.key.decode(), "n": state.n + 1_000 * (context.time % 7)}

    return rows.process(on_row, name=name, state={"n": value_of(int)}, on_timer=on_timer, schema=SCHEMA)


def _table(rows: Stream, name: str) -> Stream:
    return rows.to_table(name=name).filter(col("n") % 3 != 0).to_stream(emit="every").select("k", "n")


def _with_own(rows: Stream, name: str) -> Stream:
    counts = rows.group_by("k").agg(rows=agg.count(), name=name, emit="every").to_table(name=f"{name}-table")
    return rows.join(counts, how="left").select("k", n=col("n") * 10 + col("rows"))


def _near(rows: Stream, name: str) -> Stream:
    other = rows.filter(col("n") > 0).rename(n="m")
    joined = rows.join(other, within=(-3, 4), grace=2, how="outer", late="late", name=name, suffix="_2")
    return joined.select("k", n=col("n").fill_null(100) + col("m").fill_null(1_000))


def _branches(rows: Stream, name: str) -> Stream:
    branches = rows.split(odd=col("n") % 2 == 1, rest=col("n") < 9)
    sums = _windows(tumbling(4, grace=1), "final", branches["odd"], name)
    return branches["rest"].merge(sums)


def _tripled(table: pa.Table) -> pa.Table:
    return pa.table({"k": table["k"], "n": pc.multiply(table["n"], 3)})


PARTS: Final[dict[str, Part]] = {
    "filter": lambda rows, name: rows.filter(col("n") > -3),
    "more": lambda rows, name: rows.with_columns(n=col("n") + 1),
    "unique": lambda rows, name: rows.unique("k", "n", within=7, name=name),
    "tumbling": partial(_windows, tumbling(5, grace=1), "final"),
    "tumbling-every": partial(_windows, tumbling(5, grace=1), "every"),
    "hopping": partial(_windows, hopping(6, 4), "final"),
    "sliding": partial(_windows, sliding(4, grace=1), "final"),
    "sliding-every": partial(_windows, sliding(4), "every"),
    "session": partial(_windows, session(3, grace=1), "final"),
    "session-every": partial(_windows, session(3), "every"),
    "counting": partial(_windows, counting(2), "final"),
    "tumbling-seldom": partial(_windows, tumbling(9, grace=3), at_most_every(4)),
    "sums": partial(_sums, "every"),
    "sums-seldom": partial(_sums, at_most_every(5)),
    "table": _table,
    "with-own": _with_own,
    "near": _near,
    "branches": _branches,
}
LAST: Final[dict[str, Part]] = {
    "timers": _timers,
    "batches": lambda rows, name: rows.map_batches(_tripled, schema=SCHEMA),
    "as-is": lambda rows, name: rows,
}
"""A function says nothing of the key of its rows, so these would move."""


def program(names: Sequence[str]) -> App:
    app = App("chain")
    rows = app.stream("in", value=json("n bigint, at timestamp"), key="k", timestamp="at").select("k", "n")
    for place, name in enumerate(names):
        rows = (PARTS | LAST)[name](rows, f"{place}-{name}")
    rows.to("out")
    return app


rows = st.tuples(
    st.sampled_from([b"a", b"b"]),
    st.fixed_dictionaries({"n": st.integers(-5, 5), "at": st.integers(0, 12)}),
    st.just(0),
)
steps = st.integers(0, 6)


def _on(given: list[tuple[Record, int]]) -> list[Record]:
    """Event time goes on, with rows that are late."""
    base, found = 0, []
    for (key, value, time), step in given:
        assert isinstance(value, dict)
        base += step
        found.append((key, {**value, "at": base + value["at"]}, time))
    return found


@settings(max_examples=20, deadline=None)
@given(
    parts=st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3),
    last=st.sampled_from(sorted(LAST)),
    given=st.lists(st.tuples(rows, steps), min_size=4, max_size=25),
    cutting=cuts,
)
def test_how_input_is_cut_is_not_seen(
    parts: list[str], last: str, given: list[tuple[Record, int]], cutting: list[tuple[int, str]]
) -> None:
    names = [*parts, last]
    app, records = program(names), _on(given)
    alone = [(1, "")] * len(given)
    assert by_key(run_cut(app, records, cutting, "out")) == by_key(run_cut(app, records, alone, "out"))
    late, late_alone = (run_cut(app, records, how, "late") for how in (cutting, alone))
    assert sorted(map(repr, late)) == sorted(map(repr, late_alone)), "nodes that write to one topic have no order"
