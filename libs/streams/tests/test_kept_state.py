"""Which changes of a program keep its state: each cell of the table in docs/streams.md, tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from libs.streams.tests.kit.feeding import Fed

from headrace.records import TopicPartition
from headrace_streams import (
    App,
    agg,
    at_most_every,
    col,
    counting,
    hopping,
    json,
    session,
    sliding,
    ttl,
    tumbling,
    value,
)
from headrace_streams.core.errors import NotAllowed
from headrace_streams.dsl.stream import Stream
from headrace_streams.dsl.windows import AtMostEvery
from headrace_streams.plan.compare import names_of
from headrace_streams.plan.cut import Assembly, SubTopology
from headrace_streams.runtime.owned import Spec
from headrace_streams.runtime.taking import check_basis

DOCS = Path(__file__).parents[3] / "docs" / "streams.md"
Build = Callable[[App], Any]
VALUE = "x bigint, y double"
TOPICS = ("orders", "payments", "shops")


def orders(app: App, topic: str = "orders", value: str = VALUE) -> Stream:
    return app.stream(topic, value=json(value), key="user")


# --- programs, with what may change in them -----------------------------------------------------------------------


def groups(
    *,
    value: str = VALUE,
    by: str = "user",
    before: Any = None,
    window: Any = None,
    late: str = "drop",
    emit: str | AtMostEvery = "changes",
    **made: agg.Agg,
) -> Build:
    def build(app: App) -> None:
        rows = orders(app, value=value)
        rows = rows if before is None else rows.filter(before)
        grouped = rows.group_by(*by.split(), name="" if by == "user" else "by")
        if window is not None:
            grouped = grouped.window(window, late=late)
        grouped.agg(name="kept", emit=emit, **(made or {"n": agg.sum("x")})).to("out")

    return build


def near(*, value: str = VALUE, other: str = "z bigint", within: str = "5s", grace: str = "0s", **more: Any) -> Build:
    def build(app: App) -> None:
        left, right = orders(app, value=value), orders(app, "payments", other)
        given = {"how": "inner", "late": "drop", **more}
        left.join(right, within=within, grace=grace, name="kept", **given).to("out")

    return build


def table(
    *, value: str = VALUE, versions: str | None = None, then: Any = None, how: str = "inner", shops: bool = False
) -> Build:
    def build(app: App) -> None:
        kept = app.table("orders", value=json(value), key="user", name="kept", versions=versions)
        kept = kept if then is None else then(kept)
        stream = orders(app, "payments", "z bigint")
        if shops:
            stream = stream.join(app.global_table("shops", value=json("town string"), key="id"), on="user")
        stream.join(kept, how=how, suffix="_2").to("out")

    return build


def reference(*, on: str = "shop", how: str = "inner", columns: str = "town string", suffix: str = "_2") -> Build:
    def build(app: App) -> None:
        left = app.table("orders", value=json("shop string, depot string"), key="user", name="orders")
        right = app.table("shops", value=json(columns), key="id", name="shops")
        left.join(right, on=on, how=how, suffix=suffix, name="kept").to("out")

    return build


def count(row: Any, state: Any, context: Any) -> Any:
    state.n += 1
    context.timer("ring", at=1_000_000)
    yield {"n": state.n}


def other(row: Any, state: Any, context: Any) -> Any:
    yield {"n": state.n}


def ring(name: str, state: Any, context: Any) -> Any:
    return None


def function(call: Any = count, **more: Any) -> Build:
    def build(app: App) -> None:
        given = {"state": {"n": value(int), "note": value(str)}, "on_timer": ring, **more}
        orders(app).process(call, name="kept", **given).to("out")

    return build


def unique(*columns: str, within: str = "1h") -> Build:
    return lambda app: orders(app).unique(*columns, within=within, name="kept").to("out")


@dataclass(frozen=True, slots=True)
class Case:
    """A change of a program."""

    then: Build
    now: Build


def of(then: Build, *now: Build) -> list[Case]:
    return [Case(then, one) for one in now]


WINDOW = tumbling("10s", grace="5s")
TWO: dict[str, Any] = {"n": agg.sum("x"), "m": agg.count()}
KEPT: dict[str, dict[str, list[Case]]] = {
    "aggregates": {
        "filters and expressions, also inside of an aggregate": of(
            groups(),
            groups(before=col("x") > 1),
            groups(n=agg.sum(col("x") * 2)),
            groups(n=agg.sum("z"), value="z int"),
        ),
        "the functions of `fold`": of(
            groups(n=agg.fold("x", 0, max, type="bigint")), groups(n=agg.fold("y", 1.0, min, type="double"))
        ),
        "`emit=`, and the interval of `at_most_every`": [
            *of(groups(), groups(emit="every")),
            *of(groups(emit=at_most_every("10s")), groups(emit=at_most_every("20s"))),
            *of(groups(by="x"), groups(by="x", emit="every")),
            *of(groups(window=WINDOW), groups(window=WINDOW, emit="final")),
        ],
        "`late=`": of(groups(window=WINDOW), groups(window=WINDOW, late="late")),
    },
    "tables": {
        "steps behind the table": of(
            table(), table(then=lambda rows: rows.filter(col("x") > 1)), table(then=lambda rows: rows.select("x"))
        ),
        "global tables that are joined with it, and `how=`": of(table(), table(how="left"), table(shops=True)),
        "how long `versions=` keeps rows": of(table(versions="1h"), table(versions="2h")),
    },
    "tables joined on a column": {
        "`how=`": of(reference(), reference(how="left")),
    },
    "joins of two streams": {
        "`late=`, `suffix=`": of(near(), near(late="late"), near(suffix="_2")),
    },
    "`process`": {
        "its functions and schedules": of(
            function(), function(other), function(wall_schedule={"1h": lambda state, context: None})
        ),
        "a value more or less": of(
            function(), function(state={"n": value(int), "note": value(str), "more": value(int)}),
            function(state={"n": value(int)}),
        ),
        "`ttl`": of(function(), function(state={"n": ttl(int, "1h"), "note": value(str)})),
    },
    "`unique`": {"`within=`": of(unique(within="1h"), unique(within="2h"))},
}  # fmt: skip
REFUSED: dict[str, dict[str, list[Case]]] = {
    "aggregates": {
        "an aggregate more, less, under another name, in another place or of another kind": [
            *of(groups(), groups(**TWO), groups(m=agg.sum("x")), groups(n=agg.min("x"))),
            *of(groups(**TWO), groups(), groups(m=TWO["m"], n=TWO["n"])),
        ],
        "its argument, as of `collect`": of(groups(n=agg.collect("x", 3)), groups(n=agg.collect("x", 4))),
        "whole numbers in place of floats": of(groups(), groups(n=agg.sum("y"))),
        "the columns of the group and their types": of(
            groups(by="user x"), groups(by="x user"), groups(by="user"), groups(by="user x", value="x int, y double")
        ),
        "the window: its kind, sizes, grace and offset": [
            *of(groups(), groups(window=WINDOW)),
            *of(
                groups(window=WINDOW),
                groups(),
                groups(window=tumbling("10s", grace="6s")),
                groups(window=tumbling("20s", grace="5s")),
                groups(window=tumbling("10s", grace="5s", offset="1s")),
                groups(window=hopping("10s", "5s", grace="5s")),
                groups(window=sliding("10s", grace="5s")),
                groups(window=session("10s", grace="5s")),
                groups(window=counting(10), late=""),
            ),
            *of(groups(window=session("10s")), groups(window=session("11s"))),
            *of(groups(window=counting(10), late=""), groups(window=counting(11), late="")),
        ],
    },
    "tables": {
        "the columns: names, types, order": of(
            table(), table(value="x bigint"), table(value="y double, x bigint"), table(value="x double, y double")
        ),
        "with or without `versions=`": [*of(table(), table(versions="1h")), *of(table(versions="1h"), table())],
    },
    "tables joined on a column": {
        "the column": of(reference(), reference(on="depot")),
        "the columns of both tables, and what they are called": [
            *of(reference(), reference(columns="town string, open boolean")),
            *of(reference(columns="depot string"), reference(columns="depot string", suffix="_3")),
        ],
    },
    "joins of two streams": {
        "the columns of both: names, types, order": of(
            near(), near(value="x bigint"), near(value="y double, x bigint"), near(other="z double")
        ),
        "`how=`": of(near(), near(how="left"), near(how="outer")),
        "`within=` and `grace=`": of(near(), near(within="6s"), near(grace="1s")),
    },
    "`process`": {
        "the type or default of a value, unless it is [lifted](#change-and-reset)": of(
            function(),
            function(state={"n": value(float), "note": value(str)}),
            function(state={"n": value(int, 1), "note": value(str)}),
        ),
    },
    "`unique`": {"the columns": of(unique(), unique("user", "x"))},
}  # fmt: skip


# --- the table ------------------------------------------------------------------------------------------------------


def told() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What the docs say is kept, and what is not, by the kind of state."""
    text = DOCS.read_text("utf-8")
    head = text.index("| state of | these may change |")
    kept: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    for line in text[head:].splitlines()[2:]:
        if not line.startswith("|"):
            break
        kind, stays, goes = (cell.strip() for cell in line.strip("|").split("|"))
        kept[kind], refused[kind] = ([part.strip() for part in cell.split(";")] for cell in (stays, goes))
    return kept, refused


