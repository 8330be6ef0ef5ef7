"""Chunks that are large, cut into pieces that are converted and sent one by one, within one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace_connect.plugin import Chunk
from headrace_connect.runtime.sizes import size_of


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Some of a chunk: rows of its own, or of one of its ``further`` chunks."""

    chunk: Chunk
    """It alone, with the position of all."""
    start: int = 0
    """Which row of the chunk its first row is."""
    first: bool = True
    last: bool = True


def slices_of(chunk: Chunk, size: int, bytes_max: int) -> Iterator[Slice]:
    """
    All of ``chunk``, in its order; what cannot be read comes with the last slice. A slice has at most ``bytes_max``
    bytes, or one row.

    Args:
        size: of the chunk, in bytes.
    """
    if size <= bytes_max:
        yield Slice(chunk)
        return
    parts = [(part, *span) for part in (chunk, *chunk.further) for span in _spans(part, 0, len(part.rows), bytes_max)]
    if not parts:
        yield Slice(chunk)
        return
    for number, (part, start, end) in enumerate(parts):
        last = number == len(parts) - 1
        bad = chunk.bad if last else ()
        rows = _rows(part, start, end)
        if part is chunk:
            yield Slice(replace(rows, bad=bad), start, not number, last)
        else:
            yield Slice(Chunk([], chunk.position, chunk.topic, bad=bad, further=[rows]), 0, not number, last)


def _spans(chunk: Chunk, start: int, end: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Of its rows from ``start`` to ``end``, halved until each is small enough."""
    if start == end:
        return
    if end - start == 1 or size_of(_rows(chunk, start, end)) <= bytes_max:
        yield start, end
        return
    middle = (start + end) // 2
    yield from _spans(chunk, start, middle, bytes_max)
    yield from _spans(chunk, middle, end, bytes_max)


def _rows(chunk: Chunk, start: int, end: int) -> Chunk:
    columns = (_slice(one, start, end) for one in (chunk.rows, chunk.keys, chunk.timestamps_ms, chunk.headers))
    rows, keys, timestamps_ms, headers = columns
    return Chunk(
        rows,
        chunk.position,
        chunk.topic,
        keys,
        timestamps_ms,
        headers,
        chunk.partition,
        key_schema=chunk.key_schema,
        value_schema=chunk.value_schema,
    )


def _slice(column: Any, start: int, end: int) -> Any:
    if isinstance(column, pa.Table | pa.ChunkedArray | pa.Array):
        return column.slice(start, end - start)
    return None if column is None else column[start:end]
