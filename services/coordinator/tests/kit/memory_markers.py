"""``Markers`` and ``ProducerIds`` that a test steers; the twins of what talks to leaders, coordinators and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from headrace_common.core.errors import HeadraceError, LeaderNotAvailable
from headrace_common.core.ids import PartitionId
from headrace_coordinator.ports import Destination, Marker, MarkerErrors


@dataclass
class MemoryMarkers:
    """See ``Markers``. ``shut_gate`` holds requests back, as partitions without enough replicas do."""

    written: list[tuple[PartitionId, Marker]] = field(default_factory=list)
    """In their order, repeats too."""
    refusals: dict[PartitionId, list[HeadraceError]] = field(default_factory=dict)
    """Raised by the next markers for a partition, first in first out."""
    lost_answers: int = 0
    """So many requests are carried out and their answers lost."""
    waiting: int = 0
    """Requests that stand before the gate."""
    _gate: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._gate.set()

    def shut_gate(self) -> None:
        """Requests wait from now on."""
        self._gate.clear()

    def open_gate(self) -> None:
        """Requests go on."""
        self._gate.set()

    async def until_waiting(self, requests: int = 1) -> None:
        """Wait until so many requests stand before the gate."""
        while self.waiting < requests:
            await self._changed.wait()

    async def until_written(self, markers: int) -> None:
        """Wait until so many were written."""
        while len(self.written) < markers:
            await self._changed.wait()

    async def write(self, to: Destination, markers: Sequence[tuple[Marker, Sequence[PartitionId]]]) -> MarkerErrors:
        """See ``Markers``."""
        del to
        self.waiting += 1
        self._notify()
        try:
            await self._gate.wait()
        finally:
            self.waiting -= 1
        results = [[self._one(marker, id) for id in ids] for marker, ids in markers]
        self._notify()
        if self.lost_answers:
            self.lost_answers -= 1
            raise LeaderNotAvailable("the answer was lost")
        return results

    def _one(self, marker: Marker, id: PartitionId) -> HeadraceError | None:
        if refusals := self.refusals.get(id):
            return refusals.pop(0)
        self.written.append((id, marker))
        return None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class MemoryProducerIds:
    """See ``ProducerIds``: 1000, 1001 and so on, also for several coordinators that share this."""

    given: int | None = None
    """How many there are yet; None: no end."""
    _numbers: count[int] = field(default_factory=lambda: count(1_000))

    async def next_id(self) -> int:
        """See ``ProducerIds``."""
        if self.given is not None:
            if self.given <= 0:
                raise LeaderNotAvailable("there are no ids now")
            self.given -= 1
        return next(self._numbers)
