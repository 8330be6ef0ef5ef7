"""Dialogues that a simulation of groups has found, each a bug that was there."""

from __future__ import annotations

from headrace_common.core.errors import ErrorCode
from headrace_coordinator.core.events import Woken

from .world import World, plain


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


def test_a_member_that_holds_partitions_of_a_topic_that_is_gone_is_told_its_name_after_a_move() -> None:
    """The name was not in the record any more: it was told to hold partitions of a topic without a name."""
    w = World({"t": 2, "u": 2})
    assert w.enter(1, "m", "t", "u").assignment
    w.change_topics({"t": 2})
    w.move()
    w.pulse(2, "m", 1, topics=("t", "u"), owned={"t": [0, 1], "u": [0, 1]})
    standing = w.told(2)
    assert standing.error is None
    assert plain(standing.assignment or ()) == {"t": [0, 1]}
    w.move()
    w.pulse(3, "m", 1, topics=("t", "u"))
    assert plain(w.told(3).assignment or ()) == {"t": [0, 1]}


def test_an_assignment_that_is_not_confirmed_yet_keeps_its_names_over_a_move() -> None:
    w = World({"t": 2, "u": 2})
    w.enter(1, "m", "t", "u")
    w.change_topics({"t": 2})
    w.move()
    w.pulse(2, "m", 1, topics=("t", "u"))
    assert plain(w.told(2).assignment or ()) == {"t": [0, 1], "u": [0, 1]}
    w.move()
    w.pulse(3, "m", 1, topics=("t", "u"), owned={"t": [0, 1], "u": [0, 1]})
    assert plain(w.told(3).assignment or ()) == {"t": [0, 1]}
    w.pulse(3, "m", 1, owned={"t": [0, 1]})
    assert w.told(3).member_epoch == 2


def test_a_commit_that_comes_before_the_stream_after_a_move_takes_nothing_of_the_session_away() -> None:
    """Without a stream it was a sign of life for the grace alone: the member was out before it knew of the move."""
    w = World()
    a, b = w.stable(1, 2)
    w.move()
    assert w.commit(7, b, 1) is ErrorCode.NONE
    assert w.beat(3, a, 1) is ErrorCode.NONE
    w.sleep(9_000)
    assert w.beat(4, b, 1) is ErrorCode.NONE
