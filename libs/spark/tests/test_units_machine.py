"""
Writing exactly once, all of it: the sink's cores against the coordinator's, under a Spark that repeats, gives up, goes
on after it was given up, and comes back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from headrace_common.core.errors import FencedOwner, HeadraceError, NetworkFailed, Then
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.transactions.effects import Answer, Persist, TookProducerId, WriteMarkers
from headrace_coordinator.core.transactions.events import (
    EnrolAsked,
    InitAsked,
    Loaded,
    MarkersWritten,
    OwnerInitAsked,
    PrepareAsked,
    UnitAsked,
)
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.shard import TransactionShard
from headrace_coordinator.core.transactions.values import AT_REST, Producer, Token, owner_of
from headrace_coordinator.core.values import Moment
from headrace_spark.core.sink_task import (
    FRESH_BYTES,
    ClaimOwner,
    DropRows,
    FailTask,
    Finish,
    OpenProducer,
    OwnerClaimed,
    Prepare,
    Prepared,
    RowsCame,
    RowsEnded,
    SinkTask,
    TaskEvent,
    TaskFailed,
)
from headrace_spark.core.units import (
    AbortAsked,
    CommitAsked,
    CommitUnit,
    Done,
    Owned,
    RaiseOwner,
    SinkPlan,
    TaskMessage,
    UnitCommit,
    UnitCommitted,
    UnitFailed,
    claim_number,
)

QUERY = "q1"
NOW = Moment(0.0, 1_700_000_000_000)
PARTITION = PartitionId(TopicId(b"t" * 16), 0)
TASKS = 2


class Coordinator:
    """The real state machine; what it persists is in the log at once, and markers arrive at once."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.content: dict[str, Any] = {}
        """What each transaction has written."""
        self.committed: list[Any] = []
        self._producers: dict[str, tuple[Producer, int]] = {}
        self._tokens: dict[str, Token] = {}
        self._spare, self._refs = 100, 0
        self.restart()

    def restart(self) -> None:
        """Another coordinator takes over, from the log."""
        self._shard = TransactionShard(0, TransactionSettings())
        self._shard.replay(self.rows.items())
        self._handle(Loaded(NOW))

    def claimed(self, claim: int) -> Owned:
        told = self._ask(OwnerInitAsked(QUERY, self._ref(), NOW, claim))
        return Owned(QUERY, told.owner_epoch, told.last_sequence)

    def begin(self, name: str, epoch: int, content: Any) -> None:
        """A producer that has written something."""
        told = self._ask(InitAsked(name, self._ref(), NOW, 60_000, epoch, self._spare))
        self.content[name] = content
        self._producers[name] = told.producer, epoch
        self._ask(EnrolAsked(name, self._ref(), NOW, *told.producer, [PARTITION]))

    def prepare(self, name: str) -> str:
        producer, epoch = self._producers[name]
        self._tokens[name] = self._ask(PrepareAsked(name, self._ref(), NOW, *producer, epoch, self._refs))
        return name

    def commit(self, unit: CommitUnit) -> bool:
        tokens = [self._tokens[name] for name in unit.tokens]
        told = self._ask(UnitAsked(unit.owner, self._ref(), NOW, unit.epoch, unit.sequence, tokens))
        return not told.repeated_sequence

    def undecided(self) -> list[str]:
        """What holds readers up."""
        return [line.transactional_id for line in self._shard.list_transactions() if line.state not in AT_REST]

    def _ref(self) -> int:
        self._refs += 1
        return self._refs

    def _ask(self, event: Any) -> Any:
        (result,) = [result for ref, result in self._handle(event) if ref == event.ref]
        if isinstance(result, HeadraceError):
            raise result
        return result

    def _handle(self, event: Any) -> list[tuple[object, Any]]:
        answers = []
        for effect in self._shard.handle(event):
            match effect:
                case Persist(_, rows):
                    self.rows.update(rows)
                case TookProducerId():
                    self._spare += 1
                case Answer(_, ref, result):
                    answers.append((ref, result))
                case WriteMarkers(_, name, producer_id, epoch, commit, partitions):
                    assert owner_of(name) == QUERY
                    self.committed += [self.content.pop(name)] if commit else []
                    answers += self._handle(MarkersWritten(name, NOW, producer_id, epoch, partitions))
        return answers


class Plan:
    """One planned write of a batch, by one driver."""

    def __init__(self, batch: int, claim: int) -> None:
        self.batch, self.claim = batch, claim
        self.messages: dict[int, TaskMessage] = {}
        self.attempts = [0] * TASKS


def parts(batch: int) -> set[tuple[int, int]]:
    """Which tasks of a batch have rows: the same ones whenever it is planned."""
    return {(batch, 0)} if batch % 2 else {(batch, 0), (batch, 1)}


