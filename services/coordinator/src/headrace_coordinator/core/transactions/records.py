"""
What stands in a partition of ``__transaction_state``: a key and a value per record, in a binary format of our own.

``register`` writes, ``shard.TransactionShard.replay`` reads. The last value of a key is the whole state; no value means
that there is none. All numbers are big-endian; keys have format 1, values of ids 1 or 2, of owners 1 to 3::

    key    format u8, kind u8, length u16, name      kind 4: a transactional id; 5: an owner; 3: a note, without a name
    value  of an id: format u8, state u8, flags u8, cause u8, then the fields of ``_TRANSACTION`` in their order, then
           in format 2 the epoch of its owner i64, then 16 + 4 bytes for each partition: topic id, number
    value  of an owner: format u8, epoch i64, last sequence i64, bytes of nonces u32, from format 2 on claim i64 and its
           epoch i64, in format 3 used at i64 (ms since 1970), then nonces (8 bytes each), free producer ids (producer
           id i64, next epoch i16)

Format 2 is written of owners that were claimed, and of their ids; what knows only format 1 can read all else. Format 3
is written of owners once the cluster's feature level says that every coordinator reads it. The owner without a name is
none: its epoch is the highest of those that were forgotten.
Flags: 1 continues, 2 contested, 4 something was decided, 8 it was committed.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.binary import RecordDamaged
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions.owner import FREE, NONCE, Owner
from headrace_coordinator.core.transactions.transaction import PARTITION, Transaction
from headrace_coordinator.core.transactions.values import (
    ENDING,
    NO_CLAIM,
    NO_NONCE,
    NO_OWNER_EPOCH,
    NO_PRODUCER,
    NO_TIME,
    Decided,
    EndCause,
    Producer,
    TxnState,
)

FORMAT: Final = 1
CLAIMED: Final = 2
"""Format of the values of an owner that was claimed, and of its ids."""
TIMED: Final = 3
"""Format of the values of owners that tell when they were used last."""


class Kind(Enum):
    """What a record is about; the value is what keys hold."""

    NOTE = 3
    """Nothing; it was appended to learn that what stands before it is committed."""
    TRANSACTION = 4
    OWNER = 5


_KEY: Final = struct.Struct(">BBH")
_NOTE_KEY: Final = bytes((FORMAT, Kind.NOTE.value))
_TRANSACTION: Final = struct.Struct(">BBBBqhqhiqqqQqhQ")
"""Format, state, flags, cause; producer id, epoch; of the markers: producer id, epoch; timeout; started, prepared and
updated at; nonce; of the last one decided: producer id, epoch, nonce."""
_EPOCH: Final = struct.Struct(">q")
_OWNER: Final = struct.Struct(">BqqI")
_CLAIM: Final = struct.Struct(">qq")
_TIME: Final = struct.Struct(">q")
_CONTINUES: Final = 1
_CONTESTED: Final = 2
_DECIDED: Final = 4
_COMMITTED: Final = 8
_NEVER: Final = Decided(Producer(NO_PRODUCER, -1), False, EndCause.CLIENT, NO_NONCE)

# --- keys -----------------------------------------------------------------------------------------------------


def transaction_key(transactional_id: str) -> bytes:
    """Key of an id's record."""
    name = transactional_id.encode()
    return _KEY.pack(FORMAT, Kind.TRANSACTION.value, len(name)) + name


def owner_key(owner: str) -> bytes:
    """Key of an owner's record."""
    name = owner.encode()
    return _KEY.pack(FORMAT, Kind.OWNER.value, len(name)) + name


def read_key(key: bytes) -> tuple[Kind, str]:
    """
    What the record is about, and its name.

    Raises:
        RecordDamaged: it is not a key of ours.
        UnsupportedVersion: a newer coordinator wrote it.
    """
    if key == _NOTE_KEY:
        return Kind.NOTE, ""
    try:
        format_number, kind, size = _KEY.unpack_from(key)
        _check_format(format_number, FORMAT)
        name = key[_KEY.size :].decode()
        if len(key) != _KEY.size + size:
            raise RecordDamaged(f"the key of a transaction record has {len(key)} bytes instead of {_KEY.size + size}")
        return Kind(kind), name
    except (struct.error, ValueError) as error:
        raise RecordDamaged(f"the key of a transaction record cannot be read: {error}") from error


def _check_format(number: int, newest: int) -> None:
    if not FORMAT <= number <= newest:
        raise UnsupportedVersion(
            f"a transaction record has format {number}, this coordinator knows up to {newest}; run a newer one"
        )


# --- ids ------------------------------------------------------------------------------------------------------


