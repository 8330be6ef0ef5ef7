"""Fencing tokens and transactions on one partition, as dialogues: who writes is one thing, what is decided another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from services.broker.tests.kit.assignments import assigned, elected
from services.broker.tests.kit.batches import NOW_MS
from services.broker.tests.kit.transacting import (
    CONFIG,
    LOG,
    PID,
    begin,
    codes,
    end,
    enrol,
    fence,
    fresh,
    marker,
    only,
    plain,
    sent,
    written,
)

from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    Answer,
    AskEnrolment,
    BatchesCopied,
    Followed,
    FollowerFetched,
    Reassigned,
    Rebuilt,
    Reconfigured,
    Refuse,
    ShowUpTo,
    Truncated,
)
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import AbortedRow, ProducerBatch, ProducerRow, PutBatch
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import read_header
from headrace_common.core.errors import ErrorCode, FencedWriter, NotLeader, ProducerFenced
from headrace_common.core.ids import NodeId, Offset

FENCED = ErrorCode.FENCED_WRITER
OTHER = NodeId(2)
SUCCESSOR = 71
"""The producer of who takes over."""


def fenced(token: int = 1, *, replicas: tuple[int, ...] = (1,)) -> Partition:
    """A log that begins with a fence."""
    partition = fresh(replicas=replicas)
    partition.handle(fence(token))
    written(partition)
    return partition


def held(partition: Partition, end: int) -> None:
    """Follower 2 has everything below ``end`` down."""
    partition.handle(FollowerFetched(OTHER, 1, Offset(end), Offset(end), True, 0.0))


def cut(partition: Partition, end: int, *producers: ProducerRow) -> None:
    """Another broker led for a while, in epoch 6: this log is cut, and its broker leads again."""
    partition.handle(Followed(OTHER, 6, NotLeader("moved")))
    again = Rebuilt(Producers(producers), Segments.fresh(Offset(0), NOW_MS), 0)
    partition.handle(Truncated(6, Offset(end), again))
    partition.handle(elected(7, (1, 2)))


def opened(*batches: ProducerBatch) -> ProducerRow:
    """The producer of these tests, in its first transaction since offset 1."""
    return ProducerRow(PID, 0, batches, NOW_MS, Offset(1), NOW_MS)


class TestAFenceAboveAnOpenTransaction:
    def test_readers_of_decided_records_wait_and_the_token_holds_at_once(self) -> None:
        partition = fenced()
        begin(partition, token=1)
        partition.handle(fence(2))
        assert ShowUpTo(Offset(3), Offset(2), (Offset(1), Offset(1))) in written(partition)
        assert codes(partition.handle(sent(1, "zombie", token=1))) == [("zombie", FENCED)]
        assert partition.producers.is_open(PID, 0), "who may write says nothing of what was written"
        assert partition.last_stable == 1

    @pytest.mark.parametrize("commit", [True, False])
    def test_its_marker_comes_after_the_fence_and_needs_no_token(self, commit: bool) -> None:
        partition = fenced()
        begin(partition, token=1, records=2)
        partition.handle(fence(2))
        begin(partition, pid=SUCCESSOR, token=2)
        assert partition.last_stable == 1
        end(partition, 1, commit=commit)
        assert partition.last_stable == 4, "the successor's transaction is open"
        end(partition, 1, pid=SUCCESSOR)
        assert partition.last_stable == partition.high_watermark == 7
        aborted = [] if commit else [AbortedRow(PID, Offset(1), Offset(5), Offset(4))]
        assert partition.aborted.rows() == aborted
        assert partition.aborted.find_overlapping(Offset(3), Offset(4)) == aborted, "the fence lies within it"

    def test_the_same_writer_goes_on_in_its_transaction_under_its_new_token(self) -> None:
        partition = fenced()
        begin(partition, token=1)
        partition.handle(fence(2))
        assert codes(partition.handle(sent(1, "old", token=1))) == [("old", FENCED)]
        assert only(partition.handle(sent(1, token=2)), PutBatch), "the sequence goes on: the refused one is not there"
        written(partition)
        assert (partition.last_stable, partition.high_watermark) == (1, 4)
        end(partition, 1, commit=False)
        assert partition.aborted.rows() == [AbortedRow(PID, Offset(1), Offset(4), Offset(5))], "both sides, together"

    def test_a_late_batch_of_a_transaction_that_has_ended_is_fenced_first(self) -> None:
        partition = fenced()
        begin(partition, token=1)
        partition.handle(fence(2))
        end(partition, 1, commit=False)
        assert codes(partition.handle(sent(0, "again", token=1))) == [("again", FENCED)], "of it nothing is known now"
        assert codes(partition.handle(sent(0, "again", token=2))) == [("again", ErrorCode.INVALID_PRODUCER_EPOCH)]

    def test_a_follower_of_both_knows_both(self) -> None:
        leader = fresh()
        effects = leader.handle(fence(1))
        effects += enrol(leader, leader.handle(sent(token=1)))
        effects += leader.handle(fence(2)) + leader.handle(marker(1, commit=False))
        batches = tuple((read_header(put.batch), put.batch) for put in only(effects, PutBatch))
        follower, _ = Partition.create(leader.id, LOG, CONFIG, NOW_MS)
        follower.handle(Followed(OTHER, 5, NotLeader("moved")))
        follower.handle(BatchesCopied(5, batches, Offset(4), NOW_MS))
        written(follower)
        assert (follower.fences.token, follower.last_stable) == (2, 4)
        assert follower.aborted.rows() == leader.aborted.rows() == [AbortedRow(PID, Offset(1), Offset(3), Offset(4))]
        follower.handle(elected(6))
        assert codes(follower.handle(sent(token=1, epoch=1))) == [("a", FENCED)]


class TestAFenceWhileABatchIsParked:
    def test_it_is_refused_when_its_coordinator_has_answered_and_so_is_what_waits_behind_it(self) -> None:
        partition = fenced()
        asked = partition.handle(sent(0, "first", token=1))
        partition.handle(sent(1, "second", token=1))
        partition.handle(fence(2))
        assert codes(partition.handle(sent(2, "third", token=1))) == [("third", FENCED)], "at once"
        refused = enrol(partition, asked)
        assert codes(refused) == [("first", FENCED), ("second", FENCED)]
        assert only(refused, PutBatch) == []
        assert (partition.log_end, partition.appends.parking.size) == (2, 0)

    @pytest.mark.parametrize("commit", [True, False])
    def test_the_transaction_can_end_here_all_the_same(self, commit: bool) -> None:
        partition = fenced()
        enrolled = partition.handle(sent(token=1))
        partition.handle(fence(2))
        enrol(partition, enrolled)
        end(partition, 1, commit=commit)
        assert (partition.log_end, partition.last_stable, len(partition.aborted)) == (3, 3, 0)
        assert codes(partition.handle(sent(token=2))) == [("a", ErrorCode.INVALID_PRODUCER_EPOCH)]

    def test_what_the_same_writer_sent_behind_it_under_its_new_token_is_not_called_fenced(self) -> None:
        partition = fenced()
        asked = partition.handle(sent(0, "old", token=1))
        partition.handle(fence(2))
        assert partition.handle(sent(1, "new", token=2)) == []
        assert codes(enrol(partition, asked)) == [("old", FENCED), ("new", ErrorCode.OPERATION_NOT_ATTEMPTED)]
        assert only(enrol(partition, partition.handle(sent(0, token=2))), PutBatch), "it may begin anew"

    def test_the_coordinator_s_refusal_comes_before_the_token(self) -> None:
        partition = fenced()
        asked = partition.handle(sent(token=1))
        partition.handle(fence(2))
        assert codes(enrol(partition, asked, ProducerFenced("newer"))) == [("a", ErrorCode.PRODUCER_FENCED)]

    def test_who_is_fenced_asks_no_coordinator(self) -> None:
        partition = fenced(2)
        assert only(partition.handle(sent(token=1)), AskEnrolment) == []


class TestARepeatFromBelowTheFence:
    """A refusal says that the batch is not there. Where it is there, a repeat of it appends nothing and is answered."""

    @pytest.mark.parametrize("token", [1, None, 9])
    @pytest.mark.parametrize("transactional", [True, False])
    def test_it_is_answered_with_its_offset(self, transactional: bool, token: int | None) -> None:
        partition = fenced()
        if transactional:
            begin(partition, token=1)
        else:
            partition.handle(sent(plain=True, token=1))
        partition.handle(fence(2))
        written(partition)
        partition.handle(Reconfigured(replace(CONFIG, fencing_required=True)))
        assert partition.handle(sent(0, "again", plain=not transactional, token=token)) == [
            Answer("again", Offset(1), -1)
        ]
        assert partition.log_end == 3
        assert codes(partition.handle(sent(1, "next", plain=not transactional, token=token))) == [("next", FENCED)]

    def test_it_waits_until_what_it_repeats_is_committed(self) -> None:
        partition = fenced(replicas=(1, 2))
        held(partition, 1)
        partition.handle(sent(plain=True, token=1, ref="first"))
        partition.handle(fence(2))
        written(partition)
        assert partition.handle(sent(0, "again", plain=True, token=1)) == []
        partition.handle(FollowerFetched(OTHER, 1, Offset(1), Offset(1), True, 0.0))
        answered = partition.handle(FollowerFetched(OTHER, 1, Offset(2), Offset(2), True, 0.0))
        assert [(one.ref, one.base_offset) for one in only(answered, Answer)] == [("first", 1), ("again", 1)]

    def test_while_too_few_are_in_sync_nobody_says_that_it_is_not_there(self) -> None:
        partition = fenced(replicas=(1, 2))
        partition.handle(Reassigned(assigned(5, (1, 2), partition_epoch=1, min_isr=2), 0.0))
        partition.handle(sent(plain=True, token=1))
        partition.handle(fence(2))
        written(partition)
        partition.handle(Reassigned(assigned(5, (1, 2), (1,), partition_epoch=2, min_isr=2), 0.0))
        again = partition.handle(sent(0, "again", plain=True, token=1))
        assert codes(again) == [("again", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]

    def test_what_the_cut_took_is_no_repeat(self) -> None:
        partition = fenced(replicas=(1, 2))
        held(partition, 1)
        partition.handle(sent(plain=True, token=1))
        cut(partition, 1)
        partition.handle(fence(2))
        assert codes(partition.handle(sent(0, "again", plain=True, token=1))) == [("again", FENCED)]

    def test_another_batch_of_the_same_sequence_and_an_older_epoch_are_no_repeats(self) -> None:
        partition = fenced()
        partition.handle(sent(plain=True, token=1, epoch=3))
        partition.handle(fence(2))
        assert codes(partition.handle(sent(plain=True, token=1, epoch=3, records=2))) == [("a", FENCED)]
        assert codes(partition.handle(sent(plain=True, token=1, epoch=2))) == [("a", FENCED)]


class TestAFenceThatIsCutInMidTransaction:
    def test_the_old_writer_goes_on_in_its_transaction_and_the_new_one_sets_its_token_again(self) -> None:
        partition = fenced(replicas=(1, 2))
        held(partition, 1)
        begin(partition, token=1)
        held(partition, 2)
        partition.handle(fence(2))
        written(partition)
        assert (partition.fences.token, partition.last_stable) == (2, 1)
        cut(partition, 2, opened(ProducerBatch(0, 0, Offset(1), NOW_MS)))
        assert partition.fences.token == 1
        assert codes(partition.handle(sent(0, "new", pid=SUCCESSOR, token=2))) == [("new", FENCED)]
        assert only(partition.handle(sent(1, "old", token=1)), PutBatch), "it is open, and nobody is asked again"
        assert only(partition.handle(fence(2)), PutBatch)
        assert codes(partition.handle(sent(2, "old", token=1))) == [("old", FENCED)]
        written(partition)
        held(partition, partition.log_end)
        assert partition.last_stable == 1
        end(partition, 1, commit=False)
        held(partition, partition.log_end)
        assert partition.last_stable == partition.high_watermark == 5
        assert partition.aborted.rows() == [AbortedRow(PID, Offset(1), Offset(4), Offset(5))]

    def test_what_the_new_writer_had_above_it_goes_with_it(self) -> None:
        partition = fenced(replicas=(1, 2))
        held(partition, 1)
        begin(partition, token=1)
        partition.handle(fence(2))
        begin(partition, pid=SUCCESSOR, token=2)
        cut(partition, 2, opened(ProducerBatch(0, 0, Offset(1), NOW_MS)))
        assert not partition.producers.has_open(SUCCESSOR)
        assert codes(partition.handle(sent(1, "new", pid=SUCCESSOR, token=2))) == [("new", FENCED)]
        partition.handle(fence(2))
        assert only(partition.handle(sent(pid=SUCCESSOR, token=2)), AskEnrolment), "it enrols anew"

    def test_a_batch_that_is_parked_is_refused_by_the_change_itself(self) -> None:
        partition = fenced(replicas=(1, 2))
        held(partition, 1)
        asked = partition.handle(sent(token=1))
        partition.handle(fence(2))
        refused = partition.handle(Followed(OTHER, 6, NotLeader("moved")))
        assert ("a", ErrorCode.NOT_LEADER_OR_FOLLOWER) in codes(refused)
        cut(partition, 1)
        assert enrol(partition, asked) == []


class TestATopicThatRequiresFencing:
    def required(self) -> Partition:
        return fresh(config=replace(CONFIG, fencing_required=True))

    def test_an_append_without_a_token_is_told_what_to_do(self) -> None:
        partition = self.required()
        [refusal] = only(partition.handle(sent(plain=True)), Refuse)
        assert isinstance(refusal.error, FencedWriter)
        assert "fencing.required=true" in str(refusal.error)
        assert "set a token for the partition with a fence record" in str(refusal.error)
        assert codes(partition.handle(sent(plain=True, token=1))) == [("a", FENCED)], "none is set yet"
        assert partition.log_end == 0

    def test_fences_pass_and_then_those_who_carry_the_token(self) -> None:
        partition = self.required()
        assert only(partition.handle(fence(1)), PutBatch)
        assert only(partition.handle(sent(plain=True, token=1)), PutBatch)
        assert codes(partition.handle(sent(1, plain=True))) == [("a", FENCED)]

    def test_transactions_need_the_token_and_their_markers_do_not(self) -> None:
        partition = self.required()
        partition.handle(fence(1))
        assert codes(partition.handle(sent())) == [("a", FENCED)], "nobody is asked"
        begin(partition, token=1)
        assert codes(partition.handle(sent(1))) == [("a", FENCED)]
        end(partition, 1)
        assert partition.last_stable == partition.high_watermark == 3

    def test_it_holds_from_the_moment_on_at_which_the_leader_hears_of_it(self) -> None:
        partition = fresh()
        plain(partition)
        asked = partition.handle(sent(0, "parked"))
        partition.handle(Reconfigured(replace(CONFIG, fencing_required=True)))
        assert codes(enrol(partition, asked)) == [("parked", FENCED)]
        assert codes(partition.handle(sent(plain=True))) == [("a", FENCED)]
        partition.handle(Reconfigured(CONFIG))
        assert only(partition.handle(sent(plain=True)), PutBatch)

    def test_followers_copy_whatever_the_leader_had(self) -> None:
        leader = fresh()
        [put] = only(leader.handle(sent(plain=True)), PutBatch)
        follower, _ = Partition.create(leader.id, LOG, replace(CONFIG, fencing_required=True), NOW_MS)
        follower.handle(Followed(OTHER, 5, NotLeader("moved")))
        copied = follower.handle(BatchesCopied(5, ((read_header(put.batch), put.batch),), Offset(1), NOW_MS))
        assert only(copied, PutBatch)
