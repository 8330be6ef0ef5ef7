"""Writing exactly once: tasks, units, and a Spark that repeats, gives up and comes back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from headrace_common.core.errors import (
    FencedOwner,
    HeadraceError,
    NetworkFailed,
    Rejected,
    Then,
    TransactionAbortable,
)
from headrace_spark.core.sink_task import (
    FRESH_BYTES,
    AbortTransaction,
    ClaimOwner,
    DropRows,
    FailTask,
    Finish,
    Flush,
    Flushed,
    OpenProducer,
    OwnerClaimed,
    Prepare,
    Prepared,
    RowsCame,
    RowsEnded,
    SinkTask,
    TaskEffect,
    TaskEvent,
    TaskFailed,
    transactional_id,
)
from headrace_spark.core.units import (
    COMMIT_TRIES_MAX,
    TOKENS_MAX,
    AbortAsked,
    AbortPrepared,
    CommitAsked,
    CommitUnit,
    Done,
    FailCommit,
    Owned,
    RaiseOwner,
    SinkPlan,
    TaskMessage,
    UnitCommit,
    UnitCommitted,
    UnitFailed,
    UnitName,
    claim_number,
    owner_name,
    unit_name,
)

FRESH = bytes(range(FRESH_BYTES))
CAME = RowsCame("q1", 7, FRESH)
OWNED = Owned("q1", 3, 6)
JOB = SinkPlan(claim=9, job="batch.x", topic="t")


def dialogue(task: SinkTask, *events: TaskEvent) -> list[list[TaskEffect]]:
    return [task.handle(event) for event in events]


# --- names -------------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert owner_name("q1", None) == "q1"
    assert owner_name("q1", "billing") == "billing.q1"
    assert owner_name(None, "billing") == "billing"
    assert transactional_id("q1", FRESH) == "q1/000102030405060708090a0b0c0d0e0f"
    assert len(transactional_id(owner_name("q" * 36, "b" * 150), FRESH)) <= 249
    with pytest.raises(Rejected, match="set 'transactionalId'"):
        owner_name(None, None)
    for bad in ("a/b", "x" * 201):
        with pytest.raises(Rejected, match="without '/'"):
            owner_name(bad, None)


def test_later_plans_have_higher_claims() -> None:
    assert claim_number(1_700_000_000_000, 2**64 - 1) < claim_number(1_700_000_000_001, 0) < 2**63


# --- a task ------------------------------------------------------------------------------------------------------


def test_a_task_prepares_a_transaction_of_its_own() -> None:
    owned = Owned("q1", 3, 6)
    assert dialogue(SinkTask(SinkPlan(claim=9)), CAME, OwnerClaimed(owned), RowsEnded(5), Prepared("T")) == [
        [ClaimOwner("q1", 9)],
        [OpenProducer(f"q1/{FRESH.hex()}", 3)],
        [Prepare()],
        [Finish(TaskMessage(5, owned, "T", sequence=7))],
    ]


def test_a_task_without_rows_asks_nobody() -> None:
    assert dialogue(SinkTask(SinkPlan(claim=9)), RowsEnded(0)) == [[Finish(TaskMessage())]]


def test_a_batch_that_was_committed_is_not_written_again() -> None:
    owned = Owned("q1", 3, 7)
    assert dialogue(SinkTask(SinkPlan()), CAME, OwnerClaimed(owned), RowsEnded(0))[1:] == [
        [DropRows()],
        [Finish(TaskMessage(0, owned, skipped=True, sequence=7))],
    ]


def test_an_older_batch_than_what_was_committed_fails() -> None:
    (_, (failed,)) = dialogue(SinkTask(SinkPlan()), CAME, OwnerClaimed(Owned("q1", 3, 8)))
    assert isinstance(failed, FailTask)
    assert isinstance(failed.error, FencedOwner)
    assert "batch 7 of 'q1' is to be written, and batch 8 was committed before" in str(failed.error)
    assert "new checkpoint" in str(failed.error)


def test_an_unknown_batch_is_written_and_judged_by_the_driver() -> None:
    came = RowsCame(None, None, FRESH)
    effects = dialogue(SinkTask(SinkPlan(prefix="mine")), came, OwnerClaimed(Owned("mine", 1, 50)))
    assert effects[0] == [ClaimOwner("mine", 0)]
    assert isinstance(effects[1][0], OpenProducer)


def test_without_a_name_a_task_says_what_to_set() -> None:
    ((failed,),) = dialogue(SinkTask(SinkPlan()), RowsCame(None, 7, FRESH))
    assert isinstance(failed, FailTask)
    assert "'transactional' to false" in str(failed.error)


def test_a_later_attempt_says_that_it_is_one() -> None:
    came = RowsCame("q1", 7, FRESH, attempt=1)
    (*_, (finish,)) = dialogue(SinkTask(SinkPlan()), came, OwnerClaimed(OWNED), RowsEnded(1), Prepared("T"))
    assert finish == Finish(TaskMessage(1, OWNED, "T", sequence=7, retried=True))


# --- batch jobs --------------------------------------------------------------------------------------------------


def test_a_batch_job_is_the_next_unit_of_its_owner() -> None:
    owned = Owned("batch.x", 1, 4)
    effects = dialogue(SinkTask(JOB), RowsCame(None, None, FRESH), OwnerClaimed(owned), RowsEnded(2), Prepared("T"))
    assert effects[0] == [ClaimOwner("batch.x", 9)]
    assert effects[-1] == [Finish(TaskMessage(2, owned, "T", sequence=5))]


def named(plan: SinkPlan, query_id: str | None = None, batch_id: int | None = None) -> UnitName:
    return unit_name(plan, query_id, batch_id)


def test_a_job_under_a_name_follows_the_one_before() -> None:
    assert named(JOB) == UnitName("batch.x", None)
    assert named(replace(JOB, prefix="nightly")) == UnitName("nightly", None)


def test_jobs_of_a_micro_batch_have_the_owner_of_their_query_and_topic() -> None:
    anonymous = named(JOB, "q1", 7)
    assert anonymous.sequence is None, "nobody knows which write of the function it is"
    assert anonymous.owner.startswith("q1.")
    assert named(replace(JOB, job="batch.y"), "q1", 8) == anonymous, "owners are kept for ever, so there must be few"
    assert named(replace(JOB, topic="u"), "q1", 7).owner != anonymous.owner
    assert named(replace(JOB, topic=None), "q1", 7).owner != anonymous.owner
    assert named(replace(JOB, prefix="board"), "q1", 7) == UnitName(f"board.{anonymous.owner}", 7)


def test_a_named_job_of_a_repeated_micro_batch_is_not_written_again() -> None:
    plan = replace(JOB, prefix="board")
    assert dialogue(SinkTask(plan), CAME, OwnerClaimed(Owned("…", 1, 7)))[1] == [DropRows()]


def test_at_least_once_only_flushes() -> None:
    assert dialogue(SinkTask(SinkPlan(transactional=False)), CAME, RowsEnded(2), Flushed()) == [
        [OpenProducer(None, None)],
        [Flush()],
        [Finish(TaskMessage(2))],
    ]


def test_what_fails_is_aborted_where_something_was_begun() -> None:
    error = NetworkFailed("gone")
    writing = SinkTask(SinkPlan())
    assert dialogue(writing, CAME, OwnerClaimed(Owned("q1", 1, -1)), TaskFailed(error))[-1] == [
        AbortTransaction(),
        FailTask(error),
    ]
    claiming = SinkTask(SinkPlan())
    assert dialogue(claiming, CAME, TaskFailed(error))[-1] == [FailTask(error)]


# --- the driver --------------------------------------------------------------------------------------------------


def wrote(token: str, rows: int = 1, owned: Owned = OWNED) -> TaskMessage:
    return TaskMessage(rows, owned, token)


def test_what_all_tasks_prepared_is_one_unit() -> None:
    commit = UnitCommit(SinkPlan(claim=20))
    asked = CommitAsked([wrote("A", 2), TaskMessage(), wrote("B", 3), wrote("A", 0)], 7)
    assert commit.handle(asked) == [CommitUnit("q1", 3, 7, ("A", "B"))]
    assert commit.handle(UnitCommitted(now=True)) == [Done(5)]


def test_a_job_commits_under_the_number_that_its_tasks_found() -> None:
    commit = UnitCommit(JOB)
    messages = [TaskMessage(1, OWNED, "A", sequence=7), TaskMessage(), TaskMessage(1, OWNED, "B", sequence=7)]
    assert commit.handle(CommitAsked(messages, None)) == [CommitUnit("q1", 3, 7, ("A", "B"))]
    assert commit.handle(UnitCommitted(now=True)) == [RaiseOwner("q1", 10), Done(2)], "no next batch will sweep"


def test_what_failed_attempts_left_open_is_aborted_with_the_commit() -> None:
    commit = UnitCommit(SinkPlan(claim=20))
    commit.handle(CommitAsked([wrote("A"), TaskMessage(1, OWNED, "B", retried=True)], 7))
    assert commit.handle(UnitCommitted(now=True)) == [RaiseOwner("q1", 21), Done(2)]


def test_a_unit_of_an_earlier_run_stands() -> None:
    commit = UnitCommit(SinkPlan(claim=20))
    commit.handle(CommitAsked([wrote("A")], 7))
    assert commit.handle(UnitCommitted(now=False)) == [Done(0, repeated=True)]


def test_a_batch_without_rows_is_no_unit() -> None:
    assert UnitCommit(SinkPlan(claim=20)).handle(CommitAsked([TaskMessage(), TaskMessage()], 7)) == [Done(0)]
    assert UnitCommit(SinkPlan(claim=20)).handle(CommitAsked([], 7)) == [Done(0)]
    assert UnitCommit(SinkPlan(claim=20)).handle(CommitAsked([TaskMessage(4)], 7)) == [Done(4)], "without transactions"


def test_a_skipped_batch_is_done_already() -> None:
    skipped = TaskMessage(0, Owned("q1", 4, 7), skipped=True)
    assert UnitCommit(SinkPlan(claim=20)).handle(CommitAsked([skipped, TaskMessage()], 7)) == [Done(0, repeated=True)]


def test_where_some_tasks_found_it_committed_the_coordinator_decides() -> None:
    skipped = TaskMessage(0, OWNED, skipped=True)
    assert UnitCommit(SinkPlan(claim=20)).handle(CommitAsked([skipped, wrote("A")], 7)) == [
        CommitUnit("q1", 3, 7, ("A",))
    ]


def test_answers_that_do_not_come_are_asked_for_again() -> None:
    commit = UnitCommit(SinkPlan(claim=20))
    unit = commit.handle(CommitAsked([wrote("A")], 7))
    error = NetworkFailed("gone")
    error.then = Then.RETRY
    for _ in range(COMMIT_TRIES_MAX - 1):
        assert commit.handle(UnitFailed(error)) == unit
    assert commit.handle(UnitFailed(error)) == [FailCommit(error)]


def test_a_transaction_that_is_gone_fails_the_batch() -> None:
    commit = UnitCommit(SinkPlan(claim=20))
    commit.handle(CommitAsked([wrote("A"), wrote("B")], 7))
    aborted, failed = commit.handle(UnitFailed(TransactionAbortable("A is not prepared")))
    assert aborted == AbortPrepared(("A", "B"))
    assert isinstance(failed, FailCommit)
    assert "Nothing of batch 7 was committed" in str(failed.error)
    assert isinstance(failed.error, TransactionAbortable)


def test_a_driver_that_was_replaced_stops() -> None:
    commit = UnitCommit(SinkPlan(claim=20))
    commit.handle(CommitAsked([wrote("A")], 7))
    error = FencedOwner("replaced")
    assert commit.handle(UnitFailed(error)) == [FailCommit(error)]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([wrote("A"), None], "a task told nothing"),
        ([wrote("A"), wrote("B", owned=Owned("q1", 4, 6))], "q1 (epoch 3), q1 (epoch 4): another driver"),
        ([wrote(str(n)) for n in range(TOKENS_MAX + 1)], "10001 tasks wrote rows, and 10000 can be"),
    ],
)
def test_units_that_cannot_be(messages: list[TaskMessage | None], told: str) -> None:
    failed = UnitCommit(SinkPlan(claim=20)).handle(CommitAsked(messages, 7))[-1]
    assert isinstance(failed, FailCommit)
    assert told in str(failed.error)


def test_what_is_given_up_is_aborted_at_once() -> None:
    assert UnitCommit(SinkPlan(claim=20)).handle(AbortAsked([None, wrote("A"), TaskMessage()])) == [
        AbortPrepared(("A",)),
        Done(0),
    ]
    assert UnitCommit(SinkPlan(claim=20)).handle(AbortAsked([None])) == [Done(0)]


# --- all of it, against a coordinator ----------------------------------------------------------------------------


@dataclass
class Coordinator:
    """Owners and prepared transactions, by the rules of ``05-groups-and-transactions``, with numbered claims."""

    claim: int = -1
    epoch: int = 0
    last_sequence: int = -1
    open: dict[str, tuple[int, Any]] = field(default_factory=dict)
    prepared: dict[str, Any] = field(default_factory=dict)
    committed: list[Any] = field(default_factory=list)

    def claimed(self, claim: int) -> Owned:
        if claim < self.claim:
            raise FencedOwner("a later plan has this owner")
        if claim > self.claim:
            self.claim, self.epoch = claim, self.epoch + 1
            self.open.clear()
            self.prepared.clear()
        return Owned("q1", self.epoch, self.last_sequence)

    def begin(self, name: str, epoch: int, content: Any) -> None:
        self._check(epoch)
        assert name not in self.open
        assert name not in self.prepared
        self.open[name] = (epoch, content)

    def prepare(self, name: str) -> str:
        if name not in self.open:
            raise TransactionAbortable("aborted by a newer owner")
        self.prepared[name] = self.open.pop(name)[1]
        return name

    def commit(self, unit: CommitUnit) -> bool:
        self._check(unit.epoch)
        if unit.sequence < self.last_sequence:
            raise FencedOwner("an old unit")
        now = unit.sequence > self.last_sequence
        if now:
            if any(token not in self.prepared for token in unit.tokens):
                raise TransactionAbortable("not prepared")
            self.last_sequence = unit.sequence
            self.committed += [self.prepared[token] for token in unit.tokens]
        self.prepared.clear()
        return now

    def _check(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise FencedOwner("an older epoch")


class Plan:
    """One planned write of a batch, by one driver."""

    def __init__(self, batch: int, claim: int) -> None:
        self.batch, self.claim = batch, claim
        self.messages: dict[int, TaskMessage] = {}


def parts(batch: int) -> set[tuple[int, int]]:
    """Which tasks of a batch have rows: the same ones whenever it is planned."""
    return {(batch, 0)} if batch % 2 else {(batch, 0), (batch, 1)}


class Sink(RuleBasedStateMachine):
    """
    Drivers plan batches, die, come back, and are thought dead while they live. Attempts of tasks fail, are repeated,
    and go on after they were given up. Each batch is in the topic once and whole, or not at all.
    """

    plans = Bundle("plans")
    TASKS = 2

    @initialize()
    def begin(self) -> None:
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
        self.clock += 1
        return Plan(self.done, claim_number(self.clock, 0))

    @rule(plan=plans, number=st.integers(0, 1), dies=st.sampled_from([False, False, True]))
    def attempt(self, plan: Plan, number: int, dies: bool) -> None:
        """One attempt of a task. The last one that ends is the one whose message the driver has."""
        self.chance += 1
        task = SinkTask(SinkPlan(claim=plan.claim))
        fresh = self.chance.to_bytes(FRESH_BYTES, "big")
        message = self._run(task, plan, number, fresh, dies)
        if message is not None:
            plan.messages[number] = message

    def _run(self, task: SinkTask, plan: Plan, number: int, fresh: bytes, dies: bool) -> TaskMessage | None:
        rows = (plan.batch, number) in parts(plan.batch)
        event: TaskEvent | None = RowsCame("q1", plan.batch, fresh) if rows else RowsEnded(0)
        while event is not None:
            effects, event = task.handle(event), None
            for effect in effects:
                try:
                    match effect:
                        case ClaimOwner(_, claim):
                            event = OwnerClaimed(self.coordinator.claimed(claim))
                        case OpenProducer(name, epoch):
                            assert name is not None
                            assert epoch is not None
                            self.coordinator.begin(name, epoch, (plan.batch, number))
                            if dies:
                                return None
                            event = RowsEnded(1)
                        case DropRows():
                            event = RowsEnded(0)
                        case Prepare():
                            event = Prepared(self.coordinator.prepare(f"q1/{fresh.hex()}"))
                        case Finish(message):
                            return message
                        case FailTask():
                            return None
                except HeadraceError as error:
                    event = TaskFailed(error)
        return None

    @rule(plan=plans, lost=st.integers(0, 2), crashes=st.booleans())
    def commit(self, plan: Plan, lost: int, crashes: bool) -> None:
        """With all messages; answers get lost, and the driver may die before it writes its commit log."""
        if len(plan.messages) < self.TASKS or plan.batch > self.done:
            return
        unit = UnitCommit(SinkPlan(claim=20))
        event: Any = CommitAsked(list(plan.messages.values()), plan.batch)
        while True:
            effect = unit.handle(event)[-1]
            match effect:
                case CommitUnit():
                    try:
                        now = self.coordinator.commit(effect)
                        event = UnitCommitted(now)
                        if lost:
                            raise self._lost()
                    except HeadraceError as error:
                        event = UnitFailed(error)
                    lost = max(0, lost - 1)
                case Done():
                    if not crashes:
                        self.done = max(self.done, plan.batch + 1)
                    return
                case _:
                    return

    @rule(lost=st.integers(0, 1), crashes=st.booleans())
    def goes_well(self, lost: int, crashes: bool) -> None:
        plan = self._plan()
        for number in range(self.TASKS):
            self.attempt(plan, number, dies=False)
        before = self.done
        self.commit(plan, lost, crashes)
        assert crashes or self.done == before + 1, "nothing stands in the way of a later plan"

    @staticmethod
    def _lost() -> NetworkFailed:
        error = NetworkFailed("the answer was lost")
        error.then = Then.RETRY
        return error

    @invariant()
    def nothing_is_there_twice(self) -> None:
        there = self.coordinator.committed if hasattr(self, "coordinator") else []
        assert len(there) == len(set(there))

    @invariant()
    def what_spark_has_done_is_there_whole(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        there = set(self.coordinator.committed)
        for batch in {*range(self.done), *(batch for batch, _ in there)}:
            assert parts(batch) <= there, "never a part of a batch"


Sink.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestSink = Sink.TestCase
