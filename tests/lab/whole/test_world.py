"""Whole clusters in the lab under faults: nothing acknowledged is lost, doubled or reordered, and copies are exact."""

from __future__ import annotations

import asyncio

import pytest
from tests.lab.whole.checks import problems, problems_of_held
from tests.lab.whole.world import play

SEEDS = range(2)
"""``make sim`` plays eight, and asks the same of them."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_clients_saw_is_in_order(seed: int) -> None:
    outcome = asyncio.run(play(seed))
    assert outcome.problems == [], "\n".join(outcome.story)
    assert outcome.counts["acknowledged"] > 100
    assert outcome.counts["taken over"] > 3


def test_each_thing_that_can_be_wrong_is_found() -> None:
    logs = {0: [(0, b"a-0"), (1, b"a-1")]}
    whole = dict.fromkeys([b"a-0", b"a-1", b"a-2"])
    assert problems([(b"a-0", 0, 0)], whole, logs, logs, whole) == []

    def said(acknowledged: object = (), log: object = None, copies: object = None, read: object = None) -> str:
        return "; ".join(
            problems(
                acknowledged,  # type: ignore[arg-type]  # short for the test
                whole,
                {0: log} if log is not None else logs,  # type: ignore[dict-item]
                {0: copies} if copies is not None else logs,  # type: ignore[dict-item]
                whole if read is None else read,  # type: ignore[arg-type]
            )
        )

    assert "b'a-2' was acknowledged at 0:2, where None is" in said([(b"a-2", 0, 2)])
    assert "b'a-0' is there 2 times" in said(log=[(0, b"a-0"), (1, b"a-0")])
    assert "b'b-0' was never sent" in said(log=[(0, b"b-0")])
    assert "b'a-0' comes after b'a'-1" in said(log=[(0, b"a-1"), (1, b"a-0")])
    assert "b'a-0' was copied 2 times" in said(copies=[(0, b"a-0"), (1, b"a-0")])
    assert "b'a-1' was not copied" in said(copies=[(0, b"a-0")])
    assert "b'a-2' was copied from nowhere" in said(copies=[(0, b"a-2")])
    assert "b'a-1' was read by nobody in the group" in said(read={b"a-0": None})


def test_each_thing_that_can_be_wrong_with_a_held_partition_is_found() -> None:
    log = [(1, b"1-0"), (3, b"2-0"), (4, b"2-1")]
    assert problems_of_held([(1, 0), (2, 2)], [(b"2-1", 0, 4)], log) == []
    assert problems_of_held([(2, 0)], [], log) == ["b'1-0' comes behind token 2 at 0"]
    assert "b'1-1' was acknowledged at 0:2, where None is" in problems_of_held([], [(b"1-1", 0, 2)], log)
    assert "b'1-0' is there 2 times" in problems_of_held([], [], [*log, (5, b"1-0")])
    assert "b'2-0' comes after b'2'-1 in partition 0" in problems_of_held([], [], [*log, (5, b"2-0")])
