"""What the sink's shell does with a sink that writes down what it is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace_common.core.errors import FencedOwner, HeadraceError, NetworkFailed, Then, TransactionAbortable
from headrace_spark.core.columns import FieldGiven
from headrace_spark.core.sink_columns import check_sink_schema
from headrace_spark.core.units import COMMIT_TRIES_MAX, CommitUnit, Owned, SinkPlan, TaskMessage
from headrace_spark.sink import Attempt, abort_unit, commit_unit, write_rows

COLUMNS = check_sink_schema([FieldGiven("value", "string")], "t")
PLAN = SinkPlan(claim=9)
ATTEMPT = Attempt("q1", 7, 0)
OWNED = Owned("q1", 3, 6)
ID = "q1/" + "00" * 16


class Notes:
    """A sink and its writer; ``fails`` names the call that raises."""

    def __init__(self, fails: str = "", error: HeadraceError | None = None, times: int = 1_000) -> None:
        self.said: list[str] = []
        self.last_sequence = 6
        self._fails, self._error, self._times = fails, error or NetworkFailed("gone"), times

    def _say(self, call: str, *args: object) -> None:
        self.said.append(" ".join(map(str, (call, *args))))
        if call == self._fails and self._times:
            self._times -= 1
            raise self._error

    def fresh(self) -> bytes:
        return bytes(16)

    def claim(self, owner: str, claim: int) -> Owned:
        self._say("claim", owner, claim)
        return Owned(owner, 3, self.last_sequence)

    def open(self, transactional_id: str | None, owner_epoch: int | None) -> Notes:
        self._say("open", transactional_id, owner_epoch)
        return self

    def write(self, topic: str, table: pa.Table) -> None:
        self._say("write", topic, len(table))

    def flush(self) -> None:
        self._say("flush")

    def prepare(self) -> str:
        self._say("prepare")
        return "T"

    def abort(self) -> None:
        self._say("abort")

    def close(self) -> None:
        self._say("close")

    def commit(self, unit: CommitUnit) -> bool:
        self._say("commit", unit.owner, unit.epoch, unit.sequence, *unit.tokens)
        return True

    def sweep(self, owner: str, claim: int) -> None:
        self._say("sweep", owner, claim)


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    for size in sizes:
        yield pa.RecordBatch.from_arrays([pa.array(["v"] * size, pa.string())], names=["value"])


def test_a_task_that_goes_well() -> None:
    sink = Notes()
    message = write_rows(sink, PLAN, COLUMNS, batches(0, 2, 0, 3), ATTEMPT)
    assert message == TaskMessage(5, OWNED, "T", sequence=7, claim=9)
    assert sink.said == ["claim q1 9", f"open {ID} 3", "write t 2", "write t 3", "prepare", "close"]


def test_a_task_without_rows_asks_nothing() -> None:
    sink = Notes()
    assert write_rows(sink, PLAN, COLUMNS, batches(0, 0), ATTEMPT) == TaskMessage()
    assert sink.said == []


def test_rows_of_a_repeated_batch_are_read_to_their_end() -> None:
    sink, rows = Notes(), batches(2, 3)
    sink.last_sequence = 7
    assert write_rows(sink, PLAN, COLUMNS, rows, ATTEMPT).skipped
    assert sink.said == ["claim q1 9"]
    assert next(rows, None) is None, "Spark's worker has to read them"


def test_without_transactions_it_flushes() -> None:
    sink = Notes()
    assert write_rows(sink, SinkPlan(transactional=False), COLUMNS, batches(2), ATTEMPT) == TaskMessage(2)
    assert sink.said == ["open None None", "write t 2", "flush", "close"]


@pytest.mark.parametrize("call", ["write", "prepare"])
def test_what_fails_in_a_transaction_is_aborted(call: str) -> None:
    sink = Notes(call)
    with pytest.raises(NetworkFailed, match="gone"):
        write_rows(sink, PLAN, COLUMNS, batches(2), ATTEMPT)
    after = sink.said[sink.said.index(next(said for said in sink.said if said.startswith(call))) + 1 :]
    assert after[0] == "abort"
    assert after[-1] == "close"


@pytest.mark.parametrize("call", ["claim", "open"])
def test_what_was_not_begun_is_not_ended(call: str) -> None:
    sink = Notes(call)
    with pytest.raises(NetworkFailed, match="gone"):
        write_rows(sink, PLAN, COLUMNS, batches(2), ATTEMPT)
    assert not {"abort", "close"} & set(sink.said)


def test_rows_that_raise_abort_and_the_error_is_theirs() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(2)
        raise SystemExit(1)

    sink = Notes()
    with pytest.raises(SystemExit):
        write_rows(sink, PLAN, COLUMNS, broken(), ATTEMPT)
    assert sink.said[-2:] == ["abort", "close"]


def wrote(token: str) -> TaskMessage:
    return TaskMessage(1, OWNED, token, sequence=7, claim=9)


def test_a_batch_is_committed_and_a_job_leaves_nothing() -> None:
    sink = Notes()
    assert commit_unit(sink, PLAN, [wrote("A"), TaskMessage(), wrote("B")], 7) == 2
    assert sink.said == ["commit q1 3 7 A B"]
    assert commit_unit(sink, SinkPlan(claim=9, job="batch.x"), [wrote("A")], None) == 1
    assert sink.said[1:] == ["commit q1 3 7 A", "sweep q1 10"]


def test_answers_that_are_lost_are_asked_for_again() -> None:
    lost = NetworkFailed("gone")
    lost.then = Then.RETRY
    sink = Notes("commit", lost, times=2)
    assert commit_unit(sink, PLAN, [wrote("A")], 7) == 1
    assert sink.said == ["commit q1 3 7 A"] * 3
    sink = Notes("commit", lost)
    with pytest.raises(NetworkFailed):
        commit_unit(sink, PLAN, [wrote("A")], 7)
    assert len(sink.said) == COMMIT_TRIES_MAX


@pytest.mark.parametrize("error", [FencedOwner("replaced"), TransactionAbortable("A is gone")])
def test_what_cannot_be_committed_is_raised_and_then_given_up(error: HeadraceError) -> None:
    sink = Notes("commit", error)
    with pytest.raises(type(error), match=str(error)):
        commit_unit(sink, PLAN, [wrote("A")], 7)
    abort_unit(sink, PLAN, [wrote("A"), None])
    assert sink.said == ["commit q1 3 7 A", "sweep q1 10"]
