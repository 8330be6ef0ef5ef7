"""A sink's way into a cluster: a member of its group, and its dead letters."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

from headrace import aio
from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import UnknownTopicOrPartition
from headrace_common.runtime.clock import Clock
from headrace_connect.core.names import dead_letters_id, group_of
from headrace_connect.runtime.adapters.source_log import REQUEST_BYTES_MAX
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.ports import GroupListener, Outgoing
from headrace_streams.patience import Patience

FETCH_BYTES_MAX: Final = 16 << 20
"""Of records that are fetched ahead, per broker: as they are in its log, and no less than one batch."""
_log: Final = logging.getLogger(__name__)


class SdkGroup:
    """Satisfies ``GroupReader``."""

    def __init__(
        self,
        config: RunConfig,
        connector: str,
        topics: Sequence[str],
        pattern: str,
        reset: Literal["earliest", "latest", "none"],
    ) -> None:
        self._topics = topics
        self._pattern = pattern or None
        self._listener: GroupListener | None = None
        self._paused = False
        self._consumer: aio.Consumer[Any, Any] = aio.Consumer(
            bootstrap_servers=config.bootstrap_servers,
            group_id=group_of(connector),
            group_protocol="consumer",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset=reset,
            default_api_timeout_ms=config.default_api_timeout_ms,
            fetch_max_bytes=FETCH_BYTES_MAX,
        )

    async def join(self, listener: GroupListener) -> None:
        """See ``GroupReader``."""
        self._listener = listener
        await self._subscribe()

    async def _subscribe(self) -> None:
        if self._pattern:
            await self._subscribe_to((), self._pattern)
            return
        try:
            await self._subscribe_to(self._topics, None)
        except UnknownTopicOrPartition as error:
            _log.warning("%s; it is read when it is there, and the other topics meanwhile", error)
            await self._subscribe_to((), any_of(self._topics))

    async def _subscribe_to(self, topics: Sequence[str], pattern: str | None) -> None:
        assert self._listener is not None, "it was told who listens"
        await self._consumer.subscribe(
            topics,
            pattern=pattern,
            on_assign=self._on_assign,
            on_revoke=self._listener.on_revoke,
            on_lost=self._listener.on_lost,
        )

    async def _on_assign(self, partitions: Collection[TopicPartition]) -> None:
        assert self._listener is not None, "it has joined"
        if self._paused and partitions:
            self._consumer.pause(*partitions)
        if partitions:
            await self._listener.on_assign(partitions, self._consumer.group_metadata().generation)

    async def rejoin(self) -> None:
        """See ``GroupReader``."""
        await self._consumer.unsubscribe()
        await self._subscribe()

    async def poll(self, timeout_ms: float, rows_max: int, bytes_max: int) -> Sequence[PartitionTable]:
        """See ``GroupReader``."""
        return await self._consumer.poll_batches(timeout_ms, rows_max, bytes_max)

    async def lags(self) -> Mapping[TopicPartition, int]:
        """See ``GroupReader``."""
        return await self._consumer.lag()

    def pause(self, paused: bool) -> None:
        """See ``GroupReader``."""
        if paused is self._paused:
            return
        self._paused = paused
        if not self._consumer.assignment():
            return
        if paused:
            self._consumer.pause()
        else:
            self._consumer.resume()

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """See ``GroupReader``."""
        for partition, position in positions.items():
            self._consumer.seek(partition, position)

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """See ``GroupReader``."""
        await self._consumer.commit(dict[Any, Any](positions))

    async def close(self) -> None:
        """See ``GroupReader``."""
        await self._consumer.close()


def any_of(topics: Sequence[str]) -> str:
    """A pattern for these topics alone; of theirs, only the dot means something else in one."""
    return "|".join(topic.replace(".", "[.]") for topic in topics)


class SdkDeadLetters:
    """Satisfies ``DeadLetters``."""

    def __init__(self, config: RunConfig, connector: str, task: int, topics: SdkTopics, clock: Clock) -> None:
        servers = config.bootstrap_servers
        self._topics = topics
        self._patience = Patience(clock, config.default_api_timeout_ms)
        self._transactional = aio.Producer(
            servers,
            transactional_id=dead_letters_id(config.group_id, connector, task),
            transaction_timeout_ms=config.transaction_timeout_ms,
            max_request_size=REQUEST_BYTES_MAX,
        )
        self._plain = aio.Producer(servers, max_request_size=REQUEST_BYTES_MAX)

    async def undecided(self) -> bytes | None:
        """See ``DeadLetters``."""
        token = await self._patience.ask(self._transactional.init_transactions)
        return None if token is None else bytes(token)

    async def prepare(self, records: Outgoing) -> bytes:
        """See ``DeadLetters``."""
        await self._topics.ensure(records.topic)
        await self._transactional.begin_transaction()
        try:
            await self._transactional.send_table(records.topic, records.table)
            return bytes(await self._patience.ask(self._transactional.prepare_transaction))
        except Exception:
            await self._patience.ask(self._transactional.abort_transaction)
            raise

    async def decide(self, token: bytes, *, commit: bool) -> None:
        """See ``DeadLetters``."""
        producer = self._transactional
        decide = producer.commit_prepared if commit else producer.abort_prepared
        await self._patience.ask(lambda: decide(token))

    async def send(self, records: Outgoing) -> None:
        """See ``DeadLetters``."""
        await self._topics.ensure(records.topic)
        sent = await self._plain.send_table(records.topic, records.table)
        await self._plain.flush()
        failure = sent.failure()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """See ``DeadLetters``."""
        await self._transactional.close()
        await self._plain.close()
