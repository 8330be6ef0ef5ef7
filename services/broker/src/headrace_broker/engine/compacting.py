"""
One compaction of one log: reads what is dirty, then everything, and has the storage loop write what changes.

The cleaner begins it. Rows are walked on the event loop in short slices, batches are read in the store's thread and
worked on in the cleaner's; the next chunk is read while one is worked on. Few steps are under way at a time, so that a
compaction is always behind the producers in the queue. Whatever happens to the log meanwhile ends it or makes it begin
its second half anew: what was written until then is sound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from headrace_broker.core.compaction.cleaning import Cleaning
from headrace_broker.core.compaction.dirty_keys import DirtyKeys
from headrace_broker.core.compaction.offset_map import OffsetMap
from headrace_broker.core.compaction.plan import DirtyRange
from headrace_broker.core.compaction.rules import Rules
from headrace_broker.core.compaction.steps import Step, StepOutdated
from headrace_broker.core.measures import Measures
from headrace_broker.core.partition_events import Compacted
from headrace_broker.core.rows import IndexRow, PutBatch
from headrace_broker.engine.replicas import Replica, Standing
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.ports import BytesLost, LogStore
from headrace_common.core.errors import (
    CorruptBatch,
    NotLeader,
    StorageFailed,
    UnknownTopicId,
    UnsupportedCompression,
    UnsupportedVersion,
)
from headrace_common.core.ids import Offset
from headrace_common.runtime.clock import give_way
from headrace_common.runtime.failpoints import failpoint
from headrace_common.runtime.tasks import TaskRunner

T = TypeVar("T")
ROWS_MAX: Final = 128
"""Rows of one chunk; walking them holds the event loop for some microseconds each."""
CHUNK_BYTES: Final = 1 << 20
CHUNKS_AHEAD: Final = 2
"""Are read while one is worked on: with one the thread would wait for the disk, and for its turn, half of the time."""
STEPS_UNDER_WAY_MAX: Final = 8
"""Each waits for its sync. Together 2 MiB, so that producers do not wait long behind them."""
BEGUN_ANEW_MAX: Final = 5
"""How often the second half begins anew when the log start overtakes it; then the log has to wait for its next turn."""

WRITE_BYTES: Final = 2048
"""What a write of a step counts in the queue at least: for so many bytes it keeps the storage loop busy."""

Chunk = list[tuple[IndexRow, bytes | None]]
Wants = Callable[[Sequence[IndexRow]], list[bool]]
"""Which of these batches are needed."""


class Stuck(Exception):
    """The log cannot be compacted: its batch at ``at`` is not readable; -1: it is not known which."""

    def __init__(self, at: Offset, reason: Exception) -> None:
        super().__init__(str(reason))
        self.at = at


class Outpaced(Exception):
    """The log was cut, went away, or its start was faster: what was written is sound, the rest waits."""


class Pace(Protocol):
    """What the cleaner is allowed to do."""

    async def work(self, call: Callable[[], T]) -> T:
        """What ``call`` returns, in the cleaner's thread."""
        ...

    async def spend(self, size: int) -> None:
        """Wait until so many bytes more may be read or written."""
        ...

    def may_go_on(self) -> bool:
        """Whether compaction is enabled and there is room for what it writes."""
        ...


@dataclass(slots=True)
class Done:
    """What one compaction came to."""

    end: Offset
    """So far the log is clean."""
    bytes_removed: int


