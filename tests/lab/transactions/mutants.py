"""
Transactions with a rule taken out, each a bug that could be or was: worlds of transactions must find them.

Each mutant patches functions of the product for the time of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from tests.lab.kind import Mutant

from headrace_broker.core.appends import Appends
from headrace_broker.core.fences import Fences
from headrace_broker.core.leadership import Leadership
from headrace_broker.core.local_log import LocalLog
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import BatchArrived, Rebuilt
from headrace_broker.core.producers import Producers as KnownProducers
from headrace_broker.core.rows import AbortedRow
from headrace_common.core.errors import HeadraceError, InvalidProducerEpoch
from headrace_common.core.ids import Offset
from headrace_coordinator.core.effects import Persist
from headrace_coordinator.core.offsets import Offsets
from headrace_coordinator.core.shard_offsets import ShardOffsets
from headrace_coordinator.core.transactions import refusals
from headrace_coordinator.core.transactions.ending import Ending
from headrace_coordinator.core.transactions.events import EndAsked, MarkersWritten, OwnerInitAsked, PrepareAsked
from headrace_coordinator.core.transactions.owner import Owner
from headrace_coordinator.core.transactions.producers import Producers
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.units import Units
from headrace_coordinator.core.transactions.values import TxnState
from headrace_coordinator.engine.host import Host
from headrace_coordinator.engine.outbox import Outbox
from headrace_coordinator.engine.shard_host import ShardHost
from headrace_coordinator.engine.transaction_host import TransactionHost

Patches = Sequence[Any]


def end_the_next_one() -> Patches:
    """KAFKA-17754: an end says nothing of its transaction, as before epochs rose: a late one ends the next."""
    ended = Producers._end

    def _end(self: Producers, event: EndAsked) -> list[Any]:
        txn = self._register.ids.get(event.transactional_id)
        late = txn is not None and txn.state is TxnState.ONGOING and txn.producer.producer_id == event.producer_id
        if late and txn is not None and event.epoch < txn.producer.epoch:
            event = replace(event, epoch=txn.producer.epoch)
        return ended(self, event)

    return [patch.object(Producers, "_end", _end)]


def append_without_asking() -> Patches:
    """KIP-890: the first append of a transaction is not verified; a late one opens a transaction that nobody ends."""
    appended = Appends.append

    def append(self: Appends, leading: Leadership, event: BatchArrived, *, enrolled: bool = False) -> list[Any]:
        del enrolled
        return appended(self, leading, event, enrolled=True)

    return [patch.object(Appends, "append", append)]


def enrol_whoever_asks() -> Patches:
    """The coordinator does not look at the epoch of an enrolment: a late append joins what comes next."""

    def fault(txn: Transaction, asked: Any) -> HeadraceError | None:
        del txn, asked
        return None

    return [patch.object(refusals, "enrolment_fault", fault)]


def take_equal_markers() -> Patches:
    """A marker need not be above the known epoch: a late copy of the last one ends the transaction that is open now."""

    def check_marker(self: KnownProducers, producer_id: int, epoch: int, commit: bool) -> bool:
        known = self._known.get(producer_id)
        if known is None or epoch > known.epoch or (epoch == known.epoch and known.transaction_start is not None):
            return True
        if epoch == known.epoch and known.committed is commit:
            return False
        raise InvalidProducerEpoch("the partition has moved on")

    return [patch.object(KnownProducers, "check_marker", check_marker)]


def keep_the_guard() -> Patches:
    """An end does not take positions away that wait to be enrolled: they stay pending for ever."""

    def _take_away(self: ShardOffsets, marker: Any, effects: list[Any]) -> None:
        del self, marker, effects

    return [patch.object(ShardOffsets, "_take_away", _take_away)]


def forget_uncommitted_markers() -> Patches:
    """The last stable offset passes a transaction whose marker is above the high watermark."""
    settled = LocalLog.settle

    def settle(self: LocalLog) -> Offset:
        self.ending.clear()
        return settled(self)

    return [patch.object(LocalLog, "settle", settle)]


def answer_before_durable() -> Patches:
    """What follows from a verdict is shown before its record is committed."""
    taken = Outbox.take

    def take(self: Outbox[Any], effects: Iterable[Any], *, proof: bool) -> None:
        del proof
        told = list(effects)
        taken(self, [e for e in told if not isinstance(e, Persist)], proof=False)
        taken(self, [e for e in told if isinstance(e, Persist)], proof=False)

    handled = TransactionHost._handle

    def _handle(self: TransactionHost, event: Any) -> None:
        with patch.object(Outbox, "take", take):
            handled(self, event)

    return [patch.object(TransactionHost, "_handle", _handle)]


def answer_without_proof() -> Patches:
    """Coordinators answer from memory without a proof that they have the shard still."""
    return [
        patch.object(TransactionHost, "_needs_proof", lambda _self, _event, _effects: False),
        patch.object(ShardHost, "_needs_proof", lambda _self, _event, _effects: False),
        patch.object(Host, "_surely_ours", lambda _self: True),
    ]


def answer_ends_of_positions_without_proof() -> Patches:
    """The end of a transaction is acknowledged before its positions are in the log."""
    return [patch.object(ShardHost, "_needs_proof", lambda _self, _event, _effects: False)]


def complete_too_early() -> Patches:
    """A transaction is complete when the first partition has its marker."""
    written = Ending.markers_written

    def markers_written(self: Ending, event: MarkersWritten) -> Any:
        txn = self._register.ids.get(event.transactional_id)
        if txn is not None and txn.ending and txn.marker == (event.producer_id, event.epoch):
            txn.partitions.clear()
        return written(self, event)

    return [patch.object(Ending, "markers_written", markers_written)]


def time_out_what_is_prepared() -> Patches:
    """A prepared transaction is aborted when its timeout is up."""
    prepared = Producers._prepare

    def _prepare(self: Producers, event: PrepareAsked) -> list[Any]:
        effects = prepared(self, event)
        txn = self._register.ids.get(event.transactional_id)
        if txn is not None and txn.state is TxnState.PREPARED:
            txn.due_ms = min(txn.due_ms, event.at.mono_ms + txn.timeout_ms)
            self._register.note(txn)
        return effects

    return [patch.object(Producers, "_prepare", _prepare)]


def decide_units_by_parts() -> Patches:
    """The owner's record does not decide: each transaction of a unit has only its own."""
    committed = Owner.commit

    def commit(self: Owner, sequence: int, nonces: Iterable[int]) -> None:
        del nonces
        committed(self, sequence, ())

    return [patch.object(Owner, "commit", commit)]


