"""
ListOffsets: positions by name or by time, and the long poll for new records.

Times are found through segments and index rows; then a batch is read and decoded in a thread to name the record. What
the index says is how young records were when they were written: where compaction has removed them, the next batches are
looked into.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.local_log import segment_rows
from headrace_broker.core.rows import IndexRow
from headrace_broker.core.time_search import Range, ranges_by_age, ranges_reaching
from headrace_broker.engine.cold_reader import ColdReader
from headrace_broker.engine.permitted import Permitted
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_broker.ports import LogStore
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation
from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.errors import HeadraceError, OffsetNotAvailable, OffsetOutOfRange, Rejected
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_common.runtime.clock import Deadline
from headrace_common.runtime.threads import run_in_thread

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
WAIT_MS_MAX: Final = 300_000
SEARCH_BYTES_MAX: Final = 64 << 20
"""Read for one time. So many are needed only where stamps go back and what was younger is trimmed or compacted."""
CHUNK_BYTES_MAX: Final = 1 << 20
TRIES_MAX: Final = 3
"""Of one search, while the log is trimmed under it."""


@dataclass(frozen=True, slots=True)
class OffsetAsk:
    """One partition of a request."""

    partition: PartitionId
    timestamp_ms: int
    wait_above: int | None
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class OffsetFound:
    """The answer for one partition."""

    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    error: HeadraceError | None = None
    leader: tuple[NodeId, int] | None = None


class _Poll:
    """One long poll."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_readable(self, replica: Replica, more_bytes: int) -> None:
        """The storage loop says so."""
        del replica, more_bytes
        self.wake()

    def wake(self) -> None:
        """The time is over, or the broker stops."""
        if not self.woken.done():
            self.woken.set_result(None)


