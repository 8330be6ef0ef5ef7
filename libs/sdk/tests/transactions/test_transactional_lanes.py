"""Lanes of a transactional producer as dialogues: identities come from transactions, and what fails ends one."""

from __future__ import annotations

from headrace._core.batch import Batch, Identity
from headrace._core.chunk import Chunk
from headrace._core.effects import AskIdentity, Effect, SendBatches, Settle
from headrace._core.lane import NEVER, LaneRules
from headrace._core.producing import Answer, BatchSizes, ProducerCore
from headrace.errors import ErrorCode, NetworkFailed, TransactionAbortable
from headrace_common.core.batch import Codec, read_header

FIRST, SECOND = Identity(7, 0), Identity(7, 1)
DROPPED = TransactionAbortable("dropped")
LOST = NetworkFailed("the connection broke")


def made(identity: Identity = FIRST) -> ProducerCore:
    rules = LaneRules(
        idempotent=True,
        in_flight_max=5,
        retries=2**31 - 1,
        delivery_timeout_ms=10_000,
        backoff_ms=100,
        backoff_max_ms=1_000,
        codec=Codec.NONE,
        transactional=True,
    )
    core = ProducerCore(rules, BatchSizes(16, 16, 1 << 20), request_bytes=1 << 20)
    core.identified(identity)
    return core


def add(core: ProducerCore, *values: bytes, topic: str = "t") -> None:
    """One batch for each, on partition 0."""
    for value in values:
        chunk = Chunk(topic, opened_ms=0, record_max=1 << 20)
        chunk.values, chunk.keys, chunk.clock = [value], [None], [(0, 1_000)]
        chunk.granted = 100
        core.take(chunk, 1, 1 << 20)


def leader(topic: str, partition: int) -> tuple[int, int]:
    return 1, 0


def sent(effects: list[Effect]) -> list[Batch]:
    assert not any(isinstance(effect, AskIdentity) for effect in effects), "its identity is its transaction's"
    return [batch for effect in effects if isinstance(effect, SendBatches) for batch in effect.batches]


def numbers(batches: list[Batch]) -> list[tuple[int, int]]:
    headers = [read_header(batch.encoded or b"") for batch in batches]
    assert all(header.transactional for header in headers)
    return [(header.producer_epoch, header.base_sequence) for header in headers]


def ok(offset: int = 0) -> Answer:
    return Answer(0, "", offset, -1)


def refused(code: ErrorCode) -> Answer:
    return Answer(code, "no", -1, -1)


def test_a_transaction_does_not_wait_for_its_first_answer() -> None:
    core = made()
    add(core, *[b"%d" % n for n in range(7)])
    assert numbers(sent(core.drain(0, leader))) == [(0, n) for n in range(5)]


def test_the_next_transaction_begins_from_zero() -> None:
    core = made()
    add(core, b"0", b"1")
    first = sent(core.drain(0, leader))
    core.answered(first, [ok(0), ok(1)], 1)
    assert core.idle
    core.identified(SECOND)
    add(core, b"2")
    assert numbers(sent(core.drain(2, leader))) == [(1, 0)]


def test_a_refused_batch_is_followed_by_nothing_until_the_next_transaction() -> None:
    core = made()
    add(core, b"0", b"1")
    first, second = sent(core.drain(0, leader))
    effects = core.answered([first], [refused(ErrorCode.INVALID_PRODUCER_EPOCH)], 1)
    assert [effect.batch for effect in effects if isinstance(effect, Settle)] == [first]
    add(core, b"2")
    assert not sent(core.drain(1, leader))
    assert {effect.batch for effect in core.abort(DROPPED) if isinstance(effect, Settle)} >= {second}
    core.identified(SECOND)
    add(core, b"3")
    assert numbers(sent(core.drain(2, leader))) == [(1, 0)]


def test_the_last_batch_of_a_lane_that_is_refused_leaves_nothing_behind() -> None:
    core = made()
    add(core, b"0")
    core.answered(sent(core.drain(0, leader)), [refused(ErrorCode.INVALID_RECORD)], 1)
    core.abort(DROPPED)
    core.identified(SECOND)
    add(core, b"1")
    assert numbers(sent(core.drain(2, leader))) == [(1, 0)]


def test_a_gap_that_a_leader_finds_is_the_end_of_the_transaction() -> None:
    core = made()
    add(core, b"0")
    [batch] = sent(core.drain(0, leader))
    effects = core.answered([batch], [refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)], 1)
    assert [effect.batch for effect in effects if isinstance(effect, Settle)] == [batch]
    assert batch.outcome is not None
    assert batch.outcome.error is not None


def test_leaders_that_cannot_enrol_yet_get_the_same_batch_again() -> None:
    core = made()
    add(core, b"0")
    now = 0.0
    for code in (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ):
        [batch] = sent(core.drain(now, leader))
        assert numbers([batch]) == [(0, 0)]
        core.answered([batch], [refused(code)], now)
        assert not batch.uncertain, "nothing was appended"
        assert not sent(core.drain(now, leader)), "after a pause"
        now = core.retry_ms()
    assert batch.outcome is None


def test_answers_to_what_was_dropped_count_for_nothing() -> None:
    core = made()
    add(core, b"0", b"1")
    old = sent(core.drain(0, leader))
    core.abort(DROPPED)
    core.identified(SECOND)
    add(core, b"2")
    [new] = sent(core.drain(1, leader))
    assert core.answered(old[:1], [ok(0)], 2) == []
    assert core.lost(old[1:], LOST, 2) == []
    assert numbers([new]) == [(1, 0)]
    core.answered([new], [ok(5)], 3)
    assert new.written
    assert core.idle


def test_a_lane_that_paused_in_the_transaction_before_wakes_in_the_next() -> None:
    core = made()
    add(core, b"0")
    core.lost(sent(core.drain(0, leader)), LOST, 0)
    assert not sent(core.drain(1, leader))
    assert core.retry_ms() < NEVER
    core.abort(DROPPED)
    core.identified(SECOND)
    add(core, b"1")
    assert not sent(core.drain(2, leader)), "the leader may still be away"
    assert core.retry_ms() < NEVER
    assert numbers(sent(core.drain(core.retry_ms(), leader))) == [(1, 0)]
