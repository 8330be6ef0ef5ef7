"""Batches and rows for storage tests: real headers with a real checksum, random bytes as body."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace

import crc32c

from headrace_broker.adapters.rocksdb_log import LogsOptions
from headrace_broker.adapters.rocksdb_store import StoreOptions
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
from headrace_common.core.batch import build_gap_batch
from headrace_common.core.ids import Offset, PartitionId, TopicId

LOGS = 8
SMALL = LogsOptions(store=StoreOptions(memtable_bytes=1 << 20, wal_bytes_max=4 << 20, blob_file_bytes=1 << 20))
_HEADER = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii3x")


def make_batch(base: int, records: int = 10, size: int = 4096, epoch: int = 1, log: int = 0) -> bytes:
    """A batch of ``size`` bytes; the same arguments make the same bytes."""
    covered = _COVERED.pack(0, records - 1, base, base + records, -1, -1, -1, records) + random.Random(
        f"{log} {base} {epoch}"
    ).randbytes(size - 64)
    return _HEADER.pack(base, size - 12, epoch, 3, crc32c.crc32c(covered)) + covered


def make_row(base: int, batch: bytes, records: int = 10, epoch: int = 1, segment: int = 0) -> IndexRow:
    """The row of a batch."""
    return IndexRow(
        base_offset=Offset(base),
        last_offset_delta=records - 1,
        size=len(batch),
        record_count=records,
        attributes=0,
        leader_epoch=epoch,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        segment_base=Offset(segment),
        segment_bytes=len(batch),
        segment_min_timestamp=base,
        segment_max_timestamp=base + records,
    )


def rewrite(log: LogId, base: int, next_offset: int, size: int = 0, records: int = 0, epoch: int = 1) -> PutBatch:
    """What compaction puts in the place of the batch at ``base``; without a size, a gap up to ``next_offset``."""
    if size:
        span = next_offset - base
        batch = bytearray(make_batch(base, span, size, epoch, log))
        struct.pack_into(">i", batch, 57, records)
        struct.pack_into(">I", batch, 17, crc32c.crc32c(batch[21:]))
        data = bytes(batch)
    else:
        data = build_gap_batch(base, next_offset, epoch, base_timestamp=base, max_timestamp=next_offset)
    row = replace(make_row(base, data, next_offset - base, epoch), record_count=records)
    return PutBatch(log, row, data)


def size_of(log: int, base: int) -> int:
    """Sizes are fixed by log and offset, so that a reader can make the same bytes again."""
    return random.Random(f"size {log} {base}").choice((100, 700, 3000, 16_000, 40_000))


def partition(number: int) -> PartitionId:
    """Partition ``number`` of the tests' topic."""
    return PartitionId(TopicId(b"0123456789abcdef"), number)


@dataclass(slots=True)
class Writer:
    """Appends to one log, as the core would."""

    log: LogId
    end: int = 0
    epoch: int = 1
    size: int = 4096
    batches: dict[int, bytes] = field(default_factory=dict)
    rows: list[IndexRow] = field(default_factory=list)

    def create(self) -> list[LogWrite]:
        """The first writes of a log."""
        return [
            PutState(self.log, StateRow(partition(int(self.log)), Offset(self.end), Offset(self.end))),
            PutSegment(self.log, SegmentRow(Offset(self.end), 1000)),
            PutEpoch(self.log, EpochRow(self.epoch, Offset(self.end))),
        ]

    def append(self, count: int = 1, records: int = 10, size: int | None = None) -> list[LogWrite]:
        """So many more batches."""
        writes: list[LogWrite] = []
        for _ in range(count):
            batch = make_batch(self.end, records, size or self.size, self.epoch, self.log)
            row = make_row(self.end, batch, records, self.epoch)
            self.batches[self.end] = batch
            self.rows.append(row)
            writes.append(PutBatch(self.log, row, batch))
            self.end += records
        return writes
