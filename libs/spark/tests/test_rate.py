"""How much one micro-batch reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.rate import limit_ends, waiting, worth_it

A, B, C = (TopicPartition("t", n) for n in range(3))


def test_shares_follow_what_waits() -> None:
    start, end = {A: 0, B: 100, C: 5}, {A: 900, B: 200, C: 5}
    assert limit_ends(start, end, 100) == {A: 90, B: 110, C: 5}
    assert limit_ends(start, end, 1_000) == end
    assert limit_ends(start, end, 999) == {A: 899, B: 199, C: 5}


def test_small_partitions_do_not_starve() -> None:
    assert limit_ends({A: 0, B: 0}, {A: 1_000_000, B: 3}, 10) == {A: 9, B: 1}


ends = st.dictionaries(st.sampled_from([A, B, C]), st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)), min_size=1)


@given(ends, st.integers(1, 2**63 - 1))
def test_a_batch_moves_and_stays_within_its_limit(rows: dict[TopicPartition, tuple[int, int]], most: int) -> None:
    start = {tp: low for tp, (low, _) in rows.items()}
    end = {tp: low + size for tp, (low, size) in rows.items()}
    chosen = limit_ends(start, end, most)
    assert all(start[tp] <= chosen[tp] <= end[tp] for tp in end)
    left = waiting(start, end)
    assert all(chosen[tp] > start[tp] for tp in left), "who waits gets something"
    taken = sum(waiting(start, chosen).values())
    assert taken <= max(most, 0) + len(left)
    assert taken >= min(most, sum(left.values())) - len(left)


@given(ends, st.integers(1, 50))
def test_batch_after_batch_everything_is_read(rows: dict[TopicPartition, tuple[int, int]], most: int) -> None:
    start = {tp: low for tp, (low, _) in rows.items()}
    end = {tp: low + size % 1_000 for tp, (low, size) in rows.items()}
    for _ in range(3_001):
        if start == end:
            break
        start = limit_ends(start, end, most)
    assert start == end


def test_what_is_worth_a_batch() -> None:
    start, end = {A: 0}, {A: 5}
    assert worth_it(start, end, 5, 0, 1_000)
    assert not worth_it(start, end, 6, 999, 1_000)
    assert worth_it(start, end, 6, 1_000, 1_000)
    assert worth_it(start, end, 6, None, 1_000), "the first batch does not wait"
    assert not worth_it(start, start, 6, 10_000, 1_000), "nothing is never worth a batch"
