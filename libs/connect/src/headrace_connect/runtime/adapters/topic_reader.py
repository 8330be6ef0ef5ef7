"""Reads parts of topics, as nobody's member: for verifying and previews of sinks."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from pyarrow import compute

from headrace import aio
from headrace.records import PartitionTable, TopicPartition
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect.runtime.config import RunConfig, SinkConfig

pc: Any = compute  # its stubs are narrower than it is
ROWS_MAX: Final = 10_000
POLL_MS: Final = 500.0


async def find_partitions(topics: SdkTopics, config: SinkConfig) -> list[TopicPartition]:
    """Those that a sink reads and that are there."""
    names = list(config.topics)
    if config.topics_regex:
        names = [name for name in await topics.names() if re.fullmatch(config.topics_regex, name)]
    return [TopicPartition(name, number) for name in sorted(names) for number in range(await topics.partitions(name))]


class TopicReader:
    """Committed records; an asynchronous context."""

    def __init__(self, config: RunConfig) -> None:
        self._consumer: aio.Consumer[Any, Any] = aio.Consumer(
            bootstrap_servers=config.bootstrap_servers,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            default_api_timeout_ms=config.default_api_timeout_ms,
        )

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._consumer.__aexit__(*exc)

    async def starts(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where the log of each begins."""
        return dict(await self._consumer.beginning_offsets(list(partitions)))

    async def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where reading each ends for now."""
        return dict(await self._consumer.end_offsets(list(partitions)))

    async def read(
        self, partition: TopicPartition, start: int, end: int, rows_max: int = ROWS_MAX
    ) -> AsyncGenerator[PartitionTable, None]:
        """
        Records from ``start`` on, below ``end``, which the log has reached; at most ``rows_max`` at once.

        Raises:
            HeadraceError: they cannot be read.
        """
        await self._consumer.assign([partition])
        self._consumer.seek(partition, start)
        position = start
        while position < end:
            for table in await self._consumer.poll_batches(POLL_MS, rows_max):
                position = max(position, table.next_offset)
                rows = table.table
                if table.next_offset > end:
                    rows = rows.filter(pc.less(rows.column("offset"), end))
                if len(rows):
                    yield replace(table, table=rows, next_offset=min(table.next_offset, end))
