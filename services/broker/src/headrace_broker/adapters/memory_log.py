"""
All partition logs of a broker in memory: the ``LogStore`` of tests.

It answers like ``rocksdb_log`` (the same contract suite runs over both) and does on request what disks do: stalls,
failures, slow syncs, and the loss of what was not synced. ``reopened`` is what a start after a crash finds.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from headrace_broker.core.recovered import Damage, RecoveredLog, RecoveryReport
from headrace_broker.core.rows import (
    AbortedRow,
    DropAborted,
    DropBatch,
    DropLog,
    DropPrefix,
    DropSuffix,
    EpochRow,
    IndexRow,
    LogId,
    LogWrite,
    ProducerRow,
    PutAborted,
    PutBatch,
    PutEpoch,
    PutIndex,
    PutProducers,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_broker.ports import BytesLost, WriteStalled
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset
from headrace_common.runtime.clock import give_way, pause_ms


@dataclass(slots=True)
class _Log:
    state: StateRow | None = None
    rows: list[IndexRow] = field(default_factory=list)
    batches: dict[int, bytes] = field(default_factory=dict)
    segments: dict[int, SegmentRow] = field(default_factory=dict)
    epochs: dict[int, EpochRow] = field(default_factory=dict)
    producers: dict[int, tuple[ProducerRow, ...]] = field(default_factory=dict)
    aborted: dict[int, AbortedRow] = field(default_factory=dict)

    def copy(self) -> _Log:
        """Rows never change, so they are shared."""
        return _Log(
            self.state,
            list(self.rows),
            dict(self.batches),
            dict(self.segments),
            dict(self.epochs),
            dict(self.producers),
            dict(self.aborted),
        )

    def put_batch(self, row: IndexRow, batch: bytes) -> None:
        at = bisect_left(self.rows, row.base_offset, key=_base)
        if at < len(self.rows) and self.rows[at].base_offset == row.base_offset:
            self.rows[at] = row
        else:
            self.rows.insert(at, row)
        self.batches[row.base_offset] = batch

    def put_index(self, row: IndexRow) -> None:
        self.rows[self._at(row.base_offset)] = row

    def drop_batch(self, base: Offset) -> None:
        del self.rows[self._at(base)]
        del self.batches[base]

    def _at(self, base: Offset) -> int:
        at = bisect_left(self.rows, base, key=_base)
        assert self.rows[at].base_offset == base, "there is a batch at that offset"
        return at

    def drop_prefix(self, start: Offset) -> None:
        at = bisect_left(self.rows, start, key=_base)
        for row in self.rows[:at]:
            del self.batches[row.base_offset]
        del self.rows[:at]
        below = [base for base in sorted(self.segments) if base <= start]
        if below:
            end = self.segments[below[-1]].end_offset
            for base in below if end is not None and end <= start else below[:-1]:
                del self.segments[base]
        for offset in sorted(offset for offset in self.producers if offset <= start)[:-1]:
            del self.producers[offset]
        self.aborted = {last: row for last, row in self.aborted.items() if last >= start}

    def drop_suffix(self, end: Offset) -> None:
        at = bisect_left(self.rows, end, key=_base)
        for row in self.rows[at:]:
            del self.batches[row.base_offset]
        del self.rows[at:]
        self.segments = {base: row for base, row in self.segments.items() if base < end}
        if self.segments:
            last = self.segments[max(self.segments)]
            if last.end_offset is not None and last.end_offset > end:
                self.segments[last.base_offset] = SegmentRow(last.base_offset, last.created_at_ms)
        self.epochs = {epoch: row for epoch, row in self.epochs.items() if row.start < end}
        self.state = self.state.cut(end) if self.state is not None else None
        self.producers = {offset: rows for offset, rows in self.producers.items() if offset <= end}
        self.aborted = {last: row for last, row in self.aborted.items() if last < end}


def _base(row: IndexRow) -> Offset:
    return row.base_offset


class MemoryLogs:
    """``LogStore`` without a disk. Reads and syncs yield to the loop once, so that callers meet real interleavings."""

    report: RecoveryReport

    def __init__(self, token: int | None = None, free: tuple[int, int] = (1 << 40, 1 << 41)) -> None:
        self._live: dict[LogId, _Log] = {}
        self._durable: dict[LogId, _Log] = {}
        self._unsynced: list[tuple[LogWrite, ...]] = []
        self._recovered: list[RecoveredLog] = []
        self._evidence: dict[LogId, Offset] = {}
        self._lowered: set[LogId] = set()
        self._next_log_id = 1
        self._token = token
        self._left_token: int | None = None
        self._syncing = False
        self._failure: str | None = None
        self.free = free
        """What ``free_bytes`` answers."""
        self.stalls = 0
        """So many of the next writes stall."""
        self.fail_write: str | None = None
        """The next write fails with this text."""
        self.fail_sync: str | None = None
        """The next sync fails with this text."""
        self.sync_s: Callable[[], float] = lambda: 0.0
        """How long the next sync takes."""
        self.sync_gate = asyncio.Event()
        """Syncs wait until it is set; it is, until a test clears it."""
        self.sync_gate.set()
        self.distrusted: list[LogId] = []
        """What ``distrust`` was told."""
        self.syncs = 0
        """How many syncs were done."""
        self.report = RecoveryReport(token is not None, 0.0, 0, 0, (), ())

    def reopen(self, *, keep_unsynced: int | None = None) -> MemoryLogs:
        """
        What the next start finds. ``keep_unsynced`` is for a loss of power: of what was not synced so many of the
        oldest write groups had reached the disk by chance; None: all, for the process alone has died.
        """
        other = MemoryLogs(self._left_token, self.free)
        logs = self._live
        if keep_unsynced is not None:
            logs = _copy_logs(self._durable)
            for group in self._unsynced[:keep_unsynced]:
                _apply(logs, group)
        other._live, other._durable = _copy_logs(logs), _copy_logs(logs)
        other._evidence = dict(self._evidence)
        other._next_log_id = self._next_log_id
        other._recovered = [_recover(log, kept) for log, kept in sorted(logs.items()) if kept.state is not None]
        other.report = replace(other.report, logs=len(other._recovered))
        for log in [one.log for one in other._recovered if one.log in self.distrusted]:
            other.damage(log, Offset(0))
        return other

    def damage(self, log: LogId, end: Offset) -> None:
        """What the next start finds of a log ends at ``end`` at most, and is known to have had more."""
        found = next(one for one in self._recovered if one.log == log)
        for logs in (self._live, self._durable):
            logs[log].drop_suffix(max(end, found.state.log_start))
        left = _recover(log, self._live[log])
        damage = Damage(left.state.partition, left.log_end, found.log_end, "a test damaged it")
        self._recovered = [replace(left, damage=damage) if one is found else one for one in self._recovered]

    @property
    def unsynced(self) -> int:
        """Write groups that a loss of power may take."""
        return len(self._unsynced)

    def list_recovered(self) -> Sequence[RecoveredLog]:
        return self._recovered

    def new_log_id(self) -> LogId:
        taken, self._next_log_id = self._next_log_id, self._next_log_id + 1
        return LogId(taken)

    def write(self, writes: Sequence[LogWrite]) -> None:
        self._check()
        for write in writes:
            if isinstance(write, DropSuffix):
                assert self._evidence.get(write.log, 0) <= write.end, "lower the evidence before a truncation"
            elif isinstance(write, DropLog):
                assert self._evidence.get(write.log, 0) == 0, "forget the evidence before a deletion"
        if self.stalls > 0:
            self.stalls -= 1
            raise WriteStalled("writing: a test asked for a stall")
        if self.fail_write is not None:
            self._failure = self.fail_write
            raise StorageFailed(self.fail_write)
        self._recovered = []
        self._lowered.difference_update(write.log for write in writes if self._moves_end(write))
        _apply(self._live, writes)
        self._unsynced.append(tuple(writes))

    def _moves_end(self, write: LogWrite) -> bool:
        """What compaction rewrites does not."""
        if isinstance(write, PutBatch):
            rows = self._live[write.log].rows if write.log in self._live else []
            return not rows or write.row.base_offset >= rows[-1].next_offset
        return isinstance(write, DropSuffix | DropLog)

    async def sync(self) -> None:
        self._check()
        assert not self._syncing, "one sync at a time"
        self._syncing = True
        try:
            groups = len(self._unsynced)
            await pause_ms(self.sync_s() * 1_000)
            await self.sync_gate.wait()
            if self.fail_sync is not None:
                self._failure = self.fail_sync
                raise StorageFailed(self.fail_sync)
            self._check()
            for group in self._unsynced[:groups]:
                _apply(self._durable, group)
            del self._unsynced[:groups]
            self.syncs += 1
        finally:
            self._syncing = False

    def floor(self, log: LogId, offset: Offset) -> IndexRow | None:
        rows = self._live[log].rows if log in self._live else []
        at = bisect_right(rows, offset, key=_base)
        return rows[at - 1] if at else None

    def index(self, log: LogId, start: Offset, end: Offset) -> Iterator[IndexRow]:
        rows = self._live[log].rows if log in self._live else []
        yield from rows[bisect_left(rows, start, key=_base) : bisect_left(rows, end, key=_base)]

    def producers_before(self, log: LogId, end: Offset) -> tuple[Offset, tuple[ProducerRow, ...]] | None:
        kept = self._live[log].producers
        at = max((offset for offset in kept if offset <= end), default=None)
        return None if at is None else (Offset(at), kept[at])

    async def read(self, log: LogId, rows: Sequence[IndexRow]) -> list[bytes]:
        await give_way()
        batches = self._live[log].batches if log in self._live else {}
        for row in rows:
            now = self.floor(log, row.base_offset)
            grown = now is not None and now.last_offset_delta != row.last_offset_delta
            if grown or len(batches.get(row.base_offset, b"")) != row.size:
                raise BytesLost(f"the batch of log {log} at offset {row.base_offset} is not the one that was written")
        return [batches[row.base_offset] for row in rows]

    def distrust(self, log: LogId) -> None:
        self.distrusted.append(log)

    def note_synced(self, log: LogId, end: Offset, epoch: int) -> None:
        if log in self._live and log not in self._lowered:
            self._evidence[log] = max(end, self._evidence.get(log, Offset(0)))

    async def lower_evidence(self, logs: Sequence[tuple[LogId, Offset, int]]) -> None:
        self._check()
        await give_way()
        for log, end, _ in logs:
            self._evidence[log] = min(end, self._evidence.get(log, Offset(0)))
            self._lowered.add(log)

    def evident_end(self, log: LogId) -> Offset:
        """What ``note_synced`` and ``lower_evidence`` left, for tests."""
        return self._evidence.get(log, Offset(0))

    def free_bytes(self) -> tuple[int, int]:
        return self.free

    async def reclaim(self) -> None:
        """See ``LogStore``; there is nothing to do."""

    def read_token(self) -> int | None:
        return self._token

    async def close(self, clean_epoch: int | None) -> None:
        if clean_epoch is not None:
            await self.sync()
            self._left_token = clean_epoch

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageFailed(f"the store failed before: {self._failure}")


def _copy_logs(logs: dict[LogId, _Log]) -> dict[LogId, _Log]:
    return {number: log.copy() for number, log in logs.items()}


def _apply(logs: dict[LogId, _Log], writes: Sequence[LogWrite]) -> None:
    for write in writes:
        log = logs.setdefault(write.log, _Log())
        match write:
            case PutBatch(_, row, batch):
                log.put_batch(row, batch)
            case PutIndex(_, row):
                log.put_index(row)
            case DropBatch(_, base):
                log.drop_batch(base)
            case DropAborted(_, marker):
                log.aborted.pop(marker, None)
            case PutSegment(_, segment):
                log.segments[segment.base_offset] = segment
            case PutEpoch(_, epoch):
                log.epochs[epoch.epoch] = epoch
            case PutProducers(_, offset, producers):
                log.producers[offset] = producers
            case PutAborted(_, aborted):
                log.aborted[aborted.last] = aborted
            case PutState(_, state):
                log.state = state
            case DropPrefix(_, start):
                log.drop_prefix(start)
            case DropSuffix(_, end):
                log.drop_suffix(end)
            case DropLog(number):
                del logs[number]


def _recover(number: LogId, log: _Log) -> RecoveredLog:
    assert log.state is not None, "only logs with a state are found"
    last = log.rows[-1] if log.rows else None
    end = Offset(max(log.state.log_start, last.next_offset)) if last else log.state.log_start
    snapshot = max((offset for offset in log.producers if offset <= end), default=None)
    return RecoveredLog(
        log=number,
        state=log.state,
        log_end=end,
        last_row=last,
        segments=tuple(log.segments[base] for base in sorted(log.segments)),
        epochs=tuple(log.epochs[epoch] for epoch in sorted(log.epochs)),
        producers_at=log.state.log_start if snapshot is None else Offset(snapshot),
        producers=() if snapshot is None else log.producers[snapshot],
        aborted=tuple(log.aborted[last] for last in sorted(log.aborted)),
    )
