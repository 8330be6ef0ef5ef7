"""``Enrolments`` that takes everybody, unless a test says otherwise."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headrace_common.core.errors import HeadraceError


@dataclass
class MemoryEnrolments:
    """See ``Enrolments``. ``shut_gate`` holds questions back, as the end of an earlier transaction does."""

    asked: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Transactional id, producer id, epoch and shard, in their order; repeats too."""
    refusals: list[HeadraceError] = field(default_factory=list)
    """Raised by the next questions, first in first out."""
    _gate: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._gate.set()

    def shut_gate(self) -> None:
        """Questions wait from now on."""
        self._gate.clear()

    def open_gate(self) -> None:
        """Questions go on."""
        self._gate.set()

    async def until_asked(self, count: int = 1) -> None:
        """Wait until so many questions have come."""
        while len(self.asked) < count:
            await self._changed.wait()

    async def enrol(self, transactional_id: str, producer_id: int, producer_epoch: int, shard: int) -> None:
        """See ``Enrolments``."""
        self.asked.append((transactional_id, producer_id, producer_epoch, shard))
        self._changed.set()
        self._changed = asyncio.Event()
        await self._gate.wait()
        if self.refusals:
            raise self.refusals.pop(0)
