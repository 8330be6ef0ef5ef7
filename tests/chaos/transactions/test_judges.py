"""The judges themselves, on findings made by hand."""

from __future__ import annotations

from collections import defaultdict

import pytest

from . import test_prepared, test_units
from .test_units import RECORDS, Ledger


def records(*tags: str) -> list[bytes]:
    return [f"{tag}:{number}".encode() for tag in tags for number in range(RECORDS)]


def ledger(*plans: tuple[int, set[str]], committed: dict[int, set[str]]) -> Ledger:
    planned: dict[int, list[frozenset[str]]] = defaultdict(list)
    for number, tags in plans:
        planned[number].append(frozenset(tags))
    return Ledger(planned, {number: frozenset(tags) for number, tags in committed.items()})


PLANS = ((0, {"a", "b"}), (1, {"c", "d"}), (1, {"e"}), (2, {"f"}))
"""The driver died after the first plan of unit 1, or after its answer; and before unit 2 was decided."""


def test_units_that_are_whole_are_sound() -> None:
    test_units.judge(ledger(*PLANS, committed={0: {"a", "b"}}), records("a", "b", "e"), last=1)
    test_units.judge(ledger(*PLANS, committed={0: {"a", "b"}}), records("a", "b", "c", "d"), last=1)


@pytest.mark.parametrize(
    ("values", "last", "why"),
    [
        (records("a", "b", "c"), 1, "unit 1"),
        (records("a", "b", "c", "d", "e"), 1, "unit 1"),
        (records("a", "b"), 1, "unit 1"),
        (records("a", "b", "e", "f"), 1, "in no unit"),
        (records("a", "e"), 1, "unit 0"),
        (records("a", "b", "e")[:-1], 1, "only a part"),
        (records("a", "b", "e", "e"), 1, "twice"),
        (records("a", "b")[:0] + records("z"), -1, "said to be committed"),
    ],
)
def test_units_that_are_not_are_found(values: list[bytes], last: int, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        test_units.judge(ledger(*PLANS, committed={0: {"a", "b"}}), values, last)


TAGS = {"a": "token-a", "b": "token-b"}


def test_what_was_decided_is_sound() -> None:
    test_prepared.judge(TAGS, {"token-a": True, "token-b": False}, records("a"))


@pytest.mark.parametrize(
    ("verdicts", "values", "why"),
    [
        ({"token-a": True, "token-b": False}, records("a", "b"), "differ"),
        ({"token-a": True, "token-b": True}, records("a"), "differ"),
        ({"token-a": True, "token-b": False}, records("a")[1:], "differ"),
        ({"token-a": True, "token-b": False}, records("a", "c"), "differ"),
        ({"token-a": True, "token-b": False}, records("a", "a"), "twice"),
        ({"token-a": True}, records("a"), "nobody decided"),
    ],
)
def test_what_was_decided_otherwise_is_found(verdicts: dict[str, bool], values: list[bytes], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        test_prepared.judge(TAGS, verdicts, values)
