"""Writing exactly once: what a task does, and what the driver does; `test_units_machine` plays all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_common.core.errors import (
    FencedOwner,
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
        [Finish(TaskMessage(5, owned, "T", sequence=7, claim=9))],
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


def test_a_task_of_an_earlier_plan_says_what_happened() -> None:
    (*_, (failed,)) = dialogue(SinkTask(SinkPlan()), CAME, TaskFailed(FencedOwner("9 is lower")))
    assert isinstance(failed, FailTask)
    assert isinstance(failed.error, FencedOwner)
    assert "planned a write as 'q1' later than this one" in str(failed.error)


# --- batch jobs --------------------------------------------------------------------------------------------------


def test_a_batch_job_is_the_next_unit_of_its_owner() -> None:
    owned = Owned("batch.x", 1, 4)
    effects = dialogue(SinkTask(JOB), RowsCame(None, None, FRESH), OwnerClaimed(owned), RowsEnded(2), Prepared("T"))
    assert effects[0] == [ClaimOwner("batch.x", 9)]
    assert effects[-1] == [Finish(TaskMessage(2, owned, "T", sequence=5, claim=9))]


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
    return TaskMessage(rows, owned, token, claim=9)


def test_what_all_tasks_prepared_is_one_unit() -> None:
    commit = UnitCommit(job=False)
    asked = CommitAsked([wrote("A", 2), TaskMessage(), wrote("B", 3), wrote("A", 0)], 7)
    assert commit.handle(asked) == [CommitUnit("q1", 3, 7, ("A", "B"))]
    assert commit.handle(UnitCommitted(now=True)) == [Done(5)]


def test_a_job_commits_under_the_number_that_its_tasks_found() -> None:
    commit = UnitCommit(job=True)
    messages = [replace(wrote("A"), sequence=7), TaskMessage(), replace(wrote("B"), sequence=7)]
    assert commit.handle(CommitAsked(messages, None)) == [CommitUnit("q1", 3, 7, ("A", "B"))]
    assert commit.handle(UnitCommitted(now=True)) == [RaiseOwner("q1", 10), Done(2)], "no next batch will sweep"


def test_what_failed_attempts_left_open_is_aborted_with_the_commit() -> None:
    commit = UnitCommit(job=False)
    commit.handle(CommitAsked([wrote("A"), replace(wrote("B"), retried=True)], 7))
    assert commit.handle(UnitCommitted(now=True)) == [RaiseOwner("q1", 10), Done(2)]


def test_a_unit_of_an_earlier_run_stands() -> None:
    commit = UnitCommit(job=False)
    commit.handle(CommitAsked([wrote("A")], 7))
    assert commit.handle(UnitCommitted(now=False)) == [Done(0, repeated=True)]


def test_a_batch_without_rows_is_no_unit() -> None:
    assert UnitCommit(job=False).handle(CommitAsked([TaskMessage(), TaskMessage()], 7)) == [Done(0)]
    assert UnitCommit(job=False).handle(CommitAsked([], 7)) == [Done(0)]
    assert UnitCommit(job=False).handle(CommitAsked([TaskMessage(4)], 7)) == [Done(4)], "without transactions"


def test_a_skipped_batch_is_done_already() -> None:
    skipped = TaskMessage(0, Owned("q1", 4, 7), skipped=True)
    assert UnitCommit(job=False).handle(CommitAsked([skipped, TaskMessage()], 7)) == [Done(0, repeated=True)]


def test_where_some_tasks_found_it_committed_the_coordinator_decides() -> None:
    skipped = TaskMessage(0, OWNED, skipped=True)
    assert UnitCommit(job=False).handle(CommitAsked([skipped, wrote("A")], 7)) == [CommitUnit("q1", 3, 7, ("A",))]


def test_answers_that_do_not_come_are_asked_for_again() -> None:
    commit = UnitCommit(job=False)
    unit = commit.handle(CommitAsked([wrote("A")], 7))
    error = NetworkFailed("gone")
    error.then = Then.RETRY
    for _ in range(COMMIT_TRIES_MAX - 1):
        assert commit.handle(UnitFailed(error)) == unit
    assert commit.handle(UnitFailed(error)) == [FailCommit(error)]


def test_a_transaction_that_is_gone_fails_the_batch() -> None:
    commit = UnitCommit(job=False)
    commit.handle(CommitAsked([wrote("A"), wrote("B")], 7))
    (failed,) = commit.handle(UnitFailed(TransactionAbortable("A is not prepared")))
    assert isinstance(failed, FailCommit)
    assert "Nothing of batch 7 was committed" in str(failed.error)
    assert isinstance(failed.error, TransactionAbortable)


def test_a_driver_that_was_replaced_stops() -> None:
    commit = UnitCommit(job=False)
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
    failed = UnitCommit(job=False).handle(CommitAsked(messages, 7))[-1]
    assert isinstance(failed, FailCommit)
    assert told in str(failed.error)


def test_what_is_given_up_is_aborted_at_once() -> None:
    """With the tasks' own claim: a driver that was replaced gives up too, and must not fence the one that did it."""
    messages = [None, wrote("A"), TaskMessage(), wrote("B")]
    assert UnitCommit(job=False).handle(AbortAsked(messages)) == [RaiseOwner("q1", 10), Done(0)]
    assert UnitCommit(job=False).handle(AbortAsked([None, TaskMessage(4)])) == [Done(0)]
