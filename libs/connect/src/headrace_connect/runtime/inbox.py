"""What reaches a task from outside its loop: chunks of its splits, and what it is asked to do."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from headrace_common.runtime.clock import limit_ms

CHUNKS_MAX: Final = 2
"""So many chunks wait in a task, and one in each split that is read."""


class Inbox:
    """
    One task takes from it. What is asked comes first; chunks wait outside while there is no room.
    """

    def __init__(self) -> None:
        self._asked: deque[Any] = deque()
        self._chunks: deque[Any] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def ask(self, item: Any) -> None:
        """Never waits."""
        self._asked.append(item)
        self._news.set()

    async def put(self, chunk: Any) -> None:
        """Waits for room."""
        while len(self._chunks) >= CHUNKS_MAX:
            self._room.clear()
            await self._room.wait()
        self._chunks.append(chunk)
        self._news.set()

    def clear(self) -> None:
        """Drop the chunks."""
        self._chunks.clear()
        self._room.set()

    async def take(self, timeout_ms: float | None) -> Any | None:
        """The next item; None: there was none in time."""
        try:
            async with limit_ms(timeout_ms):
                while not self._asked and not self._chunks:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None
        if self._asked:
            return self._asked.popleft()
        self._room.set()
        return self._chunks.popleft()
