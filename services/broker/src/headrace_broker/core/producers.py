"""
What is known of idempotent and transactional producers in one partition, and whether their next batch follows.

The partition machine asks before each append. The state is part of the log: it is rebuilt from the last snapshot
and the index rows after it, so everything here can be had from those two. The algorithm is that of Kafka's
ProducerStateManager (KIP-98, KIP-360), with the epochs of KIP-890: a producer epoch belongs to one transaction, and the
marker that ends it raises the epoch, so whatever is late is told by its epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple

from headrace_broker.core.owned_ids import serial_of
from headrace_broker.core.rows import COMMITS_BIT, TRANSACTIONAL_BIT, IndexRow, ProducerBatch, ProducerRow
from headrace_common.core.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from headrace_common.core.ids import NO_PRODUCER_ID, Offset

BATCHES_KEPT: Final = 5
SEQUENCES: Final = 2**31
_OLDER: Final = (
    "producer {} wrote with epoch {}; {} is older, its transaction has ended or a newer instance has taken over: abort"
    " the transaction, or without one ask for a new producer id"
)


def last_of(first: int, records: int) -> int:
    """The sequence of the last of ``records`` records; after 2147483647 comes 0."""
    return (first + records - 1) % SEQUENCES


class Ended(NamedTuple):
    """A transaction that has its marker."""

    marker: Offset
    """Where that is."""
    start: Offset
    """The transaction's first offset."""


@dataclass(slots=True)
class Producer:
    """One producer id: its epoch, its last batches in this epoch, oldest first."""

    epoch: int
    batches: tuple[ProducerBatch, ...]
    last_timestamp_ms: int
    """The broker's clock when it last wrote."""
    transaction_start: Offset | None = None
    transaction_since_ms: int = -1
    committed: bool | None = None
    """What the marker said that began the epoch, while nothing else was written in it."""

    def find(self, first: int, records: int) -> ProducerBatch | None:
        """The stored batch of ``records`` sequences from ``first`` on; None: it is not among the last ones."""
        last = last_of(first, records)
        for stored in self.batches:
            if stored.first_sequence == first and stored.last_sequence == last:
                return stored
        return None


