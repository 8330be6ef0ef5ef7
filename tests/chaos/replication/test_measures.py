"""The measures themselves: gaps, seconds, and differences of replicas, on figures made by hand."""

from __future__ import annotations

from chaos_replicas import Copy, differences

from headrace_verify.availability import SECOND, longest_gap, per_second, strip


def at(*seconds: float) -> list[int]:
    return [int(second * SECOND) for second in seconds]


def test_the_longest_gap_is_that_of_the_worst_partition() -> None:
    acks = {0: at(0, 1, 2, 3, 4), 1: at(0, 0.5, 3.5, 4)}
    gap = longest_gap(acks, SECOND, 3 * SECOND)
    assert (gap.seconds, gap.partition, gap.begin_ns) == (3.0, 1, SECOND // 2)


def test_gaps_outside_the_time_do_not_count() -> None:
    assert longest_gap({0: at(0, 5, 5.5, 6, 6.5, 12)}, *at(5.2, 6.1)).seconds == 0.5


def test_a_partition_that_stays_silent_has_a_gap_to_the_end() -> None:
    assert longest_gap({0: at(0, 1), 1: at(0, 1, 2, 3, 4)}, *at(1, 4)).seconds == 3.0


def test_a_partition_is_served_in_a_second_with_a_write() -> None:
    rows = per_second({0: at(0.1, 0.2, 2.5), 1: at(0.9)}, 0, 3 * SECOND)
    assert rows == [(2, 3), (0, 0), (1, 1)]
    assert strip(rows, 2) == "#.5"


def test_replicas_that_differ_are_named_with_the_first_difference() -> None:
    same = Copy(1, 0, 0, 10, "aaaaaaaa", ((0, 1), (5, 1)))
    other = Copy(2, 0, 0, 10, "bbbbbbbb", ((0, 1), (5, 2)))
    [told] = differences({0: [same, other], 1: [same, same]})
    assert "partition 0" in told
    assert "(5, 1) / (5, 2)" in told or "(5, 2) / (5, 1)" in told


def test_replicas_with_other_ends_differ() -> None:
    assert differences({0: [Copy(1, 0, 0, 10, "a", ()), Copy(2, 0, 0, 9, "a", ())]})
