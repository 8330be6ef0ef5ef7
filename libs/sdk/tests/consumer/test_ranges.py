"""Which ranges there are to read, and in which order."""

from __future__ import annotations

import pytest

from headrace._core.ranges import Range, RangeQueue
from headrace.errors import InvalidTopic, Rejected
from headrace_common.core.ids import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_ranges_of_a_partition_come_in_the_order_of_their_offsets() -> None:
    queue = RangeQueue([("t", 0, 50, 60), ("t", 1, 0, 5), ("t", 0, 0, 10), ("t", 0, 10, 20)])
    assert queue.now() == {T0: Range(0, 10), T1: Range(0, 5)}
    assert queue.done(T0) == Range(10, 20)
    assert queue.done(T1) is None
    assert queue.now() == {T0: Range(10, 20)}
    assert queue.list_left() == [(T0, Range(10, 20)), (T0, Range(50, 60))]
    assert queue.done(T0) == Range(50, 60)
    assert queue.done(T0) is None
    assert not queue.now()
    assert not queue.list_left()


def test_empty_ranges_are_nothing_to_read() -> None:
    assert not RangeQueue([("t", 0, 7, 7)]).now()
    assert not RangeQueue([]).now()
    assert RangeQueue([("t", 0, 7, 7), ("t", 0, 5, 9)]).now() == {T0: Range(5, 9)}, "an empty one overlaps nothing"


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([("t", 0, 0, 10), ("t", 0, 9, 20)], "t-0: the ranges 0 to 10 and 9 to 20 overlap"),
        ([("t", 0, 5, 4)], "ends before it starts"),
        ([("t", 0, -1, 4)], "whole numbers from 0, not -1"),
        ([("t", -1, 0, 4)], "whole numbers from 0, not -1"),
        ([("t", 0, 0.5, 4)], "whole numbers from 0, not 0.5"),
        ([("t", True, 0, 4)], "whole numbers from 0, not True"),
        ([("t", 0, 0, 1 << 63)], "whole numbers from 0"),
        ([("t", 0, 0)], r"a range is \(topic, partition, start, end\), not \('t', 0, 0\)"),
        ([7], r"a range is \(topic, partition, start, end\), not 7"),
    ],
)
def test_what_is_no_range_is_refused(ranges: list[tuple[str, int, int, int]], text: str) -> None:
    with pytest.raises(Rejected, match=text):
        RangeQueue(ranges)


def test_what_can_be_no_topic_is_refused() -> None:
    with pytest.raises(InvalidTopic):
        RangeQueue([("a/b", 0, 0, 1)])
