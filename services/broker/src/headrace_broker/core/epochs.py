"""
Where each leader epoch begins in one log (KIP-101, KIP-279).

The partition machine asks it; ``end_offset_for`` is what a follower's log is compared by.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from headrace_broker.core.rows import EpochRow
from headrace_common.core.ids import Offset


class Epochs:
    """Epochs and their start offsets, both ascending."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, rows: Iterable[EpochRow] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[Offset] = []
        for row in rows:
            self.assign(row.epoch, row.start)

    @property
    def latest(self) -> int:
        """The newest epoch; -1: none."""
        return self._epochs[-1] if self._epochs else -1

    @property
    def latest_start(self) -> Offset:
        """Where the newest epoch begins; 0 when there is none."""
        return self._starts[-1] if self._starts else Offset(0)

    def assign(self, epoch: int, start: Offset) -> EpochRow | None:
        """Epoch ``epoch`` begins at ``start``; the row to write, or None if it is known already."""
        if epoch <= self.latest:
            assert epoch == self.latest, f"epoch {epoch} after {self.latest}"
            return None
        assert start >= self.latest_start, "epochs begin in the order of their numbers"
        self._epochs.append(epoch)
        self._starts.append(start)
        return EpochRow(epoch, start)

    def truncate(self, end: Offset) -> None:
        """Forget epochs that begin at ``end`` or later."""
        while self._starts and self._starts[-1] >= end:
            self._starts.pop()
            self._epochs.pop()

    def epoch_at(self, offset: Offset) -> int:
        """The epoch in which the record at ``offset`` was or would be written; -1: not known."""
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else -1

    def end_offset_for(self, epoch: int, log_end: Offset) -> tuple[int, Offset]:
        """The largest known epoch at or below ``epoch``, and where it ends; (-1, -1): none is known."""
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            return -1, Offset(-1)
        end = self._starts[at] if at < len(self._starts) else log_end
        return self._epochs[at - 1], end
