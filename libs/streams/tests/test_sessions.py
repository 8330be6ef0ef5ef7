"""Session windows against a program that looks at one record at a time."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, milliseconds, rows, run_cut, run_one_by_one

from headrace_streams import App, agg, json, session, tumbling
from headrace_streams.core.operators.sketches import ACCURACY

GAP, GRACE = 5, 3
LISTS: dict[str, Any] = {
    "n": agg.count(),
    "xs": agg.collect("x", 100),
    "sum": agg.sum("x"),
    "var": agg.var("x"),
    "first": agg.first("x"),
    "last": agg.last("x"),
    "most": agg.max("x"),
    "different": agg.distinct("x"),
    "about": agg.distinct("x", approx=True),
    "least": agg.quantile("x", 0),
}


def program(emit: str, *, gap: int = GAP, grace: int = GRACE, late: str = "late") -> App:
    app = App("sessions")
    stream = app.stream("in", value=json("x bigint, at bigint"), key="k", timestamp="at")
    groups = stream.group_by("k").window(session(gap, grace=grace), late=late)
    groups.agg(name="sessions", emit=emit, **LISTS).to("out")
    return app


def record(key: str, x: int, at: int) -> Record:
    return key.encode(), {"x": x, "at": at}, 0


@dataclass
class Known:
    key: str
    start: int
    last: int
    xs: list[int]

    def told(self) -> tuple[str, int, int, list[int]]:
        return self.key, self.start, self.last + GAP, self.xs


class Naive:
    """One record at a time."""

    def __init__(self) -> None:
        self.open: list[Known] = []
        self.final: list[Any] = []
        self.every: list[Any] = []
        self.late: list[Any] = []
        self.watermark = -1

    def take(self, key: str, x: int, at: int) -> None:
        self.watermark = max(self.watermark, at)
        near = [s for s in self.open if s.key == key and s.start - GAP <= at <= s.last + GAP]
        near.sort(key=lambda s: s.start)
        if not near and at + GAP + GRACE < self.watermark:
            self.late.append((key, x, at))
        else:
            xs = [x for s in near for x in s.xs] + [x]
            times = [at, *(s.start for s in near), *(s.last for s in near)]
            self.open = [s for s in self.open if s not in near]
            self.open.append(Known(key, min(times), max(times), xs))
            self.every.append(self.open[-1].told())
        for one in sorted(self.open, key=lambda s: (s.last, s.start, s.key)):
            if one.last + GAP + GRACE < self.watermark:
                self.open.remove(one)
                self.final.append(one.told())


def told(value: dict[str, Any]) -> Any:
    xs = value["xs"]
    assert (value["n"], value["sum"], value["last"], value["first"]) == (len(xs), sum(xs), xs[-1], xs[0])
    assert (value["most"], value["different"], value["about"]) == (max(xs), len(set(xs)), len(set(xs)))
    assert value["least"] == pytest.approx(min(xs), rel=ACCURACY * 1.001)
    mean = sum(xs) / len(xs)
    spread = sum((x - mean) ** 2 for x in xs) / (len(xs) - 1) if len(xs) > 1 else None
    assert value["var"] == (None if spread is None else pytest.approx(spread))
    return value["k"], milliseconds(value["window_start"]), milliseconds(value["window_end"]), xs


given_records = st.lists(
    st.builds(record, st.sampled_from("ab"), st.integers(-9, 9), st.integers(0, 60)), min_size=1, max_size=30
)


def naive(given: list[Record]) -> Naive:
    known = Naive()
    for key, row, _ in given:
        assert key is not None
        assert isinstance(row, dict)
        known.take(key.decode(), row["x"], row["at"])
    return known


@settings(max_examples=50, deadline=None)
@given(given=given_records, cutting=cuts)
def test_final_and_late(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    known = naive(given)
    found = [told(v) for _, v, _ in run_cut(program("final"), given, cutting, "out")]
    # Of each key in its order; which of two keys comes first, if one record closes both, is not told.
    assert sorted(found, key=itemgetter(0)) == sorted(known.final, key=itemgetter(0))
    late = run_cut(program("final"), given, cutting, "late")
    assert [(v["k"], v["x"], v["at"]) for _, v, _ in late] == known.late
    assert [(milliseconds(v["window_start"]), milliseconds(v["window_end"])) for _, v, _ in late] == [
        (at, at + GAP) for _, _, at in known.late
    ]


@settings(max_examples=40, deadline=None)
@given(given=given_records, cutting=cuts)
def test_every(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    found = run_cut(program("every"), given, cutting, "out")
    assert [told(v) for _, v, _ in found] == naive(given).every
    assert [time for _, _, time in found] == [end for _, _, end, _ in naive(given).every]


@settings(max_examples=40, deadline=None)
@given(given=given_records, cutting=cuts)
def test_changes_end_as_the_sessions_do(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    found = [told(v) for _, v, _ in run_cut(program("changes"), given, cutting, "out")]
    known = naive(given)
    alive = {(key, start): (end, xs) for key, start, end, xs in found}
    ends = [*known.final, *(s.told() for s in known.open)]
    newest: dict[Any, Any] = {}
    for key, start, end, xs in ends:
        newest[key, start] = (end, xs)
    assert {at: alive[at] for at in newest} == newest


@settings(max_examples=40, deadline=None)
@given(given=given_records, cut=st.integers(1, 30))
def test_what_is_kept(given: list[Record], cut: int) -> None:
    fed = Fed(program("final"))
    for first in range(0, len(given), cut):
        fed.feed("in", given[first : first + cut])
        fed.commit()
    expected = sorted(s.told() for s in naive(given).open)
    for _ in range(2):
        contents = fed.task.contents("sessions")
        have = [] if contents is None else contents.to_pylist()
        assert (
            sorted(
                (r["k"], r["window_start"].timestamp() * 1_000, r["window_end"].timestamp() * 1_000, r["xs"])
                for r in have
            )
            == expected
        )
        assert len(list(fed.cold["sessions"].scan())) == len(expected), "nothing of sessions that are no more"
        fed.reopen()


@pytest.mark.parametrize("emit", ["every", "final", "changes"])
def test_a_row_between_two_sessions_joins_them(emit: str) -> None:
    fed = Fed(program(emit))
    fed.feed("in", [record("a", 1, 0), record("a", 2, 8)])
    fed.commit()
    fed.feed("in", [record("a", 3, 4), record("b", 0, 60)])
    found = [told(v) for _, v, _ in rows(fed.commit(), "out") if v["k"] == "a"]
    assert found == [("a", 0, 13, [1, 2, 3])]


def test_the_end_is_in_and_what_is_behind_it_is_not() -> None:
    fed = Fed(program("final"))
    fed.feed("in", [record("a", 1, 0), record("a", 2, 5), record("a", 3, 11), record("b", 0, 100)])
    assert [told(v) for _, v, _ in rows(fed.commit(), "out")] == [("a", 0, 10, [1, 2]), ("a", 11, 16, [3])]


def test_a_session_closes_when_event_time_is_beyond_its_end_and_grace() -> None:
    fed = Fed(program("final"))
    fed.feed("in", [record("a", 1, 0), record("b", 1, 8)])
    assert rows(fed.commit(), "out") == []
    fed.feed("in", [record("b", 1, 9)])
    assert [told(v) for _, v, _ in rows(fed.commit(), "out")] == [("a", 0, 5, [1])]


@settings(max_examples=15, deadline=None)
@given(given=given_records, cutting=cuts)
def test_sessions_in_windows(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = App("sessions")
    stream = app.stream("in", value=json("x bigint, at bigint"), key="k", timestamp="at")
    ones = stream.group_by("k").window(session(GAP), late="drop").agg(n=agg.count(), name="ones", emit="final")
    windows = ones.select("k", "n").group_by("k").window(tumbling(10), late="late")
    windows.agg(n=agg.sum("n"), name="tens", emit="final").to("out")
    assert run_cut(app, given, cutting, "late") == []
    assert by_key(run_cut(app, given, cutting, "out")) == by_key(run_one_by_one(app, given, "out"))
