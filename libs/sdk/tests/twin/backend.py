"""The twin of a cluster behind the SDK's transport, whose leaders, logs and answers a test steers by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from libs.sdk.tests.twin.memory import MemoryCluster

from headrace import aio
from headrace.consumer import Consumer
from headrace.log_watch import LogWatch
from headrace.producer import Producer
from headrace.range_reader import RangeReader

if TYPE_CHECKING:
    from headrace.setting_types import ConsumerSettingsDict, ProducerSettingsDict, ReadingSettingsDict


class MemoryBackend:
    """Topics in memory, and clients on them. Clients are to be closed by the test."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(brokers=1)
        """To move leaders, trim, and make requests fail; this part is not a stable interface."""

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """A new topic."""
        self.cluster.create_topic(name, partitions)

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values of a partition, in order."""
        return self.cluster.values(topic, partition)

    def producer(self, **settings: Unpack[ProducerSettingsDict]) -> Producer:
        """A producer on these topics."""
        return Producer(_transport=self.cluster.transport(), **settings)

    def consumer(self, *topics: str, **settings: Unpack[ConsumerSettingsDict]) -> Consumer:
        """A consumer of these topics; it reads from the beginning unless told otherwise."""
        settings.setdefault("auto_offset_reset", "earliest")
        return Consumer(*topics, _transport=self.cluster.transport(), **settings)

    def log_watch(self, **settings: Unpack[ReadingSettingsDict]) -> LogWatch:
        """Looks at these topics."""
        return LogWatch(_transport=self.cluster.transport(), **settings)

    def range_reader(self, ranges: Iterable[tuple[str, int, int, int]], **settings: Any) -> RangeReader:
        """Reads ranges of them."""
        return RangeReader(ranges=ranges, _transport=self.cluster.transport(), **settings)

    def aio_producer(self, **settings: Unpack[ProducerSettingsDict]) -> aio.Producer:
        """The same for asyncio."""
        return aio.Producer(_transport=self.cluster.transport(), **settings)

    def aio_consumer(self, *topics: str, **settings: Unpack[ConsumerSettingsDict]) -> aio.Consumer:
        """The same for asyncio."""
        settings.setdefault("auto_offset_reset", "earliest")
        return aio.Consumer(*topics, _transport=self.cluster.transport(), **settings)
