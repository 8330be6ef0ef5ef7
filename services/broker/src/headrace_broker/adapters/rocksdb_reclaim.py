"""
Decides what is compacted so that the space of what was dropped or rewritten goes back to the disk.

``rocksdb_log`` notes what it writes and starts this: on the engine's ``reclaim``, and by itself when compaction of logs
has left much behind. The work is done in one thread. Live blobs are moved only where that pays: a compaction that may
move them moves the oldest quarter once more, whatever of it is dead (measured: write amplification 2.8 to 3.1 instead
of 2.1, and a fifth of a loaded broker's CPU). Retention kills the oldest blob files as a whole, and a log that is
compacted is written again in time. Deleted and truncated logs lie between others in the same files, and so do topics
that keep their records for different times: for the first always, for the others once a good share of all blobs is
dead, live blobs are moved out of the oldest files.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from headrace_broker.adapters.rocksdb_keys import Kind, make_key
from headrace_broker.adapters.rocksdb_store import RocksDbStore
from headrace_broker.core.rows import LogId, SegmentRow
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset

DEAD_BYTES_MIN: Final = 1 << 20
"""Below this nothing is done for what is dead, and nothing is flushed."""
DEAD_SHARE_MAX: Final = 0.2
"""From this share of dead blobs on live ones are moved out of the oldest files."""
SMALL_BYTES: Final = 128 << 20
"""With fewer bytes of blobs it is half of that share: a small store has a write-ahead log and files of its own besides,
and moving its blobs costs little."""
REWRITTEN_SHARE_MAX: Final = 0.05
"""From this share of all that is stored on, what compaction of logs left behind is looked for, when that is asked."""
DUE_SHARE_MAX: Final = 0.25
"""And from this share on it is not waited for: less often while a log is compacted, as then more of it dies."""
UNFLUSHED_SHARE_MAX: Final = 0.1
"""From this share of all that is stored on, memtables are flushed: what is dead in them goes, and the WAL."""
_PARTS: Final = 4
"""Live blobs are moved out of a quarter of all files at a time, the oldest: most is dead there."""
LOG_ID_MAX: Final = LogId(2**32 - 1)

_Dropped = dict[LogId, Offset | None]
"""Everything below an offset, or anything (None)."""


@dataclass(slots=True)
class _Noted:
    """What was written since the last time."""

    dropped: _Dropped = field(default_factory=dict)
    rewritten: set[LogId] = field(default_factory=set)
    dead: int = 0
    """Bytes that compaction took out of logs or wrote anew."""
    flush: bool = False


class Reclaimer:
    """Compacts what was dropped or rewritten in one store. Called from one thread."""

    def __init__(self, store: RocksDbStore) -> None:
        self._store = store
        self._noted = _Noted()
        self._sealed: dict[LogId, dict[Offset, int]] = {}
        """Bytes of sealed segments, by log and base."""
        self._asked = False
        self._work: Future[None] | None = None
        self._due_from = DEAD_BYTES_MIN
        self._lock = threading.Lock()
        """Over what is noted and asked, and the worker's end."""
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "storage-reclaim")

    def note_dropped(self, log: LogId) -> None:
        """The log was truncated or deleted."""
        self._sealed.pop(log, None)
        with self._lock:
            self._noted.dropped[log] = None

    def note_dropped_below(self, log: LogId, start: Offset) -> None:
        """The log begins at ``start`` now."""
        sealed = self._sealed.get(log, {})
        for base in [base for base in sealed if base < start]:
            del sealed[base]
        with self._lock:
            if self._noted.dropped.get(log, start) is not None:
                self._noted.dropped[log] = start

    def note_rewritten(self, log: LogId, size: int) -> None:
        """``size`` bytes of the log are on disk a second time, or not in the log any more."""
        with self._lock:
            self._noted.dead += size
            self._noted.rewritten.add(log)

    def note_sealed(self, log: LogId, rows: Iterable[SegmentRow]) -> None:
        """The rows of these segments were written or found; one that was compacted has become smaller."""
        sizes = self._sealed.setdefault(log, {})
        for row in rows:
            if row.end_offset is not None:
                dead = sizes.get(row.base_offset, row.size) - row.size
                sizes[row.base_offset] = row.size
                if dead > 0:
                    self.note_rewritten(log, dead)

    @property
    def due(self) -> bool:
        """Whether compaction of logs left so much behind that it should not wait."""
        return self._noted.dead >= self._due_from

    def start(self, *, flush: bool = False) -> None:
        """
        Begin with what was noted since the last start, after a flush of the memtables if that is asked for; after
        what is being worked on.
        """
        with self._lock:
            noted = self._noted
            noted.flush |= flush
            self._asked = self._asked or bool(noted.dropped or noted.rewritten or noted.flush)
            if self._asked and (self._work is None or self._work.done()) and not self._stopping.is_set():
                self._work = self._thread.submit(self._run)

    async def wait_until_finished(self) -> None:
        if (work := self._work) is not None:
            await asyncio.wrap_future(work)

    def stop(self) -> None:
        """End after the range that is being compacted; blocks until then."""
        self._stopping.set()
        self._thread.shutdown(wait=True)

    # --- in the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (noted := self._take()) is not None:
            try:
                self._reclaim(noted)
            except StorageFailed as error:
                self._store.fail(error)

    def _take(self) -> _Noted | None:
        with self._lock:
            if not self._asked or self._stopping.is_set() or self._store.failed:
                self._work = None
                return None
            taken, self._noted, self._asked = self._noted, _Noted(), False
            return taken

    def _reclaim(self, noted: _Noted) -> None:
        stored, held = self._store.count_stored_bytes(), self._store.memtable_bytes()
        large = held >= max(DEAD_BYTES_MIN, stored * UNFLUSHED_SHARE_MAX)
        if noted.flush or (large and 2 * held < self._store.free_bytes()):
            self._store.flush()
        rewritten = noted.rewritten
        if noted.dead < max(DEAD_BYTES_MIN, stored * REWRITTEN_SHARE_MAX):
            with self._lock:
                self._noted.rewritten |= rewritten
                self._noted.dead += noted.dead
            rewritten = set()
        self._compact(noted.dropped, rewritten)
        self._due_from = max(DEAD_BYTES_MIN, int(self._store.count_stored_bytes() * DUE_SHARE_MAX))

    def _compact(self, dropped: _Dropped, rewritten: set[LogId]) -> None:
        gone = {log for log, start in dropped.items() if start is None}
        self._compact_ranges(_prefix_ranges(dropped))
        self._compact_ranges(_log_ranges(rewritten - gone))
        if gone:
            self._compact_and_collect(_log_ranges(gone))
        for _ in range(_PARTS):
            size, dead = self._store.blob_bytes()
            share = DEAD_SHARE_MAX if size >= SMALL_BYTES else DEAD_SHARE_MAX / 2
            if dead < max(DEAD_BYTES_MIN, size * share) or self._stopping.is_set():
                return
            everything = (make_key(LogId(0), 0, 0), make_key(LOG_ID_MAX, Kind.END, 0))
            self._compact_and_collect(iter([everything]))

    def _compact_and_collect(self, ranges: Iterator[tuple[bytes, bytes]]) -> None:
        """Compact the ranges and move what lives in them out of the oldest blob files, of one at least."""
        count = max(1, self._store.blob_files())
        self._store.collect_blobs(True, min(1.0, (max(1, count // _PARTS) + 0.5) / count))
        try:
            self._compact_ranges(ranges)
        finally:
            self._store.collect_blobs(False, 1 / _PARTS)

    def _compact_ranges(self, ranges: Iterator[tuple[bytes, bytes]]) -> None:
        """Those that share a table go together: a compaction writes each table that it touches anew, as a whole."""
        waiting = deque(ranges)
        while waiting and not self._stopping.is_set():
            low, high = waiting.popleft()
            tables = self._store.list_tables()
            while waiting and _share_a_table(tables, high, waiting[0][0]):
                high = waiting.popleft()[1]
            self._store.compact(low, high)


def _share_a_table(tables: list[tuple[bytes, bytes]], end: bytes, start: bytes) -> bool:
    """Whether the table in which a range ends reaches the ``start`` of the next."""
    at = bisect_right(tables, end, key=lambda table: table[0]) - 1
    return at >= 0 and tables[at][1] >= start


def _prefix_ranges(dropped: _Dropped) -> Iterator[tuple[bytes, bytes]]:
    """The batches that logs lost at their beginning, and all index rows."""
    for log in sorted(dropped):
        start = dropped[log]
        if start is not None:
            yield make_key(log, Kind.INDEX, 0), make_key(log, Kind.BATCH, start)


def _log_ranges(logs: set[LogId]) -> Iterator[tuple[bytes, bytes]]:
    """All of these logs; neighbours are one range."""
    first = last = None
    for log in sorted(logs):
        if first is not None and last is not None and log != last + 1:
            yield make_key(first, 0, 0), make_key(last, Kind.END, 0)
            first = None
        first, last = log if first is None else first, log
    if first is not None and last is not None:
        yield make_key(first, 0, 0), make_key(last, Kind.END, 0)
