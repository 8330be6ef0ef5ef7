"""The topic of events over the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.keyed_topic import KeyedTopic
from headrace_connect_worker.core.events import Happened, decode, encode

_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * 3_600_000)}


class SdkEventLog:
    """Satisfies ``EventLog``."""

    def __init__(self, servers: str, topic: str, group: str, topics: SdkTopics, clock: Clock, call_ms: int) -> None:
        self._group = group
        self._topic = KeyedTopic(servers, topic, 1, _SETTINGS, topics, clock, call_ms)

    async def follow(self) -> AsyncIterator[Sequence[Happened]]:
        """See ``EventLog``."""
        async for read in self._topic.follow():
            decoded = (decode(value, self._group) for _, _, value in read.records)
            yield [event for event in decoded if event is not None]

    async def write(self, events: Sequence[Happened]) -> None:
        """See ``EventLog``."""
        await self._topic.write(encode(event, self._group) for event in events)

    async def close(self) -> None:
        """See ``EventLog``."""
        await self._topic.close()