def listed(cases: dict[str, dict[str, list[Case]]]) -> dict[str, list[str]]:
    return {kind: list(changes) for kind, changes in cases.items()}


def test_the_docs_say_these_and_no_others() -> None:
    assert told() == (listed(KEPT), listed(REFUSED))


def one_by_one(cases: dict[str, dict[str, list[Case]]]) -> list[Any]:
    return [
        pytest.param(case, id=f"{kind}: {change} {number}")
        for kind, changes in cases.items()
        for change, of_change in changes.items()
        for number, case in enumerate(of_change)
    ]


def app_of(build: Build) -> App:
    app = App("a")
    build(app)
    return app


def parts_of(build: Build) -> list[SubTopology]:
    return Assembly("a", app_of(build).graph, dict.fromkeys(TOPICS, 1)).parts


def forms(build: Build) -> dict[str, str]:
    """In which form each state of a program is kept."""
    return {name: form for part in parts_of(build) for name, form in part.form.items()}


def start(case: Case) -> None:
    """What a worker makes of the state of the program before."""
    part = parts_of(case.now)[0]
    check_basis("a", Spec(part, 0, part.topics, forms(case.now), TopicPartition("a.c", 0)), forms(case.then))


@pytest.mark.parametrize("case", one_by_one(KEPT))
def test_a_program_goes_on_with_its_state(case: Case) -> None:
    start(case)
    before, after = names_of(forms(case.then)), names_of(forms(case.now))
    assert set(before) <= set(after), "under its name"
    if len(parts_of(case.then)) == 1:
        found = read(case.now, state_of(case.then))
        assert found == read(case.then, state_of(case.then))
        assert 0 not in found.values()


@pytest.mark.parametrize("case", one_by_one(REFUSED))
def test_a_program_is_refused_with_state_in_another_form(case: Case) -> None:
    with pytest.raises(NotAllowed, match=r"headrace streams reset a --store kept"):
        start(case)


def state_of(build: Build) -> Fed:
    """A program that has worked."""
    fed = Fed(app_of(build))
    for topic in fed.task._inputs.sources:
        fed.feed(topic, [(b"ann", {"x": 3, "y": 0.5, "z": 7}, 20_000)])
    fed.commit()
    return fed


def read(build: Build, before: Fed) -> dict[str, int]:
    """How many rows a program finds in each state of the one before; -1: it cannot show any."""
    fed = Fed(app_of(build))
    fed.cold, fed._watermarks = before.cold, before._watermarks
    fed.reopen()
    found = {name: fed.task.contents(name) for name in before.cold}
    return {name: -1 if rows is None else rows.num_rows for name, rows in found.items()}
