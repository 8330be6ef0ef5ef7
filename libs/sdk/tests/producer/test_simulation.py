"""
The producing core against logs whose sequences a broker's own core checks, under faults that Hypothesis chooses. What
becomes of it where partitions are replicated ``tests/lab/whole`` plays with real brokers.

Requests of one connection reach the broker in order; when it breaks, some of those under way were carried out and the
others never will be. Whatever happens: a record is written at most once, per partition in the order of the calls, an
acknowledged one is where it was said to be, and when the faults end everything gets an outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace._core.batch import Batch, Identity
from headrace._core.chunk import Chunk
from headrace._core.effects import AskIdentity, Divided, Effect, SendBatches, Settle
from headrace._core.lane import Lane, LaneRules
from headrace._core.producing import Answer, BatchSizes, ProducerCore
from headrace.delivery import Delivery, moved, tell
from headrace.errors import ErrorCode, HeadraceError, NetworkFailed
from headrace_broker.core.fences import Fences
from headrace_broker.core.producers import Producers
from headrace_common.core.batch import Codec, decode_batch, read_header
from headrace_common.core.ids import Offset

PARTITIONS = 3
BROKERS = (1, 2)
TIMEOUT_MS = 3_000
BUSY = (ErrorCode.OVERLOADED, ErrorCode.DISK_FULL, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Log:
    """The batches of one partition, and the broker's core that says which may follow."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.batches: list[bytes] = []
        self.end = Offset(0)

    def append(self, batch: bytes) -> Offset:
        """The offset of its first record; what was sent before has that of then."""
        header = read_header(batch)
        said = (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count)
        base = self.end
        if header.producer_id >= 0:
            if (stored := self.producers.check(*said)) is not None:
                return stored.base_offset
            self.producers.note_appended(*said, base, header.max_timestamp, now_ms=0)
        self.batches.append(batch)
        self.end = Offset(base + header.record_count)
        return base


