"""Whose image lacks a change of access, by what nodes say of themselves."""

from __future__ import annotations

import pytest

from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_controller.core.sessions import BEHIND_MS, Heartbeat, Sessions

TIMEOUT_MS = 60_000
ONE, TWO = NodeKey(Role.BROKER, NodeId(1)), NodeKey(Role.COORDINATOR, NodeId(1))


@pytest.fixture
def sessions() -> Sessions:
    made = Sessions(TIMEOUT_MS)
    for key in (ONE, TWO):
        made.open(key, 1, 0)
        made.renew(Heartbeat(key, 1, 5), 0)
    return made


def test_a_node_that_lacks_a_change_for_long_is_named(sessions: Sessions) -> None:
    sessions.access_changed(7, 100)
    sessions.renew(Heartbeat(ONE, 1, 7), 200)
    for at_ms in (200, 100 + BEHIND_MS):
        sessions.renew(Heartbeat(TWO, 1, 6), at_ms)
        assert sessions.behind(at_ms) == {}
    assert sessions.behind(101 + BEHIND_MS) == {TWO: BEHIND_MS + 1}
    sessions.renew(Heartbeat(TWO, 1, 7), 200 + BEHIND_MS)
    assert sessions.behind(10 * BEHIND_MS) == {}


def test_it_counts_from_the_first_change_that_it_lacks(sessions: Sessions) -> None:
    sessions.access_changed(7, 100)
    sessions.renew(Heartbeat(ONE, 1, 7), 200)
    sessions.access_changed(9, 5_000)
    sessions.renew(Heartbeat(TWO, 1, 5), 11_000)
    assert sessions.behind(11_000) == {TWO: 10_900}
    assert sessions.behind(16_000) == {TWO: 15_900, ONE: 11_000}


def test_who_is_silent_is_not_named_twice(sessions: Sessions) -> None:
    """That it is away is said elsewhere."""
    sessions.access_changed(7, 100)
    assert set(sessions.behind(TIMEOUT_MS)) == {ONE, TWO}
    assert sessions.behind(TIMEOUT_MS + 1) == {}


def test_who_comes_anew_has_its_time(sessions: Sessions) -> None:
    sessions.access_changed(7, 100)
    sessions.open(ONE, 2, 50_000)
    sessions.renew(Heartbeat(ONE, 2, 3), 50_500)
    assert set(sessions.behind(60_000)) == {TWO}
    assert sessions.behind(60_000)[TWO] == 59_900
    sessions.renew(Heartbeat(ONE, 2, 3), 60_600)
    assert sessions.behind(60_600)[ONE] == 10_100