class Sink(RuleBasedStateMachine):
    """
    Drivers plan batches, die, come back, and are thought dead while they live. Attempts of tasks fail, are repeated,
    and go on after they were given up. Each batch is in the topic once and whole, or not at all.
    """

    plans = Bundle("plans")
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.clock = 0
        self.chance = 0
        self.done = 0
        """Batches that Spark's commit log has."""

    @rule(target=plans)
    def planned(self) -> Plan:
        """By this driver or, after a crash, by the next one; the batch is the one after what the commit log has."""
        return self._plan()

    def _plan(self) -> Plan:
        return Plan(self.done, self._claim())

    def _claim(self) -> int:
        self.clock += 1
        return claim_number(self.clock, 0)

    @rule(target=attempts, plan=plans, number=st.integers(0, TASKS - 1))
    def an_attempt_begins(self, plan: Plan, number: int) -> Iterator[None]:
        """It goes on some time, or never."""
        return self._attempt(plan, number)

    @rule(attempt=attempts, steps=st.integers(1, 3))
    def an_attempt_goes_on(self, attempt: Iterator[None], steps: int) -> None:
        for _ in range(steps):
            next(attempt, None)

    @rule(plan=plans, number=st.integers(0, TASKS - 1))
    def attempt(self, plan: Plan, number: int) -> None:
        """One whole attempt of a task. The last one that ends is the one whose message the driver has."""
        for _ in self._attempt(plan, number):
            pass

    def _attempt(self, plan: Plan, number: int) -> Iterator[None]:
        """Stops before each question."""
        self.chance += 1
        task, fresh = SinkTask(SinkPlan(claim=plan.claim)), self.chance.to_bytes(FRESH_BYTES, "big")
        rows = (plan.batch, number) in parts(plan.batch)
        event: TaskEvent = RowsCame(QUERY, plan.batch, fresh, plan.attempts[number]) if rows else RowsEnded(0)
        plan.attempts[number] += 1
        while True:
            effect = task.handle(event)[-1]
            match effect:
                case Finish(message):
                    plan.messages[number] = message
                    return
                case FailTask():
                    return
            yield
            try:
                event = self._asked(effect, f"{QUERY}/{fresh.hex()}", (plan.batch, number))
            except HeadraceError as error:
                event = TaskFailed(error)

    def _asked(self, effect: Any, name: str, content: tuple[int, int]) -> TaskEvent:
        match effect:
            case ClaimOwner(_, claim):
                return OwnerClaimed(self.coordinator.claimed(claim))
            case OpenProducer(_, epoch):
                assert epoch is not None
                self.coordinator.begin(name, epoch, content)
                return RowsEnded(1)
            case DropRows():
                return RowsEnded(0)
            case Prepare():
                return Prepared(self.coordinator.prepare(name))
        raise AssertionError(effect)

    @rule(plan=plans, lost=st.integers(0, 2), crashes=st.booleans())
    def commit(self, plan: Plan, lost: int, crashes: bool) -> None:
        """With all messages; answers get lost, and the driver may die before it writes its commit log."""
        if len(plan.messages) < TASKS:
            return
        unit = UnitCommit(job=False)
        event: Any = CommitAsked(list(plan.messages.values()), plan.batch)
        while True:
            for effect in unit.handle(event):
                match effect:
                    case CommitUnit():
                        event = self._unit(effect, lost > 0)
                        lost -= 1
                    case RaiseOwner(_, claim):
                        self._raised(claim)
                    case Done():
                        self.done = max(self.done, plan.batch + (not crashes))
                        return
            if not isinstance(effect, CommitUnit):
                break
        if not crashes:
            self.gives_up(plan)

    @rule(plan=plans)
    def gives_up(self, plan: Plan) -> None:
        """Spark's ``abort``, with what it knows; drivers that were replaced call it too, whenever they notice."""
        for effect in UnitCommit(job=False).handle(AbortAsked([None, *plan.messages.values()])):
            if isinstance(effect, RaiseOwner):
                self._raised(effect.claim)

    def _raised(self, claim: int) -> None:
        with contextlib.suppress(FencedOwner):
            self.coordinator.claimed(claim)

    def _unit(self, unit: CommitUnit, lost: bool) -> UnitCommitted | UnitFailed:
        try:
            now = self.coordinator.commit(unit)
        except HeadraceError as error:
            return UnitFailed(error)
        if not lost:
            return UnitCommitted(now)
        error = NetworkFailed("the answer was lost")
        error.then = Then.RETRY
        return UnitFailed(error)

    @rule()
    def the_coordinator_dies(self) -> None:
        self.coordinator.restart()

    @rule(lost=st.integers(0, 1), crashes=st.booleans(), failed=st.booleans())
    def goes_well(self, lost: int, crashes: bool, failed: bool) -> None:
        plan = self._plan()
        if failed:
            given_up = self._attempt(plan, 0)
            for _ in range(3):
                next(given_up, None)
        for number in range(TASKS):
            self.attempt(plan, number)
        before, there = self.done, len(self.coordinator.committed)
        self.commit(plan, lost, crashes)
        assert crashes or self.done == before + 1, "nothing stands in the way of a later plan"
        assert len(self.coordinator.committed) == there or not self.coordinator.undecided(), "readers wait for nothing"

    @invariant()
    def nothing_is_there_twice(self) -> None:
        there = self.coordinator.committed
        assert len(there) == len(set(there))

    @invariant()
    def what_spark_has_done_is_there_whole(self) -> None:
        there = set(self.coordinator.committed)
        for batch in {*range(self.done), *(batch for batch, _ in there)}:
            assert parts(batch) <= there, "never a part of a batch"


Sink.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestSink = Sink.TestCase
