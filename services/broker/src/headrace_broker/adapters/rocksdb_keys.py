"""
Turns rows into keys and values, and back: the disk format of a broker's data directory, format 1.

Pure. ``rocksdb_log`` calls it for every row; ``debug`` tools may. A key is 13 bytes, ``>IBQ``: log id, kind, number;
the kinds are ordered so that what opening reads of a log lies together and what it must not walk (``BATCH``, whose
values are blobs) comes last. Every value but a batch starts with a version byte, so that a row can grow.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

from headrace_broker.core.rows import (
    AbortedRow,
    CleanPoint,
    EpochRow,
    FenceRow,
    IndexRow,
    LogId,
    ProducerBatch,
    ProducerRow,
    SegmentRow,
    StateRow,
)
from headrace_common.core.ids import Offset, PartitionId, TopicId

FORMAT: Final = 1
"""The number of this disk format; a newer one is refused."""
ROW_VERSION: Final = 1
NUMBER_MAX: Final = 2**64 - 1
LOG_ID_MAX: Final = 2**32 - 2
OWN_LOG: Final = LogId(0)
"""The broker's own rows."""


class Kind(IntEnum):
    """What a row is; the second part of its key."""

    STATE = 1
    SEGMENT = 2
    EPOCH = 3
    ABORTED = 4
    PRODUCER = 5
    INDEX = 6
    BATCH = 7
    END = 8
    """No row has it: the end of a log's key range."""


class RowUnreadable(Exception):
    """A value is not what its kind must look like; the text says how."""


class OwnRow(NamedTuple):
    """The broker's own row: whose data this is, and which log ids were ever given."""

    format: int
    next_log_id: int
    broker_id: int
    """-1: not bound yet."""
    cluster_id: str
    """Empty: not bound yet."""


_KEY = struct.Struct(">IBQ")
_INDEX = struct.Struct(">BiIihiqhiqqqq")
_SEGMENT = struct.Struct(">BBqqqqqq")
_EPOCH = struct.Struct(">Bq")
_STATE = struct.Struct(">B16siqqqq")
_FENCE = struct.Struct(">qq")
_STATE_WITH_FENCES: Final = 2
"""The version of a state row that lists fences; the others stay readable for versions that know none."""
_STATE_WITH_POINTS: Final = 3
"""The version of a state row that says how many fences and clean points follow."""
_LISTED = struct.Struct(">HHq")
_POINT = struct.Struct(">qq")
_PRODUCERS = struct.Struct(">BI")
_PRODUCER = struct.Struct(">qhqqB")
_PRODUCER_BATCH = struct.Struct(">iiqq")
_PRODUCERS_WITH_TRANSACTIONS: Final = 2
"""The version of a snapshot in which each producer has what is in ``_TRANSACTION`` too."""
_TRANSACTION = struct.Struct(">qb")  # since, verdict
_VERDICTS: Final = {None: -1, False: 0, True: 1}
_ABORTED = struct.Struct(">Bqqq")
_OWN = struct.Struct(">BHIiH")
_SEALED: Final = 1

make_key = _KEY.pack
"""``make_key(log, kind, number)``."""


def split_key(key: bytes) -> tuple[int, int, int]:
    """Log id, kind, number."""
    log, kind, number = _KEY.unpack(key)
    return log, kind, number


def encode_index(row: IndexRow) -> bytes:
    """65 bytes; the base offset is in the key."""
    return _INDEX.pack(
        ROW_VERSION,
        row.last_offset_delta,
        row.size,
        row.record_count,
        row.attributes,
        row.leader_epoch,
        row.producer_id,
        row.producer_epoch,
        row.base_sequence,
        row.segment_base,
        row.segment_bytes,
        row.segment_min_timestamp,
        row.segment_max_timestamp,
    )


def decode_index(base_offset: int, value: bytes) -> IndexRow:
    """Raises RowUnreadable."""
    version, *fields = _unpack(_INDEX, value, "an index row")
    _check_version(version, "an index row")
    return IndexRow(Offset(base_offset), *fields)


