"""Up to where rows may be read, as dialogues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.connectors.sql_source.holding import Bound, Holding


def test_a_bound_without_transactions_is_complete_at_once() -> None:
    holding = Holding()
    holding.find(Bound(7), set(), 0)
    assert (holding.complete, holding.is_waiting) == (Bound(7), False)
    holding.read()
    assert (holding.complete, holding.is_waiting) == (None, False)


def test_it_waits_for_those_that_were_open_and_for_no_others() -> None:
    holding = Holding()
    holding.find(Bound(7), {"3/1", "4/1"}, 0)
    holding.look({"4/1", "5/9"}, 10)
    assert holding.waits_for == {"4/1"}
    assert holding.complete is None
    holding.look({"5/9", "3/1"}, 20)  # one that ended does not count when its id is there again
    assert holding.complete == Bound(7)


def test_it_waits_as_long_as_the_bound_says() -> None:
    holding = Holding()
    holding.find(Bound(7, wait_ms=100), {"3/1"}, 1_000)
    holding.look(set(), 1_099)
    assert holding.is_waiting
    holding.look(set(), 1_100)
    assert holding.complete == Bound(7, wait_ms=100)


def test_a_session_that_prepares_its_transaction_has_not_ended_it() -> None:
    holding = Holding()
    holding.find(Bound(7), {"3/1"}, 0)
    holding.look({"-1/700"}, 1)
    assert holding.waits_for == {"-1/700"}
    holding.look({"-1/800"}, 2)  # others may be prepared for good
    assert holding.complete == Bound(7)


@given(st.sets(st.integers(0, 9)), st.lists(st.tuples(st.sets(st.integers(0, 9)), st.sets(st.integers(10, 19)))))
def test_it_is_complete_when_each_has_been_away_once(first: set[int], looks: list[tuple[set[int], set[int]]]) -> None:
    holding = Holding()
    holding.find(Bound(1), {str(one) for one in first}, 0)
    left = set(first)
    for old, new in looks:
        if not holding.is_waiting:
            break
        holding.look({str(one) for one in old | new}, 0)
        left &= old
        assert holding.is_waiting == bool(left)
