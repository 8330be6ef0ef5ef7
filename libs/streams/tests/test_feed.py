"""Records of several inputs in the order of their times: what is fed next, and what a task makes of it."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, dead, raw, rows
from libs.streams.tests.test_stream_join import Given, of_two, two_topics

from headrace_streams import App, agg, json
from headrace_streams.core.feed import Feed, Portion, runs
from headrace_streams.core.state.cache import StateCache
from headrace_streams.core.time import Watermarks, holding, now_of
from headrace_streams.plan.cut import SubTopology, sub_topologies
from headrace_streams.runtime.figures import Figures
from headrace_streams.runtime.merging import Merging
from headrace_streams.runtime.owned import Owned, Spec
from headrace_streams.testing import Driver


def portion(topic: str, *times: int, first: int = 0, next_offset: int = -1) -> Portion:
    records: list[Record] = [(None, None, time) for time in times]
    return Portion(topic, raw(records, first), first + len(times) if next_offset < 0 else next_offset)


def shown(portions: list[Portion]) -> dict[str, tuple[list[Any], int]]:
    return {one.topic: (one.records["timestamp_ms"].to_pylist(), one.next_offset) for one in portions}


def test_records_up_to_the_least_of_the_newest_times_are_next() -> None:
    feed = Feed(["a", "b"])
    feed.offer(portion("a", 1, 5, 9), at_end=False)
    feed.offer(portion("b", 2, 6), at_end=False)
    assert shown(feed.take(patient=True)) == {"a": ([1, 5], 2), "b": ([2, 6], 2)}
    assert feed.rows == 1
    assert feed.take(patient=True) == [], "it waits for b"
    feed.offer(portion("b", 20, first=2), at_end=False)
    assert shown(feed.take(patient=True)) == {"a": ([9], 3)}


def test_an_input_at_its_end_holds_nothing_back() -> None:
    feed = Feed(["a", "b"])
    feed.offer(portion("a", 1, 5, 9), at_end=False)
    assert feed.take(patient=True) == []
    feed.offer(portion("b"), at_end=True)
    assert shown(feed.take(patient=True)) == {"a": ([1, 5, 9], 3), "b": ([], 0)}
    feed.offer(portion("a", 7, first=3), at_end=False)
    feed.offer(portion("b", 100), at_end=True)
    assert shown(feed.take(patient=True)) == {"a": ([7], 4)}
    feed.offer(portion("a", first=4), at_end=True)
    assert shown(feed.take(patient=True)) == {"a": ([], 4), "b": ([100], 1)}


def test_who_is_not_patient_gets_what_is_here() -> None:
    feed = Feed(["a", "b", "c"])
    feed.offer(portion("a", 1, 5, 9), at_end=False)
    feed.offer(portion("b", 2, 6), at_end=False)
    assert feed.take(patient=True) == []
    assert shown(feed.take(patient=False)) == {"a": ([1, 5], 2), "b": ([2, 6], 2)}
    assert shown(feed.take(patient=False)) == {"a": ([9], 3)}


def test_a_position_that_moves_without_records_waits_behind_those_before_it() -> None:
    feed = Feed(["a", "b"])
    feed.offer(portion("a", 1, 5), at_end=False)
    feed.offer(portion("a", first=2, next_offset=7), at_end=True)
    feed.offer(portion("b", next_offset=3), at_end=False)
    assert shown(feed.take(patient=True)) == {"b": ([], 3)}
    feed.offer(portion("b", 2, first=3), at_end=False)
    assert shown(feed.take(patient=True)) == {"a": ([1], 1), "b": ([2], 4)}
    feed.offer(portion("b", 5, first=4), at_end=False)
    assert shown(feed.take(patient=True)) == {"a": ([5], 7), "b": ([5], 5)}


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.lists(st.integers(0, 50), max_size=12), min_size=2, max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8),
)
def test_nothing_is_fed_before_what_is_earlier_and_is_not_here_yet(times: list[list[int]], sizes: list[int]) -> None:
    """Every record once, in the order of its input; and none that is later than one fed after it, disorder aside."""
    feed = Feed([str(n) for n in range(len(times))])
    given_of = [0] * len(times)
    fed: list[list[int]] = [[] for _ in times]
    latest = -1
    turn = 0
    while any(len(of) < len(one) for of, one in zip(fed, times, strict=True)):
        for number, one in enumerate(times):
            size = sizes[turn % len(sizes)]
            turn += 1
            begin = given_of[number]
            given_of[number] = min(len(one), begin + size)
            if begin < len(one) or not one:
                some = portion(str(number), *one[begin : given_of[number]], first=begin)
                feed.offer(some, at_end=given_of[number] == len(one))
        portions = feed.take(patient=True)
        assert portions, "whoever waits has all that the others have"
        running = []
        for part in portions:
            number = int(part.topic)
            part_times: list[Any] = part.records["timestamp_ms"].to_pylist()
            running += np.maximum.accumulate([0, *fed[number], *part_times])[len(fed[number]) + 1 :].tolist()
            fed[number] += part_times
            assert part.next_offset == len(fed[number])
        assert not running or min(running) >= latest or max(map(len, times)) == 0
        latest = max([latest, *running])
    assert fed == times


@settings(max_examples=60, deadline=None)
@given(
    rows_of=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=20),
    idle=st.sets(st.integers(0, 3), max_size=3),
    cut=st.integers(1, 20),
    tables=st.sets(st.integers(0, 3)),
)
def test_watermarks_of_rows_of_several_inputs_are_those_one_by_one(
    rows_of: list[tuple[int, int]], idle: set[int], cut: int, tables: set[int]
) -> None:
    names = ["0", "1", "2", "3"]
    together, alone = (Watermarks(names, tables=map(str, tables)) for _ in range(2))
    for marks in (together, alone):
        for number, name in enumerate(names):
            marks.reached(name, number)
        for number in idle:
            marks.is_idle(str(number))
    found: list[int] = []
    for first in range(0, len(rows_of), cut):
        of, times = np.array(rows_of[first : first + cut]).T
        found += together.passed_by(names[:3], of, times).tolist()
    expected, greatest = [], list(range(4))
    for of, time in rows_of:
        expected.append(int(alone.passed(str(of), np.array([time]))[0]))
        greatest[of] = max(greatest[of], time)
        leaders = {0, 1, 2, 3} - tables or tables
        assert expected[-1] <= max(greatest[number] for number in leaders)
    assert found == expected
    assert together.state() == alone.state()
    assert together.rests == alone.rests


@settings(max_examples=40, deadline=None)
@given(given=of_two, cut=st.integers(1, 40))
def test_what_is_fed_together_is_as_if_fed_one_by_one(given: Given, cut: int) -> None:
    one_by_one, together = Fed(two_topics("around", "outer")), Fed(two_topics("around", "outer"))
    for first in range(0, len(given), cut):
        inputs: dict[str, list[Record]] = {"left": [], "right": []}
        for topic, record in given[first : first + cut]:
            inputs[topic].append(record)
        merged = []
        for number, (topic, records) in enumerate(inputs.items()):
            greatest = -1
            for record in records:
                assert isinstance(record[1], dict)
                greatest = max(greatest, record[1]["at"])
                merged.append((greatest, number, topic, record))
        for _, _, topic, record in sorted(merged, key=lambda one: one[:2]):
            one_by_one.feed(topic, [record])
        together.task.feed_together([(topic, raw(records)) for topic, records in inputs.items()])
    assert rows(together.commit(), "out") == rows(one_by_one.commit(), "out")


def test_a_record_that_cannot_be_read_is_named_and_kept_whichever_input_it_is_of() -> None:
    app = App("join", on_error="dead")
    left, right = (app.stream(topic, value=json(f"{topic} bigint"), key="k") for topic in ("left", "right"))
    left.join(right, within=5, late="drop", name="near").filter_records(lambda row: 1 // row["left"] > 0).to("out")
    fed = Fed(app)
    inputs = {
        "left": [(b"a", {"left": 1}, 1), (b"b", b"no json", 2), (b"a", {"left": 0}, 30)],
        "right": [(b"c", b"nor this", 0), (b"a", {"right": 2}, 3), (b"a", {"right": 3}, 31)],
    }
    fed.task.feed_together([(topic, raw(records, 10)) for topic, records in inputs.items()])
    outputs = fed.commit()
    assert [row["right"] for _, row, _ in rows(outputs, "out")] == [2]
    letters = [
        (
            letter.value,
            dict(letter.headers).get("headrace.error.topic"),
            dict(letter.headers).get("headrace.error.offset"),
        )
        for letter in dead(outputs, "dead")
    ]
    assert letters[:2] == [(b"no json", b"left", b"11"), (b"nor this", b"right", b"10")]
    assert letters[2][1] is None, "a pair stems from two records"


@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_joined_as_of_the_time_of_each_record(seed: int) -> None:
    app = App("rates")
    table = app.table("rates", value=json("rate double"), key="currency", name="rates")
    app.stream("prices", value=json("n bigint"), key="currency").join(table).to("out")
    with Driver(app, seed=seed) as driver:
        driver.crash()  # so that all of it waits
        for time in range(0, 100, 10):
            driver.pipe("rates", [{"currency": "usd", "rate": float(time)}], time=time)
        for time in range(5, 100, 10):
            driver.pipe("prices", [{"currency": "usd", "n": time}], time=time)
        driver.restart()
        assert {row["n"]: row["rate"] for row in driver.read("out")} == {n: n - 5.0 for n in range(5, 100, 10)}


def test_pieces_of_one_input_each_where_rows_come_by_repartition_topics() -> None:
    inputs = [portion("a", 1, 5, 3, 9).records, portion("b", 2, 5, 7).records]
    pieces = [(place, piece["timestamp_ms"].to_pylist()) for place, piece in runs(inputs)]
    assert pieces == [(0, [1]), (1, [2]), (0, [5, 3]), (1, [5, 7]), (0, [9])]


def test_tables_and_streams_behind_repartitions_are_fed_in_order() -> None:
    app = App("rates")
    rates = app.stream("rates", value=json("currency string, rate double")).key_by("currency")
    prices = app.stream("prices", value=json("currency string, n bigint")).key_by("currency")
    table = rates.repartition(2, name="rates-moved").to_table(name="rates")
    prices.repartition(2, name="prices-moved").join(table).to("out")
    with Driver(app, partitions=3) as driver:
        assert [part.in_order for part in driver._assembly.parts] == [False, False, True]
        driver.pipe("rates", [{"currency": "usd", "rate": 1.0}], time=1)
        driver.pipe("prices", [{"currency": "usd", "n": 1}], time=2)
        assert [row["rate"] for row in driver.read("out")] == [1.0]


def test_a_part_without_a_join_is_fed_as_it_comes() -> None:
    app = App("merge")
    one, other = (app.stream(topic, value=json("n bigint"), key="k") for topic in ("one", "other"))
    one.merge(other).group_by("k").agg(n=agg.sum("n"), name="sums").to("out")
    assert [part.in_order for part in sub_topologies(app.graph)] == [False]


def test_a_worker_waits_so_long_for_an_input_and_reads_no_more_of_one_that_is_ahead() -> None:
    part = SubTopology("a_and_b", (), ("a", "b"), ())
    merging = Merging(Owned(Spec(part, 0, part.topics, {}), None, None), wait_ms=500, rows_max=3)  # type: ignore[arg-type]
    merging.offer(portion("a", 1, 2), at_end=False)
    assert merging.full() == []
    merging.offer(portion("a", 3, first=2), at_end=False)
    assert merging.full() == ["a"]
    assert merging.waiting("a") == 3
    assert merging.take(1_000) == []
    assert merging.take(1_499) == []
    assert shown(merging.take(1_500)) == {"a": ([1, 2, 3], 3)}
    assert merging.full() == []
    merging.offer(portion("a", 4, first=3), at_end=False)
    assert merging.take(1_600) == [], "it waits anew"
    merging.offer(portion("b"), at_end=True)
    assert shown(merging.take(1_700)) == {"a": ([4], 4), "b": ([], 0)}


def test_what_a_commit_remembers_names_the_input_that_holds_the_others_back() -> None:
    marks = Watermarks(["a", "b", "c"], tell=["c"])
    assert (holding(marks.state()), holding({})) == (None, None)
    marks.reached("a", 5_000)
    assert holding(marks.state()) == "b", "it has no time yet"
    marks.reached("b", 3_000)
    marks.reached("c", 4_000)
    assert (holding(marks.state()), now_of(marks.state())) == ("b", 3_000)
    marks.is_idle("b")
    marks.is_idle("c")
    assert (holding(marks.state()), now_of(marks.state())) == (None, 5_000)
    both = Watermarks(["idle", "b", "a"], tell=["idle"])
    for name, time in (("idle", 4_000), ("b", 4_000), ("a", 5_000)):
        both.reached(name, time)
    both.is_idle("idle")
    assert holding(both.state()) == "b"
    again = Watermarks(["a", "b", "c"], tell=["c"])
    again.restore(marks.state())
    again.reached("a", 7_000)
    assert again.now == 5_000, "b is not known to be idle"


def test_the_input_that_holds_the_others_back_is_named() -> None:
    marks = Watermarks(["a", "b", "c"])
    assert marks.held_by is None, "nobody is ahead"
    marks.reached("a", 5_000)
    marks.reached("b", 3_000)
    assert marks.held_by == ("c", inf)
    task: Any = SimpleNamespace(task=SimpleNamespace(held_by=marks.held_by))
    figures = Figures(StateCache(0), owned={"a/0": task})
    assert list(figures.values("held_back_seconds", 0)) == [], "no number that Prometheus takes"
    marks.is_idle("c")
    assert marks.held_by == ("b", 2_000)
    task.task.held_by = marks.held_by
    assert list(figures.values("held_back_seconds", 0)) == [(2.0, {"task": "a/0", "input": "b"})]
    marks.reached("b", 5_000)
    assert marks.held_by is None
    marks.is_idle("a")
    marks.is_idle("b")
    assert marks.held_by is None, "all are idle"


def test_a_table_that_is_ahead_is_not_held_back() -> None:
    marks = Watermarks(["a", "b", "table"], tables=["table"])
    marks.reached("table", 9_000)
    assert marks.held_by is None, "no stream has a time"
    marks.reached("a", 5_000)
    marks.reached("b", 3_000)
    assert marks.held_by == ("b", 2_000)
    marks.is_idle("a")
    marks.is_idle("b")
    assert marks.held_by is None
    behind = Watermarks(["a", "table"], tables=["table"])
    behind.reached("a", 5_000)
    behind.reached("table", 4_000)
    assert behind.held_by == ("table", 1_000)
