"""
Batches that consumers have met and could not read, so that the description of a log says where they stop.

A broker does not read what it stores, and a batch may be unreadable behind a good frame, or be older than the checks at
produce. A consumer says so when it fetches such a batch again; it is believed only if it is so.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace_broker.engine.replicas import Replica
from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PartitionId
from headrace_common.runtime.threads import run_in_thread

NOTED_MAX: Final = 1_000


class Unreadable:
    """One for the broker; forgets all with the process."""

    def __init__(self) -> None:
        self._noted: dict[PartitionId, tuple[int, int, str]] = {}
        """First offset, the one after the last, and what is wrong."""
        self._place = asyncio.Semaphore(1)

    async def look(self, partition: PartitionId, batch: bytes) -> None:
        """A consumer says that it cannot read ``batch``, which is stored there."""
        known = self._noted.get(partition)
        try:
            header = read_header(batch)
        except HeadraceError:
            return  # the store checks headers by itself
        if known is not None and known[0] == header.base_offset:
            return
        async with self._place:
            wrong = await run_in_thread(_find_wrong, batch)
        if wrong is not None and (known is not None or len(self._noted) < NOTED_MAX):
            self._noted[partition] = header.base_offset, header.next_offset, wrong

    def text(self, replica: Replica) -> str | None:
        """What is known of a log; None: nothing, or it was trimmed."""
        known = self._noted.get(replica.id)
        if known is None:
            return None
        first, following, wrong = known
        if following <= replica.core.log_start or first >= replica.core.log_end:
            del self._noted[replica.id]
            return None
        return f"offsets {first} to {following - 1}: {wrong}"


def _find_wrong(batch: bytes) -> str | None:
    try:
        decode_batch(batch)
    except HeadraceError as error:
        return str(error)
    return None
