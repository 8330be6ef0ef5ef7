"""Markers: one record, flagged, of a known kind."""

import struct

import pytest

from headrace_common.core.batch import (
    FENCE_BATCH_BYTES_MAX,
    ControlType,
    Marker,
    RecordColumns,
    build_batch,
    build_control_batch,
    build_fence_batch,
    build_marker_batch,
    check_crc,
    decode_batch,
    read_control,
    read_fence,
    read_header,
    read_marker,
)
from headrace_common.core.errors import CorruptBatch, UnsupportedVersion

from .samples import column_batch, header_of, row, seal, varint

CONTROL = 0x20


@pytest.mark.parametrize("kind", list(ControlType))
def test_markers_come_back(kind: ControlType) -> None:
    batch = build_control_batch(
        kind, b"value", timestamp_ms=123, producer_id=9, producer_epoch=3, base_offset=40, leader_epoch=2
    )
    header = read_header(batch)
    check_crc(batch, header)
    assert header.control
    assert header.transactional == (kind in (ControlType.ABORT, ControlType.COMMIT))
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (40, 41, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    decoded = decode_batch(batch)
    assert decoded.is_control
    assert decoded.timestamps() == [123]
    assert read_control(decoded) == (kind, b"value")


def test_markers_of_kafka_are_read() -> None:
    key = struct.pack(">hh", 0, 1)
    value = struct.pack(">hi", 0, 7)
    record = row(key=varint(len(key)) + key, value=varint(len(value)) + value)
    batch = seal(header_of(1, magic=2, attributes=CONTROL | 0x10, producer_id=5, producer_epoch=0), record)
    assert read_control(decode_batch(batch)) == (ControlType.COMMIT, value)


def test_records_are_not_markers() -> None:
    with pytest.raises(CorruptBatch):
        read_control(decode_batch(build_batch(RecordColumns([b"v"], keys=[struct.pack(">hh", 0, 1)]))))


@pytest.mark.parametrize("key", [b"", b"\0\0\0", struct.pack(">hh", -1, 0), struct.pack(">hh", 0, -1)])
def test_keys_that_no_marker_has(key: bytes) -> None:
    columns = [(2, 0, struct.pack("<ii", 0, len(key)) + key), (3, 2, b"v")]
    with pytest.raises(CorruptBatch):
        read_control(decode_batch(column_batch(1, columns, attributes=CONTROL)))


def test_markers_without_a_key() -> None:
    with pytest.raises(CorruptBatch):
        read_control(decode_batch(column_batch(1, [(3, 2, b"v")], attributes=CONTROL)))


def test_markers_of_a_newer_version() -> None:
    columns = [(2, 2, struct.pack(">hh", 0, 99)), (3, 2, b"v")]
    decoded = decode_batch(column_batch(1, columns, attributes=CONTROL))
    with pytest.raises(UnsupportedVersion):
        read_control(decoded)


@pytest.mark.parametrize("token", [1, 77, 2**63 - 1])
def test_fences_come_back(token: int) -> None:
    batch = build_fence_batch(token, timestamp_ms=5)
    header = read_header(batch)
    check_crc(batch, header)
    assert header.control
    assert not header.transactional
    assert (header.producer_id, header.base_sequence, header.max_timestamp) == (-1, -1, 5)
    assert len(batch) <= FENCE_BATCH_BYTES_MAX
    assert read_fence(decode_batch(batch)) == token


def test_what_is_not_a_fence_sets_no_token() -> None:
    commit = build_control_batch(ControlType.COMMIT, b"", timestamp_ms=1, producer_id=1, producer_epoch=0)
    assert read_fence(decode_batch(commit)) is None
    assert read_fence(decode_batch(build_batch(RecordColumns([b"v"])))) is None


@pytest.mark.parametrize("value", [b"", b"\0\0" + b"\0" * 7, struct.pack(">hq", 0, 0), struct.pack(">hq", 0, -1)])
def test_fences_without_a_token(value: bytes) -> None:
    batch = build_control_batch(ControlType.FENCE, value, timestamp_ms=1, producer_id=-1, producer_epoch=-1)
    with pytest.raises(CorruptBatch):
        read_fence(decode_batch(batch))


def test_fences_of_a_newer_version() -> None:
    value = struct.pack(">hq", 1, 3)
    batch = build_control_batch(ControlType.FENCE, value, timestamp_ms=1, producer_id=-1, producer_epoch=-1)
    with pytest.raises(UnsupportedVersion):
        read_fence(decode_batch(batch))


@pytest.mark.parametrize("commit", [False, True])
def test_ends_of_transactions_come_back(commit: bool) -> None:
    batch = build_marker_batch(2**40, 7, commit=commit, timestamp_ms=5)
    header = read_header(batch)
    check_crc(batch, header)
    assert header.control
    assert header.transactional
    assert (header.base_sequence, header.base_timestamp, header.max_timestamp, header.magic) == (-1, 5, 5, 3)
    assert read_marker(batch, header) == Marker(2**40, 7, commit)
    kind, value = read_control(decode_batch(batch))
    assert kind is (ControlType.COMMIT if commit else ControlType.ABORT)
    assert value == struct.pack(">hi", 0, 0)
    assert decode_batch(batch).timestamps() == [5]


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_is_read_whoever_built_it(commit: bool) -> None:
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    value = struct.pack(">hi", 0, 12)  # a coordinator epoch of Kafka's
    batch = build_control_batch(kind, value, timestamp_ms=1, producer_id=3, producer_epoch=4)
    assert read_marker(batch, read_header(batch)) == Marker(3, 4, commit)


def test_what_ends_no_transaction_is_no_marker() -> None:
    for batch in (build_fence_batch(1, timestamp_ms=1), build_batch(RecordColumns([b"v"]), transactional=True)):
        assert read_marker(batch, read_header(batch)) is None


@pytest.mark.parametrize("value", [b"", b"\0\0\0\0\0"])
def test_markers_without_a_value(value: bytes) -> None:
    batch = build_control_batch(ControlType.ABORT, value, timestamp_ms=1, producer_id=1, producer_epoch=0)
    with pytest.raises(CorruptBatch):
        read_marker(batch, read_header(batch))


def test_markers_of_nobody() -> None:
    batch = build_control_batch(ControlType.ABORT, b"\0" * 6, timestamp_ms=1, producer_id=-1, producer_epoch=-1)
    with pytest.raises(CorruptBatch):
        read_marker(batch, read_header(batch))


def test_markers_with_a_newer_value() -> None:
    value = struct.pack(">hi", 1, 0)
    batch = build_control_batch(ControlType.ABORT, value, timestamp_ms=1, producer_id=1, producer_epoch=0)
    with pytest.raises(UnsupportedVersion):
        read_marker(batch, read_header(batch))
