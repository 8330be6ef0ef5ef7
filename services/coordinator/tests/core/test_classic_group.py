"""The classic protocol as dialogues: joins, leaders, syncs, static members, fencing, time. Names are Kafka's rules."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import ErrorCode
from headrace_coordinator.core.effects import ClassicStanding, JoinAnswer, SyncAnswer
from headrace_coordinator.core.events import Woken
from headrace_coordinator.core.values import GroupState

from .world import G, World, code, sub

E = ErrorCode


@pytest.fixture
def w() -> World:
    return World()


def state(w: World) -> GroupState:
    return w.description().state


# --- joining --------------------------------------------------------------------------------------------------


def test_an_empty_group_gathers_members_for_the_initial_delay_which_newcomers_renew(w: World) -> None:
    w.join(1)
    w.sleep(90)
    w.join(2)
    w.sleep(90)
    assert not w.inbox, "the second member has renewed the delay"
    w.sleep(10)
    first, second = w.joined(1), w.joined(2)
    assert first.generation == second.generation == 1
    assert first.leader == first.member_id == second.leader
    assert [m.member_id for m in first.members] == [first.member_id, second.member_id]
    assert second.members == ()
    assert first.members[1].subscription == sub("t")


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    w = World(group_initial_rebalance_delay_ms=3_000)
    for stream in range(1, 6):
        w.join(stream, rebalance_ms=5_000)
        w.sleep(1_000)
    assert w.joined(1).generation == 1
    assert isinstance(w.heard(5)[0], JoinAnswer)


def test_the_leader_hands_out_assignments_and_who_synced_before_waits_for_it(w: World) -> None:
    w.join(1)
    w.join(2)
    w.sleep(100)
    leader, other = w.joined(1).member_id, w.joined(2).member_id
    w.sync(2, other, 1)
    assert not w.inbox
    assert state(w) is GroupState.COMPLETING_REBALANCE
    w.sync(1, leader, 1, {leader: {"t": [0]}, other: {"t": [1, 2]}})
    assert w.synced(2) == {"t": [1, 2]}
    assert w.synced(1) == {"t": [0]}
    assert state(w) is GroupState.STABLE


def test_a_member_that_the_leader_forgets_gets_nothing(w: World) -> None:
    w.join(1)
    w.join(2)
    w.sleep(100)
    leader, other = w.joined(1).member_id, w.joined(2).member_id
    w.sync(1, leader, 1, {leader: {"t": [0, 1, 2, 3]}})
    w.sync(2, other, 1)
    assert w.synced(2) == {}


def test_eager_join_of_a_third_member_asks_all_others_to_join_again(w: World) -> None:
    a, b = w.stable(1, 2)
    w.join(3)
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS, "pushed at once"
    assert w.standing(2) is E.REBALANCE_IN_PROGRESS
    assert w.beat(1, a, 1) is E.REBALANCE_IN_PROGRESS
    w.join(1, a)
    assert w.beat(1, a, 1) is E.NONE, "it waits for the others"
    assert not w.inbox
    w.join(2, b)
    answers = [w.joined(s) for s in (1, 2, 3)]
    assert {(x.generation, x.leader) for x in answers} == {(2, a)}
    assert len(answers[0].members) == 3


def test_cooperative_members_keep_what_they_hold_and_join_a_second_time_to_move_it(w: World) -> None:
    (a,) = w.stable(1, protocol="cooperative-sticky")
    w.join(2, protocols=["cooperative-sticky"])
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS
    held = sub("t", owned={"t": [0, 1, 2, 3]}, generation=1)
    w.join(1, a, protocols=["cooperative-sticky"], subscription=held)
    first = w.joined(1)
    b = w.joined(2).member_id
    assert first.members[0].subscription == held, "the leader learns what everybody holds"
    w.sync(2, b, 2)
    w.sync(1, a, 2, {a: {"t": [0, 1]}, b: {}})
    assert (w.synced(1), w.synced(2)) == ({"t": [0, 1]}, {})
    w.join(1, a, protocols=["cooperative-sticky"], subscription=sub("t", owned={"t": [0, 1]}, generation=2))
    assert w.standing(2) is E.REBALANCE_IN_PROGRESS, "what it holds has changed: everybody joins again"
    w.join(2, b, protocols=["cooperative-sticky"], subscription=sub("t", generation=2))
    assert w.joined(1).generation == w.joined(2).generation == 3


def test_a_member_that_joins_again_unchanged_gets_its_answer_again(w: World) -> None:
    a, b = w.stable(1, 2)
    w.join(2, b)
    again = w.joined(2)
    assert (again.generation, again.leader) == (1, a)
    assert not w.inbox


def test_a_leader_that_joins_again_asks_for_a_new_assignment(w: World) -> None:
    a, _ = w.stable(1, 2)
    w.join(1, a)
    assert w.standing(2) is E.REBALANCE_IN_PROGRESS


def test_a_member_whose_subscription_changed_makes_the_group_rebalance(w: World) -> None:
    _, b = w.stable(1, 2)
    w.join(2, b, subscription=sub("t", "u"))
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS


def test_a_join_again_before_the_sync_is_answered_again_or_begins_anew(w: World) -> None:
    w.join(1)
    w.join(2)
    w.sleep(100)
    a, b = w.joined(1).member_id, w.joined(2).member_id
    w.join(2, b)
    assert w.joined(2).generation == 1
    w.sync(2, b, 1)
    w.join(1, a, subscription=sub("u"))
    message = w.last(2)
    assert isinstance(message, SyncAnswer)
    assert code(message) is E.REBALANCE_IN_PROGRESS, "its sync will not be answered any more"


def test_the_assignor_is_one_that_all_know_and_most_prefer(w: World) -> None:
    w.join(1, protocols=["sticky", "range", "own"])
    w.join(2, protocols=["range", "sticky"])
    w.join(3, protocols=["range", "roundrobin", "sticky"])
    w.sleep(100)
    assert w.joined(1).protocol == "range"


def test_who_shares_no_assignor_is_refused(w: World) -> None:
    w.stable(1)
    w.join(2, protocols=["sticky"])
    answer = w.last(2)
    assert code(answer) is E.INCONSISTENT_GROUP_PROTOCOL
    w.join(3, protocols=[])
    assert code(w.last(3)) is E.INCONSISTENT_GROUP_PROTOCOL
    assert state(w) is GroupState.STABLE


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1])
def test_session_timeouts_out_of_bounds_are_refused(w: World, session_ms: int) -> None:
    w.join(1, session_ms=session_ms)
    assert code(w.last(1)) is E.INVALID_SESSION_TIMEOUT
    assert w.shard.list_groups() == [], "and leave nothing behind"


def test_unknown_member_ids_are_refused(w: World) -> None:
    w.stable(1)
    w.join(2, "ghost")
    assert code(w.last(2)) is E.UNKNOWN_MEMBER_ID
    assert w.beat(2, "ghost", 1) is E.UNKNOWN_MEMBER_ID
    w.sync(2, "ghost", 1)
    assert code(w.last(2)) is E.UNKNOWN_MEMBER_ID
    assert w.leave(2, "ghost") is E.UNKNOWN_MEMBER_ID


def test_without_a_group_there_are_no_members(w: World) -> None:
    assert w.beat(1, "m", 1) is E.UNKNOWN_MEMBER_ID
    w.join(1, "m")
    assert code(w.last(1)) is E.UNKNOWN_MEMBER_ID
    w.drop(1)
    assert w.shard.list_groups() == []
    assert w.log == {}


def test_a_full_group_takes_nobody() -> None:
    w = World(group_max_size=1)
    (a,) = w.stable(1)
    w.join(2)
    assert code(w.last(2)) is E.GROUP_MAX_SIZE_REACHED
    w.join(1, a)
    assert w.joined(1).generation == 2, "who is in it may join again"


def test_generations_that_are_not_the_present_one_are_refused(w: World) -> None:
    (a,) = w.stable(1)
    assert w.beat(1, a, 2) is E.ILLEGAL_GENERATION
    w.sync(1, a, 0)
    assert code(w.last(1)) is E.ILLEGAL_GENERATION


def test_a_sync_in_a_stable_group_repeats_the_assignment(w: World) -> None:
    _, b = w.stable(1, 2)
    w.sync(2, b, 1)
    assert w.synced(2) == {"t": [1]}


def test_a_sync_while_members_are_gathered_says_so(w: World) -> None:
    a, _ = w.stable(1, 2)
    w.join(3)
    w.heard(1)
    w.sync(1, a, 1)
    assert code(w.last(1)) is E.REBALANCE_IN_PROGRESS


# --- time -----------------------------------------------------------------------------------------------------


def test_silence_on_a_living_stream_ends_the_membership_with_the_session(w: World) -> None:
    a, b = w.stable(1, 2)
    for _ in range(3):
        w.sleep(3_000)
        assert w.beat(1, a, 1) is E.NONE
    assert not w.inbox
    w.sleep(1_000)
    assert w.standing(2) is E.UNKNOWN_MEMBER_ID
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS
    assert w.beat(2, b, 1) is E.UNKNOWN_MEMBER_ID
    w.join(1, a)
    assert [m.member_id for m in w.joined(1).members] == [a]


def test_who_does_not_join_again_in_time_is_out(w: World) -> None:
    a, b = w.stable(1, 2)
    w.join(3, rebalance_ms=5_000)
    w.heard(1)
    w.heard(2)
    w.join(1, a)
    for _ in range(29):
        w.sleep(2_000)
        w.beat(2, b, 1)
        assert not w.heard(1)
    w.heard(2)
    w.sleep(2_000)
    assert w.standing(2) is E.UNKNOWN_MEMBER_ID
    assert {m.member_id for m in w.joined(1).members} == {a, "m-3"}
    assert w.joined(3).generation == 2


def test_sessions_that_end_together_with_the_rebalance_are_one_change(w: World) -> None:
    w.stable(1, 2)
    w.join(3, rebalance_ms=5_000)
    w.now_ms += 100_000  # nobody was woken meanwhile
    w.tell(Woken(w.at))
    assert w.joined(3).generation == 2
    assert [m.member_id for m in w.description().members] == ["m-3"]


def test_who_does_not_sync_in_time_is_out(w: World) -> None:
    w.join(1, rebalance_ms=8_000)
    w.join(2, rebalance_ms=8_000)
    w.sleep(100)
    a, b = w.joined(1).member_id, w.joined(2).member_id
    w.sync(2, b, 1)
    w.sleep(7_999)
    assert w.beat(1, a, 1) is E.NONE
    w.sleep(1)
    assert w.standing(1) is E.UNKNOWN_MEMBER_ID, "the leader was it"
    answer = w.last(2)
    assert isinstance(answer, SyncAnswer)
    assert code(answer) is E.REBALANCE_IN_PROGRESS


def test_waiting_for_the_others_is_no_silence(w: World) -> None:
    a, b = w.stable(1, 2)
    w.join(1, a)
    w.heard(2)
    for _ in range(10):
        w.sleep(5_000)
        w.beat(2, b, 1)
    w.heard(2)
    w.join(2, b)
    assert w.joined(1).generation == 2


def test_a_broken_stream_gives_a_dynamic_member_the_grace_to_come_back(w: World) -> None:
    a, b = w.stable(1, 2)
    w.drop(2)
    w.sleep(2_900)
    assert w.beat(12, b, 1) is E.NONE
    w.sleep(2_000)
    assert not w.inbox, "nothing happened"
    w.drop(12)
    w.sleep(2_999)
    assert not w.inbox
    w.sleep(1)
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS
    assert w.beat(13, b, 1) is E.UNKNOWN_MEMBER_ID
    del a


def test_a_newcomer_whose_stream_breaks_before_it_knows_its_id_is_forgotten_at_once(w: World) -> None:
    a, _ = w.stable(1, 2)
    w.join(3)
    w.drop(3)
    w.heard(1)
    w.heard(2)
    w.join(1, a)
    w.join(2, "m-2")
    assert len(w.joined(1).members) == 2


def test_an_older_stream_of_a_member_is_closed_and_changes_nothing(w: World) -> None:
    a, b = w.stable(1, 2)
    assert w.beat(7, b, 1) is E.NONE
    assert w.closed == [2]
    w.drop(2)
    w.sleep(5_000)
    assert not w.inbox, "the end of the old stream means nothing"
    w.join(2, b, subscription=sub("other"))
    assert w.closed == [2, 2]
    assert not w.inbox
    del a


# --- leaving --------------------------------------------------------------------------------------------------


def test_who_leaves_is_out_at_once_and_the_rest_rebalances(w: World) -> None:
    a, b = w.stable(1, 2)
    assert w.leave(2, b) is E.NONE
    assert w.closed == [2]
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS
    w.join(1, a)
    assert w.joined(1).generation == 2


def test_who_is_put_out_over_another_stream_while_it_waits_is_answered(w: World) -> None:
    w.join(1)
    [waiting] = [member.member_id for member in w.description().members]
    assert w.leave(99, waiting) is E.NONE
    assert code(w.last(1)) is E.UNKNOWN_MEMBER_ID, "who joins sends no heartbeats that would tell it"


def test_when_the_last_one_leaves_the_group_is_empty_in_a_new_generation(w: World) -> None:
    (a,) = w.stable(1)
    w.leave(1, a)
    d = w.description()
    assert (d.state, d.generation, d.members) == (GroupState.EMPTY, 2, ())
    w.join(5)
    w.sleep(100)
    assert w.joined(5).generation == 3


def test_a_group_that_never_came_to_be_leaves_nothing(w: World) -> None:
    w.join(1)
    w.drop(1)
    assert w.shard.list_groups() == []
    assert w.log == {}
    assert w.shard.next_wake_ms() is not None, "only the look for expiry"
    w.sleep(100)


# --- static members -------------------------------------------------------------------------------------------


def test_a_static_member_that_is_started_again_keeps_its_assignment_without_a_rebalance(w: World) -> None:
    a, b = w.stable(1, 2, instances=True)
    w.drop(2)
    w.sleep(5_000)
    w.join(12, instance="i2")
    answer = w.joined(12)
    assert answer.member_id not in {a, b}
    assert (answer.generation, answer.leader, answer.skip_assignment) == (1, a, False)
    w.sync(12, answer.member_id, 1, instance="i2")
    assert w.synced(12) == {"t": [1]}
    assert not w.inbox


def test_a_static_leader_that_is_started_again_skips_the_assignment(w: World) -> None:
    a, b = w.stable(1, 2, instances=True)
    w.join(11, instance="i1")
    answer = w.joined(11)
    assert answer.leader == answer.member_id != a
    assert answer.skip_assignment
    assert {m.member_id for m in answer.members} == {answer.member_id, b}
    w.sync(11, answer.member_id, 1)
    assert w.synced(11) == {"t": [0]}


def test_a_static_member_that_was_giving_up_partitions_is_replaced_by_a_rebalance(w: World) -> None:
    """Cooperative, first step: what it was to give up is nobody's, and only it would have asked for the second."""
    w.join(1, instance="i1", subscription=sub("t", owned={"t": [0, 1]}))
    w.join(2, instance="i2")
    w.sleep(3_000)
    a, b = w.joined(1).member_id, w.joined(2).member_id
    w.sync(2, b, 1, instance="i2")
    w.sync(1, a, 1, {a: {"t": [0]}, b: {}}, instance="i1")
    assert (w.synced(1), w.synced(2)) == ({"t": [0]}, {})
    w.join(11, instance="i1")
    w.heard(11)
    assert w.standing(2) is E.REBALANCE_IN_PROGRESS
    w.join(2, b, instance="i2")
    assert w.joined(2).generation == w.joined(11).generation == 2


