"""Owners of transactional ids: their epochs, units, and the producer ids that go from one id to the next."""

from __future__ import annotations

import pytest

from headrace_coordinator.core.transactions.values import Token

from .world import HOUR, MINUTE, WALL, World


@pytest.fixture
def world() -> World:
    world = World()
    world.init_owner()
    return world


# --- becoming the owner ---------------------------------------------------------------------------------------


def test_each_owner_gets_the_next_epoch_and_the_last_unit() -> None:
    world = World()
    assert world.init_owner() == ["write owner o epoch 0 unit -1", "owner: epoch 0 after unit -1"]
    assert world.init_owner() == ["write owner o epoch 1 unit -1", "owner: epoch 1 after unit -1"]
    world.unit(1, 7, [])
    assert world.restarted().init_owner() == ["write owner o epoch 2 unit 7", "owner: epoch 2 after unit 7"]
    assert world.init_owner("p") == ["write owner p epoch 0 unit -1", "owner: epoch 0 after unit -1"]


@pytest.mark.parametrize("name", ["", "o/a", "/"])
def test_names_that_are_no_owner(name: str) -> None:
    assert World().init_owner(name) == ["owner: INVALID_REQUEST"]


def test_a_new_owner_aborts_what_is_open_or_prepared_and_forgets_the_rest(world: World) -> None:
    world.open(0, name="o/open", owner=0)
    world.prepared(1, name="o/prepared", owner=0)
    world.init("o/empty", owner=0)
    world.open(2, name="o/ending", owner=0)
    world.commit((103, 0), name="o/ending")
    world.open(3, name="plain")
    assert world.init_owner() == [
        "write owner o epoch 1 unit -1 free 102@1; o/open PREPARE_ABORT 100@1; o/prepared PREPARE_ABORT 101@1; "
        "o/empty forgotten; o/ending PREPARE_COMMIT 103@1",
        "owner: epoch 1 after unit -1",
        "tell o/open abort 100@1: 0",
        "tell o/prepared abort 101@1: 1",
    ]
    assert world.enrol((102, 0), 0, name="o/empty") == ["enrol: INVALID_PRODUCER_ID_MAPPING"]
    assert world.commit((103, 0), name="o/ending") == ["commit: PRODUCER_FENCED"]
    assert world.marked((100, 1), 0, name="o/open") == ["write o/open forgotten", "over o/open abort by OWNER"]
    assert world.marked((101, 1), 1, name="o/prepared")[0] == "write o/prepared forgotten"
    assert world.marked((103, 1), 2, name="o/ending") == ["write o/ending forgotten", "over o/ending commit by CLIENT"]
    assert world.describe("plain").state.name == "ONGOING"
    assert [line.transactional_id for line in world.shard.list_transactions()] == ["plain"]


def test_what_a_new_owner_fenced_stays_fenced_after_a_crash(world: World) -> None:
    world.open(2, name="o/a", owner=0)
    world.commit((100, 0), name="o/a")
    world.init_owner()
    world = world.restarted()
    assert world.commit((100, 0), name="o/a") == ["commit: PRODUCER_FENCED"]
    assert world.enrol((100, 1), 0, name="o/a") == ["enrol: INVALID_PRODUCER_EPOCH"]
    assert world.marked((100, 1), 2, name="o/a")[0] == "write o/a forgotten"


def test_a_request_of_an_older_owner_that_waited_is_fenced(world: World) -> None:
    world.open(0, name="o/a", owner=0)
    world.init("o/a", owner=0, ref="waits")
    world.prepare((100, 1), name="o/a", owner=0)
    world.init_owner()
    assert world.marked((100, 1), 0, name="o/a")[-1] == "waits: FENCED_OWNER"
    assert world.prepare((100, 1), name="o/a", owner=0) == ["prepare: FENCED_OWNER"]


def test_a_producer_of_the_new_owner_waits_until_the_old_ones_transaction_has_ended(world: World) -> None:
    world.open(0, name="o/a", owner=0)
    world.init_owner()
    assert world.init("o/a", owner=1) == ["took 101"]
    assert world.marked((100, 1), 0, name="o/a") == [
        "write o/a forgotten",
        "over o/a abort by OWNER",
        "write owner o epoch 1 unit -1; o/a EMPTY 100@2",
        "init: 100@2",
    ]


