"""Which connections stay: dialogues, and properties against a list of all that is open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.connections import Admitted, Connections, Refused, subscriber


def test_a_newer_connection_takes_the_place_of_the_one_that_waited_longest() -> None:
    connections: Connections[int] = Connections(total_max=10, per_address_max=2)
    assert connections.admit(1, "10.0.0.1") == Admitted(None)
    assert connections.admit(2, "10.0.0.1") == Admitted(None)
    assert connections.admit(3, "10.0.0.1") == Admitted(1)
    assert connections.admit(4, "10.0.0.2") == Admitted(None)
    connections.answering(2)
    assert connections.admit(5, "10.0.0.1") == Admitted(3)
    connections.answered(2)
    assert connections.admit(6, "10.0.0.1") == Admitted(5)
    assert connections.admit(7, "10.0.0.1") == Admitted(2)


def test_requests_under_way_are_never_ended_for_others() -> None:
    connections: Connections[int] = Connections(total_max=3, per_address_max=2)
    for n in (1, 2):
        connections.admit(n, "10.0.0.1")
        connections.answering(n)
    assert connections.admit(3, "10.0.0.1") == Refused("2 requests of this address are being answered")
    assert connections.admit(4, "10.0.0.2") == Admitted(None)
    connections.answering(4)
    assert connections.admit(5, "10.0.0.3") == Refused("3 requests are being answered")
    connections.closed(1)
    assert connections.admit(6, "10.0.0.3") == Admitted(None)


def test_behind_a_proxy_only_the_sum_is_bounded() -> None:
    connections: Connections[int] = Connections(total_max=500, per_address_max=0)
    assert all(connections.admit(n, "10.0.0.1") == Admitted(None) for n in range(500))
    assert connections.admit(500, "10.0.0.1") == Admitted(0)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(address: str, counted: str) -> None:
    assert subscriber(address) == counted


@given(
    st.lists(st.tuples(st.sampled_from(["admit", "answering", "answered", "closed"]), st.integers(0, 9)), max_size=80),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_bounds_hold_and_nobody_at_work_gives_way(
    steps: list[tuple[str, int]], total_max: int, per_address_max: int
) -> None:
    connections: Connections[int] = Connections(total_max, per_address_max)
    open_at: dict[int, str] = {}
    at_work: set[int] = set()
    for n, (step, which) in enumerate(steps):
        if step == "admit":
            address = f"10.0.0.{which % 3}"
            outcome = connections.admit(100 + n, address)
            if isinstance(outcome, Refused):
                assert at_work
                continue
            if outcome.instead_of is not None:
                assert outcome.instead_of not in at_work
                del open_at[outcome.instead_of]
            open_at[100 + n] = address
        elif open_at:
            one = list(open_at)[which % len(open_at)]
            getattr(connections, step)(one)
            if step == "closed":
                del open_at[one]
            at_work = (at_work | {one} if step == "answering" else at_work - {one}) & set(open_at)
        assert len(connections) == len(open_at) <= total_max
        counts = [list(open_at.values()).count(address) for address in set(open_at.values())]
        assert not per_address_max or max(counts, default=0) <= per_address_max
