"""Joins of two streams against a program that looks at one record at a time, and Kafka's documented table of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, rows, run_cut, run_cut_of

from headrace_streams import App, NotAllowed, Stream, agg, col, json, tumbling
from headrace_streams.core.state import buffer
from headrace_streams.plan.cut import Assembly
from headrace_streams.testing import Driver

WITHIN: dict[str, tuple[int, int, int]] = {
    "around": (-5, 10, 3),
    "at once": (0, 0, 0),
    "after": (2, 10, 4),
    "before": (-10, -2, 4),
}
"""Lower, upper, grace."""
HOW = ("inner", "left", "outer")
NEVER = -(10**9)
Given = list[tuple[str, Record]]


def joined(one: Stream, other: Stream, within: tuple[int, int, int], how: str) -> None:
    lower, upper, grace = within
    near = one.join(other, within=(lower, upper), grace=grace, how=how, late="late", name="near")
    near.to("out")


def two_topics(within: str, how: str) -> App:
    app = App("join")
    left = app.stream("left", value=json("l bigint, at bigint"), key="k", timestamp="at").select("k", "l")
    right = app.stream("right", value=json("r bigint, at bigint"), key="k", timestamp="at").select("k", "r")
    joined(left, right, WITHIN[within], how)
    return app


def one_topic(within: str, how: str) -> App:
    """Both sides are branches of one stream, so one batch has rows of both; some records are of both, some of none."""
    app = App("join")
    stream = app.stream("in", value=json("l bigint, r bigint, at bigint"), key="k", timestamp="at")
    left = stream.filter(~col("l").is_null()).select("k", "l")
    joined(left, stream.filter(~col("r").is_null()).select("k", "r"), WITHIN[within], how)
    return app


class Naive:
    """Looks at one record at a time."""

    def __init__(self, within: str, how: str) -> None:
        self.lower, self.upper, self.grace = WITHIN[within]
        self.tells = {"l": how != "inner", "r": how == "outer"}
        self.rows: list[dict[str, Any]] = []
        self.out: list[tuple[str | None, dict[str, Any], int]] = []
        self.late: list[int] = []
        self.new: list[dict[str, Any]] = []

    def row(self, side: str, key: str | None, number: int, time: int, watermark: int) -> None:
        new = {"side": side, "key": key, "n": number, "time": time, "met": False, "open": True}
        if watermark > time + self.grace:
            self.late.append(number)
            return
        if key is None:
            if self.tells[side]:
                self.alone(new)
            return
        for other in sorted(self.rows, key=lambda row: int(row["time"])):
            if other["side"] != side and other["key"] == key:
                left, right = (new, other) if side == "l" else (other, new)
                if self.lower <= right["time"] - left["time"] <= self.upper:
                    left["met"] = right["met"] = True
                    self.pair(left, right)
        self.rows.append(new)
        self.new.append(new)

    def pair(self, left: dict[str, Any], right: dict[str, Any]) -> None:
        value = {"k": left["key"], "l": left["n"], "r": right["n"]}
        self.out.append((left["key"], value, max(left["time"], right["time"])))

    def alone(self, row: dict[str, Any]) -> None:
        value = {"k": row["key"], "l": None, "r": None, row["side"]: row["n"]}
        self.out.append((row["key"], value, row["time"]))

    def closes(self, row: dict[str, Any]) -> int:
        reach = self.upper if row["side"] == "l" else -self.lower
        return int(row["time"]) + reach + self.grace + 1

    def close(self, due: Iterable[dict[str, Any]]) -> None:
        for row in due:
            row["open"] = False
            if self.tells[row["side"]] and not row["met"]:
                self.alone(row)

    def advance(self, watermark: int) -> None:
        """What a record, whose rows came before, closes: those rows first."""
        self.close([row for row in self.new if self.closes(row) <= watermark])
        self.new = []
        due = [row for row in self.rows if row["open"] and self.closes(row) <= watermark]
        self.close(sorted(due, key=lambda row: (self.closes(row), row["side"])))


def naive_of_two(given: Given, within: str, how: str) -> Naive:
    naive = Naive(within, how)
    greatest = {"left": NEVER, "right": NEVER}
    for topic, (key, row, _) in given:
        assert isinstance(row, dict)
        greatest[topic] = max(greatest[topic], row["at"])
        side = topic[0]
        naive.row(side, None if key is None else key.decode(), row[side], row["at"], min(greatest.values()))
        naive.advance(min(greatest.values()))
    return naive


def naive_of_one(given: list[Record], within: str, how: str) -> Naive:
    naive = Naive(within, how)
    watermark = NEVER
    for key, row, _ in given:
        assert isinstance(row, dict)
        watermark = max(watermark, row["at"])
        for side in ("l", "r"):
            if row[side] is not None:
                naive.row(side, None if key is None else key.decode(), row[side], row["at"], watermark)
        naive.advance(watermark)
    return naive


keys = st.sampled_from([b"a", b"b", None, b"a"])
of_two: st.SearchStrategy[Given] = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), keys, st.integers(0, 12)), min_size=1, max_size=40
).map(
    lambda listed: [
        (topic, (key, {topic[0]: n, "at": n // 2 + jitter}, 0)) for n, (topic, key, jitter) in enumerate(listed)
    ]
)
of_one: st.SearchStrategy[list[Record]] = st.lists(
    st.tuples(st.sampled_from(["l", "r", "lr", "l", "r", ""]), keys, st.integers(0, 12)), min_size=1, max_size=40
).map(
    lambda listed: [
        (key, {"l": n if "l" in sides else None, "r": n if "r" in sides else None, "at": n // 2 + jitter}, 0)
        for n, (sides, key, jitter) in enumerate(listed)
    ]
)


def said(naive: Naive) -> dict[Any, Any]:
    return by_key((None if key is None else key.encode(), value, time) for key, value, time in naive.out)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("within", WITHIN)
@settings(max_examples=25, deadline=None)
@given(given=of_two, cutting=cuts)
def test_two_topics(within: str, how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    naive = naive_of_two(given, within, how)
    assert by_key(run_cut_of(two_topics(within, how), given, cutting, "out")) == said(naive)
    late = run_cut_of(two_topics(within, how), given, cutting, "late")
    assert [value.get("l", value.get("r")) for _, value, _ in late] == naive.late


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("within", WITHIN)
@settings(max_examples=25, deadline=None)
@given(given=of_one, cutting=cuts)
def test_branches_of_one_topic(within: str, how: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    naive = naive_of_one(given, within, how)
    assert by_key(run_cut(one_topic(within, how), given, cutting, "out")) == said(naive)


@settings(max_examples=25, deadline=None)
@given(given=of_two, cutting=cuts)
def test_whatever_the_buffer_does_inside(given: Given, cutting: list[tuple[int, str]]) -> None:
    """Values of the changelog of one row each, and rows that have closed thrown out at once."""
    before = buffer.VALUE_BYTES, buffer._COMPACTED_FROM
    buffer.VALUE_BYTES, buffer._COMPACTED_FROM = 1, 0  # type: ignore[misc]
    try:
        found = run_cut_of(two_topics("around", "outer"), given, cutting, "out")
    finally:
        buffer.VALUE_BYTES, buffer._COMPACTED_FROM = before  # type: ignore[misc]
    assert by_key(found) == said(naive_of_two(given, "around", "outer"))


TABLE: list[tuple[int, str, str | None, list[str], list[str], list[str]]] = [
    # time, side, value; what an inner, left and outer join tell of it
    (1, "left", None, [], [], []),
    (2, "right", None, [], [], []),
    (3, "left", "A", [], [], []),
    (4, "right", "a", ["A-a"], ["A-a"], ["A-a"]),
    (5, "left", "B", ["B-a"], ["B-a"], ["B-a"]),
    (6, "right", "b", ["A-b", "B-b"], ["A-b", "B-b"], ["A-b", "B-b"]),
    (7, "left", None, [], [], []),
    (8, "right", None, [], [], []),
    (9, "left", "C", ["C-a", "C-b"], ["C-a", "C-b"], ["C-a", "C-b"]),
    (10, "right", "c", ["A-c", "B-c", "C-c"], ["A-c", "B-c", "C-c"], ["A-c", "B-c", "C-c"]),
    (11, "right", None, [], [], []),
    (12, "left", None, [], [], []),
    (13, "right", None, [], [], []),
    (14, "right", "d", ["A-d", "B-d", "C-d"], ["A-d", "B-d", "C-d"], ["A-d", "B-d", "C-d"]),
    (15, "left", "D", ["D-a", "D-b", "D-c", "D-d"], ["D-a", "D-b", "D-c", "D-d"], ["D-a", "D-b", "D-c", "D-d"]),
    (40, "left", "E", [], [], []),
    (60, "left", "F", [], ["E-None"], ["E-None"]),
    (80, "right", "f", [], ["F-None"], ["F-None"]),
    (100, "left", "G", [], [], ["None-f"]),
]
"""Kafka's, of one key and 15 s around. Each record tells event time to both inputs, as Kafka has one for both."""


