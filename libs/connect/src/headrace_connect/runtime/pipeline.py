"""What lies between a connector and its topics, as tasks see it: converters, transforms, and rows that fail in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from headrace.records import PartitionTable
from headrace_connect.core.dead_letters import Header, Origin, Refusal, error_headers
from headrace_connect.plugin import Chunk, Rows
from headrace_connect.runtime.ports import Outgoing

Indices = np.ndarray[Any, np.dtype[np.int64]]
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class Lost:
    """A record that could not be handled, with its dead letter."""

    origin: Origin
    refusal: Refusal
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None

    def __str__(self) -> str:
        at = self.origin
        place = f"{at.topic}-{at.partition} offset {at.offset}" if at.offset is not None else f"for {at.topic}"
        return f"record {place}: {self.refusal.stage.value}: {self.refusal.message}"


@dataclass(frozen=True, slots=True)
class ConvertedChunk:
    """What a chunk of a source became."""

    outgoing: Sequence[Outgoing]
    lost: Sequence[Lost] = ()
    rows: int = 0
    bytes: int = 0


class SourcePipeline(Protocol):
    """Of a source's task."""

    def apply(self, chunk: Chunk) -> ConvertedChunk:
        """
        Rows that cannot be converted fail alone.

        Raises:
            HeadraceError: a registry does not answer; nothing is wrong with the rows.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ConvertedTable:
    """What the records of a partition became."""

    parts: Sequence[tuple[Rows, Indices]]
    """
    Rows, and the index of each in the table; in order. Several only where one type cannot hold all; none for records
    that a transform has left out.
    """
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    """By the index in the table."""


class SinkPipeline(Protocol):
    """Of a sink's task."""

    def apply(self, table: PartitionTable) -> ConvertedTable:
        """As ``SourcePipeline``."""
        ...


def dead_letters(topic: str, lost: Sequence[Lost], *, headers: bool = True) -> Outgoing:
    """
    Records for the topic of dead letters.

    Args:
        headers: whether to say why (``errors.deadletterqueue.context.headers.enable``).
    """
    own = [[*each.headers, *(error_headers(each.origin, each.refusal) if headers else ())] for each in lost]
    pairs = [[{"key": name, "value": value} for name, value in one] for one in own]
    columns: dict[str, Any] = {
        "key": pa.array([each.key for each in lost], pa.binary()),
        "value": pa.array([each.value for each in lost], pa.binary()),
        "headers": pa.array(pairs, HEADERS_TYPE),
    }
    stamps = [each.timestamp_ms for each in lost]
    if None not in stamps:  # what a source could not read has none
        columns["timestamp_ms"] = pa.array(stamps, pa.int64())
    return Outgoing(topic, pa.table(columns))