def test_the_replaced_static_member_is_fenced(w: World) -> None:
    _, b = w.stable(1, 2, instances=True)
    w.join(12, instance="i2")
    w.heard(12)
    assert w.standing(2) is E.FENCED_INSTANCE_ID
    assert w.closed == [2]
    assert w.beat(22, b, 1, "i2") is E.FENCED_INSTANCE_ID
    w.join(22, b, instance="i2")
    assert code(w.last(22)) is E.FENCED_INSTANCE_ID
    w.sync(22, b, 1, instance="i2")
    assert code(w.last(22)) is E.FENCED_INSTANCE_ID
    assert w.commit(5, b, 1, instance="i2") is E.FENCED_INSTANCE_ID
    assert w.committed() is None


def test_a_static_member_with_another_subscription_makes_the_group_rebalance(w: World) -> None:
    w.stable(1, 2, instances=True)
    w.join(12, instance="i2", subscription=sub("t", "u"))
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS
    assert not w.heard(12)


def test_a_static_member_replaced_during_a_rebalance_is_gathered_like_the_others(w: World) -> None:
    a, b = w.stable(1, 2, instances=True)
    w.join(3)
    w.heard(1)
    w.heard(2)
    w.join(2, b, instance="i2")
    w.join(12, instance="i2")
    fenced = w.last(2)
    assert isinstance(fenced, JoinAnswer)
    assert code(fenced) is E.FENCED_INSTANCE_ID, "its join is answered with that"
    w.join(1, a, instance="i1")
    assert len(w.joined(1).members) == 3
    assert w.joined(12).generation == 2


