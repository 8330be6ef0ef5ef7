"""
What stands in the partition of a shard: a key and a value per record, in a binary format of our own, format 1.

The groups' state machines call ``…_row`` to write, ``shard.Shard.replay`` reads. The last value of a key is the state;
no value means that there is none. All numbers are big-endian; texts are UTF-8 with their length before them::

    key    format u8, kind u8, group text16                          kind 2: the whole durable state of the group
           format u8, kind u8, group text16, topic id 16, partition u32    kind 1: one committed offset
           format u8, kind u8                                        kind 3: a note, which says nothing
    value  format u8, then the fields of ``CommittedOffset``, ``ClassicRecord``, ``ConsumerRecord`` in their order
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.binary import Reader, RecordDamaged, Writer, packed_texts
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    CommittedOffset,
    GroupProtocol,
    GroupState,
    MemberState,
    TopicInfo,
    TopicPartitions,
)

__all__ = [
    "FORMAT",
    "NOTE",
    "ClassicMemberRecord",
    "ClassicRecord",
    "ConsumerMemberRecord",
    "ConsumerRecord",
    "GroupRecord",
    "OffsetKey",
    "RecordDamaged",
    "group_key",
    "group_value",
    "offset_key",
    "offset_value",
    "read_group",
    "read_key",
    "read_offset",
]

FORMAT: Final = 1
_OFFSET: Final = 1
_GROUP: Final = 2
_NOTE: Final = 3
_KEY_HEAD: Final = struct.Struct(">BBH")
_KEY_TAIL: Final = struct.Struct(">16sI")
_OFFSET_HEAD: Final = struct.Struct(">BqiqHI")

NOTE: Final = bytes((FORMAT, _NOTE))
"""Key of a record that says nothing; appended (without a value) to learn that what stands before it is committed."""


class OffsetKey(NamedTuple):
    """Whose offset, and of which partition."""

    group_id: str
    partition: PartitionId


@dataclass(frozen=True, slots=True)
class ClassicMemberRecord:
    """One member that has been told its id."""

    member_id: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_address: str
    protocols: tuple[tuple[str, ClassicSubscription], ...]
    assignment: ClassicAssignment


@dataclass(frozen=True, slots=True)
class ClassicRecord:
    """The durable state of a group of the classic protocol."""

    state: GroupState
    generation: int
    protocol: str
    leader: str
    empty_since_ms: int
    """Wall clock; -1: it is not empty."""
    members: tuple[ClassicMemberRecord, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMemberRecord:
    """One member of the server-side protocol."""

    member_id: str
    instance_id: str | None
    rack: str | None
    client_id: str
    client_address: str
    rebalance_timeout_ms: int
    topics: frozenset[str]
    pattern: str | None
    assignor: str | None
    epoch: int
    """-2: a static member that has left for a while."""
    previous_epoch: int
    state: MemberState
    assigned: frozenset[PartitionId]
    revoking: frozenset[PartitionId]
    target: frozenset[PartitionId]


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """The durable state of a group of the server-side protocol."""

    group_epoch: int
    assignment_epoch: int
    empty_since_ms: int
    """Wall clock; -1: it is not empty."""
    topics: Mapping[str, TopicInfo]
    """What the target was computed from; without partitions: gone, but a member still holds some of it."""
    members: tuple[ConsumerMemberRecord, ...]


GroupRecord = ClassicRecord | ConsumerRecord

# --- keys -----------------------------------------------------------------------------------------------------


def group_key(group_id: str) -> bytes:
    """Key of the group's record."""
    name = group_id.encode()
    return _KEY_HEAD.pack(FORMAT, _GROUP, len(name)) + name


def offset_key(group_id: str, partition: PartitionId) -> bytes:
    """Key of one committed offset."""
    name = group_id.encode()
    return _KEY_HEAD.pack(FORMAT, _OFFSET, len(name)) + name + _KEY_TAIL.pack(*partition)