# --- claims ---------------------------------------------------------------------------------------------------


def test_all_who_claim_with_the_same_number_are_one_owner() -> None:
    world = World()
    assert world.init_owner(claim=7) == ["write owner o epoch 0 claim 7@0 unit -1", "owner: epoch 0 after unit -1"]
    prepared = world.prepared(0, name="o/a", owner=0)
    world.open(1, name="o/b", owner=0)
    assert world.init_owner(claim=7) == ["owner: epoch 0 after unit -1"], "nothing is aborted, nothing written"
    assert world.restarted().init_owner(claim=7) == ["owner: epoch 0 after unit -1"]
    assert world.unit(0, 3, [prepared])[1] == "unit: committed"
    assert world.init_owner(claim=7) == ["owner: epoch 0 after unit 3"], "as it is now"


def test_a_higher_claim_is_a_new_owner_and_a_lower_one_is_fenced() -> None:
    world = World()
    world.init_owner(claim=7)
    token = world.prepared(0, name="o/a", owner=0)
    assert world.init_owner(claim=8) == [
        "write owner o epoch 1 claim 8@1 unit -1; o/a PREPARE_ABORT 100@1",
        "owner: epoch 1 after unit -1",
        "tell o/a abort 100@1: 0",
    ]
    for now in (world, world.restarted()):
        for claim in (7, 0):
            assert now.init_owner(claim=claim) == ["owner: FENCED_OWNER"]
            assert f"claimed with 8, {claim} is lower" in now.refusal()
            assert "claim with more than 8" in now.refusal()
        assert now.init("o/b", owner=0) == ["init: FENCED_OWNER"], "with the epoch of the older claim"
        assert now.unit(0, 0, [token]) == ["unit: FENCED_OWNER"]
        assert now.init_owner(claim=8) == ["owner: epoch 1 after unit -1"]


def test_an_owner_without_a_claim_is_beyond_all_claims_before_it() -> None:
    world = World()
    world.init_owner(claim=7)
    assert world.init_owner()[0] == "write owner o epoch 1 claim 7@0 unit -1"
    token = world.prepared(0, name="o/a", owner=1)
    for now in (world, world.restarted()):
        assert now.init_owner(claim=7) == ["owner: FENCED_OWNER"]
        assert "without a claim since" in now.refusal()
        assert now.init_owner(claim=6) == ["owner: FENCED_OWNER"]
        assert now.describe("o/a").token == token
    assert world.init_owner(claim=8)[-2:] == ["owner: epoch 2 after unit -1", "tell o/a abort 100@1: 0"]


def test_an_owner_that_was_never_claimed_may_be_claimed_with_any_number(world: World) -> None:
    world.open(0, name="o/a", owner=0)
    assert world.init_owner(claim=0) == [
        "write owner o epoch 1 claim 0@1 unit -1; o/a PREPARE_ABORT 100@1",
        "owner: epoch 1 after unit -1",
        "tell o/a abort 100@1: 0",
    ]
    assert world.init_owner("p", claim=(WALL + HOUR) << 20)[-1] == "owner: epoch 0 after unit -1"
    assert world.init_owner("p", claim=(WALL + HOUR) << 20)[-1] == "owner: epoch 0 after unit -1"


def test_what_is_no_claim_changes_nothing(world: World) -> None:
    assert world.init_owner(claim=-1) == ["owner: INVALID_REQUEST"]
    assert world.init_owner("q", claim=-5) == ["owner: INVALID_REQUEST"]
    assert world.unit(0, 0, [], owner="q") == ["unit: INVALID_REQUEST"], "nobody owns it yet"


# --- units ----------------------------------------------------------------------------------------------------


def test_a_unit_commits_what_it_lists_and_aborts_what_else_is_prepared(world: World) -> None:
    a = world.prepared(0, 1, name="o/a", owner=0)
    b = world.prepared(1, name="o/b", owner=0)
    world.prepared(2, name="o/c", owner=0)
    world.open(3, name="o/d", owner=0)
    plain = world.prepared(4, name="t")
    assert world.unit(0, 0, [a, b, a]) == [
        "write owner o epoch 0 unit 0 #1 #2; o/a PREPARE_COMMIT 100@1; o/b PREPARE_COMMIT 101@1; "
        "o/c PREPARE_ABORT 102@1",
        "unit: committed",
        "tell o/a commit 100@1: 0 1",
        "tell o/b commit 101@1: 1",
        "tell o/c abort 102@1: 2",
    ]
    assert world.marked((100, 1), 0, 1, name="o/a") == ["write o/a forgotten", "over o/a commit by UNIT"]
    assert world.marked((102, 1), 2, name="o/c") == ["write o/c forgotten", "over o/c abort by UNIT"]
    assert world.describe("o/d").state.name == "ONGOING", "what is open may be of the next unit"
    assert world.describe("t").token == plain


