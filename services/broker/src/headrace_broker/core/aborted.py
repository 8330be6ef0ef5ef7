"""
The aborted transactions of one log, as its readers need them: who wrote what from where to where.

``LocalLog`` adds one with each abort marker, cuts and trims them with the log; fetches of committed records ask which
overlap what they return. Kept in arrays, 32 bytes each, because a log may have very many. The early end of a search
is that of Kafka's transaction index: each entry knows where the log was stable when it was made.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable

from headrace_broker.core.rows import AbortedRow
from headrace_common.core.ids import Offset


class AbortedIndex:
    """Ascending by the offset of the abort marker."""

    __slots__ = ("_first", "_last", "_producer", "_stable")

    def __init__(self, rows: Iterable[AbortedRow] = ()) -> None:
        self._producer, self._first, self._last, self._stable = array("q"), array("q"), array("q"), array("q")
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return len(self._last)

    def append(self, row: AbortedRow) -> None:
        assert not self._last or self._last[-1] < row.last, "markers come in the order of the log"
        self._producer.append(row.producer_id)
        self._first.append(row.first)
        self._last.append(row.last)
        self._stable.append(row.stable)

    def find_overlapping(self, start: Offset, end: Offset) -> list[AbortedRow]:
        """Those with a batch or the marker in ``start <= offset < end``, ascending by marker."""
        found: list[AbortedRow] = []
        for at in range(bisect_left(self._last, start), len(self._last)):
            if self._first[at] < end:
                found.append(self._row(at))
            if self._stable[at] >= end:
                break
        return found

    def rows(self) -> list[AbortedRow]:
        return [self._row(at) for at in range(len(self._last))]

    def truncate(self, end: Offset) -> None:
        """The log ends at ``end`` now: who lost the marker is not aborted any more."""
        self._keep(0, bisect_left(self._last, end))

    def drop_below(self, start: Offset) -> None:
        """The first batch that exists begins at ``start``."""
        self._keep(bisect_left(self._last, start), len(self._last))

    def remove(self, markers: Collection[int]) -> None:
        """Nothing is left of these, nor of their markers. What the others know of each other stays true."""
        kept = [at for at, marker in enumerate(self._last) if marker not in markers]
        if len(kept) < len(self._last):
            self._producer, self._first, self._last, self._stable = (
                array("q", [column[at] for at in kept])
                for column in (self._producer, self._first, self._last, self._stable)
            )

    def _keep(self, low: int, high: int) -> None:
        if low == 0 and high == len(self._last):
            return
        for column in (self._producer, self._first, self._last, self._stable):
            del column[high:]
            del column[:low]

    def _row(self, at: int) -> AbortedRow:
        return AbortedRow(self._producer[at], Offset(self._first[at]), Offset(self._last[at]), Offset(self._stable[at]))
