"""
Producer ids for idempotent producers, from a block that the controller gave to this broker.

The block is refilled in the background when half of it is used; a caller waits only when it is used up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from headrace_broker.engine.ownership import Ownership
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.errors import HeadraceError, Rejected, RequestTimedOut
from headrace_common.core.ids import NO_PRODUCER_ID
from headrace_common.runtime.clock import limit_s
from headrace_common.runtime.tasks import TaskRunner

EPOCH_MAX: Final = 32_767
CALLER_WAIT_S: Final = 10.0


class IdSource(Protocol):
    """Where blocks come from."""

    async def allocate_producer_ids(self) -> range:
        """A block that nobody else ever gets. Raises ``HeadraceError`` when none can be had now."""
        ...


class ProducerIds:
    """One for the broker."""

    def __init__(self, source: IdSource, tasks: TaskRunner) -> None:
        self._source = source
        self._tasks = tasks
        self._blocks: deque[range] = deque()
        self.highest = NO_PRODUCER_ID
        """The highest id that this broker may have given out; -1: none."""
        self._refill_at = 0
        self._refilling: asyncio.Task[HeadraceError | None] | None = None

    @property
    def left(self) -> int:
        return sum(map(len, self._blocks))

    async def init(self, producer_id: int | None, epoch: int | None, rights: Rights = EVERYTHING) -> tuple[int, int]:
        """
        A new id with epoch 0, or the next epoch of the caller's; a new id when its epochs are used up, and for who
        names one that is not its own.

        ``rights``: of the caller, whose the id will be.

        Raises:
            Rejected: only one of the two was given, or one is out of bounds.
            HeadraceError: no ids are left and the controller gives none now.
        """
        ownership = Ownership(rights)
        if (producer_id is None) != (epoch is None):
            raise Rejected("producer_id and producer_epoch come together or not at all")
        if producer_id is not None and epoch is not None:
            if producer_id < 0 or not 0 <= epoch <= EPOCH_MAX:
                raise Rejected(f"producer id {producer_id} with epoch {epoch} was never given out; ask without both")
            if epoch < EPOCH_MAX and ownership.refusal(producer_id) is None:
                return producer_id, epoch + 1
        return ownership.own(await self._next()), 0

    def prefetch(self) -> None:
        """Get the first block before anybody asks, so that a producer can start while controllers are down."""
        if not self._blocks:
            self._refill()

    async def _next(self) -> int:
        while not self._blocks:
            try:
                async with limit_s(CALLER_WAIT_S):
                    failure = await asyncio.shield(self._refill())
            except TimeoutError:
                raise RequestTimedOut("the controller gave no producer ids in time; ask again") from None
            if failure is not None:
                raise failure
        block = self._blocks[0]
        self._blocks[0] = block[1:]
        if len(block) == 1:
            self._blocks.popleft()
        if self.left <= self._refill_at:
            self._refill()
        return block[0]

    def _refill(self) -> asyncio.Task[HeadraceError | None]:
        if self._refilling is None or self._refilling.done():
            self._refilling = self._tasks.start(self._fetch_block(), name="producer-ids")
        return self._refilling

    async def _fetch_block(self) -> HeadraceError | None:
        try:
            block = await self._source.allocate_producer_ids()
        except HeadraceError as error:
            return error
        self._blocks.append(block)
        self.highest = max(self.highest, block[-1])
        self._refill_at = len(block) // 2
        return None
