"""
Which batches of an answer aborted transactions wrote: ``fetch_positions`` asks once per batch, never per record.

The broker names, beside the batches, the aborted transactions that overlap them. A batch is one of them if it is
transactional, of that producer, and begins between the transaction's first record and its abort marker: another
transaction of the same producer never lies within.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headrace_common.core.batch.header import BatchHeader


class Aborted(NamedTuple):
    """What one aborted transaction wrote into the partition, with its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the abort marker."""


class AbortedRanges:
    """The aborted transactions of one answer."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._left: dict[int, deque[tuple[int, int]]] = {}
        """By producer, ascending; those behind the batches seen so far are gone."""
        for producer_id, first, last in sorted(aborted):
            self._left.setdefault(producer_id, deque()).append((first, last))

    def hold(self, header: BatchHeader) -> bool:
        """Whether this transactional batch is to be dropped. Asked in the order of the log."""
        left = self._left.get(header.producer_id)
        if left is None:
            return False
        base = header.base_offset
        while left and left[0][1] < base:
            left.popleft()
        return bool(left) and left[0][0] <= base
