"""The status topic over the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from headrace import aio
from headrace.errors import WaitTimedOut
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.config_log import CLOSE_S, RECORD_BYTES_MAX
from headrace_connect_worker.adapters.following import follow_topic
from headrace_connect_worker.core.encoding import UnreadableRecord, decode_status, encode
from headrace_connect_worker.core.records import StatusRecord
from headrace_streams.patience import Patience

_SETTINGS: Final = {"cleanup.policy": "compact", "max.message.bytes": str(RECORD_BYTES_MAX + (1 << 20))}
_log = logger(__name__)


class SdkStatusLog:
    """Satisfies ``StatusLog``."""

    def __init__(
        self, servers: str, topic: str, partitions: int, topics: SdkTopics, clock: Clock, call_ms: int
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._partitions = partitions
        self._topics = topics
        self._clock = clock
        self._patience = Patience(clock, call_ms)
        self._producer: aio.Producer | None = None

    async def follow(self) -> AsyncIterator[tuple[Sequence[StatusRecord], bool]]:
        """See ``StatusLog``."""
        await self._ensure()
        partitions = max(1, await self._patience.ask(lambda: self._topics.partitions(self._topic)))
        async for read in follow_topic(self._servers, self._topic, partitions, self._clock):
            records: list[StatusRecord] = []
            for offset, key, value in read.records:
                try:
                    record = decode_status(key, value)
                except UnreadableRecord as error:
                    _log.warning("offset %d of %s is skipped: %s", offset, self._topic, error)
                    continue
                if record is not None:
                    records.append(record)
            yield records, read.at_end

    async def _ensure(self) -> None:
        await self._patience.ask(lambda: self._topics.ensure(self._topic, self._partitions, _SETTINGS))

    async def write(self, records: Sequence[StatusRecord]) -> None:
        """See ``StatusLog``."""
        if self._producer is None:
            await self._ensure()
            size = RECORD_BYTES_MAX + (1 << 20)
            self._producer = aio.Producer(self._servers, linger_ms=0, max_request_size=size)
        sent = []
        for record in records:
            key, value = encode(record)
            sent.append(await self._producer.send(self._topic, value, key=key))
        await self._producer.flush()
        for delivery in sent:
            await delivery

    async def close(self) -> None:
        """See ``StatusLog``."""
        if self._producer is not None:
            with suppress(WaitTimedOut):  # what is not there is said again by who has the work next
                await self._producer.close(CLOSE_S)
