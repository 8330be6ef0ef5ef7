"""
Why a request of a producer is refused, as typed errors with a sentence that says what to do. ``producers`` asks.
"""

from __future__ import annotations

from headrace_common.core.errors import (
    FencedOwner,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    Rejected,
    TransactionAbortable,
)
from headrace_coordinator.core.transactions.owner import Owner
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import (
    CAUSES_OF_SERVER,
    CLAIM_CHANCE_BITS,
    Decided,
    EndCause,
    Producer,
)

_WHY = {
    EndCause.TIMEOUT: "its timeout was up",
    EndCause.OPERATOR: "an operator did it",
    EndCause.TOKEN: "the holder of its token did it",
}


def unknown_id(transactional_id: str) -> HeadraceError:
    """Nothing is known of the id."""
    return InvalidProducerIdMapping(
        f"the transactional id {transactional_id!r} is not known, or was forgotten; initialize it again"
    )


def owner_epoch_fault(name: str, owner: Owner | None, epoch: int) -> HeadraceError | None:
    """Of a request that says which epoch of the owner it belongs to."""
    if owner is None or epoch > owner.epoch:
        known = "is not known" if owner is None else f"is at epoch {owner.epoch}, not {epoch}"
        return Rejected(f"the owner {name!r} {known}; call InitOwner first, and use the epoch that it answers")
    if epoch < owner.epoch:
        return FencedOwner(f"the owner {name!r} is at epoch {owner.epoch}, {epoch} was replaced; this one has to stop")
    return None


def claim_fault(owner: Owner, claim: int) -> HeadraceError | None:
    """Of a claim that is not higher than all before, and not that of the present epoch."""
    if claim > owner.claim or (claim == owner.claim and owner.claim_epoch == owner.epoch):
        return None
    if claim < owner.claim:
        return FencedOwner(
            f"the owner {owner.name!r} was claimed with {owner.claim}, {claim} is lower: a newer process has it and "
            f"this one has to stop; if this is the newest, claim with more than {owner.claim} (is its clock behind?)"
        )
    return FencedOwner(
        f"the owner {owner.name!r} was claimed with {claim} for epoch {owner.claim_epoch}, and somebody became the "
        "owner without a claim since: this one has to stop; if it is to be the owner again, claim with a higher number"
    )


def claim_ahead(owner: Owner, claim: int, wall_ms: int) -> HeadraceError:
    """Of a claim that is a time of the future."""
    ahead_min = ((claim >> CLAIM_CHANCE_BITS) - wall_ms) // 60_000
    return Rejected(
        f"the claim {claim} of the owner {owner.name!r} is a time {ahead_min} minutes ahead of the coordinator's "
        "clock, and would keep all later ones out: set the clock of whoever claims, or the coordinator's, or count"
    )


def unit_id_fault(transactional_id: str, owner: Owner | None, owner_epoch: int | None) -> HeadraceError | None:
    """Of a request for an id, plain or of an owner."""
    name, slash, suffix = transactional_id.partition("/")
    if not slash:
        if owner_epoch is None:
            return None
        return Rejected(f"{transactional_id!r} has no owner; leave the owner epoch out, or call it OWNER/SUFFIX")
    if not name or not suffix:
        return Rejected(f"{transactional_id!r} has a '/' and therefore needs an owner before and a suffix after")
    if owner_epoch is None:
        return Rejected(
            f"{transactional_id!r} belongs to the owner {name!r}; give the owner epoch from InitOwner, or use an id "
            "without '/'"
        )
    return owner_epoch_fault(name, owner, owner_epoch)


def timeout_fault(timeout_ms: int, most_ms: int) -> HeadraceError | None:
    if 0 < timeout_ms <= most_ms:
        return None
    return InvalidTransactionTimeout(
        f"a transaction timeout of {timeout_ms} ms is not in 1 to {most_ms} (transaction.max.timeout.ms); change it"
    )


def enrolment_fault(txn: Transaction, asked: Producer) -> HeadraceError | None:
    """Of a partition leader's request for ``asked``."""
    if asked == txn.producer and txn.is_held:
        return None
    if asked.producer_id == txn.producer.producer_id or _had_before(txn, asked):
        return InvalidProducerEpoch(
            f"{txn.transactional_id!r} is at epoch {txn.producer.epoch} of producer {txn.producer.producer_id}; the "
            f"transaction of epoch {asked.epoch} has ended"
        )
    return _other_producer(txn, asked)


def producer_fault(txn: Transaction, asked: Producer) -> HeadraceError | None:
    """Of a producer that says it is ``asked``."""
    if asked == txn.producer and txn.is_held:
        return None
    if asked.producer_id == txn.producer.producer_id or _had_before(txn, asked):
        return fenced(txn, asked)
    return _other_producer(txn, asked)


def fenced(txn: Transaction, asked: Producer) -> HeadraceError:
    """A newer producer has the id, or the producer's epoch is long over."""
    return ProducerFenced(
        f"{txn.transactional_id!r} is at epoch {txn.producer.epoch}, this producer at {asked.epoch}: there is a newer "
        "one; close this"
    )


def prepared(txn: Transaction) -> HeadraceError:
    """Only its token decides it."""
    return InvalidTxnState(
        f"the transaction of {txn.transactional_id!r} is prepared; commit_prepared or abort_prepared decide it"
    )


def decided_otherwise(txn: Transaction, decided: Decided) -> HeadraceError:
    """Its producer asks for something else than was decided."""
    verdict = "committed" if decided.commit else "aborted"
    why = _WHY.get(decided.cause, "its producer did it")
    text = f"the transaction of epoch {decided.producer.epoch} of {txn.transactional_id!r} was {verdict}: {why}"
    if decided.cause in CAUSES_OF_SERVER:
        return TransactionAbortable(f"{text}; abort it, then begin the next")
    return InvalidTxnState(f"{text}; begin the next")


def _had_before(txn: Transaction, asked: Producer) -> bool:
    """The id had this producer id until its epochs ran out."""
    return txn.decided is not None and txn.decided.producer.producer_id == asked.producer_id


def _other_producer(txn: Transaction, asked: Producer) -> HeadraceError:
    return InvalidProducerIdMapping(
        f"{txn.transactional_id!r} has another producer id than {asked.producer_id}; initialize it again"
    )
