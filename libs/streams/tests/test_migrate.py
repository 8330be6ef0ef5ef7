"""``versioned(…, version=2, migrate={1: f})``: what an earlier version of a program has kept."""

from __future__ import annotations

from typing import Any

import pytest
from libs.streams.tests.kit.feeding import Fed, rows

from headrace_streams import App, NotAllowed, StateFailed, json, ttl, value, versioned
from headrace_streams.plan.compare import Change, Fate, compare, difference, differing
from headrace_streams.plan.describe import as_data
from headrace_streams.testing import Driver


def first(row: dict[str, Any], state: Any, context: Any) -> Any:
    state.n += 1
    state.note = "kept"
    yield {"n": state.n}


def second(row: dict[str, Any], state: Any, context: Any) -> Any:
    if row["op"] == "add":
        state.seconds += 1
    yield {"seconds": state.seconds, "unit": state.unit}


def third(row: dict[str, Any], state: Any, context: Any) -> Any:
    yield {"minutes": state.minutes, "unit": state.unit}


def to_seconds(values: dict[str, Any]) -> dict[str, Any]:
    return {"seconds": values.pop("n", 0) / 2, "unit": "s", **values}


def to_minutes(values: dict[str, Any]) -> dict[str, Any]:
    return {"minutes": values.get("seconds", 0) * 10, "unit": f"{values.get('unit')} m"}


ONE = {"n": value(int), "note": value(str)}
TWO = {"seconds": value(float), "unit": value(str)}
THREE = {"minutes": value(float), "unit": value(str)}
STEPS = {1: to_seconds, 2: to_minutes}


def app_of(function: Any, state: Any, **more: Any) -> App:
    app = App("m")
    stream = app.stream("in", value=json("op string"), key="k")
    stream.process(function, name="p", state=versioned(state, **more) if more else state).to("out")
    return app


def add(key: bytes = b"a", op: str = "add") -> tuple[bytes, dict[str, Any], int]:
    return (key, {"op": op}, 0)


def after(before: Fed, app: App) -> Fed:
    """Another program that goes on with the state."""
    fed = Fed(app)
    fed.cold = before.cold
    fed.reopen()
    return fed


@pytest.fixture
def old() -> Fed:
    """State of the first version, of two keys."""
    fed = Fed(app_of(first, ONE))
    fed.feed("in", [add(), add(), add(b"b")])
    fed.commit()
    return fed


def test_values_are_lifted_when_they_are_read(old: Fed) -> None:
    fed = after(old, app_of(second, TWO, version=2, migrate={1: to_seconds}))
    fed.feed("in", [add(op="look"), add(b"new"), add()])
    assert [(key, row["seconds"], row["unit"]) for key, row, _ in rows(fed.commit(), "out")] == [
        (b"a", 1.0, "s"),
        (b"new", 1.0, ""),
        (b"a", 2.0, "s"),
    ]


def test_what_was_written_since_is_not_lifted_again(old: Fed) -> None:
    program = app_of(second, TWO, version=2, migrate={1: to_seconds})
    fed = after(old, program)
    fed.feed("in", [add()])
    fed.commit()
    again = after(fed, program)
    again.feed("in", [add(op="look"), add(b"b", op="look")])
    assert [row["seconds"] for _, row, _ in rows(again.commit(), "out")] == [2.0, 0.5], "b is of the first version yet"


def test_over_several_versions(old: Fed) -> None:
    """A key that was not read under the second goes through both."""
    fed = after(old, app_of(second, TWO, version=2, migrate={1: to_seconds}))
    fed.feed("in", [add()])
    fed.commit()
    fed = after(fed, app_of(third, THREE, version=3, migrate=STEPS))
    fed.feed("in", [add(), add(b"b")])
    assert [(row["minutes"], row["unit"]) for _, row, _ in rows(fed.commit(), "out")] == [(20.0, "s m"), (5.0, "s m")]


