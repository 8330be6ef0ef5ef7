"""How much memory chunks take, by what is in them: exact for Arrow, bytes and texts, near to it for all else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from headrace_connect.plugin import Chunk

_EACH: Final = 8
"""Of what is no text and has no members."""


def size_of(chunk: Chunk) -> int:
    """Bytes of its rows, with all that belongs to them, and of those of ``further``."""
    own = (chunk.rows, chunk.keys, chunk.headers, chunk.timestamps_ms)
    return (
        sum(_size(column) for column in own)
        + sum(len(item.raw or b"") for item in chunk.bad)
        + sum(size_of(one) for one in chunk.further)
    )


def _size(value: Any) -> int:
    match value:
        case None:
            return 0
        case bytes() | str():
            return len(value)
        case pa.Table() | pa.ChunkedArray() | pa.Array():
            return value.nbytes
        case Mapping():
            return sum(_size(name) + _size(member) for name, member in value.items())
        case list() | tuple():
            return sum(map(_size, value))
    return _EACH
