"""
The first half of a compaction: the newest offset of each key in the dirty part of a log.

The cleaner walks the index over the range and gives every row here, with the batch where that is wanted; it stops when
the range ends or the map is full. What was aborted has no say.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_broker.core.compaction.offset_map import OffsetMap
from headrace_broker.core.compaction.rules import Rules, is_control
from headrace_broker.core.rows import IndexRow
from headrace_common.core.batch import decode_batch
from headrace_common.core.ids import Offset


@dataclass(slots=True)
class DirtyKeys:
    """Fills ``map`` from ``start`` on."""

    start: Offset
    map: OffsetMap
    rules: Rules
    name: str
    """Of the partition, for errors."""
    end: Offset = Offset(0)
    """How far the map tells: up to here the log is compacted this time. A batch boundary."""
    records: int = 0

    def __post_init__(self) -> None:
        self.end = self.start

    @property
    def at(self) -> Offset:
        """The base of the batch that is taken, while it is."""
        return self.end

    def wants(self, row: IndexRow) -> bool:
        """Whether the batch itself is needed."""
        return row.record_count > 0 and not is_control(row) and not self.rules.aborted.hold(row)

    def take(self, row: IndexRow, batch: bytes | None) -> bool:
        """
        The next batch, as the store read it, so its checksum is right; None for one that is not wanted. False: the map
        is full, and ends before this batch.

        Raises:
            CorruptBatch, UnsupportedVersion, UnsupportedCompression: the log cannot be compacted; nothing was written.
        """
        assert row.base_offset >= self.end, "batches come in the order of the log"
        if self.map.full:
            return False
        if batch is not None:
            decoded = decode_batch(batch, verify_crc=False, where=f"{self.name}@{row.base_offset}")
            if decoded.has_keys:
                self.map.add(decoded)
            self.records += decoded.record_count
        self.end = row.next_offset
        return True
