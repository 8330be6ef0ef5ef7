"""
Turns a group of ``LogWrite``s into one RocksDB write batch, and says what it does to the logs' ends.

``rocksdb_log`` calls it for every group. Drops need to know a few rows (which segment, which snapshots); those are
looked up, with what the same group wrote before laid over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace_broker.adapters.rocksdb_keys import (
    NUMBER_MAX,
    Kind,
    decode_epoch,
    decode_segment,
    decode_state,
    encode_aborted,
    encode_epoch,
    encode_index,
    encode_producers,
    encode_segment,
    encode_state,
    make_key,
    split_key,
)
from headrace_broker.adapters.rocksdb_store import RocksDbStore, WriteBatch
from headrace_broker.core.rows import (
    DropAborted,
    DropBatch,
    DropLog,
    DropPrefix,
    DropSuffix,
    EpochRow,
    LogId,
    LogWrite,
    PutAborted,
    PutBatch,
    PutEpoch,
    PutIndex,
    PutProducers,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_common.core.ids import Offset


def build(store: RocksDbStore, writes: Sequence[LogWrite]) -> WriteBatch:
    """One batch with all of ``writes``, in order."""
    batch = store.batch()
    put = batch.put
    for at, write in enumerate(writes):
        match write:
            case PutBatch(log, row, data):
                put(make_key(log, Kind.BATCH, row.base_offset), data)
                put(make_key(log, Kind.INDEX, row.base_offset), encode_index(row))
            case PutIndex(log, row):
                put(make_key(log, Kind.INDEX, row.base_offset), encode_index(row))
            case PutState(log, state):
                put(make_key(log, Kind.STATE, 0), encode_state(state))
            case PutSegment(log, segment):
                put(make_key(log, Kind.SEGMENT, segment.base_offset), encode_segment(segment))
            case PutEpoch(log, epoch):
                put(make_key(log, Kind.EPOCH, epoch.epoch), encode_epoch(epoch))
            case PutProducers(log, offset, rows):
                put(make_key(log, Kind.PRODUCER, offset), encode_producers(rows))
            case PutAborted(log, aborted):
                put(make_key(log, Kind.ABORTED, aborted.last), encode_aborted(aborted))
            case DropBatch(log, base):
                batch.delete(make_key(log, Kind.BATCH, base))
                batch.delete(make_key(log, Kind.INDEX, base))
            case DropAborted(log, marker):
                batch.delete(make_key(log, Kind.ABORTED, marker))
            case DropPrefix():
                _drop_prefix(batch, write, store, writes[:at])
            case DropSuffix(log, end):
                drop_suffix(batch, log, end, _Rows(store, log, writes[:at]))
            case DropLog(log):
                batch.delete_range(make_key(log, 0, 0), make_key(log, Kind.END, 0))
    return batch


class _Rows:
    """The few rows that drops ask for: those on disk, under those of the same group."""

    def __init__(self, store: RocksDbStore, log: LogId, before: Sequence[LogWrite] = ()) -> None:
        self._store, self._log = store, log
        self._before = [write for write in before if write.log == log]

    def segment_at(self, offset: int) -> SegmentRow | None:
        """The last segment with a base at or below ``offset``."""
        if offset < 0:
            return None
        low, high = make_key(self._log, Kind.SEGMENT, 0), make_key(self._log, Kind.SEGMENT, offset)
        found = self._store.last_below(low, high)
        best = decode_segment(split_key(found[0])[2], found[1]) if found else None
        for write in self._before:
            match write:
                case PutSegment(_, row) if row.base_offset <= offset:
                    best = row if best is None or row.base_offset >= best.base_offset else best
                case DropLog():
                    best = None
        return best

    def snapshot_at(self, offset: int) -> int | None:
        low, high = make_key(self._log, Kind.PRODUCER, 0), make_key(self._log, Kind.PRODUCER, offset)
        found = self._store.last_below(low, high)
        best = split_key(found[0])[2] if found else -1
        for write in self._before:
            match write:
                case PutProducers(_, at, _) if at <= offset:
                    best = max(best, at)
                case DropLog():
                    best = -1
        return best if best >= 0 else None

    def state(self) -> StateRow | None:
        for write in reversed(self._before):
            if isinstance(write, PutState):
                return write.row
        found = self._store.get(make_key(self._log, Kind.STATE, 0))
        return decode_state(found) if found is not None else None

    def epochs(self) -> list[EpochRow]:
        low, high = make_key(self._log, Kind.EPOCH, 0), make_key(self._log, Kind.EPOCH + 1, 0)
        rows = [decode_epoch(split_key(key)[2], value) for key, value in self._store.scan(low, high)]
        return rows + [write.row for write in self._before if isinstance(write, PutEpoch)]


def _drop_prefix(batch: WriteBatch, drop: DropPrefix, store: RocksDbStore, before: Sequence[LogWrite]) -> None:
    log, start, below = drop.log, drop.start, drop.below
    for kind in (Kind.BATCH, Kind.INDEX):
        _delete(batch, log, kind, 0, start)
    if below is None or below.aborted:
        _delete(batch, log, Kind.ABORTED, 0, start)
    if below is None:
        _delete(batch, log, Kind.SEGMENT, 0, _first_segment(start, _Rows(store, log, before)))
    else:
        for base in below.segments:
            batch.delete(make_key(log, Kind.SEGMENT, base))
    known = below is not None and below.snapshot
    snapshot = start if known else _Rows(store, log, before).snapshot_at(start)
    if snapshot is not None:
        _delete(batch, log, Kind.PRODUCER, 0, snapshot)


def _first_segment(start: Offset, rows: _Rows) -> int:
    """All segments below that number end at or below ``start``."""
    holder = rows.segment_at(start)
    if holder is None:
        return 0
    gone = holder.end_offset is not None and holder.end_offset <= start
    return holder.base_offset + 1 if gone else holder.base_offset


def drop_suffix(batch: WriteBatch, log: LogId, end: Offset, rows: _Rows) -> None:
    """Everything from ``end`` on, fences too; a sealed segment that loses its tail is the active one again."""
    for kind in (Kind.BATCH, Kind.INDEX, Kind.ABORTED, Kind.SEGMENT):
        _delete(batch, log, kind, end, NUMBER_MAX)
    _delete(batch, log, Kind.PRODUCER, end + 1, NUMBER_MAX)
    for row in rows.epochs():
        if row.start >= end:
            batch.delete(make_key(log, Kind.EPOCH, row.epoch))
    state = rows.state()
    if state is not None and state.cut(end) is not state:
        batch.put(make_key(log, Kind.STATE, 0), encode_state(state.cut(end)))
    segment = rows.segment_at(end - 1)
    if segment is not None and segment.end_offset is not None and segment.end_offset > end:
        batch.put(make_key(log, Kind.SEGMENT, segment.base_offset), encode_segment(reopen(segment)))


def cut_log(store: RocksDbStore, batch: WriteBatch, log: LogId, end: Offset) -> None:
    """Add to ``batch`` what removes everything of the log from ``end`` on."""
    drop_suffix(batch, log, end, _Rows(store, log))


def reopen(segment: SegmentRow) -> SegmentRow:
    """The segment as the active one, after its tail was cut off."""
    return replace(segment, sealed_at_ms=None, end_offset=None, size=0, min_timestamp=-1, max_timestamp=-1)


def _delete(batch: WriteBatch, log: LogId, kind: Kind, low: int, high: int) -> None:
    """``low <= number < high``. An empty or inverted range is left out: RocksDB fails for good on begin > end."""
    if low < high:
        batch.delete_range(make_key(log, kind, low), make_key(log, kind, high))
