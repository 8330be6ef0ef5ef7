"""
One compacted log on a real store, driven as the engine drives it but without one: the pure core decides what goes.

What stands at an offset follows from the offset, so that whoever opens the store later knows what must be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import numpy as np
from storage_batches import partition

from headrace_broker.core.compaction.cleaning import Cleaning
from headrace_broker.core.compaction.dirty_keys import DirtyKeys
from headrace_broker.core.compaction.offset_map import OffsetMap
from headrace_broker.core.compaction.rules import AbortedRecords, Rules
from headrace_broker.core.compaction.steps import Step
from headrace_broker.core.recovered import RecoveredLog
from headrace_broker.core.rows import (
    EpochRow,
    IndexRow,
    LogId,
    LogWrite,
    PutBatch,
    PutEpoch,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_broker.ports import LogStore, WriteStalled
from headrace_common.core.batch import RecordColumns, build_batch, check_crc, decode_batch, read_header, stamp
from headrace_common.core.ids import Offset

EPOCH = 1
NOW_MS = 1_700_000_000_000
CHUNK_ROWS = 256
NO_RULES = Rules(NOW_MS, 0, Offset(0), Offset(-1), AbortedRecords(()), frozenset(), frozenset())
_SEED = 0x0123456789ABCDEF_FEDCBA9876543210
_TOMBSTONES = 13


def keys_at(start: int, end: int, keys: int) -> list[int]:
    """Which key each offset has: well mixed."""
    mixed = np.arange(start, end, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: list[int] = (mixed % np.uint64(keys)).tolist()
    return found


@dataclass(slots=True)
class CompactedLog:
    """Appends and compacts; the only writer of its log."""

    logs: LogStore
    log: LogId
    keys: int = 50
    value_bytes: int = 100
    segment_bytes: int = 40_000
    tombstones: bool = True
    end: int = 0
    segments: dict[int, SegmentRow] = field(default_factory=dict)
    size: int = 0
    """Of the active segment."""
    cleaned_to: int = 0
    steps: int = 0

    @property
    def active(self) -> int:
        """Where the active segment begins."""
        return max(self.segments)

    def create(self) -> list[LogWrite]:
        """The first writes."""
        self.segments[0] = SegmentRow(Offset(0), NOW_MS)
        return [self._state(), PutSegment(self.log, self.segments[0]), PutEpoch(self.log, EpochRow(EPOCH, Offset(0)))]

    def resume(self, found: RecoveredLog) -> None:
        """Go on where a recovered log is."""
        self.end, self.cleaned_to = found.log_end, found.state.cleaned_to
        self.segments = {row.base_offset: row for row in found.segments}
        last = found.last_row
        self.size = last.segment_bytes if last is not None and last.segment_base == self.active else 0

    def append(self, records: int) -> list[LogWrite]:
        """One batch, in a new segment where the last is full."""
        writes: list[LogWrite] = []
        if self.size >= self.segment_bytes:
            writes += self.roll()
        base = self.end
        batch = stamp(self._build(base, records), Offset(base), EPOCH)
        self.size += len(batch)
        self.end += records
        header = read_header(batch)
        row = IndexRow(
            Offset(base),
            records - 1,
            len(batch),
            records,
            header.attributes,
            EPOCH,
            -1,
            -1,
            -1,
            Offset(self.active),
            self.size,
            NOW_MS,
            NOW_MS,
        )
        return [*writes, PutBatch(self.log, row, batch)]

    def roll(self) -> list[LogWrite]:
        """Seal the active segment and begin another."""
        sealed = replace(
            self.segments[self.active],
            sealed_at_ms=NOW_MS,
            end_offset=Offset(self.end),
            size=self.size,
            min_timestamp=NOW_MS,
            max_timestamp=NOW_MS,
        )
        fresh = SegmentRow(Offset(self.end), NOW_MS)
        self.segments |= {sealed.base_offset: sealed, fresh.base_offset: fresh}
        self.size = 0
        return [PutSegment(self.log, sealed), PutSegment(self.log, fresh)]

    def _build(self, base: int, records: int) -> bytes:
        width = self.value_bytes
        values = [
            None if self.tombstones and offset % _TOMBSTONES == 0 else b"%0*d" % (width, offset)
            for offset in range(base, base + records)
        ]
        keys = [b"k%d" % key for key in keys_at(base, base + records, self.keys)]
        return build_batch(RecordColumns(values, keys, timestamps_ms=NOW_MS))

    def _state(self) -> PutState:
        row = StateRow(partition(int(self.log)), Offset(0), Offset(self.end), (), Offset(self.cleaned_to))
        return PutState(self.log, row)

    # --- compaction -----------------------------------------------------------------------------------------

    async def clean(self, on_step: Callable[[], None] = lambda: None) -> None:
        """One pass over all that is sealed."""
        end = self.active
        if end <= self.cleaned_to:
            return
        rules = replace(NO_RULES, tombstones_below=Offset(self.cleaned_to))
        keys = DirtyKeys(Offset(self.cleaned_to), OffsetMap(64 << 20, _SEED), rules, "t-0")
        async for row, batch in self._batches(self.cleaned_to, end, keys.wants):
            if not keys.take(row, batch):
                break
        keys.map.complete()
        sealed = [row for row in self.segments.values() if row.sealed_at_ms is not None]
        cleaning = Cleaning(self.log, "t-0", rules, keys.map, Offset(self.cleaned_to), sealed)
        async for row, batch in self._batches(0, keys.end, cleaning.wants):
            step = cleaning.take(row, batch)
            if step is not None:
                await self._apply(step)
                on_step()
        await self._apply(cleaning.finish(()))
        on_step()

    async def _batches(
        self, start: int, end: int, wants: Callable[[IndexRow], bool]
    ) -> AsyncIterator[tuple[IndexRow, bytes | None]]:
        at = start
        while at < end:
            rows: list[IndexRow] = []
            for row in self.logs.index(self.log, Offset(at), Offset(end)):
                rows.append(row)
                if len(rows) == CHUNK_ROWS:
                    break
            if not rows:
                return
            wanted = [row for row in rows if wants(row)]
            found = dict(zip((row.base_offset for row in wanted), await self.logs.read(self.log, wanted), strict=True))
            for row in rows:
                yield row, found.get(row.base_offset)
            at = rows[-1].next_offset

    async def _apply(self, step: Step) -> None:
        writes: list[LogWrite] = [*step.writes]
        writes += [PutSegment(self.log, row) for row in step.segments.values()]
        if step.cleaned is not None:
            self.cleaned_to = step.cleaned.end
            writes.append(self._state())
        await put(self.logs, writes)
        self.segments |= step.segments
        self.steps += 1


async def put(logs: LogStore, writes: list[LogWrite]) -> None:
    """Write, as often as it takes."""
    while True:
        try:
            logs.write(writes)
            return
        except WriteStalled:
            await asyncio.sleep(0.005)


def final_table(end: int, keys: int, *, tombstones: bool = True) -> dict[int, int]:
    """The offset of each key's value in a log that ends at ``end``; what was deleted is left out."""
    table = dict(zip(keys_at(0, end, keys), range(end), strict=True))
    return {key: offset for key, offset in table.items() if not tombstones or offset % _TOMBSTONES}


