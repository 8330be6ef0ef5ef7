"""What a task gives to its worker: records to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace_streams.core.rows import Column, plain_keys

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Output:
    """Records for one topic, in their order."""

    topic: str
    records: pa.Table
    """Columns ``key`` and ``value`` (binary, may be null) and ``timestamp_ms`` (int64)."""
    partition: int | None = None
    """None: by key, as a producer chooses it."""
    headers: Headers = ()
    """Of each of the records."""


def records(key: Column, value: Column | pa.Array[Any], timestamp: Column) -> pa.Table:
    """The columns of an output."""
    return pa.table({"key": plain_keys(key), "value": value, "timestamp_ms": timestamp.cast(pa.int64())})
