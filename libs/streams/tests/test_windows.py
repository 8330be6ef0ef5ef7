"""Windows against a program that looks at one record at a time, and who is late."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, milliseconds, rows

from headrace_streams import App, agg, hopping, json, tumbling
from headrace_streams.core.operators.windows import Hopping
from headrace_streams.testing import Driver

WINDOWS = {
    "tumbling": tumbling(10, grace=3),
    "no grace": tumbling(7),
    "hopping": hopping(10, 4, grace=2),
    "offset": tumbling(10, offset=3, grace=1),
    "long": hopping(50, 10),
}
times = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 80)), min_size=1, max_size=30)


def spans(window: Hopping, time: int) -> list[int]:
    """The starts of the windows that hold a time, by trying all."""
    starts = range(-200 + window.offset_ms % window.advance_ms, time + 1)
    aligned = (start for start in starts if (start - window.offset_ms) % window.advance_ms == 0)
    return [start for start in aligned if start <= time < start + window.size_ms]


def naive(window: Hopping, given: list[tuple[str, int]]) -> tuple[list[Any], list[Any], dict[Any, int]]:
    """Final rows (key, start, count), late rows (key, time, start), and what is open in the end."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    final: list[Any] = []
    late: list[Any] = []
    watermark = -1
    for key, time in given:
        watermark = max(watermark, time)
        for start in spans(window, time):
            if start + window.size_ms + window.grace_ms <= watermark:
                late.append((key, time, start))
            else:
                counts[start, key] += 1
        for start, of in sorted(counts):
            if start + window.size_ms + window.grace_ms <= watermark:
                final.append((of, start, counts.pop((start, of))))
    return final, late, dict(counts)


def program(window: Hopping) -> App:
    app = App("windows")
    stream = app.stream("in", value=json("at bigint"), key="k", timestamp="at")
    groups = stream.group_by("k").window(window, late="late")
    groups.agg(n=agg.count(), name="counts", emit="final").to("out")
    return app


@pytest.mark.parametrize("name", WINDOWS)
@settings(max_examples=60, deadline=None)
@given(given=times, cut=st.integers(1, 30))
def test_one_record_at_a_time_says_the_same(name: str, given: list[tuple[str, int]], cut: int) -> None:
    window = WINDOWS[name]
    fed = Fed(program(window))
    records: list[Record] = [(key.encode(), {"at": time}, 0) for key, time in given]
    for first in range(0, len(records), cut):
        fed.feed("in", records[first : first + cut])
    outputs = fed.commit()
    final, late, still_open = naive(window, given)
    found = [(v["k"], milliseconds(v["window_start"]), v["n"]) for _, v, _ in rows(outputs, "out")]
    assert sorted(found) == sorted(final)
    assert [start for _, start, _ in found] == [start for _, start, _ in final], "windows close in their order"
    told = [(v["k"], v["at"], milliseconds(v["window_start"])) for _, v, _ in rows(outputs, "late")]
    assert sorted(told) == sorted(late)
    contents = fed.task.contents("counts")
    have = [] if contents is None else contents.to_pylist()
    opened = {(round(row["window_start"].timestamp() * 1_000), row["k"]): row["n"] for row in have}
    assert opened == still_open


def test_a_window_of_which_nothing_was_committed_leaves_no_change() -> None:
    fed = Fed(program(tumbling(10)))
    fed.feed("in", [(b"a", {"at": 1}, 0), (b"a", {"at": 30}, 0)])
    changes = fed.task.changes()
    assert [value is None for _, value in changes["counts"]] == [False], "only the window that is open"
    fed.commit()
    fed.feed("in", [(b"a", {"at": 60}, 0)])
    deleted = [key for key, value in fed.task.changes()["counts"] if value is None]
    assert len(deleted) == 1, "the window that was committed is deleted"


partitions = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 6), st.booleans()), min_size=1, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(given=partitions, seed=st.integers(0, 1_000), idle=st.lists(st.integers(0, 29), max_size=2))
def test_a_row_within_grace_of_its_own_partition_is_never_late(
    given: list[tuple[int, str, int, bool]], seed: int, idle: list[int]
) -> None:
    """
    Partitions run ahead, stand still, or go idle behind a repartition: who is within the grace of the greatest earlier
    time of its own partition counts, unless that partition was held for idle.
    """
    grace = 5
    app = App("grace")
    stream = app.stream("in", value=json("k string, at bigint"), timestamp="at")
    groups = stream.group_by("k", name="by-k").window(tumbling(10, grace=grace), late="late")
    groups.agg(n=agg.count(), name="counts", emit="final").to("out")
    clock = [0, 0, 0]
    expected: dict[Any, int] = defaultdict(int)
    held_idle = bool(idle)
    with Driver(app, partitions=3, seed=seed) as driver:
        for turn, (partition, key, step, back) in enumerate(given):
            pace = (1, 3, 10)[partition]
            time = max(0, clock[partition] - step % (grace + 1)) if back else clock[partition] + step * pace
            clock[partition] = max(clock[partition], time)
            expected[key, time // 10 * 10] += 1
            driver.pipe("in", [{"k": key, "at": time}], partition=partition)
            if turn in idle:
                driver.advance("5s")
        driver.advance_to(10_000)
        late = driver.read("late")
        found = {(r["k"], milliseconds(r["window_start"])): r["n"] for r in driver.read("out")}
    if not held_idle:
        assert late == []
        assert found == dict(expected)
    assert sum(found.values()) + len(late) == len(given), "each row counts once, or is told as late"