class Offsets:
    """One for the broker."""

    def __init__(self, replicas: Replicas, store: LogStore, cold: ColdReader) -> None:
        self._replicas = replicas
        self._store = store
        self._cold = cold
        self._polls: dict[_Poll, None] = {}
        self._draining = False

    def drain(self) -> None:
        """Long polls are answered at once from now on."""
        self._draining = True
        for poll in self._polls:
            poll.wake()

    async def find(
        self, asks: Sequence[OffsetAsk], wait_ms: int, *, stable: bool = False, rights: Rights = EVERYTHING
    ) -> list[OffsetFound]:
        """
        One answer per ask, in order. Waits only where one asks for ``wait_above`` and none qualifies yet.

        With ``stable`` logs end at their last stable offset: for who reads only what is decided.

        Raises:
            Rejected: the request as a whole is wrong.
        """
        if not 1 <= len(asks) <= PARTITIONS_PER_REQUEST_MAX:
            raise Rejected(f"the request names {len(asks)} partitions; 1 to {PARTITIONS_PER_REQUEST_MAX} are allowed")
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            raise Rejected(f"max_wait_ms is {wait_ms}; it must be 0 to {WAIT_MS_MAX}")
        if any(ask.wait_above is not None and ask.timestamp_ms != LATEST for ask in asks):
            raise Rejected("wait_above goes only with timestamp_ms = -1, the end")
        logs = Permitted(self._replicas, rights, Operation.DESCRIBE)
        await self._wait(logs, asks, wait_ms, stable=stable)
        return [await self._find_one(logs, ask, stable=stable) for ask in asks]

    async def _wait(self, logs: Permitted, asks: Sequence[OffsetAsk], wait_ms: int, *, stable: bool) -> None:
        polled = [ask for ask in asks if ask.wait_above is not None]
        if not polled or len(polled) < len(asks) or wait_ms == 0:
            return
        deadline = Deadline(wait_ms)
        while not self._draining and deadline.left_ms > 0:
            poll = _Poll()
            watched = []
            for ask in polled:
                try:
                    replica = logs.get_leading(ask.partition, ask.leader_epoch)
                except HeadraceError:
                    return
                if ask.wait_above is None or replica.readable_end(stable=stable) > ask.wait_above:
                    return
                watched.append(replica)
            for replica in watched:
                replica.waiting(stable=stable)[poll] = None
            self._polls[poll] = None
            timer = deadline.call(poll.wake)
            try:
                await poll.woken
            finally:
                timer.cancel()
                self._polls.pop(poll, None)
                for replica in watched:
                    replica.waiting(stable=stable).pop(poll, None)

    async def _find_one(self, logs: Permitted, ask: OffsetAsk, *, stable: bool) -> OffsetFound:
        try:
            replica = logs.get_leading(ask.partition, ask.leader_epoch)
            core = replica.core
            if ask.timestamp_ms == LATEST:
                if not core.end_known:
                    raise OffsetNotAvailable(
                        "the new leader does not know yet how far the log is committed; ask again in a moment"
                    )
                return OffsetFound(replica.readable_end(stable=stable), -1, core.leader_epoch or 0)
            if ask.timestamp_ms == EARLIEST:
                return OffsetFound(core.log_start, -1, core.epochs.epoch_at(core.log_start))
            if ask.timestamp_ms < MAX_TIMESTAMP:
                raise Rejected(f"timestamp_ms is {ask.timestamp_ms}; use a time, -1 (end), -2 (start) or -3 (newest)")
            return await self._find_by_time(replica, ask.timestamp_ms, replica.readable_end(stable=stable))
        except HeadraceError as error:
            return OffsetFound(error=error, leader=self._replicas.leader_of(ask.partition))

    async def _find_by_time(self, replica: Replica, timestamp_ms: int, end: Offset) -> OffsetFound:
        for left in reversed(range(TRIES_MAX)):
            search = _Search(replica, self._store, self._cold, end)
            try:
                return await (search.newest() if timestamp_ms == MAX_TIMESTAMP else search.first_at(timestamp_ms))
            except OffsetOutOfRange:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class _Search:
    """One search of one log by time, below ``end``."""

    def __init__(self, replica: Replica, store: LogStore, cold: ColdReader, end: Offset) -> None:
        self._replica = replica
        self._store = store
        self._cold = cold
        self._end = end
        self._start = replica.core.log_start
        self._read = 0

    def _floor(self, offset: Offset) -> IndexRow | None:
        return self._store.floor(self._replica.core.log, offset)

    async def first_at(self, timestamp_ms: int) -> OffsetFound:
        """The first record of that time or later. Where that takes too long: from where on it is, without a time."""
        segments = segment_rows(self._replica.core)
        for low, high in ranges_reaching(segments, self._floor, self._start, self._end, timestamp_ms):
            at, found = await self._look(low, high, _Wanted(timestamp_ms, youngest=False))
            if found is not None:
                return OffsetFound(found.offset, found.timestamp_ms, found.leader_epoch)
            if at < high:
                return OffsetFound(at, -1, self._replica.core.epochs.epoch_at(at))
        return OffsetFound()

    async def newest(self) -> OffsetFound:
        """The first of the records with the largest timestamp, or of those that were looked at."""
        segments = segment_rows(self._replica.core)
        best: _Seen | None = None
        for bound, (low, high) in ranges_by_age(segments, self._floor, self._start, self._end):
            if best is not None and (best.timestamp_ms > bound or (best.timestamp_ms == bound and best.offset < low)):
                break
            least = -1 if best is None else best.timestamp_ms
            at, found = await self._look(low, high, _Wanted(least, youngest=True))
            if found is not None and (best is None or found.timestamp_ms > least or found.offset < best.offset):
                best = found
            if at < high:
                break
        return OffsetFound() if best is None else OffsetFound(best.offset, best.timestamp_ms, best.leader_epoch)

    async def _look(self, low: Offset, high: Offset, wanted: _Wanted) -> tuple[Offset, _Seen | None]:
        """What is ``wanted`` between the two, and how far was looked."""
        replica, at, chunk = self._replica, low, 1
        where = f"{replica.topic}-{replica.id.partition}"
        found: _Seen | None = None
        while at < high and self._read < SEARCH_BYTES_MAX:
            batches = await self._cold.read(replica, at, chunk, self._end, first=True, committed=False)
            if not batches:
                return high, found  # the rest is a gap that goes on behind the end
            self._read += sum(map(len, batches))
            seen = await run_in_thread(_find_record, batches, wanted, (low, high), where)
            if seen is not None and not wanted.youngest:
                return at, seen
            if seen is not None:
                found, wanted = seen, _Wanted(seen.timestamp_ms + 1, youngest=True)
            at = Offset(read_header(batches[-1]).next_offset)
            chunk = min(64 * chunk, CHUNK_BYTES_MAX)
        return at, found


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A record of ``timestamp_ms`` or later: the first, or the youngest (the first of those)."""

    timestamp_ms: int
    youngest: bool


def _find_record(batches: Sequence[bytes], wanted: _Wanted, within: Range, where: str) -> _Seen | None:
    """What is wanted of these batches. Ends of transactions are no records, and their times are compaction's."""
    low, high = within
    best: _Seen | None = None
    for batch in batches:
        header = read_header(batch)
        least = wanted.timestamp_ms if best is None else best.timestamp_ms + 1
        if header.control or not header.record_count or header.max_timestamp < least:
            continue
        decoded = decode_batch(batch, where=f"{where}@{header.base_offset}")
        pairs = [
            (-stamp, offset)
            for offset, stamp in zip(decoded.offsets(), decoded.timestamps(), strict=True)
            if low <= offset < high and stamp >= least
        ]
        if not pairs:
            continue
        negative, offset = min(pairs) if wanted.youngest else pairs[0]
        best = _Seen(-negative, offset, header.leader_epoch)
        if not wanted.youngest:
            break
    return best
