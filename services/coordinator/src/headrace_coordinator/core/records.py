"""
What stands in the partition of a shard: a key and a value per record, in a binary format of our own.

The groups' state machines call ``…_key`` and ``…_value`` to write, ``groups.ReadLog`` reads. The last value of a key
is the state; no value means that there is none. Numbers are big-endian, texts UTF-8 with their length before them::

    key    format u8 = 1, kind u8 = 1, group text16, topic id 16, partition u32             one committed offset
           format u8 = 1, kind u8 = 2, group text16                      the whole durable state of the group's members
           format u8 = 1, kind u8 = 3                                                       a note, which says nothing
           format u8 = 2, kind u8 = 4, group text16, producer id i64, topic id 16, partition u32     a pending position
           format u8 = 3, kind u8 = 5                                a part of what a work group does: ``work_records``
    value  of an offset: ``_OFFSET``, topic, metadata
           of a position of an open transaction: ``_PENDING``, transactional id, then a value of an offset
           of a group: format u8, protocol u8, then ``_CLASSIC`` or ``_CONSUMER``; of a work group see ``work_records``

Pending positions (``docs/adr/0012``), one for each producer, group and partition, came with format 2; all else is still
written in format 1, so that keys stay what they were. The end of the transaction takes the key away. Work groups came
with format 3, and are recorded only from their feature level on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.binary import (
    BLOB,
    I32,
    I32S,
    I64,
    OPTIONAL_TEXT,
    TEXT,
    U8,
    Form,
    KeyForm,
    Reader,
    RecordDamaged,
    check_format,
    fields,
    many,
    pair,
    readable,
)
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    CommittedOffset,
    GroupProtocol,
    GroupState,
    MemberState,
    PendingOffset,
    TopicInfo,
    TopicPartitions,
)
from headrace_coordinator.core.work_records import (
    DECLARATION_KEY,
    WORK_FORMAT,
    DeclarationKey,
    WorkMemberRecord,
    WorkRecord,
    cut_declaration,
    pack_work,
    read_declaration,
    take_work,
)

__all__ = [
    "FORMAT",
    "NOTE",
    "PENDING_FORMAT",
    "ClassicMemberRecord",
    "ClassicRecord",
    "ConsumerMemberRecord",
    "ConsumerRecord",
    "DeclarationKey",
    "GroupRecord",
    "OffsetKey",
    "PendingKey",
    "RecordDamaged",
    "WorkMemberRecord",
    "WorkRecord",
    "cut_declaration",
    "declaration_key",
    "group_key",
    "group_value",
    "offset_key",
    "offset_value",
    "pending_key",
    "pending_value",
    "read_declaration",
    "read_group",
    "read_key",
    "read_offset",
    "read_pending",
]

FORMAT: Final = 1
PENDING_FORMAT: Final = 2
_OFFSET_KEY: Final = KeyForm(FORMAT, 1, "16sI")
_GROUP_KEY: Final = KeyForm(FORMAT, 2)
_PENDING_KEY: Final = KeyForm(PENDING_FORMAT, 4, "q16sI")
_OFFSET: Final = struct.Struct(">BqiqHI")
"""Format, offset, leader epoch, committed at; bytes of topic and metadata."""
_PENDING: Final = struct.Struct(">BiqH")
"""Format, producer epoch, order; bytes of the transactional id."""

NOTE: Final = bytes((FORMAT, 3))
"""Key of a record that says nothing; appended (without a value) to learn that what stands before it is committed."""


class OffsetKey(NamedTuple):
    """Whose offset, and of which partition."""

    group_id: str
    partition: PartitionId


class PendingKey(NamedTuple):
    """Whose position, by which producer, and in which partition."""

    group_id: str
    producer_id: int
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


GroupRecord = ClassicRecord | ConsumerRecord | WorkRecord

# --- keys -----------------------------------------------------------------------------------------------------


def group_key(group_id: str) -> bytes:
    return _GROUP_KEY.pack(group_id)


def offset_key(group_id: str, partition: PartitionId) -> bytes:
    return _OFFSET_KEY.pack(group_id, *partition)


def pending_key(group_id: str, producer_id: int, partition: PartitionId) -> bytes:
    return _PENDING_KEY.pack(group_id, producer_id, *partition)


def declaration_key(group_id: str, number: int, part: int) -> bytes:
    return DECLARATION_KEY.pack(group_id, number, part)


@readable("the key {0!r:.80} of a group record")
def read_key(key: bytes) -> OffsetKey | PendingKey | DeclarationKey | str | None:
    """
    The key of an offset, of a pending one or of a part of a declaration, a group's id, or None for a note.

    Raises:
        RecordDamaged: these bytes are no key.
        UnsupportedVersion: a newer version wrote it.
    """
    if key.startswith(_OFFSET_KEY.head):
        group_id, topic_id, partition = _OFFSET_KEY.unpack(key)
        return OffsetKey(group_id, PartitionId(TopicId(topic_id), partition))
    if key.startswith(_PENDING_KEY.head):
        group_id, producer_id, topic_id, partition = _PENDING_KEY.unpack(key)
        return PendingKey(group_id, producer_id, PartitionId(TopicId(topic_id), partition))
    if key.startswith(_GROUP_KEY.head):
        return str(_GROUP_KEY.unpack(key)[0])
    if key.startswith(DECLARATION_KEY.head):
        return DeclarationKey(*DECLARATION_KEY.unpack(key))
    if key == NOTE:
        return None
    check_format(key[0], WORK_FORMAT)
    raise ValueError(f"there is no such kind in format {key[0]}")


# --- offsets --------------------------------------------------------------------------------------------------


def offset_value(committed: CommittedOffset) -> bytes:
    topic, metadata = committed.topic.encode(), committed.metadata.encode()
    head = _OFFSET.pack(
        FORMAT, committed.offset, committed.leader_epoch, committed.committed_at_ms, len(topic), len(metadata)
    )
    return head + topic + metadata


@readable("a committed offset")
def read_offset(value: bytes) -> CommittedOffset:
    """
    The committed offset.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    check_format(value[0], FORMAT)
    _, offset, leader_epoch, at_ms, topic_bytes, metadata_bytes = _OFFSET.unpack_from(value)
    end = _OFFSET.size + topic_bytes
    if len(value) != end + metadata_bytes:
        raise ValueError(f"it has {len(value)} bytes instead of {end + metadata_bytes}")
    return CommittedOffset(value[_OFFSET.size : end].decode(), offset, leader_epoch, value[end:].decode(), at_ms)


