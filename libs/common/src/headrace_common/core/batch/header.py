"""
The header of a record batch: what a broker, a follower and the log read of a batch, and the fields they may write.

Both formats share it (``docs/record-batch.md`` has the layout). Called once per batch on the broker's hot path, so
nothing here looks at records.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from io import BytesIO
from typing import Final, NamedTuple

from headrace_common.core.batch.checksum import crc32c
from headrace_common.core.errors import CorruptBatch, InvalidConfig, UnsupportedCompression, UnsupportedVersion

HEADER_SIZE: Final = 64
"""Bytes before the body of a magic 3 batch."""

ROW_HEADER_SIZE: Final = 61
"""Bytes before the records of a magic 2 batch."""

MAGIC_AT: Final = 16
ATTRIBUTES_LOW_AT: Final = 22
"""Of the low byte, which has the codec."""
MAGIC_ROWS: Final = 2
MAGIC_COLUMNS: Final = 3
RECORDS_PER_BATCH_MAX: Final = 1 << 20
"""More records than this are refused in one batch: a count in a header must not make a reader allocate gigabytes."""

HEADERS_PER_BATCH_MAX: Final = 1 << 20
"""Record headers of all records of one batch together."""

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
LENGTH_PREFIX: Final = 12  # base_offset and batch_length: the bytes that batch_length does not count
CRC_FROM: Final = 21  # the CRC covers everything from here on

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

FIELDS: Final = struct.Struct(">qiibIhiqqqhii")
_OFFSET: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_INT32: Final = struct.Struct(">i")
_RESERVED: Final = b"\0\0\0"
_DIRECTORY_ENTRY_SIZE: Final = 8  # the least that a magic 3 body has


class Codec(IntEnum):
    """How the body is compressed: bits 0-2 of ``attributes``, Kafka's numbers."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @staticmethod
    def parse(name: str) -> Codec:
        """
        The codec of that name, as in ``compression.type``; case does not matter.

        Raises:
            InvalidConfig: no codec is called so.
        """
        try:
            return Codec[name.upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in Codec)
            raise InvalidConfig(f"no compression is called {name[:40]!r}; use one of {known}") from None


class TimestampType(IntEnum):
    """Who gave the timestamps: bit 3 of ``attributes``."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The fields in wire order. A tuple, because one is made for every batch that passes a broker."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_PREFIX + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record, or of the last one there was before compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the body is compressed."""
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker gave the timestamps."""
        return TimestampType((self.attributes & TIMESTAMP_TYPE_BIT) >> 3)

    @property
    def transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """Whether the one record is a marker that applications never see."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def dense(self) -> bool:
        """Whether no offset is missing, as in every batch that a producer sends."""
        return self.record_count == self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 without a producer; sequences wrap to 0 after 2147483647."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX


def read_header(batch: bytes | memoryview) -> BatchHeader:
    """
    Read the header of exactly one batch and check what can be told without its records.

    Raises:
        CorruptBatch: too short, another length than it says, or counts that no batch can have.
        UnsupportedVersion: a magic or a header extension that is not known here.
        UnsupportedCompression: a codec that is not known here.
    """
    size = len(batch)
    if size < ROW_HEADER_SIZE:
        raise CorruptBatch(f"{size} bytes are too few for a record batch; send whole batches")
    header = BatchHeader._make(FIELDS.unpack_from(batch))
    if header.batch_length != size - LENGTH_PREFIX:
        raise CorruptBatch(
            f"the batch says {header.batch_length} bytes after its length field but has {size - LENGTH_PREFIX}; "
            "send whole batches, one at a time"
        )
    if header.magic == MAGIC_COLUMNS:
        if size < HEADER_SIZE + (_DIRECTORY_ENTRY_SIZE if header.record_count else 0):
            raise CorruptBatch(f"{size} bytes are too few for a batch of columns; send whole batches")
        if batch[ROW_HEADER_SIZE:HEADER_SIZE] != _RESERVED:
            raise UnsupportedVersion("reserved header bytes are set: a newer version wrote this batch; upgrade first")
    elif header.magic != MAGIC_ROWS:
        raise UnsupportedVersion(f"record batches of magic {header.magic} are not known here; send magic 2 or 3")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise UnsupportedCompression(f"codec {header.attributes & CODEC_MASK} is not known here; use 0 to 4")
    _check_counts(header)
    return header


