"""
All partition logs of a broker on one RocksDB: the ``LogStore`` that brokers run on.

``main`` opens it, the storage loop writes through it, fetches read through it. Opening does what
``docs/storage.md`` describes: guard the WAL, open, check every log, compare with the evidence, report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from headrace_broker.adapters import rocksdb_groups, rocksdb_opening, rocksdb_rewrite
from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.evidence_keeper import EvidenceKeeper
from headrace_broker.adapters.rocksdb_errors import map_errors
from headrace_broker.adapters.rocksdb_keys import (
    FORMAT,
    OWN_LOG,
    Kind,
    OwnRow,
    RowUnreadable,
    decode_index,
    decode_own,
    decode_producers,
    encode_own,
    make_key,
    split_key,
)
from headrace_broker.adapters.rocksdb_reclaim import Reclaimer
from headrace_broker.adapters.rocksdb_recovery import Recovery, fault_of
from headrace_broker.adapters.rocksdb_store import RocksDbStore, StoreOptions, WriteBatch
from headrace_broker.core.recovered import RecoveredLog, RecoveryReport
from headrace_broker.core.rows import (
    DropLog,
    DropPrefix,
    DropSuffix,
    IndexRow,
    LogId,
    LogWrite,
    ProducerRow,
    PutAborted,
    PutBatch,
    PutEpoch,
    PutProducers,
    PutSegment,
    PutState,
)
from headrace_broker.ports import BytesLost
from headrace_common.core.errors import InconsistentClusterId, StorageFailed, UnsupportedVersion
from headrace_common.core.ids import Offset
from headrace_common.runtime.threads import run_in_thread

T = TypeVar("T")
FLUSHED_FROM_BYTES = 4 << 20
"""Memtables below this are not flushed for their space."""


@dataclass(frozen=True, slots=True)
class LogsOptions:
    """Settings of the logs' store."""

    store: StoreOptions = field(default_factory=StoreOptions)
    reader_threads: int = 2
    """Threads that read batches."""


