"""What a leader knows of its followers: who counts, who joins, who leaves."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from services.broker.tests.kit.assignments import assigned

from headrace_broker.core.leadership import NEAR_MS, NOWHERE, REFUSED_PAUSE_MS, Leadership, Proposal
from headrace_common.core.ids import NodeId, Offset

LAG_MS = 30_000.0
SILENCE_MS = 30_000.0


def leadership(
    isr: Sequence[int] = (1, 2, 3),
    *,
    start: int = 0,
    replicas: Sequence[int] = (1, 2, 3),
    min_isr: int = 2,
    ms: float = 0,
) -> Leadership:
    return Leadership.begin(assigned(1, replicas, isr, min_isr=min_isr), Offset(start), ms)


def fetch(
    one: Leadership, broker: int, end: int, leader_end: int, ms: float = 0, *, epoch: int = 7, join: bool = True
) -> bool:
    return one.note_fetch(NodeId(broker), epoch, Offset(end), Offset(end), Offset(leader_end), ms, may_join=join)


def members(proposal: Proposal | None) -> list[int]:
    assert proposal is not None
    return [broker for broker, _ in proposal.isr]


# --- what is committed ------------------------------------------------------------------------------------------


def test_nothing_is_committed_before_everybody_in_sync_has_fetched_in_this_epoch() -> None:
    one = leadership()
    assert one.find_committed(Offset(9)) == NOWHERE
    fetch(one, 2, 9, 9)
    assert one.find_committed(Offset(9)) == NOWHERE
    fetch(one, 3, 4, 9)
    assert one.find_committed(Offset(9)) == 4
    assert one.find_committed(Offset(3)) == 3, "the leader counts as well"


def test_nothing_is_committed_by_too_few() -> None:
    one = leadership((1,))
    assert not one.enough
    assert one.find_committed(Offset(9)) == NOWHERE
    assert leadership((1,), min_isr=1).find_committed(Offset(9)) == 9


def test_who_is_near_is_waited_for_but_only_if_it_may_join() -> None:
    one = leadership((1, 2))
    fetch(one, 2, 9, 9)
    fetch(one, 3, 8, 9)
    assert one.find_committed(Offset(9)) == 8
    fetch(one, 3, 8, 9, join=False)
    assert one.find_committed(Offset(9)) == 9
    fetch(one, 3, 8, 9)
    one.propose_leaving(NEAR_MS + 1, LAG_MS, SILENCE_MS)
    assert one.find_committed(Offset(9)) == 9, "it has been behind for too long"


# --- joining ----------------------------------------------------------------------------------------------------


def test_a_follower_joins_with_the_epoch_it_fetched_with_and_counts_from_then_on() -> None:
    one = leadership((1, 2))
    fetch(one, 3, 9, 9, epoch=12)
    proposal = one.propose_joining(NodeId(3), Offset(9), 0)
    assert proposal == Proposal(1, 0, ((NodeId(1), None), (NodeId(2), None), (NodeId(3), 12)))
    assert one.maximal == {1, 2, 3}
    assert one.propose_joining(NodeId(3), Offset(9), 0) is None, "it was asked for already"


def test_a_follower_that_lacks_what_may_be_committed_does_not_join() -> None:
    one = leadership((1, 2), start=5)
    fetch(one, 3, 4, 9)
    assert one.propose_joining(NodeId(3), Offset(0), 0) is None, "below the start of the epoch"
    fetch(one, 3, 5, 9)
    assert one.propose_joining(NodeId(3), Offset(6), 0) is None, "below the high watermark"
    assert one.propose_joining(NodeId(3), Offset(5), 0) is not None


def test_what_an_older_process_held_does_not_count() -> None:
    one = leadership((1, 2))
    fetch(one, 3, 9, 9, epoch=12)
    assert not fetch(one, 3, 9, 9, epoch=11)
    one.take_peers({NodeId(3): 13})
    assert one.propose_joining(NodeId(3), Offset(0), 0) is None, "the image knows a newer process"
    fetch(one, 3, 0, 9, epoch=13)
    assert one.propose_joining(NodeId(3), Offset(5), 0) is None


def test_after_a_refusal_the_same_follower_waits_and_another_process_of_it_does_not() -> None:
    one = leadership((1, 2))
    fetch(one, 3, 9, 9)
    proposal = one.propose_joining(NodeId(3), Offset(9), 0)
    assert proposal is not None
    one.give_up(proposal, 10)
    assert (one.pending, one.maximal) == (None, {1, 2})
    assert one.propose_joining(NodeId(3), Offset(9), 10 + REFUSED_PAUSE_MS - 1) is None
    fetch(one, 3, 9, 9, epoch=8)
    assert one.propose_joining(NodeId(3), Offset(9), 11) is not None


def test_the_refusal_of_an_older_proposal_changes_nothing() -> None:
    one = leadership((1,), min_isr=1)
    fetch(one, 2, 0, 0)
    first = one.propose_joining(NodeId(2), Offset(0), 0)
    assert first is not None
    one.take_assignment(assigned(1, (1, 2, 3), (1, 2), partition_epoch=1), 0)
    fetch(one, 3, 0, 0)
    second = one.propose_joining(NodeId(3), Offset(0), 0)
    one.give_up(first, 1)
    assert one.pending == second
    assert one.maximal == {1, 2, 3}


# --- leaving ----------------------------------------------------------------------------------------------------


def test_a_silent_follower_leaves_after_the_lag_and_counts_until_that_is_confirmed() -> None:
    one = leadership()
    fetch(one, 2, 9, 9, ms=100)
    assert one.propose_leaving(LAG_MS, LAG_MS, SILENCE_MS) is None
    proposal = one.propose_leaving(LAG_MS + 1, LAG_MS, SILENCE_MS)
    assert members(proposal) == [1, 2]
    assert one.maximal == {1, 2, 3}
    assert one.find_committed(Offset(9)) == NOWHERE
    one.take_assignment(assigned(1, (1, 2, 3), (1, 2), partition_epoch=1), LAG_MS + 2)
    assert one.find_committed(Offset(9)) == 9


def test_a_follower_that_is_behind_and_silent_leaves_sooner_than_one_that_speaks() -> None:
    one = leadership()
    fetch(one, 2, 9, 9, ms=0)
    fetch(one, 3, 8, 9, ms=0)
    fetch(one, 3, 8, 9, ms=5_000)
    assert one.propose_leaving(9_000, LAG_MS, 8_000) is None, "it has spoken since"
    assert members(one.propose_leaving(13_001, LAG_MS, 8_000)) == [1, 2]


def test_a_follower_that_keeps_up_with_a_moving_leader_stays() -> None:
    one = leadership()
    for step in range(100):
        now = step * 1_000.0
        one.note_grown(now)
        fetch(one, 2, step * 10, step * 10 + 10, now)
        fetch(one, 3, step * 10, step * 10 + 10, now)
        assert one.propose_leaving(now, LAG_MS, SILENCE_MS) is None, "within a second it reached where the leader was"


def test_a_follower_that_crawls_leaves() -> None:
    one = leadership()
    left = None
    for step in range(100):
        now = step * 1_000.0
        one.note_grown(now)
        fetch(one, 2, step * 10, step * 10, now)
        fetch(one, 3, step, step * 10 + 1, now)
        left = left or one.propose_leaving(now, LAG_MS, SILENCE_MS)
    assert members(left) == [1, 2]


# --- the image --------------------------------------------------------------------------------------------------


def test_a_replica_that_is_taken_away_is_forgotten_and_a_new_one_begins_with_nothing() -> None:
    one = leadership()
    for broker in (2, 3):
        fetch(one, broker, 9, 9)
    one.take_assignment(assigned(1, (1, 2, 4), (1, 2), partition_epoch=1), 5)
    assert list(one.followers) == [2, 4]
    assert one.find_committed(Offset(9)) == 9
    one.take_assignment(assigned(1, (1, 2, 3), (1, 2), partition_epoch=2), 6)
    assert one.followers[NodeId(3)].written_end == NOWHERE


def test_what_was_proposed_is_decided_by_a_higher_partition_epoch_only() -> None:
    one = leadership((1, 2))
    fetch(one, 3, 9, 9)
    proposal = one.propose_joining(NodeId(3), Offset(9), 0)
    one.take_assignment(assigned(1, (1, 2, 3), (1, 2)), 0)
    assert one.pending == proposal
    one.take_assignment(assigned(1, (1, 2, 3), (1, 2), partition_epoch=1), 0)
    assert (one.pending, one.maximal) == (None, {1, 2})


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.sampled_from([2, 3, 4]), st.integers(0, 12), st.integers(6, 9), st.booleans()),
        st.tuples(st.just("grow"), st.integers(1, 4)),
        st.tuples(st.just("check")),
        st.tuples(st.just("accept")),
        st.tuples(st.just("refuse")),
        st.tuples(st.just("fence"), st.sampled_from([2, 3, 4])),
    ),
    max_size=60,
)


@given(_EVENTS)
def test_whatever_happens_the_maximal_isr_covers_what_the_controller_believes(events: list[tuple[object, ...]]) -> None:
    """The controller's ISR is a model here; a proposal may be accepted long before the leader hears of it."""
    replicas = (1, 2, 3, 4)
    believed: tuple[int, ...] = (1, 2, 3)
    partition_epoch, end, now = 0, 0, 0.0
    one = leadership(believed, replicas=replicas)
    ends = dict.fromkeys((2, 3, 4), 0)
    for event in events:
        now += 20_000.0
        kind = event[0]
        if kind == "grow":
            assert isinstance(event[1], int)
            end += event[1]
            one.note_grown(now)
        elif kind == "fetch":
            _, broker, behind, epoch, join = event
            assert isinstance(broker, int)
            assert isinstance(behind, int)
            assert isinstance(epoch, int)
            ends[broker] = max(0, end - behind)
            if fetch(one, broker, ends[broker], end, now, epoch=epoch, join=bool(join)):
                one.propose_joining(NodeId(broker), Offset(0), now)
        elif kind == "check":
            one.propose_leaving(now, LAG_MS, SILENCE_MS)
        elif kind == "accept" and one.pending is not None and one.pending.partition_epoch == partition_epoch:
            believed = tuple(broker for broker, _ in one.pending.isr)
            partition_epoch += 1
            assert set(believed) <= one.maximal, "before the leader has heard of it"
            one.take_assignment(assigned(1, replicas, believed, partition_epoch=partition_epoch), now)
        elif kind == "refuse" and one.pending is not None and one.pending.partition_epoch == partition_epoch:
            one.give_up(one.pending, now)
        elif kind == "fence" and len(believed) > 1:
            believed = tuple(broker for broker in believed if broker != event[1])
            partition_epoch += 1
        assert set(believed) <= one.maximal
        assert one.maximal <= set(replicas)
        counted = [end, *(one.followers[NodeId(b)].written_end for b in believed if b != 1)]
        if one.enough:
            assert one.find_committed(Offset(end)) <= min(counted), "everybody in the controller's ISR holds it"