class ProducerMachine(RuleBasedStateMachine):
    """One producer, two brokers, three partitions."""

    idempotent = True
    in_flight: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.leaders = [BROKERS[n % 2] for n in range(PARTITIONS)]
        self.wire: dict[int, deque[tuple[Batch, ...]]] = {broker: deque() for broker in BROKERS}
        self.answers: deque[tuple[tuple[Batch, ...], list[Answer]]] = deque()
        self.asked: list[Identity | None] = []
        self.chunks: list[tuple[Chunk, list[bytes]]] = []
        self.settled: list[Batch] = []
        self.told: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        """Values whose callbacks were called."""
        self.sent_values = 0
        self.given_back = 0
        self.granted = 0
        self.epochs = 0

    @initialize(
        in_flight=st.integers(1, 5),
        batch_bytes=st.integers(20, 200),
        request_bytes=st.integers(300, 2_000),
        repeats=st.booleans(),
    )
    def start(self, in_flight: int, batch_bytes: int, request_bytes: int, repeats: bool = False) -> None:
        rules = LaneRules(
            idempotent=self.idempotent,
            in_flight_max=self.in_flight or in_flight,
            retries=2**31 - 1,
            delivery_timeout_ms=TIMEOUT_MS,
            backoff_ms=100,
            backoff_max_ms=1_000,
            codec=Codec.NONE,
        )
        sizes = BatchSizes(batch_bytes, batch_bytes + batch_bytes // 2, 2_000)
        self.core = ProducerCore(rules, sizes, request_bytes=request_bytes)
        self.core.repeats_partitions = repeats

    # --- the application --------------------------------------------------------------------------------------

    @rule(partitions=st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=40), late=st.integers(1, 4))
    def send(self, partitions: list[int], late: int = 3) -> None:
        chunk = Chunk("t", opened_ms=self.now, record_max=1_000)
        values = [b"%06d" % (self.sent_values + n) for n in range(len(partitions))]
        self.sent_values += len(values)
        chunk.values, chunk.keys = list(values), [None] * len(values)
        chunk.granted = 20 * len(values)
        self.granted += chunk.granted
        chunk.mark(int(self.now))
        for at, partition in enumerate(partitions):
            chunk.name_partition(at, at + 1, partition)
        # Each ``late``th callback comes when the rows have their batches, but those of before were not moved there yet.
        for row, value in enumerate(values):
            if row % late:
                self.call_when_told(chunk, row, value, partitions[row])
        self.core.take(chunk, PARTITIONS, 1 << 20)
        for row, value in enumerate(values):
            if not row % late:
                self.call_when_told(chunk, row, value, partitions[row])
        moved(chunk)
        self.chunks.append((chunk, values))

    def call_when_told(self, chunk: Chunk, row: int, value: bytes, partition: int) -> None:
        delivery = Delivery()
        delivery._chunk, delivery._row = chunk, row
        delivery.add_done_callback(lambda _: self.told[partition].append(value))

    @rule()
    def drain(self) -> None:
        self.carry_out(self.core.drain(self.now, lambda _, partition: (self.leaders[partition], 0)))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendBatches(broker, batches):
                    if not self.core.repeats_partitions:
                        assert len({batch.partition for batch in batches}) == len(batches)
                    self.wire[broker].append(batches)
                case AskIdentity(previous):
                    self.asked.append(previous)
                case _:
                    pass
        self.settle(effects)

    def settle(self, effects: list[Effect]) -> None:
        """As the engine does: first all is moved, then told."""
        for effect in effects:
            match effect:
                case Settle(batch, size_bytes):
                    assert batch.outcome is not None
                    assert batch not in self.settled
                    self.settled.append(batch)
                    self.given_back += size_bytes
                case Divided(batch):
                    moved(batch)
        for effect in effects:
            if isinstance(effect, Settle):
                for batch in self.core.reports(effect.batch):
                    tell(batch)

    # --- the cluster ------------------------------------------------------------------------------------------

    @rule()
    def identify(self) -> None:
        if self.asked:
            previous = self.asked.pop(0)
            self.core.identified(Identity(1, 0) if previous is None else Identity(1, previous.epoch + 1))

    @rule(broker=st.sampled_from(BROKERS), count=st.integers(1, 5))
    def carry_out_requests(self, broker: int, count: int) -> None:
        for _ in range(count):
            if self.wire[broker]:
                batches = self.wire[broker].popleft()
                self.answers.append((batches, self.carry_out_request(broker, batches)))

    def carry_out_request(
        self, broker: int, batches: tuple[Batch, ...], refusal: Callable[[Batch], ErrorCode | None] = lambda _: None
    ) -> list[Answer]:
        """Append the batches that are not refused, nor behind one that was."""
        answers: list[Answer] = []
        refused: set[int] = set()
        for batch in batches:
            code = ErrorCode.OPERATION_NOT_ATTEMPTED if batch.partition in refused else refusal(batch)
            answer = self.append(broker, batch) if code is None else Answer(code, "", -1, -1)
            if answer.error:
                refused.add(batch.partition)
            answers.append(answer)
        return answers

    def append(self, broker: int, batch: Batch) -> Answer:
        if self.leaders[batch.partition] != broker:
            return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, "", -1, -1)
        try:
            return Answer(0, "", self.logs[batch.partition].append(batch.encoded or b""), -1)
        except HeadraceError as error:
            return Answer(error.code, str(error), -1, -1)

    @rule(count=st.integers(1, 5))
    def deliver_answers(self, count: int) -> None:
        for _ in range(count):
            if self.answers:
                self.carry_out(self.core.answered(*self.answers.popleft(), self.now))

    @rule()
    def delay_an_answer(self) -> None:
        self.answers.rotate(-1)

    @rule()
    def lose_an_answer(self) -> None:
        if self.answers:
            batches, _ = self.answers.popleft()
            self.carry_out(self.core.lost(batches, NetworkFailed("silent"), self.now))

    @rule()
    def append_without_commit(self) -> None:
        """The batches are in the leader's log, and too few replicas have them."""
        few = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        for _, answers in self.answers:
            answers[:] = [answer if answer.error else Answer(few, "", -1, -1) for answer in answers]

    @rule(broker=st.sampled_from(BROKERS), code=st.sampled_from(BUSY))
    def refuse(self, broker: int, code: ErrorCode) -> None:
        if self.wire[broker]:
            batches = self.wire[broker].popleft()
            self.answers.append((batches, [Answer(code, "", -1, -1)] * len(batches)))

    @rule(
        broker=st.sampled_from(BROKERS), code=st.sampled_from((*BUSY, ErrorCode.INVALID_RECORD)), at=st.integers(0, 9)
    )
    def refuse_one(self, broker: int, code: ErrorCode, at: int) -> None:
        if self.wire[broker]:
            batches = self.wire[broker].popleft()
            unlucky = batches[at % len(batches)]
            refusal = lambda batch: code if batch is unlucky else None  # noqa: E731
            self.answers.append((batches, self.carry_out_request(broker, batches, refusal)))

    @rule(broker=st.sampled_from(BROKERS))
    def refuse_size(self, broker: int) -> None:
        if self.wire[broker]:
            batches = self.wire[broker].popleft()
            refusal = lambda batch: ErrorCode.MESSAGE_TOO_LARGE if batch.count > 1 else None  # noqa: E731
            self.answers.append((batches, self.carry_out_request(broker, batches, refusal)))

    @rule(broker=st.sampled_from(BROKERS), carried_out=st.integers(0, 5), answers_too=st.booleans())
    def break_connection(self, broker: int, carried_out: int, answers_too: bool) -> None:
        lost: list[tuple[Batch, ...]] = []
        if answers_too:
            lost += [batches for batches, _ in self.answers]
            self.answers.clear()
        for _ in range(carried_out):
            if self.wire[broker]:
                batches = self.wire[broker].popleft()
                self.carry_out_request(broker, batches)
                lost.append(batches)
        lost += self.wire[broker]
        self.wire[broker].clear()
        for batches in lost:
            self.carry_out(self.core.lost(batches, NetworkFailed("broke"), self.now))

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def move_leader(self, partition: int) -> None:
        self.leaders[partition] = BROKERS[0] + BROKERS[1] - self.leaders[partition]

    @rule(ms=st.sampled_from([1, 100, 500, 1_500, 3_500]))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    @rule()
    def expire(self) -> None:
        self.carry_out(self.core.expire(self.now))

    # --- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_written_twice_or_out_of_order(self) -> None:
        for values in self.written_values():
            assert values == sorted(set(values))

    @invariant()
    def callbacks_are_called_once_and_in_the_order_of_the_calls(self) -> None:
        for values in self.told:
            assert values == sorted(set(values))

    @invariant()
    def acknowledged_records_are_where_it_was_said(self) -> None:
        written = self.written()
        for chunk, values in self.chunks:
            for row, value in enumerate(values):
                batch, place = chunk.locate(row) or pytest.fail("the chunk was taken")
                if batch.outcome is not None and batch.outcome.error is None:
                    assert written[batch.partition][batch.outcome.base_offset + place] == value

    def written(self) -> list[list[Any]]:
        """Values by their offsets; None: a fence."""
        decoded = [[decode_batch(batch) for batch in log.batches] for log in self.logs]
        return [[v for b in log for v in ([None] if b.is_control else b.values())] for log in decoded]

    def written_values(self) -> list[list[bytes]]:
        return [[value for value in values if value is not None] for values in self.written()]

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(2_000):
            if self.core.idle:
                break
            self.identify()
            self.drain()
            for broker in BROKERS:
                self.carry_out_requests(broker, 1_000)
            self.deliver_answers(1_000)
            self.now += 50
        assert self.core.idle, "when the faults end, everything is settled"
        assert self.given_back == self.granted
        assert sum(map(len, self.told)) == self.sent_values, "each is told of"
        self.callbacks_are_called_once_and_in_the_order_of_the_calls()
        for chunk, values in self.chunks:
            assert all((chunk.locate(row) or pytest.fail("lost"))[0].outcome is not None for row in range(len(values)))
        self.nothing_is_written_twice_or_out_of_order()
        self.acknowledged_records_are_where_it_was_said()


