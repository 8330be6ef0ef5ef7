"""
A connector that says all the time that it is alive: a line in a file each ``EVERY_S``, and a record each ``CHUNK_S``.

Records alone would not do: a chunk costs milliseconds of CPU, and many connectors on one machine would be late by that.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from headrace_connect import Chunk, Position, Source, Split

EVERY_S: Final = 0.05
CHUNK_S: Final = 1.0


@dataclass(frozen=True)
class Settings:
    """Of one connector."""

    path: str
    """A file; each line is a time in ms since the epoch."""


class Ticks(Source[Settings]):
    """Counts up."""

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        number = int(after["next"]) if after else 0
        file = os.open(self.settings.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            while True:
                number += 1
                yield Chunk([b"%d" % number], {"next": number})
                for _ in range(round(CHUNK_S / EVERY_S)):
                    os.write(file, b"%d\n" % (time.time_ns() // 1_000_000))
                    await asyncio.sleep(EVERY_S)
        finally:
            os.close(file)