def test_an_abort_lifts_again_and_changes_nothing(old: Fed) -> None:
    fed = after(old, app_of(second, TWO, version=2, migrate={1: to_seconds}))
    fed.feed("in", [add()])
    fed.abort()
    fed.feed("in", [add()])
    assert [row["seconds"] for _, row, _ in rows(fed.commit(), "out")] == [2.0]


def test_questions_see_what_is_lifted(old: Fed) -> None:
    fed = after(old, app_of(second, TWO, version=2, migrate={1: to_seconds}))
    found = fed.task.contents("p")
    assert found is not None
    assert found.select(["key", "seconds", "unit"]).to_pylist() == [
        {"key": b"a", "seconds": 1.0, "unit": "s"},
        {"key": b"b", "seconds": 0.5, "unit": "s"},
    ]


def test_a_value_that_ends_keeps_its_end() -> None:
    def kept(row: dict[str, Any], state: Any, context: Any) -> Any:
        if row["op"] == "add":
            state.n = context.time + 1
        yield {"n": state.n}

    app = App("m")
    stream = app.stream("in", value=json("op string, at bigint"), key="k", timestamp="at")
    stream.process(kept, name="p", state={"n": ttl(int, 10)}).to("out")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"op": "add", "at": 5}, 0)])
    fed.commit()
    app = App("m")
    stream = app.stream("in", value=json("op string, at bigint"), key="k", timestamp="at")
    lift = {1: lambda values: {"n": 2 * values["n"]}}
    state = versioned({"n": ttl(int, 10)}, version=2, migrate=lift)
    stream.process(kept, name="p", state=state).to("out")
    fed = after(fed, app)
    fed.feed("in", [(b"a", {"op": "look", "at": at}, 0) for at in (14, 15, 16)])
    assert [row["n"] for _, row, _ in rows(fed.commit(), "out")] == [12, 12, 0], "15 is when it ends, behind the record"


@pytest.mark.parametrize(
    ("function", "state", "more", "said"),
    [
        (
            third,
            THREE,
            {"version": 3, "migrate": {2: to_minutes}},
            "are of version 1, and the program has version 3, w",
        ),
        (second, TWO, {"version": 2}, "are of version 1, and the program has version 2, whose migrate= does not"),
        (
            second,
            TWO,
            {"version": 2, "migrate": {1: lambda values: {"seconds": "many"}}},
            "from version 1 to 2: TypeError: seconds is declared as float, and was set to 'many'",
        ),
        (second, TWO, {"version": 2, "migrate": {1: lambda values: 1 / 0}}, "version 1 to 2: ZeroDivisionError: div"),
        (second, TWO, {"version": 2, "migrate": {1: lambda values: None}}, "version 1 to 2: TypeError"),
    ],
)
def test_what_cannot_be_lifted_stops_the_app_by_node_and_key(
    old: Fed, function: Any, state: Any, more: Any, said: str
) -> None:
    fed = after(old, app_of(function, state, **more))
    with pytest.raises(StateFailed, match=said) as raised:
        fed.feed("in", [add()])
    assert str(raised.value).startswith("process ")
    assert "key b'a'" in str(raised.value)


def test_values_of_a_later_version_are_not_read_as_an_earlier_one(old: Fed) -> None:
    fed = after(old, app_of(second, TWO, version=2, migrate={1: to_seconds}))
    fed.feed("in", [add()])
    fed.commit()
    with pytest.raises(StateFailed, match=r"are of version 2, and the program has version 1$"):
        after(fed, app_of(first, ONE)).feed("in", [add()])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"version": 0}, "version is 0; give a whole number"),
        ({"version": "2"}, "version is '2'; give a whole number"),
        ({"version": 2, "migrate": [to_seconds]}, "migrate is .*; write for example migrate={1: FUNCTION}"),
        ({"version": 2, "migrate": {1: 7}}, "migrate= of version 1 needs a function, not 7"),
        ({"version": 1, "migrate": {1: to_seconds}}, "migrate= lifts 1, and version is 1: give a function for each"),
        ({"version": 3, "migrate": {1: to_seconds}}, "migrate= lifts 1, and version is 3"),
        ({"version": 2, "migrate": {0: to_seconds, 1: to_seconds}}, "migrate= lifts 0, 1, and version is 2"),
        ({"version": 2, "migrate": {"1": to_seconds}}, "migrate= lifts '1', and version is 2"),
    ],
)
def test_refused(more: Any, said: str) -> None:
    with pytest.raises(NotAllowed, match=said):
        app_of(second, TWO, **more)


