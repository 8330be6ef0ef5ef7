"""
What one call of a task's ``write`` does: a transaction of its own, prepared and not decided.

Each call has a fresh transactional id ``owner/fresh``: an attempt that Spark has given up may still be writing under
its own, and what it prepares is in no unit. Called by the sink in the executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace_common.core.errors import FencedOwner, HeadraceError, Rejected
from headrace_spark.core.units import Owned, SinkPlan, TaskMessage, UnitName, unit_name

FRESH_BYTES: Final = 16


def transactional_id(owner: str, fresh: bytes) -> str:
    """Names one attempt of one task."""
    assert len(fresh) == FRESH_BYTES, "two attempts must never meet"
    return f"{owner}/{fresh.hex()}"


@dataclass(frozen=True, slots=True)
class RowsCame:
    """The first rows of the task are there."""

    query_id: str | None
    batch_id: int | None
    """None: not known; the driver knows it when it commits."""
    fresh: bytes
    attempt: int = 0
    """0: no earlier attempt of this task failed."""


@dataclass(frozen=True, slots=True)
class OwnerClaimed:
    """Answer to ``ClaimOwner``."""

    owned: Owned


@dataclass(frozen=True, slots=True)
class RowsEnded:
    """All rows were handed to the producer, or dropped."""

    rows: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """Every record is acknowledged."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The transaction is durable, and decided by whoever holds the token."""

    token: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """Something went wrong on the way."""

    error: HeadraceError


TaskEvent: TypeAlias = RowsCame | OwnerClaimed | RowsEnded | Flushed | Prepared | TaskFailed


@dataclass(frozen=True, slots=True)
class ClaimOwner:
    """Claim the owner; tell ``OwnerClaimed``, or ``TaskFailed`` if a higher claim holds."""

    owner: str
    claim: int


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """Make a producer, begin a transaction if it has an id, and write all rows."""

    transactional_id: str | None
    owner_epoch: int | None


@dataclass(frozen=True, slots=True)
class DropRows:
    """Read the rows and write none."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait for every acknowledgement."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Flush, and prepare the transaction."""


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """Abort what is open, if that is still possible, and close the producer; failures of that change nothing."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Close the producer, and return the message from ``write``."""

    message: TaskMessage


@dataclass(frozen=True, slots=True)
class FailTask:
    """Raise."""

    error: HeadraceError


TaskEffect: TypeAlias = ClaimOwner | OpenProducer | DropRows | Flush | Prepare | AbortTransaction | Finish | FailTask


class SinkTask:
    """One call of ``write``. A task without rows asks nobody."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._came: RowsCame | None = None
        self._name: UnitName | None = None
        self._owned: Owned | None = None
        self._sequence: int | None = None
        self._rows = 0
        self._writing = False
        self._over = False

    def handle(self, event: TaskEvent) -> list[TaskEffect]:
        """Apply ``event`` and return what must now be done, in order."""
        assert not self._over, "a task ends once"
        match event:
            case RowsCame():
                self._came = event
                return self._begin(event)
            case OwnerClaimed(owned):
                self._owned = owned
                return self._write(owned)
            case RowsEnded(rows):
                self._rows = rows
                return self._ended()
            case Flushed():
                return self._finish(TaskMessage(self._rows))
            case Prepared(token):
                return self._finish(self._message(token))
            case TaskFailed(error):
                return self._fail(error if self._owned is not None else self._explain_fencing(error))

    def _begin(self, came: RowsCame) -> list[TaskEffect]:
        if not self._plan.transactional:
            self._writing = True
            return [OpenProducer(None, None)]
        try:
            self._name = unit_name(self._plan, came.query_id, came.batch_id)
        except Rejected as error:
            return self._fail(error)
        return [ClaimOwner(self._name.owner, self._plan.claim)]

    def _write(self, owned: Owned) -> list[TaskEffect]:
        assert self._came is not None, "an owner is claimed for rows"
        assert self._name is not None, "and by its name"
        known = self._name.sequence
        if known is not None and known < owned.last_sequence:
            return self._fail(older_batch(owned, known))
        self._sequence = owned.last_sequence + 1 if known is None else known
        if known is not None and known == owned.last_sequence:
            return [DropRows()]
        self._writing = True
        return [OpenProducer(transactional_id(owned.owner, self._came.fresh), owned.epoch)]

    def _ended(self) -> list[TaskEffect]:
        if self._writing:
            return [Prepare() if self._plan.transactional else Flush()]
        return self._finish(self._message(None) if self._came is not None else TaskMessage())

    def _explain_fencing(self, error: HeadraceError) -> HeadraceError:
        if self._name is None or not isinstance(error, FencedOwner):
            return error
        return FencedOwner(
            f"another driver has planned a write as {self._name.owner!r} later than this one, which has to stop; or "
            "the clock of this driver is behind that of an earlier one: then start it again when it has caught up "
            f"({error})"
        )

    def _message(self, token: str | None) -> TaskMessage:
        assert self._came is not None, "it got rows"
        return TaskMessage(
            rows=self._rows if token is not None else 0,
            owned=self._owned,
            token=token,
            skipped=token is None,
            sequence=self._sequence,
            claim=self._plan.claim,
            retried=self._came.attempt > 0,
        )

    def _finish(self, message: TaskMessage) -> list[TaskEffect]:
        self._over = True
        return [Finish(message)]

    def _fail(self, error: HeadraceError) -> list[TaskEffect]:
        self._over = True
        return [AbortTransaction(), FailTask(error)] if self._writing else [FailTask(error)]


def older_batch(owned: Owned, batch_id: int) -> FencedOwner:
    """What is said of a batch whose successors have been committed."""
    return FencedOwner(
        f"batch {batch_id} of {owned.owner!r} is to be written, and batch {owned.last_sequence} was committed "
        "before: its checkpoint is older than what it wrote, or two queries share a name. Give this query a new "
        "checkpoint and, if 'transactionalId' is set, another name"
    )
