"""
A few messages in and out, for people and scripts that speak REST: bounds, defaults, and how many at one time.

This is for looking and trying, not for throughput; applications use the SDK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from headrace_admin.config import Limits
from headrace_admin.ports import Cluster, MessageLog, MessagePage, NewMessage, WrittenMessage
from headrace_common.core.errors import Overloaded, Rejected, UnknownTopicOrPartition, unknown_topic
from headrace_common.core.ids import Offset, check_topic_name
from headrace_common.core.image import Topic

_IMAGE_WAIT_MS: Final = 500.0


class Messages:
    """One event loop. At most ``limits.reads_max`` operations at one time, none waits in a queue."""

    def __init__(self, log: MessageLog, cluster: Cluster, limits: Limits) -> None:
        self._log = log
        self._cluster = cluster
        self._limits = limits
        self._running = 0

    async def produce(self, topic: str, messages: Sequence[NewMessage]) -> Sequence[WrittenMessage]:
        """
        Write 1 to ``records_max`` messages, acknowledged by all in-sync replicas.

        Raises:
            HeadraceError: not all are surely written.
        """
        if not 1 <= len(messages) <= self._limits.records_max:
            raise Rejected(f"send 1 to {self._limits.records_max} records at once, not {len(messages)}")
        async with self._place():
            known = await self._known(topic)
            if known.internal:
                raise Rejected(f"topic {topic!r} belongs to the system; nobody else writes to it")
            for message in messages:
                if message.partition is not None:
                    _check_partition(known, message.partition)
            return await self._log.append(topic, messages)

    async def read(
        self, topic: str, partition: int, start: Offset | None, *, limit: int, bytes_max: int, wait_ms: int
    ) -> MessagePage:
        """
        Read from ``start`` (None: the oldest), bounded by the smaller of what is asked and what is allowed.

        Raises:
            HeadraceError: unknown topic or partition, or the offset is out of range.
        """
        async with self._place():
            _check_partition(await self._known(topic), partition)
            return await self._log.read(
                topic,
                partition,
                start,
                limit=min(limit, self._limits.records_max),
                bytes_max=min(bytes_max, self._limits.read_bytes_max),
                wait_ms=min(wait_ms, self._limits.wait_ms_max),
            )

    async def end(self, topic: str, partition: int) -> Offset:
        """
        One past the last record that can be read.

        Raises:
            HeadraceError: unknown topic or partition.
        """
        async with self._place():
            _check_partition(await self._known(topic), partition)
            return await self._log.end(topic, partition)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._running >= self._limits.reads_max:
            raise Overloaded(f"{self._running} reads and writes are under way; wait a second and try again")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _known(self, name: str) -> Topic:
        """The topic; a new one may be a moment away."""
        check_topic_name(name)
        image = self._cluster.image
        topic = image.topic(name)
        if topic is None:
            topic = (await self._cluster.caught_up(_IMAGE_WAIT_MS)).topic(name)
        if topic is None:
            raise unknown_topic(name)
        return topic


def _check_partition(topic: Topic, partition: int) -> None:
    if not 0 <= partition < topic.partition_count:
        raise UnknownTopicOrPartition(
            f"topic {topic.name!r} has no partition {partition}; it has 0 to {topic.partition_count - 1}"
        )
