"""Topics of the cluster that connectors read and write: makes them, and changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from headrace import aio
from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig, InvalidPartitions, UnknownTopicOrPartition
from headrace_common.runtime.clock import Clock
from headrace_connect.plugin import TopicState

_LEVEL_MS: Final = 5_000.0
"""A cluster that has just started knows after a moment what all its nodes can do."""
_PAUSE_MS: Final = 200.0


class SdkTopics:
    """Satisfies ``Topics``. Of one process."""

    def __init__(
        self, admin: aio.AdminClient, clock: Clock, bootstrap_servers: str | Sequence[str] | None = None
    ) -> None:
        """
        Args:
            bootstrap_servers: of the same cluster; None: found as all clients find it.
        """
        self._admin = admin
        self._clock = clock
        self._servers = bootstrap_servers
        self._known: set[str] = set()

    async def ensure(self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None) -> None:
        """
        There is a topic of this name; one that is there stays as it is.

        Args:
            partitions: None: the cluster's default.

        Raises:
            HeadraceError: it cannot be made so.
        """
        if name not in self._known:
            await self.create(name, partitions, configs)

    async def create(self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None) -> None:
        """See ``Topics``; as ``ensure``, but it looks each time."""
        until_ms = self._clock.monotonic_ms() + _LEVEL_MS
        while True:
            try:
                await self._admin.create_topic(name, partitions, None, configs, if_not_exists=True)
                break
            except InvalidConfig:
                if self._clock.monotonic_ms() >= until_ms:
                    raise
                await self._clock.sleep_ms(_PAUSE_MS)
        self._known.add(name)

    async def partitions(self, name: str) -> int:
        """
        How many partitions a topic has; 0: there is none of this name.
        """
        try:
            return len((await self._admin.describe_topic(name)).partitions)
        except UnknownTopicOrPartition:
            return 0

    async def names(self) -> list[str]:
        """All topics that are not internal."""
        return [topic.name for topic in await self._admin.list_topics()]

    async def cluster_id(self) -> str:
        """See ``Topics``."""
        return (await self._admin.describe_cluster()).cluster_id

    async def describe(self) -> Mapping[str, TopicState]:
        """See ``Topics``."""
        return {one.name: TopicState(one.partitions, one.configs) for one in await self._admin.list_topics()}

    async def grow(self, name: str, partitions: int) -> None:
        """See ``Topics``."""
        with suppress(InvalidPartitions):  # another one has done it
            await self._admin.add_partitions(name, partitions)

    async def configure(self, name: str, changes: Mapping[str, str | None]) -> None:
        """See ``Topics``."""
        await self._admin.alter_configs(changes, topic=name)

    async def end_offset(self, name: str, partition: int) -> int:
        """See ``Topics``."""
        one = TopicPartition(name, partition)
        async with aio.Consumer(bootstrap_servers=self._servers, isolation_level="read_uncommitted") as consumer:
            return (await consumer.end_offsets([one]))[one]
