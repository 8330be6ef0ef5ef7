"""
``ShardLogs`` whose partitions a test can stop, and fail on command; ``test_shard_log`` holds them to what brokers do.

Several coordinators of one test share one ``MemoryShardLogs``, as they would share brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from headrace_broker.core.fences import Fences
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Offset
from headrace_common.core.image import ShardKey, ShardKind
from headrace_coordinator.ports import Record, Slice

SLICE_RECORDS = 1_000


@dataclass
class MemoryPartition:
    """One partition. ``open_gate`` and ``shut_gate`` let appends through or hold them, as a missing quorum does."""

    records: list[Record | None] = field(default_factory=list)
    """None: a fence or a note."""
    fences: Fences = field(default_factory=Fences)
    """The broker's own core, which says whose token counts."""
    appends: list[list[Record]] = field(default_factory=list)
    """What each append wrote."""
    refusals: list[HeadraceError] = field(default_factory=list)
    """Raised by the next appends, first in first out; nothing is written."""
    lost_answers: int = 0
    """So many writes are done and their answers lost; the log tries them again, as it does over gRPC."""
    first: int = 0
    """Where the log begins."""
    _gate: asyncio.Event = field(default_factory=asyncio.Event)
    _reading: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    """Appends that stand before the gate."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._gate.set()
        self._reading.set()

    def shut_gate(self) -> None:
        """Appends wait from now on."""
        self._gate.clear()

    def open_gate(self) -> None:
        """Appends go on."""
        self._gate.set()

    def shut_reading(self) -> None:
        """Reads wait from now on."""
        self._reading.clear()

    def open_reading(self) -> None:
        """Reads go on."""
        self._reading.set()

    async def readable(self) -> None:
        """Wait until reads may go on."""
        await self._reading.wait()

    async def until_waiting(self, count: int = 1) -> None:
        """Wait until so many appends stand before the gate."""
        while self.waiting < count:
            await self.until_changed()

    async def until_changed(self) -> None:
        """Wait for the next append, or for one more before the gate."""
        await self.changed.wait()

    def notify(self) -> None:
        """Wake those who wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def write(self, token: int, records: list[Record | None], *, fence: bool) -> Offset:
        """One attempt to write, as a leader treats it; the offset of the first record."""
        self.waiting += 1
        self.notify()
        try:
            await self._gate.wait()
        finally:
            self.waiting -= 1
        if self.refusals:
            raise self.refusals.pop(0)
        if (refusal := self.fences.refusal(token, token if fence else None)) is not None:
            raise refusal
        base = Offset(self.first + len(self.records))
        if fence:
            self.fences.note_appended(base, token)
        self.records += records
        self.notify()
        return base


class MemoryShardLog:
    """See ``ShardLog``."""

    def __init__(self, partition: MemoryPartition, token: int) -> None:
        self._partition = partition
        self._token = token

    async def take_over(self) -> Offset:
        """See ``ShardLog``."""
        mine = self._partition.fences.token == self._token
        return Offset(await self._written([None], fence=not mine) + 1)

    async def append(self, records: Sequence[Record]) -> None:
        """See ``ShardLog``."""
        await self._written(list(records) or [None], fence=False)
        self._partition.appends.append(list(records))
        self._partition.notify()

    async def _written(self, records: list[Record | None], *, fence: bool) -> Offset:
        base = await self._partition.write(self._token, records, fence=fence)
        while self._partition.lost_answers:
            self._partition.lost_answers -= 1
            base = await self._partition.write(self._token, [None] if fence else records, fence=False)
        return base

    async def read(self, until: Offset) -> AsyncIterator[Slice]:
        """See ``ShardLog``."""
        partition = self._partition
        for at in range(partition.first, until, SLICE_RECORDS):
            await partition.readable()
            end = min(until, at + SLICE_RECORDS)
            found = [r for r in partition.records[at - partition.first : end - partition.first] if r is not None]
            yield Slice([key for key, _ in found], [value for _, value in found], Offset(end))

    async def close(self) -> None:
        """See ``ShardLog``."""


class MemoryShardLogs:
    """See ``ShardLogs``."""

    def __init__(self) -> None:
        self.partitions: dict[ShardKey, MemoryPartition] = {}

    def partition(self, number: int, kind: ShardKind = ShardKind.GROUPS) -> MemoryPartition:
        """One partition, made when first asked for."""
        return self.partitions.setdefault(ShardKey(kind, number), MemoryPartition())

    def open(self, key: ShardKey, token: int) -> MemoryShardLog:
        """See ``ShardLogs``."""
        return MemoryShardLog(self.partition(key.number, key.kind), token)