class Compacting:
    """One compaction of one log; ``run`` once."""

    def __init__(
        self,
        replica: Replica,
        dirty: DirtyRange,
        rules: Rules,
        pace: Pace,
        store: LogStore,
        loop: StorageLoop,
        tasks: TaskRunner,
        measures: Measures,
    ) -> None:
        self._replica = replica
        self._core = replica.core
        self._dirty = dirty
        self._rules = rules
        self._pace = pace
        self._store = store
        self._loop = loop
        self._tasks = tasks
        self._measures = measures
        self._truncations = replica.core.truncations
        self._name = f"{replica.topic}-{replica.id.partition}"
        self._under_way: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        self._removed = 0
        self._walk: DirtyKeys | Cleaning | None = None

    @property
    def at(self) -> Offset:
        """The base of the batch that is worked on; -1: none yet."""
        return Offset(-1) if self._walk is None else self._walk.at

    async def run(self, map_bytes: int, seed: int) -> Done:
        """
        Compact the dirty range, or as much of it as the keys of ``map_bytes`` tell of.

        Raises:
            Stuck: a batch cannot be read or understood.
            BytesLost: the same, and its bytes are gone.
            Outpaced: it is over before its end.
            StorageFailed: the store refused a write; the process is about to stop.
        """
        failpoint("cleaner.pass.before")
        self._walk = keys = await self._pace.work(partial(self._make_keys, map_bytes, seed))
        chunks = self._read_chunks(self._dirty.start, self._dirty.end, partial(_find_wanted_keys, keys), skips=True)
        async with aclosing(chunks):
            async for chunk in chunks:
                if not await self._understand(partial(_gather, keys, chunk)):
                    break
        await self._pace.work(keys.map.complete)
        failpoint("cleaner.map.after")
        if keys.end <= self._dirty.start:
            raise Outpaced("the log start has passed what was dirty")
        for _ in range(BEGUN_ANEW_MAX):
            try:
                await self._clean(keys)
            except StepOutdated:
                continue
            return Done(keys.end, self._removed)
        raise Outpaced("the log start moves faster than the compaction")

    def _make_keys(self, map_bytes: int, seed: int) -> DirtyKeys:
        """The first use of numpy and pyarrow takes long: it is in the thread."""
        return DirtyKeys(self._dirty.start, OffsetMap(map_bytes, seed), self._rules, self._name)

    async def _clean(self, keys: DirtyKeys) -> None:
        core = self._core
        start = core.first_batch
        if start >= keys.end:
            raise Outpaced("the log start has passed what was dirty")
        segments = {row.base_offset: row for row in core.segments.sealed}
        cleaning = Cleaning(core.log, self._name, self._rules, keys.map, self._dirty.start, segments.values())
        self._walk = cleaning
        try:
            chunks = self._read_chunks(start, keys.end, partial(_find_wanted, cleaning), skips=False)
            async with aclosing(chunks):
                async for chunk in chunks:
                    for step in await self._understand(partial(_clean, cleaning, chunk)):
                        await self._post(step)
            last = await self._pace.work(partial(cleaning.finish, core.clean_points))
            failpoint("cleaner.finish.before")
            await self._post(last)
            await self._wait_confirmed(0)
            failpoint("cleaner.finish.after")
        finally:
            for _, future in self._under_way:
                future.add_done_callback(_retrieve)
            self._under_way.clear()
            self._measures.cleaner_records_removed += cleaning.removed
        after = {row.base_offset: row.size for row in core.segments.sealed}
        self._removed += sum(row.size - after[base] for base, row in segments.items() if base in after)

    async def _understand(self, work: Callable[[], T]) -> T:
        try:
            return await self._pace.work(work)
        except (CorruptBatch, UnsupportedVersion, UnsupportedCompression) as error:
            raise Stuck(self.at, error) from error

    # --- reading ------------------------------------------------------------------------------------------

    async def _read_chunks(
        self, start: Offset, end: Offset, wants: Wants, *, skips: bool
    ) -> AsyncGenerator[Chunk, None]:
        """
        The log's batches in order, from ``start`` to ``end``; those that are not wanted without their bytes.

        ``skips``: go on behind what is trimmed meanwhile; else that raises ``StepOutdated``.
        """
        ahead: deque[asyncio.Task[Chunk | StorageFailed]] = deque()
        asked_to = start
        try:
            while True:
                while len(ahead) < CHUNKS_AHEAD:
                    rows = self._find_rows(asked_to, end)
                    asked_to = rows[-1].next_offset if isinstance(rows, list) and rows else asked_to
                    ahead.append(self._tasks.start(self._try(rows, wants), name="cleaner-read"))
                await give_way()  # what they ask of the thread comes before the work on what is handed out
                if found := await self._next(ahead, start, skips=skips):
                    start = found[-1][0].next_offset
                    yield found
                elif found is None:
                    start = asked_to = self._core.first_batch
                else:
                    return
        finally:
            _cancel(ahead)

    async def _next(
        self, ahead: deque[asyncio.Task[Chunk | StorageFailed]], start: Offset, *, skips: bool
    ) -> Chunk | None:
        """The chunk at ``start``; empty: the range has ended; None: it is gone, so all are to be asked for anew."""
        found = await ahead.popleft()
        self._check()
        if start < self._core.first_batch and (isinstance(found, StorageFailed) or not skips):
            if not skips:
                raise StepOutdated("the log start has passed what is compacted next")
            _cancel(ahead)
            return None
        if isinstance(found, BytesLost):
            raise found
        if isinstance(found, StorageFailed):
            raise Stuck(Offset(-1), found)
        return found

    async def _try(self, rows: list[IndexRow] | StorageFailed, wants: Wants) -> Chunk | StorageFailed:
        if isinstance(rows, StorageFailed) or not rows:
            return rows if isinstance(rows, StorageFailed) else []
        try:
            wanted = await self._pace.work(partial(wants, rows))
            picked = [row for row, want in zip(rows, wanted, strict=True) if want]
            size = sum(row.size for row in picked)
            await self._pace.spend(size)
            batches = iter(await self._store.read(self._core.log, picked))
        except StorageFailed as error:
            return error
        self._measures.cleaner_bytes_read += size
        return [(row, next(batches) if want else None) for row, want in zip(rows, wanted, strict=True)]

    def _find_rows(self, start: Offset, end: Offset) -> list[IndexRow] | StorageFailed:
        rows: list[IndexRow] = []
        room = CHUNK_BYTES
        try:
            for row in self._store.index(self._core.log, start, end):
                rows.append(row)
                room -= row.size
                if room <= 0 or len(rows) == ROWS_MAX:
                    break
        except StorageFailed as error:
            return error
        return rows

    # --- writing ------------------------------------------------------------------------------------------

    async def _post(self, step: Step) -> None:
        """Give it to the storage loop; one that is outdated takes those with it that count on it."""
        self._check()
        size = sum(len(write.batch) for write in step.writes if isinstance(write, PutBatch))
        await self._pace.spend(size)
        await self._wait_confirmed(STEPS_UNDER_WAY_MAX - 1)
        self._check()
        step.start = min([step.start, *(start for start, _ in self._under_way)])
        failpoint("cleaner.step.before")
        queued = max(size, WRITE_BYTES * len(step.writes))
        done = self._loop.post(self._replica, Compacted(step, self._truncations), queued)
        self._under_way.append((step.start, done))
        failpoint("cleaner.step.posted")
        self._measures.cleaner_bytes_written += size

    async def _wait_confirmed(self, left: int) -> None:
        """Until at most so many steps are under way."""
        while len(self._under_way) > left:
            try:
                await self._under_way[0][1]
                failpoint("cleaner.step.after")
            except (NotLeader, UnknownTopicId) as error:
                raise Outpaced(str(error)) from error
            finally:
                self._under_way.popleft()
            self._check()

    def _check(self) -> None:
        if self._replica.standing is not Standing.ONLINE:
            raise Outpaced("the log is not served here any more")
        if self._core.truncations != self._truncations:
            raise Outpaced("the end of the log was cut")
        if not self._core.config.compacts or not self._pace.may_go_on():
            raise Outpaced("the log, or all logs, are not to be compacted now")


def _cancel(reads: deque[asyncio.Task[Chunk | StorageFailed]]) -> None:
    while reads:
        reads.popleft().cancel()


def _find_wanted_keys(keys: DirtyKeys, rows: Sequence[IndexRow]) -> list[bool]:
    return [keys.wants(row) for row in rows]


def _find_wanted(cleaning: Cleaning, rows: Sequence[IndexRow]) -> list[bool]:
    cleaning.look_ahead(rows)
    return [cleaning.wants(row) for row in rows]


def _gather(keys: DirtyKeys, chunk: Chunk) -> bool:
    """False: the map is full."""
    return all(keys.take(row, batch) for row, batch in chunk)


def _clean(cleaning: Cleaning, chunk: Chunk) -> Sequence[Step]:
    return [step for row, batch in chunk if (step := cleaning.take(row, batch)) is not None]


def _retrieve(future: asyncio.Future[None]) -> None:
    """What became of a step that nobody waits for."""
    if not future.cancelled():
        future.exception()