@pytest.mark.parametrize("how", HOW)
def test_the_table_of_kafka(how: str) -> None:
    app = App("kafka")
    left, right = (app.stream(topic, value=json(f"{topic} string"), key="k") for topic in ("left", "right"))
    left.join(right, within="15s", how=how, late="drop", name="near").to("out")
    fed = Fed(app)
    for second, topic, value, *told in TABLE:
        for other in {"left", "right"} - {topic}:
            fed.task.reach(other, second * 1_000)
        fed.feed(topic, [(b"k", None if value is None else {topic: value}, second * 1_000)])
        found = [f"{row['left']}-{row['right']}" for _, row, _ in rows(fed.commit(), "out")]
        assert found == told[HOW.index(how)], f"at {second}"


def test_a_pair_has_the_greater_time() -> None:
    fed = Fed(two_topics("around", "inner"))
    fed.feed("right", [(b"a", {"r": 1, "at": 9}, 0)])
    fed.feed("left", [(b"a", {"l": 1, "at": 5}, 0)])
    assert [time for _, _, time in rows(fed.commit(), "out")] == [9]


def test_windows_behind_a_join_take_pairs_that_are_in_time() -> None:
    app = App("join")
    left = app.stream("left", value=json("l bigint, at bigint"), key="k", timestamp="at").select("k", "l")
    right = app.stream("right", value=json("r bigint, at bigint"), key="k", timestamp="at").select("k", "r")
    pairs = left.join(right, within="10s", grace="5s", late="drop", name="near")
    pairs.group_by("k").window(tumbling("1m", grace="5s"), late="late").agg(n=agg.count(), name="n", emit="final").to(
        "out"
    )
    with Driver(app) as driver:
        driver.pipe("left", [{"k": "a", "l": n, "at": n * 1_000} for n in range(60)])
        driver.pipe("right", [{"k": "a", "r": n, "at": n * 1_000} for n in reversed(range(56, 60))])
        driver.advance_to(200_000)
        assert driver.read("late") == []
        assert [row["n"] for row in driver.read("out")] == [14 + 13 + 12 + 11]


