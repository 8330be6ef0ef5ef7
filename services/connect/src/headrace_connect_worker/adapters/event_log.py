"""The topic of events over the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from headrace import aio
from headrace.errors import WaitTimedOut
from headrace_common.runtime.clock import Clock
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.config_log import CLOSE_S
from headrace_connect_worker.adapters.following import follow_topic
from headrace_connect_worker.core.events import Happened, decode, encode
from headrace_streams.patience import Patience

_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * 3_600_000)}


class SdkEventLog:
    """Satisfies ``EventLog``."""

    def __init__(self, servers: str, topic: str, group: str, topics: SdkTopics, clock: Clock, call_ms: int) -> None:
        self._servers = servers
        self._topic = topic
        self._group = group
        self._topics = topics
        self._clock = clock
        self._patience = Patience(clock, call_ms)
        self._producer: aio.Producer | None = None

    async def _ensure(self) -> None:
        await self._patience.ask(lambda: self._topics.ensure(self._topic, 1, _SETTINGS))

    async def follow(self) -> AsyncIterator[Sequence[Happened]]:
        """See ``EventLog``."""
        await self._ensure()
        partitions = max(1, await self._patience.ask(lambda: self._topics.partitions(self._topic)))
        async for read in follow_topic(self._servers, self._topic, partitions, self._clock):
            decoded = (decode(value, self._group) for _, _, value in read.records)
            yield [event for event in decoded if event is not None]

    async def write(self, events: Sequence[Happened]) -> None:
        """See ``EventLog``."""
        if self._producer is None:
            await self._ensure()
            self._producer = aio.Producer(self._servers, linger_ms=0)
        sent = []
        for event in events:
            key, value = encode(event, self._group)
            sent.append(await self._producer.send(self._topic, value, key=key))
        await self._producer.flush()
        for delivery in sent:
            await delivery

    async def close(self) -> None:
        """See ``EventLog``."""
        if self._producer is not None:
            with suppress(WaitTimedOut):
                await self._producer.close(CLOSE_S)
