"""Sources that a configuration names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

from headrace_connect import Chunk, Position, RetriableError, Split
from headrace_connect.plugin import NoSettings, Source


class Slow(Source[NoSettings]):
    """Ten numbers, one each two seconds; a transaction of the source ends behind the last one."""

    reads: ClassVar[int] = 0

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        type(self).reads += 1
        for at in range(after["at"] if after else 0, 10):
            await asyncio.sleep(2)
            yield Chunk([str(at)], {"at": at + 1}, boundary=at == 9)
        while True:
            yield Chunk([], {"at": 10}, boundary=True, drained=True)
            await asyncio.sleep(1)

    def splits(self) -> list[Split]:
        return [Split("all")]


class Away(Slow):
    """Its system does not answer."""

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        type(self).reads += 1
        raise RetriableError("nobody answers")
        yield


class Wide(Slow):
    """Its position is a text of ``size`` bytes, as it is written."""

    size: ClassVar[int] = 0

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        type(self).reads += 1
        yield Chunk(["one"], {"at": "é" + "x" * (self.size - 11)})
        while True:
            yield Chunk([], {"at": "é" + "x" * (self.size - 11)}, drained=True)
            await asyncio.sleep(1)
