"""
What producers of transactional ids ask, partition leaders ask for them, and holders of tokens decide. The shard calls.

A request that comes while markers are being written waits for the last of them, behind those that came before it, and
is then taken as if it came new. All other requests are answered at once.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from headrace_common.core.errors import (
    ConcurrentTransactions,
    HeadraceError,
    TransactionAbortable,
    TxnVerdictUnknown,
)
from headrace_coordinator.core.transactions import refusals
from headrace_coordinator.core.transactions.effects import (
    Answer,
    DecideResult,
    Effect,
    InitResult,
    Persist,
    Result,
    TookProducerId,
)
from headrace_coordinator.core.transactions.ending import Ending
from headrace_coordinator.core.transactions.events import (
    DecideAsked,
    EndAsked,
    EnrolAsked,
    GaveUp,
    InitAsked,
    PrepareAsked,
    Request,
)
from headrace_coordinator.core.transactions.register import Register
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import (
    EPOCH_LAST,
    NO_NONCE,
    EndCause,
    Producer,
    Token,
    TxnState,
    key_of,
    owner_of,
)
from headrace_coordinator.core.values import Moment


class Producers:
    """Of the ids of one shard."""

    def __init__(self, settings: TransactionSettings, register: Register, ending: Ending) -> None:
        self._settings = settings
        self._register = register
        self._ending = ending

    def handle(self, request: Request) -> list[Effect]:
        """Answer the request, or let it wait."""
        match request:
            case EnrolAsked():
                return self._enrol(request)
            case EndAsked():
                return self._end(request)
            case InitAsked():
                return self._init(request)
            case PrepareAsked():
                return self._prepare(request)

    # --- waiting ----------------------------------------------------------------------------------------------

    def redo(self, txn: Transaction, at: Moment) -> list[Effect]:
        """
        Take up what waited for the end of ``txn``, in order; the first may begin what the next ones wait for.

        Their spare producer ids were taken when they began to wait.
        """
        waiting = list(txn.waiting)
        txn.waiting.clear()
        effects: list[Effect] = []
        for request in waiting:
            again = self.handle(replace(request, at=at))
            effects += [effect for effect in again if not isinstance(effect, TookProducerId)]
        return effects

    def gave_up(self, event: GaveUp) -> None:
        """Forget the request, if it waits."""
        txn = self._register.ids.get(event.transactional_id)
        if txn is not None:
            for request in [r for r in txn.waiting if r.ref == event.ref]:
                txn.waiting.remove(request)

    def _wait(self, txn: Transaction, request: Request) -> list[Effect]:
        assert txn.ending, "what is waited for comes to an end"
        if len(txn.waiting) < self._settings.transaction_waiting_max:
            txn.waiting.append(request)
            spare = request.spare_producer_id if isinstance(request, InitAsked | EndAsked) else None
            return [] if spare is None else [TookProducerId(spare)]
        return _answer(
            request,
            ConcurrentTransactions(
                f"{len(txn.waiting)} requests wait for the end of the transaction of {txn.transactional_id!r}; try "
                "again in a moment"
            ),
        )

    # --- becoming the producer --------------------------------------------------------------------------------

    def _init(self, event: InitAsked) -> list[Effect]:
        fault = self._owner_fault(event) or refusals.timeout_fault(
            event.timeout_ms, self._settings.transaction_max_timeout_ms
        )
        if fault is not None:
            return _answer(event, fault)
        txn = self._register.ids.get(event.transactional_id)
        if txn is None:
            fault = self._register.room.fault(event.transactional_id)
            return self._create(event) if fault is None else _answer(event, fault)
        if txn.ending:
            return self._wait(txn, event)
        if txn.state is TxnState.ONGOING:
            effects = self._ending.abort(txn, EndCause.FENCED, event.at, continues=False)
            return [*effects, *self._wait(txn, event)]
        if txn.state is TxnState.PREPARED:
            return self._show_token(txn, event)
        effects = []
        producer = Producer(txn.producer.producer_id, txn.producer.epoch + 1)
        if producer.epoch > EPOCH_LAST:
            producer = Producer(event.spare_producer_id, 0)
            effects.append(TookProducerId(event.spare_producer_id))
        txn.take_over(producer, event.timeout_ms, self._register.owner_epoch(event.transactional_id))
        effects.append(Persist(txn.group_id, (self._register.save(txn, event.at),)))
        return effects + _answer(event, InitResult(producer))

    def _create(self, event: InitAsked) -> list[Effect]:
        free = self._register.free_identity(event.transactional_id, event.at)
        producer = Producer(event.spare_producer_id, 0) if free is None else free[0]
        owner_epoch = self._register.owner_epoch(event.transactional_id)
        txn = Transaction(event.transactional_id, producer, event.timeout_ms, owner_epoch=owner_epoch)
        self._register.add(txn)
        row = self._register.save(txn, event.at)
        if free is None:
            return [
                TookProducerId(event.spare_producer_id),
                Persist(txn.group_id, (row,)),
                *_answer(event, InitResult(producer)),
            ]
        return [Persist(txn.group_id, (free[1], row)), *_answer(event, InitResult(producer))]

    def _show_token(self, txn: Transaction, event: InitAsked) -> list[Effect]:
        effects: list[Effect] = []
        if not txn.contested:
            txn.contest()
            effects.append(Persist(txn.group_id, (self._register.save(txn, event.at),)))
        return effects + _answer(event, InitResult(txn.producer, txn.token))

    def _owner_fault(self, event: InitAsked | PrepareAsked) -> HeadraceError | None:
        owner = self._register.owners.get(owner_of(event.transactional_id) or "")
        return refusals.unit_id_fault(event.transactional_id, owner, event.owner_epoch)

    # --- writing ----------------------------------------------------------------------------------------------

    def _enrol(self, event: EnrolAsked) -> list[Effect]:
        txn = self._register.ids.get(event.transactional_id)
        if txn is None:
            return _answer(event, refusals.unknown_id(event.transactional_id))
        fault = refusals.enrolment_fault(txn, Producer(event.producer_id, event.epoch))
        if fault is not None:
            return _answer(event, fault)
        if txn.ending:
            return self._wait(txn, event)
        if txn.state is TxnState.PREPARED:
            return _answer(event, refusals.prepared(txn))
        known = txn.partitions
        added = [partition for partition in dict.fromkeys(event.partitions) if partition not in known]
        most = self._settings.transaction_partitions_max
        if len(known) + len(added) > most:
            text = f"a transaction of {txn.transactional_id!r} would have more than {most} partitions; make it smaller"
            return _answer(event, TransactionAbortable(text))
        if not added:
            return _answer(event, None)
        if txn.at_rest:
            txn.begin(event.at)
        txn.add(added)
        return [Persist(txn.group_id, (self._register.save(txn, event.at),)), *_answer(event, None)]

    # --- ending -----------------------------------------------------------------------------------------------

    def _end(self, event: EndAsked) -> list[Effect]:
        txn = self._register.ids.get(event.transactional_id)
        if txn is None:
            return _answer(event, refusals.unknown_id(event.transactional_id))
        asked = Producer(event.producer_id, event.epoch)
        if txn.find_verdict(asked) is not None:
            return self._end_again(txn, event)
        fault = refusals.producer_fault(txn, asked)
        if fault is not None:
            return _answer(event, fault)
        if txn.ending:
            return self._wait(txn, event)
        if txn.state is TxnState.PREPARED:
            return _answer(event, refusals.prepared(txn))
        return self._decide(txn, event, EndCause.CLIENT)

    def _end_again(self, txn: Transaction, event: EndAsked) -> list[Effect]:
        """The request is repeated, or comes after somebody else ended the transaction."""
        decided = txn.decided
        assert decided is not None, "it has ended"
        if not txn.continues:
            return _answer(event, refusals.fenced(txn, decided.producer))
        if event.commit is not decided.commit:
            return _answer(event, refusals.decided_otherwise(txn, decided))
        return [*self._replace_last(txn, event), *_answer(event, txn.producer)]

    def _decide(self, txn: Transaction, event: EndAsked | DecideAsked, cause: EndCause) -> list[Effect]:
        """The verdict, durable, then the answer, then the partitions."""
        txn.decide(commit=event.commit, cause=cause, at=event.at, continues=True)
        took = self._replace_exhausted(txn, event.spare_producer_id)
        row, after = self._ending.carry_out(txn, event.at)
        result = txn.producer if isinstance(event, EndAsked) else _decide_result(txn)
        return [*took, Persist(txn.group_id, (row,)), *_answer(event, result), *after]

    def _replace_exhausted(self, txn: Transaction, spare_producer_id: int) -> list[Effect]:
        """Where the epochs have run out whoever goes on does so under the spare id."""
        if not txn.continues or txn.producer.epoch <= EPOCH_LAST:
            return []
        txn.producer = Producer(spare_producer_id, 0)
        return [TookProducerId(spare_producer_id)]

    def _replace_last(self, txn: Transaction, event: EndAsked | DecideAsked) -> list[Effect]:
        took = self._replace_exhausted(txn, event.spare_producer_id)
        return [*took, Persist(txn.group_id, (self._register.save(txn, event.at),))] if took else []

    # --- preparing --------------------------------------------------------------------------------------------

    def _prepare(self, event: PrepareAsked) -> list[Effect]:
        fault = self._owner_fault(event)
        if fault is not None:
            return _answer(event, fault)
        txn = self._register.ids.get(event.transactional_id)
        if txn is None:
            return _answer(event, refusals.unknown_id(event.transactional_id))
        asked = Producer(event.producer_id, event.epoch)
        if txn.find_verdict(asked) is not None:
            return self._prepare_ended(txn, event)
        fault = refusals.producer_fault(txn, asked)
        if fault is not None:
            return _answer(event, fault)
        if txn.ending:
            return self._wait(txn, event)
        effects: list[Effect] = []
        if txn.state is not TxnState.PREPARED:
            if txn.at_rest:
                txn.begin(event.at)
            txn.prepare(event.nonce, event.at)
            unit_id = owner_of(event.transactional_id) is not None
            txn.due_ms = event.at.mono_ms + self._settings.unit_prepared_timeout_ms if unit_id else inf
            effects.append(Persist(txn.group_id, (self._register.save(txn, event.at),)))
        return effects + _answer(event, txn.token)

    @staticmethod
    def _prepare_ended(txn: Transaction, event: PrepareAsked) -> list[Effect]:
        """The request is late. The token of what was aborted would promise what is not there."""
        decided = txn.decided
        assert decided is not None, "it has ended"
        if not txn.continues:
            return _answer(event, refusals.fenced(txn, decided.producer))
        if decided.commit and decided.nonce != NO_NONCE:
            return _answer(event, Token(txn.transactional_id, *decided.producer, decided.nonce))
        return _answer(event, refusals.decided_otherwise(txn, decided))

    def decide(self, event: DecideAsked) -> list[Effect]:
        """Commit or abort what the token names, or say what became of it."""
        token = event.token
        txn = self._register.ids.get(token.transactional_id)
        if txn is not None and txn.token == token:
            return self._decide(txn, event, EndCause.TOKEN)
        if txn is None or txn.verdict_on(token) is None:
            text = f"nothing is known of this prepared transaction of {token.transactional_id!r}"
            return _answer(event, TxnVerdictUnknown(f"{text}; it was decided long ago, or is no transaction of ours"))
        effects = self._replace_last(txn, event)
        return effects + _answer(event, _decide_result(txn))


def _decide_result(txn: Transaction) -> DecideResult:
    assert txn.decided is not None, "it was decided"
    return DecideResult(txn.decided.commit, txn.producer if txn.continues else None)


def _answer(event: Request | DecideAsked, result: Result | HeadraceError) -> list[Effect]:
    return [Answer(key_of(event.transactional_id), event.ref, result)]
