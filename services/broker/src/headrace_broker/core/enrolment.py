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
    """
    All of one partition, by producer id and by the transactional id that the batches name: whoever names another one
    does not make those of the right one wait, or fail.
    """

    __slots__ = ("_next", "_parked", "size")

    def __init__(self) -> None:
        self._parked: dict[int, dict[str | None, Parked]] = {}
        self._next = 0
        self.size = 0
        """Bytes of batches that are parked."""

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def of(self, producer_id: int, transactional_id: str | None) -> Parked | None:
        """What is parked of this producer; None for the id: under any."""
        parked = self._parked.get(producer_id)
        if parked is None:
            return None
        return next(iter(parked.values())) if transactional_id is None else parked.get(transactional_id)

    def older(self, producer_id: int, epoch: int) -> list[Parked]:
        """What is parked of epochs of this producer before ``epoch``."""
        return [one for one in self._parked.get(producer_id, {}).values() if one.epoch < epoch]

    def park(self, event: BatchArrived) -> int:
        """The first append of a transaction; the number of the question."""
        parked = self._parked.setdefault(event.header.producer_id, {})
        assert event.transactional_id not in parked, "one question for each producer"
        self._next += 1
        parked[event.transactional_id] = Parked(self._next, event.header.producer_epoch, [event])
        self.size += len(event.batch)
        return self._next

    def follow(self, parked: Parked, event: BatchArrived) -> bool:
        """The same producer sends more in the same epoch; False: too much of it waits."""
        if len(parked.arrivals) >= PARKED_PER_PRODUCER_MAX:
            return False
        parked.arrivals.append(event)
        self.size += len(event.batch)
        return True

    def take(self, producer_id: int, number: int) -> list[BatchArrived]:
        """Take out what is parked of this producer for question ``number``; nothing if that is void."""
        parked = self._parked.get(producer_id, {})
        for transactional_id, one in parked.items():
            if one.number == number:
                del parked[transactional_id]
                if not parked:
                    del self._parked[producer_id]
                self.size -= one.size
                return one.arrivals
        return []

    def take_all(self) -> list[BatchArrived]:
        """Take out everything, each producer's in order."""
        all_of_them = [one for by_id in self._parked.values() for parked in by_id.values() for one in parked.arrivals]
        self._parked.clear()
        self.size = 0
        return all_of_them
