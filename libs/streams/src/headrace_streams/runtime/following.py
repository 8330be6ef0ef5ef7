"""
Brings cold tiers up to their changelogs, and keeps them there where this worker stands by.

Whoever takes a task over follows to the high watermark, taken after the task was fenced and what its earlier owner left
open was ended: every transaction that counts had been decided before, so its records are below. Positions move past
markers, aborted batches and gaps too, so reading committed records gets there as soon as each transaction below has its
marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.records import PartitionTable, TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_streams.core.snapshots import Log
from headrace_streams.core.state.changelog import CONTROL, Progress, newest
from headrace_streams.patience import Patience
from headrace_streams.ports import Checkpoint, Reader, TaskStore
from headrace_streams.runtime.owned import Owned

_WAIT_MS: Final = 100
_ROWS: Final = 100_000


@dataclass(slots=True)
class _Followed:
    """One partition of a changelog."""

    store: TaskStore
    log_id: str
    position: int | None = None
    """None: not looked at so far. -1: from the start."""
    preparing: asyncio.Task[None] | None = None
    """What is done before that."""
    end: int = 0
    """As it was last heard of."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lag(self) -> int | None:
        """How many offsets are left; None: not known."""
        return None if self.position is None else max(0, self.end - max(0, self.position))


class Changelogs:
    """All that one worker follows, in one task."""

    def __init__(
        self,
        reader: Reader,
        clock: Clock,
        trusted_ms: int,
        compute: Callable[..., Awaitable[Any]],
        patience: Patience,
        prepare: Callable[[Owned], Awaitable[None]] | None = None,
    ) -> None:
        """
        Args:
            trusted_ms: a cold tier whose checkpoint is older is wiped first: deletions may be gone from the changelog.
            compute: runs what takes long beside the event loop.
            prepare: may bring a cold tier nearer to its changelog before that is followed.
        """
        self._reader = reader
        self._clock = clock
        self._trusted_ms = trusted_ms
        self._compute = compute
        self._patience = patience
        self._prepare = prepare
        self._followed: dict[TopicPartition, _Followed] = {}
        self.records = 0
        """How many records it has brought to disks so far."""
        self._changed = asyncio.Event()
        self._applying = asyncio.Lock()

    # --- for the worker ---------------------------------------------------------------------------------------------

    def follow(self, owned: Owned) -> None:
        """Keep the cold tier of a task up to its changelog, if it is not done already."""
        changelog, store = owned.spec.changelog, owned.store
        assert changelog is not None
        assert store is not None
        if changelog not in self._followed:
            followed = self._followed[changelog] = _Followed(store, owned.spec.log_id)
            if self._prepare is not None:
                preparing = self._prepare_one(self._prepare, owned, followed)
                followed.preparing = asyncio.create_task(preparing, name=f"prepare {owned.spec.label}")
            self._changed.set()

    async def _prepare_one(
        self, prepare: Callable[[Owned], Awaitable[None]], owned: Owned, followed: _Followed
    ) -> None:
        try:
            await prepare(owned)
        finally:
            followed.preparing = None
            self._changed.set()

    async def leave(self, changelog: TopicPartition) -> None:
        """Touch its cold tier no more."""
        async with self._applying:
            followed = self._followed.pop(changelog, None)
            if followed is not None:
                self._changed.set()
        if followed is not None and followed.preparing is not None:
            preparing = followed.preparing
            preparing.cancel()
            with suppress(asyncio.CancelledError):
                await preparing

    async def reach(self, changelog: TopicPartition, end: int) -> None:
        """Until a cold tier that is followed has everything below ``end``."""
        followed = self._followed[changelog]
        while followed.position is None or max(0, followed.position) < end:
            followed.moved.clear()
            await followed.moved.wait()

    def lags(self) -> dict[TopicPartition, int]:
        """How many offsets each cold tier is behind, where that is known."""
        return {at: lag for at, followed in self._followed.items() if (lag := followed.lag) is not None}

    async def ends(self, changelogs: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Their high watermarks."""
        return await self._patience.ask(lambda: self._reader.ends(changelogs))

    # --- the task -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """
        Follow until cancelled.

        Raises:
            HeadraceError: a changelog cannot be read on.
        """
        while True:
            if self._changed.is_set():
                self._changed.clear()
                await self._begin()
            elif all(followed.position is None for followed in self._followed.values()):
                await self._changed.wait()
            else:
                for batch in await self._patience.ask(lambda: self._reader.poll(_WAIT_MS, _ROWS)):
                    await self._apply(batch)

    async def _begin(self) -> None:
        """Read those that are followed, each from where its cold tier is."""
        new = [at for at, followed in self._followed.items() if followed.position is None and not followed.preparing]
        ends = await self.ends(new) if new else {}
        async with self._applying:
            for changelog, end in ends.items():
                followed = self._followed.get(changelog)
                if followed is not None:
                    followed.end = end
                    followed.position = await self._compute(self._place, followed)
                    followed.moved.set()
            placed = {at: f.position for at, f in self._followed.items() if f.position is not None}
            await self._reader.assign(placed)

    def _place(self, followed: _Followed) -> int:
        """Where to go on; -1: from the start. What is on the disk of another log, or too old, is wiped."""
        checkpoint = followed.store.checkpoint()
        if checkpoint is None:
            return -1
        now_ms = self._clock.now_ms()
        log = Log(followed.log_id, 0, followed.end, now_ms - self._trusted_ms, now_ms)
        if not log.continues(checkpoint.log_id, checkpoint.next_offset, checkpoint.at_ms):
            followed.store.wipe()
            return -1
        return checkpoint.next_offset

    async def _apply(self, batch: PartitionTable) -> None:
        async with self._applying:
            followed = self._followed.get(TopicPartition(batch.topic, batch.partition))
            if followed is None or followed.position is None:
                return
            checkpoint = Checkpoint(followed.log_id, batch.next_offset, self._clock.now_ms())
            await self._compute(_write, followed.store, batch, checkpoint)
            self.records += batch.table.num_rows
            followed.position = batch.next_offset
            followed.end = max(batch.end_offset, batch.next_offset)
            followed.moved.set()


def _write(store: TaskStore, batch: PartitionTable, checkpoint: Checkpoint) -> None:
    table: pa.Table = batch.table
    keys: list[Any] = table["key"].to_pylist()
    values: list[Any] = table["value"].to_pylist()
    store.write(list(newest(zip(keys, values, strict=True)).items()), checkpoint)


def progress_of(store: TaskStore) -> Progress:
    """What the last commit of a restored task says; nothing was committed: as a new task."""
    found = store.get(CONTROL)
    return Progress() if found is None else Progress.decode(found)
