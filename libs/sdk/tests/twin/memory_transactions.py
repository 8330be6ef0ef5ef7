"""
What one log of the cluster in memory knows of transactions: which are open, and what aborted ones wrote.

``memory_log`` tells it of every batch in order; whoever reads asks through the two functions at the end. Replication
takes no time here, so a marker is committed as soon as it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace_common.core.batch import BatchHeader, ControlType
from headrace_proto.v1 import broker_pb2 as pb

if TYPE_CHECKING:
    from libs.sdk.tests.twin.memory_partition import MemoryPartition

MARKER_VALUE: Final = bytes(6)
"""Version and coordinator epoch of a marker, which nobody reads here."""


class Aborted(NamedTuple):
    """What an aborted transaction wrote: its first record, and the marker that ended it."""

    producer_id: int
    first: int
    last: int


class LogTransactions:
    """See the module's text."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """First offset of each open transaction, by producer id."""
        self.aborted: list[Aborted] = []
        """Ascending by their markers."""
        self.verdicts: dict[int, ControlType] = {}
        """The last marker of each producer."""

    def wrote(self, header: BatchHeader, offset: int) -> None:
        """A transactional batch begins at ``offset``."""
        self.open.setdefault(header.producer_id, offset)

    def ended(self, producer_id: int, kind: ControlType, offset: int) -> None:
        """A marker is at ``offset``."""
        first = self.open.pop(producer_id, None)
        self.verdicts[producer_id] = kind
        if first is not None and kind is ControlType.ABORT:
            self.aborted.append(Aborted(producer_id, first, offset))

    def last_stable(self, end: int) -> int:
        """Below it every transaction is decided; ``end``: the high watermark of whoever is asked."""
        return min([end, *self.open.values()])

    def overlapping(self, begin: int, end: int) -> list[Aborted]:
        """Aborted transactions with records between ``begin`` and ``end``, ascending by their markers."""
        return [each for each in self.aborted if each.last >= begin and each.first < end]


def last_stable(partition: MemoryPartition, end: int | None = None) -> int:
    """The last stable offset of a partition; ``end``: the high watermark that is known where it is asked for."""
    log = partition.log
    return log.transactions.last_stable(log.end if end is None else min(end, log.end))


def aborted(partition: MemoryPartition, begin: int, end: int) -> list[pb.AbortedTransaction]:
    """As a fetch answers it: aborted transactions that overlap offsets ``begin`` up to ``end``, which is not one."""
    return [
        pb.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first, last_offset=each.last)
        for each in partition.log.transactions.overlapping(begin, end)
    ]
