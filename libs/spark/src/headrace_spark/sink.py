"""
What both writers do: carries out what ``core.sink_task`` and ``core.units`` decide, with a sink that is a port.

``write_rows`` is called in the tasks, ``commit_unit`` and ``abort_unit`` where the driver ends a batch; by ``writing``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from headrace_common.core.errors import HeadraceError
from headrace_spark.core.sink_columns import SinkColumns, tables_by_topic
from headrace_spark.core.sink_task import (
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
)
from headrace_spark.core.units import (
    AbortAsked,
    CommitAsked,
    CommitEvent,
    CommitUnit,
    Done,
    FailCommit,
    RaiseOwner,
    SinkPlan,
    TaskMessage,
    UnitCommit,
    UnitCommitted,
    UnitFailed,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace_spark.ports import RecordWriter, Sink

_log: Final = logging.getLogger("headrace.spark")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which task this is, as Spark says it."""

    query_id: str | None
    batch_id: int | None
    number: int
    """0: the first one."""


def write_rows(
    sink: Sink, plan: SinkPlan, columns: SinkColumns, batches: Iterable[pa.RecordBatch], attempt: Attempt
) -> TaskMessage:
    """
    Write all rows of one attempt of one task.

    Returns:
        What the driver has to know.

    Raises:
        HeadraceError: not written; what was begun is aborted, as far as that is possible.
    """
    rows = iter(batches)
    first = next((batch for batch in rows if len(batch)), None)
    if first is None:
        return _Writing(sink, columns, iter(()), attempt).run(SinkTask(plan), RowsEnded(0))
    came = RowsCame(attempt.query_id, attempt.batch_id, sink.fresh(), attempt.number)
    return _Writing(sink, columns, chain([first], rows), attempt).run(SinkTask(plan), came)


class _Writing:
    """One attempt of one task."""

    def __init__(self, sink: Sink, columns: SinkColumns, rows: Iterator[pa.RecordBatch], attempt: Attempt) -> None:
        self._sink = sink
        self._columns = columns
        self._rows = rows
        self._attempt = attempt
        self._writer: RecordWriter | None = None

    def run(self, task: SinkTask, event: TaskEvent) -> TaskMessage:
        """Do what the core says until it ends."""
        try:
            while True:
                effects = task.handle(event)
                for effect in effects[:-1]:
                    self._aside(effect)
                last = effects[-1]
                match last:
                    case Finish(message):
                        return message
                    case FailTask(error):
                        raise error
                    case _:
                        event = self._step(last)
        except BaseException:  # Spark's own errors, among others: its rows come from a socket
            self._abort()
            raise
        finally:
            if self._writer is not None:
                self._writer.close()

    def _aside(self, effect: TaskEffect) -> None:
        assert isinstance(effect, AbortTransaction), "all others are answered"
        self._abort()

    def _abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()

    def _step(self, effect: TaskEffect) -> TaskEvent:
        try:
            return self._done(effect)
        except HeadraceError as error:
            return TaskFailed(error)

    def _done(self, effect: TaskEffect) -> TaskEvent:
        match effect:
            case ClaimOwner(owner, claim):
                return OwnerClaimed(self._sink.claim(owner, claim))
            case OpenProducer(transactional_id, owner_epoch):
                self._writer = self._sink.open(transactional_id, owner_epoch)
                return RowsEnded(self._write_all(self._writer))
            case DropRows():
                dropped = sum(len(batch) for batch in self._rows)
                _log.warning(
                    "repeated: batch %s was committed before, %d rows dropped", self._attempt.batch_id, dropped
                )
                return RowsEnded(0)
            case Flush():
                assert self._writer is not None, "it was opened"
                self._writer.flush()
                return Flushed()
            case Prepare():
                assert self._writer is not None, "it was opened"
                return Prepared(self._writer.prepare())
            case _:
                raise AssertionError(f"{effect} is no step")

    def _write_all(self, writer: RecordWriter) -> int:
        written = 0
        for batch in self._rows:
            for topic, table in tables_by_topic(batch, self._columns):
                writer.write(topic, table)
            written += len(batch)
        return written


def commit_unit(sink: Sink, plan: SinkPlan, messages: Sequence[TaskMessage | None], batch_id: int | None) -> int:
    """
    Commit what the tasks of a batch prepared, as one.

    Args:
        batch_id: of a micro-batch; None: a batch job.

    Returns:
        How many rows became visible.

    Raises:
        HeadraceError: nothing was committed, or, after ``WaitTimedOut``, nobody knows; the same batch may be repeated.
    """
    return _end(sink, UnitCommit(job=plan.job is not None), CommitAsked(messages, batch_id), batch_id)


def abort_unit(sink: Sink, plan: SinkPlan, messages: Sequence[TaskMessage | None]) -> None:
    """Abort what the tasks of a batch wrote; what cannot be reached is aborted later."""
    _end(sink, UnitCommit(job=plan.job is not None), AbortAsked(messages), None)


def _end(sink: Sink, unit: UnitCommit, event: CommitEvent, batch_id: int | None) -> int:
    while True:
        effects = unit.handle(event)
        for effect in effects[:-1]:
            assert isinstance(effect, RaiseOwner), "all others end a call"
            sink.sweep(effect.owner, effect.claim)
        match effects[-1]:
            case CommitUnit() as asked:
                event = _commit_unit(sink, asked)
            case Done(rows, repeated):
                if repeated:
                    _log.warning("repeated: batch %s was committed before, what was written now is dropped", batch_id)
                return rows
            case FailCommit(error):
                raise error
            case other:
                raise AssertionError(f"{other} ends no call")


def _commit_unit(sink: Sink, unit: CommitUnit) -> CommitEvent:
    try:
        return UnitCommitted(sink.commit(unit))
    except HeadraceError as error:
        return UnitFailed(error)
