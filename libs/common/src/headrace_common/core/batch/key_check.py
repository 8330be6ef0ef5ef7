"""
Whether each record of a batch has a key, as a topic that is compacted needs it.

Brokers ask before they append. The whole batch is decoded, not the keys alone: what a cleaner could not read later is
refused while its producer can still be told. One of columns costs some microseconds; what is compressed must be
inflated, and rows are read one after the other, so ``is_quick`` tells which of them an event loop can do by the way.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace_common.core.batch.column_reader import read_directory
from headrace_common.core.batch.columns import HEADERS
from headrace_common.core.batch.decode import decode_batch
from headrace_common.core.batch.decoded import INFLATED_MAX_DEFAULT
from headrace_common.core.batch.header import HEADER_SIZE, MAGIC_ROWS, BatchHeader, Codec
from headrace_common.core.errors import CorruptBatch, InvalidRecord, UnsupportedVersion

ROWS_QUICK: Final = 500
INFLATED_BYTES_QUICK: Final = 256 << 10
GZIP_BYTES_QUICK: Final = 64 << 10
"""Inflated, as the one above; gzip takes several times as long."""
HEADERS_BYTES_QUICK: Final = 64 << 10
"""Of a batch whose records have headers: their keys are looked at one by one."""
_INFLATED_LENGTH: Final = struct.Struct("<I")


def is_quick(batch: bytes, header: BatchHeader) -> bool:
    """
    Whether ``check_keys`` takes less than about half a millisecond.

    Raises:
        CorruptBatch, UnsupportedVersion: it is no batch.
    """
    if header.magic == MAGIC_ROWS:
        return header.record_count <= ROWS_QUICK and header.codec is Codec.NONE
    if header.codec is Codec.NONE:
        return header.size <= HEADERS_BYTES_QUICK or HEADERS not in read_directory(batch, HEADER_SIZE)
    (inflated,) = _INFLATED_LENGTH.unpack_from(batch, HEADER_SIZE)
    return bool(inflated <= (GZIP_BYTES_QUICK if header.codec is Codec.GZIP else INFLATED_BYTES_QUICK))


def check_keys(batch: bytes, topic: str, *, inflated_max: int = INFLATED_MAX_DEFAULT) -> None:
    """
    Check that each record of ``batch``, which is for ``topic``, has a key. The CRC is the caller's to check.

    Raises:
        InvalidRecord: one has none; the text says which.
        CorruptBatch: the body cannot be read, inflates to more than ``inflated_max`` bytes, or is of a newer version.
    """
    try:
        at = decode_batch(batch, verify_crc=False, inflated_max=inflated_max).first_without_key()
    except (CorruptBatch, UnsupportedVersion) as failed:
        raise CorruptBatch(f"no cleaner could read the batch, though its CRC is right: {failed}") from None
    if at is not None:
        raise InvalidRecord(
            f"record {at} of the batch has no key, and topic {topic} is compacted: cleanup.policy=compact keeps the"
            " last value of each key. Send every record with a key, or use a topic without compaction"
        )
