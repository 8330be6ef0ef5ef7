"""Decodes one batch of either format. Everything is checked first; what comes back does not fail afterwards."""

from __future__ import annotations

from headrace_common.core.batch.column_reader import Body
from headrace_common.core.batch.decoded import (
    INFLATED_MAX_DEFAULT,
    ColumnBatch,
    DecodedBatch,
    EmptyBatch,
    inflate_body,
)
from headrace_common.core.batch.header import MAGIC_ROWS, check_crc, read_header
from headrace_common.core.errors import CorruptBatch, UnsupportedCompression, UnsupportedVersion


def decode_batch(
    batch: Body, *, verify_crc: bool = True, inflated_max: int = INFLATED_MAX_DEFAULT, where: str = ""
) -> DecodedBatch:
    """
    Decode exactly one batch of either format. ``where`` (topic-partition@offset) begins the text of errors.

    Raises:
        CorruptBatch: the bytes are not a batch, or inflate to more than ``inflated_max`` bytes.
        UnsupportedVersion: a newer version wrote it.
        UnsupportedCompression: a codec that is not known here.
    """
    try:
        header = read_header(batch)
        if verify_crc:
            check_crc(batch, header)
        if not header.record_count:
            return EmptyBatch(header)
        if header.magic == MAGIC_ROWS:
            from headrace_common.core.batch.rows import RowBatch

            return RowBatch(batch, header, inflated_max)
        return ColumnBatch(*inflate_body(batch, header, inflated_max), header)
    except (CorruptBatch, UnsupportedVersion, UnsupportedCompression) as failed:
        if not where:
            raise
        raise type(failed)(f"{where}: {failed}") from None
