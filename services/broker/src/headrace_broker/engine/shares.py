"""
How much one caller may take of what all clients of a broker share, so that its flood leaves room for everybody else's.

A caller is a principal, or the address of who has shown no credential. Of the write queue: the queue's own bound stops
all produce streams at once, and a share those of one caller before that; they are read again when half of what the
caller had there is written. Of the memory of answers to fetches: towards its share its answers shrink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

SHARES: Final = 4
"""One caller may fill this part of the queue, and of the memory of answers."""


class Share:
    """What one caller has in the queue, and waiting for a sync; in bytes of batches."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def has_room(self) -> bool:
        """Whether its streams may be read."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until its streams may be read."""
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
    """One for the broker; a caller is known while it has a stream or bytes in the queue."""

    def __init__(self, queue_bytes_max: int) -> None:
        self._bytes_max = queue_bytes_max // SHARES
        self._of: WeakValueDictionary[str, Share] = WeakValueDictionary()

    def of(self, caller: str) -> Share:
        """Its share, one for all its streams."""
        share = self._of.get(caller)
        if share is None:
            share = self._of[caller] = Share(self._bytes_max)
        return share


class Answers:
    """Bytes of batches in answers that the streams of one caller have not taken yet."""

    __slots__ = ("__weakref__", "size")

    def __init__(self) -> None:
        self.size = 0


class AnswerShares:
    """
    One for the broker: the bytes in all answers that are on their way, and whose they are.

    Towards ``bytes_max`` everybody's answers shrink; towards a quarter of it those of one caller do.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._of: WeakValueDictionary[str, Answers] = WeakValueDictionary()
        self.all = Answers()

    def of(self, caller: str) -> Answers:
        """What its streams have together."""
        own = self._of.get(caller)
        if own is None:
            own = self._of[caller] = Answers()
        return own

    def room(self, own: Answers | None) -> int:
        """How large the next answer may be; None: it is nobody's who has a share."""
        spare = max(self._bytes_max - self.all.size, 0) // 8
        return spare if own is None else min(spare, max(self._bytes_max // SHARES - own.size, 0) // 2)

    @contextmanager
    def sending(self, own: Answers | None, size: int) -> Iterator[None]:
        """An answer of so many bytes is on its way while the block lasts."""
        held = [self.all] if own is None else [self.all, own]
        for one in held:
            one.size += size
        try:
            yield
        finally:
            for one in held:
                one.size -= size
