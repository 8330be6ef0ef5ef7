"""The config topic over the SDK: read whole by every worker, written by the leader alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from headrace import aio
from headrace.aio.transactions import UnitOwner
from headrace.delivery import Delivery
from headrace.errors import WaitTimedOut
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import in_ids
from headrace_common.runtime.clock import Clock
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.following import decode_each, follow_topic
from headrace_connect_worker.core.encoding import decode_config
from headrace_connect_worker.core.encoding import encode as encode_record
from headrace_connect_worker.core.records import ConfigRecord
from headrace_connect_worker.ports import ConfigRead, WriteFailed
from headrace_streams.patience import Patience

RECORD_BYTES_MAX: Final = 8 << 20
"""Of a record: a task's splits, or a configuration."""
REQUEST_BYTES_MAX: Final = RECORD_BYTES_MAX + (1 << 20)
CLOSE_S: Final = 3.0
"""For what is not acknowledged yet when a producer is closed."""
TRANSACTION_MS: Final = 10_000


class SdkConfigLog:
    """Satisfies ``ConfigLog``."""

    def __init__(self, servers: str, topic: str, group_id: str, topics: SdkTopics, clock: Clock, call_ms: int) -> None:
        self._servers = servers
        self._topic = topic
        self._owner = f"connect-leader.{in_ids(group_id)}"
        self._topics = topics
        self._clock = clock
        self._patience = Patience(clock, call_ms)

    async def follow(self) -> AsyncIterator[ConfigRead]:
        """See ``ConfigLog``."""
        await self._ensure()
        async for read in follow_topic(self._servers, self._topic, 1, self._clock):
            yield ConfigRead(decode_each(read, decode_config, self._topic), read.at_end)

    async def _ensure(self) -> None:
        settings = {
            "cleanup.policy": "compact",
            "fencing.required": "true",
            "max.message.bytes": str(REQUEST_BYTES_MAX),
        }
        await self._patience.ask(lambda: self._topics.ensure(self._topic, 1, settings))

    async def lead(self, epoch: int) -> SdkConfigWriter:
        """See ``ConfigLog``. What an earlier leader has begun is aborted by this, and none can begin anything more."""
        await self._ensure()
        async with UnitOwner(self._servers, self._owner) as owner:
            owner_epoch = (await self._patience.ask(lambda: owner.init(claim=epoch))).epoch
        producer = aio.Producer(
            self._servers,
            transactional_id=f"{self._owner}/leader",
            owner_epoch=owner_epoch,
            transaction_timeout_ms=TRANSACTION_MS,
            max_request_size=REQUEST_BYTES_MAX,
            linger_ms=0,
        )
        try:
            await self._patience.ask(producer.init_transactions)
            await self._patience.ask(lambda: producer.fence(self._topic, 0, epoch))
        except BaseException:
            await producer.close()
            raise
        return SdkConfigWriter(producer, self._topic, self._patience)

    async def close(self) -> None:
        """See ``ConfigLog``."""


class SdkConfigWriter:
    """Satisfies ``ConfigWriter``."""

    def __init__(self, producer: aio.Producer, topic: str, patience: Patience) -> None:
        self._producer = producer
        self._topic = topic
        self._patience = patience

    async def write(self, records: Sequence[ConfigRecord]) -> int:
        """See ``ConfigWriter``."""
        assert records, "there is something to write"
        sent: list[Delivery] = []
        try:
            await self._producer.begin_transaction()
            for record in records:
                key, value = encode_record(record)
                sent.append(await self._producer.send(self._topic, value, key=key, partition=0))
            await self._producer.flush()
            offset = (await sent[-1]).offset
        except HeadraceError as error:
            with suppress(HeadraceError):
                await self._producer.abort_transaction()
            raise WriteFailed(str(error), unknown=False) from error
        try:
            await self._patience.ask(self._producer.commit_transaction)
        except HeadraceError as error:
            raise WriteFailed(str(error), unknown=True) from error
        return offset

    async def close(self) -> None:
        """See ``ConfigWriter``."""
        with suppress(WaitTimedOut):
            await self._producer.close(CLOSE_S)
