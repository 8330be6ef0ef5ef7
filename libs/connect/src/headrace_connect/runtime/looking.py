"""What can be told of a connector without running it: what it says is wrong, and what it would write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from headrace_connect.core.dead_letters import Origin
from headrace_connect.plugin import Source
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.converting import ChunkPipeline


async def check_connector(configured: Configured) -> Sequence[str]:
    """What the connector itself says is wrong outside: no connection, no rights, no such table."""
    calls = Calls(configured.make())
    try:
        return list(await calls.call(calls.connector.check))
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