async def faults(
    logs: LogStore, log: LogId, end: int, keys: int, value_bytes: int = 100, *, tombstones: bool = True
) -> list[str]:
    """What is wrong with the log as one that was written by ``CompactedLog`` up to ``end``."""
    table: dict[bytes, bytes] = {}
    expected = 0
    for row in list(logs.index(log, Offset(0), Offset(end))):
        if row.base_offset != expected:
            return [f"log {log}: {row.base_offset} follows {expected}"]
        expected = row.next_offset
        (batch,) = await logs.read(log, [row])
        header = read_header(batch)
        check_crc(batch, header)
        if header.record_count != row.record_count:
            return [f"log {log}: the batch at {row.base_offset} has other records than its row says"]
        if not header.record_count:
            continue
        decoded = decode_batch(batch)
        for offset, key, value in zip(decoded.offsets(), decoded.keys(), decoded.values(), strict=True):
            assert key is not None
            if key != b"k%d" % keys_at(offset, offset + 1, keys)[0]:
                return [f"log {log}: another key at {offset}"]
            if value is None:
                table.pop(key, None)
            elif value != b"%0*d" % (value_bytes, offset):
                return [f"log {log}: another value at {offset}"]
            else:
                table[key] = value
    if expected != end:
        return [f"log {log}: ends at {expected} instead of {end}"]
    wanted = {
        b"k%d" % key: b"%0*d" % (value_bytes, at) for key, at in final_table(end, keys, tombstones=tombstones).items()
    }
    return [] if table == wanted else [f"log {log}: its table differs: {len(table.items() ^ wanted.items())} entries"]
