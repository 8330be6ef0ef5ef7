"""A topic of keys and values over the SDK, made when it is first used: what the logs of statuses and events share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress

from headrace import aio
from headrace.errors import WaitTimedOut
from headrace_common.runtime.clock import Clock
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.config_log import CLOSE_S, REQUEST_BYTES_MAX
from headrace_connect_worker.adapters.following import RawRead, follow_topic
from headrace_streams.patience import Patience


class KeyedTopic:
    """Many may write it, in no transaction; one reader."""

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        settings: Mapping[str, str],
        topics: SdkTopics,
        clock: Clock,
        call_ms: int,
    ) -> None:
        """
        Args:
            partitions, settings: where it is not there.
        """
        self._servers = servers
        self._topic = topic
        self._partitions = partitions
        self._settings = settings
        self._topics = topics
        self._clock = clock
        self._patience = Patience(clock, call_ms)
        self._producer: aio.Producer | None = None

    async def _ensure(self) -> None:
        await self._patience.ask(lambda: self._topics.ensure(self._topic, self._partitions, self._settings))

    async def follow(self) -> AsyncIterator[RawRead]:
        """See ``follow_topic``."""
        await self._ensure()
        partitions = max(1, await self._patience.ask(lambda: self._topics.partitions(self._topic)))
        async for read in follow_topic(self._servers, self._topic, partitions, self._clock):
            yield read

    async def write(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """
        All of them are acknowledged when it returns.

        Raises:
            HeadraceError: some may be there.
        """
        if self._producer is None:
            await self._ensure()
            self._producer = aio.Producer(self._servers, linger_ms=0, max_request_size=REQUEST_BYTES_MAX)
        sent = [await self._producer.send(self._topic, value, key=key) for key, value in rows]
        await self._producer.flush()
        for delivery in sent:
            await delivery

    async def close(self) -> None:
        """What is not acknowledged by then is given up: who has the work next says it again."""
        if self._producer is not None:
            with suppress(WaitTimedOut):
                await self._producer.close(CLOSE_S)
