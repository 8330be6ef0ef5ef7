"""
A batch in another codec: what a broker makes of it for a topic whose ``compression.type`` names one.

Only the body is packed anew, byte for byte the same inside: offsets, times, headers, sequences and whatever a newer
version has put there stay. The header changes in codec, length and CRC.
"""

from __future__ import annotations

from headrace_common.core.batch.column_writer import seal_columns
from headrace_common.core.batch.compression import inflate_rows
from headrace_common.core.batch.decoded import INFLATED_MAX_DEFAULT, inflate_body
from headrace_common.core.batch.header import MAGIC_ROWS, ROW_HEADER_SIZE, BatchHeader, Codec


def recompress_batch(
    batch: bytes, header: BatchHeader, codec: Codec, *, inflated_max: int = INFLATED_MAX_DEFAULT
) -> bytes:
    """
    ``batch``, whose ``header`` has records, in ``codec``; uncompressed where that would not make it smaller.

    Raises:
        CorruptBatch: it cannot be inflated, or to more than ``inflated_max`` bytes.
    """
    if header.codec is codec:
        return batch
    if header.magic == MAGIC_ROWS:
        from headrace_common.core.batch.rows import seal_rows

        rows: bytes | memoryview = memoryview(batch)[ROW_HEADER_SIZE:]
        if header.codec:
            rows = inflate_rows(header.codec, memoryview(rows), inflated_max)
        return seal_rows(header, rows, codec)
    body, start = inflate_body(batch, header, inflated_max)
    return seal_columns(header, memoryview(body)[start:], codec)