TestIdempotent = ProducerMachine.TestCase
TestIdempotent.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


class PlainMachine(ProducerMachine):
    """Without idempotence, one batch at a time: repeated batches may be there twice, but order and acks hold."""

    idempotent = False
    in_flight = 1

    @invariant()
    def nothing_is_written_twice_or_out_of_order(self) -> None:
        for values in self.written_values():
            runs = list(dict.fromkeys(values))
            assert runs == sorted(runs)


TestPlain = PlainMachine.TestCase
TestPlain.settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


class FencingMachine(ProducerMachine):
    """This producer and another take the partitions from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [Fences() for _ in range(PARTITIONS)]
        """What brokers know of the tokens in each log."""
        self.mine: list[int | None] = [None] * PARTITIONS
        """The last that this producer has set in each log."""
        self.tokens = 0
        self.fences: list[tuple[Batch, int]] = []
        """With how many values were sent before."""

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def fence(self, partition: int) -> None:
        self.tokens += 1
        batch = Batch.of_fence("t", partition, self.tokens, created_ms=self.now, timestamp_ms=1)
        self.fences.append((batch, self.sent_values))
        self.core.fence(batch, 1 << 20)

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def another_takes_over(self, partition: int) -> None:
        self.tokens += 1
        self.held[partition].note_appended(self.logs[partition].end, self.tokens)

    def append(self, broker: int, batch: Batch) -> Answer:
        if self.leaders[batch.partition] != broker:
            return super().append(broker, batch)
        held, before = self.held[batch.partition], len(self.logs[batch.partition].batches)
        if batch.fence is not None and batch.fence == held.token:
            assert held.newest is not None, "it has a token"
            return Answer(0, "", held.newest.offset, -1)  # as ``Requests`` finds out
        refusal = held.refusal(batch.token, batch.fence, required=False)
        if refusal is not None:
            return Answer(refusal.code, str(refusal), -1, -1, max(held.token, 0))
        answer = super().append(broker, batch)
        if len(self.logs[batch.partition].batches) > before:
            assert batch.fence or batch.token == self.mine[batch.partition], "it carries what this producer has set"
        if batch.fence is not None:
            held.note_appended(Offset(answer.base_offset), batch.fence)
            self.mine[batch.partition] = batch.fence
        return answer

    @invariant()
    def a_fence_stands_between_what_was_sent_before_and_after(self) -> None:
        written = self.written()
        for fence, sent_before in self.fences:
            if fence.written:
                assert fence.outcome is not None
                at, values = fence.outcome.base_offset, written[fence.partition]
                assert values[at] is None
                assert all(int(value) < sent_before for value in values[:at] if value is not None)
                assert all(int(value) >= sent_before for value in values[at:] if value is not None)

    def teardown(self) -> None:
        super().teardown()
        assert all(fence.outcome is not None for fence, _ in self.fences)


TestFencing = FencingMachine.TestCase
TestFencing.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


# --- each rule, broken on purpose, is noticed --------------------------------------------------------------------


def _known(**settings: int) -> ProducerMachine:
    """A producer that the log of partition 0 knows."""
    machine = ProducerMachine()
    machine.start(**{"in_flight": 5, "batch_bytes": 20, "request_bytes": 300, **settings})
    machine.send([0])
    machine.drain()
    machine.identify()
    machine.drain()
    _answer(machine)
    return machine


def test_an_outcome_is_told_behind_those_of_the_records_before() -> None:
    machine = _known()
    for _ in range(2):
        machine.send([0])
        machine.drain()
    machine.carry_out_requests(1, 2)
    machine.lose_an_answer()
    machine.deliver_answers(1)
    assert [batch.written for batch in machine.settled] == [True, True]
    assert machine.told[0] == [b"000000"]
    machine.teardown()
    assert machine.told[0] == [b"000000", b"000001", b"000002"]


def _answer(machine: ProducerMachine) -> None:
    for broker in BROKERS:
        machine.carry_out_requests(broker, 100)
    machine.deliver_answers(100)


def _a_timeout_before_a_batch_that_was_written() -> ProducerMachine:
    machine = _known()
    machine.send([0])
    machine.pass_time(1_500)
    machine.send([0])
    machine.drain()
    machine.break_connection(1, 5, False)
    machine.pass_time(1_500)
    machine.expire()
    machine.drain()
    machine.identify()
    return machine


def _a_lost_first_batch() -> ProducerMachine:
    machine = ProducerMachine()
    machine.start(in_flight=5, batch_bytes=20, request_bytes=300)
    machine.send([0])
    machine.send([0])
    machine.drain()
    machine.identify()
    machine.drain()
    machine.refuse(1, ErrorCode.OVERLOADED)
    return machine


def _an_answer_that_stays_away() -> ProducerMachine:
    machine = _known()
    for _ in range(8):
        machine.send([0])
    machine.drain()
    machine.carry_out_requests(1, 5)
    for _ in range(4):
        machine.delay_an_answer()
        machine.answers.rotate(2)
        machine.deliver_answers(1)
    machine.drain()
    machine.carry_out_requests(1, 5)
    while len(machine.answers) > 1:
        machine.answers.rotate(-1)
        machine.deliver_answers(1)
    machine.lose_an_answer()
    return machine


def _too_large_after_it_may_have_been_written() -> ProducerMachine:
    machine = _known(batch_bytes=40)
    machine.send([0, 0])
    machine.drain()
    machine.break_connection(1, 5, False)
    machine.pass_time(100)
    machine.drain()
    machine.refuse_size(1)
    machine.deliver_answers(1)
    return machine


def _renumber_what_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def renew(lane: Lane, identity: Identity) -> None:
        lane.identity, lane.next_sequence, lane.proven = identity, 0, False
        lane.gap = lane.retrying = False
        for batch in lane.sent:
            batch.restamp(identity, lane._take_sequence(batch.count))

    wants = Lane.wants_identity
    monkeypatch.setattr(Lane, "wants_identity", lambda lane: wants(lane) or (lane.gap and not lane.in_flight))
    monkeypatch.setattr(Lane, "renew", renew)


def _send_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    go = Lane.next

    def hasty(
        lane: Lane, leader: tuple[int, int], now_ms: float, current: Identity | None
    ) -> tuple[Batch | None, list[Effect]]:
        lane.proven, lane.left_ms = True, now_ms
        return go(lane, leader, now_ms, current)

    monkeypatch.setattr(Lane, "next", hasty)


def _forget_written_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    acked = Lane.acked

    def forgetful(lane: Lane, batch: Batch, base_offset: int, log_append_ms: int) -> list[Effect]:
        effects = acked(lane, batch, base_offset, log_append_ms)
        if batch in lane.sent:
            lane.sent.remove(batch)
        return effects

    monkeypatch.setattr(Lane, "acked", forgetful)


def _divide_what_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Lane.refused

    def sure(lane: Lane, batch: Batch, *said: Any) -> list[Effect]:
        batch.uncertain = False
        return refused(lane, batch, *said)

    monkeypatch.setattr(Lane, "refused", sure)


@pytest.mark.parametrize(
    ("story", "breakage"),
    [
        (_a_timeout_before_a_batch_that_was_written, _renumber_what_is_undecided),
        (_a_lost_first_batch, _send_ahead),
        (_an_answer_that_stays_away, _forget_written_batches),
        (_too_large_after_it_may_have_been_written, _divide_what_may_be_written),
    ],
)
def test_each_rule_is_needed(
    story: Callable[[], ProducerMachine],
    breakage: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story().teardown()
    breakage(monkeypatch)
    with pytest.raises(AssertionError):
        story().teardown()
