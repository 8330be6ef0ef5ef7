"""
What compaction writes: groups that are each atomic, after each of which the log is sound and readers see each key.

``cleaning`` makes them; the storage loop, the only writer, applies one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_broker.core.rows import CleanPoint, DropAborted, DropBatch, PutBatch, PutIndex, SegmentRow
from headrace_common.core.errors import Conflict
from headrace_common.core.ids import Offset


class StepOutdated(Conflict):
    """The log was cut, or begins further up by now: nothing was written."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The end of a compaction: how far the log is clean, for its state."""

    end: Offset
    points: tuple[CleanPoint, ...]


RowWrite = PutBatch | PutIndex | DropBatch | DropAborted


@dataclass(slots=True)
class Step:
    """
    One group. It may be applied while the log still begins at or below ``start`` and was not emptied or cut since.

    If not, it is dropped. Where the log was cut the pass ends, as its map may tell of records that are gone; else it
    begins anew at the log's first batch, with the same map.
    """

    start: Offset
    """Base of the first batch that it touches, or that is before it."""
    end: Offset
    """Everything below is as it will be."""
    writes: list[RowWrite] = field(default_factory=list)
    segments: dict[Offset, SegmentRow] = field(default_factory=dict)
    """Sealed segments that have another size now, by base; in memory too."""
    cleaned: Cleaned | None = None
    """Only in the last step."""
    forgotten_to: Offset = Offset(0)
    """All deletions and markers that went, in this step or before, are below; 0: none went."""

    def applies(self, first_batch: Offset) -> bool:
        """Whether it may be written to a log whose first batch is that."""
        return first_batch <= self.start
