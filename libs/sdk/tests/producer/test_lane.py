"""One partition as a dialogue: what is sent, what is answered, what is sent next."""

from __future__ import annotations

import pytest

from headrace._core.batch import Batch, Identity, Piece
from headrace._core.effects import Divided, DoubtLeader, Settle
from headrace._core.lane import Lane, LaneRules
from headrace.errors import (
    DeliveryTimedOut,
    ErrorCode,
    InvalidProducerEpoch,
    NetworkFailed,
    RecordTooLarge,
    UnknownOutcome,
)
from headrace_common.core.batch import Codec, decode_batch, read_header

ME = Identity(7, 0)
ANEW = Identity(7, 1)
LEADER, OTHER = 1, 2
LOST = NetworkFailed("the connection broke")


def rules(**changed: object) -> LaneRules:
    given: dict[str, object] = {
        "idempotent": True,
        "in_flight_max": 5,
        "retries": 2**31 - 1,
        "delivery_timeout_ms": 10_000,
        "backoff_ms": 100,
        "backoff_max_ms": 1_000,
        "codec": Codec.NONE,
    }
    return LaneRules(**{**given, **changed})  # a test's shorthand


def piece(*values: bytes, size: int = 10) -> Piece:
    return Piece(list(values), None, 1_000, None, size * len(values))


def drain(
    lane: Lane, now: float = 0, broker: int = LEADER, identity: Identity | None = ME, epoch: int = 0
) -> list[Batch]:
    """All that leaves now."""
    sent = []
    while True:
        if lane.wants_identity():
            if identity is None or identity == lane.identity:
                return sent
            lane.renew(identity)
        batch, _ = lane.next((broker, epoch), now, identity)
        if batch is None:
            return sent
        sent.append(batch)


def numbers(batches: list[Batch]) -> list[tuple[int, int, int]]:
    """(epoch, first sequence, records), as on the wire."""
    headers = [read_header(batch.encoded or b"") for batch in batches]
    return [(h.producer_epoch, h.base_sequence, h.record_count) for h in headers]


