"""What producers, partition leaders and holders of tokens are answered, state by state."""

from __future__ import annotations

import pytest

from headrace_coordinator.core.transactions.effects import InitResult
from headrace_coordinator.core.transactions.values import Producer, Token

from .world import MINUTE, World


@pytest.fixture
def world() -> World:
    return World()


# --- becoming the producer ------------------------------------------------------------------------------------


def test_a_new_id_gets_the_spare_producer_id(world: World) -> None:
    assert world.init() == ["took 100", "write t EMPTY 100@0", "init: 100@0"]
    assert world.init("u") == ["took 101", "write u EMPTY 101@0", "init: 101@0"]


def test_the_next_producer_gets_the_next_epoch_and_fences_the_one_before(world: World) -> None:
    world.init()
    assert world.init() == ["write t EMPTY 100@1", "init: 100@1"]
    assert world.enrol((100, 0), 0) == ["enrol: INVALID_PRODUCER_EPOCH"]
    assert world.commit((100, 0)) == ["commit: PRODUCER_FENCED"]
    assert world.prepare((100, 0)) == ["prepare: PRODUCER_FENCED"]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(world: World, timeout_ms: int) -> None:
    assert world.init(timeout_ms=timeout_ms) == ["init: INVALID_TRANSACTION_TIMEOUT"]
    assert world.init(timeout_ms=900_000)[-1] == "init: 100@0"


def test_an_open_transaction_is_aborted_before_the_next_producer_gets_an_epoch_above_the_fence(world: World) -> None:
    world.open(0, 1)
    assert world.init() == ["write t PREPARE_ABORT 100@1", "tell t abort 100@1: 0 1", "took 101"]
    assert world.abort((100, 0)) == ["abort: PRODUCER_FENCED"], "nobody is ever told the fence's epoch"
    assert world.enrol((100, 1), 0) == ["enrol: INVALID_PRODUCER_EPOCH"]
    assert world.marked((100, 1), 0) == []
    assert world.marked((100, 1), 1) == [
        "write t COMPLETE_ABORT 100@1",
        "over t abort by FENCED",
        "write t EMPTY 100@2",
        "init: 100@2",
    ]
    assert world.commit((100, 0)) == ["commit: PRODUCER_FENCED"]


