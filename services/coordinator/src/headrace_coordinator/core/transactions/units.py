"""
What owners of transactional ids ask: to become the owner, and to commit a unit. The shard calls.

A unit is decided by one record, the owner's: what is prepared under a nonce in it is committed. The records of the
transactions themselves go into the same append, behind it; where the append was cut, ``loading`` does what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_common.core.errors import FencedOwner, HeadraceError, Rejected, TransactionAbortable
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions import refusals
from headrace_coordinator.core.transactions.effects import Answer, Effect, OwnerResult, Persist, UnitResult
from headrace_coordinator.core.transactions.ending import Ending
from headrace_coordinator.core.transactions.events import OwnerInitAsked, UnitAsked
from headrace_coordinator.core.transactions.owner import Owner
from headrace_coordinator.core.transactions.register import Register
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import EndCause, Token, TxnState, owner_of
from headrace_coordinator.core.values import Moment


class Units:
    """Of the owners of one shard."""

    def __init__(self, register: Register, ending: Ending) -> None:
        self._register = register
        self._ending = ending

    # --- becoming the owner -----------------------------------------------------------------------------------

    def init_owner(self, event: OwnerInitAsked) -> list[Effect]:
        """
        A new epoch, or with the claim of the present one that. With a new one what is open or prepared is aborted, what
        is at rest forgotten, so that no producer of an older epoch goes on.
        """
        known = self._register.owners.get(event.owner)
        fault = _init_fault(event)
        if fault is None and known is None:
            fault = self._register.room.fault(event.owner)
        if fault is not None:
            return [Answer(event.owner.partition("/")[0], event.ref, fault)]
        owner = known or self._register.new_owner(event.owner)
        if event.claim is not None and event.claim <= owner.claim:
            result = OwnerResult(owner.epoch, owner.last_sequence)
            return [Answer(owner.name, event.ref, refusals.claim_fault(owner, event.claim) or result)]
        if event.claim is not None and event.claim > self._register.claim_most(event.at):
            return [Answer(owner.name, event.ref, refusals.claim_ahead(owner, event.claim, event.at.wall_ms))]
        self._register.owners[owner.name] = owner
        owner.begin_epoch(event.claim)
        rows: list[Row] = []
        after: list[Effect] = []
        for txn in list(owner.ids.values()):
            row, effects = self._ending.replace(txn, event.at)
            rows.append(row)
            after += effects
        result = OwnerResult(owner.epoch, owner.last_sequence)
        rows.insert(0, self._register.save_owner(owner, event.at))
        return [Persist(owner.name, tuple(rows)), Answer(owner.name, event.ref, result), *after]

    def _collect(self, txn: Transaction, at: Moment, rows: list[Row], after: list[Effect]) -> None:
        row, effects = self._ending.carry_out(txn, at)
        rows.append(row)
        after += effects

    # --- units ------------------------------------------------------------------------------------------------

    def commit(self, event: UnitAsked) -> list[Effect]:
        """Commit what is listed and abort what else is prepared, or change nothing."""
        owner = self._register.owners.get(event.owner)
        fault = refusals.owner_epoch_fault(event.owner, owner, event.owner_epoch)
        if owner is None or fault is not None:
            assert fault is not None, "an owner that is not known is a fault"
            return [Answer(event.owner, event.ref, fault)]
        if event.sequence < 0:
            return [Answer(owner.name, event.ref, Rejected(f"{event.sequence} is no sequence of a unit; count from 0"))]
        if event.sequence < owner.last_sequence:
            text = f"the owner {owner.name!r} has committed unit {owner.last_sequence}, {event.sequence} is an old one"
            return [Answer(owner.name, event.ref, FencedOwner(f"{text}; this one has to stop"))]
        if event.sequence == owner.last_sequence:
            return self._again(owner, event)
        found = self._find_listed(owner, event.tokens)
        if isinstance(found, HeadraceError):
            return [Answer(owner.name, event.ref, found)]
        owner.commit(event.sequence, [txn.nonce for txn in found.values()])
        rows: list[Row] = [self._register.save_owner(owner, event.at)]
        after: list[Effect] = []
        for txn in found.values():
            txn.decide(commit=True, cause=EndCause.UNIT, at=event.at, continues=False)
            self._collect(txn, event.at, rows, after)
        self._abort_prepared(owner, event.at, rows, after)
        answer = Answer(owner.name, event.ref, UnitResult(repeated_sequence=False))
        return [Persist(owner.name, tuple(rows)), answer, *after]

    def _again(self, owner: Owner, event: UnitAsked) -> list[Effect]:
        """What is prepared is not of that unit, also where this request lists it: that would write it twice."""
        rows: list[Row] = []
        after: list[Effect] = []
        self._abort_prepared(owner, event.at, rows, after)
        effects: list[Effect] = [Persist(owner.name, tuple(rows))] if rows else []
        return [*effects, Answer(owner.name, event.ref, UnitResult(repeated_sequence=True)), *after]

    def _abort_prepared(self, owner: Owner, at: Moment, rows: list[Row], after: list[Effect]) -> None:
        for txn in list(owner.ids.values()):
            if txn.state is TxnState.PREPARED:
                txn.decide(commit=False, cause=EndCause.UNIT, at=at, continues=False)
                self._collect(txn, at, rows, after)

    @staticmethod
    def _find_listed(owner: Owner, tokens: Sequence[Token]) -> dict[str, Transaction] | HeadraceError:
        """Those that are to be committed; without those that somebody committed singly."""
        found: dict[str, Transaction] = {}
        for token in tokens:
            if owner_of(token.transactional_id) != owner.name:
                text = f"{token.transactional_id!r} is not an id of the owner {owner.name!r}"
                return Rejected(f"{text}; list only tokens of ids that begin with {owner.name + '/'!r}")
            txn = owner.ids.get(token.transactional_id)
            if txn is not None and txn.token == token:
                found[token.transactional_id] = txn
                continue
            decided = None if txn is None else txn.verdict_on(token)
            if decided is None or not decided.commit:
                became = "is not prepared" if decided is None else "was aborted"
                text = f"the listed transaction of {token.transactional_id!r}, producer {token.producer_id} epoch "
                return TransactionAbortable(f"{text}{token.epoch}, {became}; abort the others and do the unit again")
        return found


def _init_fault(event: OwnerInitAsked) -> HeadraceError | None:
    if not event.owner or "/" in event.owner:
        return Rejected(f"{event.owner!r} is no name of an owner; use one without '/', and not an empty one")
    if event.claim is not None and event.claim < 0:
        return Rejected(f"{event.claim} is no claim of an owner; claim with 0 or more")
    return None
