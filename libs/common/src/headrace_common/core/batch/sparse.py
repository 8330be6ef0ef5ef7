"""
Batches with fewer records than they were sent with: what compaction makes of them.

A sparse batch keeps its offsets, times, producer, epoch and codec, so that nothing but the records that went is
different to any reader. One without any record is a header alone. Compaction in the broker calls this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_common.core.batch.decode import decode_batch
from headrace_common.core.batch.header import (
    CODEC_MASK,
    FIELDS,
    HEADER_SIZE,
    INT32_MAX,
    LENGTH_PREFIX,
    MAGIC_COLUMNS,
    ROW_HEADER_SIZE,
    BatchHeader,
    read_header,
    seal_batch,
)

if TYPE_CHECKING:
    from headrace_common.core.batch.decoded import Mask

_RESERVED = b"\0\0\0"


def filter_records(batch: bytes, keep: Sequence[bool] | Mask, *, where: str = "") -> bytes:
    """
    ``batch`` with only the records for which ``keep`` is true; itself if that is all of them.

    Offsets, times, producer fields, epoch and, as far as it gains anything, the codec stay.

    Raises:
        CorruptBatch, UnsupportedVersion, UnsupportedCompression: it cannot be read whole; ``where`` begins the text.
    """
    import numpy as np

    mask = np.asarray(keep, dtype=np.bool_)
    header = read_header(batch)
    assert len(mask) == header.record_count, "one for each record"
    kept = int(mask.sum())
    if kept == header.record_count:
        return batch
    return decode_batch(batch, where=where).filter_records(mask) if kept else strip_records(batch)


def strip_records(batch: bytes) -> bytes:
    """The header of ``batch`` alone: no records, all else as it was. Not for control batches."""
    header = read_header(batch)
    assert not header.control, "a control batch has its record, or it is gone"
    return _build_empty(header._replace(attributes=header.attributes & ~CODEC_MASK, record_count=0))


def build_gap_batch(
    base_offset: int, next_offset: int, leader_epoch: int, *, base_timestamp: int, max_timestamp: int
) -> bytes:
    """A batch for offsets below ``next_offset`` of which nothing is left to tell: no records and no producer."""
    assert 0 < next_offset - base_offset <= INT32_MAX, "a batch has 1 to 2**31 - 1 offsets"
    last = next_offset - base_offset - 1
    header = BatchHeader(
        base_offset, 0, leader_epoch, MAGIC_COLUMNS, 0, 0, last, base_timestamp, max_timestamp, -1, -1, -1, 0
    )
    return _build_empty(header)


def _build_empty(header: BatchHeader) -> bytes:
    columns = header.magic == MAGIC_COLUMNS
    size = HEADER_SIZE if columns else ROW_HEADER_SIZE
    pieces: list[bytes | memoryview] = [FIELDS.pack(*header._replace(batch_length=size - LENGTH_PREFIX))]
    return seal_batch([*pieces, _RESERVED] if columns else pieces, size)
