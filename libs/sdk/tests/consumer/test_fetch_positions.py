"""Dialogues with the consumer's core: what happened, and what it asks for, hands out or raises then."""

from __future__ import annotations

import pytest

from headrace._core.fetch_answers import Answer
from headrace._core.fetch_events import LogDiverged, PositionReset, TopicRecreated
from headrace._core.fetch_plans import FetchLimits, FetchPlan
from headrace._core.fetch_positions import FetchPositions
from headrace._core.record_runs import Deserializers, run_of
from headrace._core.starts import Ago, AtTime, Beginning, End, Start, parse_reset, timestamp_to_ask
from headrace.errors import LogTruncated, PositionOutOfRange
from headrace_common.core.batch import build_gap_batch, decode_batch, filter_records, strip_records
from headrace_common.core.errors import (
    CorruptBatch,
    DataLost,
    ErrorCode,
    InvalidConfig,
    LeaderNotAvailable,
    NetworkFailed,
    Rejected,
    UnknownTopicOrPartition,
    unknown_topic,
)
from headrace_common.core.ids import NO_NODE, NodeId, TopicId, TopicPartition

from .fetching import T0, T1, TOPIC_ID, A, B, PlainLog, answer_for, batch, control, hand_out, look_up, refusal

K0, K1 = (TOPIC_ID, 0), (TOPIC_ID, 1)
BEGINNING = Beginning()
SMALL = FetchLimits(fetch_max_bytes=1000, max_partition_fetch_bytes=400, api_timeout_ms=5000)


def reading(
    *tps: TopicPartition, limits: FetchLimits = SMALL, reset: Start | None = BEGINNING, at: int = 0
) -> FetchPositions:
    core = FetchPositions(limits, reset)
    for tp in tps or (T0,):
        core.add(tp, at)
        core.placed(tp, TOPIC_ID, A, 0, 0.0)
    return core


def asked(plan: FetchPlan | None) -> dict[int, int]:
    assert plan is not None
    return {partition: entry.offset for (_, partition), entry in plan.entries.items()}


def test_a_start_is_looked_up_before_anything_is_fetched() -> None:
    core = FetchPositions(SMALL, End())
    core.add(T0, End())
    assert core.lookups() == {}
    core.placed(T0, TOPIC_ID, A, 3, 0.0)
    assert core.fetch(A) is None
    assert core.state.care
    [lookup] = core.lookups()[A]
    assert core.lookups() == {}, "one at a time"
    core.looked_up(lookup, 42)
    assert core.rooms.wakes == {A}
    assert asked(core.fetch(A)) == {0: 42}


def test_a_time_with_nothing_after_it_is_the_end() -> None:
    core = FetchPositions(SMALL, None)
    core.add(T0, AtTime(99_999))
    core.placed(T0, TOPIC_ID, A, 0, 0.0)
    [lookup] = core.lookups()[A]
    core.looked_up(lookup, -1)
    [again] = core.lookups()[A]
    assert again.start == End()


def test_the_next_fetch_leaves_as_soon_as_the_answer_is_in() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    assert asked(plan) == {0: 0}
    assert core.fetch(A) is None, "one on the wire"
    core.rooms.wakes.clear()
    assert core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    assert core.rooms.wakes == {A}
    again = core.fetch(A)
    assert asked(again) == {0: 2}, "before anything was handed out"
    assert [entry.offset for entry in again.changed] == [2]
    assert not again.rebuilt
    assert hand_out(core) == (T0, [0, 1])
    assert core.partitions[T0].position == 2


def test_nothing_is_fetched_while_more_than_half_of_the_room_is_full() -> None:
    core, log = reading(), PlainLog()
    for _ in range(4):
        log.append(1, hole=0)
    plan = core.fetch(A)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 4, 0, [batch(n, size=200) for n in range(4)])], 0.0)
    core.rooms.wakes.clear()
    assert core.fetch(A) is None
    while not core.rooms.wakes:
        assert hand_out(core) is not None
    again = core.fetch(A)
    buffered = core.partitions[T0].buffered_bytes
    assert again.max_bytes + buffered == SMALL.fetch_max_bytes


def test_records_below_the_fetch_offset_are_cut() -> None:
    core, log = reading(at=3), PlainLog()
    log.append(5)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    assert hand_out(core) == (T0, [3, 4])