def apply_positions_of_aborted() -> Patches:
    """Pending positions are committed whatever became of their transaction."""
    decided = Offsets.decide

    def decide(self: Offsets, *transaction: Any, **verdict: Any) -> Any:
        return decided(self, *transaction, **{**verdict, "commit": True})

    return [patch.object(Offsets, "decide", decide)]


def show_unstable_positions() -> Patches:
    """Positions are read although an undecided transaction has newer ones."""
    found = Offsets._find

    def _found(self: Offsets, topic: str, number: int, topics: Any, _require_stable: bool) -> Any:
        return found(self, topic, number, topics, False)

    return [patch.object(Offsets, "_find", _found)]


def take_old_owners() -> Patches:
    """An owner that was replaced goes on."""
    checked = refusals.owner_epoch_fault

    def fault(name: str, owner: Owner | None, epoch: int) -> HeadraceError | None:
        return checked(name, owner, epoch if owner is None else max(epoch, owner.epoch))

    return [patch.object(refusals, "owner_epoch_fault", fault)]


def _claimed_as_if(claim_of: Callable[[int, int], int]) -> Patches:
    """The owner's claim is another one than it was, for a moment."""
    asked = Units.init_owner

    def init_owner(self: Units, event: OwnerInitAsked) -> list[Any]:
        owner = self._register.owners.get(event.owner)
        if owner is not None and event.claim is not None:
            owner.claim = claim_of(owner.claim, event.claim)
        return asked(self, event)

    return [patch.object(Units, "init_owner", init_owner)]


