"""
Decides where a transactional producer is: what its application may ask now, and what an error means there.

Called by ``aio._transactions``, which asks coordinators, and by the producing engine, which tells of deliveries. The
rule behind it: a producer epoch belongs to one transaction. Its end raises the epoch, so whatever is late of it (a
batch, an answer) is told by its epoch, and nobody has to wait for it.

::

    NEW ── init ──> READY ── begin ──> OPEN ── commit, abort ──> ENDING ──> READY
     ^                                  │ a delivery failed        │ prepare ──> PREPARED ── decided ──> READY
     └── decided elsewhere              └──> BROKEN ── abort ──> …  │ no answer: UNSURE, until the same call is answered
    any ── fenced ──> OVER
"""

from __future__ import annotations

from copy import copy
from enum import Enum
from typing import Any, Final

from headrace._core.batch import Identity
from headrace.errors import ErrorCode, HeadraceError, InvalidTxnState, Then, TransactionAbortable


class State(Enum):
    """Where a transactional producer is."""

    NEW = "has to introduce itself to its coordinator"
    READY = "begin_transaction() is next"
    OPEN = "a transaction is open"
    BROKEN = "the transaction can only be aborted"
    ENDING = "the transaction is being ended"
    UNSURE = "the transaction's end was not answered; make the same call again"
    PREPARED = "the transaction is prepared; commit_prepared() or abort_prepared() is next"
    OVER = "the producer is over; close it"


class Call(Enum):
    """What coordinators are asked."""

    INIT = "init_transactions"
    OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    PREPARE = "prepare_transaction"
    DECIDE = "commit_prepared or abort_prepared"


FENCES: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.FENCED_OWNER})
"""Who is told one of these is over."""

_ENDS: Final = frozenset({Call.COMMIT, Call.ABORT, Call.PREPARE})
_MAY_END: Final = {
    Call.COMMIT: frozenset({State.OPEN}),
    Call.PREPARE: frozenset({State.OPEN}),
    Call.ABORT: frozenset({State.OPEN, State.BROKEN}),
}

_NOT_NOW: Final = {
    State.NEW: Then.FENCED,
    State.READY: Then.FENCED,
    State.PREPARED: Then.FENCED,
    State.UNSURE: Then.RETRY,
}
"""What a call that is not possible in a state says: nothing is there to be aborted, and asking again does not help."""


