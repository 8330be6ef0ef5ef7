"""What can be told of a connector without running it: what it says is wrong, and what it would write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.dead_letters import Origin
from headrace_connect.plugin import Rows, Sink, Source
from headrace_connect.runtime.adapters.topic_reader import TopicReader, find_partitions
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.config import SinkConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.converting import ChunkPipeline, TablePipeline
from headrace_connect.runtime.seating import Process


async def check_connector(configured: Configured) -> Sequence[str]:
    """What the connector itself says is wrong outside: no connection, no rights, no such table."""
    calls = Calls(configured.make())
    try:
        return list(await calls.call(calls.connector.check))
    finally:
        await calls.stop()


async def ask_snapshot(configured: Configured, tables: Sequence[str]) -> list[str]:
    """
    Have tables of a source be read again, whether its tasks run or not; their full names.

    Raises:
        InvalidConfig: it is no such source, or a table is none of its.
    """
    calls = Calls(configured.make())
    try:
        if not isinstance(calls.connector, Source):
            raise InvalidConfig(f"{configured.config.name} is a sink: only sources have tables that can be read again")
        return list(await calls.call(calls.connector.read_again, tables))
    finally:
        await calls.stop()


async def preview_sink(configured: Configured, process: Process, records_max: int) -> list[Mapping[str, Any]]:
    """
    What would become of the first records of a sink's topics. What the sink writes for that is undone.

    Raises:
        HeadraceError: the cluster does not answer.
        Exception: of the connector.
    """
    config = configured.config
    assert isinstance(config, SinkConfig), "its configuration is a sink's"
    pipeline = TablePipeline(configured.converting())
    parts: list[Rows] = []
    shown: list[Mapping[str, Any]] = []
    left = records_max
    async with TopicReader(process.config) as reader:
        partitions = await find_partitions(process.topics, config)
        starts, ends = await reader.starts(partitions), await reader.ends(partitions)
        for partition in partitions:
            if left <= 0:
                break
            async with aclosing(reader.read(partition, starts[partition], ends[partition], left)) as tables:
                async for table in tables:
                    converted = pipeline.apply(table)
                    parts += [rows for rows, _ in converted.parts]
                    offsets = table.table.column("offset").to_pylist()
                    where = {"topic": partition.topic, "partition": partition.partition}
                    shown += [
                        {**where, "offset": offsets[row], "error": f"{refusal.stage.value}: {refusal.message}"}
                        for row, refusal in converted.refused.items()
                    ]
                    left -= len(table.table)
                    if left <= 0:
                        break
    calls = Calls(configured.make())
    sink = cast("Sink[Any]", calls.connector)
    try:
        return [*await calls.call(sink.preview, parts), *shown] if parts else shown
    finally:
        await calls.stop()


async def preview(configured: Configured, records_max: int) -> list[Mapping[str, Any]]:
    """The first records of a source, as they would be written: topic, key, value. Nothing is written or committed."""
    config = configured.config
    pipeline = ChunkPipeline(
        configured.converting(), Origin(config.name, 0, configured.name, getattr(config, "topic", ""))
    )
    calls = Calls(configured.make())
    source = cast("Source[Any]", calls.connector)
    shown: list[Mapping[str, Any]] = []
    try:
        await calls.call(source.start)
        for split in await calls.call(source.splits):
            async with aclosing(calls.iterate(source.preview, split)) as chunks:
                async for chunk, _ in chunks:
                    converted = pipeline.apply(chunk)
                    for out in converted.outgoing:
                        shown += [{"topic": out.topic, "split": split.id, **row} for row in out.table.to_pylist()]
                    shown += [{"split": split.id, "error": str(lost), "value": lost.value} for lost in converted.lost]
                    if len(shown) >= records_max or chunk.drained:
                        break
            if len(shown) >= records_max:
                break
    finally:
        await calls.stop()
    return shown[:records_max]