def test_nothing_is_kept_of_what_has_closed() -> None:
    fed = Fed(two_topics("around", "outer"))
    fed.feed("left", [(b"a", {"l": 1, "at": 0}, 0), (b"a", {"l": 2, "at": 1}, 0)])
    fed.feed("right", [(b"a", {"r": 1, "at": 1}, 0)])
    fed.commit()
    kinds = [key[:2] for key, _ in fed.cold["near"].scan()]
    assert kinds == [b"ml", b"mr", b"rl", b"rr"], "rows, and which have met, of each side"
    for topic, at in (("left", 1_000), ("right", 1_100)):
        fed.feed(topic, [(b"b", {topic[0]: 3, "at": at}, 0)])
    fed.commit()
    assert [key[:2] for key, _ in fed.cold["near"].scan()] == [b"rl", b"rr"]
    contents = fed.task.contents("near")
    assert contents is not None
    assert contents["k"].to_pylist() == ["b", "b"]


def test_rows_that_come_and_close_between_two_commits_are_never_written() -> None:
    fed = Fed(two_topics("around", "outer"))
    for at in (0, 1_000):
        for topic in ("left", "right"):
            fed.feed(topic, [(b"a", {topic[0]: 1, "at": at}, 0)])
    changes = fed.task.changes()["near"]
    assert [key[:2] for key, _ in changes] == [b"ml", b"mr", b"rl", b"rr"]
    assert all(value is not None for _, value in changes)