def encode_segment(row: SegmentRow) -> bytes:
    """The base offset is in the key."""
    sealed = row.sealed_at_ms is not None
    assert sealed == (row.end_offset is not None), "a sealed segment has an end"
    return _SEGMENT.pack(
        ROW_VERSION,
        _SEALED if sealed else 0,
        row.created_at_ms,
        row.sealed_at_ms if row.sealed_at_ms is not None else -1,
        row.end_offset if row.end_offset is not None else -1,
        row.size,
        row.min_timestamp,
        row.max_timestamp,
    )


def decode_segment(base_offset: int, value: bytes) -> SegmentRow:
    """Raises RowUnreadable."""
    version, flags, created, sealed_at, end, size, low, high = _unpack(_SEGMENT, value, "a segment row")
    _check_version(version, "a segment row")
    sealed = bool(flags & _SEALED)
    return SegmentRow(
        Offset(base_offset), created, sealed_at if sealed else None, Offset(end) if sealed else None, size, low, high
    )


def encode_epoch(row: EpochRow) -> bytes:
    """The epoch is in the key."""
    return _EPOCH.pack(ROW_VERSION, row.start)


def decode_epoch(epoch: int, value: bytes) -> EpochRow:
    """Raises RowUnreadable."""
    version, start = _unpack(_EPOCH, value, "an epoch row")
    _check_version(version, "an epoch row")
    return EpochRow(epoch, Offset(start))


def encode_state(row: StateRow) -> bytes:
    """The whole state; its number is 0."""
    topic_id, partition = row.partition
    assert len(topic_id) == 16, "a topic id has 16 bytes"
    compacted = bool(row.clean_points or row.forgotten_to)
    version = _STATE_WITH_POINTS if compacted else _STATE_WITH_FENCES if row.fences else ROW_VERSION
    parts = [
        _STATE.pack(version, topic_id, partition, row.log_start, row.high_watermark, row.fencing_token, row.cleaned_to)
    ]
    if compacted:
        parts.append(_LISTED.pack(len(row.fences), len(row.clean_points), row.forgotten_to))
    parts += [_FENCE.pack(fence.offset, fence.token) for fence in row.fences]
    parts += [_POINT.pack(*point) for point in row.clean_points]
    return b"".join(parts)


def decode_state(value: bytes) -> StateRow:
    """Raises RowUnreadable."""
    fixed, listed = value[: _STATE.size], value[_STATE.size :]
    version, topic_id, partition, start, watermark, token, cleaned = _unpack(_STATE, fixed, "a state row")
    points: tuple[CleanPoint, ...] = ()
    forgotten = 0
    if version == _STATE_WITH_POINTS:
        fences, points, forgotten = _decode_listed(listed)
    elif version == _STATE_WITH_FENCES and len(listed) % _FENCE.size == 0:
        fences = _decode_fences(listed)
    else:
        _check_version(version, "a state row")
        if listed:
            raise RowUnreadable(f"a state row has {len(listed)} bytes too many")
        fences = () if token < 0 else (FenceRow(Offset(-1), token),)
    id = PartitionId(TopicId(topic_id), partition)
    return StateRow(id, Offset(start), Offset(watermark), fences, Offset(cleaned), points, Offset(forgotten))


def _decode_fences(listed: bytes) -> tuple[FenceRow, ...]:
    return tuple(FenceRow(Offset(offset), held) for offset, held in _FENCE.iter_unpack(listed))


def _decode_listed(listed: bytes) -> tuple[tuple[FenceRow, ...], tuple[CleanPoint, ...], int]:
    fences, points, forgotten = _unpack(_LISTED, listed[: _LISTED.size], "the lists of a state row")
    between = _LISTED.size + fences * _FENCE.size
    if len(listed) != between + points * _POINT.size:
        raise RowUnreadable(f"a state row lists {fences} fences and {points} clean points in {len(listed)} bytes")
    when = tuple(CleanPoint(Offset(end), at_ms) for end, at_ms in _POINT.iter_unpack(listed[between:]))
    return _decode_fences(listed[_LISTED.size : between]), when, forgotten


