"""A connector that says all the time that it is alive: a record each ``EVERY_S``, with its label as the key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from headrace_connect import Chunk, Position, Source, Split

EVERY_S: Final = 0.05


@dataclass(frozen=True)
class Settings:
    """Of one connector."""

    label: str
    """The key of its records."""


class Ticks(Source[Settings]):
    """Counts up."""

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        number = int(after["next"]) if after else 0
        key = self.settings.label.encode()
        while True:
            number += 1
            yield Chunk([b"%d" % number], {"next": number}, keys=[key], timestamps_ms=[time.time_ns() // 1_000_000])
            await asyncio.sleep(EVERY_S)