@settings(max_examples=30, deadline=None)
@given(given=of_two, seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)), crash=st.integers(0, 5))
def test_several_tasks_that_die(given: Given, seeds: tuple[int, int], crash: int) -> None:
    """Rows are in time, so how tasks and inputs are interleaved is not seen."""
    found = []
    for seed in seeds:
        app = App("join")
        left = app.stream("left", value=json("k string, l bigint, at bigint"), timestamp="at").select("k", "l")
        right = app.stream("right", value=json("k string, r bigint, at bigint"), timestamp="at").select("k", "r")
        moved = left.key_by("k").repartition(2, name="by-k")
        moved.join(
            right.key_by("k").repartition(2, name="also-by-k"),
            within=(-5, 10),
            grace=20,
            how="outer",
            late="late",
            name="near",
            suffix="_of_right",
        ).to("out")
        with Driver(app, seed=seed) as driver:
            for number, (topic, (key, row, _)) in enumerate(given):
                assert isinstance(row, dict)
                driver.pipe(topic, [{**row, "k": None if key is None else key.decode()}])
                if number % 6 == crash:
                    driver.crash()
                    driver.restart()
            driver.advance_to(10_000)
            assert driver.read("late") == []
            found.append(sorted(map(repr, driver.read("out"))))
    assert found[0] == found[1]


def test_many_rows_of_few_keys() -> None:
    """A buffer of many runs, thrown out and merged, finds what a loop finds."""
    app = two_topics("around", "inner")
    fed = Fed(app)
    told = 0
    for start in range(0, 4_000, 40):
        for topic in ("left", "right"):
            records: list[Record] = [(b"%d" % (n % 7), {topic[0]: n, "at": n}, 0) for n in range(start, start + 40)]
            fed.feed(topic, records)
        told += len(rows(fed.commit(), "out"))
    step = [d for d in range(-5, 11) if d % 7 == 0]
    assert told == sum(0 <= n + d < 4_000 for n in range(4_000) for d in step)
    assert len(list(fed.cold["near"].scan())) < 20


def test_both_streams_have_equally_many_partitions() -> None:
    with pytest.raises(NotAllowed, match=r"left has 2, right has 3; put repartition\(n, name=…\) behind one of them"):
        Assembly("a", two_topics("around", "inner").graph, {"left": 2, "right": 3})


def test_columns_of_the_key_are_there_once_and_others_get_the_suffix() -> None:
    app = App("join")
    left = app.stream("left", value=json("n bigint, at bigint"), key="k")
    right = app.stream("right", value=json("n double, x string"), key="k")
    near = left.join(right, within="1s", late="drop", suffix="_right", name="near")
    assert near.schema == pa.schema(
        {"n": pa.int64(), "at": pa.int64(), "k": pa.string(), "n_right": pa.float64(), "x": pa.string()}
    )
    near.group_by("k").agg(n=agg.count(), name="n")
    assert len(Assembly("a", app.graph, {"left": 1, "right": 1}).parts) == 1, "the result is where its key is"