def test_positions_move_past_markers_and_holes() -> None:
    core, log = reading(), PlainLog()
    log.append(1)
    log.append_control()
    log.append(2, hole=5)
    log.append_control()
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    assert hand_out(core) == (T0, [0])
    assert hand_out(core) == (T0, [7, 8])
    assert hand_out(core) is None
    assert core.partitions[T0].position == 10


def test_partitions_take_turns() -> None:
    core = reading(T0, T1, limits=FetchLimits())
    logs = {K0: PlainLog(), K1: PlainLog()}
    for log in logs.values():
        for _ in range(3):
            log.append(1)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, key, log) for key, log in logs.items()], 0.0)
    turns = [hand_out(core) for _ in range(6)]
    assert [tp.partition for tp, _ in turns] == [0, 1, 0, 1, 0, 1]


def test_those_served_by_a_full_answer_come_last_in_the_next_fetch() -> None:
    core = reading(T0, T1)
    plan = core.fetch(A)
    assert list(plan.entries) == [K0, K1]
    big = batch(0, size=480)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 1, 0, [big])], 0.0)
    hand_out(core)
    again = core.fetch(A)
    assert again.rebuilt
    assert list(again.entries) == [K1, K0]


def test_a_seek_discards_what_was_asked_and_fetched_before() -> None:
    core, log = reading(), PlainLog()
    log.append(4)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    on_wire = core.fetch(A)
    stale = Answer(on_wire.entries[K0], 0, "", 9, 0, [batch(4)])
    core.seek(T0, 2)
    assert core.rooms.brokers[A].buffered_bytes == 0
    assert not core.answers.take(on_wire, [stale], 0.0), "asked before the seek"
    assert hand_out(core) is None
    plan = core.fetch(A)
    assert asked(plan) == {0: 2}
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    assert hand_out(core) == (T0, [2, 3])


def test_a_seek_to_the_same_offset_is_a_seek_too() -> None:
    core = reading()
    plan = core.fetch(A)
    core.seek(T0, 0)
    assert not core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 1, 0, [batch(0)])], 0.0)


def test_a_seek_while_a_batch_is_open_makes_the_rest_of_it_stale() -> None:
    core, log = reading(), PlainLog()
    log.append(4)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    opened = core.next_batch()
    epoch = opened.epoch
    core.seek(T0, 1)
    core.handed_out(opened, epoch, 4)
    assert core.partitions[T0].position == 1


def test_the_rest_of_a_batch_that_is_given_back_comes_next() -> None:
    core = reading(T0, T1, limits=FetchLimits())
    logs = {K0: PlainLog(), K1: PlainLog()}
    for log in logs.values():
        log.append(4)
        log.append(4)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, key, log) for key, log in logs.items()], 0.0)
    opened = core.next_batch()
    core.give_back(opened, opened.epoch, 2)
    assert [hand_out(core) for _ in range(4)] == [
        (T0, [2, 3]), (T1, [0, 1, 2, 3]), (T0, [4, 5, 6, 7]), (T1, [4, 5, 6, 7])
    ]  # fmt: skip
    assert core.rooms.brokers[A].buffered_bytes == 0


def test_a_paused_partition_keeps_what_was_fetched_and_asks_for_nothing() -> None:
    core, log = reading(T0, T1), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    core.pause(T0)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    assert hand_out(core) is None
    assert asked(core.fetch(A)) == {1: 0}
    core.resume(T0)
    assert hand_out(core) == (T0, [0, 1])


def test_paused_partitions_keep_no_more_than_one_room() -> None:
    core = reading(T0, T1)
    plan = core.fetch(A)
    big = [batch(0, size=600)]
    core.answers.take(plan, [Answer(plan.entries[k], 0, "", 1, 0, big) for k in (K0, K1)], 0.0)
    core.pause(T0)
    assert core.partitions[T0].buffered_bytes > 600
    core.pause(T1)
    assert core.partitions[T1].buffered_bytes == 0, "fetched again after resume"
    assert core.rooms.paused_bytes <= SMALL.fetch_max_bytes
    core.resume(T1)
    assert asked(core.fetch(A)) == {1: 0}