def encode_producers(rows: tuple[ProducerRow, ...]) -> bytes:
    """A snapshot of all producers of a log; the offset it stands before is in the key."""
    whole = any(row.transaction_start is not None or row.committed is not None for row in rows)
    parts = [_PRODUCERS.pack(_PRODUCERS_WITH_TRANSACTIONS if whole else ROW_VERSION, len(rows))]
    for row in rows:
        start = -1 if row.transaction_start is None else row.transaction_start
        parts.append(_PRODUCER.pack(row.producer_id, row.epoch, row.last_timestamp_ms, start, len(row.batches)))
        if whole:
            parts.append(_TRANSACTION.pack(row.transaction_since_ms, _VERDICTS[row.committed]))
        parts += [
            _PRODUCER_BATCH.pack(b.first_sequence, b.last_sequence, b.base_offset, b.max_timestamp) for b in row.batches
        ]
    return b"".join(parts)


def decode_producers(value: bytes) -> tuple[ProducerRow, ...]:
    """Raises RowUnreadable."""
    try:
        version, count = _PRODUCERS.unpack_from(value)
        whole = version == _PRODUCERS_WITH_TRANSACTIONS
        if not whole:
            _check_version(version, "a producer snapshot")
        at, rows = _PRODUCERS.size, []
        for _ in range(count):
            producer_id, epoch, last_ms, start, n = _PRODUCER.unpack_from(value, at)
            at += _PRODUCER.size
            since, verdict = _TRANSACTION.unpack_from(value, at) if whole else (-1, -1)
            at += _TRANSACTION.size if whole else 0
            batches = []
            for _ in range(n):
                first, last, base, high = _PRODUCER_BATCH.unpack_from(value, at)
                batches.append(ProducerBatch(first, last, Offset(base), high))
                at += _PRODUCER_BATCH.size
            begins = None if start < 0 else Offset(start)
            committed = None if verdict < 0 else bool(verdict)
            rows.append(ProducerRow(producer_id, epoch, tuple(batches), last_ms, begins, since, committed))
    except struct.error as error:
        raise RowUnreadable(f"a producer snapshot of {len(value)} bytes ends too early") from error
    if at != len(value):
        raise RowUnreadable(f"a producer snapshot has {len(value) - at} bytes too many")
    return tuple(rows)


def encode_aborted(row: AbortedRow) -> bytes:
    """The offset of its marker is in the key."""
    return _ABORTED.pack(ROW_VERSION, row.producer_id, row.first, row.stable)


def decode_aborted(marker: int, value: bytes) -> AbortedRow:
    """Raises RowUnreadable."""
    version, producer_id, first, stable = _unpack(_ABORTED, value, "a row of an aborted transaction")
    _check_version(version, "a row of an aborted transaction")
    return AbortedRow(producer_id, Offset(first), Offset(marker), Offset(stable))


def encode_own(row: OwnRow) -> bytes:
    """The broker's own row; log id 0, STATE, number 0."""
    name = row.cluster_id.encode()
    return _OWN.pack(ROW_VERSION, row.format, row.next_log_id, row.broker_id, len(name)) + name


def decode_own(value: bytes) -> OwnRow:
    """Raises RowUnreadable."""
    version, number, next_log_id, broker_id, length = _unpack(_OWN, value[: _OWN.size], "the broker's own row")
    _check_version(version, "the broker's own row")
    if len(value) != _OWN.size + length:
        raise RowUnreadable("the broker's own row has another length than it says")
    return OwnRow(number, next_log_id, broker_id, value[_OWN.size :].decode())


def _unpack(layout: struct.Struct, value: bytes, what: str) -> tuple[Any, ...]:
    if len(value) != layout.size:
        raise RowUnreadable(f"{what} has {len(value)} bytes instead of {layout.size}")
    return layout.unpack(value)


def _check_version(version: int, what: str) -> None:
    if version != ROW_VERSION:
        raise RowUnreadable(f"{what} has version {version}; this broker knows {ROW_VERSION}")
