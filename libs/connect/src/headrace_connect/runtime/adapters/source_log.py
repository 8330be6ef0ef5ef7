"""A source's way into a cluster: a producer under the connector's owner, and the offset topic."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from headrace import aio
from headrace.aio.transactions import UnitOwner
from headrace.delivery import Deliveries, Delivery
from headrace.errors import TransactionAbortable, WaitTimedOut
from headrace.records import TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_connect.core.names import owner_of, snapshot_owner, transactional_id
from headrace_connect.core.positions import encode_position
from headrace_connect.plugin import Position, Split
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.ports import Ints, Outgoing, SourceWriter
from headrace_streams.patience import Patience

OFFSET_PARTITIONS: Final = 25
REQUEST_BYTES_MAX: Final = 16 << 20
"""What brokers take; how much a topic takes, it says itself."""
_POLL_MS: Final = 500.0
_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Whose task it is, and where it writes."""

    connector: str
    task: int
    generation: int
    """Of the connector's tasks; a higher one fences lower ones."""
    offset_topic: str
    makes_topics: bool
    exactly_once: bool
    timeout_ms: int
    """A transaction may be open for so long."""


class SdkSourceLog:
    """Satisfies ``SourceLog``."""

    def __init__(self, config: RunConfig, place: SourcePlace, topics: SdkTopics, clock: Clock) -> None:
        self._config = config
        self._place = place
        self._topics = topics
        self._clock = clock
        self._patience = Patience(clock, config.default_api_timeout_ms)

    @property
    def offset_topic(self) -> str:
        """Where positions are."""
        return self._place.offset_topic

    async def claim(self) -> SourceWriter:
        """See ``SourceLog``."""
        await self._topics.ensure(self._place.offset_topic, OFFSET_PARTITIONS, {"cleanup.policy": "compact"})
        servers, place = self._config.bootstrap_servers, self._place
        if not place.exactly_once:
            return _Writer(aio.Producer(servers, max_request_size=REQUEST_BYTES_MAX), place, self._topics, None)
        async with UnitOwner(servers, owner_of(self._config.group_id, place.connector)) as owner:
            epoch = (await self._patience.ask(lambda: owner.init(claim=place.generation))).epoch
        producer = aio.Producer(
            servers,
            transactional_id=transactional_id(self._config.group_id, place.connector, place.task),
            owner_epoch=epoch,
            transaction_timeout_ms=place.timeout_ms,
            max_request_size=REQUEST_BYTES_MAX,
        )
        try:
            await self._patience.ask(producer.init_transactions)
        except BaseException:
            await producer.close()
            raise
        return _Writer(producer, place, self._topics, self._patience)

    async def locate(self, splits: Collection[str]) -> Mapping[str, Position]:
        """See ``SourceLog``."""
        topic = self._place.offset_topic
        servers = self._config.bootstrap_servers
        partitions = [TopicPartition(topic, number) for number in range(await self._topics.partitions(topic))]
        wanted = {_key(self._place.connector, split): split for split in splits}
        found: dict[str, Position] = {}
        async with aio.Consumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
            await consumer.assign(partitions)
            starts, ends = await asyncio.gather(consumer.beginning_offsets(partitions), self._ends(partitions))
            left = {partition for partition in partitions if starts[partition] < ends[partition]}
            consumer.seek_to_beginning(*partitions)
            until_ms = self._clock.monotonic_ms() + self._config.default_api_timeout_ms
            while left:
                for table in await consumer.poll_batches(_POLL_MS, _ROWS):
                    _take(table.table, wanted, found)
                    if table.next_offset >= ends[TopicPartition(table.topic, table.partition)]:
                        left.discard(TopicPartition(table.topic, table.partition))
                if left and self._clock.monotonic_ms() >= until_ms:
                    raise WaitTimedOut(
                        f"{min(left)} could not be read to its end within "
                        f"{self._config.default_api_timeout_ms} ms: a transaction in it may be open for long; see "
                        "`headrace txn list`, or give the connector an offsets.storage.topic of its own"
                    )
        return found

    async def _ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """With what is not decided yet: it may be of who had the task before."""
        servers = self._config.bootstrap_servers
        async with aio.Consumer(bootstrap_servers=servers, isolation_level="read_uncommitted") as undecided:
            await undecided.assign(partitions)
            return await undecided.end_offsets(partitions)

    async def close(self) -> None:
        """See ``SourceLog``."""


