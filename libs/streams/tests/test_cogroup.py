"""`cogroup`: aggregates of several streams side by side, against a program that looks at one record at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Record, by_key, cuts, run_cut_of

from headrace_streams import App, Stream, agg, at_most_every, cogroup, col, json, tumbling
from headrace_streams.core.errors import NotAllowed
from headrace_streams.testing import Driver

Given = list[tuple[str, Record]]


def orders(app: App) -> Stream:
    return app.stream("orders", value=json("n bigint, at timestamp"), key="k", timestamp="at")


def clicks(app: App) -> Stream:
    return app.stream("clicks", value=json("n bigint, page string, at timestamp"), key="k", timestamp="at")


def both(app: App) -> Any:
    """Two topics, one of them as two streams; columns of equal names."""
    few, many = orders(app).group_by("k"), clicks(app).split(some=col("n") > 2, rest=col("n") <= 2)
    some, rest = many["some"].group_by("k"), many["rest"].group_by("k")
    return cogroup(
        orders=(few, agg.count()),
        ns=(few, agg.collect("n", 100)),
        some=(some, agg.sum(col("n") * 2)),
        rest=(rest, agg.count()),
        pages=(rest, agg.fold("page", "", lambda pages, page: pages + page, type="string")),
    )


def plain(emit: str = "every") -> App:
    app = App("cogroup")
    both(app).agg(name="both", emit=emit).to("out")
    return app


def windowed() -> App:
    app = App("cogroup")
    both(app).window(tumbling(10, grace=3), late="late").agg(name="both", emit="final").to("out")
    return app


def suppressed() -> App:
    app = App("cogroup")
    both(app).agg(name="both", emit=at_most_every(7)).to("out")
    return app


def naive(given: Given) -> dict[Any, list[Any]]:
    held: dict[bytes, dict[str, Any]] = {}
    told: dict[Any, list[Any]] = {}
    for topic, (key, row, _) in given:
        assert key is not None
        assert isinstance(row, dict)
        if row["n"] is None and topic == "clicks":
            continue
        nothing = {"k": key.decode(), "orders": 0, "ns": [], "some": None, "rest": 0, "pages": ""}
        now = held[key] = {**held.get(key, nothing)}
        if topic == "orders":
            now["orders"] += 1
            now["ns"] = [*now["ns"], *([] if row["n"] is None else [row["n"]])]
        elif row["n"] > 2:
            now["some"] = (now["some"] or 0) + row["n"] * 2
        else:
            now["rest"] += 1
            now["pages"] += row["page"] or ""
        told.setdefault(key, []).append(now)
    return told


rows_of_values = st.fixed_dictionaries(
    {"n": st.none() | st.integers(0, 5), "page": st.sampled_from(["p", "q", None]), "at": st.integers(0, 40)}
)
records = st.lists(
    st.tuples(
        st.sampled_from(["orders", "clicks"]), st.tuples(st.sampled_from([b"a", b"b"]), rows_of_values, st.just(0))
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(given=records, cutting=cuts)
def test_each_aggregate_takes_the_rows_of_its_own_stream(given: Given, cutting: list[tuple[int, str]]) -> None:
    found = by_key(run_cut_of(plain(), given, cutting, "out"))
    assert {key: [value for value, _ in of_key] for key, of_key in found.items()} == naive(given)
    changed = by_key(run_cut_of(plain("changes"), given, cutting, "out"))
    assert {key: of_key[-1][0] for key, of_key in changed.items()} == {
        key: all_[-1] for key, all_ in naive(given).items()
    }


@pytest.mark.parametrize(("program", "topic"), [(windowed, "out"), (windowed, "late"), (suppressed, "out")])
@settings(max_examples=25, deadline=None)
@given(given=records, cutting=cuts)
def test_the_batch_law(program: Callable[[], App], topic: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    one_by_one = run_cut_of(program(), given, [(1, "")] * len(given), topic)
    assert by_key(run_cut_of(program(), given, cutting, topic)) == by_key(one_by_one)


def moved() -> App:
    app = App("cogroup")
    spent = app.stream("spent", value=json("user string, amount double")).group_by("user", name="spent-by-user")
    seen = app.stream("seen", value=json("user string, page string")).group_by("user", name="seen-by-user")
    sums = cogroup(amount=(spent, agg.sum("amount")), n=(spent, agg.count()), pages=(seen, agg.distinct("page")))
    sums.agg(name="activity").to("out")
    return app


@pytest.mark.parametrize("seed", range(3))
def test_streams_that_move_to_their_keys_first(seed: int) -> None:
    with Driver(moved(), partitions=3, seed=seed) as driver:
        driver.pipe("spent", [{"user": user, "amount": 2.5} for user in ("ann", "bob", "ann", None)])
        driver.pipe("seen", [{"user": user, "page": page} for user in ("ann", "cid") for page in ("/", "/a", "/")])
        driver.crash()
        driver.restart()
        driver.commit()
        assert sorted(driver.store("activity"), key=lambda row: row["user"]) == [
            {"user": "ann", "amount": 5.0, "n": 2, "pages": 2},
            {"user": "bob", "amount": 2.5, "n": 1, "pages": 0},
            {"user": "cid", "amount": None, "n": 0, "pages": 2},
        ]


def test_topics_of_different_widths_are_refused_by_name() -> None:
    with pytest.raises(NotAllowed, match=r"seen-by-user.repartition has 2"):
        Driver(moved(), partitions={"spent": 3, "seen": 2})


def test_a_row_that_is_late_has_what_it_would_have_brought() -> None:
    with Driver(windowed()) as driver:
        driver.pipe("orders", [{"k": "a", "n": 1, "at": 50}])
        driver.pipe("clicks", [{"k": "a", "n": 4, "at": 50}, {"k": "a", "n": 5, "at": 1}])
        (late,) = driver.read("late")
        assert {name: late[name] for name in ("k", "orders", "some", "rest")} == {
            "k": "a",
            "orders": None,
            "some": 10,
            "rest": None,
        }


def test_what_cannot_stand_side_by_side_is_refused() -> None:
    app, other = App("a"), App("b")
    groups = orders(app).group_by("k")
    table = app.table("t", value=json("n bigint"), key="k", name="t")
    n = agg.count()
    wrong: dict[str, dict[str, Any]] = {
        "say what to compute": {},
        r"n is 7; write for example n=\(GROUPS, agg.count": {"n": 7},
        "n is \\('k', ": {"n": ("k", n)},
        "belong to different apps": {"n": (groups, n), "m": (clicks(other).group_by("k"), n)},
        "m is grouped by {'n': 'int64'}, and the first one by {'k': 'string'}": {
            "n": (groups, n),
            "m": (clicks(app).group_by("n", name="by-n"), n),
        },
        "m is of a table; say to_stream": {"n": (groups, n), "m": (table.group_by("k"), n)},
        "the groups of n have a window": {"n": (groups.window(tumbling(5), late="drop"), n)},
        "a result cannot be called 'k'": {"k": (groups, n)},
        "there is no column 'missing'": {"n": (groups, agg.sum("missing"))},
        "needs other rows than its own": {"n": (groups, agg.sum(col("n").mean()))},
    }
    for message, aggregates in wrong.items():
        with pytest.raises(NotAllowed, match=message):
            cogroup(**aggregates)


def test_a_name_is_needed_where_rows_move_and_where_state_is() -> None:
    app = App("a")
    groups = cogroup(n=(clicks(app).group_by("page", name="by-page"), agg.count()))
    with pytest.raises(NotAllowed, match="keeps state, which needs a name"):
        groups.agg()
    with pytest.raises(NotAllowed, match="through a topic, which needs a name"):
        cogroup(m=(orders(app).group_by("n"), agg.count()))
