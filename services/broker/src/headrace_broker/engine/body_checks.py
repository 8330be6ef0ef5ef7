"""
Refuses batches whose body no reader could read, and records without a key on topics that are compacted, before they are
queued; and compresses what came otherwise where the topic's ``compression.type`` says how it is stored.

Most batches cost microseconds and are checked where they are accepted. Those that must be inflated, or read row by row,
would hold the event loop for milliseconds: the servicer has them checked in a thread before it hands the request over,
and reads no further request of that stream meanwhile, so that batches stay in their order. Control batches are checked
with what they say. What a follower copies is not checked: its leader did so, or has had it since before there was a
check, and replication goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from headrace_broker.core.append_rules import SUPPORTED_MAGIC
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_common.core.batch import (
    ROW_HEADER_SIZE,
    BatchHeader,
    Codec,
    check_body,
    check_crc,
    check_keys,
    is_quick,
    load_decoder,
    read_header,
    recompress_batch,
)
from headrace_common.core.batch.header import ATTRIBUTES_LOW_AT, CODEC_MASK, MAGIC_AT, MAGIC_COLUMNS
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PartitionId
from headrace_common.runtime.threads import run_in_thread

AT_ONCE: Final = 2
"""Batches in threads: each may inflate to 64 MiB."""
COLUMNS_BYTES_QUICK: Final = 4 << 20
"""Of a batch of columns: to look at all of their offsets takes about a millisecond."""
_CODECS: Final = {"uncompressed": Codec.NONE} | {codec.name.lower(): codec for codec in Codec if codec}
"""By ``compression.type``; what is not here is stored as it was sent."""


class Checked(NamedTuple):
    """What came of a batch in a thread."""

    error: HeadraceError | None
    batch: bytes
    """As it is to be stored: as it was sent, or in the codec of its topic."""


NOTHING_CHECKED: Final[Mapping[int, Checked]] = {}


class Entry(Protocol):
    """What is looked at of a batch in a request."""

    @property
    def partition(self) -> PartitionId:
        """Where it is to go."""
        ...

    @property
    def batch(self) -> bytes: ...


class BodyChecks:
    """One for the broker."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._places = asyncio.Semaphore(AT_ONCE)
        self._loaded: set[int] = set()
        """Of which magics the libraries that decode were loaded; that takes a tenth of a second, once."""

    def costly(self, entries: Sequence[Entry]) -> list[int]:
        """Which of a request's batches are to be checked in a thread, by index; nearly always none."""
        return [index for index, entry in enumerate(entries) if self._is_costly(entry)]

    def _is_costly(self, entry: Entry) -> bool:
        replica, batch = self._replicas.get(entry.partition), entry.batch
        if replica is None or not ROW_HEADER_SIZE <= len(batch) <= replica.core.config.max_message_bytes:
            return False  # who accepts it says so
        if batch[MAGIC_AT] not in self._loaded:
            return batch[MAGIC_AT] in SUPPORTED_MAGIC
        if _target(replica, batch) is not None:
            return True
        keys = replica.core.config.compacts
        if not keys and batch[MAGIC_AT] == MAGIC_COLUMNS and len(batch) <= COLUMNS_BYTES_QUICK:
            return False  # without a look at the header: nearly all
        try:
            header = read_header(batch)
            if header.control or not header.record_count:
                return False
            if header.magic == MAGIC_COLUMNS and not keys:
                return header.codec is Codec.NONE
            return not is_quick(batch, header)
        except HeadraceError:
            return False

    async def check_beside(self, entries: Sequence[Entry], costly: Sequence[int]) -> Mapping[int, Checked]:
        """What is wrong with each of these batches, by index, and what to store of it."""
        checked: dict[int, Checked] = {}
        for index in costly:
            entry = entries[index]
            replica = self._replicas.get(entry.partition)
            if replica is not None:
                keys_for = replica.topic if replica.core.config.compacts else None
                target = _target(replica, entry.batch)
                async with self._places:
                    checked[index] = await run_in_thread(_check_batch, entry.batch, keys_for, target)
                self._loaded.add(entry.batch[MAGIC_AT])
        return checked

    @staticmethod
    def check(replica: Replica, header: BatchHeader, batch: bytes) -> None:
        """
        Check a batch whose header and CRC are right, here and now.

        Raises:
            InvalidRecord: a record has no key.
            CorruptBatch, UnsupportedVersion: no reader could read it.
        """
        if not header.control:
            _check(header, batch, replica.topic if replica.core.config.compacts else None)


def _target(replica: Replica, batch: bytes) -> Codec | None:
    """The codec in which the batch is to be stored; None: as it is."""
    name = replica.core.config.compression_type
    if name == "producer":
        return None
    codec = _CODECS[name]
    return None if batch[ATTRIBUTES_LOW_AT] & CODEC_MASK == codec else codec


def _check_batch(batch: bytes, keys_for: str | None, target: Codec | None) -> Checked:
    try:
        load_decoder(batch[MAGIC_AT])
        header = read_header(batch)
        check_crc(batch, header)
        if header.record_count and not header.control:
            _check(header, batch, keys_for)
            if target is not None:
                batch = recompress_batch(batch, header, target)
    except HeadraceError as error:
        return Checked(error, batch)
    return Checked(None, batch)


def _check(header: BatchHeader, batch: bytes, keys_for: str | None) -> None:
    """``keys_for``: the topic, if it is compacted. To look for keys everything is decoded."""
    if keys_for is None:
        check_body(batch, header)
    else:
        check_keys(batch, keys_for)
