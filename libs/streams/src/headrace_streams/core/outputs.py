"""What a task gives to its worker: records to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace_streams.core.rows import Column, plain_keys

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a topic takes: its brokers refuse whole batches for one record that is beyond it."""

    bytes_max: int
    """Of a batch: ``max.message.bytes``."""
    ahead_ms: int | None = None
    """How far ahead of the clock the time of a record may be: ``message.timestamp.after.max.ms``; None: as it likes."""
    behind_ms: int | None = None
    """How far behind it: ``message.timestamp.before.max.ms``; None: as it likes."""
    keyed: bool = False
    """Each record needs a key: ``cleanup.policy`` has "compact"."""


@dataclass(frozen=True, slots=True)
class Output:
    """Records for one topic, in their order."""

    topic: str
    records: pa.Table
    """
    Columns ``key`` and ``value`` (binary, may be null) and ``timestamp_ms`` (int64); ``headers`` where records have
    some of their own.
    """
    partition: int | None = None
    """None: by key, as a producer chooses it."""
    headers: Headers = ()
    """Of each of the records, which have none of their own then."""


def records(key: Column, value: Column | pa.Array[Any], timestamp: Column, headers: Column | None = None) -> pa.Table:
    """The columns of an output."""
    made = pa.table({"key": plain_keys(key), "value": value, "timestamp_ms": timestamp.cast(pa.int64())})
    return made if headers is None else made.append_column("headers", headers)
