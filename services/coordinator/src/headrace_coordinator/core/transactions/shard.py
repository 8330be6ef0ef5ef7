"""
All transactional ids of one shard: routes events to them and keeps their time. The engine owns one per shard.

An id exists from its first ``InitAsked`` until it has done nothing for long, and so does an owner from its first
``OwnerInitAsked``. Ids of an owner are forgotten as soon as nobody may go on with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from headrace_common.core.errors import HeadraceError, InvalidTxnState, TransactionalIdNotFound
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.room import Room, transactional_ids
from headrace_coordinator.core.transactions.effects import Answer, Effect, Persist, Tally, TransactionListing
from headrace_coordinator.core.transactions.ending import Ending
from headrace_coordinator.core.transactions.events import (
    AbortAsked,
    DecideAsked,
    DescribeAsked,
    EndAsked,
    EnrolAsked,
    Event,
    GaveUp,
    InitAsked,
    Loaded,
    MarkersWritten,
    OwnerInitAsked,
    PrepareAsked,
    UnitAsked,
    Woken,
)
from headrace_coordinator.core.transactions.loading import Loading
from headrace_coordinator.core.transactions.producers import Producers
from headrace_coordinator.core.transactions.register import Register
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.units import Units
from headrace_coordinator.core.transactions.values import ENDING, EndCause, TxnState, key_of, owner_of
from headrace_coordinator.core.values import Moment

EXPIRY_IDS_PER_WAKE: Final = 2_000
"""Ids that one ``Woken`` looks over for expiry, so that no other event waits long."""


class TransactionShard:
    """The state of one shard. Between ``replay`` and ``Loaded`` nothing may be sent."""

    def __init__(self, number: int, settings: TransactionSettings, room: Room | None = None) -> None:
        self.number = number
        self._settings = settings
        self._loading: Loading | None = Loading()
        self._register = Register(settings, room or transactional_ids())
        self._ending = Ending(self._register)
        self._producers = Producers(settings, self._register, self._ending)
        self._units = Units(self._register, self._ending)
        self._next_check_ms = inf
        self._to_check: list[str] = []
        self._owners_to_check: list[str] = []

    # --- what the engine asks -------------------------------------------------------------------------------

    def replay(self, rows: Iterable[Row]) -> None:
        """
        Take records of the log, in its order.

        Raises:
            RecordDamaged, UnsupportedVersion: a record cannot be read.
        """
        assert self._loading is not None, "records are replayed before the shard serves"
        for key, value in rows:
            self._loading.replay(key, value)

    def next_wake_ms(self) -> float | None:
        """When ``Woken`` is due, monotonic; None: nothing is waited for."""
        due_ms = min(self._register.next_due_ms(), self._next_check_ms)
        return None if due_ms == inf else due_ms

    def list_transactions(self) -> list[TransactionListing]:
        """All ids, in the order of their names."""
        return [txn.make_listing() for _, txn in sorted(self._register.ids.items())]

    def write_times(self) -> None:
        """From now on owners' records tell when they were used last: all coordinators can read that."""
        self._register.writes_times = True

    def tally(self) -> Tally:
        """What is to be done now; costs as many steps as there are ids that are not at rest."""
        return self._register.tally()

    # --- events ---------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """
        Apply ``event`` and return what must now be done, in order.

        An enrolment and an end cost as many steps as they have partitions, whatever else the shard holds.

        Raises:
            AssertionError: our bug; nothing of ``event`` may be done.
        """
        if isinstance(event, Loaded):
            return self._load(event.at)
        assert self._loading is None, "nothing is served before Loaded"
        self._register.step += 1
        match event:
            case EnrolAsked() | EndAsked() | InitAsked() | PrepareAsked():
                return self._producers.handle(event)
            case MarkersWritten():
                txn, effects = self._ending.markers_written(event)
                return effects if txn is None else effects + self._producers.redo(txn, event.at)
            case DecideAsked():
                return self._producers.decide(event)
            case OwnerInitAsked():
                return self._units.init_owner(event)
            case UnitAsked():
                return self._units.commit(event)
            case AbortAsked():
                return self._abort(event)
            case DescribeAsked():
                return self._describe(event)
            case GaveUp():
                self._producers.gave_up(event)
                return []
            case Woken():
                return self._wake(event.at)

    def _load(self, at: Moment) -> list[Effect]:
        assert self._loading is not None, "a shard is loaded once"
        effects = self._loading.fill(self._register, self._ending, self._settings, at)
        self._loading = None
        self._register.enter(self.number)
        self._next_check_ms = at.mono_ms + self._settings.transactional_id_check_interval_ms
        return effects

    # --- operators ------------------------------------------------------------------------------------------

    def _describe(self, event: DescribeAsked) -> list[Effect]:
        txn = self._register.ids.get(event.transactional_id)
        result = _not_found(event.transactional_id) if txn is None else txn.description()
        return [Answer(key_of(event.transactional_id), event.ref, result)]

    def _abort(self, event: AbortAsked) -> list[Effect]:
        txn = self._register.ids.get(event.transactional_id)
        if txn is not None and txn.state is TxnState.ONGOING and _is_meant(event, *txn.producer):
            persist, *after = self._ending.abort(txn, EndCause.OPERATOR, event.at, continues=True)
            return [persist, Answer(txn.group_id, event.ref, None), *after]
        fault = _not_found(event.transactional_id) if txn is None else _abort_fault(txn, event)
        return [Answer(key_of(event.transactional_id), event.ref, fault)]

    # --- time -----------------------------------------------------------------------------------------------

    def _wake(self, at: Moment) -> list[Effect]:
        effects: list[Effect] = []
        for txn in self._register.take_due(at.mono_ms):
            effects += self._ending.abort(txn, EndCause.TIMEOUT, at, continues=True)
        if at.mono_ms >= self._next_check_ms:
            effects += self._expire(at)
        return effects

    def _expire(self, at: Moment) -> list[Effect]:
        """Forget ids that were idle for long; some of them now, the next ones at the next ``Woken``, which is due."""
        if not self._to_check and not self._owners_to_check:
            self._to_check, self._owners_to_check = list(self._register.ids), list(self._register.owners)
        effects: list[Effect] = []
        for transactional_id in self._to_check[-EXPIRY_IDS_PER_WAKE:]:
            txn = self._register.ids.get(transactional_id)
            if txn is not None and txn.at_rest and txn.updated_at_ms + self._expiration_ms_of(txn) <= at.wall_ms:
                effects.append(Persist(txn.group_id, (self._register.bury(txn),)))
        checked = len(self._to_check[-EXPIRY_IDS_PER_WAKE:])
        del self._to_check[-EXPIRY_IDS_PER_WAKE:]
        for name in self._owners_to_check[checked - EXPIRY_IDS_PER_WAKE :] if checked < EXPIRY_IDS_PER_WAKE else ():
            rows = self._register.forget_owner(name, at)
            effects += [Persist(name, rows)] if rows else []
        if checked < EXPIRY_IDS_PER_WAKE:
            del self._owners_to_check[checked - EXPIRY_IDS_PER_WAKE :]
        if not self._to_check and not self._owners_to_check:
            self._next_check_ms = at.mono_ms + self._settings.transactional_id_check_interval_ms
        return effects

    def _expiration_ms_of(self, txn: Transaction) -> int:
        """Ids of an owner are made anew for each piece of work; one that was used up is of no use to anybody soon."""
        if owner_of(txn.transactional_id) is not None and txn.state is not TxnState.EMPTY:
            return self._settings.unit_prepared_timeout_ms
        return self._settings.transactional_id_expiration_ms


def _not_found(transactional_id: str) -> HeadraceError:
    return TransactionalIdNotFound(f"the coordinator knows no transactional id {transactional_id!r}; list them")


def _is_meant(event: AbortAsked, producer_id: int, epoch: int) -> bool:
    return event.producer_id in (None, producer_id) and event.epoch in (None, epoch)


def _abort_fault(txn: Transaction, event: AbortAsked) -> HeadraceError | None:
    """None: it was aborted before."""
    if txn.state is TxnState.PREPARED and _is_meant(event, *txn.producer):
        return InvalidTxnState(
            f"the transaction of {txn.transactional_id!r} is prepared; decide it with its token: txn abort TOKEN or "
            "txn commit TOKEN"
        )
    decided = txn.decided
    named = event.producer_id is not None or event.epoch is not None
    if decided is not None and _is_meant(event, *decided.producer) and (named or txn.state in ENDING):
        if not decided.commit:
            return None
        return InvalidTxnState(f"the transaction of {txn.transactional_id!r} is committed already; nothing is to abort")
    return InvalidTxnState(f"{txn.transactional_id!r} has no such open transaction; describe it")