def pending_value(pending: PendingOffset) -> bytes:
    name = pending.transactional_id.encode()
    head = _PENDING.pack(PENDING_FORMAT, pending.epoch, pending.order, len(name))
    return head + name + offset_value(pending.committed)


@readable("a pending offset")
def read_pending(value: bytes) -> PendingOffset:
    """
    The position.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    check_format(value[0], PENDING_FORMAT, PENDING_FORMAT)
    _, epoch, order, length = _PENDING.unpack_from(value)
    end = _PENDING.size + length
    return PendingOffset(epoch, order, value[_PENDING.size : end].decode(), read_offset(value[end:]))


# --- groups ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _pack_topics(topics: frozenset[str]) -> bytes:
    """Members of one group want the same topics, as a rule, and all of them are written each time."""
    return many(TEXT).pack(sorted(topics))


def _group_by_topic(partitions: frozenset[PartitionId]) -> Iterable[tuple[bytes, list[int]]]:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(partition)
    return by_topic.items()


def _flatten(by_topic: Iterable[tuple[bytes, Iterable[int]]]) -> frozenset[PartitionId]:
    return frozenset([PartitionId(TopicId(topic_id), number) for topic_id, numbers in by_topic for number in numbers])


_NAMED: Final = many(fields(TopicPartitions, TEXT, BLOB, I32S))
_SUBSCRIPTION: Final = fields(ClassicSubscription, many(TEXT), _NAMED, I32, TEXT, BLOB)
_CLASSIC_MEMBER: Final = fields(
    ClassicMemberRecord,
    *(TEXT, OPTIONAL_TEXT, I32, I32, TEXT, TEXT),
    many(pair(TEXT, _SUBSCRIPTION)),
    fields(ClassicAssignment, _NAMED, BLOB),
)
_CLASSIC: Final = fields(
    ClassicRecord, U8.of(attrgetter("value"), GroupState), I32, TEXT, TEXT, I64, many(_CLASSIC_MEMBER)
)
_PARTITIONS: Final = many(pair(BLOB, I32S)).of(_group_by_topic, _flatten)
_CONSUMER_MEMBER: Final = fields(
    ConsumerMemberRecord,
    *(TEXT, OPTIONAL_TEXT, OPTIONAL_TEXT, TEXT, TEXT, I32),
    Form(_pack_topics, many(TEXT).of(sorted, frozenset).take),
    *(OPTIONAL_TEXT, OPTIONAL_TEXT, I32, I32),
    U8.of(attrgetter("value"), MemberState),
    *(_PARTITIONS, _PARTITIONS, _PARTITIONS),
)
_TOPICS: Final = many(pair(TEXT, fields(TopicInfo, BLOB, I32))).of(lambda topics: sorted(topics.items()), dict)
_CONSUMER: Final = fields(ConsumerRecord, I32, I32, I64, _TOPICS, many(_CONSUMER_MEMBER))


def group_value(record: GroupRecord) -> bytes:
    if isinstance(record, WorkRecord):
        return pack_work(record)
    if isinstance(record, ClassicRecord):
        return bytes((FORMAT, GroupProtocol.CLASSIC.value)) + _CLASSIC.pack(record)
    return bytes((FORMAT, GroupProtocol.CONSUMER.value)) + _CONSUMER.pack(record)


@readable("a group record")
def read_group(value: bytes) -> GroupRecord:
    """
    The group's durable state.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    into = Reader(value)
    written = U8.take(into)
    check_format(written, WORK_FORMAT)
    protocol = GroupProtocol(U8.take(into))
    if written != (WORK_FORMAT if protocol is GroupProtocol.WORK else FORMAT):
        raise ValueError(f"it has format {written}, in which there are no groups of protocol {protocol.name}")
    if protocol is GroupProtocol.WORK:
        record: GroupRecord = take_work(into)
    else:
        record = _CLASSIC.take(into) if protocol is GroupProtocol.CLASSIC else _CONSUMER.take(into)
    into.end()
    return record
