"""
Which ranges of which partitions are to be read, and which comes next in each. ``range_reader`` is the caller.

One partition is read in the order of its ranges' offsets, one range at a time; partitions go side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from headrace_common.core.errors import Rejected
from headrace_common.core.ids import TopicPartition, check_topic_name


class Range(NamedTuple):
    """The offsets ``start`` up to ``end``, which is not among them."""

    start: int
    end: int


class RangeQueue:
    """
    What is left to be read.

    Raises:
        Rejected: something is not a range, or two of them overlap.
        InvalidTopic: no topic can have such a name.
    """

    def __init__(self, ranges: Iterable[tuple[str, int, int, int]]) -> None:
        found: dict[TopicPartition, list[Range]] = {}
        for given in ranges:
            tp, one = _check(given)
            if one.start < one.end:
                found.setdefault(tp, []).append(one)
        self._left: dict[TopicPartition, deque[Range]] = {}
        for tp, those in found.items():
            those.sort()
            for before, after in pairwise(those):
                if after.start < before.end:
                    raise Rejected(
                        f"{tp}: the ranges {before.start} to {before.end} and {after.start} to {after.end} overlap; "
                        "give each offset once"
                    )
            self._left[tp] = deque(those)

    def now(self) -> dict[TopicPartition, Range]:
        """The range to read now of each partition that is not done."""
        return {tp: those[0] for tp, those in self._left.items()}

    def done(self, tp: TopicPartition) -> Range | None:
        """The range of now was read; the one after it, None: there is no more."""
        left = self._left[tp]
        left.popleft()
        if left:
            return left[0]
        del self._left[tp]
        return None

    def list_left(self) -> list[tuple[TopicPartition, Range]]:
        """All that are not done; the first of each partition may be half read."""
        return [(tp, one) for tp, those in self._left.items() for one in those]


def _check(given: tuple[str, int, int, int]) -> tuple[TopicPartition, Range]:
    try:
        topic, *numbers = given
        partition, start, end = numbers
    except (TypeError, ValueError):
        raise Rejected(f"a range is (topic, partition, start, end), not {given!r}") from None
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 63:
            raise Rejected(f"partition, start and end are whole numbers from 0, not {number!r} in {given!r}")
    if start > end:
        raise Rejected(f"the range {given!r} ends before it starts")
    return TopicPartition(check_topic_name(topic), partition), Range(start, end)