def test_a_position_that_is_gone_is_reset_and_the_range_is_told() -> None:
    core, log = reading(), PlainLog(start=100, end=150)
    plan = core.fetch(A)
    assert not core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    look_up(core, {T0: log})
    assert core.partitions[T0].position == 100
    [event] = core.state.events
    assert event == PositionReset(T0, lost=0, position=100, log_start=100)
    assert "records 0 to 99 were not read" in str(event)
    assert asked(core.fetch(A)) == {0: 100}


def test_a_reset_to_the_end_tells_what_was_deleted_from_what_is_passed_over() -> None:
    core, log = reading(reset=End(), at=20), PlainLog(start=100, end=150)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    look_up(core, {T0: log})
    [event] = core.state.resets
    assert isinstance(event, PositionReset)
    assert (event.gone, event.skipped, event.position) == (range(20, 100), range(100, 150), 150)
    assert "records 20 to 149 were not read (the log still holds those from 100 on)" in str(event)


def test_a_position_above_the_end_lost_nothing() -> None:
    core, log = reading(at=200), PlainLog(start=100, end=150)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    look_up(core, {T0: log})
    [event] = core.state.resets
    assert isinstance(event, PositionReset)
    assert (list(event.gone), list(event.skipped), event.position) == ([], [], 100)
    assert "the log ended before 200: records may be read again" in str(event)


def test_what_was_fetched_is_handed_out_before_a_reset() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    log.trim(2)
    log.start, log.end = 50, 60
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    assert core.fetch(A) is None, "it waits until the buffer is empty"
    assert hand_out(core) == (T0, [0, 1])
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    look_up(core, {T0: log})
    assert core.partitions[T0].position == 50


def test_without_a_reset_rule_a_position_that_is_gone_is_raised_once_per_poll() -> None:
    core, log = reading(reset=None), PlainLog(start=100, end=150)
    for _ in range(2):
        plan = core.fetch(A)
        assert core.answers.take(plan, [answer_for(plan, K0, log)], 0.0), "there is something to raise"
        assert core.fetch(A) is None
        error = core.take_failure(0.0)
        assert isinstance(error, PositionOutOfRange)
        assert (error.partition, error.gone, error.log_start, error.log_end) == (T0, range(100), 100, 150)
        assert "records 0 to 99 were deleted before they were read; the log holds 100 to 149" in str(error)
        assert core.take_failure(0.0) is None
    core.seek(T0, 120)
    assert asked(core.fetch(A)) == {0: 120}


def test_without_a_reset_rule_a_partition_without_position_is_named() -> None:
    core = FetchPositions(SMALL, None)
    core.add(T0, None)
    core.placed(T0, TOPIC_ID, A, 0, 0.0)
    assert core.without_position() == [T0]
    assert core.lookups() == {}
    core.seek(T0, 0)
    assert core.without_position() == []


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.REQUEST_TIMED_OUT]
)
def test_a_partition_whose_leader_moved_waits_for_metadata(code: ErrorCode) -> None:
    core = reading(T0, T1)
    plan = core.fetch(A)
    core.answers.take(plan, [refusal(plan, K0, code)], 1000.0)
    assert core.state.refresh_reason is not None
    assert asked(core.fetch(A)) == {1: 0}, "the other one goes on"
    core.placed(T0, TOPIC_ID, B, 1, 1001.0)
    assert asked(core.fetch(B)) == {0: 0}, "a new leader is asked at once"


def test_a_hint_at_the_new_leader_is_followed_at_once() -> None:
    core = reading()
    plan = core.fetch(A)
    core.answers.take(plan, [refusal(plan, K0, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(B, 7))], 0.0)
    assert asked(core.fetch(B)) == {0: 0}
    core.placed(T0, TOPIC_ID, A, 6, 0.0)
    assert core.partitions[T0].leader == B, "metadata that is older than the hint changes nothing"


def test_pauses_double_up_to_a_bound_and_end_with_the_first_good_answer() -> None:
    core = reading()
    now, pauses = 0.0, []
    for _ in range(6):
        plan = core.fetch(A)
        core.answers.take(plan, [refusal(plan, K0, ErrorCode.OVERLOADED)], now)
        due = core.tick(now)
        pauses.append(due - now)
        assert core.fetch(A) is None
        now = due
        assert core.tick(now) is None
    assert pauses == [100, 200, 400, 800, 1000, 1000]
    core.answers.take(core.fetch(A), [], now)
    assert core.partitions[T0].trouble is None
    assert core.take_failure(now + 100_000) is None