def test_a_unit_that_lists_what_is_not_prepared_changes_nothing(world: World) -> None:
    a = world.prepared(0, name="o/a", owner=0)
    world.prepared(2, name="o/c", owner=0)
    assert world.unit(0, 0, [a, Token("o/x", 9, 0, 9)]) == ["unit: TRANSACTION_ABORTABLE"]
    assert world.unit(0, 0, [a._replace(nonce=77)]) == ["unit: TRANSACTION_ABORTABLE"]
    producer = world.open(3, name="o/d", owner=0)
    assert world.unit(0, 0, [a, Token("o/d", *producer, 0)]) == ["unit: TRANSACTION_ABORTABLE"]
    assert world.unit(0, 0, [a, Token("p/a", 1, 1, 1)]) == ["unit: INVALID_REQUEST"]
    assert world.unit(0, 0, [a, Token("t", 1, 1, 1)]) == ["unit: INVALID_REQUEST"]
    assert world.unit(0, -1, [a]) == ["unit: INVALID_REQUEST"]
    assert world.describe("o/a").token == a
    assert world.describe("o/c").state.name == "PREPARED"
    assert world.unit(0, 0, [a])[1] == "unit: committed"


def test_units_of_owners_that_are_not_current(world: World) -> None:
    assert world.unit(0, 0, [], owner="p") == ["unit: INVALID_REQUEST"]
    assert world.unit(1, 0, []) == ["unit: INVALID_REQUEST"]
    world.init_owner()
    assert world.unit(0, 0, []) == ["unit: FENCED_OWNER"]
    world.unit(1, 5, [])
    assert world.unit(1, 4, []) == ["unit: FENCED_OWNER"]


def test_a_repeated_unit_commits_nothing_and_aborts_what_was_prepared_for_it_again(world: World) -> None:
    a = world.prepared(0, name="o/a", owner=0)
    world.unit(0, 3, [a])
    assert world.unit(0, 3, [a]) == ["unit: repeated"]
    again = world.prepared(0, name="o/b", owner=0)
    assert world.unit(0, 3, [again]) == [
        "write o/b PREPARE_ABORT 101@1",
        "unit: repeated",
        "tell o/b abort 101@1: 0",
    ]
    world = world.restarted()
    assert world.unit(0, 3, [again]) == ["unit: repeated"]


def test_a_token_that_was_committed_singly_counts_as_committed(world: World) -> None:
    a = world.prepared(0, name="o/a", owner=0)
    b = world.prepared(1, name="o/b", owner=0)
    assert world.decide(a, True)[1] == "decide: committed, next 100@1"
    world.marked((100, 1), 0, name="o/a")
    assert world.unit(0, 0, [a, b]) == [
        "write owner o epoch 0 unit 0 #2; o/b PREPARE_COMMIT 101@1",
        "unit: committed",
        "tell o/b commit 101@1: 1",
    ]


def test_a_token_that_was_aborted_singly_fails_the_unit(world: World) -> None:
    a = world.prepared(0, name="o/a", owner=0)
    b = world.prepared(1, name="o/b", owner=0)
    world.decide(a, False)
    world.marked((100, 1), 0, name="o/a")
    assert world.unit(0, 0, [a, b]) == ["unit: TRANSACTION_ABORTABLE"]
    assert world.describe("o/b").token == b


def test_a_token_that_two_producers_had_can_be_asked_for_its_verdict_until_it_expires(world: World) -> None:
    a = world.prepared(0, name="o/a", owner=0)
    world.init("o/a", owner=0)
    assert world.decide(a, True)[1] == "decide: committed, next none"
    assert world.marked((100, 1), 0, name="o/a")[0] == "write o/a COMPLETE_COMMIT 100@1"
    assert world.decide(a, False) == ["decide: committed, next none"]
    assert "write o/a forgotten" in world.pass_ms(2 * HOUR)


