"""Aggregates that functions of the user's compute."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, rows, run_cut, run_one_by_one
from libs.streams.tests.test_batch_law import records, source

from headrace_streams import App, NotAllowed, StateFailed, agg, col, json, session, sliding, tumbling
from headrace_streams.testing import Driver


def append(state: list[Any], value: Any) -> list[Any]:
    state.append(value)
    return state


def joined(state: str, value: str) -> str:
    return state + value


def averaged(state: dict[str, float], value: float) -> dict[str, float]:
    return {"n": state["n"] + 1, "sum": state["sum"] + value}


FOLDS: dict[str, Any] = {
    "text": agg.fold("s", "", joined, type="string", merge=joined),
    "all": agg.fold("n", [], append, type="array<bigint>", merge=lambda state, later: state + later),
    "mean": agg.fold(
        col("n") * 2,
        {"n": 0, "sum": 0.0},
        averaged,
        type="double",
        merge=lambda one, other: {name: one[name] + other[name] for name in one},
        result=lambda state: state["sum"] / state["n"] if state["n"] else None,
    ),
}


def folded(window: Any, emit: str) -> App:
    app = App("fold")
    groups = source(app).group_by("k")
    if window is not None:
        groups = groups.window(window, late="drop")
    groups.agg(name="folded", emit=emit, **FOLDS).to("out")
    return app


@pytest.mark.parametrize(
    ("window", "emit"),
    [
        (None, "every"),
        (tumbling(10, grace=3), "every"),
        (tumbling(10), "final"),
        (session(5, grace=3), "every"),
        (sliding(5, grace=3), "every"),
    ],
)
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_the_batch_law(window: Any, emit: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = folded(window, emit)
    assert by_key(run_cut(app, given, cutting, "out")) == by_key(run_one_by_one(app, given, "out"))


@settings(max_examples=25, deadline=None)
@given(given=records, cutting=cuts)
def test_it_is_what_a_loop_computes(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    last = {key: found[-1][0] for key, found in by_key(run_cut(folded(None, "changes"), given, cutting, "out")).items()}
    for key, found in last.items():
        assert key is not None
        of_key = [row for of, row, _ in given if of == key and isinstance(row, dict)]
        numbers = [row["n"] for row in of_key if row["n"] is not None]
        assert found["text"] == "".join(row["s"] for row in of_key if row["s"] is not None)
        assert found["all"] == numbers
        assert found["mean"] == (sum(numbers) * 2 / len(numbers) if numbers else None)


def test_a_table_takes_values_out_again() -> None:
    app = App("fold")
    table = app.table("in", value=json("team string, member string"), key="id", name="members")
    members = agg.fold("member", [], append, type="array<string>", remove=lambda s, v: [x for x in s if x != v])
    table.group_by("team", name="by-team").agg(members=members, name="teams", emit="every").to("out")
    with Driver(app) as driver:
        driver.pipe("in", [{"id": n, "team": team, "member": n} for n, team in (("a", "x"), ("b", "x"), ("a", "y"))])
        last = {row["team"]: row["members"] for row in driver.read("out")}
    assert last == {"x": ["b"], "y": ["a"]}


def stream() -> Any:
    return App("fold").stream("in", value=json("n bigint"), key="k")


def test_what_is_refused() -> None:
    plain = agg.fold("n", 0, lambda state, value: state + value, type="bigint")
    with pytest.raises(NotAllowed, match=r"is merged, so fold\(\) needs merge= here"):
        stream().group_by("k").window(session(5), late="drop").agg(n=plain, name="g")
    table = App("fold").table("in", value=json("n bigint"), key="k", name="t")
    with pytest.raises(NotAllowed, match=r"cannot take a row out again .* fold\(\) with remove="):
        table.group_by("k").agg(n=plain, name="g")
    with pytest.raises(NotAllowed, match="needs a function for add=, not 5"):
        agg.fold("n", 0, 5, type="bigint")  # type: ignore[arg-type]
    with pytest.raises(NotAllowed, match=r"init was set to .*, which cannot be kept"):
        agg.fold("n", object(), append, type="bigint")
    with pytest.raises(NotAllowed, match="type= is 5; write for example 'double'"):
        agg.fold("n", 0, append, type=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("emit", ["changes", "every"])
@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda state, value: state / value, "'r' of key b'a' cannot be computed: ZeroDivisionError"),
        (
            lambda state, value: 7 if value else object(),
            "'r' of key b'a' cannot be computed: TypeError: the state was set to",
        ),
        (
            lambda state, value: "text" if value == 0 else 7,
            r"agg 'g' .*: 'r' of key b'a' cannot be told: the result of fold\(\) is no int64: ArrowInvalid",
        ),
    ],
)
def test_a_function_that_fails_stops_the_app_by_name(emit: str, add: Any, message: str) -> None:
    app = App("fold")
    groups = app.stream("in", value=json("n bigint"), key="k").group_by("k")
    groups.agg(r=agg.fold("n", 1, add, type="bigint"), name="g", emit=emit).to("out")
    fed = Fed(app)

    def work() -> None:
        fed.feed("in", [(b"b", {"n": 1}, 0), *[(b"a", {"n": 0}, 0)] * 12])
        fed.commit()

    with pytest.raises(StateFailed, match=message):
        work()
    fed.abort()
    fed.feed("in", [(b"a", {"n": None}, 0)])
    assert [row["r"] for _, row, _ in rows(fed.commit(), "out")] == [1]
