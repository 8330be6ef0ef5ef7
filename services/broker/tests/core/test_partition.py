"""One partition as its leader keeps it: dialogues of events and effects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.core.local_log import SNAPSHOT_EVERY_BYTES
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    Answer,
    BatchArrived,
    CheckpointAsked,
    Deposed,
    Effect,
    ForgetBelow,
    GroupWritten,
    MarkerArrived,
    Reconfigured,
    Refuse,
    RetentionChecked,
    ShowUpTo,
    TrimAsked,
)
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import (
    DropPrefix,
    EpochRow,
    LogId,
    PutBatch,
    PutEpoch,
    PutProducers,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import build_marker_batch, read_header, stamp_producer
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import ErrorCode, NotLeader, OffsetOutOfRange
from headrace_common.core.ids import Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 3)
LOG = LogId(9)
CONFIG = TopicConfig.effective({}, {})


def fresh(config: TopicConfig = CONFIG, *, epoch: int | None = 5) -> Partition:
    partition, _ = Partition.create(ID, LOG, config, NOW_MS)
    if epoch is not None:
        partition.handle(elected(epoch))
    return partition


def arrived(
    batch: bytes, ref: object = "a", *, acks: int = -1, now_ms: int = NOW_MS, epoch: int | None = None
) -> BatchArrived:
    return BatchArrived(read_header(batch), batch, acks, now_ms, epoch, ref)


def only(effects: list[Effect], kind: type) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_a_new_log_exists_by_its_state_and_its_first_segment() -> None:
    _, writes = Partition.create(ID, LOG, CONFIG, NOW_MS)
    assert writes == [
        PutState(LOG, StateRow(ID, Offset(0), Offset(0))),
        PutSegment(LOG, SegmentRow(Offset(0), NOW_MS)),
    ]


def test_a_leader_assigns_its_epoch_at_once_without_records() -> None:
    partition = fresh(epoch=None)
    assert partition.handle(elected(5)) == [PutEpoch(LOG, EpochRow(5, Offset(0)))]
    assert partition.handle(elected(5)) == []
    assert partition.handle(elected(4)) == [], "an older word changes nothing"
    assert partition.leader_epoch == 5


def test_a_batch_gets_the_log_end_and_is_answered_when_written() -> None:
    partition = fresh()
    [put] = partition.handle(arrived(batch_of(3), "first"))
    assert isinstance(put, PutBatch)
    header = read_header(put.batch)
    assert (header.base_offset, header.leader_epoch) == (0, 5)
    assert (put.row.base_offset, put.row.last_offset_delta, put.row.size) == (0, 2, len(put.batch))
    partition.handle(arrived(batch_of(2), "second"))
    assert (partition.log_end, partition.written_end, partition.high_watermark) == (5, 0, 0)
    assert partition.handle(GroupWritten(Offset(3))) == [
        ShowUpTo(Offset(3), Offset(0)),
        Answer("first", Offset(0), -1),
    ]
    assert partition.handle(GroupWritten(Offset(5)))[-1] == Answer("second", Offset(3), -1)


def test_acks_one_is_answered_when_written_and_acks_none_never() -> None:
    partition = fresh()
    partition.handle(arrived(batch_of(1), "one", acks=1))
    partition.handle(arrived(batch_of(1), "none", acks=0))
    effects = partition.handle(GroupWritten(Offset(2)))
    assert only(effects, Answer) == [Answer("one", Offset(0), -1)]


def test_who_does_not_lead_refuses_and_appends_nothing() -> None:
    partition = fresh(epoch=None)
    [refusal] = partition.handle(arrived(batch_of(1)))
    assert isinstance(refusal, Refuse)
    assert refusal.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log_end == 0


@pytest.mark.parametrize(("claimed", "code"), [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_producer_with_another_leader_epoch_is_told(claimed: int, code: ErrorCode) -> None:
    [refusal] = fresh().handle(arrived(batch_of(1), epoch=claimed))
    assert isinstance(refusal, Refuse)
    assert refusal.error.code is code


def test_those_who_wait_hear_that_the_leader_changed() -> None:
    partition = fresh()
    partition.handle(arrived(batch_of(1), "all"))
    partition.handle(arrived(batch_of(1), "one", acks=1))
    reason = NotLeader("moved")
    assert partition.handle(Deposed(reason)) == [Refuse("one", reason), Refuse("all", reason)]
    assert partition.handle(GroupWritten(Offset(2))) == [], "who leads no longer commits nothing"
    assert partition.written_end == 2
    assert partition.handle(elected(7)) == [PutEpoch(LOG, EpochRow(7, Offset(2))), ShowUpTo(Offset(2), Offset(0))]


def test_a_new_epoch_of_the_same_leader_leaves_no_one_waiting() -> None:
    partition = fresh()
    partition.handle(arrived(batch_of(1), "a"))
    effects = partition.handle(elected(6))
    assert isinstance(effects[0], Refuse)
    assert effects[1] == PutEpoch(LOG, EpochRow(6, Offset(1)))


def test_a_duplicate_is_answered_with_its_old_offset_but_not_before_that_is_written() -> None:
    partition = fresh()
    batch = batch_of(2, producer_id=1, epoch=0, sequence=0)
    partition.handle(arrived(batch, "first"))
    partition.handle(arrived(batch_of(2, producer_id=1, epoch=0, sequence=2), "second"))
    assert partition.handle(arrived(batch, "again")) == []
    assert partition.log_end == 4
    effects = partition.handle(GroupWritten(Offset(2)))
    assert only(effects, Answer) == [Answer("first", Offset(0), -1), Answer("again", Offset(0), -1)]
    partition.handle(GroupWritten(Offset(4)))
    assert partition.handle(arrived(batch, "later")) == [Answer("later", Offset(0), -1)]
    assert partition.handle(arrived(batch, "silent", acks=0)) == []


def test_a_gap_in_the_sequence_is_refused_and_appends_nothing() -> None:
    partition = fresh()
    partition.handle(arrived(batch_of(1, producer_id=1, epoch=0, sequence=0)))
    [refusal] = partition.handle(arrived(batch_of(1, producer_id=1, epoch=0, sequence=2), "gap"))
    assert isinstance(refusal, Refuse)
    assert refusal.error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.log_end == 1


def test_log_append_time_stamps_batch_row_and_answer() -> None:
    partition = fresh(replace(CONFIG, log_append_time=True))
    [put] = partition.handle(arrived(batch_of(2, timestamp_ms=5), now_ms=NOW_MS + 7))
    assert isinstance(put, PutBatch)
    header = read_header(put.batch)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS + 7, NOW_MS + 7)
    assert put.row.attributes == header.attributes
    assert put.row.segment_max_timestamp == NOW_MS + 7
    assert only(partition.handle(GroupWritten(Offset(2))), Answer) == [Answer("a", Offset(0), NOW_MS + 7)]


def test_a_duplicate_on_a_topic_with_log_append_time_is_answered_with_its_old_time() -> None:
    partition = fresh(replace(CONFIG, log_append_time=True))
    batch = batch_of(2, producer_id=1, epoch=0, sequence=0)
    partition.handle(arrived(batch, "first", now_ms=NOW_MS + 7))
    assert partition.handle(arrived(batch, "again", now_ms=NOW_MS + 9)) == []
    answers = only(partition.handle(GroupWritten(Offset(2))), Answer)
    assert answers == [Answer("first", Offset(0), NOW_MS + 7), Answer("again", Offset(0), NOW_MS + 7)]
    later = partition.handle(arrived(batch, "later", now_ms=NOW_MS + 11))
    assert later == [Answer("later", Offset(0), NOW_MS + 7)]


def test_a_full_segment_is_sealed_with_a_producer_snapshot_before_the_batch() -> None:
    first = batch_of(3, producer_id=4, epoch=0, sequence=0)
    partition = fresh(replace(CONFIG, segment_bytes=len(first) + 1))
    partition.handle(arrived(first))
    effects = partition.handle(arrived(batch_of(1), now_ms=NOW_MS + 1))
    sealed, opened, snapshot, state, put = effects
    assert isinstance(sealed, PutSegment)
    assert (sealed.row.base_offset, sealed.row.end_offset, sealed.row.size) == (0, 3, len(first))
    assert opened == PutSegment(LOG, SegmentRow(Offset(3), NOW_MS + 1))
    assert isinstance(snapshot, PutProducers)
    assert (snapshot.offset, snapshot.rows[0].producer_id) == (3, 4)
    assert isinstance(state, PutState)
    assert isinstance(put, PutBatch)
    assert (put.row.segment_base, put.row.segment_bytes) == (3, put.row.size)


def test_a_snapshot_is_written_every_so_many_bytes() -> None:
    partition = fresh()
    partition.handle(arrived(batch_of(1)))
    partition.snapshot_bytes = SNAPSHOT_EVERY_BYTES
    snapshot, put = partition.handle(arrived(batch_of(1)))
    assert isinstance(snapshot, PutProducers)
    assert snapshot.offset == 1
    assert isinstance(put, PutBatch)
    assert only(partition.handle(arrived(batch_of(1))), PutProducers) == []


def written(partition: Partition, batch: bytes) -> None:
    partition.handle(arrived(batch))
    partition.handle(GroupWritten(partition.log_end))


def test_a_trim_may_fall_inside_a_batch_which_then_stays() -> None:
    partition = fresh()
    written(partition, batch_of(3))
    written(partition, batch_of(3))
    assert partition.handle(TrimAsked(Offset(4), Offset(3))) == [
        PutState(LOG, StateRow(ID, Offset(4), Offset(6))),
        PutProducers(LOG, Offset(6), ()),
        DropPrefix(LOG, Offset(3)),
        ForgetBelow(Offset(4)),
    ]
    again = partition.handle(TrimAsked(Offset(5), Offset(3)))
    assert only(again, DropPrefix) == [], "the batch is still needed"
    assert partition.handle(TrimAsked(Offset(2), Offset(0))) == [], "a log start never goes back"
    assert partition.log_start == 5


def test_a_trim_above_the_high_watermark_is_refused() -> None:
    partition = fresh()
    partition.handle(arrived(batch_of(3)))
    with pytest.raises(OffsetOutOfRange):
        partition.handle(TrimAsked(Offset(3), Offset(3)))


def test_retention_drops_old_segments_and_the_active_one_only_with_all_others() -> None:
    partition = fresh(replace(CONFIG, retention_ms=1_000, segment_bytes=1_024))
    for _ in range(3):
        written(partition, batch_of([b"x" * 600], timestamp_ms=NOW_MS))
    assert [row.end_offset for row in partition.segments.sealed] == [1, 2]
    assert partition.handle(RetentionChecked(NOW_MS + 1_000, 0)) == []
    effects = partition.handle(RetentionChecked(NOW_MS + 1_001, 0))
    assert DropPrefix(LOG, Offset(3)) in effects
    assert partition.log_start == partition.log_end == 3
    assert partition.segments.sealed == []
    assert partition.segments.active.base_offset == 3
    written(partition, batch_of(1))
    assert partition.log_end == 4


def test_retention_rolls_a_segment_by_age() -> None:
    partition = fresh(replace(CONFIG, segment_ms=500, retention_ms=-1))
    written(partition, batch_of(1))
    assert partition.handle(RetentionChecked(NOW_MS + 499, 0)) == []
    effects = partition.handle(RetentionChecked(NOW_MS + 500, 0))
    assert len(only(effects, PutSegment)) == 2
    assert partition.handle(RetentionChecked(NOW_MS + 2_000, 0)) == [], "an empty segment does not age"


def test_who_does_not_lead_drops_nothing() -> None:
    partition = fresh(replace(CONFIG, retention_ms=1))
    written(partition, batch_of(1))
    partition.handle(Deposed(NotLeader("moved")))
    assert partition.handle(RetentionChecked(NOW_MS + 10_000, 0)) == []


def test_new_settings_count_from_the_next_event_on() -> None:
    partition = fresh()
    written(partition, batch_of(1))
    partition.handle(Reconfigured(replace(CONFIG, retention_ms=1)))
    assert partition.handle(RetentionChecked(NOW_MS + 10, 0)) != []


def test_a_checkpoint_writes_only_what_changed() -> None:
    partition = fresh()
    assert partition.handle(CheckpointAsked()) == []
    written(partition, batch_of(2))
    state, snapshot = partition.handle(CheckpointAsked())
    assert state == PutState(LOG, StateRow(ID, Offset(0), Offset(2)))
    assert isinstance(snapshot, PutProducers)
    assert partition.handle(CheckpointAsked()) == []


def test_a_recovered_log_is_committed_once_it_is_led() -> None:
    state = StateRow(ID, Offset(2), Offset(4))
    segments = Segments.fresh(Offset(0), NOW_MS)
    partition = Partition.recover(state, LOG, CONFIG, segments, Offset(9), [EpochRow(1, Offset(0))], Producers())
    assert (partition.log_start, partition.high_watermark, partition.log_end) == (2, 4, 9)
    assert partition.leader_epoch is None
    assert partition.handle(elected(2)) == [PutEpoch(LOG, EpochRow(2, Offset(9))), ShowUpTo(Offset(9), Offset(4))]


def test_a_leader_epoch_below_the_logs_own_is_not_taken() -> None:
    state = StateRow(ID, Offset(0), Offset(0))
    segments = Segments.fresh(Offset(0), NOW_MS)
    partition = Partition.recover(state, LOG, CONFIG, segments, Offset(0), [EpochRow(7, Offset(0))], Producers())
    assert partition.handle(elected(6)) == []
    assert partition.leader_epoch is None


def test_a_partition_remembers_as_many_producers_as_the_setting_says() -> None:
    config = TopicConfig.effective({}, {"producer.ids.max": "100"})
    partition = fresh(config)
    for producer_id in range(102):
        partition.handle(arrived(stamp_producer(batch_of(1), producer_id, 0, 0)))
    assert len(partition.producers) == 100
    assert partition.producers.check(1, 0, 5, 1) is None, "forgotten: it may start anywhere"
    again = arrived(stamp_producer(batch_of(1), 101, 0, 0), "again")
    assert not only(partition.handle(again), PutBatch), "remembered: this one was sent before"
    partition.handle(Reconfigured(replace(config, producer_ids_max=50)))
    partition.handle(arrived(stamp_producer(batch_of(1), 200, 0, 0)))
    assert len(partition.producers) == 50


def test_markers_of_producers_that_are_not_known_are_bounded_as_well() -> None:
    partition = fresh(TopicConfig.effective({}, {"producer.ids.max": "100"}))
    for producer_id in range(102):
        marker = build_marker_batch(producer_id, 0, commit=False, timestamp_ms=NOW_MS)
        partition.handle(MarkerArrived(read_header(marker), marker, False, NOW_MS, None))
    assert len(partition.producers) == 100