def _check_counts(header: BatchHeader) -> None:
    count, last = header.record_count, header.last_offset_delta
    if not count and _is_empty(header):
        count = 1  # of the offsets that it covers
    if not 1 <= count <= RECORDS_PER_BATCH_MAX:
        raise CorruptBatch(f"a batch holds 1 to {RECORDS_PER_BATCH_MAX} records; this one says {header.record_count}")
    if last < count - 1:
        raise CorruptBatch(f"{count} records cannot fit below last_offset_delta {last}")
    if not 0 <= header.base_offset < INT64_MAX - INT32_MAX:
        raise CorruptBatch(f"base_offset {header.base_offset} is out of range")
    if header.producer_id < -1 or header.producer_epoch < -1 or header.base_sequence < -1:
        raise CorruptBatch("producer id, epoch and sequence are -1 or more")
    if header.attributes & CONTROL_BIT and count != 1:
        raise CorruptBatch(f"a control batch holds one record; this one says {count}")


def _is_empty(header: BatchHeader) -> bool:
    """Whether it is a header alone, as compaction leaves it where no record is left."""
    size = HEADER_SIZE if header.magic == MAGIC_COLUMNS else ROW_HEADER_SIZE
    return header.size == size and not header.attributes & (CODEC_MASK | CONTROL_BIT)


def check_crc(batch: bytes | memoryview, header: BatchHeader) -> None:
    """
    Raises:
        CorruptBatch: the bytes after the CRC field are not those that were checksummed.
    """
    found = crc32c(memoryview(batch)[CRC_FROM:])
    if found != header.crc:
        raise CorruptBatch(f"the batch's CRC is {header.crc:#010x} but its bytes give {found:#010x}; send it again")


def stamp(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """The batch with the leader's two fields written; they are outside the CRC. One copy."""
    return b"".join((_OFFSET.pack(base_offset), batch[8:12], _INT32.pack(leader_epoch), memoryview(batch)[16:]))


def stamp_log_append_time(batch: bytes, base_offset: int, leader_epoch: int, now_ms: int) -> bytes:
    """The batch as the leader of a topic with LogAppendTime stores it: every record has ``now_ms``; a new CRC."""
    header = BatchHeader._make(FIELDS.unpack_from(batch))
    return replace_header(
        batch,
        header._replace(
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            attributes=header.attributes | TIMESTAMP_TYPE_BIT,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
        ),
    )


def stamp_producer(batch: bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The batch with another producer identity, for a client that drains it or whose epoch was bumped; a new CRC."""
    header = BatchHeader._make(FIELDS.unpack_from(batch))
    return replace_header(
        batch, header._replace(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)
    )


def replace_header(batch: bytes, header: BatchHeader) -> bytes:
    """``batch`` with ``header`` in place of its own; the CRC is computed here."""
    return seal_batch([FIELDS.pack(*header), memoryview(batch)[ROW_HEADER_SIZE:]], len(batch))


def seal_batch(pieces: list[bytes | memoryview], size: int) -> bytes:
    """
    The batch of ``pieces``, ``size`` bytes in all, with its CRC.

    The pieces are copied once: the stream owns the joined bytes alone, so it lets the CRC be written in place.
    """
    stream = BytesIO(b"".join(pieces))
    with stream.getbuffer() as whole:
        if len(whole) != size:
            raise TypeError("keys and values must be plain bytes: the length of one is not its number of bytes")
        _CRC.pack_into(whole, _CRC_AT, crc32c(whole[CRC_FROM:]))
    return stream.getvalue()
