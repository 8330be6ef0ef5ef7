"""Runs of timestamps, held against the list of all of them."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.batch import RecordColumns, build_batch
from headrace_common.core.batch.stamp_runs import StampRuns

RUNS = st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 2**60)), max_size=8)


def listed(runs: list[tuple[int, int]]) -> list[int]:
    return [stamp for count, stamp in runs for _ in range(count)]


@given(RUNS, st.data())
def test_runs_are_their_list(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    stamps, expected = StampRuns(runs), listed(runs)
    assert list(stamps) == expected
    assert len(stamps) == len(expected)
    assert [stamps[at] for at in range(-len(expected), 0)] == expected
    start, end = data.draw(st.integers(0, 170)), data.draw(st.integers(0, 170))
    assert list(stamps[start:end]) == expected[start:end]
    rows = sorted(data.draw(st.sets(st.integers(0, len(expected) - 1)))) if expected else []
    assert list(stamps.take(rows)) == [expected[row] for row in rows]
    assert stamps.pack() == struct.pack(f"<{len(expected)}q", *expected)
    assert listed(stamps.runs()) == expected


@given(RUNS.filter(listed))
def test_a_batch_is_the_same_of_runs_of_a_list_and_of_an_array(runs: list[tuple[int, int]]) -> None:
    stamps = listed(runs)
    values = [b"v"] * len(stamps)
    batch = build_batch(RecordColumns(values, None, StampRuns(runs)))
    assert batch == build_batch(RecordColumns(values, None, stamps))
    assert batch == build_batch(RecordColumns(values, None, np.array(stamps)))
