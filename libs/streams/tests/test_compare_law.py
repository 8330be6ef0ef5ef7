"""
Of any two programs under one name: what ``compare`` says of the state is what becomes of it. A small model knows which
forms of state they have and where; steps without state make no difference to it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from libs.streams.tests.test_compare import described

from headrace_streams import App, Stream, agg, col, json, value
from headrace_streams.plan.compare import Fate, compare

STATES = ["n=count", "n=sum", "x=count", "function"]
"""What a store can be of: aggregates in three forms, or a function."""
states = st.dictionaries(st.sampled_from(["first", "second", "third"]), st.sampled_from(STATES))
steps = st.lists(st.sampled_from(["filter", "more", "drop"]), max_size=3)
programs = st.tuples(states, steps, st.sampled_from([2, 3]))
Program = tuple[dict[str, str], list[str], int]


def build(app: App, stores: dict[str, str], way: list[str]) -> None:
    rows: Stream = app.stream("orders", value=json("x bigint"), key="user")
    for step in way:
        if step == "filter":
            rows = rows.filter(col("x") > 1)
        elif step == "more":
            rows = rows.with_columns(x=col("x") + 1)
        else:
            rows = rows.drop_nulls("x")
    for name, kind in stores.items():
        if kind == "function":
            rows.process(lambda *_: [], name=name, state={"seen": value(int)})
        else:
            column, _, made = kind.partition("=")
            aggregate = agg.count() if made == "count" else agg.sum("x")
            rows.group_by("user").agg(**{column: aggregate}, name=name)
    rows.to("out")


def told(program: Program) -> dict[str, Any]:
    stores, way, partitions = program
    return described(lambda app: build(app, stores, way), partitions)


@given(programs, programs)
def test_the_worst_is_that_of_the_store_that_fares_worst(then: Program, now: Program) -> None:
    found = compare(told(then), told(now))
    both = then[0].keys() & now[0].keys()
    fates = {Fate.NEEDS for name in both if then[0][name] != now[0][name]}
    if then[0] and now[0] and then[2] != now[2]:
        fates.add(Fate.REFUSED)
    worst = max(fates, default=Fate.SAFE)
    assert max((change.fate for change in found), default=Fate.SAFE) is worst
    assert [change.fate for change in found] == sorted((change.fate for change in found), reverse=True)
    said = "\n".join(change.what for change in found)
    for name in now[0].keys() - then[0].keys():
        assert f"the state {name!r} is new" in said
    for name in then[0].keys() - now[0].keys():
        assert f"the state {name!r} is not in the program" in said
    for name in both:
        assert (f"the state {name!r} is kept as" in said) == (then[0][name] != now[0][name])


@given(programs, steps)
def test_steps_without_state_are_safe_and_the_same_program_is_the_same(program: Program, way: list[str]) -> None:
    assert compare(told(program), told(program)) == []
    other = (program[0], way, program[2])
    found = compare(told(program), told(other))
    assert {change.fate for change in found} <= {Fate.SAFE}
    assert bool(found) == (program[1] != way)
    assert {change.what[0] for change in found} <= set("+-")