class Producers:
    """All producers of one partition."""

    __slots__ = ("_idle", "_known", "open")

    def __init__(self, rows: Iterable[ProducerRow] = ()) -> None:
        self._known = {
            row.producer_id: Producer(
                row.epoch,
                row.batches,
                row.last_timestamp_ms,
                row.transaction_start,
                row.transaction_since_ms,
                row.committed,
            )
            for row in rows
        }
        opened = [(one.transaction_start, id) for id, one in self._known.items() if one.transaction_start is not None]
        self.open = {id: start for start, id in sorted(opened)}
        """Where open transactions begin, by producer id, ascending by that; changed only here."""
        idle = sorted((one.last_timestamp_ms, id) for id, one in self._known.items() if id not in self.open)
        self._idle: OrderedDict[int, None] = OrderedDict((id, None) for _, id in idle)
        """Those without an open transaction: who has not written for longest comes first."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def first_open(self) -> Offset | None:
        """Where the open transaction begins that began first; None: none is open."""
        for start in self.open.values():
            return start
        return None

    def oldest_open(self) -> tuple[int, Producer] | None:
        for producer_id in self.open:
            return producer_id, self._known[producer_id]
        return None

    def highest_id(self, id_max: int) -> int:
        """The highest number of the counter of producer ids, of those up to ``id_max``; -1: none is known."""
        return max((serial for serial in map(serial_of, self._known) if serial <= id_max), default=NO_PRODUCER_ID)

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the transaction of this epoch is open here."""
        return producer_id in self.open and self._known[producer_id].epoch == epoch

    def has_open(self, producer_id: int) -> bool:
        """Whether any transaction of this producer is open here."""
        return producer_id in self.open

    def find_sent(self, producer_id: int, epoch: int, first: int, records: int) -> ProducerBatch | None:
        """The stored batch, when this one was sent before; None: nothing is known of it."""
        known = self._known.get(producer_id)
        return None if known is None or epoch != known.epoch else known.find(first, records)

    def check(
        self, producer_id: int, epoch: int, first: int, records: int, *, transactional: bool = False
    ) -> ProducerBatch | None:
        """
        None when the batch follows; the stored one when it was sent before, to be answered with its offset.

        Raises:
            InvalidProducerEpoch: a newer instance of the producer has written, or its transaction has ended.
            InvalidTxnState: the producer has an open transaction here, and the batch is not part of any.
            OutOfOrderSequence: a batch is missing before this one, or the sequence was used for another batch.
        """
        known = self._known.get(producer_id)
        if known is None:
            if transactional and first != 0:
                raise _not_from_zero(producer_id, epoch, first)
            return None
        if epoch == known.epoch and (stored := known.find(first, records)) is not None:
            return stored
        if epoch < known.epoch:
            raise InvalidProducerEpoch(_OLDER.format(producer_id, known.epoch, epoch))
        if known.transaction_start is not None and not transactional:
            raise InvalidTxnState(
                f"producer {producer_id} has an open transaction here since offset {known.transaction_start}; end it"
                " before records are sent outside of it"
            )
        if epoch > known.epoch or not known.batches:
            if first != 0:
                raise _not_from_zero(producer_id, epoch, first)
        elif first != (known.batches[-1].last_sequence + 1) % SEQUENCES:
            raise OutOfOrderSequence(
                f"producer {producer_id}, epoch {epoch}: sequence {first} does not follow"
                f" {known.batches[-1].last_sequence}; a batch was lost or its sequence was used twice"
            )
        return None

    def check_marker(self, producer_id: int, epoch: int, commit: bool) -> bool:
        """
        True: the marker is to be appended. False: it was before, so this is a repeat.

        Raises:
            InvalidProducerEpoch: the partition has moved on.
        """
        known = self._known.get(producer_id)
        if known is None or epoch > known.epoch:
            return True
        if epoch == known.epoch and known.committed is commit and known.transaction_start is None:
            return False
        raise InvalidProducerEpoch(
            f"producer {producer_id} has epoch {known.epoch} here; a marker has to be above it, and {epoch} is not"
        )

    def note_appended(
        self,
        producer_id: int,
        epoch: int,
        first: int,
        records: int,
        offset: Offset,
        timestamp: int,
        now_ms: int,
        *,
        transactional: bool = False,
    ) -> None:
        """A batch that ``check`` let through, or that was read back from the log, has this base ``offset``."""
        entry = ProducerBatch(first, last_of(first, records), offset, timestamp)
        known = self._known.get(producer_id)
        if known is None:
            known = self._known[producer_id] = Producer(epoch, (entry,), now_ms)
        elif known.epoch != epoch:
            known.epoch, known.batches, known.last_timestamp_ms, known.committed = epoch, (entry,), now_ms, None
        else:
            known.batches = (*known.batches[1 - BATCHES_KEPT :], entry)
            known.last_timestamp_ms = now_ms
            known.committed = None
        if transactional and known.transaction_start is None:
            known.transaction_start, known.transaction_since_ms = offset, now_ms
            self.open[producer_id] = offset
            self._idle.pop(producer_id, None)
        elif known.transaction_start is None:
            self._note_writer(producer_id)

    def _note_writer(self, producer_id: int) -> None:
        self._idle[producer_id] = None
        self._idle.move_to_end(producer_id)

    def forget_above(self, most: int) -> None:
        """
        Forget those that have not written for longest, until ``most`` are known. One with an open transaction stays,
        and so does the last one to write.
        """
        while len(self._known) > most and len(self._idle) > 1:
            producer_id, _ = self._idle.popitem(last=False)
            del self._known[producer_id]

    def end(self, producer_id: int, epoch: int, commit: bool, now_ms: int) -> Offset | None:
        """A marker was appended, or read back; where the transaction began that it ends. None: none was open."""
        known = self._known.get(producer_id)
        if known is None:
            self._known[producer_id] = Producer(epoch, (), now_ms, committed=commit)
            self._note_writer(producer_id)
            return None
        known.epoch, known.batches, known.last_timestamp_ms, known.committed = epoch, (), now_ms, commit
        known.transaction_start, known.transaction_since_ms = None, -1
        self._note_writer(producer_id)
        return self.open.pop(producer_id, None)

    def replay(self, rows: Iterable[IndexRow], now_ms: int) -> list[Ended]:
        """
        Bring a snapshot up to date from the rows after it; the transactions that end in them.

        Idle time counts anew from ``now_ms``; the age of an open transaction from its records' timestamps.
        """
        ended: list[Ended] = []
        for row in rows:
            if row.producer_id < 0:
                continue
            if row.ends_transaction:
                commit = bool(row.attributes & COMMITS_BIT)
                start = self.end(row.producer_id, row.producer_epoch, commit, now_ms)
                if start is not None:
                    ended.append(Ended(row.base_offset, start))
            elif row.base_sequence >= 0:
                self._replay_batch(row, now_ms)
        return ended

    def _replay_batch(self, row: IndexRow, now_ms: int) -> None:
        transactional = bool(row.attributes & TRANSACTIONAL_BIT)
        opens = transactional and row.producer_id not in self.open
        self.note_appended(
            row.producer_id,
            row.producer_epoch,
            row.base_sequence,
            row.last_offset_delta + 1,
            row.base_offset,
            row.segment_max_timestamp,
            now_ms,
            transactional=transactional,
        )
        if opens and 0 <= row.segment_max_timestamp < now_ms:
            self._known[row.producer_id].transaction_since_ms = row.segment_max_timestamp

    def expire(self, before_ms: int) -> int:
        """Forget producers that last wrote before ``before_ms``, but for those in a transaction; how many."""
        idle = [
            producer_id
            for producer_id, known in self._known.items()
            if known.last_timestamp_ms < before_ms and known.transaction_start is None
        ]
        for producer_id in idle:
            del self._known[producer_id], self._idle[producer_id]
        return len(idle)

    def first(self, count: int, *, open_only: bool = False) -> tuple[ProducerRow, ...]:
        """The first ``count``: by the start of their open transactions, then those without one by their ids."""
        ids = list(islice(self.open, count))
        if not open_only and len(ids) < count:
            ids += nsmallest(count - len(ids), (one for one in self._known if one not in self.open))
        return tuple(_row(one, self._known[one]) for one in ids)

    def snapshot(self) -> tuple[ProducerRow, ...]:
        """Everything known, as it is stored."""
        return tuple(_row(producer_id, known) for producer_id, known in self._known.items())


def _row(producer_id: int, known: Producer) -> ProducerRow:
    return ProducerRow(
        producer_id,
        known.epoch,
        known.batches,
        known.last_timestamp_ms,
        known.transaction_start,
        known.transaction_since_ms,
        known.committed,
    )


def _not_from_zero(producer_id: int, epoch: int, first: int) -> OutOfOrderSequence:
    return OutOfOrderSequence(
        f"producer {producer_id} starts epoch {epoch} with sequence {first}; a new epoch starts from 0, and so does a"
        " transaction in each partition"
    )
