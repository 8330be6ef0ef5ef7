"""Dialogues that the simulation of groups (``tests/simulation/groups``) has found, each a bug that was there."""

from __future__ import annotations

from headrace_common.core.errors import ErrorCode
from headrace_coordinator.core.events import Woken

from .world import World


def test_a_wake_that_ends_a_session_and_with_it_the_round_that_removes_the_next_silent_member() -> None:
    """Woken so late that both were due: the second was gone already, which was a crash."""
    w = World()
    w.stable(1, 2)
    w.join(3)
    w.heard(1)
    w.heard(2)
    w.now_ms += 100_000
    w.tell(Woken(w.at))
    assert w.standing(1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert w.standing(2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert [m.member_id for m in w.joined(3).members] == ["m-3"]
