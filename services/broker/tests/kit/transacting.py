"""Transactions in one partition, said in a line each: what producers and coordinators send, and what comes of it."""

from __future__ import annotations

from typing import Final, TypeVar

from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    AskEnrolment,
    BatchArrived,
    Effect,
    Enrolled,
    GroupWritten,
    MarkerArrived,
    Refuse,
)
from headrace_broker.core.rows import LogId, PutBatch
from headrace_common.core.batch import build_fence_batch, build_marker_batch, read_header
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_common.core.ids import PartitionId, TopicId

E = TypeVar("E")

ID: Final = PartitionId(TopicId(b"t" * 16), 3)
LOG: Final = LogId(9)
CONFIG: Final = TopicConfig.effective({}, {})
PID: Final = 70


def fresh(*, replicas: tuple[int, ...] = (1,), min_isr: int | None = None, config: TopicConfig = CONFIG) -> Partition:
    """A new log that this broker leads, in epoch 5."""
    partition, _ = Partition.create(ID, LOG, config, NOW_MS)
    partition.handle(elected(5, replicas, min_isr=min_isr))
    return partition


def sent(
    sequence: int = 0,
    ref: object = "a",
    *,
    pid: int = PID,
    epoch: int = 0,
    records: int = 1,
    plain: bool = False,
    token: int | None = None,
    id: str = "id",
    held: bool = False,
) -> BatchArrived:
    """A producer's batch, in the transaction of ``id`` unless it is ``plain``."""
    batch = batch_of(records, producer_id=pid, epoch=epoch, sequence=sequence, transactional=not plain)
    whose = None if plain else id
    return BatchArrived(read_header(batch), batch, -1, NOW_MS, None, ref, token, transactional_id=whose, held=held)


def fence(token: int, ref: object = "fence") -> BatchArrived:
    """A fence record."""
    batch = build_fence_batch(token, timestamp_ms=NOW_MS)
    return BatchArrived(read_header(batch), batch, -1, NOW_MS, None, ref, None, token)


def marker(epoch: int, *, commit: bool = True, ref: object = "m", pid: int = PID) -> MarkerArrived:
    """What a coordinator writes at the end of a transaction; ``epoch`` is the one after it."""
    batch = build_marker_batch(pid, epoch, commit=commit, timestamp_ms=NOW_MS)
    return MarkerArrived(read_header(batch), batch, commit, NOW_MS, ref)


def only(effects: list[Effect], kind: type[E]) -> list[E]:
    """Those of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def codes(effects: list[Effect]) -> list[tuple[object, ErrorCode]]:
    """Who is refused, and why."""
    return [(effect.ref, effect.error.code) for effect in effects if isinstance(effect, Refuse)]


def enrol(partition: Partition, effects: list[Effect], error: HeadraceError | None = None) -> list[Effect]:
    """The coordinator answers what ``effects`` ask it."""
    [ask] = only(effects, AskEnrolment)
    return partition.handle(Enrolled(ask.producer_id, ask.number, error, NOW_MS))


def begin(partition: Partition, *, pid: int = PID, epoch: int = 0, records: int = 1, token: int | None = None) -> None:
    """One transaction with its first batch, written; where nobody else is in sync, committed."""
    effects = enrol(partition, partition.handle(sent(pid=pid, epoch=epoch, records=records, token=token)))
    assert only(effects, PutBatch)
    written(partition)


def end(partition: Partition, epoch: int, *, commit: bool = True, pid: int = PID) -> None:
    """Its marker, written."""
    partition.handle(marker(epoch, commit=commit, pid=pid))
    written(partition)


def written(partition: Partition) -> list[Effect]:
    """All that was appended is down."""
    return partition.handle(GroupWritten(partition.log_end))


def plain(partition: Partition, records: int = 1) -> None:
    """A batch of nobody's transaction, written."""
    batch = batch_of(records)
    partition.handle(BatchArrived(read_header(batch), batch, -1, NOW_MS, None, "plain"))
    written(partition)
