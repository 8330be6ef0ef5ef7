"""Topics, readers and the writer of a worker, on the clients for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace import aio
from headrace.admin_types import NewTopic
from headrace.delivery import Deliveries
from headrace.errors import PositionOutOfRange
from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import HeadraceError, InvalidConfig, Then, TopicAlreadyExists, UnknownTopicOrPartition
from headrace_common.runtime.clock import Clock
from headrace_streams.config import StreamsConfig
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.changelog import TOPIC_BYTES_MAX
from headrace_streams.ports import InternalTopic, Positions, TopicFacts

_RETRY_MS: Final = 100.0
_NEVER: Final = "-1"
_PARTITION: Final = "partition"


class SdkTopics:
    """Satisfies ``Topics``."""

    def __init__(self, admin: aio.AdminClient, config: StreamsConfig) -> None:
        self._admin = admin
        self._config = config

    async def find(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        found = {}
        for name in names:
            try:
                topic = await self._admin.describe_topic(name)
            except UnknownTopicOrPartition:
                continue
            found[name] = TopicFacts(topic.topic_id.hex(), len(topic.partitions))
        return found

    async def make(self, topics: Sequence[InternalTopic]) -> dict[str, TopicFacts]:
        found = await self.find([topic.name for topic in topics])
        missing = [topic for topic in topics if topic.name not in found]
        if missing:
            made = await self._admin.create_topics([self._new(topic) for topic in missing])
            for result in made.values():
                if isinstance(result, HeadraceError) and not isinstance(result, TopicAlreadyExists):
                    raise result
            found |= await self.find([topic.name for topic in missing])
        return found

    def _new(self, topic: InternalTopic) -> NewTopic:
        configs = {"retention.ms": _NEVER, "retention.bytes": _NEVER}
        if topic.compacted:
            configs |= {
                "cleanup.policy": "compact",
                "max.message.bytes": str(TOPIC_BYTES_MAX),
                "delete.retention.ms": str(self._config.delete_retention_ms),
            }
        return NewTopic(topic.name, topic.partitions, None, configs)

    async def trim(self, positions: Positions) -> None:
        await self._admin.delete_records({(tp.topic, tp.partition): offset for tp, offset in positions.items()})


class SdkReader:
    """Satisfies ``Reader``."""

    def __init__(
        self, consumer: aio.Consumer[Any, Any], resets: list[Any], undecided: aio.Consumer[Any, Any] | None = None
    ) -> None:
        """
        Args:
            resets: gets what the consumer's ``on_position_reset`` is told.
            undecided: reads what is not decided too, so its ends are high watermarks.
        """
        self._consumer = consumer
        self._resets = resets
        self._undecided = undecided

    async def assign(self, positions: Positions) -> None:
        await self._consumer.assign(list(positions))
        for tp, offset in positions.items():
            if offset >= 0:
                self._consumer.seek(tp, offset)
            else:
                self._consumer.seek_to_beginning(tp)

    async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        tables = await self._consumer.poll_batches(timeout_ms, max_rows)
        if self._resets:  # what was just read comes from behind the gap
            raise PositionOutOfRange(
                f"{self._resets[0]}. Keep records for longer than the app may stand still; an app without state goes "
                "on after `headrace group reset`, one with state begins anew under another name"
            )
        return tables

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        found = await self._consumer.committed(partitions)
        return {tp: None if at is None else at.offset for tp, at in found.items()}

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        assert self._undecided is not None, "the reader of changelogs has it"
        return await self._undecided.end_offsets(partitions)

    async def close(self) -> None:
        await self._consumer.close()
        if self._undecided is not None:
            await self._undecided.close()


class _Sent:
    """Satisfies ``Sent``."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def end(self) -> int:
        return self._deliveries[-1].result(0).offset + 1


class SdkWriter:
    """Satisfies ``Writer``: one transactional producer."""

    def __init__(self, producer: aio.Producer, group_id: str, config: StreamsConfig, clock: Clock) -> None:
        self._producer = producer
        self._group_id = group_id
        self._limit_ms = config.default_api_timeout_ms
        self._clock = clock

    async def start(self) -> None:
        prepared = await self._producer.init_transactions()
        if prepared is not None:
            raise InvalidConfig(
                f"the transactional id {self._group_id} has a prepared transaction, so another program uses it; "
                "give the app another name"
            )

    async def begin(self) -> None:
        await self._producer.begin_transaction()

    async def send(self, output: Output) -> _Sent:
        table = output.records
        count = table.num_rows
        if output.partition is not None:
            table = table.append_column(_PARTITION, pa.array([output.partition] * count, pa.int32()))
        if output.headers:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            pairs = [{"key": name, "value": value} for name, value in output.headers]
            table = table.append_column("headers", pa.array([pairs] * count, kind))
        return _Sent(await self._producer.send_table(output.topic, table))

    async def commit(self, positions: Positions) -> None:
        if positions:
            await self._producer.send_offsets_to_transaction(dict[Any, Any](positions), self._group_id)
        await self._until_known(self._producer.commit_transaction)

    async def abort(self) -> None:
        await self._until_known(self._producer.abort_transaction)

    async def _until_known(self, call: Callable[[], Awaitable[object]]) -> None:
        """Ask again while the verdict is not known."""
        until_ms = self._clock.monotonic_ms() + self._limit_ms
        while True:
            try:
                await call()
                return
            except HeadraceError as error:
                if error.then != Then.RETRY or self._clock.monotonic_ms() >= until_ms:
                    raise
            await self._clock.sleep_ms(_RETRY_MS)

    async def close(self) -> None:
        await self._producer.close()
