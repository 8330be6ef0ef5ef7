"""
Records of a shard's log as record batches and back. Pure; used by the log over gRPC and by its twin in memory.

An append may be larger than one batch: it is cut between records, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headrace_common.core.batch import (
    Codec,
    DecodedBatch,
    RecordColumns,
    build_batch,
    decode_batch,
    read_header,
)
from headrace_common.core.ids import Offset
from headrace_coordinator.core.records import NOTE
from headrace_coordinator.ports import Record, Slice

BATCH_BYTES: Final = 512 << 10
"""Keys and values of one batch before compression; a larger record is a batch of its own."""
RECORDS_PER_BATCH: Final = 10_000
COMPRESS_FROM_BYTES: Final = 4 << 10
_RECORD_OVERHEAD: Final = 16


def cut(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """``records`` in parts that are one batch each, in order; nothing gives one part without records."""
    if not records:
        yield ()
        return
    begin, size = 0, 0
    for at, (key, value) in enumerate(records):
        own = _RECORD_OVERHEAD + len(key) + (0 if value is None else len(value))
        if at > begin and (size + own > BATCH_BYTES or at - begin >= RECORDS_PER_BATCH):
            yield records[begin:at]
            begin, size = at, 0
        size += own
    yield records[begin:]


def build(records: Sequence[Record], *, timestamp_ms: int, producer: tuple[int, int], sequence: int) -> bytes:
    """One batch. Without records it is one note, which every reader passes over."""
    keys: list[bytes | None] = [key for key, _ in records] or [NOTE]
    values: list[bytes | None] = [value for _, value in records] or [None]
    size = sum(map(len, filter(None, values)))
    return build_batch(
        RecordColumns(values=values, keys=keys, timestamps_ms=timestamp_ms),
        codec=Codec.ZSTD if size >= COMPRESS_FROM_BYTES else Codec.NONE,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
    )


def decode(batches: Iterable[bytes], begin: Offset, until: Offset, where: str) -> Slice:
    """
    The records from ``begin`` to below ``until``.

    Raises:
        CorruptBatch, UnsupportedVersion, UnsupportedCompression: with ``where`` and the offset.
    """
    part = Slice([], [], begin)
    for batch in batches:
        header = read_header(batch)
        if header.next_offset <= begin:
            continue
        part = Slice(part.keys, part.values, Offset(header.next_offset))
        if header.control:
            continue
        found = decode_batch(batch, where=f"{where}@{header.base_offset}")
        keys, values = found.keys(), found.values()
        if header.base_offset < begin or header.next_offset > until:
            keys, values = _within(found, keys, values, begin, until)
        if len(keys) == 1 and keys[0] == NOTE:
            continue
        part.keys.extend(keys)
        part.values.extend(values)
    return part


def _within(
    found: DecodedBatch, keys: list[bytes | None], values: list[bytes | None], begin: Offset, until: Offset
) -> tuple[list[bytes | None], list[bytes | None]]:
    kept = [at for at, offset in enumerate(found.offsets()) if begin <= offset < until]
    return [keys[at] for at in kept], [values[at] for at in kept]
