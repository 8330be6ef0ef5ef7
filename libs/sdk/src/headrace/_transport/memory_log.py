"""One partition of the cluster in memory: batches, offsets, and what is known of producers. Called by ``memory``."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from headrace_common.core.batch import check_crc, decode_batch, read_header, stamp, stamp_log_append_time
from headrace_common.core.errors import InvalidProducerEpoch, OutOfOrderSequence

REMEMBERED: Final = 5
SEQUENCES: Final = 2**31
END: Final = -1
START: Final = -2
LATEST: Final = -3


class _Known:
    """The last batches of one producer: (first sequence, last sequence, offset)."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED)


class MemoryLog:
    """Batches as they would be stored; ``end`` is the offset of the next record."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.batches: list[bytes] = []
        self._ends: list[int] = []
        self._producers: dict[int, _Known] = {}

    def append(self, batch: bytes, leader_epoch: int, log_append_ms: int | None = None) -> int:
        """
        The offset of the batch's first record; of one that is known already, the offset that it got then.

        Raises:
            CorruptBatch, OutOfOrderSequence, InvalidProducerEpoch: as a broker refuses.
        """
        header = read_header(batch)
        check_crc(batch, header)
        known = self._producers.get(header.producer_id)
        if header.producer_id >= 0 and known is not None:
            for first, last, offset in known.batches:
                if (known.epoch, first, last) == (header.producer_epoch, header.base_sequence, header.last_sequence):
                    return offset
            self._check_sequence(known, header.producer_epoch, header.base_sequence)
        if header.producer_id >= 0:
            if known is None or known.epoch != header.producer_epoch:
                known = self._producers[header.producer_id] = _Known(header.producer_epoch)
            known.batches.append((header.base_sequence, header.last_sequence, self.end))
        offset = self.end
        if log_append_ms is None:
            self.batches.append(stamp(batch, offset, leader_epoch))
        else:
            self.batches.append(stamp_log_append_time(batch, offset, leader_epoch, log_append_ms))
        self.end = offset + header.last_offset_delta + 1
        self._ends.append(self.end)
        return offset

    @staticmethod
    def _check_sequence(known: _Known, epoch: int, sequence: int) -> None:
        if epoch < known.epoch:
            raise InvalidProducerEpoch(f"epoch {epoch} is older than {known.epoch}")
        expected = 0 if epoch > known.epoch else (known.batches[-1][1] + 1) % SEQUENCES
        if sequence != expected:
            raise OutOfOrderSequence(f"sequence {sequence}; {expected} was expected")

    def forget_producers(self) -> None:
        """As after their expiry: nothing is known of any producer."""
        self._producers.clear()

    def read(self, offset: int, bytes_max: int, *, first: bool) -> list[bytes]:
        """Whole batches from the one that holds ``offset``, up to ``bytes_max``; with ``first`` at least one."""
        taken: list[bytes] = []
        size = 0
        for batch in self.batches[bisect_right(self._ends, offset) :]:
            size += len(batch)
            if size > bytes_max and (taken or not first):
                break
            taken.append(batch)
        return taken

    def find(self, timestamp_ms: int) -> tuple[int, int]:
        """(offset, timestamp): the end (-1), the start (-2), the latest timestamp (-3), or the first at or after."""
        if timestamp_ms == END:
            return self.end, -1
        if timestamp_ms == START:
            return self.start, -1
        rows = [
            (offset, stamp_ms)
            for batch in self.batches
            for offset, stamp_ms in zip(*_offsets_and_times(batch), strict=True)
            if offset >= self.start
        ]
        if timestamp_ms == LATEST:
            return max(rows, key=lambda row: row[1], default=(-1, -1))
        return next((row for row in rows if row[1] >= timestamp_ms), (-1, -1))


def _offsets_and_times(batch: bytes) -> tuple[list[int], list[int]]:
    decoded = decode_batch(batch)
    return decoded.offsets(), decoded.timestamps()