def test_a_partition_stuck_for_too_long_is_told_and_tried_again() -> None:
    core = reading()
    core.answers.fail(core.fetch(A), NetworkFailed("connection refused by 127.0.0.1:1"), 0.0)
    assert core.take_failure(4999.0) is None
    error = core.take_failure(5000.0)
    assert isinstance(error, NetworkFailed)
    assert "t-0 could not be read for 5 s (1 attempts): connection refused by 127.0.0.1:1" in str(error)
    assert core.take_failure(5001.0) is None, "once per timeout"
    core.tick(5001.0)
    assert asked(core.fetch(A)) == {0: 0}


def test_a_partition_without_leader_is_stuck_too() -> None:
    core = FetchPositions(SMALL, Beginning())
    core.add(T0, 0)
    core.placed(T0, TOPIC_ID, NO_NODE, 4, 0.0)
    now = 0.0
    while now < 5000:
        core.state.refresh_reason = None
        now = core.tick(now)
    assert core.state.refresh_reason, "each pause ends with another refresh"
    assert isinstance(core.take_failure(now), LeaderNotAvailable)


def test_a_topic_that_metadata_does_not_know_is_raised_after_the_timeout() -> None:
    core = FetchPositions(SMALL, Beginning())
    core.add(T0, 0)
    core.unplaced(T0, unknown_topic("t"), 0.0)
    core.tick(200.0)
    error = core.take_failure(6000.0)
    assert isinstance(error, UnknownTopicOrPartition)
    assert "topic 't' does not exist" in str(error)


def test_what_cannot_be_retried_is_raised_and_the_position_stays() -> None:
    core = reading()
    plan = core.fetch(A)
    assert core.answers.take(plan, [refusal(plan, K0, ErrorCode.REPLICA_DAMAGED)], 0.0)
    assert core.take_failure(0.0).code is ErrorCode.REPLICA_DAMAGED
    assert core.partitions[T0].position == 0


def test_a_request_that_is_refused_as_a_whole_is_raised_once() -> None:
    core = reading(T0, T1)
    core.answers.fail(core.fetch(A), Rejected("min_bytes is negative"), 0.0)
    assert isinstance(core.take_failure(0.0), Rejected)
    assert core.take_failure(0.0) is None


def test_a_failure_comes_after_the_records_before_it() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    log.batches.append(b"these bytes are no batch, however one looks at them" * 2)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for_raw(plan, log)], 0.0)
    assert core.take_failure(0.0) is None
    assert hand_out(core) == (T0, [0, 1])
    error = core.take_failure(0.0)
    assert isinstance(error, CorruptBatch)
    assert str(error).startswith("t-0@2: ")
    assert asked(core.fetch(A)) == {0: 2}, "asked again after it was told"


def answer_for_raw(plan: FetchPlan, log: PlainLog) -> Answer:
    return Answer(plan.entries[K0], 0, "", log.end, log.start, log.batches)


def test_batches_that_overlap_are_refused() -> None:
    core = reading()
    plan = core.fetch(A)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 9, 0, [batch(0, 4), batch(2, 4)])], 0.0)
    assert hand_out(core) == (T0, [0, 1, 2, 3])
    assert isinstance(core.take_failure(0.0), CorruptBatch)


def test_a_batch_that_cannot_be_decoded_is_fetched_again_from_the_position() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    opened = core.next_batch()
    told = core.meet_damage(opened, opened.epoch, 1, CorruptBatch("rubbish"))
    assert str(told) == "t-0@1: rubbish; reading can go on at offset 2, see Consumer.skip_batch()"
    assert core.partitions[T0].stuck_at == (1, 2, told)
    on_wire = core.fetch(A)
    assert asked(on_wire) == {0: 1}


def test_a_record_that_the_application_could_not_take_is_no_unreadable_batch() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    opened = core.next_batch()
    own = Rejected("no JSON")
    assert core.meet_damage(opened, opened.epoch, 0, own) is own
    assert core.partitions[T0].unreadable is None


