"""The judge itself, on rows made by hand."""

from __future__ import annotations

import pytest

from .judging import judge, judge_what_is_left

INPUTS = {(0, 0): "a", (0, 1): "b", (0, 3): "c", (1, 0): "d"}
"""Offset 2 is a gap."""
ROWS = ["0:0:a", "0:1:b", "0:3:c", "1:0:d"]
ENDS = {0: 4, 1: 1}


def test_rows_that_are_the_inputs_are_sound() -> None:
    verdict = judge(INPUTS, reversed(ROWS), ENDS)
    assert (verdict.read, verdict.counts) == (4, {})


def test_what_no_batch_has_read_need_not_be_there() -> None:
    assert judge(INPUTS, ROWS[:2], {0: 2}).counts == {}


@pytest.mark.parametrize(
    ("rows", "ends", "anomalies"),
    [
        ([*ROWS, "0:1:b"], ENDS, {"double-output": 1}),
        ([*ROWS, "0:1:b", "1:0:d"], ENDS, {"double-output": 2}),
        (ROWS[1:], ENDS, {"missing-output": 1}),
        ([], ENDS, {"missing-output": 4}),
        ([*ROWS, "0:2:z"], ENDS, {"invented-output": 1}),
        ([*ROWS, "2:0:z"], ENDS, {"invented-output": 1}),
        (ROWS, {0: 3, 1: 1}, {"early-output": 1}),
        (["0:0:b", *ROWS[1:]], ENDS, {"other-value": 1}),
        (["0:0:b", *ROWS[2:], "0:3:c"], ENDS, {"other-value": 1, "missing-output": 1, "double-output": 1}),
    ],
)
def test_rows_that_are_not_are_found(rows: list[str], ends: dict[int, int], anomalies: dict[str, int]) -> None:
    assert judge(INPUTS, rows, ends).counts == anomalies


def test_what_was_deleted_may_be_missing_or_there() -> None:
    assert judge_what_is_left(INPUTS, ROWS, ENDS, {0: 2}).counts == {}
    assert judge_what_is_left(INPUTS, ROWS[1:], ENDS, {0: 2}).counts == {}
    assert judge_what_is_left(INPUTS, ROWS[2:], ENDS, {0: 2}).counts == {}


@pytest.mark.parametrize(
    ("rows", "anomaly"),
    [
        ([*ROWS, ROWS[0]], "double-output"),
        (ROWS[:2], "missing-output"),
        ([*ROWS, "0:2:z"], "invented-output"),
        (["0:0:z"], "other-value"),
    ],
)
def test_what_was_deleted_excuses_nothing_else(rows: list[str], anomaly: str) -> None:
    assert anomaly in judge_what_is_left(INPUTS, rows, ENDS, {0: 2}).counts
