"""
All ids and owners of a shard, and whose time is up. What changes an id calls ``save`` or ``bury`` and persists the row
that it gets.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import Final

from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.room import Room
from headrace_coordinator.core.transactions.effects import Tally
from headrace_coordinator.core.transactions.owner import Owner
from headrace_coordinator.core.transactions.records import owner_key, owner_row, transaction_key, transaction_row
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import (
    CLAIM_CHANCE_BITS,
    NO_OWNER_EPOCH,
    NO_TIME,
    Producer,
    TxnState,
    owner_of,
)
from headrace_coordinator.core.values import Moment

FORGOTTEN: Final = ""
"""No owner has this name."""


class Register:
    """Of one shard."""

    def __init__(self, settings: TransactionSettings, room: Room) -> None:
        self._settings = settings
        self.room = room
        self.forgotten = Owner(FORGOTTEN)
        """No owner: its epoch is the highest of all that were forgotten. Who comes anew begins above it, so that nobody
        who was left over of those passes for one of its own."""
        self.writes_times = False
        """Whether owners' records tell when they were used."""
        self.ids: dict[str, Transaction] = {}
        self.owners: dict[str, Owner] = {}
        self.step = 0
        """Number of the event that is being handled."""
        self.durable_step = 0
        """What was persisted up to this one is in the log: a marker that is written proves it of its verdict, and with
        that of all that was persisted before."""
        self._busy: dict[str, Transaction] = {}
        """Those that are not at rest."""
        self._wakes: list[tuple[float, str]] = []
        """At most one per id counts: that of its ``scheduled_ms``. A time that moves on does not move its entry."""

    def enter(self, shard: int) -> None:
        """All was loaded: what is here counts from now on."""
        self.room.enter(shard, lambda: len(self.ids) + len(self.owners))

    # --- ids --------------------------------------------------------------------------------------------------

    def add(self, txn: Transaction) -> None:
        """An id that was not there."""
        assert txn.transactional_id not in self.ids, "an id is there once"
        self.ids[txn.transactional_id] = txn
        owner = owner_of(txn.transactional_id)
        if owner is not None:
            self.owners[owner].ids[txn.transactional_id] = txn

    def save(self, txn: Transaction, at: Moment) -> Row:
        """The id's row, to be persisted now."""
        txn.updated_at_ms = at.wall_ms
        self.note(txn)
        return transaction_row(txn)

    def note(self, txn: Transaction) -> None:
        """The id may have another state, or another time."""
        if txn.at_rest:
            self._busy.pop(txn.transactional_id, None)
        else:
            self._busy[txn.transactional_id] = txn
        if txn.due_ms < txn.scheduled_ms:
            txn.scheduled_ms = txn.due_ms
            heappush(self._wakes, (txn.due_ms, txn.transactional_id))

    def bury(self, txn: Transaction) -> Row:
        """An id that is through is no more; its row, to be persisted now. An owner gets the producer id back."""
        assert txn.at_rest, "only what is over is forgotten"
        name = owner_of(txn.transactional_id)
        if name is not None:
            self.owners[name].put_back(txn.producer, self._settings.unit_free_producer_ids_max)
        return self.discard(txn)

    def discard(self, txn: Transaction) -> Row:
        """The id is no more, and nor is its producer id; its row, to be persisted now."""
        del self.ids[txn.transactional_id]
        self._busy.pop(txn.transactional_id, None)
        name = owner_of(txn.transactional_id)
        if name is not None:
            del self.owners[name].ids[txn.transactional_id]
        return transaction_key(txn.transactional_id), None

    def free_identity(self, transactional_id: str, at: Moment) -> tuple[Producer, Row] | None:
        """An identity that the id's owner has to give, and the owner's row, which has to be persisted with the id's."""
        name = owner_of(transactional_id)
        producer = None if name is None else self.owners[name].take()
        return None if name is None or producer is None else (producer, self.save_owner(self.owners[name], at))

    def owner_epoch(self, transactional_id: str) -> int:
        """What the record of an id says of its owner's epoch, see ``Owner.epoch_of_ids``; -1 for a plain id."""
        name = owner_of(transactional_id)
        return NO_OWNER_EPOCH if name is None else self.owners[name].epoch_of_ids

    def save_owner(self, owner: Owner, at: Moment) -> Row:
        owner.forget_complete(self.durable_step)
        owner.used_at_ms = at.wall_ms
        return owner_row(owner, with_time=self.writes_times)

    def new_owner(self, name: str) -> Owner:
        """One that was not there, or not any more; it has no epoch yet."""
        return Owner(name, self.forgotten.epoch)

    def claim_most(self, at: Moment) -> int:
        """The highest claim that is taken now: a clock that is far ahead would keep all others out."""
        return (at.wall_ms + self._settings.unit_claim_ahead_max_ms) << CLAIM_CHANCE_BITS

    def forget_owner(self, name: str, at: Moment) -> tuple[Row, ...]:
        """Forget an owner that has no ids and was not used for long: the rows to be persisted now, or none."""
        owner = self.owners.get(name)
        if owner is None or owner.ids:
            return ()
        if owner.used_at_ms == NO_TIME:
            owner.used_at_ms = at.wall_ms  # its record does not say; it counts from now
        if owner.used_at_ms + self._settings.transactional_id_expiration_ms > at.wall_ms:
            return ()
        del self.owners[name]
        self.forgotten.epoch = max(self.forgotten.epoch, owner.epoch)
        return owner_row(self.forgotten), (owner_key(name), None)

    # --- time -------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> float:
        """When the next id's time may be up, monotonic; inf: never."""
        while self._wakes:
            due_ms, transactional_id = self._wakes[0]
            txn = self.ids.get(transactional_id)
            if txn is not None and txn.scheduled_ms == due_ms:
                return due_ms
            heappop(self._wakes)
        return inf

    def take_due(self, now_ms: float) -> list[Transaction]:
        """Ids whose time is up, each once."""
        due: list[Transaction] = []
        while self.next_due_ms() <= now_ms:
            _, transactional_id = heappop(self._wakes)
            txn = self.ids[transactional_id]
            txn.scheduled_ms = inf
            if txn.due_ms <= now_ms:
                due.append(txn)
            else:
                self.note(txn)
        return due

    # --- measuring --------------------------------------------------------------------------------------------

    def tally(self) -> Tally:
        """What is to be done now."""
        busy = self._busy.values()
        opened = [txn.started_at_ms for txn in busy if txn.state is TxnState.ONGOING]
        prepared = [txn.prepared_at_ms for txn in busy if txn.state is TxnState.PREPARED]
        return Tally(
            open=len(opened),
            prepared=len(prepared),
            ending=len(busy) - len(opened) - len(prepared),
            waiting=sum(len(txn.waiting) for txn in busy),
            oldest_open_at_ms=min(opened, default=NO_TIME),
            oldest_prepared_at_ms=min(prepared, default=NO_TIME),
        )
