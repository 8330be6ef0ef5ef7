"""
How much of the write queue the clients of one address may fill, so that their flood leaves room for everybody else's.

The queue's own bound stops all produce streams at once. A share stops those of one address before that: they are read
again when half of what the address had there is written.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

SHARES: Final = 4
"""One address may fill this part of the queue."""


class Share:
    """What one address has in the queue, and waiting for a sync; in bytes of batches."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def has_room(self) -> bool:
        """Whether streams of the address may be read."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until streams of the address may be read."""
        await self._room.wait()

    def take(self, size: int) -> None:
        """So much was queued; what was read is never refused by this."""
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._room.clear()

    def give_back(self, size: int) -> None:
        """So much of it waits no more."""
        self._bytes -= size
        if self._bytes <= self._bytes_max // 2:
            self._room.set()


class Shares:
    """One for the broker; an address is known while it has a stream or bytes in the queue."""

    def __init__(self, queue_bytes_max: int) -> None:
        self._bytes_max = queue_bytes_max // SHARES
        self._of: WeakValueDictionary[str, Share] = WeakValueDictionary()

    def of(self, address: str) -> Share:
        """The share of an address, one for all its streams."""
        share = self._of.get(address)
        if share is None:
            share = self._of[address] = Share(self._bytes_max)
        return share