def test_a_skip_goes_on_behind_the_batch_and_a_rewind_before_it() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    log.append(3)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    assert hand_out(core) == (T0, [0, 1])
    opened = core.next_batch()
    core.meet_damage(opened, opened.epoch, 2, CorruptBatch("rubbish"))
    assert core.skip(T0)[:2] == (2, 5)
    assert core.partitions[T0].position == 5
    assert core.partitions[T0].stuck_at is None
    core.rewind(T0)
    [recall] = core.recalls()
    core.looked_up(recall, 0)
    assert core.partitions[T0].position == 0


def test_a_header_that_cannot_be_read_is_skipped_up_to_the_next_that_can() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    rubbish = b"these bytes are no batch, however one looks at them" * 2
    plan = core.fetch(A)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 9, 0, [*log.batches, rubbish, rubbish, batch(6, 3)])], 0.0)
    assert core.partitions[T0].stuck_at is None, "there are records before it"
    hand_out(core)
    assert isinstance(core.take_failure(0.0), CorruptBatch)
    assert core.partitions[T0].stuck_at[:2] == (2, 6)
    core.skip(T0)
    assert core.partitions[T0].position == 6
    plan = core.fetch(A)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 9, 0, [rubbish])], 0.0)
    core.take_failure(0.0)
    assert core.partitions[T0].stuck_at[:2] == (6, 7), "without one, by one offset"


def test_a_topic_created_again_is_told_and_starts_by_the_rule() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    hand_out(core)
    core.placed(T0, TopicId(b"u" * 16), A, 0, 0.0)
    assert list(core.state.events) == [TopicRecreated(T0, 2)]
    assert look_up(core, {T0: PlainLog()}) == 1
    assert core.partitions[T0].position == 0


def test_removed_partitions_give_their_room_back_and_later_answers_are_nothing() -> None:
    core, log = reading(T0, T1), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    on_wire = core.fetch(A)
    late = Answer(on_wire.entries[K0], 0, "", 3, 0, [batch(2)])
    core.remove(T0)
    assert core.rooms.brokers[A].buffered_bytes == 0
    assert not core.answers.take(on_wire, [late], 0.0)
    assert hand_out(core) is None
    assert asked(core.fetch(A)) == {1: 0}


def test_a_thousand_partitions_cost_one_entry_when_one_has_news() -> None:
    tps = [TopicPartition("t", n) for n in range(1000)]
    core, log = reading(*tps, limits=FetchLimits()), PlainLog()
    log.append(1)
    plan = core.fetch(A)
    assert len(plan.changed) == 1000
    core.answers.take(plan, [answer_for(plan, (TOPIC_ID, 7), log)], 0.0)
    again = core.fetch(A)
    assert not again.rebuilt
    assert [(e.partition.tp.partition, e.offset) for e in again.changed] == [(7, 1)]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("latest", End()),
        ("earliest", Beginning()),
        ("none", None),
        ("by_duration:PT1H", Ago(3_600_000)),
        ("by_duration:P1DT12H30M0.5S", Ago(131_400_500)),
    ],
)
def test_reset_rules(text: str, start: Start | None) -> None:
    assert parse_reset(text) == start


@pytest.mark.parametrize("text", ["", "smallest", "by_duration:", "by_duration:PT0S", "by_duration:1h", "latest:PT1H"])
def test_other_reset_rules_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidConfig, match="PT1H"):
        parse_reset(text)


def test_a_duration_counts_back_from_when_it_is_looked_up() -> None:
    assert timestamp_to_ask(Ago(1000), 5000) == 4000
    assert timestamp_to_ask(Ago(9000), 5000) == 0


def test_control_batches_alone_are_nothing_to_hand_out() -> None:
    core = reading()
    plan = core.fetch(A)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 1, 0, [control(0)])], 0.0)
    assert core.next_batch() is None
    assert core.partitions[T0].position == 1
    assert NodeId(1) == A


def test_positions_move_past_batches_that_compaction_emptied() -> None:
    """Headers alone, in front, between and behind, are nothing to hand out and take no room."""
    core = reading()
    plan = core.fetch(A)
    gap = build_gap_batch(3, 100, 0, base_timestamp=0, max_timestamp=0)
    batches = [
        strip_records(batch(0, 3)),
        gap,
        batch(100, 2),
        strip_records(batch(102, 2, transaction_of=7)),
        strip_records(batch(104, 1)),
    ]
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 105, 0, batches)], 0.0)
    assert hand_out(core) == (T0, [100, 101])
    assert hand_out(core) is None
    assert core.partitions[T0].position == core.partitions[T0].fetch_offset == 105


