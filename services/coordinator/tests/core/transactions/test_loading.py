"""What a coordinator makes of the records of the one before it, also where the last append of that one was cut."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import DataLost, UnsupportedVersion
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions.effects import Persist
from headrace_coordinator.core.transactions.events import Loaded
from headrace_coordinator.core.transactions.records import owner_key, owner_row, read_owner, transaction_key
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.shard import TransactionShard
from headrace_coordinator.core.transactions.values import Token

from .world import HOUR, MINUTE, WALL, World


@pytest.fixture
def world() -> World:
    return World()


def cut(world: World, before: dict[bytes, bytes | None], *names: str) -> World:
    """
    Another coordinator that finds of the last append only the rows of ``names``; an owner is written ``o``.

    Args:
        before: the rows as they were before that append.
    """
    persist = next(effect for effect in world.effects if isinstance(effect, Persist))
    keys = {owner_key(name) if "/" not in name and name != "t" else transaction_key(name) for name in names}
    found: list[Row] = [*before.items(), *((key, value) for key, value in persist.rows if key in keys)]
    return world.restarted(found)


# --- whole records --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_markers_are_written_again_for_all_partitions(world: World, commit: bool) -> None:
    world.open(2, 0, 1)
    world.end((100, 0), commit)
    world.marked((100, 1), 0)
    verdict = "commit" if commit else "abort"
    world = world.restarted()
    assert world.started == [f"tell t {verdict} 100@1: 2 0 1"]
    assert world.end((100, 0), commit) == ["end: 100@1"]
    assert world.end((100, 0), not commit) == ["end: INVALID_TXN_STATE"]
    assert world.marked((100, 1), 0, 1, 2) == [
        f"write t COMPLETE_{verdict.upper()} 100@1",
        f"over t {verdict} by CLIENT",
    ]


def test_an_open_transaction_stays_open_and_keeps_its_time(world: World) -> None:
    world.open(0)
    world.pass_ms(MINUTE - 10_000)
    world = world.restarted()
    assert world.started == []
    assert world.enrol((100, 0), 0) == ["enrol: ok"]
    assert world.pass_ms(9_999) == []
    assert world.pass_ms(1) == ["write t PREPARE_ABORT 100@1", "tell t abort 100@1: 0"]


def test_an_open_transaction_whose_time_was_up_meanwhile_is_aborted_at_once(world: World) -> None:
    world.open(0)
    world = world.restarted(after_ms=HOUR)
    assert world.started == []
    assert world.pass_ms(0) == ["write t PREPARE_ABORT 100@1", "tell t abort 100@1: 0"]


def test_a_clock_that_went_back_makes_no_timeout_longer(world: World) -> None:
    world.open(0)
    world = world.restarted(after_ms=-HOUR)
    assert world.pass_ms(MINUTE - 1) == []
    assert world.pass_ms(1)[0] == "write t PREPARE_ABORT 100@1"


def test_prepared_ones_stay_prepared_and_those_of_owners_keep_their_time(world: World) -> None:
    world.init_owner()
    plain = world.prepared(0)
    world.prepared(1, name="o/a", owner=0)
    world.pass_ms(HOUR - 1_000)
    world = world.restarted()
    assert world.describe().token == plain
    assert world.pass_ms(1_000) == ["write o/a PREPARE_ABORT 101@1", "tell o/a abort 101@1: 1"]
    assert world.pass_ms(HOUR) == []
    assert world.decide(plain, True)[1] == "decide: committed, next 100@1"


def test_ids_that_are_forgotten_are_not_found_again(world: World) -> None:
    world.init()
    shard = TransactionShard(0, TransactionSettings())
    shard.replay([*world.rows.items(), (transaction_key("t"), None), (owner_key("o"), None)])
    shard.handle(Loaded(world.at))
    assert shard.listing() == []
    world = World([(transaction_key("t"), None), (owner_key("o"), None)])
    assert world.shard.listing() == []
    assert world.init()[0] == "took 100"


def test_a_note_means_nothing() -> None:
    assert World([(bytes((1, 3)), None)]).shard.listing() == []


@pytest.mark.parametrize(
    "row",
    [
        (b"\x01", b""),
        (b"\x01\x09\x00\x01t", b""),
        (b"\x01\x04\x00\x05t", b""),
        (b"\x01\x04\x00\x01\xff", b""),
        (transaction_key("t"), b""),
        (transaction_key("t"), b"\x01\x01"),
        (owner_key("o"), b""),
        (owner_key("o"), b"\x01\x00"),
    ],
)
def test_records_that_are_none_of_ours_are_refused(row: Row) -> None:
    with pytest.raises(DataLost):
        TransactionShard(0, TransactionSettings()).replay([row])


@pytest.mark.parametrize("key", [b"\x02\x04\x00\x01t", transaction_key("t"), owner_key("o")])
def test_records_of_a_newer_format_are_refused(key: bytes) -> None:
    with pytest.raises(UnsupportedVersion):
        TransactionShard(0, TransactionSettings()).replay([(key, b"\x02")])


def test_an_end_that_has_nobody_to_tell_is_no_record_of_ours(world: World) -> None:
    world.open(0)
    world.commit((100, 0))
    key = transaction_key("t")
    value = world.rows[key]
    assert value is not None
    with pytest.raises(DataLost, match="without a verdict or without partitions"):
        TransactionShard(0, TransactionSettings()).replay([(key, value[:-20])])
    with pytest.raises(DataLost, match="cannot be read"):
        TransactionShard(0, TransactionSettings()).replay([(key, value[:-1])])


def test_an_id_without_its_owner_is_forgotten(world: World) -> None:
    """The append that made both was cut, so nobody was told of them."""
    world.init_owner()
    world.init("o/a", owner=0)
    world = world.restarted([row for row in world.rows.items() if row[0] != owner_key("o")])
    assert world.started == ["write o/a forgotten"]
    assert world.shard.listing() == []


# --- appends that were cut ------------------------------------------------------------------------------------


def unit_under_way(world: World) -> tuple[dict[bytes, bytes | None], list[Token]]:
    """A unit of two, and a third prepared transaction that it does not list."""
    world.init_owner()
    tokens = [world.prepared(0, name="o/a", owner=0), world.prepared(1, name="o/b", owner=0)]
    world.prepared(2, name="o/c", owner=0)
    before = dict(world.rows)
    world.unit(0, 0, tokens)
    return before, tokens


@pytest.mark.parametrize("also", [(), ("o/a",), ("o/b",), ("o/a", "o/b"), ("o/a", "o/c")])
def test_with_the_owners_record_the_whole_unit_is_committed(world: World, also: tuple[str, ...]) -> None:
    before, tokens = unit_under_way(world)
    world = cut(world, before, "o", *also)
    assert {name: world.describe(name).state.name for name in ("o/a", "o/b")} == {
        "o/a": "PREPARE_COMMIT",
        "o/b": "PREPARE_COMMIT",
    }
    assert {"tell o/a commit 100@1: 0", "tell o/b commit 101@1: 1"} <= set(world.started)
    repeated = world.unit(0, 0, tokens)
    assert repeated[-2 if "o/c" not in also else -1] == "unit: repeated"
    assert world.describe("o/c").state.name == "PREPARE_ABORT"


@pytest.mark.parametrize("found", [("o/a",), ("o/b",), ("o/a", "o/b"), ("o/b", "o/c")])
def test_without_the_owners_record_nothing_of_the_unit_is_committed(world: World, found: tuple[str, ...]) -> None:
    before, tokens = unit_under_way(world)
    world = cut(world, before, *found)
    assert {world.describe(name).state.name for name in ("o/a", "o/b")} == {"PREPARED"}
    assert not any("commit" in line for line in world.started)
    again = world.restarted()
    assert {again.describe(name).state.name for name in ("o/a", "o/b")} == {"PREPARED"}
    assert again.unit(0, 0, tokens[:1])[0].startswith("write owner o epoch 0 unit 0 #1; o/a PREPARE_COMMIT 100@1; ")
    assert again.describe("o/b").state.name == "PREPARE_ABORT", "another unit of that sequence was decided"
    assert again.restarted().describe("o/b").state.name == "PREPARE_ABORT"


def test_what_is_prepared_again_after_a_cut_unit_has_its_time(world: World) -> None:
    before, _ = unit_under_way(world)
    world = cut(world, before, "o/a")
    assert [line for line in world.pass_ms(HOUR) if "o/a" in line] == [
        "write o/a PREPARE_ABORT 100@1",
        "tell o/a abort 100@1: 0",
    ]


def test_a_transaction_without_writes_that_its_unit_committed_is_over(world: World) -> None:
    world.init_owner()
    world.init("o/a", owner=0)
    world.prepare((100, 0), name="o/a", owner=0)
    before = dict(world.rows)
    world.unit(0, 0, [Token("o/a", 100, 0, 1)])
    world = cut(world, before, "o")
    assert world.started == ["write o/a forgotten"]
    assert world.init("o/b", owner=0)[-1] == "init: 100@2", "it is free once"
    assert world.init("o/c", owner=0)[-1] == "init: 101@0"


def test_a_free_producer_id_that_an_id_has_is_not_free(world: World) -> None:
    world.init_owner()
    world.init("o/a", owner=0)
    world.init_owner()
    before = dict(world.rows)
    world.init("o/b", owner=1)
    assert cut(world, before, "o").init("o/c", owner=1)[-1] == "init: 101@0", "taken by nobody, and lost"
    world = cut(world, before, "o/b")
    assert world.started == ["write owner o epoch 1 unit -1"]
    assert world.init("o/c", owner=1)[-1] == "init: 101@0"


def test_of_two_ids_with_one_producer_id_the_one_with_the_lower_epoch_is_over(world: World) -> None:
    """The unit's end of o/a was in an append that was cut behind the record of o/b."""
    world.init_owner()
    world.unit(0, 0, [world.prepared(0, name="o/a", owner=0)])
    before = dict(world.rows)
    world.marked((100, 1), 0, name="o/a")
    world.init("o/b", owner=0)
    world = cut(world, before, "o/b")
    assert world.started == ["write o/a forgotten"]
    assert world.init("o/c", owner=0)[-1] == "init: 101@0", "the producer id is that of o/b"
    assert world.init("o/b", owner=0)[-1] == "init: 100@3"