# --- what becomes of the state: the start, and `headrace streams plan` -----------------------------------------------


def form(app: App) -> dict[str, str]:
    (part,) = as_data("m", app.graph)["sub_topologies"]
    found: dict[str, str] = part["stores"]
    return found


OF_ONE = form(app_of(first, ONE))
OF_TWO = form(app_of(second, TWO, version=2, migrate={1: to_seconds}))
OF_THREE = form(app_of(third, THREE, version=3, migrate=STEPS))
NOT_FROM_ONE = form(app_of(third, THREE, version=3, migrate={2: to_minutes}))


@pytest.mark.parametrize(
    ("then", "now"),
    [(OF_ONE, OF_TWO), (OF_ONE, OF_THREE), (OF_TWO, OF_THREE), (OF_TWO, NOT_FROM_ONE), (OF_THREE, OF_THREE)],
)
def test_a_program_that_lifts_the_state_starts(then: dict[str, str], now: dict[str, str]) -> None:
    assert differing(then, now) == []
    assert differing({**then, **now}, now) == [], "as it is said from the next commit on"


def test_what_lifts_less_is_no_other_form() -> None:
    assert differing(OF_THREE, NOT_FROM_ONE) == []


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (OF_TWO, OF_ONE, "the values of 'p' are of version 2; the program has version 1"),
        ({**OF_ONE, **OF_TWO}, OF_ONE, "the values of 'p' are of version 2; the program has version 1"),
        (OF_ONE, NOT_FROM_ONE, "the values of 'p' are of version 1; the program has version 3, and lifts from 2 on"),
    ],
)
def test_a_program_that_does_not_is_refused(then: dict[str, str], now: dict[str, str], said: str) -> None:
    assert [difference(what, then, now) for what in differing(then, now)] == [said]


def test_the_plan_says_it() -> None:
    one, two = app_of(first, ONE), app_of(second, TWO, version=2, migrate={1: to_seconds})
    old, new = (as_data("m", app.graph) for app in (one, two))
    found = [change for change in compare(old, new) if "values of" in change.what]
    assert found == [
        Change(
            Fate.SAFE,
            "the values of 'p' are lifted from version 1 to 2; a program with version 1 cannot go on with them then",
        )
    ]
    assert max(change.fate for change in compare(old, new)) is Fate.SAFE
    change = compare(new, old)[0]
    assert change.fate is Fate.NEEDS
    assert change.do == "headrace streams reset m --store p lets it begin empty, and so does another name="
    assert compare(new, new) == []


def test_the_form_of_the_first_version_is_as_ever() -> None:
    """State of older releases is that of the first version."""
    assert [name for name in OF_ONE if "@" in name] == []
    assert {name: OF_THREE[name] for name in OF_THREE if "@" in name} == {"p.@version": "3", "p.@lifted-from": "1"}


def test_a_driver_takes_it() -> None:
    with Driver(app_of(second, TWO, version=2, migrate={1: to_seconds})) as driver:
        driver.pipe("in", [{"k": "a", "op": "add"}])
        driver.crash()
        driver.restart()
        driver.pipe("in", [{"k": "a", "op": "look"}])
        assert [row["seconds"] for row in driver.read("out")] == [1.0, 1.0]
