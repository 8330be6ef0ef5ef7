"""When a scrub begins, and which logs it takes in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.scrubbing import Scrubbing
from headrace_common.core.ids import PartitionId, TopicId

LOGS = [PartitionId(TopicId(bytes(16)), number) for number in range(20)]


def taken(plan: Scrubbing) -> list[PartitionId]:
    found = []
    while (id := plan.take()) is not None:
        found.append(id)
    return found


@given(st.sets(st.sampled_from(LOGS)), st.integers(0, 2**32))
def test_each_log_is_taken_once_in_a_pass(logs: set[PartitionId], seed: int) -> None:
    plan = Scrubbing(0.0, 10.0)
    plan.begin(logs, 0.0, seed)
    found = taken(plan)
    assert (len(found), set(found), plan.logs) == (len(logs), logs, len(logs))


def test_the_order_differs_from_pass_to_pass() -> None:
    orders = set()
    for seed in range(5):
        plan = Scrubbing(0.0, 10.0)
        plan.begin(LOGS, 0.0, seed)
        orders.add(tuple(taken(plan)))
    assert len(orders) == 5


@pytest.mark.parametrize(("interval_ms", "first_ms"), [(1_000.0, 100.0), (50.0, 50.0)])
def test_the_first_pass_waits_for_the_start_and_the_next_for_the_interval(interval_ms: float, first_ms: float) -> None:
    plan = Scrubbing(7.0, 100.0)
    assert plan.wait_ms(7.0, interval_ms) == first_ms
    assert plan.wait_ms(7.0 + first_ms, interval_ms) == 0
    plan.begin(LOGS[:1], 200.0, 0)
    assert plan.wait_ms(201.0, interval_ms) == 0, "it is under way"
    taken(plan)
    assert plan.wait_ms(210.0, interval_ms) == interval_ms - 10


def test_a_pass_over_nothing_counts_as_one() -> None:
    plan = Scrubbing(0.0, 100.0)
    plan.begin([], 100.0, 0)
    assert plan.take() is None
    assert plan.wait_ms(100.0, 500.0) == 500.0