def test_a_static_member_that_leaves_keeps_its_place_for_the_session(w: World) -> None:
    _, b = w.stable(1, 2, instances=True)
    assert w.leave(2, b, "i2") is E.NONE
    for _ in range(3):
        w.sleep(3_300)
        assert w.beat(1, "i1-1", 1) is E.NONE
    w.sleep(100)
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS


def test_a_static_member_that_leaves_for_good_is_out_at_once(w: World) -> None:
    _, b = w.stable(1, 2, instances=True)
    assert w.leave(2, b, "i2", permanently=True) is E.NONE
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS


def test_an_operator_removes_an_instance_by_its_name(w: World) -> None:
    w.stable(1, 2, instances=True)
    assert w.leave(99, "", "i2", permanently=True) is E.NONE
    assert w.standing(2) is E.UNKNOWN_MEMBER_ID
    assert w.leave(99, "", "i2", permanently=True) is E.UNKNOWN_MEMBER_ID


def test_static_members_that_do_not_join_again_stay_and_the_leader_assigns_to_them(w: World) -> None:
    a, b = w.stable(1, 2, instances=True, session_ms=100_000)
    w.join(1, a, instance="i1")
    assert w.standing(2) is E.REBALANCE_IN_PROGRESS
    w.sleep(60_000)
    assert {m.member_id for m in w.joined(1).members} == {a, b}


