"""Records of pending offsets: what is written is read back, anything else is a typed error, old bytes stay readable."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.pending_records import (
    PendingKey,
    pending_key,
    pending_value,
    read_pending,
    read_pending_key,
)
from headrace_coordinator.core.records import NOTE, RecordDamaged, group_key, offset_key, read_key
from headrace_coordinator.core.values import CommittedOffset, PendingOffset

from .test_records import names, offsets, partition_ids

producer_ids = st.integers(0, 2**63 - 1)
pendings = st.builds(PendingOffset, st.integers(0, 32_767), st.integers(0, 2**63 - 1), names, offsets)


@given(pending=pendings, group=names, producer_id=producer_ids, partition=partition_ids)
def test_a_pending_offset_is_read_back_as_it_was_written(
    pending: PendingOffset, group: str, producer_id: int, partition: PartitionId
) -> None:
    assert read_pending(pending_value(pending)) == pending
    key = pending_key(group, producer_id, partition)
    assert read_pending_key(key) == PendingKey(group, producer_id, partition)


@given(group=names, partition=partition_ids)
def test_other_keys_are_of_another_kind(group: str, partition: PartitionId) -> None:
    for key in (group_key(group), offset_key(group, partition), NOTE):
        assert read_pending_key(key) is None


@given(pending=pendings, cut=st.integers(0, 400))
def test_a_pending_offset_that_is_cut_off_is_damaged(pending: PendingOffset, cut: int) -> None:
    value = pending_value(pending)
    with pytest.raises(RecordDamaged):
        read_pending(value[: cut % len(value)])
    with pytest.raises(RecordDamaged):
        read_pending(value + b"\0")


@given(data=st.binary(max_size=60), pending=pendings, at=st.integers(0, 400))
def test_rubbish_is_a_typed_error_or_another_record(data: bytes, pending: PendingOffset, at: int) -> None:
    value, key = pending_value(pending), pending_key("g", 1, PartitionId(TopicId(bytes(16)), 0))
    for read, text in ((read_pending, value), (read_pending_key, key)):
        where = at % len(text)
        changed = text[:where] + data + text[where + len(data) :]
        for rubbish in (data, changed):
            with contextlib.suppress(RecordDamaged, UnsupportedVersion):
                read(rubbish)


def test_a_key_that_says_it_is_one_and_is_not_is_damaged() -> None:
    key = pending_key("g", 1, PartitionId(TopicId(bytes(16)), 0))
    for damaged in (key[:-1], key + b"\0", key[:3], key[:4] + b"\xff" + key[5:]):
        with pytest.raises(RecordDamaged):
            read_pending_key(damaged)


def test_newer_formats_are_refused_and_older_versions_say_so_too() -> None:
    with pytest.raises(UnsupportedVersion, match="format 3, this version reads up to 2"):
        read_pending(b"\x03" + bytes(60))
    with pytest.raises(RecordDamaged, match="format 1"):
        read_pending(b"\x01" + bytes(60))
    with pytest.raises(UnsupportedVersion):  # what a version without transactions says of such a record
        read_key(pending_key("g", 1, PartitionId(TopicId(bytes(16)), 0)))


def test_format_2_stays_as_it_is() -> None:
    """Bytes as version 2 writes them: whatever comes later must read these."""
    partition = PartitionId(TopicId(b"0123456789abcdef"), 7)
    key = bytes.fromhex("0204000167 0000000000000009") + b"0123456789abcdef" + bytes.fromhex("00000007")
    committed = bytes.fromhex("01 0000000000000005 00000003 0000018bcfe56800 0001 00000002") + b"tmm"
    value = bytes.fromhex("02 00000004 000000000000000b 0003") + b"tid" + committed
    pending = PendingOffset(4, 11, "tid", CommittedOffset("t", 5, 3, "mm", 1_700_000_000_000))
    assert (pending_key("g", 9, partition), pending_value(pending)) == (key, value)
    assert (read_pending_key(key), read_pending(value)) == (PendingKey("g", 9, partition), pending)
