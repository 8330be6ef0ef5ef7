"""
The record batch: the unit on the wire, in the log and in replication. ``docs/record-batch.md`` tells the layout.

Brokers read, check and stamp headers; clients and compaction build and decode batches. Everything is pure: bytes in,
bytes out. numpy, pyarrow and aiokafka are imported where they are used, so that reading headers does not load them.
"""

from headrace_common.core.batch.body_check import check_body, load_decoder
from headrace_common.core.batch.column_writer import build_batch
from headrace_common.core.batch.columns import RecordColumns
from headrace_common.core.batch.control import (
    FENCE_BATCH_BYTES_MAX,
    FENCING_TOKEN_MAX,
    ControlType,
    Marker,
    build_control_batch,
    build_fence_batch,
    build_marker_batch,
    read_control,
    read_fence,
    read_marker,
)
from headrace_common.core.batch.decode import decode_batch
from headrace_common.core.batch.decoded import INFLATED_MAX_DEFAULT, DecodedBatch
from headrace_common.core.batch.header import (
    HEADER_SIZE,
    HEADERS_PER_BATCH_MAX,
    RECORDS_PER_BATCH_MAX,
    ROW_HEADER_SIZE,
    BatchHeader,
    Codec,
    TimestampType,
    check_crc,
    read_header,
    stamp,
    stamp_log_append_time,
    stamp_producer,
)
from headrace_common.core.batch.key_check import check_keys, is_quick
from headrace_common.core.batch.recompress import recompress_batch
from headrace_common.core.batch.rows import build_row_batch
from headrace_common.core.batch.sparse import build_gap_batch, filter_records, strip_records

__all__ = [
    "FENCE_BATCH_BYTES_MAX",
    "FENCING_TOKEN_MAX",
    "HEADERS_PER_BATCH_MAX",
    "HEADER_SIZE",
    "INFLATED_MAX_DEFAULT",
    "RECORDS_PER_BATCH_MAX",
    "ROW_HEADER_SIZE",
    "BatchHeader",
    "Codec",
    "ControlType",
    "DecodedBatch",
    "Marker",
    "RecordColumns",
    "TimestampType",
    "build_batch",
    "build_control_batch",
    "build_fence_batch",
    "build_gap_batch",
    "build_marker_batch",
    "build_row_batch",
    "check_body",
    "check_crc",
    "check_keys",
    "decode_batch",
    "filter_records",
    "is_quick",
    "load_decoder",
    "read_control",
    "read_fence",
    "read_header",
    "read_marker",
    "recompress_batch",
    "stamp",
    "stamp_log_append_time",
    "stamp_producer",
    "strip_records",
]
