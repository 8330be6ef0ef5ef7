"""Where replicas go: examples and properties."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import InvalidReplicationFactor
from headrace_common.core.ids import NodeId
from headrace_controller.core.placement import Candidate, place, ring


def brokers(*racks: str | None) -> list[Candidate]:
    return [Candidate(NodeId(n), rack) for n, rack in enumerate(racks)]


def test_one_replica_each_goes_round() -> None:
    assert place(brokers(None, None, None), range(4), 1, start=1, shift=0) == [(1,), (2,), (0,), (1,)]


def test_followers_shift_with_every_turn() -> None:
    placed = place(brokers(*[None] * 4), range(12), 2, start=0, shift=0)
    assert [p for p in placed if p[0] == 0] == [(0, 1), (0, 2), (0, 3)]


def test_neighbours_in_the_ring_are_in_different_racks() -> None:
    assert [b.id for b in ring(brokers("a", "a", "b", "b", "c", "c"))] == [0, 2, 4, 1, 3, 5]


def test_each_replica_is_in_a_rack_of_its_own_while_there_are_racks() -> None:
    of = brokers("a", "a", "b", "b", "c", "c")
    rack = {b.id: b.rack for b in of}
    for replicas in place(of, range(60), 3, start=5, shift=3):
        assert len({rack[r] for r in replicas}) == 3


def test_a_topic_that_grows_goes_on_where_it_stopped() -> None:
    of = brokers("a", "b", "c", "a", "b")
    whole = place(of, range(20), 3, start=7, shift=2)
    assert place(of, range(8), 3, start=7, shift=2) + place(of, range(8, 20), 3, start=7, shift=2) == whole


@pytest.mark.parametrize(("count", "text"), [(0, "0 brokers are alive"), (2, "2 brokers are registered")])
def test_too_few_brokers_are_told_with_their_number(count: int, text: str) -> None:
    with pytest.raises(InvalidReplicationFactor, match=text):
        place(brokers(*[None] * count), range(1), 3, start=0, shift=0)


def test_brokers_in_reserve_take_what_is_left_and_never_lead() -> None:
    of = brokers("a", "b", "c", "d")
    for replicas in place(of[:2], range(8), 3, start=0, shift=0, reserve=of[2:]):
        assert (sorted(replicas[:2]), replicas[2:]) == ([0, 1], (2,))
    assert place(of[:3], range(3), 3, start=0, shift=0, reserve=of[3:]) == place(of[:3], range(3), 3, start=0, shift=0)


racked = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=12).map(lambda r: brokers(*r))


@given(racked, st.integers(1, 80), st.data())
def test_leaders_are_even_and_replicas_distinct(of: list[Candidate], count: int, data: st.DataObject) -> None:
    replicas = data.draw(st.integers(1, len(of)))
    placed = place(of, range(count), replicas, start=data.draw(st.integers(0)), shift=data.draw(st.integers(0)))
    leaders = Counter({b.id: 0 for b in of})
    leaders.update(p[0] for p in placed)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    racks = {b.id: b.rack for b in of}
    for own in placed:
        assert len(own) == len(set(own)) == replicas
        assert len({racks[r] for r in own}) == min(replicas, len(set(racks.values())))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.data())
def test_replicas_are_even_over_full_turns(racks: int, per_rack: int, turns: int, data: st.DataObject) -> None:
    """With racks of one size and whole turns of the ring, no broker has more replicas than another."""
    of = brokers(*[str(n % racks) for n in range(racks * per_rack)])
    replicas = data.draw(st.integers(1, min(racks, len(of))))
    count = turns * len(of)
    placed = place(of, range(count), replicas, start=data.draw(st.integers(0, 99)), shift=data.draw(st.integers(0, 99)))
    held = Counter(r for own in placed for r in own)
    assert held == Counter({b.id: turns * replicas for b in of})