def left(n: int, at: int, key: bytes = b"a") -> Record:
    return key, {"l": n, "at": at}, 0


def right(n: int, at: int, key: bytes = b"a") -> Record:
    return key, {"r": n, "at": at}, 0


def told(fed: Fed) -> list[tuple[int | None, int | None]]:
    """What a commit writes."""
    return [(value["l"], value["r"]) for _, value, _ in rows(fed.commit(), "out")]


def reach(fed: Fed, time: int) -> None:
    for topic in ("left", "right"):
        fed.task.reach(topic, time)


def test_what_was_told_alone_is_not_told_again_after_a_restart() -> None:
    fed = Fed(two_topics("around", "outer"))
    fed.feed("left", [left(1, 0), left(2, 600)])
    fed.commit()
    reach(fed, 100)
    assert told(fed) == [(1, None)]
    fed.reopen()
    reach(fed, 10_000)
    assert told(fed) == [(2, None)]


@pytest.mark.parametrize("commits", ["", "left", "right", "left right"])
def test_what_has_met_is_not_told_alone_after_a_restart(commits: str) -> None:
    fed = Fed(two_topics("around", "outer"))
    found = []
    for topic, record in (("left", left(1, 0)), ("right", right(1, 1))):
        fed.feed(topic, [record])
        if topic in commits:
            found += told(fed)
    found += told(fed)
    fed.reopen()
    reach(fed, 10_000)
    assert found + told(fed) == [(1, 1)]


def test_what_has_met_since_the_last_commit_has_not_after_an_abort() -> None:
    fed = Fed(two_topics("around", "outer"))
    fed.feed("left", [left(1, 0)])
    fed.commit()
    fed.feed("right", [right(1, 1)])
    fed.abort()
    reach(fed, 10_000)
    assert told(fed) == [(1, None)]


def test_rows_of_one_time_stay_in_their_order_over_a_restart() -> None:
    fed = Fed(two_topics("around", "inner"))
    for records in ([left(1, 500), left(2, 900)], [left(3, 500)], [left(4, 500)]):
        fed.feed("left", records)
        fed.commit()
    fed.reopen()
    fed.feed("right", [right(1, 500)])
    assert told(fed) == [(1, 1), (3, 1), (4, 1)]


def test_rows_that_are_not_committed_yet_stay_when_others_are_thrown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "_COMPACTED_FROM", 0)
    fed = Fed(two_topics("around", "outer"))
    fed.feed("left", [left(n, 0) for n in range(5)])
    fed.commit()
    fed.feed("left", [left(5, 500), left(6, 501)])
    reach(fed, 400)
    assert len(told(fed)) == 5
    fed.feed("left", [left(7, 502)])
    fed.commit()
    fed.reopen()
    fed.feed("right", [right(1, 505)])
    assert told(fed) == [(5, 1), (6, 1), (7, 1)]


def test_branches_that_met_before_are_joined() -> None:
    """Keys come as a dictionary then."""
    app = App("join")
    stream = app.stream("in", value=json("l bigint, r bigint"), key="k")
    some = stream.filter(col("l") > 0).merge(stream.filter(col("l") <= 0)).select("k", "l")
    some.join(stream.filter(~col("r").is_null()).select("k", "r"), within=5, late="drop", name="near").to("out")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"l": 1, "r": None}, 0), (b"b", {"l": -1, "r": 2}, 1), (b"a", {"l": None, "r": 3}, 2)])
    assert told(fed) == [(-1, 2), (1, 3)]
    fed.reopen()
    fed.feed("in", [(b"a", {"l": 0, "r": None}, 3)])
    assert told(fed) == [(0, 3)]
