"""
How much of what was read a source's task holds: chunks that wait, and those of the transaction that is open.

How large a chunk is shows when it is there. So a read that is under way counts with what the same split gave last, and
where that was nothing, or nothing has come of any read for long, with nothing: a source that waits for news keeps no
other waiting. What comes of it all the same is let in.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace_common.runtime.clock import limit_ms

FIRST_BYTES: Final = 1 << 20
"""What the first chunk of a split counts while it is read."""
QUIET_MS: Final = 1_000.0


class Room:
    """Of one task. Sizes are in bytes."""

    def __init__(self, bytes_max: int, quiet_ms: float = QUIET_MS, first_bytes: int = FIRST_BYTES) -> None:
        self._bytes_max = bytes_max
        self._quiet_ms = quiet_ms
        self._first_bytes = first_bytes
        self._waiting = 0
        self._open = 0
        self._last: dict[str, int] = {}
        """By split: what it gave last."""
        self._reading: dict[str, int] = {}
        """By split that is read: what is expected of it."""
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    async def enter(self, split: str) -> None:
        """Waits until a read of ``split`` may begin. Where nothing else waits or is read, it always may."""
        expected = self._last.get(split, self._first_bytes)
        async with self._turn:
            while not self._fits(expected):
                self._news.clear()
                try:
                    async with limit_ms(self._quiet_ms):
                        await self._news.wait()
                except TimeoutError:
                    self._reading = dict.fromkeys(self._reading, 0)
            self._reading[split] = expected

    def _fits(self, expected: int) -> bool:
        held = self._waiting + sum(self._reading.values())
        return not held or held + self._open + expected <= self._bytes_max

    def arrive(self, split: str, size: int) -> None:
        """A read has given a chunk; it waits."""
        self._last[split] = size
        self._waiting += size
        self.leave(split)

    def leave(self, split: str) -> None:
        """A read has ended."""
        self._reading.pop(split, None)
        self._news.set()

    def take(self, size: int) -> None:
        """A chunk waits no more; it is of the transaction that is open."""
        self._waiting -= size
        self._open += size
        self._news.set()

    def commit(self) -> None:
        """The transaction is over."""
        self._open = 0
        self._news.set()

    def clear(self) -> None:
        """All reads are halted, and what waited is dropped."""
        self._waiting = 0
        self._reading.clear()
        self._news.set()
