"""One partition of the cluster in memory: batches, offsets, and what is known of producers. Called by ``memory``."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from libs.sdk.tests.twin.memory_transactions import MARKER_VALUE, LogTransactions

from headrace_common.core.batch import (
    BatchHeader,
    ControlType,
    build_control_batch,
    check_crc,
    decode_batch,
    read_control,
    read_header,
    stamp,
    stamp_log_append_time,
)
from headrace_common.core.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence

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

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.end = 0
        self.batches: list[bytes] = []
        self._ends: list[int] = []
        self._producers: dict[int, _Known] = {}
        self.transactions = LogTransactions()

    def append(self, batch: bytes, leader_epoch: int, log_append_ms: int | None = None) -> int:
        """
        The offset of the batch's first record; of one that is known already, the offset that it got then.

        Raises:
            CorruptBatch, OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: as a broker refuses.
        """
        header = read_header(batch)
        check_crc(batch, header)
        repeated = self.check(header)
        if repeated is not None:
            return repeated
        self._remember(header)
        offset = self.end
        if log_append_ms is None:
            self.batches.append(stamp(batch, offset, leader_epoch))
        else:
            self.batches.append(stamp_log_append_time(batch, offset, leader_epoch, log_append_ms))
        self.end = offset + header.last_offset_delta + 1
        self._ends.append(self.end)
        return offset

    def check(self, header: BatchHeader) -> int | None:
        """
        The offset that the batch got before, if it is a repeated one; None: it may be appended.

        Raises:
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: it may not.
        """
        known = self._producers.get(header.producer_id)
        if known is not None:
            for first, last, offset in known.batches:
                if (known.epoch, first, last) == (header.producer_epoch, header.base_sequence, header.last_sequence):
                    return offset
            self._check_sequence(known, header.producer_epoch, header.base_sequence)
        elif header.transactional and header.base_sequence:
            raise OutOfOrderSequence(f"sequence {header.base_sequence}; a transaction begins with 0")
        if not header.transactional and header.producer_id in self.transactions.open:
            raise InvalidTxnState(f"producer {header.producer_id} has a transaction open in this partition")
        return None

    def in_transaction(self, header: BatchHeader) -> bool:
        """Whether the batch's transaction has written here before."""
        known = self._producers.get(header.producer_id)
        is_open = header.producer_id in self.transactions.open
        return is_open and known is not None and known.epoch == header.producer_epoch

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool, leader_epoch: int, now_ms: int) -> None:
        """
        Write the marker that ends a transaction; one that was written before is not written again.

        Raises:
            InvalidProducerEpoch: the partition has moved on.
        """
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        known = self._producers.get(producer_id)
        if known is not None and epoch <= known.epoch:
            is_open = producer_id in self.transactions.open
            if epoch == known.epoch and not is_open and self.transactions.verdicts.get(producer_id) is kind:
                return
            raise InvalidProducerEpoch(f"a marker of epoch {epoch}, where epoch {known.epoch} is known")
        marker = build_control_batch(
            kind, MARKER_VALUE, timestamp_ms=now_ms, producer_id=producer_id, producer_epoch=epoch
        )
        self._take(stamp(marker, self.end, leader_epoch))

    def _remember(self, header: BatchHeader) -> None:
        """A batch of records is about to be at the end of the log."""
        if header.producer_id < 0:
            return
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            known = self._producers[header.producer_id] = _Known(header.producer_epoch)
        known.batches.append((header.base_sequence, header.last_sequence, self.end))
        if header.transactional:
            self.transactions.wrote(header, self.end)

    @staticmethod
    def _check_sequence(known: _Known, epoch: int, sequence: int) -> None:
        if epoch < known.epoch:
            raise InvalidProducerEpoch(f"epoch {epoch} is older than {known.epoch}")
        fresh = epoch > known.epoch or not known.batches
        expected = 0 if fresh else (known.batches[-1][1] + 1) % SEQUENCES
        if sequence != expected:
            raise OutOfOrderSequence(f"sequence {sequence}; {expected} was expected")

    def truncate(self, end: int) -> None:
        """Cut what is at ``end`` and above, which is where a batch begins; what is known of producers goes with it."""
        kept = [batch for batch, batch_end in zip(self.batches, self._ends, strict=True) if batch_end <= end]
        self.end = 0
        self.batches, self._ends, self._producers = [], [], {}
        self.transactions = LogTransactions()
        for batch in kept:
            self._take(batch)

    def copy(self) -> MemoryLog:
        """Another log with the same content."""
        twin = MemoryLog(self.start)
        for batch in self.batches:
            twin._take(batch)
        return twin

    def _take(self, batch: bytes) -> None:
        """A batch as another log stored it."""
        header = read_header(batch)
        assert header.base_offset == self.end, "logs are copied from their beginning"
        if header.control:
            self._ended(batch, header)
        else:
            self._remember(header)
        self.batches.append(batch)
        self.end = header.next_offset
        self._ends.append(self.end)

    def _ended(self, batch: bytes, header: BatchHeader) -> None:
        kind, _ = read_control(decode_batch(batch))
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            self._producers[header.producer_id] = _Known(header.producer_epoch)
            self.transactions.ended(header.producer_id, kind, header.base_offset)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not above ``epoch``, and where it ends; -1 when there is none."""
        found, end = -1, 0
        for batch, batch_end in zip(self.batches, self._ends, strict=True):
            of_batch = read_header(batch).leader_epoch
            if of_batch > epoch:
                return found, end
            found, end = of_batch, batch_end
        return found, self.end

    def forget_producers(self) -> None:
        """As after their expiry: nothing is known of any producer."""
        self._producers.clear()

    def read(self, offset: int, bytes_max: int, *, first: bool, end: int) -> list[bytes]:
        """
        Whole batches below ``end``, from the one that holds ``offset``.

        Args:
            bytes_max: most of them, in bytes.
            first: one comes whatever its size.
        """
        taken: list[bytes] = []
        size = 0
        for batch in self.batches[bisect_right(self._ends, offset) : bisect_right(self._ends, end)]:
            size += len(batch)
            if size > bytes_max and (taken or not first):
                break
            taken.append(batch)
        return taken

    def find(self, timestamp_ms: int, end: int) -> tuple[int, int]:
        """(offset, timestamp): the start (-2), the latest timestamp (-3), or the first at or after; below ``end``."""
        if timestamp_ms == START:
            return self.start, -1
        rows = [
            (offset, stamp_ms)
            for batch in self.batches
            if not read_header(batch).control
            for offset, stamp_ms in zip(*_offsets_and_times(batch), strict=True)
            if self.start <= offset < end
        ]
        if timestamp_ms == LATEST:
            return max(rows, key=lambda row: row[1], default=(-1, -1))
        return next((row for row in rows if row[1] >= timestamp_ms), (-1, -1))


def _offsets_and_times(batch: bytes) -> tuple[list[int], list[int]]:
    decoded = decode_batch(batch)
    return decoded.offsets(), decoded.timestamps()
