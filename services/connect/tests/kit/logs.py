"""The config and the status topic in memory: whole transactions, fencing by epochs, and everybody reads the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from headrace_common.core.errors import FencedWriter, HeadraceError
from headrace_connect_worker.core.encoding import decode_config, decode_status, encode
from headrace_connect_worker.core.events import Happened
from headrace_connect_worker.core.records import ConfigRecord, StatusRecord
from headrace_connect_worker.ports import ConfigRead, WriteFailed


class MemoryTopic:
    """Keys and values; readers are told."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes | None]] = []
        self.epoch = 0
        self.news = asyncio.Event()

    def append(self, records: Sequence[ConfigRecord | StatusRecord]) -> int:
        self.rows += [encode(record) for record in records]
        self.news.set()
        self.news = asyncio.Event()
        return len(self.rows) - 1

    async def read(self) -> AsyncIterator[tuple[int, Sequence[tuple[bytes, bytes | None]]]]:
        at = 0
        while True:
            news, rows = self.news, self.rows[at:]
            yield at, rows
            at += len(rows)
            if at == len(self.rows):
                await news.wait()


class MemoryEventLog:
    """Satisfies ``EventLog``; all workers share one."""

    def __init__(self) -> None:
        self.events: list[Happened] = []
        self.news = asyncio.Event()
        self.fails: HeadraceError | None = None
        self.paused = asyncio.Event()
        self.paused.set()

    async def follow(self) -> AsyncIterator[Sequence[Happened]]:
        at = 0
        while True:
            news, found = self.news, self.events[at:]
            at += len(found)
            yield found
            await news.wait()

    async def write(self, events: Sequence[Happened]) -> None:
        await self.paused.wait()
        if self.fails is not None:
            raise self.fails
        self.events += events
        self.news.set()
        self.news = asyncio.Event()

    async def close(self) -> None:
        return


class MemoryConfigLog:
    """Satisfies ``ConfigLog``, for one worker."""

    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic
        self.fail_next: WriteFailed | None = None
        self.paused = asyncio.Event()
        self.paused.set()
        self.sees = asyncio.Event()
        """While it is not set, nothing is read."""
        self.sees.set()

    async def follow(self) -> AsyncIterator[ConfigRead]:
        async for at, rows in self.topic.read():
            await self.sees.wait()
            decoded = [(at + number, decode_config(*row)) for number, row in enumerate(rows)]
            yield ConfigRead([(offset, record) for offset, record in decoded if record is not None], True)

    async def lead(self, epoch: int) -> MemoryConfigWriter:
        if epoch < self.topic.epoch:
            raise FencedWriter(f"{self.topic.epoch} is higher than {epoch}")
        self.topic.epoch = epoch
        return MemoryConfigWriter(self, epoch)

    async def close(self) -> None:
        return


class MemoryConfigWriter:
    """Satisfies ``ConfigWriter``."""

    def __init__(self, log: MemoryConfigLog, epoch: int) -> None:
        self._log = log
        self._epoch = epoch

    async def write(self, records: Sequence[ConfigRecord]) -> int:
        await self._log.paused.wait()
        if self._epoch < self._log.topic.epoch:
            raise WriteFailed("another leader is there", unknown=False)
        failure, self._log.fail_next = self._log.fail_next, None
        if failure is not None and not failure.unknown:
            raise failure
        offset = self._log.topic.append(records)
        if failure is not None:
            raise failure
        return offset

    async def close(self) -> None:
        return


class MemoryStatusLog:
    """Satisfies ``StatusLog``, for one worker."""

    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic

    async def follow(self) -> AsyncIterator[tuple[Sequence[StatusRecord], bool]]:
        async for _, rows in self.topic.read():
            decoded = [decode_status(*row) for row in rows]
            yield [record for record in decoded if record is not None], True

    async def write(self, records: Sequence[StatusRecord]) -> None:
        self.topic.append(records)

    async def close(self) -> None:
        return