def test_a_batch_that_compaction_made_sparse_is_handed_out_as_it_is() -> None:
    core = reading(at=1)
    plan = core.fetch(A)
    sparse = filter_records(batch(0, 5), [True, False, True, True, False])
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 5, 0, [sparse])], 0.0)
    partition = core.next_batch()
    assert partition is not None
    assert partition.open is not None
    run = run_of(partition, decode_batch(partition.open.batch), Deserializers())
    assert [record.offset for record in run.take(9)] == [2, 3]
    core.handed_out(partition, partition.epoch, run.position)
    assert core.partitions[T0].position == 5


def test_who_comes_too_late_for_a_fetch_is_told_to_the_shell() -> None:
    core = reading(T0, T1)
    core.pause(T1)
    plan = core.fetch(A)
    assert asked(plan) == {0: 0}
    core.resume(T1)
    assert core.rooms.late == {A}
    core.rooms.late.clear()
    core.answers.abandon(plan)
    assert core.rooms.wakes == {A}
    assert asked(core.fetch(A)) == {0: 0, 1: 0}
    core.seek(T0, 5)
    assert core.rooms.late == {A}


def test_an_answer_makes_nobody_late() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    core.fetch(A)
    hand_out(core)
    assert core.rooms.late == set()


def test_a_batch_that_ends_before_what_was_asked_for_is_dropped() -> None:
    core = reading(at=4)
    plan = core.fetch(A)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 6, 0, [batch(0, 4), batch(4, 2)])], 0.0)
    assert hand_out(core) == (T0, [4, 5])


# --- replicas near the client, and logs that lost what was read ---------------------------------------------------


def named(plan: FetchPlan, replica: NodeId) -> Answer:
    """The leader's answer that names a replica."""
    return Answer(plan.entries[K0], 0, "", 10, 0, [], None, None, replica)


def diverging(plan: FetchPlan, epoch: int, end: int) -> Answer:
    return Answer(plan.entries[K0], 0, "", 10, 0, [], None, (epoch, end))


def following(*, reset: Start | None = BEGINNING) -> FetchPositions:
    """Reads T0, which A leads, from B."""
    core = reading(reset=reset)
    plan = core.fetch(A)
    core.answers.take(plan, [named(plan, B)], 0.0)
    return core


def test_the_replica_that_the_leader_names_is_read_from() -> None:
    core, log = following(), PlainLog()
    log.append(3)
    assert B in core.rooms.wakes
    assert core.fetch(A) is None
    plan = core.fetch(B)
    assert asked(plan) == {0: 0}
    assert core.answers.take(plan, [answer_for(plan, K0, log)], 1.0)
    assert hand_out(core) == (T0, [0, 1, 2])
    assert asked(core.fetch(B)) == {0: 3}


def test_after_some_time_the_leader_is_asked_again() -> None:
    core = following()
    assert core.tick(SMALL.follow_ms - 1.0) == SMALL.follow_ms
    core.tick(float(SMALL.follow_ms))
    plan = core.fetch(A)
    assert asked(plan) == {0: 0}
    assert not plan.entries[K0].partition.from_leader, "it may name one again"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_DAMAGED,
    ],
)
def test_a_follower_that_errs_is_left_at_once_and_its_word_is_not_believed(code: ErrorCode) -> None:
    core = following()
    plan = core.fetch(B)
    core.answers.take(plan, [refusal(plan, K0, code)], 0.0)
    again = core.fetch(A)
    assert asked(again) == {0: 0}, "no reset, no pause"
    assert again.entries[K0].partition.from_leader
    assert not core.state.events
    core.answers.take(again, [named(again, B)], 1.0)
    assert asked(core.fetch(A)) == {0: 0}, "a leader that names it all the same is not obeyed"
    core.tick(20_000.0)
    assert not core.partitions[T0].from_leader


def test_a_follower_that_cannot_be_reached_is_left_at_once() -> None:
    core = following()
    plan = core.fetch(B)
    core.answers.fail(plan, NetworkFailed("gone"), 0.0)
    assert asked(core.fetch(A)) == {0: 0}


