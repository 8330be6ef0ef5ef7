"""
Rows that go to another task because their key has changed: through a repartition topic, as Arrow.

A record of such a topic is a flush of one sender for one partition. Its value is a version byte, a byte that is 1 where
the sender is idle, the sender's task number (4 bytes), its watermark in ms (8 bytes, signed; both big-endian) and an
Arrow stream of the rows, which is absent where only the watermark is told. Rows carry the watermark that they had at
their sender, so a flush may be cut anywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import numpy as np
import pyarrow as pa

from headrace_common.core.murmur2 import partitions_for
from headrace_streams.core.formats.port import NotEncodable
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    ROW,
    TIME,
    WATERMARK,
    Column,
    Numbers,
    concat,
    from_arrow,
    numbers,
    plain_keys,
    replace,
    take,
    to_arrow,
    user_schema,
    whole,
)
from headrace_streams.core.state.changelog import TOPIC_BYTES_MAX, NotReadable

FLUSH_BYTES: Final = 512 * 1024
_ROW_BYTES_MAX: Final = TOPIC_BYTES_MAX - 65_536
"""Of a row; what stands around it in a record has room."""
_ALONE_MAX: Final = 2_000
"""Flushes without rows that a repartition topic gets in a second, of all its senders together."""
_TEXT_MAX: Final = 255
_HEAD: Final = struct.Struct(">B?Iq")
_VERSION: Final = 1


def interval_ms(wanted: int, senders: int, partitions: int) -> int:
    """How often a sender tells event time alone, in ms: as ``wanted``, or more seldom where that would be too much."""
    return max(wanted, senders * partitions * 1_000 // _ALONE_MAX) if wanted else 0


@dataclass(frozen=True, slots=True)
class Flush:
    """What one record of a repartition topic says."""

    sender: int
    watermark: int
    rows: pa.Table | None
    idle: bool = False
    """Nothing comes any more for now: the sender must not hold the others back."""


def encode(flush: Flush) -> bytes:
    """A flush as the value of a record."""
    head = _HEAD.pack(_VERSION, flush.idle, flush.sender, flush.watermark)
    return head if flush.rows is None else head + to_arrow(flush.rows)


def decode(value: bytes | None) -> Flush:
    """
    The inverse.

    Raises:
        NotReadable: this is no flush, or one of a newer version.
    """
    if value is None or len(value) < _HEAD.size or value[0] != _VERSION:
        raise NotReadable(
            "this record is not a flush of this version of Streams; upgrade all workers, or reset the app"
        )
    _, idle, sender, watermark = _HEAD.unpack_from(value)
    rows = None
    if len(value) > _HEAD.size:
        try:
            rows = from_arrow(pa.py_buffer(value)[_HEAD.size :])
        except (pa.ArrowException, OSError) as error:
            raise NotReadable(f"this record is broken: {error}") from error
    return Flush(sender, watermark, rows, idle)


def rows_text(columns: Mapping[str, str]) -> str:
    """Columns and types of rows, as tasks agree on them: in any order, in at most 255 characters."""
    text = ", ".join(f"{name} {kind}" for name, kind in sorted(columns.items()))
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 20]}… {sha256(text.encode()).hexdigest()[:16]}"


def columns_of(rows: pa.Table) -> dict[str, str]:
    """Names and types of the columns that are the user's."""
    return {field.name: str(field.type) for field in user_schema(rows.schema)}


def _targets(keys: Column, partitions: int) -> Numbers:
    """The partition of each row; rows without a key are dealt out."""
    one = whole(keys)
    if isinstance(one, pa.DictionaryArray):
        known = np.append(partitions_for(one.dictionary, partitions), -1)
        targets = known[numbers(one.indices.fill_null(-1))]
    else:
        targets = partitions_for(one, partitions)
    without = np.flatnonzero(targets < 0)
    targets[without] = np.arange(len(without)) % partitions
    return targets