def test_if_no_static_member_joins_again_the_group_waits_once_more(w: World) -> None:
    a, b = w.stable(1, 2, instances=True, session_ms=200_000)
    w.join(3, session_ms=10_000)
    w.drop(3)
    w.heard(1)
    w.heard(2)
    w.sleep(60_000)
    assert state(w) is GroupState.PREPARING_REBALANCE
    w.join(1, a, instance="i1")
    w.join(2, b, instance="i2")
    assert w.joined(1).generation == 2


# --- another coordinator --------------------------------------------------------------------------------------


def test_after_a_move_members_come_back_with_a_heartbeat_and_nothing_has_happened(w: World) -> None:
    a, b = w.stable(1, 2)
    w.move()
    w.sleep(9_000)
    assert w.beat(1, a, 1) is E.NONE
    assert w.beat(2, b, 1) is E.NONE
    w.sync(2, b, 1)
    assert w.synced(2) == {"t": [1]}
    assert w.description().protocol is not None


def test_after_a_move_every_member_has_a_full_session_and_not_more(w: World) -> None:
    a, _ = w.stable(1, 2)
    w.sleep(8_000)
    w.move()
    w.sleep(9_999)
    assert w.beat(1, a, 1) is E.NONE
    w.sleep(1)
    assert w.standing(1) is E.REBALANCE_IN_PROGRESS, "the other did not come back"