def test_a_follower_that_does_not_know_enough_yet_is_asked_again_for_a_while() -> None:
    core, now = following(), 0.0
    for _ in range(5):
        plan = core.fetch(B)
        core.answers.take(plan, [refusal(plan, K0, ErrorCode.OFFSET_NOT_AVAILABLE)], now)
        assert core.fetch(A) is None
        assert core.fetch(B) is None, "after a pause"
        now += 2_000.0
        core.tick(now)
    plan = core.fetch(B)
    core.answers.take(plan, [refusal(plan, K0, ErrorCode.OFFSET_NOT_AVAILABLE)], now)
    assert asked(core.fetch(A)) == {0: 0}


def test_another_leader_is_asked_itself() -> None:
    core = following()
    core.placed(T0, TOPIC_ID, NodeId(3), 1, 0.0)
    assert asked(core.fetch(NodeId(3))) == {0: 0}


def test_the_epoch_of_what_was_read_last_goes_along_and_a_seek_forgets_it() -> None:
    core, log = reading(), PlainLog()
    log.append(2)
    plan = core.fetch(A)
    assert plan.entries[K0].last_epoch == -1
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    plan = core.fetch(A)
    assert plan.entries[K0].last_epoch == 0
    core.answers.take(plan, [], 0.0)
    core.seek(T0, 1)
    assert core.fetch(A).entries[K0].last_epoch == -1


def read_three(*, reset: Start | None) -> FetchPositions:
    core, log = reading(reset=reset), PlainLog()
    log.append(3)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    return core


def test_a_log_that_lost_what_was_read_is_told_where_nothing_is_reset() -> None:
    core = read_three(reset=None)
    plan = core.fetch(A)
    core.answers.take(plan, [diverging(plan, 0, 1)], 0.0)
    assert core.take_failure(0.0) is None
    assert hand_out(core) == (T0, [0, 1, 2]), "what is here comes first"
    plan = core.fetch(A)
    assert core.answers.take(plan, [diverging(plan, 0, 1)], 0.0)
    error = core.take_failure(0.0)
    assert isinstance(error, LogTruncated)
    assert isinstance(error, DataLost)
    assert (error.partition, error.offset) == (T0, 1)
    assert "records 1 to 2 were read and are lost" in str(error)
    assert core.partitions[T0].position == 3, "nothing moves by itself"
    core.seek(T0, 1)
    assert asked(core.fetch(A)) == {0: 1}


def test_with_a_reset_reading_goes_on_where_the_log_is_still_the_same() -> None:
    core = read_three(reset=BEGINNING)
    assert hand_out(core) == (T0, [0, 1, 2])
    plan = core.fetch(A)
    core.answers.take(plan, [diverging(plan, 0, 1)], 0.0)
    assert list(core.state.events) == [LogDiverged(T0, 3, 1)]
    again = core.fetch(A)
    assert asked(again) == {0: 1}
    assert again.entries[K0].last_epoch == -1


def test_a_follower_that_says_the_log_is_another_is_not_believed() -> None:
    core = following()
    core.partitions[T0].last_epoch = 0
    plan = core.fetch(B)
    core.answers.take(plan, [diverging(plan, 0, 0)], 0.0)
    assert asked(core.fetch(A)) == {0: 0}
    assert not core.state.events


def test_a_hint_of_the_same_broker_under_a_newer_epoch_changes_the_request() -> None:
    core = reading()
    plan = core.fetch(A)
    core.answers.take(plan, [refusal(plan, K0, ErrorCode.FENCED_LEADER_EPOCH, leader=(A, 5))], 0.0)
    again = core.fetch(A)
    assert again.rebuilt
    assert again.entries[K0].partition.leader_epoch == 5


def test_a_start_that_a_silent_leader_was_asked_for_is_asked_of_the_next() -> None:
    core = FetchPositions(SMALL, End())
    core.add(T0, End())
    core.placed(T0, TOPIC_ID, A, 0, 0.0)
    [late] = core.lookups()[A]
    core.placed(T0, TOPIC_ID, B, 1, 0.0)
    [lookup] = core.lookups()[B]
    core.looked_up(lookup, 7)
    core.looked_up(late, 3)
    assert core.partitions[T0].position == 7
