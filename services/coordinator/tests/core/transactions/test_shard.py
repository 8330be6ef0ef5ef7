"""Time, operators, lists and what a shard is measured by."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import TransactionalIdNotFound
from headrace_coordinator.core.transactions import shard as shard_module
from headrace_coordinator.core.transactions.effects import Completed, Tally, TransactionDescription, TransactionListing
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.shard import TransactionShard
from headrace_coordinator.core.transactions.values import Producer, Token, TxnState, key_of, owner_of

from .world import DAY, HOUR, MINUTE, WALL, World, parts


@pytest.fixture
def world() -> World:
    return World()


# --- timeouts -------------------------------------------------------------------------------------------------


def test_an_open_transaction_is_aborted_when_its_time_is_up(world: World) -> None:
    world.init(timeout_ms=10_000)
    world.pass_ms(50_000)
    world.enrol((100, 0), 0)
    world.pass_ms(5_000)
    world.enrol((100, 0), 1)
    assert world.pass_ms(4_999) == [], "it counts from the first write"
    assert world.pass_ms(1) == ["write t PREPARE_ABORT 100@1", "tell t abort 100@1: 0 1"]
    assert world.marked((100, 1), 0, 1)[-1] == "over t abort by TIMEOUT"


def test_each_transaction_has_its_own_time(world: World) -> None:
    world.init(timeout_ms=10_000)
    for epoch in range(5):
        world.enrol((100, epoch), 0)
        assert world.pass_ms(9_000) == []
        world.commit((100, epoch))
        world.marked((100, epoch + 1), 0)
    world.enrol((100, 5), 0)
    assert world.pass_ms(9_999) == []
    assert world.pass_ms(1) == ["write t PREPARE_ABORT 100@6", "tell t abort 100@6: 0"]


def test_a_shorter_timeout_of_the_next_producer_counts(world: World) -> None:
    world.init(timeout_ms=30_000)
    world.enrol((100, 0), 0)
    world.commit((100, 0))
    world.marked((100, 1), 0)
    world.init(timeout_ms=1_000)
    world.enrol((100, 2), 0)
    assert world.pass_ms(1_000) == ["write t PREPARE_ABORT 100@3", "tell t abort 100@3: 0"]


def test_a_time_that_is_up_after_the_id_was_forgotten_wakes_nobody(world: World) -> None:
    world.init_owner()
    world.open(0, name="o/a", owner=0)
    world.init_owner()
    world.marked((100, 1), 0, name="o/a")
    assert world.pass_ms(MINUTE) == []
    assert world.shard.next_wake_ms() == world.settings.transactional_id_check_interval_ms


def test_a_shard_that_is_not_loaded_waits_for_nothing() -> None:
    assert TransactionShard(0, TransactionSettings()).next_wake_ms() is None


def test_a_decided_transaction_has_no_timeout(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    assert world.pass_ms(DAY) == []


# --- expiry ---------------------------------------------------------------------------------------------------


def test_ids_that_do_nothing_for_long_are_forgotten(world: World) -> None:
    world.init("empty")
    world.init("complete")
    world.commit((101, 0), name="complete")
    world.prepared(0, name="prepared")
    world.open(0, name="ending")
    world.commit((103, 0), name="ending")
    assert world.pass_ms(7 * DAY - MINUTE) == []
    world.init("young")
    assert sorted(world.pass_ms(20 * MINUTE)) == ["write complete forgotten", "write empty forgotten"]
    assert [line.transactional_id for line in world.shard.list_transactions()] == ["ending", "prepared", "young"]
    assert world.commit((101, 1), name="complete") == ["commit: INVALID_PRODUCER_ID_MAPPING"]
    assert world.init("complete") == ["took 105", "write complete EMPTY 105@0", "init: 105@0"]


def test_expiry_takes_ids_in_turns_so_that_nobody_waits_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "EXPIRY_IDS_PER_WAKE", 2)
    for number in range(5):
        world.init(f"t{number}")
    world.now_ms = 8 * DAY
    turns = []
    while world.shard.next_wake_ms() <= world.now_ms:
        turns.append(len(world.pass_ms(0)))
    assert sum(turns) == 5
    assert world.shard.list_transactions() == []
    assert world.shard.next_wake_ms() == 8 * DAY + world.settings.transactional_id_check_interval_ms


def test_an_id_that_is_forgotten_between_two_turns_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "EXPIRY_IDS_PER_WAKE", 1)
    world.init_owner()
    world.init("o/a", owner=0)
    world.init("o/b", owner=0)
    world.now_ms = float(world.settings.transactional_id_check_interval_ms)
    world.tell(shard_module.Woken(world.at))
    world.init_owner()
    assert world.tell(shard_module.Woken(world.at)) == []


# --- operators ------------------------------------------------------------------------------------------------


def test_an_operator_aborts_an_open_transaction(world: World) -> None:
    assert world.kill() == ["kill: TRANSACTIONAL_ID_NOT_FOUND"]
    world.init()
    assert world.kill() == ["kill: INVALID_TXN_STATE"]
    world.enrol((100, 0), 0)
    assert world.kill(producer=100, epoch=5) == ["kill: INVALID_TXN_STATE"]
    assert world.kill(producer=9) == ["kill: INVALID_TXN_STATE"]
    assert world.kill() == ["write t PREPARE_ABORT 100@1", "kill: ok", "tell t abort 100@1: 0"]
    assert world.kill() == ["kill: ok"]
    assert world.kill(producer=100, epoch=0) == ["kill: ok"]
    assert world.marked((100, 1), 0)[-1] == "over t abort by OPERATOR"
    assert world.kill(producer=100, epoch=0) == ["kill: ok"], "it was aborted"
    assert world.kill() == ["kill: INVALID_TXN_STATE"], "now nothing is open"
    assert world.commit((100, 0)) == ["commit: TRANSACTION_ABORTABLE"]
    assert world.abort((100, 0)) == ["abort: 100@1"]


def test_an_operator_aborts_only_what_was_meant(world: World) -> None:
    world.open(0)
    assert world.kill(producer=100, epoch=0)[0] == "write t PREPARE_ABORT 100@1"


def test_an_operator_cannot_abort_what_is_committed_or_prepared(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    assert world.kill() == ["kill: INVALID_TXN_STATE"]
    assert world.kill(producer=100, epoch=0) == ["kill: INVALID_TXN_STATE"]
    world.marked((100, 1), 0)
    token = world.prepared(0)
    assert world.kill() == ["kill: INVALID_TXN_STATE"]
    assert world.describe().token == token


# --- lists and measures ---------------------------------------------------------------------------------------


def test_what_is_told_of_an_id(world: World) -> None:
    assert isinstance(world.describe(), TransactionalIdNotFound)
    world.init()
    world.pass_ms(10)
    world.enrol((100, 0), 2, 1)
    world.pass_ms(10)
    world.prepare((100, 0))
    opened, prepared = WALL + 10, WALL + 20
    description = TransactionDescription(
        "t",
        TxnState.PREPARED,
        Producer(100, 0),
        MINUTE,
        opened,
        prepared,
        tuple(parts(2, 1)),
        (),
        Token("t", 100, 0, 1),
    )
    assert world.describe() == description
    assert world.shard.list_transactions() == [
        TransactionListing("t", Producer(100, 0), TxnState.PREPARED, opened, prepared)
    ]
    world.decide(Token("t", 100, 0, 1), True)
    world.marked((100, 1), 2)
    ending = world.describe()
    assert isinstance(ending, TransactionDescription)
    assert (ending.state, ending.partitions, ending.without_marker, ending.token) == (
        TxnState.PREPARE_COMMIT,
        tuple(parts(2, 1)),
        tuple(parts(1)),
        None,
    )
    world.marked((100, 1), 1)
    assert world.shard.list_transactions() == [
        TransactionListing("t", Producer(100, 1), TxnState.COMPLETE_COMMIT, -1, -1)
    ]


def test_the_tally(world: World) -> None:
    assert world.shard.tally() == Tally(0, 0, 0, 0, -1, -1)
    world.open(0, name="a")
    world.pass_ms(5)
    world.open(0, name="b")
    world.prepared(0, name="c")
    world.open(0, name="d")
    world.commit((103, 0), name="d")
    world.init("d", ref="waits")
    world.init("e")
    assert world.shard.tally() == Tally(2, 1, 1, 1, WALL, WALL + 5)
    assert world.restarted().shard.tally() == Tally(2, 1, 1, 0, WALL, WALL + 5)
    world.marked((103, 1), 0, name="d")
    assert world.shard.tally() == Tally(2, 1, 0, 0, WALL, WALL + 5)


def test_how_long_an_end_took(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    world.pass_ms(30)
    world.marked((100, 1), 0)
    assert [e.ending_ms for e in world.effects if isinstance(e, Completed)] == [30]
    world.enrol((100, 1), 0)
    world.commit((100, 1))
    world = world.restarted(after_ms=HOUR)
    world.pass_ms(7)
    world.marked((100, 2), 0)
    assert [e.ending_ms for e in world.effects if isinstance(e, Completed)] == [7], "from when it was loaded"


def test_effects_are_ordered_by_the_id_or_its_owner(world: World) -> None:
    assert (key_of("t"), key_of("o/a"), key_of("o/a/b")) == ("t", "o", "o")
    assert (owner_of("t"), owner_of("o/a"), owner_of("/a")) == (None, "o", "")
    world.init_owner()
    world.open(0, name="o/a", owner=0)
    world.commit((100, 0), name="o/a")
    assert {effect.group_id for effect in world.effects} == {"o"}
