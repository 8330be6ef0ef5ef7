"""
Reads what the tail cache no longer has: rows from the index, batches in the store's reader thread.

Fetches call it. A reader that goes on where the last read ended gets its next chunk read ahead, within one bound for
the whole broker.

Rows are read on the event loop and their batches after that, in a thread: compaction may rewrite or drop a batch in
between. Only a batch that does not fit a row which is still the same is lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.measures import Measures
from headrace_broker.core.rows import IndexRow, LogId
from headrace_broker.engine.replicas import Replica, Standing
from headrace_broker.ports import BytesLost, LogStore
from headrace_common.core.errors import OffsetOutOfRange, StorageFailed, UnknownTopicId
from headrace_common.core.ids import Offset
from headrace_common.runtime.tasks import TaskRunner

READ_AHEAD_BYTES_MAX: Final = 32 << 20
EXPECTED_MAX: Final = 4096
ROWS_PER_READ_MAX: Final = 1024
"""Rows of one answer; walking them holds the event loop for a few microseconds each."""
READS_MAX: Final = 24
"""Of one answer, while what is read is rewritten under it."""
WHOLE_READS: Final = 4
"""So many of them of all rows; each one after that of half as many, so that it ends."""
UNFIT_READS: Final = 2
"""So many reads in a row of which the rows stayed as they were and the bytes did not fit: they are lost."""


@dataclass(slots=True)
class _Ahead:
    rows: list[IndexRow]
    task: asyncio.Task[list[bytes] | StorageFailed]
    size: int


class ColdReader:
    """One for the broker."""

    def __init__(self, store: LogStore, tasks: TaskRunner, measures: Measures) -> None:
        self._store = store
        self.on_lost: Callable[[Replica, BytesLost], None] = lambda _replica, _error: None
        """Called when a batch is gone or is not what was written."""
        self._tasks = tasks
        self._measures = measures
        self._ahead: OrderedDict[tuple[LogId, Offset, int], _Ahead] = OrderedDict()
        self._ahead_bytes = 0
        self._expected: OrderedDict[tuple[LogId, Offset], None] = OrderedDict()

    async def read(
        self, replica: Replica, offset: Offset, bytes_max: int, end: Offset, *, first: bool, committed: bool = True
    ) -> list[bytes]:
        """
        Batches from the one that holds ``offset`` up to ``end``, of at most ``bytes_max`` bytes.

        What is not ``committed`` below ``end`` may yet be truncated, so nothing is read ahead then.

        Raises:
            OffsetOutOfRange: the log was trimmed meanwhile.
            UnknownTopicId: it was deleted meanwhile.
            StorageFailed: a batch cannot be read; the text names it.
        """
        ahead = self._take_ahead(replica, offset, end) if committed else None
        rows: list[IndexRow] = []
        found: list[bytes] | StorageFailed | None = None
        if ahead is not None:
            rows = _take_fitting(ahead.rows, bytes_max, first=first)
            self._measures.read_ahead_hits += 1
            found = await self._share(ahead, len(rows))
        if found is None or isinstance(found, BytesLost):
            rows, found = await self._read_sound(replica, offset, bytes_max, end, first=first)
        if isinstance(found, StorageFailed):
            raise self._explain(replica, offset, found)
        if rows and rows[0].base_offset > offset and offset < replica.core.log_start:
            raise _describe_trimmed(replica, offset)
        if committed:
            self._go_on(replica, offset, rows, bytes_max, end, sequential=ahead is not None)
        self._measures.cold_reads += 1
        self._measures.cold_bytes += sum(map(len, found))
        return found

    async def check(self, replica: Replica, offset: Offset, bytes_max: int, end: Offset) -> tuple[Offset, int]:
        """
        Compare stored batches as ``read`` does, and hand out nothing; at least one, if there is one below ``end``.

        Where the next check goes on, and how many bytes were compared. Raises as ``read``.
        """
        rows, found = await self._read_sound(replica, offset, bytes_max, end, first=True)
        return (rows[-1].next_offset if rows else offset), sum(map(len, found))

    def forget(self, log: LogId) -> None:
        """What was read ahead of the log is as it was before compaction rewrote it: let it go."""
        for key in [key for key in self._ahead if key[0] == log]:
            self._ahead_bytes -= self._ahead.pop(key).size

    def _take_ahead(self, replica: Replica, offset: Offset, end: Offset) -> _Ahead | None:
        """What was read ahead from ``offset`` on; not another reader's, if this one may read only less."""
        ahead = self._ahead.pop((replica.core.log, offset, replica.core.truncations), None)
        if ahead is not None:
            self._ahead_bytes -= ahead.size
            if ahead.rows[-1].next_offset > end:
                return None
        return ahead

    async def _read_sound(
        self, replica: Replica, offset: Offset, bytes_max: int, end: Offset, *, first: bool
    ) -> tuple[list[IndexRow], list[bytes]]:
        """What ``_walk`` finds. Raises: see ``read``."""
        rows, found = await self._walk(replica, offset, bytes_max, end, first=first)
        if isinstance(found, BytesLost) and not rows:  # it is the index that cannot be read: once more
            rows, found = await self._walk(replica, offset, bytes_max, end, first=first)
        if isinstance(found, StorageFailed):
            raise self._explain(replica, offset, found)
        return rows, found

    async def _walk(
        self, replica: Replica, offset: Offset, bytes_max: int, end: Offset, *, first: bool
    ) -> tuple[list[IndexRow], list[bytes] | StorageFailed]:
        """Read until rows and batches fit; an error when they do not though the rows stay the same."""
        log, unfit, count = replica.core.log, 0, ROWS_PER_READ_MAX
        try:
            rows = self._find_rows(replica, offset, bytes_max, end, first=first)
            for read in range(1, READS_MAX + 1):
                found = await self._try(log, rows)
                if not isinstance(found, BytesLost):
                    return rows, found
                now = self._find_rows(replica, offset, bytes_max, end, first=first, count=count)
                unfit = unfit + 1 if now == rows else 0
                if unfit == UNFIT_READS:
                    return rows, found
                if unfit == 0 and read >= WHOLE_READS:
                    count = max(1, min(count, len(now)) // 2)
                rows = now[:count]
        except StorageFailed as error:
            return [], error
        where = f"{replica.topic}-{replica.id.partition} at offset {offset}"
        return [], StorageFailed(f"{where} was compacted each time it was read; ask again")

    async def _share(self, ahead: _Ahead, count: int) -> list[bytes] | StorageFailed:
        found = await ahead.task
        return found if isinstance(found, StorageFailed) else found[:count]

    def _find_rows(
        self,
        replica: Replica,
        offset: Offset,
        bytes_max: int,
        end: Offset,
        *,
        first: bool,
        count: int = ROWS_PER_READ_MAX,
    ) -> list[IndexRow]:
        core = replica.core
        holder = self._store.floor(core.log, offset)
        start = offset if holder is None else holder.base_offset
        rows: list[IndexRow] = []
        room = bytes_max
        for row in self._store.index(core.log, start, end):
            room -= row.size
            if room < 0 and (rows or not first):
                break
            if row.next_offset > end:
                break
            rows.append(row)
            if len(rows) == count:
                break
        return rows

    async def _try(self, log: LogId, rows: list[IndexRow]) -> list[bytes] | StorageFailed:
        if not rows:
            return []
        try:
            return await self._store.read(log, rows)
        except StorageFailed as error:
            return error

    def _explain(self, replica: Replica, offset: Offset, error: StorageFailed) -> Exception:
        if replica.standing is not Standing.ONLINE:
            return UnknownTopicId(f"{replica.topic}-{replica.id.partition} went while it was read; refresh metadata")
        if offset < replica.core.log_start:
            return _describe_trimmed(replica, offset)
        self._measures.read_failures += 1
        if isinstance(error, BytesLost):
            self.on_lost(replica, error)
        return error

    def _go_on(
        self, replica: Replica, offset: Offset, rows: list[IndexRow], bytes_max: int, end: Offset, *, sequential: bool
    ) -> None:
        """Read the next chunk ahead if this one was asked for in sequence; remember where the next would begin."""
        if not rows:
            return
        log = replica.core.log
        following = (log, rows[-1].next_offset)
        sequential = sequential or self._expected.pop((log, offset), 0) is None
        if not sequential:
            self._expected[following] = None
            if len(self._expected) > EXPECTED_MAX:
                self._expected.popitem(last=False)
            return
        key = (*following, replica.core.truncations)
        if key in self._ahead:
            return
        try:
            more = self._find_rows(replica, following[1], bytes_max, end, first=True)
        except StorageFailed:
            return  # who asks for it hears of it
        size = sum(row.size for row in more)
        if not more or size > READ_AHEAD_BYTES_MAX:
            return
        self._ahead[key] = _Ahead(more, self._tasks.start(self._try(log, more), name="read-ahead"), size)
        self._ahead_bytes += size
        while self._ahead_bytes > READ_AHEAD_BYTES_MAX:
            _, dropped = self._ahead.popitem(last=False)
            self._ahead_bytes -= dropped.size


def _describe_trimmed(replica: Replica, offset: Offset) -> OffsetOutOfRange:
    return OffsetOutOfRange(f"offset {offset} is below the log start {replica.core.log_start}")


def _take_fitting(rows: list[IndexRow], bytes_max: int, *, first: bool) -> list[IndexRow]:
    room = bytes_max
    for index, row in enumerate(rows):
        room -= row.size
        if room < 0 and (index or not first):
            return rows[:index]
    return rows
