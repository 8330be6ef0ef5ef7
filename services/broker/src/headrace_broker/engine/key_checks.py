"""
Refuses records without a key on topics that are compacted, before their batch is queued.

Most batches cost microseconds and are checked where they are accepted. Those that must be inflated, or read row by row,
would hold the event loop for milliseconds: the servicer has them checked in a thread before it hands the request over,
and reads no further request of that stream meanwhile, so that batches stay in their order. Control batches have no keys
to speak of, and what a follower copies was checked by its leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from headrace_broker.engine.replicas import Replica, Replicas
from headrace_common.core.batch import BatchHeader, check_crc, check_keys, is_quick, read_header
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PartitionId

AT_ONCE: Final = 2
"""Batches in threads: each may inflate to 64 MiB."""
NOTHING_CHECKED: Final[Mapping[int, HeadraceError | None]] = {}


class Entry(Protocol):
    """What is looked at of a batch in a request."""

    @property
    def partition(self) -> PartitionId:
        """Where it is to go."""
        ...

    @property
    def batch(self) -> bytes:
        """As it came."""
        ...


class KeyChecks:
    """One for the broker."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._places = asyncio.Semaphore(AT_ONCE)
        self._warm = False
        """The libraries that decode were loaded; that takes a tenth of a second, once."""

    def costly(self, entries: Sequence[Entry]) -> list[int]:
        """Which of a request's batches are to be checked in a thread, by index; nearly always none."""
        return [index for index, entry in enumerate(entries) if self._is_costly(entry)]

    def _is_costly(self, entry: Entry) -> bool:
        replica = self._replicas.get(entry.partition)
        if replica is None or not replica.core.config.compacts:
            return False
        try:
            header = read_header(entry.batch)
            if header.control or not header.record_count or header.size > replica.core.config.max_message_bytes:
                return False
            return not self._warm or not is_quick(entry.batch, header)
        except HeadraceError:
            return False  # who accepts it says so

    async def beside(self, entries: Sequence[Entry], costly: Sequence[int]) -> Mapping[int, HeadraceError | None]:
        """What is wrong with each of these batches, by index; None: nothing."""
        verdicts: dict[int, HeadraceError | None] = {}
        for index in costly:
            replica = self._replicas.get(entries[index].partition)
            if replica is not None:
                async with self._places:
                    verdicts[index] = await asyncio.to_thread(_verdict, entries[index].batch, replica.topic)
        self._warm = True
        return verdicts

    @staticmethod
    def check(replica: Replica, header: BatchHeader, batch: bytes) -> None:
        """
        Check a batch whose header and CRC are right, here and now.

        Raises:
            InvalidRecord: a record has no key.
            CorruptBatch, UnsupportedVersion: no cleaner could read it.
        """
        if replica.core.config.compacts and not header.control:
            check_keys(batch, replica.topic)


def _verdict(batch: bytes, topic: str) -> HeadraceError | None:
    try:
        check_crc(batch, read_header(batch))
        check_keys(batch, topic)
    except HeadraceError as error:
        return error
    return None
