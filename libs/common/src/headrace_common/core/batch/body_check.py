"""
Whether readers will take the body of a batch: what they refuse, a broker refuses while its producer can still be told.

Brokers ask before they append; followers take what their leaders have. Columns that are not compressed are checked as
readers check them, by calls that each handle a whole column. Of a compressed body of columns only what its frame says
is compared, because inflating each would cost more than all else that a broker does with it. Rows cannot be told apart
without reading them, so they are inflated and read. Column ids and flags of a newer version pass: newer readers know
them.
"""

from __future__ import annotations

from headrace_common.core.batch.column_reader import read_directory
from headrace_common.core.batch.compression import check_frame
from headrace_common.core.batch.decode import decode_batch
from headrace_common.core.batch.decoded import INFLATED_MAX_DEFAULT, ColumnBatch, frame_of
from headrace_common.core.batch.header import CODEC_MASK, HEADER_SIZE, MAGIC_ROWS, BatchHeader
from headrace_common.core.errors import CorruptBatch, UnsupportedVersion


def check_body(batch: bytes, header: BatchHeader, *, inflated_max: int = INFLATED_MAX_DEFAULT) -> None:
    """
    Check the body of a batch that has records; its header and CRC are the caller's to check.

    Raises:
        CorruptBatch: no reader could read it, or it inflates to more than ``inflated_max`` bytes.
    """
    try:
        if header.magic == MAGIC_ROWS:
            decode_batch(batch, verify_crc=False, inflated_max=inflated_max)
        elif header.attributes & CODEC_MASK:  # without the enumeration: this is done for every batch
            check_frame(header.codec, *frame_of(batch, inflated_max))
        else:
            _check_columns(batch, header)
    except (CorruptBatch, UnsupportedVersion) as failed:
        raise CorruptBatch(f"no consumer could read the batch, though its CRC is right: {failed}") from None


def _check_columns(batch: bytes, header: BatchHeader) -> None:
    try:
        ColumnBatch(batch, HEADER_SIZE, header)
    except UnsupportedVersion:
        read_directory(batch, HEADER_SIZE)  # a directory that cannot be read is refused; flags that are newer pass


def load_decoder(magic: int) -> None:
    """Load what checks and decodes batches of ``magic``: a tenth of a second, once, so not on an event loop."""
    import cramjam  # noqa: F401
    import numpy as np  # noqa: F401

    if magic == MAGIC_ROWS:
        from headrace_common.core.batch.rows import row_reader

        row_reader()
