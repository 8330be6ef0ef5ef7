"""The server-side protocol (KIP-848) as dialogues: epochs, reconciliation, static members, fencing, time, moves."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import ErrorCode
from headrace_coordinator.core.values import GroupState

from .world import World, code, parts, plain

E = ErrorCode


@pytest.fixture
def w() -> World:
    return World()


def held(w: World, stream: int) -> tuple[int, dict[str, list[int]] | None]:
    """Epoch and assignment of the newest news on the stream."""
    told = w.told(stream)
    assert told.error is None, told.error
    return told.member_epoch, None if told.assignment is None else plain(told.assignment)


def states(w: World) -> dict[str, str]:
    return {m.member_id: m.state for m in w.description().members}


def two(w: World) -> None:
    """Members a on stream 1 and b on stream 2, both settled: t-0, t-1 and t-2, t-3, at epoch 2."""
    w.enter(1, "a")
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.enter(2, "b")
    w.heard(1)
    w.pulse(1, "a", 1, owned={"t": [0, 1]})
    w.heard(1)
    w.heard(2)
    w.pulse(2, "b", 2, owned={"t": [2, 3]})
    w.heard(2)
    assert states(w) == {"a": "STABLE", "b": "STABLE"}


# --- joining and moving ---------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once(w: World) -> None:
    told = w.enter(1, "a")
    assert (told.member_epoch, told.heartbeat_interval_ms, told.session_timeout_ms) == (1, 3_000, 45_000)
    assert told.assignment == parts({"t": range(4)})
    assert w.description().state is GroupState.STABLE


def test_a_heartbeat_without_news_is_answered_without_an_assignment(w: World) -> None:
    w.enter(1, "a")
    appends = w.appends
    w.pulse(1, "a", 1)
    assert held(w, 1) == (1, None)
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    assert held(w, 1) == (1, None)
    assert w.appends == appends


def test_a_second_member_waits_until_the_first_has_given_up_its_share(w: World) -> None:
    w.enter(1, "a")
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.heard(1)
    b = w.enter(2, "b")
    assert (b.member_epoch, b.assignment) == (2, ())
    assert held(w, 1) == (1, {"t": [0, 1]}), "pushed at once, in the old epoch"
    assert states(w) == {"a": "UNREVOKED", "b": "UNRELEASED"}
    assert w.description().state is GroupState.RECONCILING
    w.pulse(1, "a", 1)
    assert held(w, 1) == (1, None)
    assert not w.heard(2)
    w.pulse(1, "a", 1, owned={"t": [0, 1]})
    assert held(w, 1) == (2, None), "it has moved to the epoch"
    assert held(w, 2) == (2, {"t": [2, 3]}), "pushed at once"
    assert w.description().state is GroupState.STABLE


def test_a_member_is_not_asked_to_give_up_what_it_has_not_confirmed_to_hold(w: World) -> None:
    w.enter(1, "a")
    w.enter(2, "b")
    assert not w.heard(1), "the assignment of a may still be on its way"
    assert states(w) == {"a": "UNREVOKED", "b": "UNRELEASED"}
    w.pulse(1, "a", 1, owned={})
    assert held(w, 1) == (1, {"t": [0, 1, 2, 3]}), "an early report is no release"
    assert not w.heard(2)
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    assert held(w, 1) == (1, {"t": [0, 1]})
    w.pulse(1, "a", 1, owned={"t": [0, 1]})
    assert held(w, 1) == (2, None)
    assert held(w, 2) == (2, {"t": [2, 3]})


def test_more_members_than_partitions_idle_in_the_newest_epoch(w: World) -> None:
    two(w)
    for stream, member in ((3, "c"), (4, "d"), (5, "e")):
        w.enter(stream, member)
    for stream, member, epoch in ((1, "a", 2), (2, "b", 2)):
        w.pulse(stream, member, epoch, owned={"t": [0] if member == "a" else [2]})
    assert sorted(len(m.assigned) for m in w.description().members) == [0, 1, 1, 1, 1]
    assert w.description().state is GroupState.STABLE


def test_a_member_that_leaves_makes_room_at_once(w: World) -> None:
    two(w)
    w.pulse(2, "b", -1)
    gone = w.told(2)
    assert (gone.error, gone.member_epoch) == (None, -1)
    assert 2 in w.closed
    assert held(w, 1) == (3, {"t": [0, 1, 2, 3]})


def test_leave_group_is_the_same(w: World) -> None:
    two(w)
    assert w.leave(2, "b") is E.NONE
    assert held(w, 1) == (3, {"t": [0, 1, 2, 3]})
    assert w.leave(9, "b") is E.UNKNOWN_MEMBER_ID


def test_the_last_one_leaves_an_empty_group_in_a_new_epoch(w: World) -> None:
    w.enter(1, "a")
    w.pulse(1, "a", -1)
    d = w.description()
    assert (d.state, d.generation, d.members) == (GroupState.EMPTY, 2, ())
    assert w.enter(2, "b").member_epoch == 3


def test_partitions_that_are_added_are_assigned(w: World) -> None:
    two(w)
    w.change_topics({"t": 6})
    assert held(w, 1) == (3, {"t": [0, 1, 4]})
    assert held(w, 2) == (3, {"t": [2, 3, 5]})


def test_topics_that_nobody_reads_do_not_matter(w: World) -> None:
    two(w)
    w.change_topics({"t": 4, "u": 4})
    assert not w.inbox
    assert w.description().generation == 2


def test_a_topic_that_comes_later_is_assigned_then(w: World) -> None:
    assert w.enter(1, "a", "new").assignment == ()
    w.change_topics({"t": 4, "new": 2})
    assert held(w, 1) == (2, {"new": [0, 1]})


def test_a_topic_that_is_made_anew_is_another_one(w: World) -> None:
    w.enter(1, "a")
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.heard(1)
    w.change_topics({"t": 4}, version=2)
    assert held(w, 1) == (1, {})
    w.pulse(1, "a", 1, owned={})
    told = w.told(1)
    assert told.assignment == parts({"t": range(4)}, version=2)


def test_a_pattern_sees_new_topics(w: World) -> None:
    w.pulse(1, "a", 0, pattern="t.*", matched={"t"}, owned={})
    assert held(w, 1) == (1, {"t": [0, 1, 2, 3]})
    assert w.shard.patterns() == {"t.*"}
    w.change_topics({"t": 4, "t2": 1, "x": 1}, matches={"t.*": ["t", "t2"]})
    assert held(w, 1) == (2, {"t": [0, 1, 2, 3], "t2": [0]})


def test_a_pattern_that_the_image_was_not_asked_for_keeps_what_it_matched(w: World) -> None:
    w.pulse(1, "a", 0, pattern="t.*", matched={"t"}, owned={})
    w.heard(1)
    w.change_topics({"t": 4, "x": 1})
    assert not w.inbox


def test_a_changed_subscription_moves_the_group_to_a_new_epoch(w: World) -> None:
    w = World({"t": 2, "u": 2})
    w.enter(1, "a")
    w.pulse(1, "a", 1, owned={"t": [0, 1]})
    w.heard(1)
    w.pulse(1, "a", 1, topics=["u"])
    assert held(w, 1) == (1, {})
    w.pulse(1, "a", 1, owned={})
    assert held(w, 1) == (2, {"u": [0, 1]})
    w.pulse(1, "a", 2, topics=["u"])
    assert held(w, 1) == (2, None), "the same again is no change"


def test_most_members_choose_the_assignor(w: World) -> None:
    w = World({"t": 3, "u": 3})
    w.enter(1, "a", "t", "u", assignor="range")
    assert w.description().assignor == "range"
    w.enter(2, "b", "t", "u", assignor="uniform")
    assert w.description().assignor == "uniform", "of equals the default"
    w.enter(3, "c", "t", "u", assignor="range")
    assert w.description().assignor == "range"
    target = {m.member_id: plain(m.target) for m in w.description().members}
    assert target == {m: {"t": [i], "u": [i]} for i, m in enumerate("abc")}


def test_an_assignor_that_is_not_offered_is_refused(w: World) -> None:
    assert code(w.enter(1, "a", assignor="best")) is E.UNSUPPORTED_ASSIGNOR
    assert w.shard.list_groups() == []


@pytest.mark.parametrize(
    "request_", [{"owned": {"t": [1]}, "topics": ["t"]}, {"owned": {}}], ids=["holds partitions", "no subscription"]
)
def test_joins_that_make_no_sense_are_refused(w: World, request_: dict[str, object]) -> None:
    w.pulse(1, "a", 0, **request_)
    assert code(w.told(1)) is E.INVALID_REQUEST
    w.pulse(1, "", 0, topics=["t"])
    assert code(w.told(1)) is E.INVALID_REQUEST
    w.pulse(1, "a", -3)
    assert code(w.told(1)) in {E.INVALID_REQUEST, E.UNKNOWN_MEMBER_ID}


def test_a_full_group_takes_nobody() -> None:
    w = World(group_max_size=1)
    w.enter(1, "a")
    assert code(w.enter(2, "b")) is E.GROUP_MAX_SIZE_REACHED
    assert code(w.enter(3, "a")) is E.NONE, "who is in it may join again"


# --- epochs ---------------------------------------------------------------------------------------------------


def test_an_epoch_that_the_member_never_had_is_fenced(w: World) -> None:
    two(w)
    w.pulse(1, "a", 3)
    assert code(w.told(1)) is E.FENCED_MEMBER_EPOCH
    w.pulse(1, "ghost", 1)
    assert code(w.told(1)) is E.UNKNOWN_MEMBER_ID


def test_a_heartbeat_that_crosses_news_is_accepted_with_what_it_held_then(w: World) -> None:
    two(w)
    w.change_topics({"t": 6})
    w.change_topics({"t": 8})
    w.heard(1)
    w.pulse(1, "a", 2, owned={"t": [0, 1]})
    epoch, assignment = held(w, 1)
    assert (epoch, assignment) == (4, {"t": [0, 1, 4, 6]}), "two epochs have gone by meanwhile"


def test_an_epoch_older_than_the_last_one_heard_is_fenced(w: World) -> None:
    two(w)
    w.change_topics({"t": 6})
    w.heard(1)
    w.pulse(1, "a", 3, owned={"t": [0, 1, 4]})
    w.heard(1)
    w.pulse(1, "a", 2)
    assert code(w.told(1)) is E.FENCED_MEMBER_EPOCH


def test_an_older_epoch_with_partitions_that_were_given_away_is_fenced(w: World) -> None:
    two(w)
    w.change_topics({"t": 6})
    w.heard(1)
    w.pulse(1, "a", 2, owned={"t": [0, 1, 2]})
    assert code(w.told(1)) is E.FENCED_MEMBER_EPOCH


def test_a_known_member_that_joins_again_holds_nothing_and_gets_a_newer_epoch(w: World) -> None:
    two(w)
    told = w.enter(11, "a")
    assert told.member_epoch == 3
    assert told.assignment == parts({"t": [0, 1]})
    assert w.closed == [1]
    assert held(w, 2) == (3, None)


def test_a_join_that_is_repeated_over_the_same_stream_takes_nothing_away(w: World) -> None:
    two(w)
    assert w.enter(1, "a").assignment == parts({"t": [0, 1]})
    assert w.description().generation == 2
    assert not w.inbox


# --- time -----------------------------------------------------------------------------------------------------


def test_silence_ends_the_membership_with_the_session(w: World) -> None:
    two(w)
    for _ in range(14):
        w.sleep(3_000)
        w.pulse(1, "a", 2)
    w.heard(1)
    w.sleep(3_000)
    assert code(w.told(2)) is E.UNKNOWN_MEMBER_ID
    assert held(w, 1) == (3, {"t": [0, 1, 2, 3]})


def test_a_broken_stream_gives_the_grace_to_come_back(w: World) -> None:
    two(w)
    w.drop(2)
    w.sleep(2_999)
    w.pulse(12, "b", 2)
    assert held(w, 12) == (2, {"t": [2, 3]}), "whole, on a new stream"
    w.sleep(10_000)
    assert not w.inbox
    w.drop(12)
    w.sleep(3_000)
    assert held(w, 1) == (3, {"t": [0, 1, 2, 3]})


def test_who_does_not_give_up_in_its_rebalance_timeout_is_out(w: World) -> None:
    w.enter(1, "a", rebalance_ms=10_000)
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.enter(2, "b")
    for _ in range(9):
        w.sleep(1_000)
        w.pulse(1, "a", 1)
        assert code(w.told(1)) is E.NONE
    w.sleep(1_000)
    assert code(w.told(1)) is E.FENCED_MEMBER_EPOCH
    assert held(w, 2) == (3, {"t": [0, 1, 2, 3]})


def test_who_gave_up_in_time_stays(w: World) -> None:
    w.enter(1, "a", rebalance_ms=10_000)
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.enter(2, "b")
    w.pulse(1, "a", 1, owned={"t": [0, 1]})
    for _ in range(20):
        w.sleep(1_000)
        w.pulse(1, "a", 2)
        assert code(w.told(1)) is E.NONE


def test_an_older_stream_of_a_member_is_closed_and_changes_nothing(w: World) -> None:
    two(w)
    w.pulse(7, "b", 2)
    assert w.closed == [2]
    w.heard(7)
    w.pulse(2, "b", 0, topics=["t"], owned={})
    w.pulse(2, "b", 2, owned={})
    w.pulse(2, "b", -1)
    w.drop(2)
    assert not w.inbox
    assert states(w) == {"a": "STABLE", "b": "STABLE"}
    assert w.description().generation == 2


# --- static members -------------------------------------------------------------------------------------------


def static_pair(w: World) -> None:
    w.enter(1, "a", instance="i1")
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.enter(2, "b", instance="i2")
    w.pulse(1, "a", 1, owned={"t": [0, 1]})
    w.pulse(2, "b", 2, owned={"t": [2, 3]})
    w.inbox.clear()


def test_a_static_member_that_leaves_for_a_while_finds_its_assignment_again(w: World) -> None:
    static_pair(w)
    w.pulse(2, "b", -2, instance="i2")
    assert w.told(2).member_epoch == -2
    assert not w.inbox, "nobody else hears of it"
    w.sleep(40_000)
    w.pulse(1, "a", 2)
    assert held(w, 1) == (2, None)
    told = w.enter(12, "b2", instance="i2")
    assert (told.member_epoch, told.assignment) == (2, parts({"t": [2, 3]}))
    assert not w.inbox
    assert states(w) == {"a": "STABLE", "b2": "STABLE"}


def test_its_place_is_given_away_with_the_session(w: World) -> None:
    static_pair(w)
    assert w.leave(2, "b", "i2") is E.NONE
    w.sleep(44_000)
    w.pulse(1, "a", 2)
    w.heard(1)
    w.sleep(1_000)
    assert held(w, 1) == (3, {"t": [0, 1, 2, 3]})


def test_a_member_that_is_away_does_not_hold_up_the_others(w: World) -> None:
    static_pair(w)
    w.pulse(2, "b", -2, instance="i2")
    w.enter(3, "c", instance="i3")
    w.pulse(1, "a", 2, owned={"t": [0, 1]})
    by_name = {m.member_id: m for m in w.description().members}
    assert len(by_name["c"].assigned) == 1
    assert by_name["c"].state == "STABLE" or by_name["a"].state == "UNREVOKED"


def test_an_instance_that_has_not_left_is_not_released(w: World) -> None:
    static_pair(w)
    assert code(w.enter(12, "b2", instance="i2")) is E.UNRELEASED_INSTANCE_ID
    w.drop(2)
    assert code(w.enter(12, "b2", instance="i2")) is E.UNRELEASED_INSTANCE_ID
    w.sleep(44_000)
    w.pulse(1, "a", 2)
    w.sleep(1_000)
    assert code(w.enter(12, "b2", instance="i2")) is E.NONE


def test_a_member_whose_instance_is_anothers_is_fenced(w: World) -> None:
    static_pair(w)
    w.pulse(2, "b", -2, instance="i2")
    w.enter(12, "b2", instance="i2")
    w.pulse(2, "b", 2, instance="i2")
    assert code(w.told(2)) is E.FENCED_INSTANCE_ID
    w.pulse(2, "x", 2, instance="nobody")
    assert code(w.told(2)) is E.UNKNOWN_MEMBER_ID
    assert w.commit(1, "b", 2, instance="i2") is E.FENCED_INSTANCE_ID


def test_only_static_members_leave_for_a_while(w: World) -> None:
    w.enter(1, "a")
    w.pulse(1, "a", -2)
    assert code(w.told(1)) is E.INVALID_REQUEST


def test_a_member_that_is_away_comes_back_by_joining_only(w: World) -> None:
    static_pair(w)
    w.pulse(2, "b", -2, instance="i2")
    w.heard(2)
    w.pulse(2, "b", 2, instance="i2")
    assert code(w.told(2)) is E.FENCED_MEMBER_EPOCH
    assert code(w.enter(2, "b", instance="i2")) is E.NONE


def test_a_dynamic_member_takes_an_instance_that_is_free(w: World) -> None:
    static_pair(w)
    w.enter(3, "c")
    w.pulse(2, "b", -2, instance="i2")
    told = w.enter(13, "c", instance="i2")
    assert code(told) is E.NONE
    assert states(w).keys() == {"a", "c"}


def test_an_operator_removes_an_instance_by_its_name(w: World) -> None:
    static_pair(w)
    assert w.leave(99, "", "i2", permanently=True) is E.NONE
    assert code(w.told(2)) is E.UNKNOWN_MEMBER_ID
    assert held(w, 1) == (3, {"t": [0, 1, 2, 3]})
    assert w.leave(99, "", "i2", permanently=True) is E.UNKNOWN_MEMBER_ID


# --- another coordinator --------------------------------------------------------------------------------------


def test_after_a_move_members_come_back_with_a_heartbeat_and_nothing_has_happened(w: World) -> None:
    two(w)
    w.move()
    w.sleep(44_000)
    w.pulse(1, "a", 2, owned={"t": [0, 1]}, topics=["t"])
    w.pulse(2, "b", 2, owned={"t": [2, 3]}, topics=["t"])
    assert held(w, 1) == (2, {"t": [0, 1]})
    assert held(w, 2) == (2, {"t": [2, 3]})
    assert w.description().state is GroupState.STABLE


def test_after_a_move_who_does_not_come_back_is_out_with_the_session(w: World) -> None:
    two(w)
    w.move()
    w.sleep(44_999)
    w.pulse(1, "a", 2)
    w.heard(1)
    w.sleep(1)
    assert held(w, 1) == (3, {"t": [0, 1, 2, 3]})


def test_a_move_in_the_middle_of_a_revocation_goes_on_where_it_was(w: World) -> None:
    w.enter(1, "a")
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.enter(2, "b")
    w.move()
    w.pulse(2, "b", 2, owned={})
    assert held(w, 2) == (2, {})
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    assert held(w, 1) == (1, {"t": [0, 1]}), "it still has to give up two"
    w.pulse(1, "a", 1, owned={"t": [0, 1]})
    assert held(w, 2) == (2, {"t": [2, 3]})


def test_after_a_move_silence_about_partitions_is_no_release(w: World) -> None:
    w.enter(1, "a")
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.enter(2, "b")
    w.move()
    w.pulse(2, "b", 2)
    w.pulse(1, "a", 1)
    assert held(w, 2) == (2, {})
    assert states(w)["a"] == "UNREVOKED"


def test_topics_that_changed_during_a_move_are_noticed(w: World) -> None:
    two(w)
    w.topics = World({"t": 6}).topics
    w.move()
    w.pulse(1, "a", 2, owned={"t": [0, 1]})
    assert held(w, 1) == (3, {"t": [0, 1, 4]})


def test_a_pattern_survives_a_move(w: World) -> None:
    w.pulse(1, "a", 0, pattern="t.*", matched={"t"}, owned={})
    w.matches = {"t.*": frozenset({"t"})}
    w.move()
    assert w.shard.patterns() == {"t.*"}
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    assert held(w, 1) == (1, {"t": [0, 1, 2, 3]})


# --- racks ----------------------------------------------------------------------------------------------------


def racked(w: World, assignor: str) -> None:
    """Members a in rack x and b in rack y, settled; the replicas of t-0 and t-2 are in y, the others in x."""
    w.place({"t": ("y", "x", "y", "x")})
    w.enter(1, "a", rack="x", assignor=assignor)
    w.pulse(1, "a", 1, owned={"t": [0, 1, 2, 3]})
    w.enter(2, "b", rack="y", assignor=assignor)
    w.heard(1)
    w.pulse(1, "a", 1, owned={"t": [1, 3]})
    assert held(w, 1) == (2, None)
    assert held(w, 2) == (2, {"t": [0, 2]})
    w.pulse(2, "b", 2, owned={"t": [0, 2]})
    w.heard(2)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_read_what_has_a_replica_in_their_rack(w: World, assignor: str) -> None:
    racked(w, assignor)
    assert states(w) == {"a": "STABLE", "b": "STABLE"}


def test_replicas_that_move_to_other_racks_begin_a_new_epoch(w: World) -> None:
    racked(w, "uniform")
    w.place({"t": ("x", "x", "y", "y")})
    assert held(w, 1) == (2, {"t": [1]})
    assert held(w, 2) == (2, {"t": [2]})


def test_a_move_is_no_change_of_racks_and_later_ones_are_noticed(w: World) -> None:
    racked(w, "uniform")
    w.move()
    w.pulse(1, "a", 2, owned={"t": [1, 3]})
    assert held(w, 1) == (2, {"t": [1, 3]})
    w.pulse(2, "b", 2, owned={"t": [0, 2]})
    assert held(w, 2) == (2, {"t": [0, 2]})
    w.place({"t": ("y", "x", "y", "x")})
    assert w.description().generation == 2
    w.place({"t": ("x", "x", "y", "y")})
    assert w.description().generation == 3


def test_a_static_member_that_is_back_in_another_rack_begins_a_new_epoch(w: World) -> None:
    w.place({"t": ("y", "x", "y", "x")})
    w.enter(1, "a", rack="x", instance="i")
    w.pulse(1, "a", -2, instance="i")
    assert w.enter(2, "b", rack="x", instance="i").member_epoch == 1
    w.pulse(2, "b", -2, instance="i")
    assert w.enter(3, "c", rack="y", instance="i").member_epoch == 2


# --- the other protocol ---------------------------------------------------------------------------------------


def test_the_two_protocols_do_not_mix(w: World) -> None:
    w.enter(1, "a")
    w.join(2)
    assert code(w.last(2)) is E.INCONSISTENT_GROUP_PROTOCOL
    assert w.beat(2, "a", 1) is E.INCONSISTENT_GROUP_PROTOCOL
    w.sync(2, "a", 1)
    assert code(w.last(2)) is E.INCONSISTENT_GROUP_PROTOCOL
    v = World()
    v.stable(1)
    assert code(v.enter(2, "b")) is E.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_is_open_to_both_and_its_epochs_go_on(w: World) -> None:
    w.enter(1, "a")
    w.pulse(1, "a", -1)
    w.join(2)
    w.sleep(100)
    assert w.joined(2).generation == 3
    w.leave(2, "m-2")
    assert w.enter(3, "c").member_epoch == 5
    w.move()
    w.pulse(3, "c", 5)
    assert code(w.told(3)) is E.NONE