def test_init_waits_for_the_end_that_is_under_way(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    assert world.init(ref="one") == ["took 101"], "its spare id is kept for it, whether it will need it or not"
    assert world.init(ref="two") == ["took 102"]
    assert world.commit((100, 0)) == ["commit: 100@1"], "until a newer producer is told its epoch this one goes on"
    assert world.marked((100, 1), 0) == [
        "write t COMPLETE_COMMIT 100@1",
        "over t commit by CLIENT",
        "write t EMPTY 100@2",
        "one: 100@2",
        "write t EMPTY 100@3",
        "two: 100@3",
    ]
    assert world.commit((100, 0)) == ["commit: PRODUCER_FENCED"]


def test_waiting_is_bounded_and_who_gives_up_makes_room() -> None:
    world = World(transaction_waiting_max=2)
    world.open(0)
    assert world.init(ref="one")[0] == "write t PREPARE_ABORT 100@1"
    assert world.init(ref="two") == ["took 102"]
    assert world.init(ref="three") == ["three: CONCURRENT_TRANSACTIONS"]
    assert world.gave_up("one") == []
    assert world.gave_up("one") == []
    assert world.gave_up("one", name="u") == []
    assert world.init(ref="four") == ["took 103"]
    assert [line for line in world.marked((100, 1), 0) if ":" in line] == ["two: 100@2", "four: 100@3"]


def test_ids_with_a_slash_need_an_owner_and_its_epoch(world: World) -> None:
    assert world.init("o/a") == ["init: INVALID_REQUEST"]
    assert world.init("o/a", owner=0) == ["init: INVALID_REQUEST"], "InitOwner comes first"
    assert world.init("o/a", owner=None) == ["init: INVALID_REQUEST"]
    assert world.init("/a", owner=0) == ["init: INVALID_REQUEST"]
    assert world.init("o/", owner=0) == ["init: INVALID_REQUEST"]
    assert world.init("t", owner=0) == ["init: INVALID_REQUEST"]
    world.init_owner("o")
    assert world.init("o/a", owner=1) == ["init: INVALID_REQUEST"]
    assert world.init("o/a", owner=0) == ["took 100", "write o/a EMPTY 100@0", "init: 100@0"]
    world.init_owner("o")
    assert world.init("o/a", owner=0) == ["init: FENCED_OWNER"]


# --- writing --------------------------------------------------------------------------------------------------


def test_the_first_enrolment_opens_the_transaction_and_later_ones_add_to_it(world: World) -> None:
    world.init()
    assert world.enrol((100, 0), 4, 2, 4) == ["write t ONGOING 100@0", "enrol: ok"]
    assert world.enrol((100, 0), 2, 4) == ["enrol: ok"], "nothing new, nothing to write"
    assert world.enrol((100, 0), 2, 3) == ["write t ONGOING 100@0", "enrol: ok"]
    assert world.commit((100, 0))[-1] == "tell t commit 100@1: 4 2 3"


def test_an_enrolment_of_somebody_else_is_refused(world: World) -> None:
    assert world.enrol((100, 0), 0) == ["enrol: INVALID_PRODUCER_ID_MAPPING"], "the id is not known"
    world.init()
    assert world.enrol((99, 0), 0) == ["enrol: INVALID_PRODUCER_ID_MAPPING"]
    assert world.enrol((100, 1), 0) == ["enrol: INVALID_PRODUCER_EPOCH"]


def test_an_enrolment_after_the_end_is_refused_whether_or_not_the_next_one_is_open(world: World) -> None:
    producer = world.open(0)
    world.commit(producer)
    assert world.enrol(producer, 1) == ["enrol: INVALID_PRODUCER_EPOCH"]
    world.marked((100, 1), 0)
    assert world.enrol(producer, 1) == ["enrol: INVALID_PRODUCER_EPOCH"]
    world.enrol((100, 1), 2)
    assert world.enrol(producer, 1) == ["enrol: INVALID_PRODUCER_EPOCH"]
    assert world.commit((100, 1))[-1] == "tell t commit 100@2: 2"


def test_the_next_transaction_waits_for_the_end_of_the_one_before(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    assert world.enrol((100, 1), 1, ref="one") == []
    assert world.enrol((100, 1), 2, ref="two") == []
    assert world.marked((100, 1), 0) == [
        "write t COMPLETE_COMMIT 100@1",
        "over t commit by CLIENT",
        "write t ONGOING 100@1",
        "one: ok",
        "write t ONGOING 100@1",
        "two: ok",
    ]


def test_an_enrolment_that_waited_longer_than_its_producer_lasted_is_refused(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    world.init(ref="newer")
    assert world.enrol((100, 1), 1) == []
    assert world.marked((100, 1), 0)[-2:] == ["newer: 100@2", "enrol: INVALID_PRODUCER_EPOCH"]


def test_a_waiting_request_may_begin_what_the_next_one_waits_for(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    world.enrol((100, 1), 1)
    world.init(ref="newer")
    world.commit((100, 1), ref="late")
    assert world.marked((100, 1), 0) == [
        "write t COMPLETE_COMMIT 100@1",
        "over t commit by CLIENT",
        "write t ONGOING 100@1",
        "enrol: ok",
        "write t PREPARE_ABORT 100@2",
        "tell t abort 100@2: 1",
        "late: PRODUCER_FENCED",
    ]
    assert world.marked((100, 2), 1)[-1] == "newer: 100@3"


def test_a_transaction_has_a_bounded_number_of_partitions() -> None:
    world = World(transaction_partitions_max=3)
    world.init()
    assert world.enrol((100, 0), 1, 2, 3, 4) == ["enrol: TRANSACTION_ABORTABLE"]
    world.enrol((100, 0), 1, 2)
    assert world.enrol((100, 0), 2, 3, 4) == ["enrol: TRANSACTION_ABORTABLE"]
    assert world.enrol((100, 0), 2, 3) == ["write t ONGOING 100@0", "enrol: ok"]


# --- ending ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "verdict"), [(True, "commit"), (False, "abort")])
def test_the_end_is_written_then_answered_then_told_then_complete(world: World, commit: bool, verdict: str) -> None:
    producer = world.open(0, 1)
    state = verdict.upper()
    assert world.end(producer, commit) == [
        f"write t PREPARE_{state} 100@1",
        "end: 100@1",
        f"tell t {verdict} 100@1: 0 1",
    ]
    assert world.marked((100, 1), 1) == []
    assert world.marked((100, 1), 1) == []
    assert world.marked((100, 1), 0) == [f"write t COMPLETE_{state} 100@1", f"over t {verdict} by CLIENT"]
    assert world.marked((100, 1), 0) == []
    assert world.enrol((100, 1), 3) == ["write t ONGOING 100@1", "enrol: ok"]


def test_markers_of_another_transaction_complete_nothing(world: World) -> None:
    world.open(0)
    assert world.marked((100, 0), 0) == []
    world.commit((100, 0))
    assert world.marked((100, 0), 0) == []
    assert world.marked((99, 1), 0) == []
    assert world.marked((100, 1), 7) == []
    assert world.marked((100, 1), 0, name="u") == []
    assert world.describe().state.name == "PREPARE_COMMIT"


def test_the_same_end_again_gets_the_same_answer_until_the_next_one_has_ended(world: World) -> None:
    world.open(0)
    first = world.commit((100, 0))
    assert "commit: 100@1" in first
    assert world.commit((100, 0)) == ["commit: 100@1"], "while markers are written"
    world.marked((100, 1), 0)
    assert world.commit((100, 0)) == ["commit: 100@1"], "when it is complete"
    world.enrol((100, 1), 1)
    assert world.commit((100, 0)) == ["commit: 100@1"], "when the next one is open"
    world.commit((100, 1))
    assert world.commit((100, 0)) == ["commit: PRODUCER_FENCED"]


def test_a_verdict_never_changes(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    assert world.abort((100, 0)) == ["abort: INVALID_TXN_STATE"]
    world.marked((100, 1), 0)
    assert world.abort((100, 0)) == ["abort: INVALID_TXN_STATE"]
    world.enrol((100, 1), 0)
    world.abort((100, 1))
    assert world.commit((100, 1)) == ["commit: INVALID_TXN_STATE"]


def test_a_late_end_does_not_end_the_next_transaction(world: World) -> None:
    """KAFKA-17754."""
    world.open(0)
    world.commit((100, 0))
    world.marked((100, 1), 0)
    world.enrol((100, 1), 5)
    assert world.commit((100, 0)) == ["commit: 100@1"]
    assert world.describe().state.name == "ONGOING"


def test_an_end_without_a_write_raises_the_epoch_too(world: World) -> None:
    world.init()
    assert world.commit((100, 0)) == ["write t COMPLETE_COMMIT 100@1", "commit: 100@1", "over t commit by CLIENT"]
    assert world.abort((100, 1)) == ["write t COMPLETE_ABORT 100@2", "abort: 100@2", "over t abort by CLIENT"]
    assert world.abort((100, 1)) == ["abort: 100@2"]


def test_an_end_of_the_next_transaction_waits_for_the_end_of_the_one_before(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    assert world.abort((100, 1)) == ["took 101"]
    assert world.marked((100, 1), 0)[-3:] == ["write t COMPLETE_ABORT 100@2", "abort: 100@2", "over t abort by CLIENT"]


def test_ends_of_strangers_are_refused(world: World) -> None:
    assert world.commit((100, 0)) == ["commit: INVALID_PRODUCER_ID_MAPPING"]
    world.init()
    assert world.commit((99, 0)) == ["commit: INVALID_PRODUCER_ID_MAPPING"]
    assert world.commit((100, 1)) == ["commit: PRODUCER_FENCED"]


def test_after_an_abort_by_the_server_the_producer_goes_on_once_it_has_asked_for_the_abort(world: World) -> None:
    world.open(0)
    assert world.pass_ms(MINUTE) == ["write t PREPARE_ABORT 100@1", "tell t abort 100@1: 0"]
    assert world.commit((100, 0)) == ["commit: TRANSACTION_ABORTABLE"]
    assert world.abort((100, 0)) == ["abort: 100@1"]
    assert world.enrol((100, 1), 0) == []
    assert world.marked((100, 1), 0)[-1] == "enrol: ok"


# --- the end of the epochs ------------------------------------------------------------------------------------


def last_epoch(world: World, epoch: int = 32_766) -> Producer:
    """A producer at a high epoch that has not written yet."""
    world.init()
    for number in range(epoch):
        world.abort((100, number))
    return Producer(100, epoch)


def test_when_the_epochs_run_out_the_answer_has_a_new_producer_id(world: World) -> None:
    last = last_epoch(world)
    assert world.enrol(last, 0)[-1] == "enrol: ok"
    assert world.commit(last) == [
        "took 101",
        "write t PREPARE_COMMIT 101@0",
        "commit: 101@0",
        "tell t commit 100@32767: 0",
    ]
    assert world.commit(last) == ["commit: 101@0"], "the same answer, and no other id is taken"
    assert world.enrol(last, 1) == ["enrol: INVALID_PRODUCER_EPOCH"]
    assert world.enrol((101, 0), 1) == []
    assert world.marked((101, 0), 0) == []
    assert world.marked((100, 32_767), 0) == [
        "write t COMPLETE_COMMIT 101@0",
        "over t commit by CLIENT",
        "write t ONGOING 101@0",
        "enrol: ok",
    ]
    assert world.commit(last) == ["commit: 101@0"]
    assert world.restarted().commit(last) == ["commit: 101@0"]


def test_an_older_producer_of_the_id_that_ran_out_is_fenced(world: World) -> None:
    last = last_epoch(world)
    world.commit(last)
    assert world.commit((100, 5)) == ["commit: PRODUCER_FENCED"]
    assert world.enrol((100, 5), 0) == ["enrol: INVALID_PRODUCER_EPOCH"]


def test_when_the_server_uses_the_last_epoch_the_new_id_comes_with_the_producers_abort(world: World) -> None:
    last = last_epoch(world)
    world.enrol(last, 0)
    assert world.pass_ms(MINUTE)[0] == "write t PREPARE_ABORT 100@32767"
    assert world.enrol((100, 32_767), 1) == ["enrol: INVALID_PRODUCER_EPOCH"], "nobody has that epoch"
    assert world.commit((100, 32_767)) == ["commit: PRODUCER_FENCED"]
    assert world.abort(last) == ["took 101", "write t PREPARE_ABORT 101@0", "abort: 101@0"]
    assert world.abort(last) == ["abort: 101@0"]
    assert world.marked((100, 32_767), 0) == ["write t COMPLETE_ABORT 101@0", "over t abort by TIMEOUT"]


@pytest.mark.parametrize("epoch", [32_765, 32_766])
def test_init_after_a_fence_at_the_end_of_the_epochs_gets_a_new_producer_id(world: World, epoch: int) -> None:
    last = last_epoch(world, epoch)
    world.enrol(last, 0)
    assert world.init() == [f"write t PREPARE_ABORT 100@{epoch + 1}", f"tell t abort 100@{epoch + 1}: 0", "took 101"]
    assert world.marked((100, epoch + 1), 0)[2:] == ["write t EMPTY 101@0", "init: 101@0"]


def test_requests_that_wait_together_get_producer_ids_of_their_own(world: World) -> None:
    last = last_epoch(world)
    world.enrol(last, 0)
    world.init(ref="one")
    world.init("u", ref="other")
    world.init(ref="two")
    assert world.marked((100, 32_767), 0)[2:] == [
        "write t EMPTY 101@0",
        "one: 101@0",
        "write t EMPTY 101@1",
        "two: 101@1",
    ]


def test_init_at_the_last_epoch_gets_a_new_producer_id(world: World) -> None:
    last_epoch(world)
    assert world.init() == ["took 101", "write t EMPTY 101@0", "init: 101@0"]
    assert world.enrol((100, 32_766), 0) == ["enrol: INVALID_PRODUCER_EPOCH"]


# --- preparing ------------------------------------------------------------------------------------------------


def test_a_prepared_transaction_waits_for_its_token(world: World) -> None:
    producer = world.open(0)
    assert world.prepare(producer) == ["write t PREPARED 100@0", "prepare: token t 100@0 #1"]
    assert world.prepare(producer) == ["prepare: token t 100@0 #1"], "the same token again"
    assert world.enrol(producer, 1) == ["enrol: INVALID_TXN_STATE"]
    assert world.commit(producer) == ["commit: INVALID_TXN_STATE"]
    assert world.pass_ms(100 * MINUTE) == [], "it has no timeout"
    token = Token("t", 100, 0, 1)
    assert world.decide(token, True) == [
        "write t PREPARE_COMMIT 100@1",
        "decide: committed, next 100@1",
        "tell t commit 100@1: 0",
    ]
    assert world.decide(token, True) == ["decide: committed, next 100@1"]
    assert world.decide(token, False) == ["decide: committed, next 100@1"], "the verdict that holds"
    assert world.marked((100, 1), 0) == ["write t COMPLETE_COMMIT 100@1", "over t commit by TOKEN"]
    assert world.decide(token, False) == ["decide: committed, next 100@1"]
    assert world.enrol((100, 1), 1)[-1] == "enrol: ok"
    assert world.decide(token, False) == ["decide: committed, next 100@1"]
    world.commit((100, 1))
    assert world.decide(token, False) == ["decide: TXN_VERDICT_UNKNOWN"]


def test_tokens_that_name_nothing(world: World) -> None:
    assert world.decide(Token("t", 100, 0, 1), True) == ["decide: TXN_VERDICT_UNKNOWN"]
    token = world.prepared(0)
    assert world.decide(token._replace(nonce=9), True) == ["decide: TXN_VERDICT_UNKNOWN"]
    assert world.decide(token._replace(epoch=1), True) == ["decide: TXN_VERDICT_UNKNOWN"]
    assert world.decide(token._replace(producer_id=9), True) == ["decide: TXN_VERDICT_UNKNOWN"]
    world.decide(token, False)
    assert world.decide(token._replace(nonce=9), False) == ["decide: TXN_VERDICT_UNKNOWN"]
    assert world.decide(token, False) == ["decide: aborted, next 100@1"]


def test_a_transaction_that_was_not_prepared_has_no_token(world: World) -> None:
    world.open(0)
    assert world.decide(Token("t", 100, 0, 0), True) == ["decide: TXN_VERDICT_UNKNOWN"]
    world.commit((100, 0))
    assert world.decide(Token("t", 100, 0, 0), True) == ["decide: TXN_VERDICT_UNKNOWN"]


@pytest.mark.parametrize("before", ["empty", "complete"])
def test_a_transaction_without_writes_can_be_prepared(world: World, before: str) -> None:
    world.init()
    epoch = 0
    if before == "complete":
        world.commit((100, 0))
        epoch = 1
    assert world.prepare((100, epoch)) == [f"write t PREPARED 100@{epoch}", f"prepare: token t 100@{epoch} #1"]
    assert world.decide(Token("t", 100, epoch, 1), True) == [
        f"write t COMPLETE_COMMIT 100@{epoch + 1}",
        f"decide: committed, next 100@{epoch + 1}",
        "over t commit by TOKEN",
    ]


def test_prepare_waits_for_the_end_of_the_transaction_before(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    assert world.prepare((100, 1)) == []
    assert world.marked((100, 1), 0)[-2:] == ["write t PREPARED 100@1", "prepare: token t 100@1 #1"]


def test_prepares_of_strangers_are_refused(world: World) -> None:
    assert world.prepare((100, 0)) == ["prepare: INVALID_PRODUCER_ID_MAPPING"]
    world.init()
    assert world.prepare((99, 0)) == ["prepare: INVALID_PRODUCER_ID_MAPPING"]
    assert world.prepare((100, 1)) == ["prepare: PRODUCER_FENCED"]
    assert world.prepare((100, 0), name="o/a") == ["prepare: INVALID_REQUEST"]
    assert world.prepare((100, 0), owner=1) == ["prepare: INVALID_REQUEST"]


def test_a_late_prepare_never_gets_the_token_of_something_aborted(world: World) -> None:
    token = world.prepared(0)
    world.decide(token, False)
    assert world.prepare((100, 0)) == ["prepare: INVALID_TXN_STATE"]
    world.marked((100, 1), 0)
    token = world.prepared(0)
    world.decide(token, True)
    assert world.prepare((100, 2)) == ["prepare: token t 100@2 #3"]
    world.marked((100, 3), 0)
    producer = world.open(0)
    world.pass_ms(MINUTE)
    assert world.prepare(producer) == ["prepare: TRANSACTION_ABORTABLE"]
    world.init()
    assert world.prepare(producer) == ["prepare: TRANSACTION_ABORTABLE"], "the newer one waits"
    world.marked((100, producer.epoch + 1), 0)
    assert world.prepare(producer) == ["prepare: PRODUCER_FENCED"]


def test_a_late_prepare_of_what_was_committed_without_it_is_refused(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    assert world.prepare((100, 0)) == ["prepare: INVALID_TXN_STATE"]


def test_init_on_a_prepared_transaction_answers_its_token_and_keeps_it(world: World) -> None:
    token = world.prepared(0)
    assert world.init() == ["write t PREPARED 100@0", "init: token t 100@0 #1"]
    assert world.effects[-1].result == InitResult(Producer(100, 0), token)
    assert world.init() == ["init: token t 100@0 #1"]
    assert world.enrol((100, 0), 1) == ["enrol: INVALID_TXN_STATE"]


def test_two_producers_with_one_token_do_not_both_go_on(world: World) -> None:
    """Whoever decides cannot be told from the other one: nobody gets the next epoch, each has to ask for its own."""
    token = world.prepared(0)
    world.init()
    world = world.restarted()
    assert world.decide(token, True)[1] == "decide: committed, next none"
    assert world.decide(token, True) == ["decide: committed, next none"]
    assert world.commit((100, 0)) == ["commit: PRODUCER_FENCED"]
    assert world.enrol((100, 1), 0) == ["enrol: INVALID_PRODUCER_EPOCH"]
    world.init(ref="anew")
    assert world.marked((100, 1), 0)[-1] == "anew: 100@2"
    assert world.decide(token, True) == ["decide: committed, next none"], "the verdict is known on"
    assert world.decide(Token("t", 100, 2, 7), True) == ["decide: TXN_VERDICT_UNKNOWN"]
    world.enrol((100, 2), 0)
    assert world.commit((100, 2))[1] == "commit: 100@3", "the next transaction is as any"


def test_when_a_token_uses_the_last_epoch_the_answer_has_a_new_producer_id(world: World) -> None:
    last = last_epoch(world)
    world.enrol(last, 0)
    world.prepare(last)
    token = Token("t", *last, 1)
    assert world.decide(token, True) == [
        "took 101",
        "write t PREPARE_COMMIT 101@0",
        "decide: committed, next 101@0",
        "tell t commit 100@32767: 0",
    ]
    assert world.decide(token, True) == ["decide: committed, next 101@0"]