class HopOut(Operator):
    """
    The sender's end: rows are kept until a flush, by the partition of their key.

    What a flush has rows for is told the watermark with them. The others are told it alone, once in ``interval_ms`` by
    the wall clock; that the sender rests, or does no longer, all are told at once.
    """

    def __init__(
        self, topic: str, partitions: int, sender: int, write: Callable[[Output], None], interval_ms: int = 0
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._sender = sender
        self._write = write
        self._interval_ms = interval_ms
        self.begin(NO_TIME)

    def begin(self, watermark: int) -> None:
        self._kept: list[list[pa.Table]] = [[] for _ in range(self._partitions)]
        self._bytes = 0
        self._watermark = watermark
        self._idle = False
        self._told_idle = False
        self._told = [NO_TIME] * self._partitions  # who was told more is told again: that does no harm
        # The commit that this begins with may have left some behind, and no row may come.
        self._due: int | None = 0 if self._interval_ms and watermark != NO_TIME else None
        self._next_ms = 0

    @property
    def due(self) -> int | None:
        return self._due

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        rows = _without_large(rows, failed)
        if not rows.num_rows:
            return ()
        keys = rows[KEY]
        targets = _targets(keys, self._partitions)
        rows = replace(rows.drop_columns([ROW]), KEY, plain_keys(keys))
        self._watermark = max(self._watermark, int(numbers(rows[WATERMARK])[-1]))
        order = np.argsort(targets, kind="stable")
        ordered = take(rows, order)
        bounds = np.searchsorted(targets[order], np.arange(self._partitions + 1))
        for target in range(self._partitions):
            first, end = int(bounds[target]), int(bounds[target + 1])
            if end > first:
                self._kept[target].append(ordered.slice(first, end - first))
        self._bytes += ordered.nbytes
        if self._bytes >= FLUSH_BYTES * self._partitions:
            self._send(idle=False)  # whether it rests shows when all of this batch is here
        return ()

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        self._watermark = max(self._watermark, watermark)
        self._idle = False
        return ()

    def rest(self) -> None:
        self._idle = True

    def flush(self) -> Iterable[Emitted]:
        self._send(idle=self._idle)
        return ()

    def _send(self, *, idle: bool) -> None:
        wall = self.clock.wall
        in_time = not self._next_ms - self._interval_ms <= wall < self._next_ms  # clocks may be set back
        news = idle != self._told_idle
        behind = False
        for target, kept in enumerate(self._kept):
            late = self._told[target] < self._watermark
            if not (kept or news or (late and in_time)):
                behind |= late
                continue
            *first, last = _parts(concat(kept)) if kept else [None]
            for rows in first:  # what is told of time holds for the rows behind it too
                assert rows is not None
                self._record(target, Flush(self._sender, int(numbers(rows[WATERMARK]).max()), rows))
            self._record(target, Flush(self._sender, self._watermark, last, idle))
            self._told[target] = self._watermark
        self._kept = [[] for _ in range(self._partitions)]
        self._bytes = 0
        self._told_idle = idle
        if in_time:
            self._next_ms = wall + self._interval_ms
        self._due = self._next_ms if behind else None

    def _record(self, target: int, flush: Flush) -> None:
        time = int(numbers(flush.rows[TIME]).max()) if flush.rows is not None else max(flush.watermark, 0)
        value = pa.array([encode(flush)], pa.binary())
        table = pa.table(
            {"key": pa.nulls(1, pa.binary()), "value": value, "timestamp_ms": pa.array([time], pa.int64())}
        )
        self._write(Output(self._topic, table, partition=target))


def _without_large(rows: pa.Table, failed: Failed) -> pa.Table:
    """The rows that a repartition topic takes; of the others it is told."""
    if rows.nbytes <= _ROW_BYTES_MAX:
        return rows
    stays = np.ones(rows.num_rows, bool)
    for place, size in _large(replace(rows, KEY, plain_keys(rows[KEY])), 0):
        stays[place] = False
        reason = (
            f"it has {size:,} bytes, and a repartition topic takes rows of {_ROW_BYTES_MAX:,}: select() less before it"
        )
        failed(rows.slice(place, 1), NotEncodable(place, reason))
    return rows if stays.all() else rows.filter(pa.array(stays))


def _large(rows: pa.Table, first: int) -> list[tuple[int, int]]:
    """Places and sizes of rows that are too large; ``first`` is the place of the first of these."""
    if rows.nbytes <= _ROW_BYTES_MAX:
        return []
    if rows.num_rows == 1:
        return [(first, rows.nbytes)]
    half = rows.num_rows // 2
    return [*_large(rows.slice(0, half), first), *_large(rows.slice(half), first + half)]


def _parts(rows: pa.Table) -> list[pa.Table]:
    """Rows in parts of at most ``FLUSH_BYTES``, in their order; one row may be larger."""
    if rows.nbytes <= FLUSH_BYTES or rows.num_rows == 1:
        return [rows]
    rows = replace(rows, KEY, plain_keys(rows[KEY]))  # else each part would carry the keys of all
    half = rows.num_rows // 2
    return [*_parts(rows.slice(0, half)), *_parts(rows.slice(half))]