def read_key(key: bytes) -> OffsetKey | str | None:
    """
    An offset's key, a group's id, or None for a note.

    Raises:
        RecordDamaged: these bytes are no key.
        UnsupportedVersion: a newer version wrote it.
    """
    if key == NOTE:
        return None
    try:
        written, kind, length = _KEY_HEAD.unpack_from(key)
        _check_format(written, "key")
        end = _KEY_HEAD.size + length
        group_id = key[_KEY_HEAD.size : end].decode()
        if kind == _GROUP and len(key) == end:
            return group_id
        if kind == _OFFSET and len(key) == end + _KEY_TAIL.size:
            topic_id, partition = _KEY_TAIL.unpack_from(key, end)
            return OffsetKey(group_id, PartitionId(TopicId(topic_id), partition))
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordDamaged(f"the key {key[:40]!r} of a group record cannot be read: {error}") from error
    raise RecordDamaged(f"the key {key[:40]!r} of a group record has {len(key)} bytes and kind {kind}")


def _check_format(written: int, what: str) -> None:
    if written > FORMAT:
        raise UnsupportedVersion(
            f"the {what} of a group record has format {written}, this version reads up to {FORMAT}; upgrade the node"
        )
    if written == 0:
        raise RecordDamaged(f"the {what} of a group record has format 0, which there is not")


# --- values ---------------------------------------------------------------------------------------------------


def offset_value(committed: CommittedOffset) -> bytes:
    """Value of one committed offset."""
    topic, metadata = committed.topic.encode(), committed.metadata.encode()
    head = _OFFSET_HEAD.pack(
        FORMAT, committed.offset, committed.leader_epoch, committed.committed_at_ms, len(topic), len(metadata)
    )
    return head + topic + metadata


def read_offset(value: bytes) -> CommittedOffset:
    """
    The committed offset.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    try:
        if value:
            _check_format(value[0], "value")
        _, offset, leader_epoch, at_ms, topic_bytes, metadata_bytes = _OFFSET_HEAD.unpack_from(value)
        start = _OFFSET_HEAD.size
        end = start + topic_bytes
        if len(value) != end + metadata_bytes:
            raise RecordDamaged(f"a committed offset has {len(value)} bytes instead of {end + metadata_bytes}")
        return CommittedOffset(value[start:end].decode(), offset, leader_epoch, value[end:].decode(), at_ms)
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordDamaged(f"a committed offset cannot be read: {error}") from error


def group_value(record: GroupRecord) -> bytes:
    """Value of a group's record."""
    out = Writer()
    out.u8(FORMAT)
    if isinstance(record, ClassicRecord):
        out.u8(GroupProtocol.CLASSIC.value)
        _write_classic(out, record)
    else:
        out.u8(GroupProtocol.CONSUMER.value)
        _write_consumer(out, record)
    return out.joined()


