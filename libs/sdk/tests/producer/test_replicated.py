"""
The producing core against replicated logs: leaders change, deposed ones go on for a while, tails that were not
committed are cut, answers stay away, and requests that nobody listens to any more are carried out late.

Three brokers hold each partition. A batch is answered when every in-sync replica holds it; followers copy when they are
let. Whatever happens: what was acknowledged is where it was said to be in the log of whoever leads, and no leader's log
ever holds a record twice or out of order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from libs.sdk.tests.twin.memory_log import MemoryLog

from headrace._core.batch import Batch
from headrace._core.effects import AskIdentity, Effect, SendBatches
from headrace._core.producing import Answer
from headrace.errors import ErrorCode, HeadraceError, NetworkFailed
from headrace_common.core.batch import decode_batch, read_header

from .test_simulation import PARTITIONS, ProducerMachine

NODES = (1, 2, 3)
IN_SYNC_MIN = 2
PARTITION = st.integers(0, PARTITIONS - 1)
NODE = st.sampled_from(NODES)
PASSING = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.OVERLOADED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


@dataclass
class Replicated:
    """One partition: who leads by the controller's word, what each broker believes and holds, what is committed."""

    leader: int
    epoch: int = 0
    in_sync: set[int] = field(default_factory=lambda: set(NODES))
    logs: dict[int, MemoryLog] = field(default_factory=lambda: {node: MemoryLog() for node in NODES})
    believed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(leader, epoch) by broker."""
    held: dict[int, int] = field(default_factory=dict)
    """Log ends of followers that copied under this epoch."""
    committed: int = 0

    def elect(self, node: int) -> None:
        """Only who is in sync may lead; the broker itself hears of it later."""
        if node in self.in_sync and node != self.leader:
            self.leader, self.epoch, self.held = node, self.epoch + 1, {}

    def hear(self, node: int) -> None:
        self.believed[node] = (self.leader, self.epoch)

    def copy(self, node: int) -> None:
        """The follower's log becomes the leader's, if both know in which epoch they are."""
        now = (self.leader, self.epoch)
        if node == self.leader or self.believed.get(node) != now or self.believed.get(self.leader) != now:
            return
        self.logs[node] = self.logs[self.leader].copy()
        self.held[node] = self.logs[node].end
        self.in_sync.add(node)
        ends = [self.logs[self.leader].end, *(self.held.get(n, 0) for n in self.in_sync - {self.leader})]
        if min(ends) > self.committed:
            self.committed = min(ends)

    def shrink(self, node: int) -> None:
        if node != self.leader and len(self.in_sync) > IN_SYNC_MIN:
            self.in_sync.discard(node)

    def append(self, node: int, epoch: int, batch: bytes) -> Answer | Waits:
        """As broker ``node`` answers; it may be one that was deposed and does not know."""
        leader, mine = self.believed[node]
        if epoch != mine:
            code = ErrorCode.FENCED_LEADER_EPOCH if epoch < mine else ErrorCode.UNKNOWN_LEADER_EPOCH
            return Answer(code, "", -1, -1)
        if leader != node:
            return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, "", -1, -1)
        try:
            base = self.logs[node].append(batch, mine)
        except HeadraceError as error:
            return Answer(error.code, str(error), -1, -1)
        return Waits(self, node, mine, base, base + read_header(batch).last_offset_delta + 1)


@dataclass
class Waits:
    """An answer that is held back until the batch is committed, or its broker hears that it leads no longer."""

    partition: Replicated
    node: int
    epoch: int
    base: int
    end: int

    def answer(self) -> Answer | None:
        if self.partition.believed[self.node] != (self.node, self.epoch):
            return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, "", -1, -1)
        if self.partition.epoch == self.epoch and self.partition.committed >= self.end:
            return Answer(0, "", self.base, -1)
        return None


@dataclass(eq=False)
class Request:
    """What travels: the bytes as they were when they left."""

    batches: tuple[Batch, ...]
    epochs: list[int]
    encoded: list[bytes]
    unheard: set[Batch] = field(default_factory=set)
    """Nobody listens for these any more."""
    answers: list[Answer | Waits] = field(default_factory=list)

    def heard(self) -> list[Batch]:
        return [batch for batch in self.batches if batch not in self.unheard]


class ReplicatedMachine(ProducerMachine):
    """One producer, three brokers, three partitions with three replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = [Replicated(leader=NODES[n]) for n in range(PARTITIONS)]
        for partition in self.partitions:
            for node in NODES:
                partition.hear(node)
        self.known = [(partition.leader, 0) for partition in self.partitions]
        self.requests: dict[int, deque[Request]] = {node: deque() for node in NODES}
        self.carried: deque[tuple[int, Request]] = deque()

    # --- several steps at once, for else few runs would get far ------------------------------------------------

    @rule()
    def go_on(self) -> None:
        """Everybody does what is to be done, with what each knows."""
        self.identify()
        self.drain()
        for node in NODES:
            self.carry_out_requests(node, 100)
            for partition in self.partitions:
                partition.copy(node)
        self.deliver_answers(100)

    @rule(sends=st.lists(st.lists(PARTITION, min_size=1, max_size=8), min_size=1, max_size=6))
    def send_and_go_on(self, sends: list[list[int]]) -> None:
        for partitions in sends:
            self.send(partitions)
            self.drain()
        self.go_on()

    @rule(partition=PARTITION, node=NODE, knows=st.sets(NODE), client=st.booleans())
    def elect(self, partition: int, node: int, knows: set[int], client: bool) -> None:
        """Some brokers hear of it at once, and perhaps the client."""
        self.partitions[partition].elect(node)
        for each in knows:
            self.partitions[partition].hear(each)
        if client:
            self.learn(partition)

    @rule(ms=st.sampled_from([1, 100, 100, 500, 1_500]))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    # --- the client's shell -----------------------------------------------------------------------------------

    @rule()
    def drain(self) -> None:
        self.carry_out(self.core.drain(self.now, lambda _, partition: self.known[partition]))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendBatches(broker, batches):
                    epochs = [self.known[batch.partition][1] for batch in batches]
                    self.requests[broker].append(Request(batches, epochs, [b.encoded or b"" for b in batches]))
                case AskIdentity(previous):
                    self.asked.append(previous)
                case _:
                    pass
        self.settle(effects)

    @rule(partition=PARTITION)
    def learn(self, partition: int) -> None:
        self.known[partition] = (self.partitions[partition].leader, self.partitions[partition].epoch)
        self.core.leaders_changed()

    @rule(node=NODE)
    def give_up_on(self, node: int) -> None:
        """It is silent and leads some of it no longer; what it was sent may be carried out all the same."""
        for request in [*self.requests[node], *(request for at, request in self.carried if at == node)]:
            moved = [
                batch
                for batch, epoch in zip(request.batches, request.epochs, strict=True)
                if self.known[batch.partition][1] > epoch and batch not in request.unheard
            ]
            request.unheard.update(moved)
            self.carry_out(self.core.lost(moved, NetworkFailed("silent"), self.now))

    # --- brokers ----------------------------------------------------------------------------------------------

    @rule(broker=NODE, count=st.integers(1, 5))
    def carry_out_requests(self, broker: int, count: int) -> None:
        for _ in range(min(count, len(self.requests[broker]))):
            request = self.requests[broker].popleft()
            request.answers = [
                self.partitions[batch.partition].append(broker, epoch, encoded)
                for batch, epoch, encoded in zip(request.batches, request.epochs, request.encoded, strict=True)
            ]
            self.carried.append((broker, request))

    @rule(count=st.integers(1, 5))
    def deliver_answers(self, count: int) -> None:
        for node, request in list(self.carried)[:count]:
            answers = [a.answer() if isinstance(a, Waits) else a for a in request.answers]
            if any(answer is None for answer in answers):
                continue
            self.carried.remove((node, request))
            told = {batch: answer for batch, answer in zip(request.batches, answers, strict=True) if answer}
            heard = request.heard()
            self.carry_out(self.core.answered(heard, [told[batch] for batch in heard], self.now))

    @rule()
    def delay_an_answer(self) -> None:
        self.carried.rotate(-1)

    @rule()
    def lose_an_answer(self) -> None:
        if self.carried:
            _, request = self.carried.popleft()
            self.carry_out(self.core.lost(request.heard(), NetworkFailed("silent"), self.now))

    @rule(broker=NODE, code=st.sampled_from(PASSING))
    def refuse(self, broker: int, code: ErrorCode) -> None:
        if self.requests[broker]:
            request = self.requests[broker].popleft()
            request.answers = [Answer(code, "", -1, -1)] * len(request.batches)
            self.carried.append((broker, request))

    @rule(broker=NODE)
    def refuse_size(self, broker: int) -> None:
        """Of requests whose batches can be divided; the broker has looked at nothing else of them."""
        if self.requests[broker] and all(batch.count > 1 for batch in self.requests[broker][0].batches):
            self.refuse(broker, ErrorCode.MESSAGE_TOO_LARGE)

    @rule()
    def append_without_commit(self) -> None:
        """NOT_ENOUGH_REPLICAS_AFTER_APPEND: the batch is in the leader's log, and may stay there."""
        code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        for _, request in self.carried:
            request.answers = [Answer(code, "", -1, -1) if isinstance(a, Waits) else a for a in request.answers]

    @rule(broker=NODE, carried_out=st.integers(0, 5), answers_too=st.booleans())
    def break_connection(self, broker: int, carried_out: int, answers_too: bool) -> None:
        self.carry_out_requests(broker, carried_out)
        lost = list(self.requests[broker])
        self.requests[broker].clear()
        if answers_too:
            lost = [request for node, request in self.carried if node == broker] + lost
            self.carried = deque((node, request) for node, request in self.carried if node != broker)
        for request in lost:
            self.carry_out(self.core.lost(request.heard(), NetworkFailed("broke"), self.now))

    @rule(partition=PARTITION, node=NODE)
    def move_leader(self, partition: int, node: int = 0) -> None:
        self.partitions[partition].elect(node)

    @rule(partition=PARTITION, node=NODE)
    def hear(self, partition: int, node: int) -> None:
        self.partitions[partition].hear(node)

    @rule()
    def all_hear(self) -> None:
        for number, partition in enumerate(self.partitions):
            for node in NODES:
                partition.hear(node)
            self.learn(number)

    @rule(partition=PARTITION, node=NODE)
    def copy(self, partition: int, node: int) -> None:
        self.partitions[partition].copy(node)

    @rule(partition=PARTITION, node=NODE)
    def shrink(self, partition: int, node: int) -> None:
        self.partitions[partition].shrink(node)

    # --- the end ----------------------------------------------------------------------------------------------

    def written(self) -> list[list[Any]]:
        """The logs of those who lead by the controller's word."""
        logs = [partition.logs[partition.leader] for partition in self.partitions]
        return [[v for batch in log.batches for v in decode_batch(batch).values()] for log in logs]

    @rule()
    def identify(self) -> None:
        super().identify()

    def teardown(self) -> None:
        for _ in range(2_000):
            if not hasattr(self, "core") or self.core.idle:
                break
            self.all_hear()
            self.go_on()
            for node in NODES:
                self.give_up_on(node)
            self.now += 50
        super().teardown()


TestReplicated = ReplicatedMachine.TestCase
TestReplicated.settings = settings(max_examples=80, stateful_step_count=80, deadline=None)