def test_who_left_before_a_move_is_not_waited_for_after_it(w: World) -> None:
    a, b = w.stable(1, 2)
    w.leave(2, b)
    w.move()
    assert w.beat(1, a, 1) is E.REBALANCE_IN_PROGRESS
    w.join(1, a)
    answer = w.joined(1)
    assert (answer.generation, len(answer.members)) == (2, 1)


def test_a_move_between_join_and_sync_loses_nothing(w: World) -> None:
    w.join(1)
    w.join(2)
    w.sleep(100)
    a, b = w.joined(1).member_id, w.joined(2).member_id
    w.move()
    w.sync(2, b, 1)
    w.sync(1, a, 1, {a: {"t": [0]}, b: {"t": [1]}})
    assert (w.synced(1), w.synced(2)) == ({"t": [0]}, {"t": [1]})


def test_a_newcomer_is_not_remembered_over_a_move_before_it_knows_its_id(w: World) -> None:
    a, _ = w.stable(1, 2)
    w.join(3)
    w.leave(2, "m-2")
    w.move()
    w.join(1, a)
    assert [m.member_id for m in w.joined(1).members] == [a]


# --- news -----------------------------------------------------------------------------------------------------


def test_topics_that_change_are_the_business_of_the_members(w: World) -> None:
    a, _ = w.stable(1, 2)
    w.change_topics({"t": 8})
    assert not w.inbox
    assert w.beat(1, a, 1) is E.NONE


def test_one_description_of_all(w: World) -> None:
    a, b = w.stable(1, 2)
    d = w.description()
    assert (d.group_id, d.generation, d.assignor, d.assignment_epoch) == (G, 1, "range", -1)
    assert [(m.member_id, m.client_id, m.client_address, m.topics) for m in d.members] == [
        (a, "client-1", "h:1", ("t",)),
        (b, "client-2", "h:1", ("t",)),
    ]
    assert [m.assigned[0].partitions for m in d.members] == [(0,), (1,)]
    (line,) = w.shard.list_groups()
    assert (line.group_id, line.state, line.members) == (G, GroupState.STABLE, 2)
    w.join(1, a)
    assert [m.state for m in w.description().members] == ["JOIN", ""]
    assert isinstance(w.last(2), ClassicStanding)