def test_a_unit_of_transactions_without_writes(world: World) -> None:
    world.init("o/a", owner=0)
    world.prepare((100, 0), name="o/a", owner=0)
    assert world.unit(0, 0, [Token("o/a", 100, 0, 1)]) == [
        "write owner o epoch 0 unit 0 #1; o/a forgotten",
        "unit: committed",
        "over o/a commit by UNIT",
    ]


def test_requests_for_an_id_that_its_unit_made_forgotten(world: World) -> None:
    a = world.prepared(0, name="o/a", owner=0)
    world.unit(0, 0, [a])
    assert world.commit((100, 0), name="o/a") == ["commit: PRODUCER_FENCED"]
    assert world.prepare((100, 0), name="o/a", owner=0) == ["prepare: PRODUCER_FENCED"]
    assert world.decide(a, True) == ["decide: committed, next none"]
    world.marked((100, 1), 0, name="o/a")
    assert world.commit((100, 0), name="o/a") == ["commit: INVALID_PRODUCER_ID_MAPPING"]
    assert world.decide(a, True) == ["decide: TXN_VERDICT_UNKNOWN"]


# --- producer ids ---------------------------------------------------------------------------------------------


def test_producer_ids_go_from_id_to_id_with_epochs_that_nobody_had(world: World) -> None:
    a = world.prepared(0, name="o/a", owner=0)
    world.unit(0, 0, [a])
    world.marked((100, 1), 0, name="o/a")
    assert world.init("o/b", owner=0) == ["write owner o epoch 0 unit 0 #1; o/b EMPTY 100@2", "init: 100@2"]
    assert world.init("o/c", owner=0) == ["took 101", "write o/c EMPTY 101@0", "init: 101@0"]
    assert world.init("t") == ["took 102", "write t EMPTY 102@0", "init: 102@0"]


def test_an_id_of_an_owner_that_its_producer_ended_may_go_on(world: World) -> None:
    world.open(0, name="o/a", owner=0)
    assert world.abort((100, 0), name="o/a")[1] == "abort: 100@1"
    assert world.marked((100, 1), 0, name="o/a")[0] == "write o/a COMPLETE_ABORT 100@1"
    assert world.abort((100, 0), name="o/a") == ["abort: 100@1"]
    assert world.enrol((100, 1), 0, name="o/a")[-1] == "enrol: ok"
    assert world.prepare((100, 1), name="o/a", owner=0)[-1] == "prepare: token o/a 100@1 #1"


def test_a_producer_id_whose_epochs_ran_out_is_not_used_again(world: World) -> None:
    world.init("o/a", owner=0)
    for epoch in range(32_766):
        world.abort((100, epoch), name="o/a")
    world.init_owner()
    assert world.init("o/b", owner=1)[0] == "took 101"


def test_an_owner_keeps_a_bounded_number_of_producer_ids() -> None:
    world = World(unit_free_producer_ids_max=2)
    world.init_owner()
    for name in ("o/a", "o/b", "o/c"):
        world.init(name, owner=0)
    assert world.init_owner()[0].startswith("write owner o epoch 1 unit -1 free 100@1 101@1;")


# --- time -----------------------------------------------------------------------------------------------------


def test_a_prepared_transaction_of_an_owner_is_aborted_after_its_time(world: World) -> None:
    a = world.prepared(0, name="o/a", owner=0)
    assert world.pass_ms(HOUR - 1) == []
    assert world.pass_ms(1) == ["write o/a PREPARE_ABORT 100@1", "tell o/a abort 100@1: 0"]
    assert world.decide(a, True) == ["decide: aborted, next 100@1"]
    assert world.unit(0, 0, [a]) == ["unit: TRANSACTION_ABORTABLE"]


def test_used_up_ids_of_an_owner_are_forgotten_soon_new_ones_are_not(world: World) -> None:
    world.init("o/new", owner=0)
    world.init("o/used", owner=0)
    world.abort((101, 0), name="o/used")
    assert world.pass_ms(HOUR - MINUTE) == []
    assert world.pass_ms(20 * MINUTE) == ["write o/used forgotten"]
    assert world.init("o/b", owner=0)[-1] == "init: 101@2", "a free producer id, above all that were answered"
