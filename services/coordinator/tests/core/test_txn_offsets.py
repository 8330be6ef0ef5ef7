"""Positions in transactions, as dialogues: enrolment, pending until the end, fencing, what a later position does."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidProducerEpoch,
)
from headrace_coordinator.core import shard_offsets
from headrace_coordinator.core.effects import (
    NO_GROUP,
    Answer,
    EnrolShard,
    MarkerOutcomes,
    OffsetOutcomes,
    OffsetsFound,
    Persist,
)
from headrace_coordinator.core.events import (
    Marker,
    MarkersAsked,
    OffsetsAsked,
    OffsetToCommit,
    ShardEnrolled,
    TxnCommitAsked,
    Woken,
)

from .world import G, World, pending_keys

E = ErrorCode
DAY = 24 * 3_600_000


@pytest.fixture
def w() -> World:
    return World()


def pending(w: World) -> list[tuple[str, int, int]]:
    """Group, producer id and partition of what the log says to be pending."""
    return sorted((key.group_id, key.producer_id, key.partition.partition) for key in pending_keys(w.log))


# --- enrolment ------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_the_transaction_knows_of_the_shard(w: World) -> None:
    ref = w.txn_commit(5)
    assert w.enrolments == [EnrolShard(1, "tid", 7, 0)]
    assert w.outcome(ref) is None
    assert w.log == {}
    assert w.stable_offset() is None
    w.enrol()
    assert w.outcome(ref) is E.NONE
    assert pending(w) == [(G, 7, 0)]
    assert w.stable_offset() is E.UNSTABLE_OFFSET_COMMIT
    assert w.committed() is None


def test_one_transaction_asks_once_and_what_comes_meanwhile_waits_in_order(w: World) -> None:
    refs = [w.txn_commit(5), w.txn_commit(6), w.txn_commit(7, partition=1), w.txn_commit(8, group="h")]
    assert len(w.enrolments) == 1
    w.enrol()
    assert [w.outcome(ref) for ref in refs] == [E.NONE] * 4
    w.pend(9, partition=2)  # without a question: it is enrolled
    assert w.enrolments == []
    assert w.mark(commit=True) is E.NONE
    assert [w.committed(partition=n) for n in range(3)] == [6, 7, 9]
    assert w.committed(group="h") == 8
    assert pending(w) == []


def test_transactions_ask_each_for_themselves(w: World) -> None:
    a, b, c = w.txn_commit(5), w.txn_commit(6, producer=8, tid="other"), w.txn_commit(7, epoch=1)
    assert [(one.producer_id, one.producer_epoch) for one in w.enrolments] == [(7, 0), (8, 0), (7, 1)]
    w.enrolments.reverse()
    w.enrol(InvalidProducerEpoch("too new"))
    w.enrol()
    w.enrol()
    assert [w.outcome(ref) for ref in (a, b, c)] == [E.NONE, E.NONE, E.INVALID_PRODUCER_EPOCH]


@pytest.mark.parametrize("error", [InvalidProducerEpoch("ended"), CoordinatorNotAvailable("away")])
def test_what_the_coordinator_of_the_transaction_says_is_said_of_every_entry(w: World, error: Exception) -> None:
    assert isinstance(error, InvalidProducerEpoch | CoordinatorNotAvailable)
    entries = (OffsetToCommit("t", 0, 5), OffsetToCommit("t", 1, 6))
    ref = w.ref()
    w.tell(TxnCommitAsked(G, ref, w.at, "", None, -1, entries, "tid", 7, 0))
    w.enrol(error)
    result = w.answers[ref]
    assert isinstance(result, OffsetOutcomes)
    assert [(o.partition, o.error) for o in result.outcomes] == [(0, error), (1, error)]
    assert w.log == {}
    assert w.shard.list_groups() == []
    w.txn_commit(5)
    assert len(w.enrolments) == 1  # it asks again


def test_an_end_that_comes_before_the_answer_takes_the_enrolment_away(w: World) -> None:
    ref = w.txn_commit(5)
    assert w.mark(commit=True) is E.NONE
    assert w.outcome(ref) is E.INVALID_PRODUCER_EPOCH
    w.enrol()  # the answer was on its way
    assert w.log == {}
    assert w.shard.list_groups() == []
    assert w.mark(commit=True) is E.NONE


def test_an_end_takes_enrolments_of_its_own_producer_and_of_earlier_epochs_only(w: World) -> None:
    other, next_ = w.txn_commit(5, producer=8), w.txn_commit(6, epoch=1)
    assert w.mark(commit=False, epoch=1) is E.NONE
    w.enrol()
    w.enrol()
    assert (w.outcome(other), w.outcome(next_)) == (E.NONE, E.NONE)


def test_an_answer_without_a_question_is_nothing(w: World) -> None:
    w.tell(ShardEnrolled(99, w.at, None))
    w.pend(5)
    w.tell(ShardEnrolled(1, w.at, None))
    assert pending(w) == [(G, 7, 0)]


def test_what_waits_for_enrolments_is_bounded(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_offsets, "WAITING_MAX", 3)
    refs = [w.txn_commit(5, producer=n) for n in range(4)]
    assert [w.outcome(ref) for ref in refs] == [None, None, None, E.OVERLOADED]
    w.enrol()
    assert w.outcome(w.txn_commit(5, producer=9)) is None


def test_entries_that_cannot_be_taken_enrol_nothing(w: World) -> None:
    assert w.outcome(w.txn_commit(5, topic="ghost")) is E.UNKNOWN_TOPIC_OR_PARTITION
    assert w.outcome(w.txn_commit(5, metadata="x" * 5_000)) is E.OFFSET_METADATA_TOO_LARGE
    assert w.outcome(w.txn_commit(-5)) is E.INVALID_REQUEST
    assert (w.enrolments, w.log, w.shard.list_groups()) == ([], {}, [])


def test_each_entry_stands_for_itself(w: World) -> None:
    ref = w.ref()
    entries = (OffsetToCommit("t", 0, 5), OffsetToCommit("t", 9, 5), OffsetToCommit("t", 1, 6))
    w.tell(TxnCommitAsked(G, ref, w.at, "", None, -1, entries, "tid", 7, 0))
    w.enrol()
    result = w.answers[ref]
    assert isinstance(result, OffsetOutcomes)
    assert [o.error.code if o.error else E.NONE for o in result.outcomes] == [
        E.NONE,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.NONE,
    ]
    assert pending(w) == [(G, 7, 0), (G, 7, 1)]


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_committed_transaction_sets_positions_with_all_that_belongs_to_them(w: World) -> None:
    w.commit(1)
    w.pend(5, metadata="note")
    assert w.committed() == 1
    w.now_ms += 60_000
    assert w.mark(commit=True) is E.NONE
    result = w.ask(OffsetsAsked(G, w.ref(), w.at, require_stable=True))
    assert isinstance(result, OffsetsFound)
    (found,) = result.offsets
    assert found.committed is not None
    assert (found.committed.offset, found.committed.metadata, found.committed.leader_epoch) == (5, "note", 3)
    assert found.committed.committed_at_ms == w.at.wall_ms  # it expires so long after it was committed


def test_an_aborted_transaction_leaves_nothing(w: World) -> None:
    w.commit(1)
    w.pend(5)
    w.pend(6, partition=1)
    assert w.mark(commit=False) is E.NONE
    assert (w.stable_offset(), w.stable_offset(partition=1)) == (1, None)
    assert pending(w) == []
    w.pend(7, epoch=1, group="h")
    assert w.mark(commit=False, epoch=2) is E.NONE
    assert [one.group_id for one in w.shard.list_groups()] == [G]  # h came with the transaction and went with it


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_changes_nothing(w: World, commit: bool) -> None:
    w.pend(5)
    w.mark(commit=commit)
    w.commit(9)
    before, appends = dict(w.log), w.appends
    assert w.mark(commit=commit) is E.NONE
    assert w.mark(commit=not commit) is E.NONE
    assert (w.log, w.appends) == (before, appends)
    assert w.committed() == 9


def test_an_end_of_an_earlier_transaction_leaves_the_present_one_alone(w: World) -> None:
    w.pend(5, epoch=3)
    for epoch in (1, 2, 3):
        assert w.mark(commit=True, epoch=epoch) is E.INVALID_PRODUCER_EPOCH
    assert pending(w) == [(G, 7, 0)]
    assert w.mark(commit=True, epoch=9) is E.NONE
    assert w.committed() == 5


def test_one_end_decides_all_groups_of_the_shard_in_one_append(w: World) -> None:
    for group in ("a", "b", "c"):
        w.pend(5, group=group)
    w.pend(5, producer=8, tid="other", group="b", partition=1)
    effects = w.shard.handle(MarkersAsked("ref", w.at, (Marker(7, 1, True), Marker(8, 1, False), Marker(9, 1, True))))
    assert [e.group_id for e in effects if isinstance(e, Persist)] == ["a", "b", "c", "b"]
    assert effects[-1] == Answer(NO_GROUP, "ref", MarkerOutcomes((None, None, None)))


def test_a_commit_after_the_end_asks_the_coordinator_and_is_refused(w: World) -> None:
    w.pend(5)
    w.mark(commit=False)
    late = w.txn_commit(6)
    w.enrol(InvalidProducerEpoch("producer 7 is at epoch 1"))
    assert w.outcome(late) is E.INVALID_PRODUCER_EPOCH
    assert w.stable_offset() is None


def test_epochs_below_the_open_transactions_are_fenced_without_asking(w: World) -> None:
    w.pend(5, epoch=2)
    assert w.outcome(w.txn_commit(6, epoch=1)) is E.INVALID_PRODUCER_EPOCH
    assert w.enrolments == []


def test_a_producer_belongs_to_one_transactional_id(w: World) -> None:
    w.pend(5)
    assert w.outcome(w.txn_commit(6, tid="other")) is E.INVALID_PRODUCER_ID_MAPPING


def test_the_next_transaction_waits_for_its_predecessors_end(w: World) -> None:
    """Its coordinator does not answer before; if it did, the two would not be mixed."""
    w.pend(5)
    early = w.txn_commit(6, epoch=1)
    w.enrol()
    assert w.outcome(early) is E.CONCURRENT_TRANSACTIONS
    ready = w.txn_commit(7, epoch=1)
    w.mark(commit=True, epoch=1)
    w.enrol()
    assert w.outcome(ready) is E.NONE
    assert w.committed() == 5
    w.mark(commit=True, epoch=2)
    assert w.committed() == 7


# --- who may ----------------------------------------------------------------------------------------------------


def test_members_are_checked_and_producers_without_group_metadata_are_not(w: World) -> None:
    (a,) = w.stable(1)
    assert w.outcome(w.txn_commit(5, "ghost", 1)) is E.UNKNOWN_MEMBER_ID
    assert w.outcome(w.txn_commit(5, a, 2)) is E.ILLEGAL_GENERATION
    assert w.outcome(w.txn_commit(5, "", 1)) is E.UNKNOWN_MEMBER_ID
    assert w.outcome(w.txn_commit(5, a, 1, instance="nobody")) is E.UNKNOWN_MEMBER_ID
    assert w.enrolments == []
    w.pend(5, member_id=a, generation=1)
    w.pend(6, partition=1)
    w.mark(commit=True)
    assert (w.committed(), w.committed(partition=1)) == (5, 6)


def test_members_of_the_server_side_protocol_need_their_epoch(w: World) -> None:
    w.enter(1, "a")
    w.pend(5, member_id="a", generation=1)
    w.pend(6, partition=1)
    w.change_topics({"t": 6})
    assert w.outcome(w.txn_commit(7, "a", 1)) is E.STALE_MEMBER_EPOCH
    w.pend(7, member_id="a", generation=2)
    w.mark(commit=True)
    assert (w.committed(), w.committed(partition=1)) == (7, 6)


def test_a_group_that_nobody_knows_takes_no_members_commit(w: World) -> None:
    assert w.outcome(w.txn_commit(5, "m", 1)) is E.UNKNOWN_MEMBER_ID
    assert w.outcome(w.txn_commit(5, instance="i")) is E.UNKNOWN_MEMBER_ID


def test_a_member_that_is_out_when_the_enrolment_comes_is_refused(w: World) -> None:
    """Its successor may have read the position already, and found it stable."""
    (a,) = w.stable(1)
    ref = w.txn_commit(5, a, 1)
    w.leave(1, a)
    assert w.stable_offset() is None
    w.enrol()
    assert w.outcome(ref) is E.UNKNOWN_MEMBER_ID
    assert pending(w) == []


@pytest.mark.parametrize("commit", [True, False])
def test_what_a_member_that_is_put_out_has_pending_is_decided_by_its_transaction(w: World, commit: bool) -> None:
    epoch = w.enter(1, "a").member_epoch
    assert w.commit(3, "a", epoch) is E.NONE
    w.pend(7, member_id="a", generation=epoch)
    w.leave(1, "a", permanently=True)
    w.enter(2, "b")
    assert w.stable_offset() is E.UNSTABLE_OFFSET_COMMIT, "its successor waits for that"
    assert w.outcome(w.txn_commit(9, "a", epoch)) is E.UNKNOWN_MEMBER_ID
    w.move()
    assert w.stable_offset() is E.UNSTABLE_OFFSET_COMMIT
    assert w.mark(commit=commit) is E.NONE
    assert w.stable_offset() == (7 if commit else 3)


def test_a_transactional_commit_is_a_sign_of_life_of_a_classic_member(w: World) -> None:
    (a,) = w.stable(1)
    for n in range(4):
        w.sleep(9_000)
        w.pend(n, member_id=a, generation=1)


def test_a_member_between_generations_may_bring_what_it_read(w: World) -> None:
    """As in Kafka: the others read nothing before they have their assignment."""
    a, b = w.stable(1, 2)
    w.join(3)
    w.join(1, a)
    w.join(2, b)
    assert w.commit(6, a, 2) is E.REBALANCE_IN_PROGRESS
    w.pend(6, member_id=a, generation=2)


# --- other positions of the partition -------------------------------------------------------------------------


def test_a_commit_outside_of_the_transaction_that_comes_later_wins(w: World) -> None:
    w.pend(5)
    w.pend(6, partition=1)
    assert w.commit(9) is E.NONE
    assert w.stable_offset() == 9  # nothing can change it any more
    w.mark(commit=True)
    assert (w.committed(), w.committed(partition=1)) == (9, 6)


def test_a_commit_outside_of_the_transaction_that_came_before_loses(w: World) -> None:
    w.commit(9)
    w.pend(5)
    w.mark(commit=True)
    assert w.committed() == 5


@pytest.mark.parametrize("first", [7, 8])
def test_of_two_transactions_the_position_that_came_later_wins_whichever_ends_first(w: World, first: int) -> None:
    w.pend(5)
    w.pend(6, producer=8, tid="other")
    w.move()
    w.mark(producer=first, commit=True)
    assert w.stable_offset() == (6 if first == 8 else E.UNSTABLE_OFFSET_COMMIT)
    w.mark(producer=15 - first, commit=True)
    assert w.stable_offset() == 6
    assert pending(w) == []


def test_a_later_position_that_is_aborted_takes_nothing_away(w: World) -> None:
    w.pend(5)
    w.pend(6, producer=8, tid="other")
    w.mark(producer=8, commit=False)
    w.mark(commit=True)
    assert w.stable_offset() == 5


def test_readers_that_do_not_ask_for_stable_positions_get_the_committed_ones(w: World) -> None:
    w.commit(1)
    w.pend(5)
    w.pend(6, partition=1)
    assert w.committed() == 1
    everything = w.ask(OffsetsAsked(G, w.ref(), w.at))
    stable = w.ask(OffsetsAsked(G, w.ref(), w.at, require_stable=True))
    assert isinstance(everything, OffsetsFound)
    assert isinstance(stable, OffsetsFound)
    assert [(one.partition, one.error) for one in everything.offsets] == [(0, None)]
    assert [(one.partition, one.error and one.error.code) for one in stable.offsets] == [
        (0, E.UNSTABLE_OFFSET_COMMIT),
        (1, E.UNSTABLE_OFFSET_COMMIT),
    ]
    error = stable.offsets[0].error
    assert error is not None
    assert str(error).startswith("t-0 has a position in an open transaction of 'tid'")
    assert w.stable_offset(partition=2) is None
    assert w.stable_offset(topic="ghost") is None


# --- moves, deletion, expiry ----------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_what_is_pending_survives_a_move(w: World, commit: bool) -> None:
    w.commit(1)
    w.pend(5)
    w.move()
    assert w.stable_offset() is E.UNSTABLE_OFFSET_COMMIT
    assert w.outcome(w.txn_commit(6, epoch=-1)) is E.INVALID_PRODUCER_EPOCH
    w.pend(6)  # it is enrolled: no question
    assert w.mark(commit=commit) is E.NONE
    assert w.stable_offset() == (6 if commit else 1)
    w.move()
    assert w.stable_offset() == (6 if commit else 1)


def test_an_enrolment_of_before_a_move_is_not_of_after_it(w: World) -> None:
    w.txn_commit(5)
    number = w.enrolments[0].number
    w.move()
    w.tell(ShardEnrolled(number, w.at, None))
    assert w.log == {}


def test_a_group_that_is_deleted_takes_its_pending_positions_with_it(w: World) -> None:
    w.pend(5)
    w.pend(6, group="h")
    assert w.delete_group() is E.NONE
    assert pending(w) == [("h", 7, 0)]
    assert w.mark(commit=True) is E.NONE
    assert (w.committed(), w.committed(group="h")) == (None, 6)


def test_deleted_positions_are_not_brought_back_by_the_end_of_a_transaction(w: World) -> None:
    w.commit(1)
    w.pend(5)
    w.pend(6, partition=1)
    w.delete_offsets("t", 0)
    w.mark(commit=True)
    assert (w.committed(), w.committed(partition=1)) == (None, 6)


def test_positions_of_a_topic_that_is_gone_are_gone(w: World) -> None:
    w.change_topics({"t": 4, "u": 1})
    w.pend(5)
    w.pend(6, topic="u")
    w.change_topics({"u": 1})
    assert len(pending(w)) == 1
    w.mark(commit=True)
    w.change_topics({"t": 4, "u": 1}, version=1)
    assert (w.committed(), w.committed(topic="u")) == (None, 6)


def test_a_group_with_pending_positions_does_not_expire(w: World) -> None:
    w.commit(1)
    w.commit(2, partition=1)
    w.pend(5)
    w.pend(6, group="h")
    w.now_ms += 30 * DAY
    w.tell(Woken(w.at))
    assert w.committed(partition=1) is None
    assert w.committed() == 1
    assert [one.group_id for one in w.shard.list_groups()] == [G, "h"]
    w.mark(commit=True)
    assert (w.committed(), w.committed(group="h")) == (5, 6)
    w.now_ms += 30 * DAY
    w.tell(Woken(w.at))
    assert w.shard.list_groups() == []
    assert all(value is None for value in w.log.values())
