"""
First appends of transactions, parked until the transaction's coordinator has this partition on its list (KIP-890).

The partition machine parks them here and asks; what else the producer sends in that epoch queues behind, in order. Each
question has a number that is good for one answer: when anything happens that the answer cannot know of (a marker, a
newer epoch, another leader), the number is void and what was parked is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace_broker.core.partition_events import BatchArrived

PARKED_PER_PRODUCER_MAX: Final = 64
"""Batches; a client has few under way to one partition."""


@dataclass(slots=True)
class Parked:
    """What waits for one answer."""

    number: int
    epoch: int
    arrivals: list[BatchArrived] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(len(one.batch) for one in self.arrivals)


class Parking:
    """All of one partition, by producer id."""

    __slots__ = ("_next", "_parked", "size")

    def __init__(self) -> None:
        self._parked: dict[int, Parked] = {}
        self._next = 0
        self.size = 0
        """Bytes of batches that are parked."""

    def __len__(self) -> int:
        return len(self._parked)

    def of(self, producer_id: int) -> Parked | None:
        """What is parked of this producer."""
        return self._parked.get(producer_id)

    def park(self, event: BatchArrived) -> int:
        """The first append of a transaction; the number of the question."""
        producer_id = event.header.producer_id
        assert producer_id not in self._parked, "one question for each producer"
        self._next += 1
        self._parked[producer_id] = Parked(self._next, event.header.producer_epoch, [event])
        self.size += len(event.batch)
        return self._next

    def follow(self, parked: Parked, event: BatchArrived) -> bool:
        """The same producer sends more in the same epoch; False: too much of it waits."""
        if len(parked.arrivals) >= PARKED_PER_PRODUCER_MAX:
            return False
        parked.arrivals.append(event)
        self.size += len(event.batch)
        return True

    def take(self, producer_id: int, number: int | None = None) -> list[BatchArrived]:
        """Take out what is parked of this producer; nothing if ``number`` is not that of its question."""
        parked = self._parked.get(producer_id)
        if parked is None or (number is not None and parked.number != number):
            return []
        del self._parked[producer_id]
        self.size -= parked.size
        return parked.arrivals

    def take_all(self) -> list[BatchArrived]:
        """Take out everything, each producer's in order."""
        all_of_them = [one for parked in self._parked.values() for one in parked.arrivals]
        self._parked.clear()
        self.size = 0
        return all_of_them
