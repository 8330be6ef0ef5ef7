"""
Decides what is compacted so that the space of dropped rows goes back to the disk.

``rocksdb_log`` notes what it drops and starts this on the engine's ``reclaim``; the work is done in one thread.
Live blobs are moved only where that pays: a compaction that may move them moves the oldest quarter once more, whatever
of it is dead (measured: write amplification 2.8 to 3.1 instead of 2.1, and a fifth of a loaded broker's CPU). Retention
kills the oldest blob files as a whole. Deleted and truncated logs lie between others in the same files, and so do
topics that keep their records for different times: for the first always, for the others once a good share of all blobs
is dead, live blobs are moved out of the oldest files.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from headrace_broker.adapters.rocksdb_keys import Kind, make_key
from headrace_broker.adapters.rocksdb_store import RocksDbStore
from headrace_broker.core.rows import LogId
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset

DEAD_BYTES_MIN: Final = 256 << 20
DEAD_SHARE_MAX: Final = 0.3
"""From this share of dead blobs on live ones are moved out of the oldest files."""
LOG_ID_MAX: Final = LogId(2**32 - 1)

_Dropped = dict[LogId, Offset | None]
"""Everything below an offset, or anything (None)."""


class Reclaimer:
    """Compacts what was dropped in one store. Called from one thread."""

    def __init__(self, store: RocksDbStore) -> None:
        self._store = store
        self._dropped: _Dropped = {}
        self._rewritten: set[LogId] = set()
        self._work: Future[None] | None = None
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "storage-reclaim")

    def dropped(self, log: LogId) -> None:
        """The log was truncated or deleted."""
        self._dropped[log] = None

    def dropped_below(self, log: LogId, start: Offset) -> None:
        """The log begins at ``start`` now."""
        if self._dropped.get(log, start) is not None:
            self._dropped[log] = start

    def rewritten(self, log: LogId) -> None:
        """Compaction replaced or dropped a batch of the log."""
        self._rewritten.add(log)

    def start(self, *, flush: bool = False) -> None:
        """
        Begin with what was dropped since the last start, after a flush of the memtables if that is asked for; nothing,
        while that is still being worked on.
        """
        if (self._dropped or flush) and (self._work is None or self._work.done()):
            taken, self._dropped = self._dropped, {}
            self._work = self._thread.submit(self._reclaim, taken, flush)

    async def finished(self) -> None:
        """Wait for the work that was started."""
        if self._work is not None:
            await asyncio.wrap_future(self._work)

    def stop(self) -> None:
        """End after the range that is being compacted; blocks until then."""
        self._stopping.set()
        self._thread.shutdown(wait=True)

    def _reclaim(self, dropped: _Dropped, flush: bool) -> None:
        try:
            if flush:
                self._store.flush()
            if dropped:
                self._compact(dropped)
        except StorageFailed as error:
            self._store.fail(error)

    def _compact(self, dropped: _Dropped) -> None:
        self._compact_ranges(_prefix_ranges(dropped))
        ranges = list(_log_ranges(dropped))
        size, dead = self._store.blob_bytes()
        if dead >= max(DEAD_BYTES_MIN, size * DEAD_SHARE_MAX):
            ranges = [(make_key(LogId(0), 0, 0), make_key(LOG_ID_MAX, Kind.END, 0))]
        if not ranges:
            return
        self._store.collect_blobs(True)
        try:
            self._compact_ranges(iter(ranges))
        finally:
            self._store.collect_blobs(False)

    def _compact_ranges(self, ranges: Iterator[tuple[bytes, bytes]]) -> None:
        for low, high in ranges:
            if self._stopping.is_set():
                return
            self._store.compact(low, high)


def _prefix_ranges(dropped: _Dropped) -> Iterator[tuple[bytes, bytes]]:
    """The batches that logs lost at their beginning."""
    for log in sorted(dropped):
        start = dropped[log]
        if start is not None:
            yield make_key(log, Kind.BATCH, 0), make_key(log, Kind.BATCH, start)


def _log_ranges(dropped: _Dropped) -> Iterator[tuple[bytes, bytes]]:
    """Logs that were deleted or truncated; neighbours are one range."""
    first = last = None
    for log in sorted(log for log, start in dropped.items() if start is None):
        if first is not None and last is not None and log != last + 1:
            yield make_key(first, 0, 0), make_key(last, Kind.END, 0)
            first = None
        first, last = log if first is None else first, log
    if first is not None and last is not None:
        yield make_key(first, 0, 0), make_key(last, Kind.END, 0)
