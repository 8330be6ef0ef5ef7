"""
What is known of idempotent producers in one partition, and whether their next batch follows (04-replication §8).

The partition machine asks before each append. The state is part of the log: it is rebuilt from the last snapshot
and the index rows after it, so everything here can be had from those two. The algorithm is that of Kafka's
ProducerStateManager (KIP-98, KIP-360).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.rows import IndexRow, ProducerBatch, ProducerRow
from headrace_common.core.errors import InvalidProducerEpoch, OutOfOrderSequence
from headrace_common.core.ids import NO_PRODUCER_ID, Offset

BATCHES_KEPT: Final = 5
SEQUENCES: Final = 2**31


def last_of(first: int, records: int) -> int:
    """The sequence of the last of ``records`` records; after 2147483647 comes 0."""
    return (first + records - 1) % SEQUENCES


@dataclass(slots=True)
class Producer:
    """One producer id: its epoch, its last batches in this epoch, oldest first."""

    epoch: int
    batches: tuple[ProducerBatch, ...]
    last_timestamp_ms: int
    """The broker's clock when it last wrote."""
    transaction_start: Offset | None = None


class Producers:
    """All producers of one partition."""

    __slots__ = ("_known",)

    def __init__(self, rows: Iterable[ProducerRow] = ()) -> None:
        self._known = {
            row.producer_id: Producer(row.epoch, row.batches, row.last_timestamp_ms, row.transaction_start)
            for row in rows
        }

    def __len__(self) -> int:
        return len(self._known)

    def highest_id(self, id_max: int) -> int:
        """The highest producer id known, of those up to ``id_max``; -1: none."""
        return max((producer_id for producer_id in self._known if producer_id <= id_max), default=NO_PRODUCER_ID)

    def check(self, producer_id: int, epoch: int, first: int, records: int) -> ProducerBatch | None:
        """
        None when the batch follows; the stored one when it was sent before, to be answered with its offset.

        Raises:
            InvalidProducerEpoch: a newer instance of the producer has written.
            OutOfOrderSequence: a batch is missing before this one, or the sequence was used for another batch.
        """
        known = self._known.get(producer_id)
        if known is None:
            return None
        last = last_of(first, records)
        if epoch == known.epoch:
            for stored in known.batches:
                if stored.first_sequence == first and stored.last_sequence == last:
                    return stored
        if epoch < known.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} wrote with epoch {known.epoch}; {epoch} is older: ask for a new producer id"
            )
        if epoch > known.epoch:
            if first != 0:
                raise OutOfOrderSequence(
                    f"producer {producer_id} starts epoch {epoch} with sequence {first}; a new epoch starts from 0"
                )
        elif known.batches and first != (known.batches[-1].last_sequence + 1) % SEQUENCES:
            raise OutOfOrderSequence(
                f"producer {producer_id}, epoch {epoch}: sequence {first} does not follow"
                f" {known.batches[-1].last_sequence}; a batch was lost or its sequence was used twice"
            )
        return None

    def appended(
        self, producer_id: int, epoch: int, first: int, records: int, offset: Offset, timestamp: int, now_ms: int
    ) -> None:
        """A batch that ``check`` let through, or that was read back from the log, has this base ``offset``."""
        entry = ProducerBatch(first, last_of(first, records), offset, timestamp)
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch:
            self._known[producer_id] = Producer(epoch, (entry,), now_ms)
            return
        known.batches = (*known.batches[1 - BATCHES_KEPT :], entry)
        known.last_timestamp_ms = now_ms

    def replay(self, rows: Iterable[IndexRow], now_ms: int) -> int:
        """Bring a snapshot up to date from the rows after it; their number. Idle time counts anew from ``now_ms``."""
        count = 0
        for row in rows:
            count += 1
            if row.producer_id >= 0 and row.base_sequence >= 0:
                records = row.last_offset_delta + 1
                self.appended(
                    row.producer_id,
                    row.producer_epoch,
                    row.base_sequence,
                    records,
                    row.base_offset,
                    row.segment_max_timestamp,
                    now_ms,
                )
        return count

    def expire(self, before_ms: int) -> int:
        """Forget producers that last wrote before ``before_ms``, but for those in a transaction; how many."""
        idle = [
            producer_id
            for producer_id, known in self._known.items()
            if known.last_timestamp_ms < before_ms and known.transaction_start is None
        ]
        for producer_id in idle:
            del self._known[producer_id]
        return len(idle)

    def snapshot(self) -> tuple[ProducerRow, ...]:
        """Everything known, as it is stored."""
        return tuple(
            ProducerRow(producer_id, known.epoch, known.batches, known.last_timestamp_ms, known.transaction_start)
            for producer_id, known in self._known.items()
        )
