"""Control batches: markers in the log that take an offset and that applications never see."""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple

from headrace_common.core.batch.column_writer import assemble, record_columns
from headrace_common.core.batch.columns import RecordColumns
from headrace_common.core.batch.decode import decode_batch
from headrace_common.core.batch.decoded import DecodedBatch
from headrace_common.core.batch.header import (
    CONTROL_BIT,
    MAGIC_COLUMNS,
    ROW_HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
    read_header,
    replace_header,
)
from headrace_common.core.errors import CorruptBatch, UnsupportedVersion

_KEY: Final = struct.Struct(">hh")  # version, type
_FENCE: Final = struct.Struct(">hq")  # version, token
_MARKER: Final = struct.Struct(">hi")  # version, coordinator epoch
FENCE_BATCH_BYTES_MAX: Final = 256
"""No fence batch is larger: nobody has to inflate or walk through more to learn a token."""
FENCING_TOKEN_MAX: Final = 2**63 - 1


class ControlType(IntEnum):
    """What a control record says. The first two are Kafka's."""

    ABORT = 0
    COMMIT = 1
    LEADER_EPOCH = 2
    FENCE = 3


def build_control_batch(
    kind: ControlType,
    value: bytes,
    *,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """One control record in a batch of its own (magic 3). The ends of transactions carry the transactional bit."""
    ends_transaction = kind in (ControlType.ABORT, ControlType.COMMIT)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC_COLUMNS,
        crc=0,
        attributes=CONTROL_BIT | (TRANSACTIONAL_BIT if ends_transaction else 0),
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        record_count=1,
    )
    columns = RecordColumns(values=[value], keys=[_KEY.pack(0, kind)])
    return assemble(header, record_columns(columns, 1), Codec.NONE)


def read_control(batch: DecodedBatch) -> tuple[ControlType, bytes]:
    """
    What the control record says, and its value.

    Raises:
        CorruptBatch: not a control batch, or its key is not one of a control record.
        UnsupportedVersion: a kind of control record that is not known here; it may be passed over.
    """
    if not batch.is_control:
        raise CorruptBatch("this is not a control batch")
    key, value = batch.keys()[0], batch.values()[0]
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch("the key of a control record has 4 bytes: version and type")
    version, kind = _KEY.unpack_from(key)
    if version < 0 or kind < 0:
        raise CorruptBatch(f"version {version} and type {kind} of a control record are never negative")
    try:
        return ControlType(kind), value or b""
    except ValueError:
        raise UnsupportedVersion(f"control records of type {kind} are not known here; upgrade first") from None


def build_fence_batch(token: int, *, timestamp_ms: int) -> bytes:
    """
    The batch that makes ``token`` (1 or more) the fencing token of the partition it is appended to.

    The leader refuses it (FENCED_WRITER) unless ``token`` is above the present one; afterwards it takes only appends
    that carry ``token``, so whoever wrote under a lower one writes no more.
    """
    assert 1 <= token <= FENCING_TOKEN_MAX, "a fencing token is a positive number of 64 bits"
    value = _FENCE.pack(0, token)
    return build_control_batch(ControlType.FENCE, value, timestamp_ms=timestamp_ms, producer_id=-1, producer_epoch=-1)


def read_fence(batch: DecodedBatch) -> int | None:
    """
    The fencing token that ``batch`` sets; None if it is not a fence batch.

    Raises:
        CorruptBatch: a control batch that says nothing valid.
        UnsupportedVersion: a kind of control record, or a format of fences, that is not known here.
    """
    if not batch.is_control:
        return None
    kind, value = read_control(batch)
    if kind is not ControlType.FENCE:
        return None
    if len(value) < _FENCE.size:
        raise CorruptBatch(f"a fence record of {len(value)} bytes; it has {_FENCE.size}: version and token")
    version, token = _FENCE.unpack_from(value)
    if version != 0:
        raise UnsupportedVersion(f"fence records of version {version} are not known here; upgrade first")
    if token < 1:
        raise CorruptBatch(f"fencing token {token} is not a positive number")
    return int(token)


class Marker(NamedTuple):
    """The end of a transaction, as its batch says it."""

    producer_id: int
    producer_epoch: int
    """Above the epoch of every record of the transaction."""
    commit: bool


def build_marker_batch(producer_id: int, producer_epoch: int, *, commit: bool, timestamp_ms: int) -> bytes:
    """
    The batch that ends a producer's transaction in one partition; only leaders append it.

    ``producer_epoch`` is the raised one (KIP-890): what the producer wrote in the transaction has a lower one. Cheap:
    markers differ in their headers only.
    """
    assert producer_id >= 0, "the end of a transaction names its producer"
    assert producer_epoch >= 0, "and the epoch that ends it"
    header, template = _marker_template(commit)
    fields = header._replace(
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    return replace_header(template, fields)


def read_marker(batch: bytes, header: BatchHeader) -> Marker | None:
    """
    What ``batch`` ends; None if it is no end of a transaction. The CRC is not checked here.

    Raises:
        CorruptBatch: a transactional control batch that says nothing valid.
        UnsupportedVersion: a format of markers that is not known here.
    """
    if not header.attributes & CONTROL_BIT or not header.attributes & TRANSACTIONAL_BIT:
        return None
    commit = _bodies().get(batch[ROW_HEADER_SIZE:])
    if commit is None:
        commit = _verdict_in(decode_batch(batch, verify_crc=False))
    if header.producer_id < 0 or header.producer_epoch < 0:
        raise CorruptBatch("the end of a transaction names its producer and an epoch")
    return Marker(header.producer_id, header.producer_epoch, commit)


def _verdict_in(batch: DecodedBatch) -> bool:
    kind, value = read_control(batch)
    if kind not in (ControlType.COMMIT, ControlType.ABORT):
        raise CorruptBatch(f"a control record of type {int(kind)} ends no transaction; it has no transactional bit")
    if len(value) < _MARKER.size:
        raise CorruptBatch(f"a marker of {len(value)} bytes; it has {_MARKER.size}: version and coordinator epoch")
    version, _ = _MARKER.unpack_from(value)
    if version != 0:
        raise UnsupportedVersion(f"markers of version {version} are not known here; upgrade first")
    return kind is ControlType.COMMIT


@cache
def _marker_template(commit: bool) -> tuple[BatchHeader, bytes]:
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    batch = build_control_batch(kind, _MARKER.pack(0, 0), timestamp_ms=0, producer_id=0, producer_epoch=0)
    return read_header(batch), batch


@cache
def _bodies() -> dict[bytes, bool]:
    """What follows the header of the markers that ``build_marker_batch`` makes."""
    return {_marker_template(commit)[1][ROW_HEADER_SIZE:]: commit for commit in (False, True)}
