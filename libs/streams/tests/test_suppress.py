"""`emit=at_most_every(…)` against a program that looks at one record at a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, milliseconds, rows, run_cut, run_one_by_one

from headrace_streams import App, Stream, agg, at_most_every, col, counting, hopping, json, session, sliding, tumbling
from headrace_streams.core.errors import NotAllowed
from headrace_streams.testing import Driver

INTERVAL = 7
WINDOWS = {"tumbling": tumbling(10, grace=3), "hopping": hopping(10, 4, grace=3), "sliding": sliding(5, grace=3)}


def source(app: App) -> Stream:
    return app.stream("in", value=json("n bigint, at timestamp"), key="k", timestamp="at")


def program(interval: int = INTERVAL) -> App:
    app = App("suppress")
    stream = source(app).filter(col("n") > 0)  # time goes on with rows that come to no key
    stream.group_by("k").agg(ns=agg.collect("n", 100), name="lists", emit=at_most_every(interval)).to("out")
    return app


def of_windows(window: str) -> App:
    app = App("suppress")
    groups = source(app).group_by("k").window(WINDOWS[window], late="drop")
    groups.agg(n=agg.sum("n"), name="sums", emit=at_most_every(INTERVAL)).to("out")
    return app


def naive(given: list[Record]) -> dict[Any, list[Any]]:
    """Of each key what is told, with the time of its newest row."""
    held: dict[bytes, tuple[int, list[int], int]] = {}
    lists: dict[bytes, tuple[list[int], int]] = {}
    told: dict[Any, list[Any]] = {}
    watermark = 0
    for key, row, _ in given:
        assert key is not None
        assert isinstance(row, dict)
        watermark = max(watermark, row["at"])
        for of in [of for of, (due, _, _) in held.items() if due <= watermark]:
            _, ns, at = held.pop(of)
            told.setdefault(of, []).append((ns, at))
        if row["n"] > 0:
            ns, newest = lists.get(key, ([], 0))
            lists[key] = ns, newest = [*ns, row["n"]], max(newest, row["at"])
            due = held[key][0] if key in held else watermark + INTERVAL
            held[key] = due, ns, newest
    return told


records = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(-2, 9), st.integers(0, 50)), min_size=1, max_size=40
).map(lambda listed: [(key, {"n": n, "at": at}, 0) for key, n, at in listed])


@settings(max_examples=60, deadline=None)
@given(given=records, cutting=cuts)
def test_the_last_of_each_key_is_told_when_its_time_has_come(
    given: list[Record], cutting: list[tuple[int, str]]
) -> None:
    found = by_key(run_cut(program(), given, cutting, "out"))
    assert {key: [(value["ns"], at) for value, at in of_key] for key, of_key in found.items()} == naive(given)


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=25, deadline=None)
@given(given=records, cutting=cuts)
def test_windows_wait_each_for_itself(window: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    given = [*given, (b"z", {"n": 1, "at": 1_000}, 0)]
    app = of_windows(window)
    found = run_cut(app, given, cutting, "out")
    assert by_key(found) == by_key(run_one_by_one(app, given, "out"))

    every = App("suppress")
    groups = source(every).group_by("k").window(WINDOWS[window], late="drop")
    groups.agg(n=agg.sum("n"), name="sums", emit="every").to("out")

    def last(told: list[Any]) -> dict[Any, Any]:
        return {(key, value["window_start"]): value["n"] for key, value, _ in told if key != b"z"}

    assert last(found) == last(run_one_by_one(every, given, "out"))


def chained() -> App:
    """What has waited comes to windows, in which it is not late."""
    app = App("suppress")
    stream = source(app)
    sums = stream.group_by("k").agg(n=agg.sum("n"), name="sums", emit=at_most_every(INTERVAL))
    both = sums.select("k", "n").merge(stream.select("k", n=col("n") * 100))
    groups = both.group_by("k").window(tumbling(10, grace=60), late="late")
    groups.agg(ns=agg.collect("n", 100), name="lists", emit="final").to("out")
    return app


@settings(max_examples=25, deadline=None)
@given(given=records, cutting=cuts)
@example(given=[(b"a", {"n": 0, "at": 0}, 0), (b"a", {"n": 0, "at": 7}, 0)], cutting=[(1, "evict"), (2, "evict")])
def test_what_follows_has_it_where_its_time_came(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    given = [*given, (b"z", {"n": 1, "at": 1_000}, 0)]
    found = by_key(run_cut(chained(), given, cutting, "out"))
    assert found == by_key(run_one_by_one(chained(), given, "out"))
    assert run_cut(chained(), given, cutting, "late") == []


def test_what_waits_is_state_until_it_is_told() -> None:
    fed = Fed(program())
    fed.feed("in", [(b"a", {"n": 1, "at": 0}, 0), (b"b", {"n": 2, "at": 3}, 0), (b"a", {"n": 3, "at": 5}, 0)])
    assert rows(fed.commit(), "out") == []
    assert fed.task.contents("lists.waiting").select(["k", "ns"]).to_pylist() == [
        {"k": "a", "ns": [1, 3]},
        {"k": "b", "ns": [2]},
    ]
    fed.reopen()
    fed.task.reach("in", 7)
    assert rows(fed.commit(), "out") == [(b"a", {"k": "a", "ns": [1, 3]}, 5)]
    fed.task.reach("in", 10)
    fed.abort()
    fed.reopen()
    fed.task.reach("in", 11)
    assert rows(fed.commit(), "out") == [(b"b", {"k": "b", "ns": [2]}, 3)]
    assert list(fed.cold["lists.waiting"].scan()) == []


def test_what_is_told_while_rows_come_waits_no_more() -> None:
    fed = Fed(program())
    fed.feed("in", [(b"a", {"n": 1, "at": 0}, 0)])
    fed.commit()
    fed.feed("in", [(b"b", {"n": 2, "at": 7}, 0)])
    assert rows(fed.commit(), "out") == [(b"a", {"k": "a", "ns": [1]}, 0)]
    assert [key[8:] for key, _ in fed.cold["lists.waiting"].scan()] == [b"b"]
    fed.reopen()
    fed.task.reach("in", 14)
    assert rows(fed.commit(), "out") == [(b"b", {"k": "b", "ns": [2]}, 7)]


def test_a_longer_interval_goes_on_with_what_waits() -> None:
    fed = Fed(program())
    fed.feed("in", [(b"a", {"n": 1, "at": 0}, 0)])
    fed.commit()
    other = Fed(program(1_000))
    other.cold, other._watermarks = fed.cold, fed._watermarks
    other.reopen()
    other.feed("in", [(b"b", {"n": 2, "at": 7}, 0)])
    assert [key for key, _, _ in rows(other.commit(), "out")] == [b"a"]


def test_results_of_a_table_group() -> None:
    app = App("suppress")
    people = app.table("people", value=json("city string"), key="name", name="people")
    cities = people.group_by("city", name="by-city")
    cities.agg(n=agg.count(), name="cities", emit=at_most_every("10s")).to("out")
    with Driver(app, partitions=2) as driver:
        driver.pipe("people", [{"name": name, "city": "Bonn"} for name in "abc"])
        driver.pipe("people", [{"name": "a", "city": "Ulm"}])
        assert driver.read("out") == []
        driver.crash()
        driver.restart()
        driver.advance_to(60_000)
        assert sorted((row["city"], row["n"]) for row in driver.read("out")) == [("Bonn", 2), ("Ulm", 1)]


def test_rows_have_the_time_of_their_window() -> None:
    with Driver(of_windows("tumbling")) as driver:
        driver.pipe("in", [{"k": "a", "n": 1, "at": 1}, {"k": "a", "n": 2, "at": 7}, {"k": "a", "n": 4, "at": 11}])
        (row,) = driver.read("out")
        assert (row["n"], milliseconds(row["window_start"])) == (3, 0)
        driver.advance_to(18)
        assert [row["n"] for row in driver.read("out")] == [4]


@pytest.mark.parametrize("window", [session("1m"), counting(3)])
def test_windows_whose_results_replace_others_are_refused(window: Any) -> None:
    groups = source(App("a")).group_by("k").window(window, late="" if window == counting(3) else "drop")
    with pytest.raises(NotAllowed, match="which results of such windows replace each other; choose 'changes'"):
        groups.agg(n=agg.count(), name="n", emit=at_most_every("1s"))


def test_what_is_no_interval_is_refused() -> None:
    with pytest.raises(NotAllowed, match="the interval of at_most_every is 0; it must be at least 1 ms"):
        at_most_every(0)
    with pytest.raises(NotAllowed, match="choose 'changes', 'every', 'final' or at_most_every"):
        source(App("a")).group_by("k").agg(n=agg.count(), name="n", emit="10s")
