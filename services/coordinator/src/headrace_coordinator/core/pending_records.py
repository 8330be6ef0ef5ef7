"""
Positions of open transactions as records in the partition of a shard. ``offsets`` writes them, ``groups`` reads them.

They are plain keyed records, one for each producer, group and partition: the last value of a key is the state, and the
end of the transaction takes the key away (``docs/adr/0012``). They came with format 2; what stands in ``records`` is
still written in format 1, so that keys stay what they were. All numbers are big-endian::

    key    format u8, kind u8 = 4, group text16, producer id i64, topic id 16, partition u32
    value  format u8, producer epoch i32, order i64, transactional id text16, then a value of ``records.offset_value``
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.binary import RecordDamaged
from headrace_coordinator.core.records import offset_value, read_offset
from headrace_coordinator.core.values import PendingOffset

FORMAT: Final = 2
_PENDING: Final = 4
_HEAD: Final = bytes((FORMAT, _PENDING))
_KEY_HEAD: Final = struct.Struct(">BBH")
_KEY_TAIL: Final = struct.Struct(">q16sI")
_VALUE_HEAD: Final = struct.Struct(">BiqH")


class PendingKey(NamedTuple):
    """Whose position, by which producer, and in which partition."""

    group_id: str
    producer_id: int
    partition: PartitionId


def pending_key(group_id: str, producer_id: int, partition: PartitionId) -> bytes:
    """Key of one position of an open transaction."""
    name = group_id.encode()
    return _KEY_HEAD.pack(FORMAT, _PENDING, len(name)) + name + _KEY_TAIL.pack(producer_id, *partition)


def read_pending_key(key: bytes) -> PendingKey | None:
    """
    The key; None: it is one of another kind, which ``records.read_key`` knows.

    Raises:
        RecordDamaged: it says that it is one, and is not.
    """
    if not key.startswith(_HEAD):
        return None
    try:
        _, _, length = _KEY_HEAD.unpack_from(key)
        end = _KEY_HEAD.size + length
        if len(key) == end + _KEY_TAIL.size:
            producer_id, topic_id, partition = _KEY_TAIL.unpack_from(key, end)
            group_id = key[_KEY_HEAD.size : end].decode()
            return PendingKey(group_id, producer_id, PartitionId(TopicId(topic_id), partition))
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordDamaged(f"the key {key[:40]!r} of a pending offset cannot be read: {error}") from error
    raise RecordDamaged(f"the key {key[:40]!r} of a pending offset has {len(key)} bytes")


def pending_value(pending: PendingOffset) -> bytes:
    """Value of one position of an open transaction."""
    name = pending.transactional_id.encode()
    return _VALUE_HEAD.pack(FORMAT, pending.epoch, pending.order, len(name)) + name + offset_value(pending.committed)


def read_pending(value: bytes) -> PendingOffset:
    """
    The position.

    Raises:
        RecordDamaged: these bytes are none.
        UnsupportedVersion: a newer version wrote it.
    """
    if value and value[0] > FORMAT:
        raise UnsupportedVersion(
            f"a pending offset has format {value[0]}, this version reads up to {FORMAT}; upgrade the node"
        )
    try:
        written, epoch, order, length = _VALUE_HEAD.unpack_from(value)
        if written != FORMAT:
            raise RecordDamaged(f"a pending offset has format {written}; they begin with {FORMAT}")
        end = _VALUE_HEAD.size + length
        if len(value) < end:
            raise RecordDamaged(f"a pending offset has {len(value)} bytes, too few for its transactional id")
        name = value[_VALUE_HEAD.size : end].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordDamaged(f"a pending offset cannot be read: {error}") from error
    return PendingOffset(epoch, order, name, read_offset(value[end:]))
