"""Many partitions read by one client: of those that wait for news, one polls for all."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from headrace.records import TopicPartition
from headrace_connect.connectors.copying.port import Fetched, Moved, Recreated


class Polled(ABC):
    """The part of ``SourceCluster`` that reads. For one event loop."""

    def __init__(self) -> None:
        self.starts: dict[TopicPartition, int | None] = {}
        """Sought, and not known to the client yet; None: at the first record that there is."""
        self.failed: dict[TopicPartition, BaseException] = {}
        """What ``take`` raises, once, behind what was read before. Meanwhile nothing more may be read of it."""
        self._polling = False
        self._news = asyncio.Event()

    def seek(self, at: TopicPartition, offset: int | None) -> None:
        """See ``SourceCluster``."""
        self.drop(at)
        self.failed.pop(at, None)
        self.starts[at] = offset

    async def take(self, at: TopicPartition) -> Fetched:
        """See ``SourceCluster``."""
        while True:
            fetched = self.pop(at)
            if fetched is not None:
                return fetched
            if at in self.failed:
                raise self._told(at, self.failed.pop(at))
            if self._polling:
                await self._news.wait()
                continue
            self._polling = True
            try:
                await self.poll()
            finally:
                self._polling = False
                self._news.set()
                self._news = asyncio.Event()

    def _told(self, at: TopicPartition, failed: BaseException) -> BaseException:
        """Not before it is told: else what comes behind a gap would be taken first."""
        match failed:
            case Moved(offset=offset):
                self.starts[at] = offset
            case Recreated():
                self.starts[at] = None
        return failed

    @abstractmethod
    def drop(self, at: TopicPartition) -> None:
        """Forget what was read of it and not taken."""

    @abstractmethod
    def pop(self, at: TopicPartition) -> Fetched | None:
        """What was read of it, if anything."""

    @abstractmethod
    async def poll(self) -> None:
        """Seek what is in ``starts``, and read whatever is there, waiting for a moment. Failures go into ``failed``."""
