"""Transactions in one partition, as dialogues: the first append, the marker, what readers of decided records see."""

from __future__ import annotations

import pytest
from services.broker.tests.kit.assignments import assigned, elected
from services.broker.tests.kit.batches import NOW_MS, batch_of
from services.broker.tests.kit.transacting import (
    CONFIG,
    ID,
    LOG,
    PID,
    begin,
    codes,
    end,
    enrol,
    fresh,
    marker,
    only,
    plain,
    sent,
    written,
)

from headrace_broker.core.enrolment import PARKED_PER_PRODUCER_MAX
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    Answer,
    AskEnrolment,
    BatchesCopied,
    Deposed,
    Elected,
    Enrolled,
    Followed,
    FollowerFetched,
    Reassigned,
    Rebuilt,
    RetentionChecked,
    ShowUpTo,
    TrimAsked,
    Truncated,
)
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import (
    COMMITS_BIT,
    AbortedRow,
    ProducerBatch,
    ProducerRow,
    PutAborted,
    PutBatch,
)
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import Marker, build_marker_batch, read_header, read_marker, stamp
from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    CorruptBatch,
    ErrorCode,
    NotLeader,
    ProducerFenced,
)
from headrace_common.core.ids import NodeId, Offset


class TestEnrolment:
    def test_the_first_append_of_a_transaction_waits_for_its_coordinator(self) -> None:
        partition = fresh()
        effects = partition.handle(sent(records=3))
        assert effects == [AskEnrolment(1, "id", PID, 0, "a")]
        assert (partition.log_end, partition.last_stable) == (0, 0)
        [put] = partition.handle(Enrolled(PID, 1, None, NOW_MS))
        assert isinstance(put, PutBatch)
        assert read_header(put.batch).transactional
        assert written(partition) == [
            ShowUpTo(Offset(3), Offset(0), (Offset(0), Offset(0))),
            Answer("a", Offset(0), -1),
        ]
        assert (partition.high_watermark, partition.last_stable) == (3, 0)

    def test_what_follows_waits_behind_it_in_order(self) -> None:
        partition = fresh()
        asked = partition.handle(sent(0, "first", records=2))
        assert partition.handle(sent(2, "second")) == []
        assert partition.handle(sent(0, "first again", records=2)) == []
        puts = enrol(partition, asked)
        assert [put.row.base_offset for put in puts if isinstance(put, PutBatch)] == [0, 2]
        answers = only(written(partition), Answer)
        assert [(one.ref, one.base_offset) for one in answers if isinstance(one, Answer)] == [
            ("first", 0),
            ("first again", 0),
            ("second", 2),
        ]

    def test_the_next_batches_ask_nobody(self) -> None:
        partition = fresh()
        begin(partition)
        [put] = partition.handle(sent(1))
        assert isinstance(put, PutBatch)

    def test_two_producers_ask_apart_and_others_do_not_wait(self) -> None:
        partition = fresh()
        one, two = partition.handle(sent(pid=1)), partition.handle(sent(pid=2))
        plain(partition)
        assert partition.high_watermark == 1
        assert only(enrol(partition, two), PutBatch)
        assert only(enrol(partition, one), PutBatch)
        assert [row.transaction_start for row in partition.producers.snapshot()] == [1, 2]

    def test_a_refusal_is_passed_on_to_all_who_wait(self) -> None:
        partition = fresh()
        asked = partition.handle(sent(0, "first"))
        partition.handle(sent(1, "second"))
        refused = enrol(partition, asked, ProducerFenced("newer"))
        assert codes(refused) == [("first", ErrorCode.PRODUCER_FENCED), ("second", ErrorCode.PRODUCER_FENCED)]
        assert partition.log_end == 0
        assert only(enrol(partition, partition.handle(sent(0, "again"))), PutBatch), "the next one asks anew"

    def test_nothing_is_parked_twice_and_not_without_bound(self) -> None:
        partition = fresh()
        partition.handle(sent())
        for number in range(1, PARKED_PER_PRODUCER_MAX):
            assert partition.handle(sent(number)) == []
        assert codes(partition.handle(sent(99, "many"))) == [("many", ErrorCode.OVERLOADED)]
        assert partition.appends.parking.size > 0
        partition.handle(Enrolled(PID, 1, CoordinatorNotAvailable("away"), NOW_MS))
        assert (partition.appends.parking.size, len(partition.appends.parking)) == (0, 0)

    def test_a_batch_that_does_not_begin_at_zero_begins_no_transaction(self) -> None:
        assert codes(fresh().handle(sent(4))) == [("a", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)]

    def test_without_enough_replicas_nobody_is_asked(self) -> None:
        partition = fresh(replicas=(1, 2, 3), min_isr=2)
        partition.handle(Reassigned(assigned(5, (1, 2, 3), (1,), partition_epoch=1, min_isr=2), 0.0))
        assert codes(partition.handle(sent())) == [("a", ErrorCode.NOT_ENOUGH_REPLICAS)]

    def test_an_answer_that_comes_late_appends_nothing(self) -> None:
        partition = fresh()
        asked = partition.handle(sent())
        effects = partition.handle(marker(1))
        assert codes(effects) == [("a", ErrorCode.INVALID_PRODUCER_EPOCH)], "the transaction has ended meanwhile"
        assert len(only(effects, PutBatch)) == 1, "the marker"
        assert enrol(partition, asked) == []
        assert codes(partition.handle(sent(0, "late"))) == [("late", ErrorCode.INVALID_PRODUCER_EPOCH)]
        assert partition.log_end == 1

    def test_a_marker_that_cannot_be_written_voids_too(self) -> None:
        partition = fresh(replicas=(1, 2, 3), min_isr=2)
        asked = partition.handle(sent())
        partition.handle(Reassigned(assigned(5, (1, 2, 3), (1,), partition_epoch=1, min_isr=2), 0.0))
        assert codes(partition.handle(marker(1))) == [
            ("a", ErrorCode.INVALID_PRODUCER_EPOCH),
            ("m", ErrorCode.NOT_ENOUGH_REPLICAS),
        ]
        partition.handle(Reassigned(assigned(5, (1, 2, 3), partition_epoch=2, min_isr=2), 0.0))
        assert enrol(partition, asked) == []
        assert partition.log_end == 0

    def test_the_marker_of_the_transaction_before_voids_nothing(self) -> None:
        partition = fresh()
        begin(partition)
        asked = partition.handle(sent(0, "next", epoch=1))
        assert only(asked, AskEnrolment)
        assert codes(partition.handle(marker(1))) == []
        assert only(enrol(partition, asked), PutBatch)
        assert partition.producers.is_open(PID, 1)

    def test_enrolled_before_the_marker_of_the_transaction_before_is_here(self) -> None:
        partition = fresh()
        begin(partition)
        asked = partition.handle(sent(0, "next", epoch=1))
        partition.handle(sent(1, "and next", epoch=1))
        assert codes(enrol(partition, asked)) == [
            ("next", ErrorCode.CONCURRENT_TRANSACTIONS),
            ("and next", ErrorCode.CONCURRENT_TRANSACTIONS),
        ]
        assert partition.log_end == 1

    def test_a_newer_epoch_voids_what_an_older_one_waits_for(self) -> None:
        partition = fresh()
        old = partition.handle(sent(0, "old"))
        effects = partition.handle(sent(0, "new", epoch=1))
        assert codes(effects) == [("old", ErrorCode.INVALID_PRODUCER_EPOCH)]
        assert codes(partition.handle(sent(1, "older", epoch=0))) == [("older", ErrorCode.INVALID_PRODUCER_EPOCH)]
        assert enrol(partition, old) == []
        assert only(enrol(partition, effects), PutBatch)

    @pytest.mark.parametrize("event", [Deposed(NotLeader("moved")), Followed(NodeId(2), 6, NotLeader("moved"))])
    def test_who_is_deposed_refuses_what_waits(self, event: Deposed | Followed) -> None:
        partition = fresh()
        asked = partition.handle(sent())
        assert codes(partition.handle(event)) == [("a", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        assert enrol(partition, asked) == []
        partition.handle(Elected(assigned(8)))
        assert enrol(partition, asked) == [], "the number is void for ever"
        assert partition.log_end == 0

    def test_a_new_epoch_of_the_same_leader_voids_too(self) -> None:
        partition = fresh()
        asked = partition.handle(sent())
        assert codes(partition.handle(elected(6))) == [("a", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        assert enrol(partition, asked) == []


class TestMarkers:
    def test_a_commit_lets_readers_on_once_it_is_committed(self) -> None:
        partition = fresh()
        begin(partition, records=2)
        [put] = partition.handle(marker(1))
        assert isinstance(put, PutBatch)
        header = read_header(put.batch)
        assert (header.base_offset, header.leader_epoch) == (2, 5)
        assert read_marker(put.batch, header) == Marker(PID, 1, True)
        assert put.row.attributes == header.attributes | COMMITS_BIT
        assert partition.last_stable == 0, "not before the marker is committed"
        assert written(partition) == [
            ShowUpTo(Offset(3), Offset(2), (Offset(3), Offset(0))),
            Answer("m", Offset(2), -1),
        ]
        assert len(partition.aborted) == 0

    def test_an_abort_is_remembered_for_readers(self) -> None:
        partition = fresh()
        plain(partition)
        begin(partition, records=2)
        put, index = partition.handle(marker(1, commit=False))
        assert isinstance(put, PutBatch)
        assert not put.row.attributes & COMMITS_BIT
        row = AbortedRow(PID, Offset(1), Offset(3), Offset(4))
        assert index == PutAborted(LOG, row)
        written(partition)
        assert partition.last_stable == 4
        assert partition.aborted.find_overlapping(Offset(0), Offset(2)) == [row]
        assert partition.aborted.find_overlapping(Offset(3), Offset(4)) == [row]
        assert partition.aborted.find_overlapping(Offset(0), Offset(1)) == []
        assert partition.aborted.find_overlapping(Offset(4), Offset(9)) == []

    def test_the_same_marker_again_is_answered_and_not_appended(self) -> None:
        partition = fresh()
        begin(partition)
        partition.handle(marker(1, ref="first"))
        assert partition.handle(marker(1, ref="again")) == []
        answers = only(written(partition), Answer)
        assert [one.ref for one in answers if isinstance(one, Answer)] == ["first", "again"]
        assert only(partition.handle(marker(1, ref="later")), Answer)
        assert partition.log_end == 2

    @pytest.mark.parametrize(("epoch", "commit"), [(0, True), (1, False), (2, True), (2, False)])
    def test_any_other_marker_that_is_not_above_the_epoch_is_refused(self, epoch: int, commit: bool) -> None:
        partition = fresh()
        begin(partition)
        end(partition, 1)
        begin(partition, epoch=1)
        end(partition, 2)
        begin(partition, epoch=2)
        assert codes(partition.handle(marker(epoch, commit=commit))) == [("m", ErrorCode.INVALID_PRODUCER_EPOCH)]
        assert partition.producers.is_open(PID, 2)

    def test_a_repeat_with_the_other_verdict_is_refused(self) -> None:
        partition = fresh()
        begin(partition)
        end(partition, 1)
        assert codes(partition.handle(marker(1, commit=False))) == [("m", ErrorCode.INVALID_PRODUCER_EPOCH)]

    def test_a_producer_that_nothing_is_known_of_is_fenced(self) -> None:
        partition = fresh()
        end(partition, 4, commit=False)
        assert partition.log_end == 1
        assert len(partition.aborted) == 0, "it wrote nothing here"
        assert codes(partition.handle(sent(epoch=3))) == [("a", ErrorCode.INVALID_PRODUCER_EPOCH)]
        assert only(partition.handle(sent(epoch=4)), AskEnrolment)

    def test_late_records_of_an_ended_transaction_are_refused(self) -> None:
        partition = fresh()
        begin(partition)
        end(partition, 1, commit=False)
        assert codes(partition.handle(sent(1, "late"))) == [("late", ErrorCode.INVALID_PRODUCER_EPOCH)]
        assert codes(partition.handle(sent(0, "sent again"))) == [("sent again", ErrorCode.INVALID_PRODUCER_EPOCH)]
        assert codes(partition.handle(sent(1, "gap", epoch=1))) == [("gap", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)]

    def test_records_outside_of_an_open_transaction_are_refused(self) -> None:
        partition = fresh()
        begin(partition)
        assert codes(partition.handle(sent(1, plain=True))) == [("a", ErrorCode.INVALID_TXN_STATE)]
        assert codes(partition.handle(sent(0, plain=True, epoch=1))) == [("a", ErrorCode.INVALID_TXN_STATE)]
        end(partition, 1)
        assert only(partition.handle(sent(0, plain=True, epoch=1)), PutBatch)
        assert codes(partition.handle(marker(1))) == [("m", ErrorCode.INVALID_PRODUCER_EPOCH)], "no repeat any more"

    def test_who_does_not_lead_writes_no_markers(self) -> None:
        partition = fresh()
        begin(partition)
        partition.handle(Deposed(NotLeader("moved")))
        assert codes(partition.handle(marker(1))) == [("m", ErrorCode.NOT_LEADER_OR_FOLLOWER)]

    def test_markers_need_as_many_replicas_as_records(self) -> None:
        partition = fresh(replicas=(1, 2, 3), min_isr=2)
        partition.handle(marker(1, ref="waits"))
        few = Reassigned(assigned(5, (1, 2, 3), (1,), partition_epoch=1, min_isr=2), 0.0)
        assert codes(partition.handle(few)) == [("waits", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
        assert codes(partition.handle(marker(2))) == [("m", ErrorCode.NOT_ENOUGH_REPLICAS)]
        assert codes(partition.handle(marker(1))) == [("m", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
        assert partition.log_end == 1


class TestLastStable:
    def test_the_oldest_open_transaction_holds_readers_back(self) -> None:
        partition = fresh()
        plain(partition)
        begin(partition, pid=1)
        begin(partition, pid=2)
        plain(partition)
        assert (partition.last_stable, partition.high_watermark) == (1, 4)
        end(partition, 1, pid=2, commit=False)
        assert partition.last_stable == 1
        end(partition, 1, pid=1)
        assert (partition.last_stable, partition.high_watermark) == (6, 6)
        assert partition.aborted.rows() == [AbortedRow(2, Offset(2), Offset(4), Offset(1))]

    def test_nothing_moves_while_a_transaction_is_open(self) -> None:
        partition = fresh()
        begin(partition)
        partition.handle(sent(1))
        assert ShowUpTo(Offset(2), Offset(1), (Offset(0), Offset(0))) in written(partition)

    def test_a_marker_that_is_not_committed_ends_nothing_for_readers(self) -> None:
        partition = fresh(replicas=(1, 2))
        asked = partition.handle(sent())
        enrol(partition, asked)
        written(partition)
        held(partition, 1)
        partition.handle(marker(1))
        written(partition)
        assert (partition.high_watermark, partition.last_stable, partition.written_end) == (1, 0, 2)
        held(partition, 2)
        assert (partition.high_watermark, partition.last_stable) == (2, 2)

    def test_a_trim_into_an_open_transaction_takes_readers_along(self) -> None:
        partition = fresh()
        begin(partition, records=4)
        plain(partition)
        partition.handle(TrimAsked(Offset(2), Offset(0)))
        assert (partition.log_start, partition.last_stable) == (2, 2)
        partition.handle(TrimAsked(Offset(5), Offset(5), partition.producers.snapshot()))
        assert (partition.log_start, partition.last_stable, partition.high_watermark) == (5, 5, 5)
        assert partition.producers.is_open(PID, 0)
        end(partition, 1, commit=False)
        assert partition.last_stable == 6

    def test_who_has_an_open_transaction_is_never_forgotten(self) -> None:
        partition = fresh()
        begin(partition, pid=1)
        begin(partition, pid=2)
        end(partition, 1, pid=2)
        partition.handle(RetentionChecked(NOW_MS, NOW_MS + 1))
        assert [row.producer_id for row in partition.producers.snapshot()] == [1]


def held(partition: Partition, end: int) -> None:
    """Follower 2 has everything below ``end`` down."""
    partition.handle(FollowerFetched(NodeId(2), 1, Offset(end), Offset(end), True, 0.0))


class TestFollowing:
    def follower(self) -> Partition:
        partition, _ = Partition.create(ID, LOG, CONFIG, NOW_MS)
        partition.handle(Followed(NodeId(2), 5, NotLeader("moved")))
        return partition

    def copied(self, batches: list[bytes], end: int) -> BatchesCopied:
        stamped, base = [], 0
        for batch in batches:
            whole = stamp(batch, base, 5)
            stamped.append((read_header(whole), whole))
            base = read_header(whole).next_offset
        return BatchesCopied(5, tuple(stamped), Offset(end), NOW_MS)

    def test_a_follower_knows_what_its_leader_knows(self) -> None:
        partition = self.follower()
        batches = [
            batch_of(2, producer_id=1, epoch=0, sequence=0, transactional=True),
            batch_of(1, producer_id=2, epoch=0, sequence=0, transactional=True),
            build_marker_batch(1, 1, commit=False, timestamp_ms=NOW_MS),
            build_marker_batch(2, 1, commit=True, timestamp_ms=NOW_MS),
        ]
        effects = partition.handle(self.copied(batches, 4))
        row = AbortedRow(1, Offset(0), Offset(3), Offset(2))
        assert only(effects, PutAborted) == [PutAborted(LOG, row)]
        [shown] = only(written(partition), ShowUpTo)
        assert shown == ShowUpTo(Offset(4), Offset(0), (Offset(2), Offset(0)))
        assert [put.row.attributes & COMMITS_BIT for put in effects if isinstance(put, PutBatch)] == [
            0,
            0,
            0,
            COMMITS_BIT,
        ]
        partition.handle(BatchesCopied(5, (), Offset(5), NOW_MS))
        assert (partition.high_watermark, partition.last_stable) == (5, 5)
        assert partition.aborted.rows() == [row]

    def test_a_marker_that_says_nothing_changes_nothing(self) -> None:
        partition = self.follower()
        good = batch_of(1)
        bad = build_marker_batch(1, 1, commit=True, timestamp_ms=NOW_MS)
        bad = bad[:-3] + b"\x09\x09\x09"
        with pytest.raises(CorruptBatch):
            partition.handle(self.copied([good, bad[:64] + b"\0" * (len(bad) - 64)], 2))
        assert partition.log_end == 0

    def test_a_cut_takes_the_marker_and_its_abort_back(self) -> None:
        partition = self.follower()
        records = batch_of(2, producer_id=1, epoch=0, sequence=0, transactional=True)
        fill = batch_of(3)
        abort = build_marker_batch(1, 1, commit=False, timestamp_ms=NOW_MS)
        partition.handle(self.copied([records, fill, abort], 2))
        written(partition)
        assert (partition.high_watermark, partition.last_stable, len(partition.aborted)) == (2, 0, 1)
        opened = ProducerRow(1, 0, (ProducerBatch(0, 1, Offset(0), NOW_MS),), NOW_MS, Offset(0), NOW_MS)
        partition.handle(Truncated(5, Offset(2), Rebuilt(Producers([opened]), Segments.fresh(Offset(0), NOW_MS), 0)))
        assert (partition.producers.is_open(1, 0), len(partition.aborted), len(partition.ending)) == (True, 0, 0)
        commit = stamp(build_marker_batch(1, 1, commit=True, timestamp_ms=NOW_MS), 2, 5)
        partition.handle(BatchesCopied(5, ((read_header(commit), commit),), Offset(3), NOW_MS))
        written(partition)
        assert (partition.high_watermark, partition.last_stable) == (3, 3), "the marker that was cut holds nobody back"