class TransactionCore:
    """See the module's text. Methods that begin something raise where it is not possible, and change nothing then."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.NEW
        self.identity: Identity | None = None
        """What the present or next transaction is written under."""
        self.prepared: Any = None
        """The token of the prepared transaction."""
        self.wrote = False
        """Something of this transaction may have reached a log, so its end has to be told."""
        self.failure: HeadraceError | None = None
        """BROKEN: what failed first. OVER: why."""
        self._call: Call | None = None
        """ENDING, UNSURE: which end."""
        self._asked = False
        """ENDING: the coordinator may know of it."""

    # --- what the application asks ----------------------------------------------------------------------------------

    def begins(self) -> None:
        """A transaction begins; nobody has to be told. Raises: ``InvalidTxnState``, or why the producer is over."""
        if self.state is not State.READY:
            raise self._not_now("begin_transaction")
        self.state = State.OPEN
        self.wrote = False
        self.failure = None

    def ends(self, call: Call) -> bool:
        """
        Whether what was accepted is to be delivered first; false for aborts, and where the same call is made again.

        Raises:
            InvalidTxnState, TransactionAbortable: not now.
            HeadraceError: why the producer is over.
        """
        if self.state is State.UNSURE and self._call is call:
            self.state = State.ENDING
            return False
        if self.state not in _MAY_END[call]:
            raise self._not_now(call.value)
        self.state = State.ENDING
        self._call, self._asked = call, False
        return call is not Call.ABORT

    def asks(self) -> bool:
        """
        All is delivered, or dropped: whether the coordinator has to be asked. Where not, that was the end.

        Raises:
            TransactionAbortable: a delivery failed meanwhile.
        """
        if self.state is not State.ENDING:
            raise self._not_now(self._call.value if self._call is not None else "this")
        if not self.wrote and self._call is not Call.PREPARE:
            self.state = State.READY
            return False
        self._asked = True
        return True

    def decides(self, token: Any) -> bool:
        """
        Whether ``token`` is of this producer's own prepared transaction; false: it is an older one of its id.

        Raises:
            InvalidTxnState: not now.
            HeadraceError: why the producer is over.
        """
        if self.state is State.PREPARED:
            return bool(token == self.prepared)
        if self.state not in (State.NEW, State.READY):
            raise self._not_now(Call.DECIDE.value)
        return False

    def writes(self) -> None:
        """Offsets are about to be added. Raises: as ``ends``."""
        if self.state is not State.OPEN and not (self.state is State.ENDING and self._call is not Call.ABORT):
            raise self._not_now(Call.OFFSETS.value)
        self.wrote = True

    @property
    def unsure_of(self) -> Call:
        """The end that was not answered."""
        assert self.state is State.UNSURE, "asked before"
        assert self._call is not None, "it was made"
        return self._call

    # --- what was answered --------------------------------------------------------------------------------------------

    def initialized(self, identity: Identity, prepared: Any = None) -> None:
        """The coordinator knows this producer as the only one; ``prepared``: a token that has to be decided first."""
        self.identity, self.prepared = identity, prepared
        self.state = State.READY if prepared is None else State.PREPARED

    def ended(self, identity: Identity) -> None:
        """Committed or aborted; the next transaction is written under ``identity``."""
        assert self.state is State.ENDING, "only what is under way is answered"
        self.identity = identity
        self.state = State.READY

    def was_prepared(self, token: Any) -> None:
        """It is durable, and not decided."""
        assert self.state is State.ENDING, "only what is under way is answered"
        self.prepared = token
        self.state = State.PREPARED

    def was_decided(self, identity: Identity | None) -> None:
        """A prepared one is decided; None: somebody else has used the id since, so this producer begins anew."""
        self.identity, self.prepared = identity, None
        self.state = State.READY if identity is not None else State.NEW

    def refused(self, call: Call, error: HeadraceError) -> HeadraceError:
        """The coordinator's last word on ``call``; returns what the application is told."""
        fenced = error.code in FENCES or (error.code is ErrorCode.INVALID_PRODUCER_EPOCH and call is not Call.OFFSETS)
        if fenced or call in (
            Call.ABORT,
            Call.INIT,
        ):  # what cannot be aborted ends by its timeout; the rest is settings
            return self._over(error)
        if call is Call.DECIDE:
            error.then = Then.FENCED
            return error
        self._break(error)
        error.then = Then.ABORT
        return error

    def gave_up(self, call: Call, error: HeadraceError) -> HeadraceError:
        """Nobody answered ``call`` in time, or its caller waits no more; returns what the application is told."""
        if call is Call.OFFSETS:
            self._break(error)
            error.then = Then.ABORT
            return error
        self.interrupted(call)
        error.then = Then.RETRY
        return error

    def interrupted(self, call: Call) -> None:
        """Whoever made ``call`` waits no more for its answer."""
        if call is Call.OFFSETS:
            return
        if call in _ENDS and self.state is State.ENDING:
            if self._asked:
                self.state = State.UNSURE
            else:
                self.state = State.OPEN if self.failure is None else State.BROKEN

    # --- what happens to its records ----------------------------------------------------------------------------------

    def sent(self) -> None:
        """A batch has left."""
        self.wrote = True

    def delivery_failed(self, error: HeadraceError) -> HeadraceError | None:
        """
        A batch of the open transaction was given up, so it cannot be committed.

        Returns:
            What the rest of the transaction fails with; None: nothing new.
        """
        delivering = self.state is State.ENDING and not self._asked and self._call is not Call.ABORT
        if not delivering and self.state not in (State.OPEN, State.BROKEN):
            return None
        if error.code in FENCES:
            return self._over(error)
        if self.state is State.BROKEN:
            return None
        self._break(error)
        return self._abortable()

    # --- what it says -------------------------------------------------------------------------------------------------

    def gate(self) -> HeadraceError | None:
        """Why no record is taken now; None: it is."""
        return None if self.state is State.OPEN else self._not_now("send")

    def _not_now(self, call: str) -> HeadraceError:
        if self.state is State.OVER:
            assert self.failure is not None, "it has a reason"
            return copy(self.failure)
        if self.state is State.BROKEN:
            return self._abortable()
        if self.state in (State.NEW, State.READY):
            error = InvalidTxnState(f"{call}: no transaction is open; call begin_transaction() first")
        else:
            under_way = f" ({self._call.value})" if self.state in (State.ENDING, State.UNSURE) and self._call else ""
            error = InvalidTxnState(f"{call} is not possible now: {self.state.value}{under_way}")
        error.then = _NOT_NOW.get(self.state, Then.ABORT)
        return error

    def _abortable(self) -> HeadraceError:
        cause = self.failure
        error = TransactionAbortable(f"call abort_transaction() and do its work again: {cause}")
        error.__cause__ = cause
        if cause is not None and cause.code is ErrorCode.FENCED_WRITER:
            error.then = Then.FENCED  # its work is another's now: after the abort, too
        return error

    def _break(self, error: HeadraceError) -> None:
        if self.state in (State.OPEN, State.ENDING, State.UNSURE):
            self.state = State.BROKEN
            self.failure = error

    def _over(self, error: HeadraceError) -> HeadraceError:
        if self.state is not State.OVER:
            self.state = State.OVER
            self.failure = error
            error.then = Then.FENCED
        assert self.failure is not None, "it has a reason"
        return self.failure