class SdkUnits:
    """Satisfies ``Units``."""

    def __init__(self, config: RunConfig, connector: str, log: SdkSourceLog, clock: Clock) -> None:
        """
        Args:
            log: of the connector; reads its positions.
        """
        self.owner = snapshot_owner(config.group_id, connector)
        self.offset_topic = log.offset_topic
        self._config = config
        self._log = log
        self._clock = clock

    async def fence(self) -> None:
        """See ``Units``."""
        patience = Patience(self._clock, self._config.default_api_timeout_ms)
        async with UnitOwner(self._config.bootstrap_servers, self.owner) as owner:
            await patience.ask(owner.init)

    async def position(self, split: Split) -> Position | None:
        """See ``Units``."""
        return (await self._log.locate([split.id])).get(split.id)


class _Writer:
    """Satisfies ``SourceWriter``."""

    def __init__(
        self, producer: aio.Producer, place: SourcePlace, topics: SdkTopics, patience: Patience | None
    ) -> None:
        """
        Args:
            patience: None: there are no transactions.
        """
        self._producer = producer
        self._place = place
        self._topics = topics
        self._patience = patience
        self._sent: list[Deliveries | Delivery] = []
        self._positions: dict[str, Position] = {}

    async def begin(self) -> None:
        """See ``SourceWriter``."""
        if self._patience is not None:
            await self._producer.begin_transaction()

    async def send(self, records: Outgoing) -> _Sent:
        """See ``SourceWriter``."""
        if self._place.makes_topics:
            await self._topics.ensure(records.topic)
        sent = await self._producer.send_table(records.topic, records.table)
        if self._patience is None:
            self._sent.append(sent)
        return _Sent(self._producer, sent)

    async def send_positions(self, positions: Mapping[str, Position]) -> None:
        """
        See ``SourceWriter``. Without transactions they wait for the records.

        Raises:
            InvalidConfig: a position is no JSON, or too large.
        """
        if self._patience is None:
            self._positions |= positions
            return
        for split, position in positions.items():
            key, value = position_record(self._place.connector, split, position)
            await self._producer.send(self._place.offset_topic, value, key=key)

    async def commit(self) -> None:
        """See ``SourceWriter``."""
        if self._patience is not None:
            await self._producer.commit_transaction()
            return
        await self._deliver()
        for split, position in self._positions.items():
            key, value = position_record(self._place.connector, split, position)
            self._sent.append(await self._producer.send(self._place.offset_topic, value, key=key))
        self._positions = {}
        await self._deliver()

    async def _deliver(self) -> None:
        await self._producer.flush()
        sent, self._sent = self._sent, []
        for one in sent:
            failure = one.failure() if isinstance(one, Deliveries) else None
            if failure is not None:
                raise failure
            if isinstance(one, Delivery):
                await one

    async def abort(self) -> None:
        """See ``SourceWriter``."""
        self._sent, self._positions = [], {}
        if self._patience is not None:
            await self._patience.ask(self._producer.abort_transaction)

    async def close(self) -> None:
        """See ``SourceWriter``."""
        await self._producer.close()


class _Sent:
    """Satisfies ``Sent``."""

    def __init__(self, producer: aio.Producer, deliveries: Deliveries) -> None:
        self._producer = producer
        self._deliveries = deliveries

    async def places(self) -> tuple[Ints, Ints]:
        """
        See ``Sent``.

        Raises:
            TransactionAbortable: a record is written, and nobody says where.
        """
        await self._producer.flush()
        spans = self._deliveries.spans()
        if any(span.offset < 0 for span in spans):
            raise TransactionAbortable("records were written, and the broker does not say at which offsets")
        counts = [span.records for span in spans]
        partitions = np.repeat(np.array([span.partition for span in spans], np.int64), counts)
        none = np.empty(0, np.int64)
        offsets = np.concatenate([none, *(np.arange(span.offset, span.offset + span.records) for span in spans)])
        return partitions, offsets


def position_record(connector: str, split: str, position: Position) -> tuple[bytes, bytes]:
    """
    Key and value of a record of the offset topic.

    Raises:
        InvalidConfig: the position is no JSON, or too large.
    """
    return _key(connector, split), encode_position(split, position)


def _key(connector: str, split: str) -> bytes:
    """As Kafka Connect has it: the connector, and what it says of the part of its source."""
    return orjson.dumps([connector, {"split": split}])


def _take(table: Any, wanted: Mapping[bytes, str], found: dict[str, Position]) -> None:
    """The newest position of each split; a null value takes it away."""
    keys, values = table.column("key").to_pylist(), table.column("value").to_pylist()
    for key, value in zip(keys, values, strict=True):
        split = wanted.get(key)
        if split is None:
            continue
        if value is None:
            found.pop(split, None)
        else:
            found[split] = orjson.loads(value)
