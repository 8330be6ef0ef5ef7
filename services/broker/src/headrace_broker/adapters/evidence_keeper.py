"""
Decides when evidence rises and falls, and writes it from a thread of its own.

It rises when the engine says that a sync confirmed a log (``note_synced``), and when the memtables that held a log's
end have become table files; it falls, durably, before rows are dropped. The write path calls ``note_written`` and
``note_dropped``; both cost a lock and a dict entry.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from headrace_broker.adapters import evidence_file
from headrace_broker.adapters.evidence_file import Evidence
from headrace_broker.core.rows import LogId
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset, PartitionId

INTERVAL_S: Final = 1.0
"""At most one write of the file in this time, but for lowering."""
_THREAD_END_S_MAX: Final = 30.0


class WalNumbers(Protocol):
    """Tells when what was in a WAL has reached table files."""

    def oldest_wal(self) -> int:
        """Number of the oldest WAL that is still needed."""
        ...

    def newest_wal(self) -> int:
        """Number of the WAL that is written now, or a later one."""
        ...


class EvidenceKeeper:
    """The evidence of all logs of one store."""

    def __init__(self, path: Path, wals: WalNumbers, entries: dict[LogId, Evidence]) -> None:
        self._path = path
        self._wals = wals
        self._lock = threading.Lock()
        self._file_lock = threading.Lock()
        self._entries = dict(entries)
        self._written: dict[LogId, tuple[Offset, int]] = {}
        """Ends since the last mark."""
        self._mark: tuple[int, dict[LogId, tuple[Offset, int]]] | None = None
        """Ends that are in table files once the WAL of this number is not needed any more."""
        self._lowered: set[LogId] = set()
        """Logs about to lose rows: a late confirmation raises nothing until they are written to again."""
        self._dirty = bool(entries)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: StorageFailed | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="evidence", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is noted but not written stays so until ``save``."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_THREAD_END_S_MAX)
            self._thread = None

    def end_of(self, log: LogId) -> Offset:
        """The evident end; 0: nothing is."""
        entry = self._entries.get(log)
        return entry.end if entry else Offset(0)

    def note_created(self, log: LogId, partition: PartitionId) -> None:
        """A log is there from now on; it has no end to show yet."""
        with self._lock:
            if log not in self._entries:
                self._entries[log] = Evidence(partition, Offset(0), -1, Offset(0))
                self._dirty = True

    def note_written(self, ends: Iterable[tuple[LogId, Offset, int]]) -> None:
        """These logs were written up to here; the call comes after the write."""
        with self._lock:
            for log, end, epoch in ends:
                self._written[log] = (end, epoch)
                self._lowered.discard(log)

    def note_dropped(self, log: LogId, end: Offset | None) -> None:
        """The log was truncated to ``end``, or deleted (None)."""
        with self._lock:
            self._forget_pending(log, end)
            self._lowered.discard(log)
            if end is None:
                self._dirty |= self._entries.pop(log, None) is not None

    def note_synced(self, log: LogId, end: Offset, epoch: int) -> None:
        """The log is on disk up to ``end``."""
        with self._lock:
            if log not in self._lowered:
                self._raise(log, end, epoch)

    def note_flushed(self, ends: Iterable[tuple[LogId, Offset, int]]) -> None:
        """These logs are in table files, and dense, up to here."""
        with self._lock:
            self._verify(ends)

    def note_all_flushed(self) -> None:
        """Everything that was written is in table files now; the thread is stopped, nobody writes."""
        with self._lock:
            for ends in (self._mark[1] if self._mark else {}, self._written):
                self._verify((log, end, epoch) for log, (end, epoch) in ends.items())
            self._mark, self._written = None, {}

    def lower(self, ends: Iterable[tuple[LogId, Offset, int]]) -> None:
        """
        Durably lower the evidence; ``end`` 0 forgets the log. Blocks for one fsync: in a thread.

        Raises:
            StorageFailed: the disk refused.
        """
        with self._lock:
            for log, end, epoch in ends:
                self._forget_pending(log, end)
                self._lowered.add(log)
                entry = self._entries.get(log)
                if entry is None:
                    continue
                if end == 0:
                    self._entries[log] = Evidence(entry.partition, Offset(0), -1, Offset(0))
                elif end < entry.end:
                    self._entries[log] = replace(entry, end=end, epoch=epoch, verified=min(entry.verified, end))
                self._dirty = True
        self.save(clean=False)

    def save(self, clean: bool) -> None:
        """Write the file now. Raises StorageFailed."""
        try:
            self._store(clean)
        except OSError as error:
            raise StorageFailed(f"the evidence file {self._path} cannot be written: {error}") from error

    def tick(self) -> None:
        """One turn of the thread: see what was flushed, write the file if there are changes. Raises OSError."""
        self._advance_mark()
        if self._dirty:
            self._store(clean=False)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            try:
                self.tick()
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    self._dirty = True  # the old file stands, and claims less; try again with more space
                    continue
                self.failure = StorageFailed(f"the evidence file {self._path} cannot be written: {error}")
                return
            except StorageFailed as error:
                self.failure = error
                return

    def _store(self, clean: bool) -> None:
        with self._file_lock:
            with self._lock:
                entries, self._dirty = dict(self._entries), False
            evidence_file.store(self._path, entries, clean)

    def _advance_mark(self) -> None:
        if self._mark is not None and self._wals.oldest_wal() > self._mark[0]:
            with self._lock:
                ends = self._mark[1].items()
                self._verify((log, end, epoch) for log, (end, epoch) in ends)
                self._mark = None
        if self._mark is None and self._written:
            with self._lock:
                taken, self._written = self._written, {}
                self._mark = (sys.maxsize, taken)
            # The number is read after the ends were taken, so what they name is in this WAL or an older one.
            self._mark = (self._wals.newest_wal(), taken)

    def _verify(self, ends: Iterable[tuple[LogId, Offset, int]]) -> None:
        for log, end, epoch in ends:
            self._raise(log, end, epoch)
            entry = self._entries.get(log)
            if entry is not None and entry.verified < end:
                self._entries[log] = replace(entry, verified=end)
                self._dirty = True

    def _raise(self, log: LogId, end: Offset, epoch: int) -> None:
        entry = self._entries.get(log)
        if entry is not None and end > entry.end:
            self._entries[log] = replace(entry, end=end, epoch=epoch)
            self._dirty = True

    def _forget_pending(self, log: LogId, end: Offset | None) -> None:
        for ends in (self._written, self._mark[1] if self._mark else {}):
            if log in ends and (end is None or ends[log][0] > end):
                del ends[log]