def test_an_owner_remembers_what_it_committed_until_the_log_has_it_as_complete(world: World) -> None:
    world.init_owner()
    names = [f"o/{number}" for number in range(8)]
    world.unit(0, 0, [world.prepared(0, name=name, owner=0) for name in names])
    for at, name in enumerate(names[:5]):
        world.marked((100 + at, 1), 0, name=name)
    assert world.init_owner()[0].startswith("write owner o epoch 1 unit 0 #1 #2 #3 #4 #5 #6 #7 #8 free")
    world.open(0)
    world.commit((108, 0))
    assert world.init_owner()[0].startswith("write owner o epoch 2 unit 0 #1 #2 #3 #4 #5 #6 #7 #8 free")
    world.marked((108, 1), 0)
    assert world.init_owner()[0].startswith("write owner o epoch 3 unit 0 #6 #7 #8 free"), "a later end is in the log"
    again = world.restarted()
    assert again.started[0] == "tell o/5 commit 105@1: 0"
    again.marked((105, 1), 0, name="o/5")
    assert again.restarted().init_owner()[0].startswith("write owner o epoch 4 unit 0 #7 #8")


def test_what_another_unit_decided_does_not_commit_what_was_cut_off_an_earlier_one(world: World) -> None:
    """The first decision of unit 0 was lost but for one transaction's record; the second one does not list that."""
    before, tokens = unit_under_way(world)
    world = cut(world, before, "o/a")
    before = dict(world.rows)
    assert world.unit(0, 0, tokens[1:])[0].startswith("write owner o epoch 0 unit 0 #2; o/b PREPARE_COMMIT")
    world = cut(world, before, "o", "o/b")
    assert world.describe("o/a").state.name == "PREPARED"
    assert world.unit(0, 0, tokens[1:])[0] == "write o/a PREPARE_ABORT 100@1; o/c PREPARE_ABORT 102@1"


def test_an_owners_record_is_read_as_it_was_written() -> None:
    world = World()
    world.init_owner()
    for name in ("o/a", "o/b"):
        world.init(name, owner=0)
    world.init_owner()
    key = owner_key("o")
    value = world.rows[key]
    assert value is not None
    assert owner_row(read_owner("o", value)) == (key, value)
    with pytest.raises(DataLost):
        read_owner("o", value[:-1])
    assert WALL > 0
