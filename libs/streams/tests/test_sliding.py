"""Sliding windows against a program that looks at one record at a time, and Kafka's documented example."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, milliseconds, rows, run_cut, run_one_by_one
from libs.streams.tests.test_batch_law import EVERYTHING, records, source

from headrace_streams import App, agg, json, sliding

SIZE, GRACE = 5, 3


def program(emit: str) -> App:
    app = App("sliding")
    stream = app.stream("in", value=json("n bigint, at bigint"), key="k", timestamp="at")
    groups = stream.group_by("k").window(sliding(SIZE, grace=GRACE), late="late")
    groups.agg(ns=agg.collect("n", 99), total=agg.sum("n"), name="windows", emit=emit).to("out")
    return app


def everything(emit: str) -> App:
    app = App("sliding")
    groups = source(app).group_by("k").window(sliding(SIZE, grace=GRACE), late="late")
    groups.agg(name="windows", emit=emit, **EVERYTHING).to("out")
    return app


class Naive:
    """All rows that were not late, and what each window holds of them when it is asked for."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []
        self.told: set[tuple[str, int]] = set()
        self.final: list[tuple[str, int, list[int]]] = []
        self.every: list[tuple[str, int, list[int]]] = []
        self.late: list[int] = []
        self.watermark = -1

    def windows(self, key: str) -> list[int]:
        times = [time for of, time, _ in self.rows if of == key]
        starts = {time - SIZE for time in times} | {time + 1 for time in times}
        return sorted(start for start in starts if self.holds(key, start))

    def holds(self, key: str, start: int) -> list[int]:
        """In the order of their times, and of their arrival for one time."""
        found = [(time, n) for of, time, n in self.rows if of == key and start <= time <= start + SIZE]
        return [n for _, n in sorted(found, key=lambda row: row[0])]

    def closed(self, start: int) -> bool:
        return start + SIZE + GRACE < self.watermark

    def row(self, key: str, time: int, n: int) -> None:
        self.watermark = max(self.watermark, time)
        due = [(s, k) for k in {of for of, _, _ in self.rows} for s in self.windows(k) if self.closed(s)]
        for start, of in sorted(due):
            if (of, start) not in self.told:
                self.told.add((of, start))
                self.final.append((of, start, self.holds(of, start)))
        if self.closed(time):
            self.late.append(n)
            return
        self.rows.append((key, time, n))
        for start in self.windows(key):
            if self.closed(start):
                self.told.add((key, start))  # it closed without, or is there too late
            elif start <= time <= start + SIZE or start == time + 1:
                self.every.append((key, start, self.holds(key, start)))


given_rows = st.lists(st.tuples(st.sampled_from("aab"), st.integers(0, 12)), min_size=1, max_size=30).map(
    lambda listed: [(key, n // 2 + jitter, n) for n, (key, jitter) in enumerate(listed)]
)


@pytest.mark.parametrize("emit", ["final", "every", "changes"])
@settings(max_examples=40, deadline=None)
@given(given=given_rows, cutting=cuts)
def test_one_record_at_a_time(emit: str, given: list[tuple[str, int, int]], cutting: list[tuple[int, str]]) -> None:
    naive = Naive()
    for key, time, n in given:
        naive.row(key, time, n)
    given_records: list[Record] = [(key.encode(), {"n": n, "at": time}, 0) for key, time, n in given]
    found = [
        (value["k"], milliseconds(value["window_start"]), value["ns"])
        for _, value, _ in run_cut(program(emit), given_records, cutting, "out")
    ]
    if emit == "changes":
        assert {one[:2]: one[2] for one in found} == {one[:2]: one[2] for one in naive.every}
    else:
        assert found == (naive.final if emit == "final" else naive.every)
    late = run_cut(program(emit), given_records, cutting, "late")
    assert [value["n"] for _, value, _ in late] == naive.late


@pytest.mark.parametrize("emit", ["final", "every"])
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_the_batch_law_for_every_aggregate(emit: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = everything(emit)
    assert by_key(run_cut(app, given, cutting, "out")) == by_key(run_one_by_one(app, given, "out"))


def test_the_example_of_kafka() -> None:
    """A difference of 5,000 and rows at 8,000, 9,200 and 12,400 make five windows of different rows."""
    app = App("sliding")
    groups = app.stream("in", value=json("n bigint"), key="k").group_by("k").window(sliding("5s"), late="drop")
    groups.agg(ns=agg.collect("n", 9), name="windows", emit="final").to("out")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"n": n}, time) for n, time in ((1, 8_000), (2, 9_200), (3, 12_400))])
    fed.task.reach("in", 100_000)
    found = [
        (milliseconds(value["window_start"]), milliseconds(value["window_end"]), value["ns"])
        for _, value, _ in rows(fed.commit(), "out")
    ]
    assert found == [
        (3_000, 8_000, [1]),
        (4_200, 9_200, [1, 2]),
        (7_400, 12_400, [1, 2, 3]),
        (8_001, 13_001, [2, 3]),
        (9_201, 14_201, [3]),
    ]
    assert list(fed.cold["windows"].scan()) == []
