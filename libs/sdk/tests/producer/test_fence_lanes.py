"""
The fencing token of one partition as dialogues: what waits for a fence, what its answers mean, and what a writer does
that has lost the partition. ``test_fences`` shows the same with brokers.
"""

from __future__ import annotations

import pytest
from libs.sdk.tests.producer.test_lane import ANEW, LEADER, LOST, ME, OTHER, drain, filled, numbers, piece

from headrace._core.batch import Batch
from headrace._core.chunk import Chunk
from headrace._core.effects import AskIdentity, DoubtLeader, Effect, SendBatches, Settle
from headrace._core.lane import Lane
from headrace._core.producing import Answer, BatchSizes, ProducerCore
from headrace.errors import DeliveryTimedOut, ErrorCode, FencedWriter, HeadraceError, Rejected, UnknownOutcome
from headrace_common.core.batch import decode_batch, read_fence, read_header

FENCED = ErrorCode.FENCED_WRITER


def fence(lane: Lane, token: int, created_ms: float = 0) -> Batch:
    """Ask for a token."""
    batch = Batch.of_fence("t", 0, token, created_ms=created_ms, timestamp_ms=1_000)
    lane.fence(batch)
    return batch


def fenced(*sizes: int, token: int = 5, epoch: int = 0, **changed: object) -> Lane:
    """A lane that has set ``token`` under leader epoch ``epoch``; then batches of so many records."""
    lane = filled(**changed)
    batch = fence(lane, token)
    assert drain(lane, epoch=epoch) == [batch]
    lane.acked(batch, 0, -1)
    for count in sizes:
        lane.join(piece(*[b"x"] * count, size=30 // count), 0, 20)
    return lane


def error_of(batch: Batch) -> HeadraceError:
    assert batch.outcome is not None
    assert batch.outcome.error is not None
    return batch.outcome.error


# --- in its turn ----------------------------------------------------------------------------------------------


def test_a_fence_leaves_when_all_before_it_is_decided_and_what_is_behind_it_carries_the_token() -> None:
    lane = filled(1, 1)
    one, two = drain(lane)
    setting = fence(lane, 5)
    lane.join(piece(b"behind", size=30), 0, 20)
    assert drain(lane) == []
    lane.acked(one, 0, -1)
    assert drain(lane) == []
    lane.acked(two, 1, -1)
    assert drain(lane) == [setting], "alone"
    assert (one.token, two.token, setting.token) == (None, None, None)
    assert lane.acked(setting, 2, 77) == [Settle(setting, 0)]
    assert setting.outcome == (2, 77, None)
    [behind] = drain(lane)
    assert behind.token == 5
    assert numbers([behind]) == [(0, 2, 1)], "the fence has no sequence"


def test_a_fence_is_a_control_batch_without_a_producer() -> None:
    lane = filled()
    setting = fence(lane, 7)
    drain(lane)
    assert setting.encoded is not None
    header = read_header(setting.encoded)
    assert (header.control, header.producer_id, header.base_sequence, header.record_count) == (True, -1, -1, 1)
    assert read_fence(decode_batch(setting.encoded)) == 7


def test_a_batch_before_a_fence_is_repeated_without_the_token() -> None:
    lane = filled(1)
    [one] = drain(lane)
    setting = fence(lane, 5)
    lane.lost(one, LOST, 0)
    assert drain(lane, now=100) == [one]
    assert one.token is None
    lane.acked(one, 0, -1)
    assert drain(lane, now=100) == [setting]


def test_rows_do_not_join_a_fence_nor_what_is_before_it() -> None:
    lane = filled()
    [(_, before, _)] = lane.join(piece(b"before"), 0, 600)
    setting = fence(lane, 5)
    [(_, behind, _)] = lane.join(piece(b"behind"), 0, 600)
    assert list(lane.waiting) == [before, setting, behind]
    lane.join(piece(b"more"), 0, 600)
    assert behind.count == 2


def test_the_outcome_of_a_fence_is_told_behind_those_of_the_calls_before() -> None:
    lane = filled(1)
    [one] = drain(lane)
    setting = fence(lane, 5)
    assert lane.reports() == []
    lane.acked(one, 0, -1)
    assert lane.reports() == [one]
    drain(lane)
    lane.acked(setting, 1, -1)
    assert lane.reports() == [setting]


def test_the_token_stays_through_leaders_epochs_and_a_new_identity() -> None:
    lane = fenced(1, token=5)
    [one] = drain(lane, epoch=1)
    lane.refused(one, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", 0)
    [again] = drain(lane, broker=OTHER, identity=ANEW, epoch=2)
    assert again is one
    assert numbers([one]) == [(1, 0, 1)]
    assert one.token == 5


def test_a_second_fence_waits_for_what_the_first_has_let_through() -> None:
    lane = fenced(1, token=5)
    [one] = drain(lane)
    setting = fence(lane, 6)
    lane.join(piece(b"behind", size=30), 0, 20)
    lane.lost(one, LOST, 0)
    assert drain(lane, now=100) == [one]
    assert one.token == 5, "as it was sent the first time"
    lane.acked(one, 1, -1)
    assert drain(lane, now=100) == [setting]
    lane.acked(setting, 2, -1)
    assert [batch.token for batch in drain(lane, now=100)] == [6]


def test_halves_carry_the_token_of_the_whole() -> None:
    lane = fenced(4)
    [one] = drain(lane)
    lane.refused(one, ErrorCode.MESSAGE_TOO_LARGE, "", 0)
    assert [batch.token for batch in drain(lane)] == [5, 5]


def test_without_idempotence_the_order_is_the_same() -> None:
    lane = filled(1, 1, new=True, idempotent=False)
    one, two = drain(lane, identity=None)
    setting = fence(lane, 5)
    lane.acked(one, 0, -1)
    lane.refused(two, ErrorCode.OVERLOADED, "", 0)
    assert drain(lane, now=100, identity=None) == [two]
    lane.acked(two, 1, -1)
    assert drain(lane, now=100, identity=None) == [setting]


def test_a_fence_says_nothing_of_whether_the_leader_knows_the_producer() -> None:
    lane = filled(1, 1, new=True)
    lane.waiting.clear()
    setting = fence(lane, 5)
    for _ in range(2):
        lane.join(piece(b"x", size=30), 0, 20)
    assert drain(lane) == [setting]
    lane.acked(setting, 0, -1)
    assert len(drain(lane)) == 1, "the log would take any first sequence"


# --- answers to a fence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_a_fence_is_repeated_like_any_batch(code: ErrorCode) -> None:
    lane = filled()
    setting = fence(lane, 5)
    drain(lane)
    before = setting.encoded
    lane.refused(setting, code, "", 0)
    assert drain(lane, now=99) == []
    assert drain(lane, now=100) == [setting]
    assert setting.encoded == before


def test_a_fence_below_the_token_of_the_log_fails_with_what_waits_behind_it() -> None:
    lane = filled()
    setting = fence(lane, 5)
    [(_, behind, _)] = lane.join(piece(b"behind", size=30), 0, 20)
    drain(lane)
    lane.refused(setting, FENCED, "the fencing token is 9", 0, 9)
    error = error_of(setting)
    assert isinstance(error, FencedWriter)
    assert error.then == "fenced"
    assert "fence() with a higher token" in str(error)
    assert lane.drop_closed() == [Settle(behind, 30)]
    assert error_of(behind) is error
    assert lane.idle


def test_a_refused_fence_that_may_be_set_is_refused_all_the_same() -> None:
    """Set or not, another has set a higher one since."""
    lane = filled()
    setting = fence(lane, 5)
    drain(lane)
    lane.lost(setting, LOST, 0)
    drain(lane, now=100)
    lane.refused(setting, FENCED, "", 100, 9)
    assert isinstance(error_of(setting), FencedWriter)


def test_a_fence_that_times_out_leaves_nothing_to_be_written_until_the_next_is_set() -> None:
    lane = filled()
    setting = fence(lane, 5)
    drain(lane)
    lane.lost(setting, LOST, 0)
    lane.expire(10_000)
    assert isinstance(error_of(setting), DeliveryTimedOut)
    assert "fencing token 5 of t-0 was not acknowledged" in str(error_of(setting))
    assert not lane.gap, "no sequence is missing"
    [(_, batch, _)] = lane.join(piece(b"x", size=30), 10_000, 20)
    assert lane.drop_closed() == [Settle(batch, 30)]
    assert isinstance(error_of(batch), FencedWriter)
    assert "the same token may be given again" in str(error_of(batch))
    again = fence(lane, 5, created_ms=10_000)
    lane.join(piece(b"y", size=30), 10_000, 20)
    assert drain(lane, now=20_000) == [again]
    lane.acked(again, 0, -1)
    assert [each.token for each in drain(lane, now=20_000)] == [5]


def test_a_fence_that_times_out_under_way_is_waited_for_before_the_next_leaves() -> None:
    lane = filled()
    first = fence(lane, 5)
    drain(lane)
    lane.expire(10_000)
    second = fence(lane, 6, created_ms=10_000)
    assert drain(lane, now=10_000) == []
    assert lane.acked(first, 3, -1) == []
    assert drain(lane, now=10_000) == [second]


def test_a_fence_that_never_left_times_out_too() -> None:
    lane = filled(1)
    drain(lane)
    setting = fence(lane, 5)
    lane.expire(10_000)
    assert "it was never sent" in str(error_of(setting))
    assert lane.fencing is not None
    assert lane.fencing.closed is not None


def test_retries_of_a_fence_are_counted() -> None:
    lane = filled(retries=0)
    setting = fence(lane, 5)
    drain(lane)
    lane.lost(setting, LOST, 0)
    assert error_of(setting) is LOST
    assert not lane.gap
    assert lane.idle


def test_a_token_below_one_that_was_asked_for_changes_nothing() -> None:
    lane = fenced(1)
    with pytest.raises(Rejected, match="tokens only grow"):
        fence(lane, 4)
    assert [batch.token for batch in drain(lane)] == [5]


def test_the_same_token_may_be_asked_for_again() -> None:
    lane = fenced()
    setting = fence(lane, 5)
    assert drain(lane) == [setting]
    lane.acked(setting, 0, -1)
    assert setting.written


# --- a writer that is too late ----------------------------------------------------------------------------------


def test_a_writer_that_lost_the_partition_fails_what_it_has_and_may_take_it_back() -> None:
    lane = fenced(1, 1, 1)
    one, two, three = drain(lane) + drain(lane)
    lane.join(piece(b"waits", size=30), 0, 20)
    [waits] = lane.waiting
    lane.refused(one, FENCED, "the fencing token is 9", 0, 9)
    lane.refused(two, ErrorCode.OPERATION_NOT_ATTEMPTED, "", 0)
    lane.refused(three, FENCED, "the fencing token is 9", 0, 9)
    lane.drop_closed()
    assert {type(error_of(batch)) for batch in (one, two, three, waits)} == {FencedWriter}
    assert lane.idle
    setting = fence(lane, 10)
    lane.join(piece(b"back", size=30), 0, 20)
    assert drain(lane, identity=ANEW) == [setting]
    lane.acked(setting, 3, -1)
    [back] = drain(lane, identity=ANEW)
    assert back.token == 10
    assert numbers([back]) == [(1, 0, 1)], "nothing that was refused has left a gap"


def test_what_had_no_clear_answer_before_may_be_written() -> None:
    lane = fenced(1)
    [one] = drain(lane)
    lane.lost(one, LOST, 0)
    drain(lane, now=100)
    lane.refused(one, FENCED, "", 100, 9)
    assert isinstance(error_of(one), UnknownOutcome)
    [(_, next_, _)] = lane.join(piece(b"x", size=30), 100, 20)
    lane.drop_closed()
    assert isinstance(error_of(next_), FencedWriter)


def test_a_leader_from_before_the_fence_is_no_word_on_it() -> None:
    lane = fenced(1, epoch=3)
    [one] = drain(lane, epoch=3)
    lane.lost(one, LOST, 0)
    lane.leader_epoch = 2  # metadata of a broker that is behind
    assert drain(lane, now=100, broker=OTHER, epoch=2) == [one]
    [effect] = lane.refused(one, FENCED, "no fencing token is set", 100)
    assert isinstance(effect, DoubtLeader)
    assert one.outcome is None
    assert drain(lane, now=300, epoch=3) == [one]


@pytest.mark.parametrize("told", [0, 4])
def test_a_log_that_lost_the_token_may_have_lost_more(told: int) -> None:
    lane = fenced(1, epoch=3)
    [one] = drain(lane, broker=OTHER, epoch=4)
    lane.refused(one, FENCED, "no fencing token is set", 0, told)
    assert isinstance(error_of(one), FencedWriter)
    assert "look what is there" in str(error_of(one))
    setting = fence(lane, 5)
    assert drain(lane, broker=OTHER, identity=ANEW, epoch=4) == [setting], "the same token will do"


def test_a_topic_that_wants_a_token_leads_to_fence() -> None:
    lane = filled(1)
    [one] = drain(lane)
    lane.refused(one, FENCED, "the topic takes no batch without a token", 0)
    assert isinstance(error_of(one), FencedWriter)
    assert "call fence('t', 0, token)" in str(error_of(one))
    assert lane.fencing is None
    setting = fence(lane, 1)
    assert drain(lane, identity=ANEW) == [setting]


# --- the end of a producer, and of a transaction ----------------------------------------------------------------


def test_the_end_of_a_producer_ends_its_fences() -> None:
    lane = filled(1)
    [one] = drain(lane)
    setting = fence(lane, 5)
    lane.abort(LOST)
    assert error_of(one) is LOST
    assert error_of(setting) is LOST
    assert lane.idle


@pytest.mark.parametrize("under_way", [False, True])
def test_the_end_of_a_transaction_leaves_fences(under_way: bool) -> None:
    lane = Lane("t", 0, filled(transactional=True)._rules, 1 << 20)
    if not under_way:
        lane.join(piece(b"x", size=30), 0, 20)
        [one] = drain(lane)
    setting = fence(lane, 5)
    lane.join(piece(b"behind", size=30), 0, 20)
    assert drain(lane) == ([setting] if under_way else [])
    effects = lane.abort(LOST, fences=False)
    assert setting not in [effect.batch for effect in effects if isinstance(effect, Settle)]
    assert lane.in_flight == int(under_way)
    if not under_way:
        assert error_of(one) is LOST
        assert drain(lane) == [setting]
    lane.acked(setting, 0, -1)
    assert lane.idle
    lane.join(piece(b"y", size=30), 0, 20)
    [next_] = drain(lane, identity=ANEW)
    assert numbers([next_]) == [(1, 0, 1)]
    assert next_.token == 5


def test_a_transactional_producer_fences_before_it_has_an_identity() -> None:
    lane = Lane("t", 0, filled(transactional=True)._rules, 1 << 20)
    setting = fence(lane, 5)
    assert drain(lane, identity=None) == [setting]


# --- many partitions ----------------------------------------------------------------------------------------------


def made(**changed: object) -> ProducerCore:
    core = ProducerCore(filled(**changed)._rules, BatchSizes(16, 16, 1 << 20), request_bytes=1 << 20)
    core.identified(ME)
    return core


def add(core: ProducerCore, partition: int, value: bytes) -> Batch:
    chunk = Chunk("t", opened_ms=0, record_max=1 << 20)
    chunk.values, chunk.keys, chunk.clock = [value], [None], [(0, 1_000)]
    chunk.granted = 100
    chunk.name_partition(0, 1, partition)
    core.take(chunk, 2, 1 << 20)
    located = chunk.locate(0)
    assert located is not None
    return located[0]


def requests(effects: list[Effect]) -> list[tuple[Batch, ...]]:
    assert not any(isinstance(effect, AskIdentity) for effect in effects)
    return [effect.batches for effect in effects if isinstance(effect, SendBatches)]


def leads(topic: str, partition: int) -> tuple[int, int]:
    return LEADER, 0


def test_a_fence_has_a_request_of_its_own() -> None:
    core = made()
    setting = Batch.of_fence("t", 0, 5, created_ms=0, timestamp_ms=1_000)
    core.fence(setting, 1 << 20)
    other = add(core, 1, b"other")
    assert sorted(requests(core.drain(0, leads)), key=len) == [(setting,), (other,)]


def test_only_the_partition_that_was_lost_fails_and_without_asking_anybody() -> None:
    core = made()
    setting = Batch.of_fence("t", 0, 5, created_ms=0, timestamp_ms=1_000)
    core.fence(setting, 1 << 20)
    core.drain(0, leads)
    core.answered([setting], [Answer(FENCED, "the fencing token is 9", -1, -1, 9)], 0)
    lost, other = add(core, 0, b"lost"), add(core, 1, b"other")
    effects = core.drain(0, lambda topic, partition: (-1, -1) if partition == 0 else (LEADER, 0))
    assert isinstance(error_of(lost), FencedWriter)
    assert requests(effects) == [(other,)]
    assert not any(isinstance(effect, DoubtLeader) for effect in effects)
    core.answered([other], [Answer(0, "", 0, -1)], 0)
    assert core.idle


def test_the_fences_of_an_aborted_transaction_go_on() -> None:
    core = made(transactional=True)
    setting = Batch.of_fence("t", 0, 5, created_ms=0, timestamp_ms=1_000)
    core.fence(setting, 1 << 20)
    dropped = add(core, 0, b"behind")
    core.abort(LOST, fences=False)
    assert error_of(dropped) is LOST
    assert not core.idle
    assert requests(core.drain(0, leads)) == [(setting,)]
    core.answered([setting], [Answer(0, "", 0, -1)], 0)
    assert core.idle
