"""Rows out and in again; keys in order; anything else is refused as unreadable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.adapters import rocksdb_keys as keys
from headrace_broker.adapters.rocksdb_keys import Kind, OwnRow, RowUnreadable
from headrace_broker.core.rows import (
    AbortedRow,
    CleanPoint,
    EpochRow,
    FenceRow,
    IndexRow,
    ProducerBatch,
    ProducerRow,
    SegmentRow,
    StateRow,
)
from headrace_common.core.ids import Offset, PartitionId, TopicId

i16 = st.integers(-(2**15), 2**15 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
n31 = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
index_rows = st.builds(
    IndexRow, offsets, n31, st.integers(0, 2**32 - 1), n31, i16, i32, i64, i16, i32, offsets, offsets, i64, i64
)
open_segments = st.builds(SegmentRow, offsets, i64, st.none(), st.none(), offsets, i64, i64)
sealed_segments = st.builds(SegmentRow, offsets, i64, i64, offsets, offsets, i64, i64)
partitions = st.builds(PartitionId, st.binary(min_size=16, max_size=16).map(TopicId), i32)
fences = st.lists(st.builds(FenceRow, st.integers(-1, 2**63 - 1), st.integers(1, 2**63 - 1)), max_size=16)
points = st.lists(st.builds(CleanPoint, offsets, i64), max_size=16).map(tuple)
states = st.builds(StateRow, partitions, offsets, offsets, fences.map(tuple), offsets) | st.builds(
    StateRow, partitions, offsets, offsets, fences.map(tuple), offsets, points, offsets
)
producer_batches = st.builds(ProducerBatch, n31, n31, offsets, i64)
producers = st.builds(ProducerRow, offsets, i16, st.lists(producer_batches, max_size=5).map(tuple), i64, st.none())
in_transactions = st.builds(
    ProducerRow,
    offsets,
    i16,
    st.lists(producer_batches, max_size=5).map(tuple),
    i64,
    offsets,
    i64,
    st.none() | st.booleans(),
)


@given(index_rows)
def test_index_rows(row: IndexRow) -> None:
    value = keys.encode_index(row)
    assert len(value) == 65
    assert keys.decode_index(row.base_offset, value) == row


@given(open_segments | sealed_segments)
def test_segment_rows(row: SegmentRow) -> None:
    assert keys.decode_segment(row.base_offset, keys.encode_segment(row)) == row


@given(n31, offsets)
def test_epoch_rows(epoch: int, start: int) -> None:
    row = EpochRow(epoch, start)
    assert keys.decode_epoch(epoch, keys.encode_epoch(row)) == row


@given(states)
def test_state_rows(row: StateRow) -> None:
    assert keys.decode_state(keys.encode_state(row)) == row


@given(states, st.data())
def test_state_rows_that_were_harmed_are_unreadable_or_a_row(row: StateRow, data: st.DataObject) -> None:
    value = bytearray(keys.encode_state(row))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    harmed = bytes(value)[: data.draw(st.integers(0, len(value)))]
    try:
        read = keys.decode_state(harmed)
    except RowUnreadable:
        return
    assert len(read.fences) + len(read.clean_points) <= len(harmed) // 16


@given(states.filter(lambda row: bool(row.clean_points)), st.integers(1, 600))
def test_a_state_row_with_clean_points_that_is_cut_or_too_long_is_not_read(row: StateRow, count: int) -> None:
    value = keys.encode_state(row)
    for other in (value[:-count], value + bytes(count), value + value[-16:]):
        with pytest.raises(RowUnreadable):
            keys.decode_state(other)


@given(st.lists(producers | in_transactions, max_size=20).map(tuple))
def test_producer_snapshots(rows: tuple[ProducerRow, ...]) -> None:
    assert keys.decode_producers(keys.encode_producers(rows)) == rows


@given(st.builds(AbortedRow, offsets, offsets, offsets, offsets))
def test_aborted_rows(row: AbortedRow) -> None:
    assert keys.decode_aborted(row.last, keys.encode_aborted(row)) == row


@given(st.builds(OwnRow, st.integers(0, 65535), st.integers(0, 2**32 - 1), i32, st.text(max_size=60)))
def test_own_rows(row: OwnRow) -> None:
    assert keys.decode_own(keys.encode_own(row)) == row


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(Kind), st.integers(0, 2**64 - 1)), max_size=30))
def test_keys_sort_as_their_parts(parts: list[tuple[int, int, int]]) -> None:
    packed = [keys.make_key(*part) for part in parts]
    assert all(len(key) == 13 for key in packed)
    assert [keys.split_key(key) for key in sorted(packed)] == sorted(parts)


@given(st.binary(max_size=120))
def test_other_bytes_are_unreadable_or_a_row(value: bytes) -> None:
    for decode in (
        lambda data: keys.decode_index(0, data),
        lambda data: keys.decode_segment(0, data),
        lambda data: keys.decode_epoch(0, data),
        keys.decode_state,
        lambda data: keys.decode_aborted(0, data),
        keys.decode_producers,
        keys.decode_own,
    ):
        try:
            decode(value)
        except RowUnreadable:
            continue


def test_a_row_of_a_newer_version_is_refused_with_both_numbers() -> None:
    value = bytes([2]) + keys.encode_epoch(EpochRow(1, 5))[1:]
    with pytest.raises(RowUnreadable, match="version 2; this broker knows 1"):
        keys.decode_epoch(1, value)


def test_a_state_of_a_version_before_fences_is_read_with_its_token() -> None:
    old = "01000102030405060708090a0b0c0d0e0f000000040000000000000005000000000000001100000000000000060000000000000002"
    row = keys.decode_state(bytes.fromhex(old))
    assert row == StateRow(PartitionId(TopicId(bytes(range(16))), 4), 5, 17, (FenceRow(-1, 6),), 2)
    assert row.fencing_token == 6
    assert row.cut(Offset(0)) is row, "it is from before all offsets that are known"


@pytest.mark.parametrize("more", [b"\0", bytes(15), bytes(17)])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_state_row_with_bytes_that_say_nothing_is_not_read(version: int, more: bytes) -> None:
    state = StateRow(PartitionId(TopicId(bytes(16)), 4), Offset(5), Offset(17))
    with pytest.raises(RowUnreadable):
        keys.decode_state(bytes([version]) + keys.encode_state(state)[1:] + more)


def test_the_disk_format_is_this() -> None:
    """Format 1, byte for byte: a change here needs a new format number and a test of the upgrade."""
    row = IndexRow(7, 9, 4096, 10, 16, 3, 77, 1, 500, 5, 8192, 1000, 2000)
    state = StateRow(PartitionId(TopicId(bytes(range(16))), 4), 5, 17, (), 2)
    rows = (ProducerRow(77, 1, (ProducerBatch(500, 509, 7, 2000),), 2001, None),)
    assert keys.make_key(258, Kind.INDEX, 7).hex() == "00000102060000000000000007"
    assert keys.encode_index(row).hex() == (
        "01000000090000100000000"
        "00a001000000003000000000000004d0001000001f4"
        "0000000000000005000000000000200000000000000003e800000000000007d0"
    )
    assert keys.encode_state(state).hex() == (
        "01000102030405060708090a0b0c0d0e0f0000000400000000000000050000000000000011ffffffffffffffff0000000000000002"
    )
    fenced = replace(state, fences=(FenceRow(-1, 6), FenceRow(9, 7)))
    assert keys.encode_state(fenced).hex() == (
        "02000102030405060708090a0b0c0d0e0f000000040000000000000005000000000000001100000000000000070000000000000002"
        "ffffffffffffffff000000000000000600000000000000090000000000000007"
    )
    compacted = replace(fenced, clean_points=(CleanPoint(1, 3), CleanPoint(2, 5)), forgotten_to=1)
    assert keys.encode_state(compacted).hex() == (
        "03000102030405060708090a0b0c0d0e0f000000040000000000000005000000000000001100000000000000070000000000000002"
        "000200020000000000000001"
        "ffffffffffffffff000000000000000600000000000000090000000000000007"
        "0000000000000001000000000000000300000000000000020000000000000005"
    )
    assert keys.encode_segment(SegmentRow(0, 1, 2, 3, 4, 5, 6)).hex() == (
        "0101000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006"
    )
    assert keys.encode_epoch(EpochRow(3, 9)).hex() == "010000000000000009"
    assert keys.encode_producers(rows).hex() == (
        "0100000001000000000000004d000100000000000007d1ffffffffffffffff01000001f4000001fd000000000000000700000000000007d0"
    )
    ended = (
        ProducerRow(77, 2, (), 2001, committed=True),
        replace(rows[0], transaction_start=7, transaction_since_ms=3),
    )
    assert keys.encode_producers(ended).hex() == (
        "0200000002"
        "000000000000004d000200000000000007d1ffffffffffffffff00ffffffffffffffff01"
        "000000000000004d000100000000000007d1000000000000000701"
        "0000000000000003ff000001f4000001fd000000000000000700000000000007d0"
    )
    assert keys.encode_aborted(AbortedRow(77, 5, 9, 10)).hex() == "01000000000000004d0000000000000005000000000000000a"
    assert keys.encode_own(OwnRow(1, 9, 2, "c1")).hex() == "01000100000009000000020002" + b"c1".hex()
