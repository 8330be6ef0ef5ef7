"""Blocks of producer ids: each id is given to one broker, once, whatever crashes. For one term in office."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace_controller.core import records
from headrace_controller.core.store import Put, Unchanged
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.writer import Decision, Writer

BLOCK: Final = 1_000


class ProducerIds:
    """The counter ``ids/producer``: the first id that nobody has."""

    def __init__(self, writer: Writer, follower: Follower) -> None:
        self._writer = writer
        self._follower = follower
        self._one_by_one = asyncio.Lock()

    async def allocate(self) -> range:
        """
        The next block. When the outcome is unknown a block may be lost; ids are plenty.

        Raises:
            HeadraceError: as ``Writer.decide``.
        """
        first = 0

        def decision() -> Decision:
            nonlocal first
            mirror = self._follower.mirror
            first = mirror.number(records.PRODUCER_KEY, records.PRODUCER_FIRST)
            key = records.PRODUCER_KEY
            write = Put(key, records.encode_number(first + BLOCK))
            return Decision((write,), (Unchanged(key, mirror.mod_revision(key)),))

        async with self._one_by_one:  # in one process; the comparison guards against all others
            await self._writer.decide(decision)
        return range(first, first + BLOCK)