def filled(*sizes: int, new: bool = False, **changed: object) -> Lane:
    """Batches of so many records, which cannot join each other; the leader knows the producer, unless it is ``new``."""
    made = Lane("t", 0, rules(**changed), 1 << 20)
    if not new:
        made.renew(ME)
        made.proven, made.left_ms = True, 0
    for number, count in enumerate(sizes):
        made.join(piece(*[b"%d" % number] * count, size=30 // count), 0, 20)
    return made


def test_batches_leave_in_order_with_sequences_that_follow() -> None:
    lane = filled(2, 3, 1)
    assert numbers(drain(lane)) == [(0, 0, 2), (0, 2, 3), (0, 5, 1)]
    assert lane.in_flight == 3
    assert drain(lane) == []


def test_no_more_than_five_are_under_way() -> None:
    lane = filled(*[1] * 7)
    first = drain(lane)
    assert len(first) == 5
    [settled] = lane.acked(first[0], 40, -1)
    assert settled == Settle(first[0], 30)
    assert first[0].outcome == (40, -1, None)
    assert numbers(drain(lane)) == [(0, 5, 1)]


def test_until_the_leader_knows_the_producer_one_batch_is_under_way() -> None:
    lane = filled(1, 1, 1, new=True)
    [one] = drain(lane)
    lane.lost(one, LOST, 0)
    assert drain(lane, now=100) == [one], "the log would take any other sequence first"
    lane.acked(one, 0, -1)
    assert numbers(drain(lane, now=100)) == [(0, 1, 1), (0, 2, 1)]


def test_after_a_long_pause_the_leader_may_have_forgotten_the_producer() -> None:
    lane = filled(1, 1)
    assert len(drain(lane, now=60_001)) == 1


def test_nothing_leaves_without_an_identity() -> None:
    lane = filled(1, new=True)
    assert drain(lane, identity=None) == []
    assert lane.wants_identity()
    assert numbers(drain(lane)) == [(0, 0, 1)]


def test_without_idempotence_there_are_no_sequences() -> None:
    lane = filled(1, 1, new=True, idempotent=False)
    assert not lane.wants_identity()
    assert numbers(drain(lane, identity=None)) == [(-1, -1, 1), (-1, -1, 1)]


def test_rows_join_a_waiting_batch_until_it_is_full() -> None:
    lane = Lane("t", 0, rules(idempotent=False), 1 << 20)
    [(_, first, place)] = lane.join(piece(b"a", b"b", size=200), 0, 600)
    assert place == 0
    [(_, second, place)] = lane.join(piece(b"c", size=200), 0, 600)
    assert second is first
    assert place == 2
    [(_, third, place)] = lane.join(piece(b"d", size=200), 0, 600)
    assert third is not first
    assert place == 0
    [sent, other] = drain(lane)
    assert decode_batch(sent.encoded or b"").values() == [b"a", b"b", b"c"]
    [(_, late, _)] = lane.join(piece(b"e", size=1), 5, 600)
    assert late not in (sent, other), "what has left takes nothing in"


def test_a_piece_much_larger_than_a_batch_is_cut() -> None:
    lane = Lane("t", 0, rules(), 1 << 20)
    joined = lane.join(piece(*[b"%d" % n for n in range(10)], size=200), 0, 600)
    assert [(start, batch.count, place) for start, batch, place in joined] == [(s, 3, 0) for s in (0, 3, 6)] + [
        (9, 1, 0)
    ]
    assert sum(batch.size_bytes for _, batch, _ in joined) == 2_000


def test_a_lost_answer_stops_the_lane_until_all_came_back_and_then_all_repeat_in_order() -> None:
    lane = filled(1, 1, 1)
    one, two, three = drain(lane)
    before = [one.encoded, two.encoded, three.encoded]
    assert lane.lost(one, LOST, 0) == [DoubtLeader("t", 0, 0, str(LOST))]
    lane.join(piece(b"new", size=30), 0, 20)
    assert drain(lane, now=500) == [], "two are still under way"
    lane.acked(two, 11, -1)
    lane.lost(three, LOST, 10)
    assert drain(lane, now=50) == [], "the backoff is not over"
    again = drain(lane, now=200)
    assert again[:2] == [one, three]
    assert [one.encoded, two.encoded, three.encoded] == [before[0], None, before[2]], "the same bytes"
    assert numbers(again) == [(0, 0, 1), (0, 2, 1), (0, 3, 1)]


def test_a_missing_answer_holds_the_window_back() -> None:
    """A broker remembers five batches: were more sent, it would not know the first again."""
    lane = filled(*[1] * 9)
    first, *others = drain(lane)
    for batch in others:
        lane.acked(batch, 0, -1)
    assert drain(lane) == []
    lane.lost(first, LOST, 0)
    assert drain(lane, now=100) == [first]
    lane.acked(first, 0, -1)
    assert len(drain(lane, now=100)) == 4
    assert lane.in_flight == 4


def test_backoff_doubles_up_to_its_bound() -> None:
    lane = filled(1)
    waits = []
    now = 0.0
    for _ in range(6):
        [batch] = drain(lane, now=now)
        lane.lost(batch, LOST, now)
        waits.append(lane.not_before_ms - now)
        now = lane.not_before_ms
    assert waits == [100, 200, 400, 800, 1_000, 1_000]


def test_while_batches_are_with_one_leader_nothing_goes_to_another() -> None:
    lane = filled(1, 1, in_flight_max=1)
    [one] = drain(lane)
    lane._rules = rules()
    assert drain(lane, broker=OTHER) == []
    lane.acked(one, 0, -1)
    assert len(drain(lane, broker=OTHER)) == 1


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.FENCED_LEADER_EPOCH],
)
def test_whoever_is_not_the_leader_is_asked_no_more(code: ErrorCode) -> None:
    lane = filled(1)
    [one] = drain(lane)
    [effect] = lane.refused(one, code, "", 0)
    assert isinstance(effect, DoubtLeader)
    assert drain(lane, now=100, broker=OTHER) == [one]


