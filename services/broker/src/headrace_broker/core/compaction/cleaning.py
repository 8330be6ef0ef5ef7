"""
The second half of a compaction: each batch of the log stays, loses records, becomes a header, or part of a gap.

The cleaner walks the index from the log's first batch to where the map ends and gives every row here, with the batch
where that is wanted; each ``Step`` that comes back is written before it goes on. A pass may stop anywhere: what it
wrote is sound, and another pass begins at the first batch again.

Nothing may be missing between two batches, so runs of batches of which nothing is left become one **gap**: a header
without records and producer that covers their offsets. Without that a log of small batches would never get smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace_broker.core.compaction.clean_points import add_point
from headrace_broker.core.compaction.offset_map import OffsetMap, offsets_of
from headrace_broker.core.compaction.rules import HORIZON_BIT, Rules, is_control, is_marker, is_transactional
from headrace_broker.core.compaction.steps import Cleaned, Step
from headrace_broker.core.rows import (
    COMMITS_BIT,
    CleanPoint,
    DropAborted,
    DropBatch,
    IndexRow,
    LogId,
    PutBatch,
    PutIndex,
    SegmentRow,
)
from headrace_common.core.batch import (
    HEADER_SIZE,
    BatchHeader,
    DecodedBatch,
    build_gap_batch,
    decode_batch,
    read_header,
    strip_records,
)
from headrace_common.core.batch.header import replace_header
from headrace_common.core.configs import LONG_MAX
from headrace_common.core.ids import Offset

if TYPE_CHECKING:
    import numpy as np

    Mask = np.ndarray[Any, np.dtype[np.bool_]]

STEP_BYTES_MAX: Final = 256 << 10
STEP_WRITES_MAX: Final = 128
"""A step is written in one go, on the event loop: in less than a millisecond."""
_ROW_BYTES: Final = 100
"""About what an index row with its key is in a write."""
_OFFSETS_PER_BATCH_MAX: Final = 2**31 - 1
_GONE: Final = b""


class _Gap:
    """Batches in a row of which nothing is left."""

    __slots__ = ("base", "last", "stored")

    def __init__(self, row: IndexRow) -> None:
        self.base = row.base_offset
        self.last = self.stored = row
        """``stored`` is the row at ``base`` as it is written."""

    def takes(self, row: IndexRow) -> bool:
        """Whether the batch of ``row`` can be part of it."""
        last = self.last
        same = last.leader_epoch == row.leader_epoch and last.segment_base == row.segment_base
        return same and row.next_offset - self.base <= _OFFSETS_PER_BATCH_MAX

    def row(self, bytes_before: int) -> IndexRow:
        """As one batch; ``bytes_before`` of its segment."""
        last = self.last
        return IndexRow(
            self.base,
            last.next_offset - self.base - 1,
            HEADER_SIZE,
            0,
            0,
            last.leader_epoch,
            -1,
            -1,
            -1,
            last.segment_base,
            bytes_before + HEADER_SIZE,
            last.segment_min_timestamp,
            last.segment_max_timestamp,
        )

    def batch(self) -> bytes:
        """Its times are those that its segment had seen by then: a copy of the log finds times as this one does."""
        last = self.last
        return build_gap_batch(
            self.base,
            last.next_offset,
            last.leader_epoch,
            base_timestamp=last.segment_min_timestamp,
            max_timestamp=last.segment_max_timestamp,
        )


class Cleaning:
    """One pass over one log."""

    __slots__ = (
        "_bytes_after",
        "_bytes_before",
        "_end",
        "_forgotten",
        "_gap",
        "_log",
        "_map",
        "_map_start",
        "_name",
        "_newest_of",
        "_resized",
        "_rules",
        "_segment",
        "_segments",
        "_size",
        "_step",
        "_unfinished",
        "at",
        "removed",
    )

    def __init__(
        self, log: LogId, name: str, rules: Rules, map: OffsetMap, map_start: Offset, segments: Iterable[SegmentRow]
    ) -> None:
        """``map_start``: keys from there on are in ``map``. ``segments``: at least the sealed ones of the range."""
        self._log, self._name, self._rules = log, name, rules
        self._map, self._map_start = map, map_start
        self._segments = {row.base_offset: row for row in segments}
        self._segment: SegmentRow | None = None
        self._bytes_before = self._bytes_after = 0
        """Of what was seen of the segment: as it was, and as it is now (with what is dropped in front of the log)."""
        self._gap: _Gap | None = None
        self._unfinished: set[int] = set()
        """Producers with a batch of a transaction that stays, before its marker."""
        self._step: Step | None = None
        self._size = 0
        self._end = Offset(0)
        self.at = Offset(0)
        """The base of the batch that was taken last."""
        self.removed = 0
        """Records that went."""
        self._resized: dict[Offset, SegmentRow] = {}
        """Since the last step."""
        self._newest_of: dict[Offset, int] = {}
        """Of rows that were looked at ahead."""
        self._forgotten = Offset(0)
        """Every deletion and marker that went, or will yet go, is below; 0: none was met yet."""

    def look_ahead(self, rows: Sequence[IndexRow]) -> None:
        """These are asked for, and taken, next: what the map says of them is found for all at once."""
        bounds = [row.base_offset for row in rows]
        counts = self._map.counts_between([*bounds, rows[-1].next_offset])
        self._newest_of.update(zip(bounds, counts, strict=True))

    def wants(self, row: IndexRow) -> bool:
        """Whether the batch itself is needed."""
        if row.record_count == 0:
            return False
        if is_control(row):
            return is_marker(row)
        if self._rules.aborted.hold(row):
            return row.base_offset in self._rules.last_batches
        if row.base_offset < self._map_start or row.base_offset < self._rules.tombstones_below:
            return True
        newest = self._count(row)
        if newest == 0:
            return row.base_offset in self._rules.last_batches
        return newest != row.record_count

    def take(self, row: IndexRow, batch: bytes | None) -> Step | None:
        """
        The next batch of the log, as the store read it, so its checksum is right; None for one that is not wanted. What
        is to be written now, if anything.

        Raises:
            CorruptBatch, UnsupportedVersion, UnsupportedCompression: the log cannot be compacted further.
        """
        assert row.base_offset >= self._end, "batches come in the order of the log"
        self.at, self._end = row.base_offset, row.next_offset
        if self._segment is None or row.segment_base != self._segment.base_offset:
            self._end_gap()
            self._enter(row)
        after = self._what_stays(row, batch)
        self._newest_of.pop(row.base_offset, None)
        self._bytes_before += row.size
        if after is not None and not after:
            self._into_gap(row)
        else:
            self._end_gap()
            self._keep(row, after)
        if self._size >= STEP_BYTES_MAX or (self._step is not None and len(self._step.writes) >= STEP_WRITES_MAX):
            return self._flush()
        return None

    def finish(self, points: tuple[CleanPoint, ...]) -> Step:
        """The last step, after the last batch of the range; ``points``: those of the log so far."""
        assert self._segment is not None, "a range has a batch"
        self._end_gap()
        step = self._flush() or Step(self._end, self._end)
        rules = self._rules
        step.cleaned = Cleaned(self._end, add_point(points, self._end, rules.now_ms, rules.delete_retention_ms))
        return step

    def _count(self, row: IndexRow) -> int:
        """How many of its records are the newest of their keys."""
        known = self._newest_of.get(row.base_offset)
        return self._map.count_within(row.base_offset, row.next_offset) if known is None else known

    # --- what stays ---------------------------------------------------------------------------------------

    def _what_stays(self, row: IndexRow, batch: bytes | None) -> bytes | None:
        """The batch as it is to be; None: as it is; ``_GONE``: nothing of it."""
        if is_marker(row):
            return self._marker(row, batch)
        if is_control(row):
            return _GONE if self._rules.fence_goes(row) else None
        after = self._records(row, batch)
        if after is not None and not after and row.base_offset in self._rules.last_batches:
            after = None if row.record_count == 0 else strip_records(_present(batch))
        if is_transactional(row) and (after is None or after):
            self._unfinished.add(row.producer_id)
        return after

    def _marker(self, row: IndexRow, batch: bytes | None) -> bytes | None:
        """
        It may go ``delete.retention.ms`` after the last of its transaction, as whoever copies the log needs it.

        But never in the same pass, even where that is 0: who reads meanwhile has records of it and must know of it.
        """
        rules = self._rules
        if row.producer_id in self._unfinished:
            self._unfinished.remove(row.producer_id)
            return None
        if rules.is_last_marker(row):
            return None
        header = read_header(_present(batch))
        told = bool(header.attributes & HORIZON_BIT)
        horizon_ms = header.base_timestamp if told else min(LONG_MAX, rules.now_ms + max(1, rules.delete_retention_ms))
        if horizon_ms <= rules.now_ms and row.next_offset <= rules.forgets_below:
            self._forgotten = max(self._forgotten, rules.tombstones_below, row.next_offset)
            if not row.attributes & COMMITS_BIT:
                self._open_step(row.base_offset).writes.append(DropAborted(self._log, row.base_offset))
            return _GONE
        if told:
            return None
        fields = header._replace(attributes=header.attributes | HORIZON_BIT, base_timestamp=horizon_ms)
        return replace_header(_present(batch), fields)

    def _records(self, row: IndexRow, batch: bytes | None) -> bytes | None:
        if row.record_count == 0 or self._rules.aborted.hold(row):
            return _GONE
        if batch is None:  # not wanted: all of its records are the newest, or none
            return None if self._count(row) else _GONE
        decoded = decode_batch(batch, verify_crc=False, where=f"{self._name}@{row.base_offset}")
        keep = self._newest(row, decoded)
        if row.base_offset < self._rules.tombstones_below:
            deleted = keep & self._tombstones(decoded)
            if deleted.any():
                self._forgotten = max(self._forgotten, self._rules.tombstones_below)  # at once, not step by step
                keep &= ~deleted
        kept = int(keep.sum())
        if kept == row.record_count:
            return None
        return decoded.filter_records(keep) if kept else _GONE

    def _newest(self, row: IndexRow, decoded: DecodedBatch) -> Mask:
        """A record without a key goes, as with Kafka: it was taken before the log was one to compact."""
        import numpy as np

        if row.base_offset >= self._map_start:
            keep = np.zeros(row.record_count, np.bool_)
            newest = self._map.newest_within(row.base_offset, row.next_offset)
            keep[offsets_of(decoded).searchsorted(newest)] = True
            return keep
        return self._map.newest(decoded) if decoded.has_keys else np.zeros(row.record_count, np.bool_)

    def _tombstones(self, decoded: DecodedBatch) -> Mask:
        """Records without a value that were to be read long enough."""
        values = decoded.to_arrow().column("value")
        nulls: Mask = values.is_null().to_numpy(zero_copy_only=False)
        return nulls & (offsets_of(decoded) < self._rules.tombstones_below)

    # --- what is written ----------------------------------------------------------------------------------

    def _enter(self, row: IndexRow) -> None:
        self._resize(0)
        self._segment = self._segments[row.segment_base]
        self._bytes_before = self._bytes_after = row.segment_bytes - row.size

    def _keep(self, row: IndexRow, after: bytes | None) -> None:
        size = row.size if after is None else len(after)
        self._bytes_after += size
        now = replace(row, size=size, segment_bytes=self._bytes_after)
        if after is not None:
            header: BatchHeader = read_header(after)
            self.removed += row.record_count - header.record_count
            attributes = header.attributes | row.attributes & COMMITS_BIT
            now = replace(now, record_count=header.record_count, attributes=attributes)
            self._put(row.base_offset, PutBatch(self._log, now, after))
        elif now != row:
            self._put(row.base_offset, PutIndex(self._log, now))

    def _into_gap(self, row: IndexRow) -> None:
        gap = self._gap
        self.removed += row.record_count
        if gap is not None and gap.takes(row):
            gap.last = row
            self._put(gap.base, DropBatch(self._log, row.base_offset))
            return
        self._end_gap()
        self._gap = _Gap(row)

    def _end_gap(self) -> None:
        if self._gap is not None:
            self._write_gap(self._gap)
            self._bytes_after += HEADER_SIZE
            self._gap = None

    def _write_gap(self, gap: _Gap) -> None:
        now, stored = gap.row(self._bytes_after), gap.stored
        if stored == now:
            return
        if replace(stored, segment_bytes=now.segment_bytes) == now:
            self._put(gap.base, PutIndex(self._log, now))
        else:
            self._put(gap.base, PutBatch(self._log, now, gap.batch()))
        gap.stored = now

    def _put(self, base: Offset, write: PutBatch | PutIndex | DropBatch) -> None:
        self._open_step(base).writes.append(write)
        self._size += _ROW_BYTES + (len(write.batch) if isinstance(write, PutBatch) else 0)

    def _open_step(self, base: Offset) -> Step:
        if self._step is None:
            self._step = Step(base, base)
        self._step.start = min(self._step.start, base)
        return self._step

    def _resize(self, open_bytes: int) -> None:
        """Note what the segment has of bytes now, ``open_bytes`` of a gap that is not ended included."""
        segment = self._segment
        if segment is None:
            return
        size = segment.size + self._bytes_after + open_bytes - self._bytes_before
        if size != self._segments[segment.base_offset].size:
            self._resized[segment.base_offset] = self._segments[segment.base_offset] = replace(segment, size=size)

    def _flush(self) -> Step | None:
        """What was gathered. A gap that is open is written as far as it goes, and once more when it has grown."""
        gap = self._gap
        if gap is not None:
            self._write_gap(gap)
        self._resize(0 if gap is None else HEADER_SIZE)
        step, self._step, self._size = self._step, None, 0
        if step is not None:
            step.end, step.forgotten_to = self._end, self._forgotten
            step.segments, self._resized = self._resized, {}
        assert not self._resized, "a segment has another size when something was written"
        return step


def _present(batch: bytes | None) -> bytes:
    assert batch is not None, "it was wanted"
    return batch
