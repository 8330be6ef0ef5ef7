"""
Units: how all that the tasks of a micro-batch write is committed as one, at most once.

``owner`` is the query, ``sequence`` the batch id: a unit is committed once, and a repeated batch finds that it was.
``sink_task`` writes in the executors; ``UnitCommit`` decides on the driver what to do with the SDK's ``UnitOwner``.

The query's id is known in tasks only, and the driver plans each batch in a process that knows neither it nor the batch
id. So the tasks claim the owner: the driver gives all tasks of one plan the same number, and among claims of an owner
the highest holds; the first task that comes with it raises the owner's epoch, the others get the same one.

A batch job (``DataFrame.write``) is one unit too. Nothing numbers jobs, so it is the next unit of its owner, unless it
runs for a micro-batch (``foreachBatch``) under a name that the user gave to just this write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace_common.core.errors import FencedOwner, HeadraceError, Internal, Rejected, Then, TransactionAbortable

CLAIM_CHANCE_BITS: Final = 20
OWNER_LENGTH_MAX: Final = 200
WHERE_DIGITS: Final = 8
"""Of a topic's name, in the owner of what ``foreachBatch`` writes: writes to other topics have other owners."""
TOKENS_MAX: Final = 10_000
"""Transactions in one unit."""
COMMIT_TRIES_MAX: Final = 5
"""Each lasts for ``default_api_timeout_ms`` of the client."""


def claim_number(now_ms: int, chance: int) -> int:
    """
    The number under which the tasks of one plan claim their owner: later plans have higher ones.

    Args:
        now_ms: since the epoch, on the driver.
        chance: random bits, so that two drivers never have the same one.
    """
    assert 0 <= now_ms < 1 << (63 - CLAIM_CHANCE_BITS), "a time of this age of the world"
    return now_ms << CLAIM_CHANCE_BITS | chance & ((1 << CLAIM_CHANCE_BITS) - 1)


def owner_name(query_id: str | None, prefix: str | None) -> str:
    """
    Who owns the units of a query.

    Raises:
        Rejected: nothing names the query for good, or the name is none.
    """
    name = ".".join(part for part in (prefix, query_id) if part)
    if not name:
        raise Rejected(
            "Spark did not say which query this is, so a repeated batch could not be recognised; set 'transactionalId' "
            "to a name that no other query has, or 'transactional' to false to write at least once"
        )
    if "/" in name or len(name) > OWNER_LENGTH_MAX:
        raise Rejected(f"an owner is named by 1 to {OWNER_LENGTH_MAX} characters without '/', not {name[:100]!r}")
    return name


@dataclass(frozen=True, slots=True)
class UnitName:
    """Which unit a plan writes."""

    owner: str
    sequence: int | None
    """None: the owner's next one."""


def unit_name(plan: SinkPlan, query_id: str | None, batch_id: int | None) -> UnitName:
    """
    Which unit a task writes for.

    Args:
        query_id: of the streaming query that the task runs for, also within ``foreachBatch``; None: of none.

    Raises:
        Rejected: as ``owner_name``.
    """
    if plan.job is None:
        return UnitName(owner_name(query_id, plan.prefix), batch_id)
    if query_id is None:
        return UnitName(owner_name(None, plan.prefix or plan.job), None)
    where = hashlib.sha256((plan.topic or "").encode()).hexdigest()[:WHERE_DIGITS]
    return UnitName(owner_name(f"{query_id}.{where}", plan.prefix), batch_id if plan.prefix else None)