def raise_equal_claims() -> Patches:
    """Each task that claims an owner gets an epoch of its own, and aborts what the others of its plan do."""
    return _claimed_as_if(lambda known, claim: claim - 1 if claim == known else known)


def take_low_claims() -> Patches:
    """Whoever claims last has the owner, also a zombie."""
    return _claimed_as_if(lambda known, claim: min(known, claim - 1) if claim < known else known)


def join_with_low_claims() -> Patches:
    """Claims are not compared: a zombie's tasks get the epoch of whoever came after it."""
    return [patch.object(refusals, "claim_fault", lambda _owner, _claim: None)]


def keep_ends_that_were_cut() -> Patches:
    """A truncation that cuts a marker, or a first append, leaves the transactions as they were."""
    cut = LocalLog.cut

    def kept(self: LocalLog, end: Offset, rebuilt: Rebuilt) -> Any:
        return cut(self, end, replace(rebuilt, producers=self.producers))

    return [patch.object(LocalLog, "cut", kept)]


def forget_producers() -> Patches:
    """What producers have open is not found again from the rows of the log."""
    return [patch.object(KnownProducers, "replay", lambda _self, _rows, _now_ms: [])]


def forget_aborted() -> Patches:
    """A restart forgets which transactions were aborted."""
    taken = Partition.with_transactions

    def with_transactions(self: Partition, aborted: Iterable[AbortedRow], ended: Iterable[Any]) -> Partition:
        del aborted
        return taken(self, (), ended)

    return [patch.object(Partition, "with_transactions", with_transactions)]


def forget_uncommitted_markers_at_restart() -> Patches:
    """After a restart the last stable offset passes transactions whose marker may yet be cut."""
    taken = Partition.with_transactions

    def with_transactions(self: Partition, aborted: Iterable[AbortedRow], ended: Iterable[Any]) -> Partition:
        del ended
        return taken(self, aborted, ())

    return [patch.object(Partition, "with_transactions", with_transactions)]


def take_any_token() -> Patches:
    """The leader of a shard's log does not compare tokens: a zombie coordinator writes."""
    return [patch.object(Fences, "refusal", lambda _self, _carried, _fence, **_required: None)]


MUTANTS: dict[str, Mutant] = {
    "kafka-17754": end_the_next_one,
    "kip-890": append_without_asking,
    "any-enrolment": enrol_whoever_asks,
    "equal-markers": take_equal_markers,
    "guard-kept": keep_the_guard,
    "stable-too-high": forget_uncommitted_markers,
    "early-answers": answer_before_durable,
    "unproved-answers": answer_without_proof,
    "unproved-ends": answer_ends_of_positions_without_proof,
    "early-complete": complete_too_early,
    "prepared-times-out": time_out_what_is_prepared,
    "unit-by-parts": decide_units_by_parts,
    "positions-of-aborted": apply_positions_of_aborted,
    "unstable-positions": show_unstable_positions,
    "old-owners": take_old_owners,
    "equal-claims-raise": raise_equal_claims,
    "low-claims-win": take_low_claims,
    "low-claims-join": join_with_low_claims,
    "ends-uncut": keep_ends_that_were_cut,
    "producers-forgotten": forget_producers,
    "aborted-forgotten": forget_aborted,
    "stable-too-high-at-start": forget_uncommitted_markers_at_restart,
    "zombie-writes": take_any_token,
}
RARE = frozenset({"guard-kept"})
"""Found too late for every change; the long form looks for them."""
FOUND: Final[dict[str, int]] = {
    "early-complete": 1,
    "equal-claims-raise": 2,
    "equal-markers": 2,
    "kafka-17754": 4,
    "low-claims-join": 2,
    "low-claims-win": 2,
    "old-owners": 5,
    "positions-of-aborted": 1,
    "prepared-times-out": 3,
    "unit-by-parts": 2,
    "unproved-answers": 1,
    "unproved-ends": 1,
    "unstable-positions": 1,
    "zombie-writes": 15,
}
"""See ``Kind.found``; others are found by one of the first seeds."""
