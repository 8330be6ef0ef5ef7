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

from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.binary import (
    I64,
    KeyForm,
    Reader,
    RecordDamaged,
    check_format,
    pair,
    readable,
)
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


_NOTE_KEY: Final = bytes((FORMAT, Kind.NOTE.value))
_KEYS: Final = {kind: KeyForm(FORMAT, kind.value) for kind in (Kind.TRANSACTION, Kind.OWNER)}
_TRANSACTION: Final = struct.Struct(">BBBBqhqhiqqqQqhQ")
"""Format, state, flags, cause; producer id, epoch; of the markers: producer id, epoch; timeout; started, prepared and
updated at; nonce; of the last one decided: producer id, epoch, nonce."""
_OWNER: Final = struct.Struct(">BqqI")
_CLAIM: Final = pair(I64, I64)
_CONTINUES: Final = 1
_CONTESTED: Final = 2
_DECIDED: Final = 4
_COMMITTED: Final = 8
_NEVER: Final = Decided(Producer(NO_PRODUCER, -1), False, EndCause.CLIENT, NO_NONCE)

# --- keys -----------------------------------------------------------------------------------------------------


def transaction_key(transactional_id: str) -> bytes:
    return _KEYS[Kind.TRANSACTION].pack(transactional_id)


def owner_key(owner: str) -> bytes:
    return _KEYS[Kind.OWNER].pack(owner)


@readable("the key {0!r:.80} of a transaction record")
def read_key(key: bytes) -> tuple[Kind, str]:
    """
    What the record is about, and its name.

    Raises:
        RecordDamaged: it is not a key of ours.
        UnsupportedVersion: a newer coordinator wrote it.
    """
    if key == _NOTE_KEY:
        return Kind.NOTE, ""
    check_format(key[0], FORMAT)
    kind = Kind(key[1])
    return kind, str(_KEYS[kind].unpack(key)[0])


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
    epoch = I64.pack(txn.owner_epoch) if owned else b""
    return transaction_key(txn.transactional_id), head + epoch + txn.packed


@readable("the record of transactional id {0!r}")
def read_transaction(transactional_id: str, value: bytes) -> Transaction:
    """
    The id as its record has it; while it is ending no partition has its marker.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    check_format(value[0], CLAIMED)
    _, state, flags, cause, *fields = _TRANSACTION.unpack_from(value)
    pid, epoch, marker_pid, marker_epoch, timeout_ms, started, prepared, updated, nonce, *last = fields
    decided = None
    if flags & _DECIDED:
        decided = Decided(Producer(last[0], last[1]), bool(flags & _COMMITTED), EndCause(cause), last[2])
    rest = Reader(value[_TRANSACTION.size :])
    owner_epoch = I64.take(rest) if value[0] == CLAIMED else NO_OWNER_EPOCH
    packed = rest.take_rest()
    txn = Transaction(
        transactional_id,
        Producer(pid, epoch),
        timeout_ms,
        state=TxnState(state),
        marker=Producer(marker_pid, marker_epoch),
        partitions=dict.fromkeys(
            PartitionId(TopicId(topic), number) for topic, number in PARTITION.iter_unpack(packed)
        ),
        packed=bytearray(packed),
        started_at_ms=started,
        prepared_at_ms=prepared,
        updated_at_ms=updated,
        nonce=nonce,
        decided=decided,
        continues=bool(flags & _CONTINUES),
        contested=bool(flags & _CONTESTED),
        owner_epoch=owner_epoch,
    )
    if txn.state in ENDING and (decided is None or not txn.partitions):
        raise RecordDamaged(f"the record of {transactional_id!r} has an end without a verdict or without partitions")
    return txn


# --- owners ---------------------------------------------------------------------------------------------------


def owner_row(owner: Owner, *, with_time: bool = False) -> Row:
    """The owner's record as it is now; with the time that it was used at, which not every version can read."""
    undone = owner.pack_undone()
    number = TIMED if with_time else FORMAT if owner.claim == NO_CLAIM else CLAIMED
    head = _OWNER.pack(number, owner.epoch, owner.last_sequence, len(undone))
    claim = _CLAIM.pack((owner.claim, owner.claim_epoch)) if number >= CLAIMED else b""
    used = I64.pack(owner.used_at_ms) if number == TIMED else b""
    return owner_key(owner.name), head + claim + used + undone + owner.free


@readable("the record of owner {0!r}")
def read_owner(name: str, value: bytes) -> Owner:
    """
    The owner as its record has it; its ids are elsewhere.

    Raises:
        RecordDamaged, UnsupportedVersion: as ``read_key``.
    """
    check_format(value[0], TIMED)
    _, epoch, last_sequence, undone_bytes = _OWNER.unpack_from(value)
    rest = Reader(value[_OWNER.size :])
    claim, claim_epoch = _CLAIM.take(rest) if value[0] >= CLAIMED else (NO_CLAIM, NO_OWNER_EPOCH)
    used_at_ms = I64.take(rest) if value[0] == TIMED else NO_TIME
    undone, free = rest.take(undone_bytes), rest.take_rest()
    if undone_bytes % NONCE.size or len(free) % FREE.size:
        raise ValueError(f"it has {len(value)} bytes, which is not what it announces")
    owner = Owner(name, epoch, last_sequence, claim, claim_epoch, used_at_ms, bytearray(free))
    owner.read_undone(undone)
    return owner
