"""Another Headrace cluster, by the SDK: one consumer for all partitions of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from headrace import TopicRecreated, aio
from headrace.errors import (
    GroupNotFound,
    HeadraceError,
    LogTruncated,
    NoPosition,
    PositionOutOfRange,
    UnknownTopicOrPartition,
)
from headrace.finding import ClusterAddress
from headrace.records import PartitionTable, TopicPartition
from headrace_connect.connectors.copying.polling import Polled
from headrace_connect.connectors.copying.port import Fetched, Moved, Recreated, SourceTopic, TopicGone

_POLL_MS: Final = 100.0
"""A partition that is sought is read after so long at the latest."""


class SdkCluster(Polled):
    """Satisfies ``SourceCluster``."""

    def __init__(self, servers: str | ClusterAddress, rows_max: int, timeout_ms: int) -> None:
        super().__init__()
        self._servers = servers
        self._rows_max = rows_max
        self._timeout_ms = timeout_ms
        self._admin: aio.AdminClient | None = None
        self._consumer: aio.Consumer[Any, Any] | None = None
        self._ready: dict[TopicPartition, Fetched] = {}
        """At most one of each partition, which is paused meanwhile."""
        self._recreated: set[TopicPartition] = set()

    async def open(self) -> None:
        """See ``SourceCluster``."""
        if self._admin is None:
            self._admin = aio.AdminClient(self._servers, default_api_timeout_ms=self._timeout_ms)
            self._consumer = aio.Consumer(
                bootstrap_servers=self._servers,
                isolation_level="read_committed",
                auto_offset_reset="none",
                on_position_reset=self._heard,
                default_api_timeout_ms=self._timeout_ms,
            )

    async def close(self) -> None:
        """See ``SourceCluster``."""
        admin, consumer = self._admin, self._consumer
        self._admin, self._consumer = None, None
        if consumer is not None:
            await consumer.close()
        if admin is not None:
            await admin.close()

    @property
    def admin(self) -> aio.AdminClient:
        """Of the source."""
        assert self._admin is not None, "it is open"
        return self._admin

    @property
    def consumer(self) -> aio.Consumer[Any, Any]:
        """Of all partitions."""
        assert self._consumer is not None, "it is open"
        return self._consumer

    async def cluster_id(self) -> str:
        """See ``SourceCluster``."""
        return (await self.admin.describe_cluster()).cluster_id

    async def topics(self) -> Mapping[str, SourceTopic]:
        """See ``SourceCluster``."""
        listed = await self.admin.list_topics()
        return {one.name: SourceTopic(one.topic_id.hex(), one.partitions, dict(one.configs)) for one in listed}

    async def topic_id(self, topic: str) -> str:
        """See ``SourceCluster``."""
        try:
            return (await self.admin.describe_topic(topic)).topic_id.hex()
        except UnknownTopicOrPartition as error:
            raise TopicGone(topic) from error

    async def end_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See ``SourceCluster``."""
        return await self.consumer.end_offsets(partitions) if partitions else {}

    # --- records --------------------------------------------------------------------------------------------------

    def drop(self, at: TopicPartition) -> None:
        """See ``Polled``."""
        self._ready.pop(at, None)

    def pop(self, at: TopicPartition) -> Fetched | None:
        """See ``Polled``."""
        fetched = self._ready.pop(at, None)
        if fetched is not None and at not in self.failed and at in self.consumer.assignment():
            self.consumer.resume(at)
        return fetched

    async def poll(self) -> None:
        """See ``Polled``."""
        consumer = self.consumer
        try:
            await self._begin()
            for table in await consumer.poll_batches(_POLL_MS, self._rows_max):
                at = TopicPartition(table.topic, table.partition)
                if at not in self.starts:  # it is elsewhere by now
                    consumer.pause(at)
                    self._keep(at, _fetched(table))
        except PositionOutOfRange as error:
            below = error.offset < error.log_start
            self._go_on(error.partition, Moved(str(error), error.log_start if below else error.log_end))
        except LogTruncated as error:
            self._go_on(error.partition, Moved(str(error), error.offset))
        except NoPosition as error:
            if not self._recreated:
                self._fail(error)
            for at in self._recreated:
                consumer.seek_to_beginning(at)
                consumer.pause(at)
                self.failed[at] = Recreated(str(at))
            self._recreated = set()
        except UnknownTopicOrPartition as error:
            await self._forget(error)
        except HeadraceError as error:
            self._fail(error)

    async def _begin(self) -> None:
        """Have the consumer read what was sought."""
        if not self.starts:
            return
        consumer, starts = self.consumer, dict(self.starts)
        known = consumer.assignment()
        if not known.issuperset(starts):
            await consumer.assign([*known, *(at for at in starts if at not in known)])
        for at, offset in starts.items():
            if offset is None:
                consumer.seek_to_beginning(at)
            else:
                consumer.seek(at, offset)
            consumer.resume(at)
            if self.starts.get(at) == offset:
                del self.starts[at]

    def _keep(self, at: TopicPartition, fetched: Fetched) -> None:
        held = self._ready.get(at)
        if held is not None:
            assert not len(fetched.offsets), "a partition that is paused gives no records"
            fetched = replace(held, next_offset=fetched.next_offset, drained=fetched.drained)
        self._ready[at] = fetched

    def _heard(self, event: object) -> None:
        if isinstance(event, TopicRecreated):
            self._recreated.add(event.partition)

    def _go_on(self, at: TopicPartition | None, moved: Moved) -> None:
        assert at is not None, "the error says whose log it is"
        self.failed[at] = moved
        self.consumer.seek(at, moved.offset)
        self.consumer.pause(at)

    def _fail(self, error: HeadraceError) -> None:
        """Nobody knows of which partition it is."""
        for at in self.consumer.assignment() | self.starts.keys():
            self.failed[at] = error

    async def _forget(self, error: HeadraceError) -> None:
        """Topics were deleted: read their partitions no more."""
        consumer, there = self.consumer, await self.topics()
        wanted = consumer.assignment() | self.starts.keys()
        gone = {at for at in wanted if at.topic not in there or at.partition >= there[at.topic].partitions}
        if not gone:
            self._fail(error)
            return
        await consumer.assign([at for at in consumer.assignment() if at not in gone])
        for at in gone:
            self.starts.pop(at, None)
            self.failed[at] = TopicGone(at.topic)

    # --- groups ---------------------------------------------------------------------------------------------------

    async def group_members(self, group: str) -> int:
        """See ``SourceCluster``."""
        try:
            return len((await self.admin.describe_group(group)).members)
        except GroupNotFound:
            return 0

    async def group_positions(self, group: str) -> Mapping[TopicPartition, int]:
        """See ``SourceCluster``."""
        try:
            lags = await self.admin.group_lag(group, ages=False)
        except GroupNotFound:
            return {}
        return {at: lag.committed_offset for at, lag in lags.items() if lag.committed_offset is not None}


def _fetched(table: PartitionTable) -> Fetched:
    columns = {name: _whole(table.table.column(name)) for name in ("offset", "key", "value", "timestamp_ms", "headers")}
    return Fetched(
        columns["offset"].to_numpy(),
        columns["key"],
        columns["value"],
        columns["timestamp_ms"],
        columns["headers"],
        table.next_offset,
        table.next_offset == table.end_offset,
    )


def _whole(column: Any) -> Any:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else (pa.array([], column.type))
    )
