"""In which form state is kept: what a program says of it, and what a worker makes of another program's."""

from __future__ import annotations

import pytest

from headrace.records import TopicPartition
from headrace_streams import App, agg, col, hopping, json, sliding, tumbling, value
from headrace_streams.core.errors import NotAllowed
from headrace_streams.dsl.stream import Stream
from headrace_streams.plan.compare import OF_FUNCTION
from headrace_streams.plan.cut import Assembly, SubTopology
from headrace_streams.runtime.owned import Spec
from headrace_streams.runtime.taking import check_basis


def orders(app: App) -> Stream:
    return app.stream("orders", value=json("x bigint, y double"), key="user")


def form(app: App) -> dict[str, str]:
    (part,) = Assembly("a", app.graph, {"orders": 1}).parts
    return part.form


def of_aggregates(window: object = None, **aggregates: agg.Agg) -> dict[str, str]:
    app = App("a")
    groups = orders(app).group_by("user")
    if window is not None:
        groups = groups.window(window, late="drop")  # type: ignore[arg-type]
    groups.agg(**aggregates, name="totals").to("out")
    return form(app)


def test_the_form_of_an_aggregate_stands_in_changelogs() -> None:
    """A change here has every app refuse its state."""
    assert of_aggregates(tumbling("10s", grace=5), n=agg.count(), total=agg.sum("y"), some=agg.collect("x", 3)) == {
        "totals": "n=count() as int64, total=sum() as float64 int64, some=collect(3) as object by (user string) in "
        "Hopping(size_ms=10000, advance_ms=10000, grace_ms=5, offset_ms=0)"
    }


def test_the_functions_of_a_fold_are_no_part_of_its_form() -> None:
    one = of_aggregates(n=agg.fold("x", 0, lambda state, value: state + value, type="bigint"))
    assert one == {"totals": "n=fold() as object by (user string)"}
    assert of_aggregates(n=agg.fold("x", 1, max, type="double", merge=max)) == one


def test_what_changes_the_form_of_an_aggregate_and_what_does_not() -> None:
    first = of_aggregates(n=agg.sum("x"))
    assert of_aggregates(n=agg.sum(col("x") * 2)) == first
    others = [
        of_aggregates(n=agg.sum("y")),
        of_aggregates(n=agg.min("x")),
        of_aggregates(m=agg.sum("x")),
        of_aggregates(n=agg.sum("x"), m=agg.count()),
        of_aggregates(tumbling("10s"), n=agg.sum("x")),
        of_aggregates(tumbling("20s"), n=agg.sum("x")),
        of_aggregates(hopping("20s", "10s"), n=agg.sum("x")),
        of_aggregates(sliding("10s"), n=agg.sum("x")),
        of_aggregates(sliding("10s", grace=1), n=agg.sum("x")),
    ]
    assert len({str(one) for one in [first, *others]}) == 1 + len(others)


def test_the_form_of_a_function_is_that_of_each_value() -> None:
    app = App("a")
    orders(app).process(lambda *_: [], name="seen", state={"n": value(int), "tags": value(list, ["a"])})
    assert form(app) == {
        "seen": "values and timers of a function",
        "seen.n": "int, 0 at first",
        "seen.tags": "list, ['a'] at first",
    }


def test_the_form_of_a_join_is_what_its_rows_are_kept_for() -> None:
    def of(how: str = "left", grace: int = 5) -> dict[str, str]:
        app = App("a")
        left = orders(app)
        left.select("x").join(left.select("y"), within=("-5s", "10s"), grace=grace, how=how, late="drop", name="near")
        return form(app)

    assert of() == {
        "near": "rows of (x int64) and (y double), left, in Within(lower_ms=-5000, upper_ms=10000, grace_ms=5)"
    }
    assert len({str(one) for one in (of(), of("outer"), of(grace=6))}) == 3


def test_the_form_of_a_table_is_its_columns() -> None:
    app = App("a")
    app.table("orders", value=json("x bigint, tags array<string>"), key="user", name="orders")
    assert form(app) == {"orders": "rows of (x int64, tags list<item: string>, user string)"}


def check(then: dict[str, str], now: dict[str, str]) -> None:
    part = SubTopology("orders", (), ("orders",), ())
    spec = Spec(part, 0, ("orders",), now, TopicPartition("a.orders.changelog", 0))
    check_basis("a", spec, then)


def test_a_program_that_keeps_state_in_another_form_is_refused() -> None:
    with pytest.raises(NotAllowed, match=r"the state 'totals' is kept as n=count.*; the program wants n=sum.* name="):
        check({"totals": "n=count()"}, {"totals": "n=sum()"})


def test_a_program_that_does_not_lift_the_values_is_refused() -> None:
    then = {"seen": OF_FUNCTION, "seen.n": "int, 0 at first"}
    now = {"seen": OF_FUNCTION, "seen.n": "float, 0.0 at first", "seen.@version": "2"}
    check(then, {**now, "seen.@lifted-from": "1"})
    said = (
        r"the values of 'seen' are of version 1; the program has version 2: .* headrace streams reset a --store seen$"
    )
    with pytest.raises(NotAllowed, match=said):
        check(then, now)


def test_a_topic_that_was_made_anew_is_refused() -> None:
    with pytest.raises(NotAllowed, match=r"the topic orders was deleted and made anew.* headrace streams reset a"):
        check({"topic orders": "1"}, {"topic orders": "2"})


def test_state_may_come_and_go() -> None:
    check({"totals": "n=count()", "gone": "x"}, {"totals": "n=count()", "new": "y"})