def read_group(value: bytes) -> GroupRecord:
    """
    The group's durable state.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    into = Reader(value)
    _check_format(into.u8(), "value")
    try:
        protocol = GroupProtocol(into.u8())
        record = _read_classic(into) if protocol is GroupProtocol.CLASSIC else _read_consumer(into)
    except ValueError as error:
        raise RecordDamaged(f"a group record cannot be read: {error}") from error
    into.end()
    return record


# --- classic --------------------------------------------------------------------------------------------------


def _write_classic(out: Writer, record: ClassicRecord) -> None:
    out.u8(record.state.value)
    out.i32(record.generation)
    out.text(record.protocol)
    out.text(record.leader)
    out.i64(record.empty_since_ms)
    out.u32(len(record.members))
    for member in record.members:
        out.text(member.member_id)
        out.optional_text(member.instance_id)
        out.i32(member.session_timeout_ms)
        out.i32(member.rebalance_timeout_ms)
        out.text(member.client_id)
        out.text(member.client_address)
        out.u32(len(member.protocols))
        for name, subscription in member.protocols:
            out.text(name)
            _write_subscription(out, subscription)
        _write_named(out, member.assignment.partitions)
        out.blob(member.assignment.user_data)


def _write_subscription(out: Writer, subscription: ClassicSubscription) -> None:
    out.texts(subscription.topics)
    _write_named(out, subscription.owned)
    out.i32(subscription.generation)
    out.text(subscription.rack)
    out.blob(subscription.user_data)


def _write_named(out: Writer, partitions: tuple[TopicPartitions, ...]) -> None:
    out.u32(len(partitions))
    for entry in partitions:
        out.text(entry.topic)
        out.blob(entry.topic_id)
        out.i32s(entry.partitions)


def _read_classic(into: Reader) -> ClassicRecord:
    return ClassicRecord(
        state=GroupState(into.u8()),
        generation=into.i32(),
        protocol=into.text(),
        leader=into.text(),
        empty_since_ms=into.i64(),
        members=tuple(_read_classic_member(into) for _ in into.count()),
    )


def _read_classic_member(into: Reader) -> ClassicMemberRecord:
    return ClassicMemberRecord(
        member_id=into.text(),
        instance_id=into.optional_text(),
        session_timeout_ms=into.i32(),
        rebalance_timeout_ms=into.i32(),
        client_id=into.text(),
        client_address=into.text(),
        protocols=tuple((into.text(), _read_subscription(into)) for _ in into.count()),
        assignment=ClassicAssignment(_read_named(into), into.blob()),
    )


def _read_subscription(into: Reader) -> ClassicSubscription:
    return ClassicSubscription(into.texts(), _read_named(into), into.i32(), into.text(), into.blob())


def _read_named(into: Reader) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(into.text(), into.blob(), into.i32s()) for _ in into.count())


# --- server-side ----------------------------------------------------------------------------------------------


def _write_consumer(out: Writer, record: ConsumerRecord) -> None:
    out.i32(record.group_epoch)
    out.i32(record.assignment_epoch)
    out.i64(record.empty_since_ms)
    out.u32(len(record.topics))
    for name, info in sorted(record.topics.items()):
        out.text(name)
        out.blob(info.topic_id)
        out.i32(info.partitions)
    out.u32(len(record.members))
    topics = {names: packed_texts(sorted(names)) for names in {member.topics for member in record.members}}
    for member in record.members:
        out.text(member.member_id)
        out.optional_text(member.instance_id)
        out.optional_text(member.rack)
        out.text(member.client_id)
        out.text(member.client_address)
        out.i32(member.rebalance_timeout_ms)
        out.raw(topics[member.topics])
        out.optional_text(member.pattern)
        out.optional_text(member.assignor)
        out.i32(member.epoch)
        out.i32(member.previous_epoch)
        out.u8(member.state.value)
        _write_set(out, member.assigned)
        _write_set(out, member.revoking)
        _write_set(out, member.target)


def _write_set(out: Writer, partitions: frozenset[PartitionId]) -> None:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(partition)
    out.u32(len(by_topic))
    for topic_id, numbers in by_topic.items():
        out.blob(topic_id)
        out.i32s(numbers)


def _read_consumer(into: Reader) -> ConsumerRecord:
    return ConsumerRecord(
        group_epoch=into.i32(),
        assignment_epoch=into.i32(),
        empty_since_ms=into.i64(),
        topics={into.text(): TopicInfo(TopicId(into.blob()), into.i32()) for _ in into.count()},
        members=tuple(_read_consumer_member(into) for _ in into.count()),
    )


def _read_consumer_member(into: Reader) -> ConsumerMemberRecord:
    return ConsumerMemberRecord(
        member_id=into.text(),
        instance_id=into.optional_text(),
        rack=into.optional_text(),
        client_id=into.text(),
        client_address=into.text(),
        rebalance_timeout_ms=into.i32(),
        topics=frozenset(into.texts()),
        pattern=into.optional_text(),
        assignor=into.optional_text(),
        epoch=into.i32(),
        previous_epoch=into.i32(),
        state=MemberState(into.u8()),
        assigned=_read_set(into),
        revoking=_read_set(into),
        target=_read_set(into),
    )


def _read_set(into: Reader) -> frozenset[PartitionId]:
    found: list[PartitionId] = []
    for _ in into.count():
        topic_id = TopicId(into.blob())
        found.extend(PartitionId(topic_id, number) for number in into.i32s())
    return frozenset(found)