def transaction_row(txn: Transaction) -> Row:
    """The id's record as it is now."""
    decided = txn.decided or _NEVER
    flags = (
        _CONTINUES * txn.continues
        | _CONTESTED * txn.contested
        | _DECIDED * (txn.decided is not None)
        | _COMMITTED * decided.commit
    )
    owned = txn.owner_epoch != NO_OWNER_EPOCH
    head = _TRANSACTION.pack(
        CLAIMED if owned else FORMAT,
        txn.state.value,
        flags,
        decided.cause.value,
        *txn.producer,
        *txn.marker,
        txn.timeout_ms,
        txn.started_at_ms,
        txn.prepared_at_ms,
        txn.updated_at_ms,
        txn.nonce,
        *decided.producer,
        decided.nonce,
    )
    epoch = _EPOCH.pack(txn.owner_epoch) if owned else b""
    return transaction_key(txn.transactional_id), head + epoch + txn.packed


def read_transaction(transactional_id: str, value: bytes) -> Transaction:
    """
    The id as its record has it; while it is ending no partition has its marker.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    try:
        _check_format(value[0], CLAIMED)
        owner_epoch, packed_at = NO_OWNER_EPOCH, _TRANSACTION.size
        if value[0] == CLAIMED:
            (owner_epoch,) = _EPOCH.unpack_from(value, packed_at)
            packed_at += _EPOCH.size
        _, state, flags, cause, *fields = _TRANSACTION.unpack_from(value)
        pid, epoch, marker_pid, marker_epoch, timeout_ms, started, prepared, updated, nonce, *last = fields
        decided = None
        if flags & _DECIDED:
            decided = Decided(Producer(last[0], last[1]), bool(flags & _COMMITTED), EndCause(cause), last[2])
        txn = Transaction(
            transactional_id,
            Producer(pid, epoch),
            timeout_ms,
            state=TxnState(state),
            marker=Producer(marker_pid, marker_epoch),
            packed=bytearray(value[packed_at:]),
            started_at_ms=started,
            prepared_at_ms=prepared,
            updated_at_ms=updated,
            nonce=nonce,
            decided=decided,
            continues=bool(flags & _CONTINUES),
            contested=bool(flags & _CONTESTED),
            owner_epoch=owner_epoch,
        )
        packed = PARTITION.iter_unpack(txn.packed)
        txn.partitions = dict.fromkeys(PartitionId(TopicId(topic), number) for topic, number in packed)
    except (struct.error, ValueError, IndexError) as error:
        raise RecordDamaged(f"the record of transactional id {transactional_id!r} cannot be read: {error}") from error
    if txn.state in ENDING and (decided is None or not txn.partitions):
        raise RecordDamaged(f"the record of {transactional_id!r} has an end without a verdict or without partitions")
    return txn


# --- owners ---------------------------------------------------------------------------------------------------


def owner_row(owner: Owner, *, with_time: bool = False) -> Row:
    """The owner's record as it is now; with the time that it was used at, which not every version can read."""
    undone = owner.packed_undone()
    number = TIMED if with_time else FORMAT if owner.claim == NO_CLAIM else CLAIMED
    head = _OWNER.pack(number, owner.epoch, owner.last_sequence, len(undone))
    claim = _CLAIM.pack(owner.claim, owner.claim_epoch) if number >= CLAIMED else b""
    used = _TIME.pack(owner.used_at_ms) if number == TIMED else b""
    return owner_key(owner.name), head + claim + used + undone + owner.free


def read_owner(name: str, value: bytes) -> Owner:
    """
    The owner as its record has it; its ids are elsewhere.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    try:
        _check_format(value[0], TIMED)
        _, epoch, last_sequence, undone_bytes = _OWNER.unpack_from(value)
        claim, claim_epoch, used_at_ms, undone_at = NO_CLAIM, NO_OWNER_EPOCH, NO_TIME, _OWNER.size
        if value[0] >= CLAIMED:
            claim, claim_epoch = _CLAIM.unpack_from(value, undone_at)
            undone_at += _CLAIM.size
        if value[0] == TIMED:
            (used_at_ms,) = _TIME.unpack_from(value, undone_at)
            undone_at += _TIME.size
    except (struct.error, IndexError) as error:
        raise RecordDamaged(f"the record of owner {name!r} cannot be read: {error}") from error
    free_at = undone_at + undone_bytes
    if undone_bytes % NONCE.size or free_at > len(value) or (len(value) - free_at) % FREE.size:
        raise RecordDamaged(f"the record of owner {name!r} has {len(value)} bytes, which is not what it announces")
    owner = Owner(name, epoch, last_sequence, claim, claim_epoch, used_at_ms, bytearray(value[free_at:]))
    owner.read_undone(value[undone_at:free_at])
    return owner