class RocksDbLogs:
    """``LogStore`` on RocksDB. All calls come from one event loop's thread."""

    report: RecoveryReport

    def __init__(
        self, directory: DataDirectory, store: RocksDbStore, keeper: EvidenceKeeper, options: LogsOptions
    ) -> None:
        self._directory = directory
        self._store = store
        self._keeper = keeper
        self._recovered: list[RecoveredLog] = []
        self._uncut: dict[LogId, Offset] = {}
        """Damaged logs that have rows after their end; those go when it is extended."""
        self._ends: dict[LogId, Offset] = {}
        """A batch below is one that compaction rewrote: it says nothing of how far the log was written."""
        self._own = OwnRow(FORMAT, 1, -1, "")
        self._next_log_id = 1
        self._reclaimer = Reclaimer(store)
        self._syncing = False
        self._closed = False
        self._readers = ThreadPoolExecutor(options.reader_threads, "storage-read")
        self._flusher = ThreadPoolExecutor(1, "storage-sync")
        self._evidence_writer = ThreadPoolExecutor(1, "storage-evidence")

    @classmethod
    def open(cls, directory: DataDirectory, options: LogsOptions | None = None) -> RocksDbLogs:
        """
        Open and recover the logs in ``directory``. Blocks; call it before the event loop has work.

        Raises:
            StorageFailed: the store cannot be opened, or its rows cannot be read; the text names the file.
        """
        options = options or LogsOptions()
        began = time.perf_counter()
        notes: list[str] = []
        evidence = rocksdb_opening.load_evidence(directory, notes)
        if evidence is None:
            directory.forget_token()  # it says that nothing was lost then; nobody can say that of now
        opened = rocksdb_opening.open_store(directory, options.store, evidence, notes)
        store, found, guarded = opened.store, opened.found, opened.guarded
        try:
            entries = rocksdb_opening.entries_after(found, evidence or {})
            logs = cls(directory, store, EvidenceKeeper(directory.evidence, store, entries), options)
            logs._take_recovery(found, guarded.newest)
        except BaseException:
            rocksdb_opening.close_after_failure(store)
            raise
        logs.report = RecoveryReport(
            clean=directory.token is not None,
            seconds=time.perf_counter() - began,
            logs=len(found.logs),
            bytes_checked=guarded.bytes_checked + found.bytes_checked,
            cuts=(*notes, *guarded.cuts, *found.cuts),
            damaged=tuple(log.damage for log in found.logs if log.damage is not None),
        )
        logs._keeper.start()
        return logs

    def _take_recovery(self, found: Recovery, wal_before: int) -> None:
        self._recovered = found.logs
        self._uncut = found.kept
        self._ends = {log.log: log.log_end for log in found.logs}
        for each in found.logs:
            self._reclaimer.note_sealed(each.log, each.segments)
        self._read_own(found.highest)
        if found.to_cut:
            batch = self._store.batch()
            for log, end in found.to_cut.items():
                rocksdb_groups.cut_log(self._store, batch, log, end)
            self._store.write(batch)
            self._store.sync()
        if self._store.oldest_wal() > wal_before:
            self._keeper.note_flushed(
                (log.log, log.log_end, log.last_row.leader_epoch if log.last_row else -1)
                for log in found.logs
                if log.damage is None
            )

    def _read_own(self, highest: int) -> None:
        value = self._store.get(make_key(OWN_LOG, Kind.STATE, 0))
        if value is not None:
            self._own = decode_own(value)
        if self._own.format > FORMAT:
            raise UnsupportedVersion(f"the store has format {self._own.format}, this broker knows up to {FORMAT}")
        bound = self._directory.identity
        if bound and self._own.cluster_id:
            ours, theirs = (bound.cluster_id, bound.broker_id), (self._own.cluster_id, self._own.broker_id)
            if ours != theirs:
                raise InconsistentClusterId(
                    f"{self._directory.path} says cluster {ours[0]!r}, broker {ours[1]}, but its database belongs "
                    f"to cluster {theirs[0]!r}, broker {theirs[1]}; put the right one back"
                )
        self._next_log_id = max(self._own.next_log_id, highest + 1)

    # --- writing ----------------------------------------------------------------------------------------------

    def list_recovered(self) -> Sequence[RecoveredLog]:
        return self._recovered

    def new_log_id(self) -> LogId:
        taken, self._next_log_id = self._next_log_id, self._next_log_id + 1
        return LogId(taken)

    def write(self, writes: Sequence[LogWrite]) -> None:
        if self._keeper.failure is not None:
            self._store.fail(self._keeper.failure)
        self._check_evidence(writes)
        self._store.check()
        try:
            with map_errors("reading what a drop needs"):
                batch = rocksdb_groups.build(self._store, self._with_pending_cuts(writes))
        except StorageFailed as error:
            self._store.fail(error)
            raise
        own = self._own_row_after(writes, batch)
        self._store.write(batch)
        self._recovered = []
        self._own = own
        self._note(writes)

    def _check_evidence(self, writes: Sequence[LogWrite]) -> None:
        for write in writes:
            if isinstance(write, DropSuffix):
                assert self._keeper.end_of(write.log) <= write.end, "lower the evidence before a truncation"
            elif isinstance(write, DropLog):
                assert self._keeper.end_of(write.log) == 0, "forget the evidence before a deletion"

    def _with_pending_cuts(self, writes: Sequence[LogWrite]) -> Sequence[LogWrite]:
        if not self._uncut:
            return writes
        whole: list[LogWrite] = []
        cut: set[LogId] = set()
        for write in writes:
            end = self._uncut.get(write.log)
            if end is not None and write.log not in cut and _extends(write, end):
                whole.append(DropSuffix(write.log, end))
                cut.add(write.log)
            whole.append(write)
        return whole

    def _own_row_after(self, writes: Sequence[LogWrite], batch: WriteBatch) -> OwnRow:
        """The broker's own row with this group; it is in ``batch`` if it changes."""
        own = self._own
        highest = max((write.log for write in writes if isinstance(write, PutState)), default=0)
        if highest >= own.next_log_id:
            bound = self._directory.identity
            own = OwnRow(FORMAT, highest + 1, bound.broker_id if bound else -1, bound.cluster_id if bound else "")
            batch.put(make_key(OWN_LOG, Kind.STATE, 0), encode_own(own))
        return own

    def _note(self, writes: Sequence[LogWrite]) -> None:
        ends: dict[LogId, tuple[Offset, int]] = {}
        uncut = set(self._uncut)
        if uncut:
            for write in writes:
                if write.log in self._uncut and _extends(write, self._uncut[write.log]):
                    del self._uncut[write.log]
        for write in writes:
            match write:
                case PutBatch(log, row) if row.base_offset >= self._ends.get(log, 0):
                    ends[log] = (row.next_offset, row.leader_epoch)
                    self._ends[log] = row.next_offset
                case PutBatch(log, row):
                    self._reclaimer.note_rewritten(log, row.size)
                case PutSegment(log, segment):
                    self._reclaimer.note_sealed(log, (segment,))
                case PutState(log, state):
                    self._keeper.note_created(log, state.partition)
                case DropSuffix(log, end):
                    ends.pop(log, None)
                    if log in uncut or end < self._ends.get(log, end):  # mostly logs end where their leaders' do
                        self._reclaimer.note_dropped(log)
                    self._ends[log] = min(end, self._ends.get(log, end))
                    self._uncut.pop(log, None)
                    self._keeper.note_dropped(log, end)
                case DropLog(log):
                    ends.pop(log, None)
                    self._ends.pop(log, None)
                    self._uncut.pop(log, None)
                    self._keeper.note_dropped(log, None)
                    self._reclaimer.note_dropped(log)
                case DropPrefix(log, start):
                    self._reclaimer.note_dropped_below(log, start)
                case _:
                    pass
        if ends:
            self._keeper.note_written((log, end, epoch) for log, (end, epoch) in ends.items())
        if self._reclaimer.due:
            self._reclaimer.start()

    async def sync(self) -> None:
        assert not self._syncing, "one sync at a time"
        self._syncing = True
        try:
            await self._in_thread(self._flusher, self._store.sync)
        finally:
            self._syncing = False

    # --- reading ----------------------------------------------------------------------------------------------

    def floor(self, log: LogId, offset: Offset) -> IndexRow | None:
        found = self._store.last_below(make_key(log, Kind.INDEX, 0), make_key(log, Kind.INDEX, offset))
        return _index_row(*found) if found else None

    def index(self, log: LogId, start: Offset, end: Offset) -> Iterator[IndexRow]:
        if start < end:
            for key, value in self._store.scan(make_key(log, Kind.INDEX, start), make_key(log, Kind.INDEX, end)):
                yield _index_row(key, value)

    def producers_before(self, log: LogId, end: Offset) -> tuple[Offset, tuple[ProducerRow, ...]] | None:
        found = self._store.last_below(make_key(log, Kind.PRODUCER, 0), make_key(log, Kind.PRODUCER, end))
        return (Offset(split_key(found[0])[2]), decode_producers(found[1])) if found else None

    async def read(self, log: LogId, rows: Sequence[IndexRow]) -> list[bytes]:
        if not rows:
            return []
        return await self._in_thread(self._readers, lambda: self._read(log, rows))

    def _read(self, log: LogId, rows: Sequence[IndexRow]) -> list[bytes]:
        batches = self._store.get_many([make_key(log, Kind.BATCH, row.base_offset) for row in rows])
        sound: list[bytes] = []
        for row, batch in zip(rows, batches, strict=True):
            wrong = fault_of(row, batch)
            if wrong is not None or batch is None:
                raise BytesLost(
                    f"the batch of log {log} at offset {row.base_offset} is not the one that was written: {wrong}"
                )
            sound.append(batch)
        return sound

    def distrust(self, log: LogId) -> None:
        rocksdb_rewrite.suspect(self._directory, log)

    # --- evidence, space, end ---------------------------------------------------------------------------------

    def note_synced(self, log: LogId, end: Offset, epoch: int) -> None:
        self._keeper.note_synced(log, end, epoch)

    async def lower_evidence(self, logs: Sequence[tuple[LogId, Offset, int]]) -> None:
        await self._in_thread(self._evidence_writer, lambda: self._keeper.lower(logs))

    def free_bytes(self) -> tuple[int, int]:
        """See ``LogStore``. What is in memtables is written once more, to table files, before its WAL goes."""
        free, total = self._disk()
        return max(0, free - self._store.memtable_bytes()), total

    def _disk(self) -> tuple[int, int]:
        disk = os.statvfs(self._directory.path)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    async def reclaim(self) -> None:
        """See ``LogStore``. What is asked for while one request is being worked on comes after it."""
        free, total = self._disk()
        held = self._store.memtable_bytes()
        # On a small disk a write-ahead log counts: it goes when what it holds is in table files.
        self._reclaimer.start(flush=2 * held < free and held > max(FLUSHED_FROM_BYTES, total // 20))

    async def wait_until_reclaimed(self) -> None:
        """Wait until what the last ``reclaim`` asked for is done: for tests and benchmarks."""
        await self._reclaimer.wait_until_finished()

    def read_token(self) -> int | None:
        return self._directory.token

    async def close(self, clean_epoch: int | None) -> None:
        """See ``LogStore``. The directory stays locked: its owner closes it last."""
        if self._closed:
            return
        self._closed = True
        await run_in_thread(self._close, clean_epoch)

    def _close(self, clean_epoch: int | None) -> None:
        self._reclaimer.stop()
        self._keeper.stop()
        for pool in (self._flusher, self._readers, self._evidence_writer):
            pool.shutdown(wait=True)
        try:
            if clean_epoch is not None:
                self._store.sync()
                self._store.flush()
                self._keeper.note_all_flushed()
            if clean_epoch is not None or not self._store.failed:
                self._keeper.save(clean=clean_epoch is not None)
        finally:
            if self._store.corrupt:
                (self._directory.path / rocksdb_rewrite.SUSPECT).touch()
            self._store.close()
        if clean_epoch is not None:
            self._directory.leave_token(clean_epoch)

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await run_in_thread(call, pool=pool)


def _extends(write: LogWrite, end: Offset) -> bool:
    """Whether the rows that a damaged log has behind its ``end`` must be gone before this one."""
    if isinstance(write, PutBatch | PutSegment):
        return write.row.base_offset >= end
    return isinstance(write, PutEpoch | PutProducers | PutAborted)


def _index_row(key: bytes, value: bytes) -> IndexRow:
    try:
        return decode_index(split_key(key)[2], value)
    except RowUnreadable as error:
        raise StorageFailed(f"an index row of log {split_key(key)[0]} is not readable: {error}") from error
