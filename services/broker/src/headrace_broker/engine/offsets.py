"""
ListOffsets: positions by name or by time, and the long poll for new records.

Times are found through segments and index rows; then one batch is read and decoded in a thread to name the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.partition import segment_rows
from headrace_broker.core.rows import IndexRow
from headrace_broker.core.time_search import first_batch_reaching, newest_batch
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_broker.ports import LogStore
from headrace_common.core.batch import decode_batch
from headrace_common.core.errors import HeadraceError, OffsetNotAvailable, OffsetOutOfRange, Rejected, StorageFailed
from headrace_common.core.ids import NodeId, Offset, PartitionId

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
WAIT_MS_MAX: Final = 300_000
BATCHES_DECODED_MAX: Final = 1_000
"""Batches looked into for one time; more are needed only where the log start cut a segment with later stamps."""


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

    def moved(self, replica: Replica, more_bytes: int) -> None:
        """The storage loop says so."""
        del replica, more_bytes
        self.wake()

    def wake(self) -> None:
        """The time is over, or the broker stops."""
        if not self.woken.done():
            self.woken.set_result(None)


class Offsets:
    """One for the broker."""

    def __init__(self, replicas: Replicas, store: LogStore) -> None:
        self._replicas = replicas
        self._store = store
        self._polls: set[_Poll] = set()
        self._draining = False

    def drain(self) -> None:
        """Long polls are answered at once from now on."""
        self._draining = True
        for poll in self._polls:
            poll.wake()

    async def find(self, asks: Sequence[OffsetAsk], wait_ms: int, *, stable: bool = False) -> list[OffsetFound]:
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
        await self._wait(asks, wait_ms, stable=stable)
        return [await self._one(ask, stable=stable) for ask in asks]

    async def _wait(self, asks: Sequence[OffsetAsk], wait_ms: int, *, stable: bool) -> None:
        polled = [ask for ask in asks if ask.wait_above is not None]
        if not polled or len(polled) < len(asks) or wait_ms == 0:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while not self._draining and loop.time() < deadline:
            poll = _Poll()
            watched = []
            for ask in polled:
                try:
                    replica = self._replicas.leading(ask.partition, ask.leader_epoch)
                except HeadraceError:
                    return
                if ask.wait_above is None or replica.readable_end(stable=stable) > ask.wait_above:
                    return
                watched.append(replica)
            for replica in watched:
                replica.waiting(stable=stable).add(poll)
            self._polls.add(poll)
            timer = loop.call_at(deadline, poll.wake)
            try:
                await poll.woken
            finally:
                timer.cancel()
                self._polls.discard(poll)
                for replica in watched:
                    replica.waiting(stable=stable).discard(poll)

    async def _one(self, ask: OffsetAsk, *, stable: bool) -> OffsetFound:
        try:
            replica = self._replicas.leading(ask.partition, ask.leader_epoch)
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
            return await self._by_time(replica, ask.timestamp_ms, replica.readable_end(stable=stable))
        except HeadraceError as error:
            return OffsetFound(error=error, leader=self._replicas.leader_of(ask.partition))

    async def _by_time(self, replica: Replica, timestamp_ms: int, end: Offset) -> OffsetFound:
        core, log = replica.core, replica.core.log
        start = core.log_start

        def floor(offset: Offset) -> IndexRow | None:
            return self._store.floor(log, offset)

        segments = segment_rows(core)
        if timestamp_ms == MAX_TIMESTAMP:
            row = newest_batch(segments, floor, start, end)
        else:
            row = first_batch_reaching(segments, floor, start, end, timestamp_ms)
        if row is None:
            return OffsetFound()
        for candidate in self._candidates(replica, row, end):
            found = await self._in_batch(replica, candidate, timestamp_ms)
            if found is not None:
                return found
        return OffsetFound()

    def _candidates(self, replica: Replica, row: IndexRow, end: Offset) -> list[IndexRow]:
        """The batch, and those behind it in case only records before the log start are as young as was asked."""
        rows = [row]
        if row.base_offset <= replica.core.log_start:
            for later in self._store.index(replica.core.log, row.next_offset, end):
                rows.append(later)
                if len(rows) == BATCHES_DECODED_MAX:
                    break
        return rows

    async def _in_batch(self, replica: Replica, row: IndexRow, timestamp_ms: int) -> OffsetFound | None:
        core = replica.core
        try:
            [batch] = await self._store.read(core.log, [row])
        except StorageFailed:
            if row.base_offset < core.log_start:
                raise OffsetOutOfRange("the log was trimmed meanwhile; ask again") from None
            raise
        where = f"{replica.topic}-{replica.id.partition}@{row.base_offset}"
        found = await asyncio.to_thread(_find_record, batch, timestamp_ms, core.log_start, where)
        if found is None:
            return None
        offset, stamp_ms = found
        return OffsetFound(offset, stamp_ms, row.leader_epoch)


def _find_record(batch: bytes, timestamp_ms: int, start: Offset, where: str) -> tuple[int, int] | None:
    """The first record at or after the time (or, with -3, with the largest stamp), not before ``start``."""
    decoded = decode_batch(batch, where=where)
    pairs = [
        (offset, stamp)
        for offset, stamp in zip(decoded.offsets(), decoded.timestamps(), strict=True)
        if offset >= start
    ]
    if not pairs:
        return None
    if timestamp_ms == MAX_TIMESTAMP:
        return max(pairs, key=lambda pair: (pair[1], -pair[0]))
    return next((pair for pair in pairs if pair[1] >= timestamp_ms), None)
