"""
What the records of a log mean when a shard is taken over. The shard calls this once, on ``Loaded``.

An append may have been cut: then its first rows are there and nothing that stood behind them was seen outside. Of rows
that belong together some may be missing, and here is what that means:

- An owner's record names what its units committed. A transaction that it names is committed, though it be prepared by
  its own record; what a unit committed and the owner's record does not name is prepared, for nobody saw it committed.
- A producer id is free, and an id has it: it is not free.
- Two ids of an owner have the same producer id: it went to the one with the higher epoch, the other one is over.
- An id is of an older epoch than its owner's record: what the new epoch did to it is missing and is done now, because
  that epoch may yet be answered (``Owner.epoch_of_ids``).
- An id's owner has no record: nobody was told of either, and the id is forgotten.
"""

from __future__ import annotations

from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions.effects import Effect, Persist
from headrace_coordinator.core.transactions.ending import Ending, tell
from headrace_coordinator.core.transactions.owner import Owner
from headrace_coordinator.core.transactions.records import (
    Kind,
    owner_row,
    read_key,
    read_owner,
    read_transaction,
    transaction_key,
)
from headrace_coordinator.core.transactions.register import FORGOTTEN, Register
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import NO_TIME, EndCause, TxnState, owner_of
from headrace_coordinator.core.values import Moment


class Loading:
    """Of one shard, once."""

    def __init__(self) -> None:
        self._ids: dict[str, Transaction] = {}
        self._owners: dict[str, Owner] = {}

    def replay(self, key: bytes, value: bytes | None) -> None:
        """
        Take the next record.

        Raises:
            RecordDamaged, UnsupportedVersion: it cannot be read.
        """
        kind, name = read_key(key)
        match kind:
            case Kind.NOTE:
                pass
            case Kind.TRANSACTION if value is None:
                self._ids.pop(name, None)
            case Kind.TRANSACTION:
                assert value is not None, "the case before"
                self._ids[name] = read_transaction(name, value)
            case Kind.OWNER if value is None:
                self._owners.pop(name, None)
            case Kind.OWNER:
                assert value is not None, "the case before"
                self._owners[name] = read_owner(name, value)

    def fill(self, register: Register, ending: Ending, settings: TransactionSettings, at: Moment) -> list[Effect]:
        """Put everything in its place, and return what must be done to go on from there."""
        register.forgotten.epoch = self._owners.pop(FORGOTTEN, register.forgotten).epoch
        register.owners.update(self._owners)
        effects: list[Effect] = []
        for txn in self._ids.values():
            owner = owner_of(txn.transactional_id)
            if owner is None or owner in register.owners:
                register.add(txn)
            else:
                effects.append(Persist(owner, ((transaction_key(txn.transactional_id), None),)))
        for owned in register.owners.values():
            effects += _mend(register, ending, owned, at)
        for txn in register.ids.values():
            _set_time(txn, settings, at)
            register.note(txn)
            if txn.ending:
                effects.append(tell(txn))
        return effects


def _mend(register: Register, ending: Ending, owner: Owner, at: Moment) -> list[Effect]:
    """Do to one owner and its ids what a cut append did not."""
    rows = _bury_replaced(register, owner)
    if owner.drop_taken():
        rows.insert(0, owner_row(owner, with_time=owner.used_at_ms != NO_TIME))
    owner.forget_all_but(txn.nonce for txn in owner.ids.values())
    for txn in list(owner.ids.values()):
        if txn.ending and txn.by_unit and not owner.has_committed(txn.nonce):
            txn.undecide()
        elif txn.state is TxnState.PREPARED and owner.has_committed(txn.nonce):
            txn.decide(commit=True, cause=EndCause.UNIT, at=at, continues=False)
            rows.append(ending.carry_out(txn, at)[0])
    for txn in [txn for txn in owner.ids.values() if txn.owner_epoch != owner.epoch_of_ids]:
        if not txn.ending or txn.continues:
            rows.append(ending.replace(txn, at)[0])
    return [Persist(owner.name, tuple(rows))] if rows else []


def _bury_replaced(register: Register, owner: Owner) -> list[Row]:
    """Forget ids whose producer id another one has by now."""
    latest: dict[int, Transaction] = {}
    by_epoch = sorted(owner.ids.values(), key=lambda txn: txn.producer, reverse=True)
    replaced = [txn for txn in by_epoch if latest.setdefault(txn.producer.producer_id, txn) is not txn]
    return [register.discard(txn) for txn in replaced]


def _set_time(txn: Transaction, settings: TransactionSettings, at: Moment) -> None:
    """Count on from the wall clock what was begun elsewhere; a clock that jumped makes no timeout longer."""
    txn.ending_since_ms = at.mono_ms
    if txn.state is TxnState.ONGOING:
        begun_ms, timeout_ms = txn.started_at_ms, txn.timeout_ms
    elif txn.state is TxnState.PREPARED and owner_of(txn.transactional_id) is not None:
        begun_ms, timeout_ms = txn.prepared_at_ms, settings.unit_prepared_timeout_ms
    else:
        return
    left_ms = begun_ms + timeout_ms - at.wall_ms
    txn.due_ms = at.mono_ms + min(max(left_ms, 0), timeout_ms)