@pytest.mark.parametrize("code", [ErrorCode.DISK_FULL, ErrorCode.OVERLOADED, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_a_busy_leader_is_asked_again_later_without_new_metadata(code: ErrorCode) -> None:
    lane = filled(1)
    [one] = drain(lane)
    assert lane.refused(one, code, "", 0) == []
    assert drain(lane, now=99) == []
    assert drain(lane, now=100) == [one]


def test_a_broker_that_is_going_is_left_and_has_surely_not_written() -> None:
    lane = filled(1)
    [one] = drain(lane)
    [effect] = lane.refused(one, ErrorCode.BROKER_NOT_AVAILABLE, "", 0)
    assert isinstance(effect, DoubtLeader)
    assert not one.uncertain


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_CONTROLLER])
def test_what_passes_is_repeated_and_not_certain_unless_it_says_so(code: ErrorCode) -> None:
    lane = filled(1)
    [one] = drain(lane)
    assert lane.refused(one, code, "", 0) == []
    assert one.uncertain
    assert drain(lane, now=100) == [one]


def test_out_of_order_behind_a_failure_is_only_repeated() -> None:
    lane = filled(1, 1)
    one, two = drain(lane)
    lane.refused(one, ErrorCode.OVERLOADED, "", 0)
    lane.refused(two, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", 0)
    assert not lane.gap
    again = drain(lane, now=100)
    assert again == [one, two]
    assert numbers(again) == [(0, 0, 1), (0, 1, 1)]


def test_out_of_order_with_nothing_before_it_numbers_anew_under_the_next_epoch() -> None:
    lane = filled(2, 1)
    one, two = drain(lane)
    lane.refused(one, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", 0)
    assert not lane.wants_identity(), "the second is still under way"
    lane.refused(two, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", 0)
    assert lane.wants_identity()
    assert drain(lane, identity=ANEW) == [one]
    lane.acked(one, 0, -1)
    assert drain(lane, identity=ANEW) == [two]
    assert numbers([two]) == [(1, 2, 1)]


def test_after_a_timeout_later_batches_are_decided_before_they_are_numbered_anew() -> None:
    lane = filled(1, 1)
    lane.waiting[1].created_ms = 5_000
    one, two = drain(lane)
    lane.lost(one, LOST, 0)
    lane.lost(two, LOST, 0)
    [settled] = lane.expire(10_000)
    assert isinstance(settled, Settle)
    assert settled.batch is one
    assert one.outcome is not None
    assert isinstance(one.outcome.error, DeliveryTimedOut)
    assert "may have been written" in str(one.outcome.error)
    lane.join(piece(b"new", size=30), 10_000, 20)
    assert drain(lane, now=10_000) == [two], "its fate is unknown, so it keeps its sequence"
    assert numbers([two]) == [(0, 1, 1)]
    lane.refused(two, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", 10_000)
    assert drain(lane, now=10_000, identity=ANEW) == [two]
    assert numbers([two]) == [(1, 0, 1)]
    lane.acked(two, 0, -1)
    assert numbers(drain(lane, now=10_000, identity=ANEW)) == [(1, 1, 1)]


def test_after_a_timeout_of_what_was_written_the_rest_goes_on() -> None:
    lane = filled(1, 1)
    lane.waiting[1].created_ms = 5_000
    one, two = drain(lane)
    lane.expire(10_000)
    assert one.expired
    lane.join(piece(b"new", size=30), 10_000, 20)
    assert drain(lane, now=10_000) == []
    assert lane.acked(one, 0, -1) == [], "too late for the application"
    lane.acked(two, 1, -1)
    assert lane.wants_identity(), "a sequence may be missing, and nothing is left that could tell"
    assert numbers(drain(lane, identity=ANEW)) == [(1, 0, 1)]


def test_what_was_never_sent_times_out_without_a_gap() -> None:
    lane = filled(1, 1)
    effects = lane.expire(10_000)
    assert len(effects) == 2
    assert not lane.gap
    assert lane.idle


def test_too_large_batches_are_halved_under_the_same_sequences() -> None:
    lane = filled(5, 1)
    one, two = drain(lane)
    effects = lane.refused(one, ErrorCode.MESSAGE_TOO_LARGE, "", 0)
    assert effects[0] == Divided(one)
    lane.refused(two, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", 0)
    again = drain(lane)
    assert numbers(again) == [(0, 0, 2), (0, 2, 3), (0, 5, 1)]
    assert one.parts == (again[0], again[1])
    assert sum(part.size_bytes for part in one.parts or ()) == one.size_bytes


def test_a_single_record_that_is_too_large_fails_and_the_rest_goes_on() -> None:
    lane = filled(1, 1)
    one, two = drain(lane)
    [settled] = lane.refused(one, ErrorCode.MESSAGE_TOO_LARGE, "over the limit", 0)
    assert isinstance(settled, Settle)
    assert one.outcome is not None
    assert isinstance(one.outcome.error, RecordTooLarge)
    lane.refused(two, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", 0)
    assert numbers(drain(lane, identity=ANEW)) == [(1, 0, 1)]


def test_a_batch_above_the_topics_limit_is_halved_before_it_is_sent() -> None:
    lane = Lane("t", 0, rules(), 300)
    lane.renew(ME)
    lane.proven, lane.left_ms = True, 0
    [(_, whole, _)] = lane.join(piece(*[b"x" * 100] * 4, size=10), 0, 10_000)
    sent = drain(lane)
    assert len(sent) == 2
    assert whole.parts is not None
    assert numbers(sent) == [(0, 0, 2), (0, 2, 2)]


def test_a_fenced_producer_fails_the_batch_and_takes_a_new_epoch() -> None:
    lane = filled(1, 1)
    one, two = drain(lane)
    lane.refused(one, ErrorCode.INVALID_PRODUCER_EPOCH, "", 0)
    assert one.outcome is not None
    assert isinstance(one.outcome.error, InvalidProducerEpoch)
    lane.refused(two, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", 0)
    assert numbers(drain(lane, identity=ANEW)) == [(1, 0, 1)]


def test_retries_are_counted() -> None:
    lane = filled(1, new=True, retries=1, idempotent=False)
    [one] = drain(lane)
    lane.lost(one, LOST, 0)
    assert drain(lane, now=100) == [one]
    lane.lost(one, LOST, 100)
    assert one.outcome is not None
    assert one.outcome.error is LOST
    assert lane.idle


def test_sequences_wrap() -> None:
    lane = filled(1, 3, 1)
    lane.next_sequence = 2**31 - 2
    assert numbers(drain(lane)) == [(0, 2**31 - 2, 1), (0, 2**31 - 1, 3), (0, 2, 1)]


def test_an_idle_lane_takes_the_producers_identity_on() -> None:
    lane = filled(1)
    [one] = drain(lane)
    lane.acked(one, 0, -1)
    lane.join(piece(b"next"), 0, 600)
    assert numbers(drain(lane, identity=ANEW)) == [(1, 0, 1)]


def test_records_that_cannot_be_written_fail_alone() -> None:
    lane = filled(1, 1)
    lane.waiting[0].pieces = [Piece([b"x"], None, 1_000, [[("\ud800", b"")]], 10)]
    batch, effects = lane.next((LEADER, 0), 0, ME)
    assert batch is not None
    assert [type(effect) for effect in effects] == [Settle]
    assert numbers([batch]) == [(0, 0, 1)]


def test_abort_settles_everything_once() -> None:
    lane = filled(1, 1, 1, in_flight_max=2)
    one, two = drain(lane)
    lane.expire(10_000)
    effects = lane.abort(LOST)
    assert effects == [], "all had expired"
    assert lane.idle
    assert not one.in_flight
    assert not two.in_flight


def test_a_refusal_after_an_attempt_without_answer_is_no_proof() -> None:
    lane = filled(2)
    [one] = drain(lane)
    lane.lost(one, LOST, 0)
    assert drain(lane, now=100) == [one]
    lane.refused(one, ErrorCode.MESSAGE_TOO_LARGE, "", 100)
    assert one.parts is None
    assert one.outcome is not None
    assert isinstance(one.outcome.error, UnknownOutcome)


# --- leaders that change ------------------------------------------------------------------------------------------


def test_a_newer_leader_is_tried_at_once() -> None:
    lane = filled(1, 1)
    sent = drain(lane, epoch=3)
    for batch in sent:
        lane.refused(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER, "", 0)
    assert drain(lane, epoch=3) == [], "who has just refused is not asked at once"
    assert drain(lane, broker=OTHER, epoch=3) == [], "and what is no newer is not believed to be better"
    assert drain(lane, broker=OTHER, epoch=4) == sent
    for batch in sent:
        lane.refused(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER, "", 0)
    assert drain(lane, now=99, broker=OTHER, epoch=4) == []
    assert drain(lane, now=100, broker=OTHER, epoch=4) == sent, "under each epoch pauses begin anew"


def test_batches_that_come_back_together_are_one_failure() -> None:
    lane = filled(*[1] * 5)
    for batch in drain(lane):
        lane.lost(batch, LOST, 0)
    assert lane.not_before_ms == 100


def test_a_leader_that_has_not_heard_of_its_election_is_asked_again_soon() -> None:
    lane = filled(1)
    [one] = drain(lane, epoch=4)
    lane.refused(one, ErrorCode.UNKNOWN_LEADER_EPOCH, "", 0)
    assert lane.not_before_ms == 20


def test_nothing_goes_out_under_a_new_epoch_while_batches_of_the_old_are_under_way() -> None:
    lane = filled(1, 1, in_flight_max=2)
    [one, two] = drain(lane, epoch=1)
    lane.join(piece(b"x", size=30), 0, 20)
    lane.lost(one, LOST, 0)
    assert drain(lane, epoch=2) == []
    lane.lost(two, LOST, 0)
    assert drain(lane, epoch=2)[:2] == [one, two]


def test_appended_and_not_committed_is_repeated_and_not_certain() -> None:
    lane = filled(2)
    [one] = drain(lane)
    assert lane.refused(one, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "", 0) == [], "the leader is the right one"
    assert one.uncertain
    [again] = drain(lane, now=100)
    assert again is one
    assert numbers([again]) == [(0, 0, 2)]
    [settled] = lane.refused(one, ErrorCode.MESSAGE_TOO_LARGE, "", 100)
    assert isinstance(settled, Settle), "it is not divided: it may be written whole"
    assert isinstance(one.outcome.error if one.outcome else None, UnknownOutcome)


def test_what_stood_behind_a_refused_batch_follows_it_under_the_same_sequence() -> None:
    lane = filled(1, 1, 1)
    first, second, third = drain(lane)
    lane.refused(first, ErrorCode.NOT_ENOUGH_REPLICAS, "", 0)
    lane.refused(second, ErrorCode.OPERATION_NOT_ATTEMPTED, "", 0)
    lane.refused(third, ErrorCode.OPERATION_NOT_ATTEMPTED, "", 0)
    assert drain(lane) == []
    assert numbers(drain(lane, now=lane.not_before_ms)) == [(0, 0, 1), (0, 1, 1), (0, 2, 1)]


def test_what_stood_behind_a_batch_that_is_given_up_is_numbered_anew() -> None:
    lane = filled(1, 1, 1)
    first, second, third = drain(lane)
    lane.refused(first, ErrorCode.INVALID_RECORD, "", 0)
    lane.refused(second, ErrorCode.OPERATION_NOT_ATTEMPTED, "", 0)
    lane.refused(third, ErrorCode.OPERATION_NOT_ATTEMPTED, "", 0)
    assert first.outcome is not None
    assert first.outcome.error is not None
    assert lane.wants_identity()
    [left] = drain(lane, identity=ANEW)
    lane.acked(left, 0, -1)
    [last] = drain(lane, identity=ANEW)
    assert (left, last) == (second, third)
    assert numbers([last]) == [(1, 1, 1)]


def test_the_halves_of_a_batch_leave_before_what_stood_behind_it() -> None:
    lane = filled(2, 1)
    first, second = drain(lane)
    lane.refused(first, ErrorCode.MESSAGE_TOO_LARGE, "", 0)
    lane.refused(second, ErrorCode.OPERATION_NOT_ATTEMPTED, "", 0)
    assert numbers(drain(lane)) == [(0, 0, 1), (0, 1, 1), (0, 2, 1)]


def test_without_sequences_what_stood_behind_a_refused_batch_is_sent_again() -> None:
    lane = filled(1, 1, idempotent=False, new=True)
    first, second = drain(lane)
    lane.refused(first, ErrorCode.INVALID_RECORD, "", 0)
    lane.refused(second, ErrorCode.OPERATION_NOT_ATTEMPTED, "", 0)
    assert not second.uncertain
    assert drain(lane, now=lane.not_before_ms) == [second]
