"""The status topic over the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.config_log import REQUEST_BYTES_MAX
from headrace_connect_worker.adapters.following import decode_each
from headrace_connect_worker.adapters.keyed_topic import KeyedTopic
from headrace_connect_worker.core.encoding import decode_status, encode
from headrace_connect_worker.core.records import StatusRecord

_SETTINGS: Final = {"cleanup.policy": "compact", "max.message.bytes": str(REQUEST_BYTES_MAX)}


class SdkStatusLog:
    """Satisfies ``StatusLog``."""

    def __init__(
        self, servers: str, topic: str, partitions: int, topics: SdkTopics, clock: Clock, call_ms: int
    ) -> None:
        self._name = topic
        self._topic = KeyedTopic(servers, topic, partitions, _SETTINGS, topics, clock, call_ms)

    async def follow(self) -> AsyncIterator[tuple[Sequence[StatusRecord], bool]]:
        """See ``StatusLog``."""
        async for read in self._topic.follow():
            found: list[tuple[int, StatusRecord]] = decode_each(read, decode_status, self._name)
            yield [record for _, record in found], read.at_end

    async def write(self, records: Sequence[StatusRecord]) -> None:
        """See ``StatusLog``."""
        await self._topic.write(map(encode, records))

    async def close(self) -> None:
        """See ``StatusLog``."""
        await self._topic.close()
