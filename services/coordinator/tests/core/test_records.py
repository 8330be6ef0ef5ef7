"""Records: what is written is read back, anything else is a typed error, and old bytes stay readable."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.records import (
    NOTE,
    ClassicMemberRecord,
    ClassicRecord,
    ConsumerMemberRecord,
    ConsumerRecord,
    DeclarationKey,
    GroupRecord,
    OffsetKey,
    PendingKey,
    RecordDamaged,
    WorkMemberRecord,
    WorkRecord,
    cut_declaration,
    declaration_key,
    group_key,
    group_value,
    offset_key,
    offset_value,
    pending_key,
    pending_value,
    read_declaration,
    read_group,
    read_key,
    read_offset,
    read_pending,
)
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    CommittedOffset,
    Declaration,
    GroupState,
    MemberState,
    PendingOffset,
    TopicInfo,
    TopicPartitions,
    WorkItem,
)

texts = st.text(max_size=8)
names = st.text(min_size=1, max_size=8)
numbers = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
partition_numbers = st.integers(0, 2**31 - 1)
topic_ids = st.binary(min_size=16, max_size=16).map(TopicId)
partition_ids = st.builds(PartitionId, topic_ids, partition_numbers)
partition_sets = st.frozensets(partition_ids, max_size=4)
optional = st.none() | texts


def tuples(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=3).map(tuple)


named = tuples(st.builds(TopicPartitions, names, st.just(b"") | topic_ids, tuples(partition_numbers)))
subscriptions = st.builds(ClassicSubscription, tuples(names), named, numbers, texts, st.binary(max_size=5))
classic_members = st.builds(
    ClassicMemberRecord,
    names,
    optional,
    numbers,
    numbers,
    texts,
    texts,
    tuples(st.tuples(names, subscriptions)),
    st.builds(ClassicAssignment, named, st.binary(max_size=5)),
)
classic = st.builds(ClassicRecord, st.sampled_from(GroupState), numbers, texts, texts, longs, tuples(classic_members))
consumer_members = st.builds(
    ConsumerMemberRecord,
    names,
    optional,
    optional,
    texts,
    texts,
    numbers,
    st.frozensets(names, max_size=3),
    optional,
    optional,
    numbers,
    numbers,
    st.sampled_from(MemberState),
    partition_sets,
    partition_sets,
    partition_sets,
)
consumer = st.builds(
    ConsumerRecord,
    numbers,
    numbers,
    longs,
    st.dictionaries(names, st.builds(TopicInfo, topic_ids, partition_numbers, st.none()), max_size=3),
    tuples(consumer_members),
)
places = tuples(st.integers(0, 2**31 - 1))
work_members = st.builds(
    WorkMemberRecord,
    names,
    optional,
    texts,
    texts,
    numbers,
    *(texts, texts, texts, texts, longs, numbers, numbers),
    st.sampled_from(MemberState),
    *(places, places, tuples(longs), places, places, places),
)
work = st.builds(
    WorkRecord,
    numbers,
    longs,
    longs,
    tuples(st.tuples(longs, numbers)),
    tuples(names),
    tuples(st.tuples(texts, places)),
    tuples(st.tuples(numbers, names)),
    tuples(work_members),
)
groups = classic | consumer | work
items = st.builds(WorkItem, names, numbers, st.booleans(), numbers)
declarations = st.builds(
    Declaration,
    names,
    st.none() | st.integers(1, 2**63 - 1),
    st.lists(items, max_size=4).map(lambda listed: {item.id: item for item in listed}),
    longs,
    numbers,
)
offsets = st.builds(CommittedOffset, names, longs, numbers, texts, longs)


@given(record=groups)
def test_a_group_is_read_back_as_it_was_written(record: GroupRecord) -> None:
    assert read_group(group_value(record)) == record


@given(declaration=declarations, group=names, number=longs, part=st.integers(0, 2**32 - 1))
def test_a_declaration_is_read_back_as_it_was_written(
    declaration: Declaration, group: str, number: int, part: int
) -> None:
    parts = cut_declaration(declaration)
    assert read_declaration(parts) == declaration
    assert read_key(declaration_key(group, number, part)) == DeclarationKey(group, number, part)
    with pytest.raises(RecordDamaged):
        read_declaration([*parts, b"\0"])
    with pytest.raises(RecordDamaged):
        read_declaration([parts[0][:-1]])


@given(offset=offsets, group=names, partition=partition_ids)
def test_an_offset_is_read_back_as_it_was_written(offset: CommittedOffset, group: str, partition: PartitionId) -> None:
    assert read_offset(offset_value(offset)) == offset
    assert read_key(offset_key(group, partition)) == OffsetKey(group, partition)
    assert read_key(group_key(group)) == group
    assert read_key(NOTE) is None


@given(record=groups, cut=st.integers(0, 400))
def test_a_group_that_is_cut_off_is_damaged(record: GroupRecord, cut: int) -> None:
    value = group_value(record)
    with pytest.raises(RecordDamaged):
        read_group(value[: cut % len(value)])
    with pytest.raises(RecordDamaged):
        read_group(value + b"\0")


@given(offset=offsets, cut=st.integers(0, 100))
def test_an_offset_that_is_cut_off_is_damaged(offset: CommittedOffset, cut: int) -> None:
    value = offset_value(offset)
    with pytest.raises(RecordDamaged):
        read_offset(value[: cut % len(value)])
    with pytest.raises(RecordDamaged):
        read_offset(value + b"\0")


@given(data=st.binary(max_size=60), record=groups, at=st.integers(0, 400))
def test_rubbish_is_a_typed_error_or_another_record(data: bytes, record: GroupRecord, at: int) -> None:
    value = group_value(record)
    at %= len(value)
    changed = value[:at] + data + value[at + len(data) :]
    for read, text in ((read_group, changed), (read_group, data), (read_offset, data), (read_key, data)):
        with contextlib.suppress(RecordDamaged, UnsupportedVersion):
            read(text)


def test_a_huge_count_costs_nothing() -> None:
    value = group_value(ClassicRecord(GroupState.EMPTY, 1, "", "", -1, ()))
    with pytest.raises(RecordDamaged, match="4294967295 entries"):
        read_group(value[:-4] + b"\xff" * 4)


@pytest.mark.parametrize(("read", "newest"), [(read_group, 3), (read_offset, 1), (read_key, 3)])
def test_newer_formats_are_refused_with_both_numbers(read: object, newest: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"format {newest + 1}, this version reads up to {newest}"):
        read(bytes((newest + 1,)) + b"\0" * 60)
    with pytest.raises(RecordDamaged):
        read(b"\0" * 60)


def test_format_1_stays_as_it_is() -> None:
    """Bytes as version 1 writes them: whatever comes later must read these."""
    partition = PartitionId(TopicId(b"0123456789abcdef"), 7)
    key = bytes.fromhex("0101000167") + b"0123456789abcdef" + bytes.fromhex("00000007")
    value = bytes.fromhex("01 0000000000000005 00000003 0000018bcfe56800 0001 00000002") + b"tmm"
    offset = CommittedOffset("t", 5, 3, "mm", 1_700_000_000_000)
    assert (offset_key("g", partition), offset_value(offset)) == (key, value)
    assert (read_key(key), read_offset(value)) == (OffsetKey("g", partition), offset)
    empty = ClassicRecord(GroupState.EMPTY, 4, "", "", 9, ())
    stored = bytes.fromhex("01 01 01 00000004 00000000 00000000 0000000000000009 00000000")
    assert (group_value(empty), read_group(stored)) == (stored, empty)
    server_side = ConsumerRecord(4, 4, -1, {}, ())
    stored = bytes.fromhex("01 02 00000004 00000004 ffffffffffffffff 00000000 00000000")
    assert (group_value(server_side), read_group(stored)) == (stored, server_side)


# --- pending offsets ------------------------------------------------------------------------------------------

producer_ids = st.integers(0, 2**63 - 1)
pendings = st.builds(PendingOffset, st.integers(0, 32_767), st.integers(0, 2**63 - 1), names, offsets)


@given(pending=pendings, group=names, producer_id=producer_ids, partition=partition_ids)
def test_a_pending_offset_is_read_back_as_it_was_written(
    pending: PendingOffset, group: str, producer_id: int, partition: PartitionId
) -> None:
    assert read_pending(pending_value(pending)) == pending
    key = pending_key(group, producer_id, partition)
    assert read_key(key) == PendingKey(group, producer_id, partition)


@given(pending=pendings, cut=st.integers(0, 400))
def test_a_pending_offset_that_is_cut_off_is_damaged(pending: PendingOffset, cut: int) -> None:
    value = pending_value(pending)
    with pytest.raises(RecordDamaged):
        read_pending(value[: cut % len(value)])
    with pytest.raises(RecordDamaged):
        read_pending(value + b"\0")


@given(data=st.binary(max_size=60), pending=pendings, at=st.integers(0, 400))
def test_rubbish_in_a_pending_offset_is_a_typed_error_or_another_record(
    data: bytes, pending: PendingOffset, at: int
) -> None:
    value, key = pending_value(pending), pending_key("g", 1, PartitionId(TopicId(bytes(16)), 0))
    for read, text in ((read_pending, value), (read_key, key)):
        where = at % len(text)
        changed = text[:where] + data + text[where + len(data) :]
        for rubbish in (data, changed):
            with contextlib.suppress(RecordDamaged, UnsupportedVersion):
                read(rubbish)


def test_a_key_that_says_it_is_one_and_is_not_is_damaged() -> None:
    key = pending_key("g", 1, PartitionId(TopicId(bytes(16)), 0))
    for damaged in (key[:-1], key + b"\0", key[:3], key[:4] + b"\xff" + key[5:]):
        with pytest.raises(RecordDamaged):
            read_key(damaged)


def test_other_formats_of_pending_offsets_are_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="format 3, this version reads up to 2"):
        read_pending(b"\x03" + bytes(60))
    with pytest.raises(RecordDamaged, match="format 1"):
        read_pending(b"\x01" + bytes(60))


def test_format_2_stays_as_it_is() -> None:
    """Bytes as version 2 writes them: whatever comes later must read these."""
    partition = PartitionId(TopicId(b"0123456789abcdef"), 7)
    key = bytes.fromhex("0204000167 0000000000000009") + b"0123456789abcdef" + bytes.fromhex("00000007")
    committed = bytes.fromhex("01 0000000000000005 00000003 0000018bcfe56800 0001 00000002") + b"tmm"
    value = bytes.fromhex("02 00000004 000000000000000b 0003") + b"tid" + committed
    pending = PendingOffset(4, 11, "tid", CommittedOffset("t", 5, 3, "mm", 1_700_000_000_000))
    assert (pending_key("g", 9, partition), pending_value(pending)) == (key, value)
    assert (read_key(key), read_pending(value)) == (PendingKey("g", 9, partition), pending)