@dataclass(frozen=True, slots=True)
class Owned:
    """What an owner is told when it is claimed."""

    owner: str
    epoch: int
    last_sequence: int
    """Of the last unit that was committed; -1: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """What the driver tells the tasks of one batch; travels pickled."""

    transactional: bool = True
    prefix: str | None = None
    """``transactionalId``."""
    claim: int = 0
    job: str | None = None
    """Of a batch job: a name that no other has; None: a micro-batch of a streaming query."""
    topic: str | None = None
    """The option; None: the column says."""


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """What one task tells the driver; travels pickled."""

    rows: int = 0
    owned: Owned | None = None
    """None: it wrote nothing, or without transactions."""
    token: str | None = None
    """Of its prepared transaction."""
    skipped: bool = False
    """The batch had been committed before."""
    sequence: int | None = None
    """Of the unit that it wrote for."""
    claim: int = 0
    """Of its plan."""
    retried: bool = False
    """An earlier attempt of this task failed; what it left open may hold readers up."""


@dataclass(frozen=True, slots=True)
class CommitAsked:
    """Every task has ended; None stands for a task that told nothing."""

    messages: Sequence[TaskMessage | None]
    sequence: int | None
    """The batch id; None: the tasks know, as those of a batch job do."""


@dataclass(frozen=True, slots=True)
class AbortAsked:
    """Some task failed, or the commit did: Spark gives up what was written."""

    messages: Sequence[TaskMessage | None]


@dataclass(frozen=True, slots=True)
class UnitCommitted:
    """Answer to ``CommitUnit``: committed now, or, if not, by an earlier run."""

    now: bool


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """``CommitUnit`` raised."""

    error: HeadraceError


CommitEvent: TypeAlias = CommitAsked | AbortAsked | UnitCommitted | UnitFailed


@dataclass(frozen=True, slots=True)
class CommitUnit:
    """``UnitOwner(owner, epoch=epoch).commit(sequence, tokens)``."""

    owner: str
    epoch: int
    sequence: int
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RaiseOwner:
    """
    Claim the owner once more, one number higher: what is open or prepared of it is aborted now, and holds no reader up
    until it times out. Failures change nothing; of a later plan the claim is higher, and stays.
    """

    owner: str
    claim: int


@dataclass(frozen=True, slots=True)
class Done:
    """Return to Spark."""

    rows: int
    repeated: bool = False
    """An earlier run had committed it; what was written now is dropped."""


@dataclass(frozen=True, slots=True)
class FailCommit:
    """Raise: the query ends, and begins again with this batch."""

    error: HeadraceError


CommitEffect: TypeAlias = CommitUnit | RaiseOwner | Done | FailCommit


class UnitCommit:
    """One call of ``commit`` or ``abort``."""

    def __init__(self, *, job: bool) -> None:
        """
        Judge what the tasks of one plan wrote.

        Args:
            job: of a batch job: no next batch will come.
        """
        self._raises: list[CommitEffect] = []
        self._unit: CommitUnit | None = None
        self._rows = 0
        self._tries = 0
        self._sweeps = job

    def handle(self, event: CommitEvent) -> list[CommitEffect]:
        """Apply ``event`` and return what must now be done, in order."""
        match event:
            case CommitAsked(messages, sequence):
                return self._commit(messages, sequence)
            case AbortAsked(messages):
                return [*_raises(messages), Done(0)]
            case UnitCommitted(now):
                return [*self._raises, Done(self._rows if now else 0, repeated=not now)]
            case UnitFailed(error):
                return self._failed(error)

    def _commit(self, messages: Sequence[TaskMessage | None], sequence: int | None) -> list[CommitEffect]:
        told = [message for message in messages if message is not None]
        if len(told) < len(messages):
            return [FailCommit(Internal("Spark commits a batch of which a task told nothing; nothing was committed"))]
        self._rows = sum(message.rows for message in told)
        written = [message for message in told if message.token is not None]
        if not written:
            return [Done(self._rows, repeated=any(message.skipped for message in told))]
        owners = sorted({(m.owned.owner, m.owned.epoch) for m in written if m.owned is not None})
        tokens = tuple(dict.fromkeys(m.token for m in written if m.token is not None))
        assert owners, "what has a token has an owner"
        if len(owners) > 1:
            return [FailCommit(FencedOwner(_several(owners)))]
        if len(tokens) > TOKENS_MAX:
            return [FailCommit(Rejected(_many(len(tokens))))]
        if sequence is None:
            sequence = written[0].sequence
            assert all(message.sequence == sequence for message in written), "under one epoch no unit comes between"
        assert sequence is not None, "Spark tells the batch id, and the tasks of a job theirs"
        if self._sweeps or any(message.retried for message in told):
            self._raises = _raises(written)
        self._unit = CommitUnit(*owners[0], sequence, tokens)
        return self._try()

    def _try(self) -> list[CommitEffect]:
        assert self._unit is not None, "only a unit is tried again"
        self._tries += 1
        return [self._unit]

    def _failed(self, error: HeadraceError) -> list[CommitEffect]:
        """A repeated unit is answered as the first time, so whether it arrived does not matter."""
        assert self._unit is not None, "only a unit fails"
        if error.then is Then.RETRY and self._tries < COMMIT_TRIES_MAX:
            return self._try()
        if isinstance(error, TransactionAbortable):
            text = f"{error}. Nothing of batch {self._unit.sequence} was committed; start the query again to repeat it"
            return [FailCommit(TransactionAbortable(text))]
        return [FailCommit(error)]


def _raises(messages: Sequence[TaskMessage | None]) -> list[CommitEffect]:
    """With the number of the tasks' plan and not of today: a plan that was made meanwhile must not be fenced."""
    claims: dict[str, int] = {}
    for message in messages:
        if message is not None and message.owned is not None:
            claims[message.owned.owner] = max(message.claim, claims.get(message.owned.owner, 0))
    return [RaiseOwner(owner, claim + 1) for owner, claim in sorted(claims.items())]


def _several(owners: Sequence[tuple[str, int]]) -> str:
    names = ", ".join(f"{owner} (epoch {epoch})" for owner, epoch in owners[:5])
    return f"tasks of one batch wrote for {names}: another driver runs this query; nothing was committed"


def _many(tokens: int) -> str:
    return (
        f"{tokens} tasks wrote rows, and {TOKENS_MAX} can be committed as one; write the DataFrame from fewer "
        "partitions (coalesce), or set 'transactional' to false"
    )
