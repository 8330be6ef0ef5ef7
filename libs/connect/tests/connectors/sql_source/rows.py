"""Reads a source as a task does, and shows what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace_connect.connectors.sql_source import SqlSource
from headrace_connect.connectors.sql_source.settings import SourceSettings
from headrace_connect.plugin import Chunk, Position

ALSO: dict[str, Any] = {}
"""Settings of all sources that are made here, beside those that a test says."""


def settings(url: str, **values: Any) -> SourceSettings:
    made: dict[str, Any] = {"connection_url": url, "topic_prefix": "shop.", "mode": "incrementing", "timeout_ms": 500}
    if "mode" not in values:
        made["incrementing_column_name"] = "id"
    return SourceSettings(**made | ALSO | values)


@contextmanager
def started(url: str, **values: Any) -> Iterator[SqlSource]:
    source = SqlSource(settings(url, **values))
    source.start()
    try:
        yield source
    finally:
        source.stop()


def take(source: SqlSource, after: Position | None = None, split: str = "") -> list[Chunk]:
    """Chunks of the only split, or of one of them, up to the one that says there is no more."""
    [chosen] = [one for one in source.splits() if split in ("", one.id)]
    chunks = []
    reading = source.read(chosen, after)
    for chunk in reading:
        chunks.append(chunk)
        if chunk.drained:
            break
    reading.close()
    return chunks


def rows_of(chunks: list[Chunk]) -> list[Mapping[str, Any]]:
    rows: list[Any] = [row for chunk in chunks if isinstance(chunk.rows, pa.Array) for row in chunk.rows.to_pylist()]
    return rows


def values_of(chunks: list[Chunk], name: str = "id") -> list[Any]:
    return [row[name] for row in rows_of(chunks)]
