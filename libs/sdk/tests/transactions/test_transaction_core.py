"""Dialogues with the state machine of a transactional producer: what is possible when, and what errors mean there."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace._core.batch import Identity
from headrace._core.transaction import FENCES, Call, State, TransactionCore
from headrace.errors import (
    DeliveryTimedOut,
    ErrorCode,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidTxnState,
    ProducerFenced,
    Then,
    TransactionAbortable,
    WaitTimedOut,
    error_for,
)

FIRST, SECOND = Identity(7, 0), Identity(7, 1)
EPOCH_LAST = 32_766
"""What coordinators open transactions under at most."""


def ready() -> TransactionCore:
    core = TransactionCore("billing")
    core.initialized(FIRST)
    return core


def opened(*, wrote: bool = True) -> TransactionCore:
    core = ready()
    core.begins()
    core.wrote = wrote
    return core


def ending(call: Call = Call.COMMIT) -> TransactionCore:
    core = opened()
    core.ends(call)
    assert core.asks()
    return core


def test_a_transaction_from_its_beginning_to_its_end() -> None:
    core = TransactionCore("billing")
    with pytest.raises(InvalidTxnState, match=r"begin_transaction\(\) first"):
        core.ends(Call.COMMIT)
    core.initialized(FIRST)
    core.begins()
    assert core.gate() is None
    core.wrote = True
    assert core.ends(Call.COMMIT), "what was accepted is delivered first"
    gate = core.gate()
    assert gate is not None
    assert "commit_transaction" in str(gate)
    assert core.asks()
    core.ended(SECOND)
    assert (core.state, core.identity) == (State.READY, SECOND)
    core.begins()
    assert core.identity == SECOND


@pytest.mark.parametrize("call", [Call.COMMIT, Call.ABORT])
def test_epochs_that_run_out_bring_another_producer_id(call: Call) -> None:
    core = TransactionCore("billing")
    core.initialized(Identity(7, EPOCH_LAST))
    core.begins()
    core.sent()
    core.ends(call)
    assert core.asks()
    assert core.identity == Identity(7, EPOCH_LAST), "its end is asked for under its own id"
    core.ended(Identity(8, 0))
    core.begins()
    assert (core.identity, core.wrote) == (Identity(8, 0), False)
    core.sent()
    core.ends(call)
    assert core.asks(), "another id, and another transaction"
    assert core.identity == Identity(8, 0)


def test_epochs_that_run_out_with_a_prepared_transaction_bring_another_producer_id() -> None:
    core = TransactionCore("billing")
    core.initialized(Identity(7, EPOCH_LAST), "token")
    assert core.decides("token")
    core.was_decided(Identity(8, 0))
    core.begins()
    assert core.identity == Identity(8, 0)


@pytest.mark.parametrize("call", [Call.COMMIT, Call.ABORT])
def test_nobody_is_asked_where_nothing_was_written(call: Call) -> None:
    core = opened(wrote=False)
    core.ends(call)
    assert not core.asks()
    assert (core.state, core.identity) == (State.READY, FIRST)


def test_what_is_empty_can_be_prepared() -> None:
    core = opened(wrote=False)
    core.ends(Call.PREPARE)
    assert core.asks()


def test_sending_is_refused_outside_a_transaction() -> None:
    assert isinstance(ready().gate(), InvalidTxnState)
    assert isinstance(TransactionCore("billing").gate(), InvalidTxnState)


def test_one_transaction_at_a_time() -> None:
    with pytest.raises(InvalidTxnState):
        opened().begins()


def test_a_failed_delivery_leaves_only_the_abort() -> None:
    core = opened()
    told = core.delivery_failed(DeliveryTimedOut("lost"))
    assert isinstance(told, TransactionAbortable)
    assert "lost" in str(told)
    assert core.delivery_failed(DeliveryTimedOut("another")) is None, "it was told"
    for call in (Call.COMMIT, Call.PREPARE):
        with pytest.raises(TransactionAbortable, match="lost"):
            core.ends(call)
    gate = core.gate()
    assert isinstance(gate, TransactionAbortable)
    assert gate.then is Then.ABORT
    assert not core.ends(Call.ABORT), "nothing is delivered any more"
    assert core.asks()
    core.ended(SECOND)
    assert core.state is State.READY


def test_a_delivery_that_fails_during_the_commit_stops_it() -> None:
    core = opened()
    core.ends(Call.COMMIT)
    assert core.delivery_failed(DeliveryTimedOut("lost")) is not None
    with pytest.raises(TransactionAbortable, match="lost"):
        core.asks()
    core.ends(Call.ABORT)
    assert core.asks()


def test_what_an_abort_drops_breaks_nothing() -> None:
    core = opened()
    core.ends(Call.ABORT)
    assert core.delivery_failed(TransactionAbortable("dropped")) is None
    assert core.asks()


def test_late_failures_of_the_transaction_before_count_for_nothing() -> None:
    core = ready()
    assert core.delivery_failed(DeliveryTimedOut("old")) is None
    assert core.state is State.READY


def test_a_broker_that_says_old_epoch_asks_for_an_abort_and_the_coordinator_says_who_is_fenced() -> None:
    core = opened()
    assert core.delivery_failed(InvalidProducerEpoch("a marker came")) is not None
    assert core.state is State.BROKEN
    core.ends(Call.ABORT)
    core.asks()
    told = core.refused(Call.ABORT, ProducerFenced("another is there"))
    assert told.then is Then.FENCED
    assert core.state is State.OVER


@pytest.mark.parametrize("code", sorted(FENCES))
def test_a_fence_is_for_good(code: ErrorCode) -> None:
    core = opened()
    core.delivery_failed(error_for(code, "fenced"))
    assert core.state is State.OVER
    for attempt in (core.begins, lambda: core.ends(Call.COMMIT), lambda: core.ends(Call.ABORT), core.writes):
        with pytest.raises(HeadraceError, match="fenced") as raised:
            attempt()
        assert raised.value.then is Then.FENCED
    gate = core.gate()
    assert gate is not None
    assert gate.code is code


@pytest.mark.parametrize(
    ("call", "code", "state", "then"),
    [
        (Call.COMMIT, ErrorCode.TRANSACTION_ABORTABLE, State.BROKEN, Then.ABORT),
        (Call.COMMIT, ErrorCode.INVALID_TXN_STATE, State.BROKEN, Then.ABORT),
        (Call.COMMIT, ErrorCode.PRODUCER_FENCED, State.OVER, Then.FENCED),
        (Call.COMMIT, ErrorCode.INVALID_PRODUCER_EPOCH, State.OVER, Then.FENCED),
        (Call.COMMIT, ErrorCode.INVALID_PRODUCER_ID_MAPPING, State.OVER, Then.FENCED),
        (Call.ABORT, ErrorCode.INVALID_TXN_STATE, State.OVER, Then.FENCED),
        (Call.ABORT, ErrorCode.PRODUCER_FENCED, State.OVER, Then.FENCED),
        (Call.PREPARE, ErrorCode.TRANSACTION_ABORTABLE, State.BROKEN, Then.ABORT),
        (Call.PREPARE, ErrorCode.FENCED_OWNER, State.OVER, Then.FENCED),
    ],
)
def test_what_a_coordinator_says_at_the_end(call: Call, code: ErrorCode, state: State, then: Then) -> None:
    core = ending(call)
    told = core.refused(call, error_for(code, "no"))
    assert (core.state, told.then) == (state, then)


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (ErrorCode.ILLEGAL_GENERATION, State.BROKEN),
        (ErrorCode.INVALID_PRODUCER_EPOCH, State.BROKEN),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, State.BROKEN),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, State.OVER),
    ],
)
def test_what_a_groups_coordinator_says(code: ErrorCode, state: State) -> None:
    core = opened(wrote=False)
    core.writes()
    assert core.wrote, "the group's shard may be enrolled"
    core.refused(Call.OFFSETS, error_for(code, "no"))
    assert core.state is state


def test_a_refused_introduction_is_the_end_as_it_would_be_refused_again() -> None:
    core = TransactionCore("billing")
    told = core.refused(Call.INIT, error_for(ErrorCode.INVALID_TRANSACTION_TIMEOUT, "too long"))
    assert (core.state, told.then) == (State.OVER, Then.FENCED)
    with pytest.raises(HeadraceError, match="too long") as raised:
        core.begins()
    assert raised.value.then is Then.FENCED


@pytest.mark.parametrize("code", [ErrorCode.TXN_VERDICT_UNKNOWN, ErrorCode.INVALID_REQUEST])
def test_a_refused_verdict_is_for_people_to_see_and_the_producer_may_go_on(code: ErrorCode) -> None:
    core = ready()
    told = core.refused(Call.DECIDE, error_for(code, "no"))
    assert (core.state, told.then) == (State.READY, Then.FENCED)


def test_what_is_not_possible_now_stops_a_loop_unless_an_abort_or_its_repetition_helps() -> None:
    def then(core: TransactionCore) -> Then:
        gate = core._not_now("this")
        return gate.then

    prepared = TransactionCore("billing")
    prepared.initialized(FIRST, "token")
    unsure = ending()
    unsure.gave_up(Call.COMMIT, WaitTimedOut("silence"))
    stop = [TransactionCore("billing"), ready(), prepared]
    assert {then(core) for core in stop} == {Then.FENCED}
    assert [then(opened()), then(ending()), then(unsure)] == [Then.ABORT, Then.ABORT, Then.RETRY]


@pytest.mark.parametrize("call", [Call.COMMIT, Call.ABORT, Call.PREPARE])
def test_an_end_without_an_answer_may_only_be_repeated(call: Call) -> None:
    core = ending(call)
    told = core.gave_up(call, WaitTimedOut("silence"))
    assert (core.state, told.then) == (State.UNSURE, Then.RETRY)
    for other in {Call.COMMIT, Call.ABORT, Call.PREPARE} - {call}:
        with pytest.raises(InvalidTxnState, match=call.value):
            core.ends(other)
    with pytest.raises(InvalidTxnState):
        core.begins()
    gate = core.gate()
    assert gate is not None
    assert gate.then is Then.RETRY
    assert not core.ends(call), "nothing is left to deliver"
    assert core.asks()
    if call is Call.PREPARE:
        core.was_prepared("token")
    else:
        core.ended(SECOND)


def test_a_repeated_commit_that_was_aborted_meanwhile_goes_on_with_an_abort() -> None:
    core = ending()
    core.interrupted(Call.COMMIT)
    core.ends(Call.COMMIT)
    core.asks()
    core.refused(Call.COMMIT, TransactionAbortable("it took too long"))
    core.ends(Call.ABORT)
    core.asks()
    core.ended(SECOND)
    assert core.state is State.READY


def test_a_delivery_that_takes_too_long_decides_nothing() -> None:
    core = opened()
    core.ends(Call.COMMIT)
    core.interrupted(Call.COMMIT)
    assert core.state is State.OPEN
    assert core.gate() is None
    core.ends(Call.ABORT)
    assert core.asks()


def test_offsets_without_an_answer_ask_for_an_abort() -> None:
    core = opened()
    assert core.gave_up(Call.OFFSETS, WaitTimedOut("silence")).then is Then.ABORT
    assert core.state is State.BROKEN


def test_offsets_belong_to_an_open_transaction() -> None:
    with pytest.raises(InvalidTxnState):
        ready().writes()
    core = opened()
    core.ends(Call.ABORT)
    with pytest.raises(InvalidTxnState, match="abort_transaction"):
        core.writes()
    core = opened()
    core.ends(Call.COMMIT)
    core.writes()


def test_a_prepared_transaction_is_decided_before_the_next_begins() -> None:
    core = ending(Call.PREPARE)
    core.was_prepared("token")
    with pytest.raises(InvalidTxnState, match="commit_prepared"):
        core.begins()
    assert core.decides("token")
    assert not core.decides("an older one")
    core.was_decided(SECOND)
    core.begins()
    assert (core.identity, core.prepared) == (SECOND, None)


def test_prepared_and_decided_elsewhere_the_producer_introduces_itself_again() -> None:
    core = ending(Call.PREPARE)
    core.was_prepared("token")
    core.was_decided(None)
    assert core.state is State.NEW
    core.initialized(SECOND)
    core.begins()


def test_an_id_that_is_prepared_stays_so() -> None:
    core = TransactionCore("billing")
    core.initialized(FIRST, "token")
    assert core.state is State.PREPARED
    assert core.prepared == "token"


def test_decisions_wait_for_the_open_transaction() -> None:
    with pytest.raises(InvalidTxnState):
        opened().decides("token")
    assert not ready().decides("token"), "an older one of the same id"


ENDS = st.sampled_from([Call.COMMIT, Call.ABORT, Call.PREPARE])
LAST_WORDS = st.sampled_from([code for code in ErrorCode if code and not code.retriable])


class Anybody(RuleBasedStateMachine):
    """Calls and answers in any order: who is not over always has a way on, and epochs are used for one transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.core = TransactionCore("billing")
        self.epoch = 0
        self.call: Call | None = None
        self.written: set[Identity] = set()

    def next_identity(self) -> Identity:
        self.epoch += 1
        return Identity(7, self.epoch)

    @rule(prepared=st.booleans())
    @precondition(lambda self: self.core.state in (State.NEW, State.PREPARED))
    def init(self, prepared: bool) -> None:
        self.core.initialized(self.next_identity(), "token" if prepared else None)

    @rule()
    def begin(self) -> None:
        possible = self.core.state is State.READY
        try:
            self.core.begins()
        except HeadraceError:
            assert not possible
        else:
            assert possible
            assert self.core.identity not in self.written, "an epoch belongs to one transaction"

    @rule()
    @precondition(lambda self: self.core.state is State.OPEN)
    def write(self) -> None:
        self.core.writes()
        assert self.core.identity is not None
        self.written.add(self.core.identity)

    @rule(code=st.sampled_from(list(ErrorCode)))
    def fail(self, code: ErrorCode) -> None:
        self.core.delivery_failed(error_for(code or ErrorCode.INVALID_RECORD, "failed"))

    @rule(call=ENDS)
    @precondition(lambda self: self.call is None)
    def end(self, call: Call) -> None:
        try:
            self.core.ends(call)
            if self.core.asks():
                self.call = call
        except HeadraceError:
            assert self.core.state is not State.ENDING

    @rule()
    @precondition(lambda self: self.call is not None and self.core.state is State.ENDING)
    def answer(self) -> None:
        call, self.call = self.call, None
        if call is Call.PREPARE:
            self.core.was_prepared("token")
        else:
            self.core.ended(self.next_identity())

    @rule(code=LAST_WORDS)
    @precondition(lambda self: self.call is not None and self.core.state is State.ENDING)
    def refuse(self, code: ErrorCode) -> None:
        assert self.call is not None
        self.core.refused(self.call, error_for(code, "no"))
        self.call = None

    @rule()
    @precondition(lambda self: self.call is not None and self.core.state is State.ENDING)
    def silence(self) -> None:
        assert self.call is not None
        self.core.gave_up(self.call, WaitTimedOut("silence"))
        self.call = None

    @rule(elsewhere=st.booleans())
    @precondition(lambda self: self.core.state is State.PREPARED)
    def decide(self, elsewhere: bool) -> None:
        assert self.core.decides(self.core.prepared)
        self.core.was_decided(None if elsewhere else self.next_identity())

    @invariant()
    def somebody_can_go_on(self) -> None:
        core = self.core
        assert self.call is None or core.state is State.ENDING
        if core.state is State.UNSURE:
            assert core.unsure_of in (Call.COMMIT, Call.ABORT, Call.PREPARE)
        if core.state is State.BROKEN:
            assert core.failure is not None
        assert (core.gate() is None) == (core.state is State.OPEN)


TestAnybody = Anybody.TestCase
TestAnybody.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
