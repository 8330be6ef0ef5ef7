"""What a coordinator makes of the records of the one before it, also where the last append of that one was cut."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import DataLost, UnsupportedVersion
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions.effects import Persist
from headrace_coordinator.core.transactions.events import Loaded
from headrace_coordinator.core.transactions.records import (
    owner_key,
    owner_row,
    read_owner,
    read_transaction,
    transaction_key,
    transaction_row,
)
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.shard import TransactionShard
from headrace_coordinator.core.transactions.values import NO_CLAIM, Token

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
    assert shard.list_transactions() == []
    world = World([(transaction_key("t"), None), (owner_key("o"), None)])
    assert world.shard.list_transactions() == []
    assert world.init()[0] == "took 100"


def test_a_note_means_nothing() -> None:
    assert World([(bytes((1, 3)), None)]).shard.list_transactions() == []


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
        TransactionShard(0, TransactionSettings()).replay([(key, b"\x04")])


# As written before owners could be claimed: epoch 4, unit 17, nonces 1 and 9, 100 free from epoch 5; open under 101@2.
OLD_OWNER = bytes.fromhex(
    "0100000000000000040000000000000011000000100000000000000001000000000000000900000000000000640005"
)
OLD_ID = bytes.fromhex(
    "01020001" "00000000000000650002" "ffffffffffffffffffff" "0000ea60" "0000018bcfe56800" "ffffffffffffffff"
    "0000018bcfe56800" "0000000000000000" "ffffffffffffffffffff" "0000000000000000"
) + b"t" * 16 + bytes(4)  # fmt: skip


def test_records_of_before_there_were_claims_are_read_and_written_as_they_were() -> None:
    owner = read_owner("o", OLD_OWNER)
    assert (owner.epoch, owner.last_sequence, owner.claim) == (4, 17, NO_CLAIM)
    assert owner.has_committed(9)
    assert owner_row(owner) == (owner_key("o"), OLD_OWNER)
    assert transaction_row(read_transaction("o/a", OLD_ID)) == (transaction_key("o/a"), OLD_ID)
    world = World([(owner_key("o"), OLD_OWNER), (transaction_key("o/a"), OLD_ID)])
    assert world.started == []
    assert world.enrol((101, 2), 1, name="o/a")[-1] == "enrol: ok", "nobody has claimed it, so it goes on"
    assert world.rows[transaction_key("o/a")][:1] == b"\x01", "as long as nobody has claimed it"
    assert world.init_owner(claim=3) == [
        "write owner o epoch 5 claim 3@5 unit 17 free 100@5; o/a PREPARE_ABORT 101@3",
        "owner: epoch 5 after unit 17",
        "tell o/a abort 101@3: 0 1",
    ]


def test_records_of_claimed_owners_are_read_as_they_were_written(world: World) -> None:
    world.init_owner(claim=2**60)
    world.open(0, 1, name="o/a", owner=0)
    world.init("t")
    rows = dict(world.rows)
    assert rows[owner_key("o")][:1] == rows[transaction_key("o/a")][:1] == b"\x02"
    assert rows[transaction_key("t")][:1] == b"\x01"
    assert owner_row(read_owner("o", rows[owner_key("o")])) == (owner_key("o"), rows[owner_key("o")])
    key = transaction_key("o/a")
    assert transaction_row(read_transaction("o/a", rows[key])) == (key, rows[key])
    for at in range(1, len(rows[owner_key("o")])):
        with pytest.raises(DataLost):
            read_owner("o", rows[owner_key("o")][:at])
    with pytest.raises(DataLost):
        read_transaction("o/a", rows[key][:80])


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
    assert world.shard.list_transactions() == []


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


@pytest.mark.parametrize("before_claim", [None, 1], ids=["not claimed before", "claimed before"])
@pytest.mark.parametrize("found", [(), ("o/open",), ("o/prepared", "o/empty"), ("o/ending",)])
def test_with_the_record_of_a_claim_all_of_older_epochs_is_over(
    world: World, before_claim: int | None, found: tuple[str, ...]
) -> None:
    """Whoever repeats the claim gets that epoch and nothing is aborted then, so it has to be now."""
    world.init_owner(claim=before_claim)
    world.open(0, name="o/open", owner=0)
    token = world.prepared(1, name="o/prepared", owner=0)
    world.init("o/empty", owner=0)
    world.open(2, name="o/ending", owner=0)
    world.commit((103, 0), name="o/ending")
    before = dict(world.rows)
    world.init_owner(claim=5)
    world = cut(world, before, "o", *found)
    assert {
        "tell o/open abort 100@1: 0",
        "tell o/prepared abort 101@1: 1",
        "tell o/ending commit 103@1: 2",
    } <= set(world.started)
    for now in (world, world.restarted()):
        assert now.init_owner(claim=5) == ["owner: epoch 1 after unit -1"]
        assert now.commit((100, 0), name="o/open") == ["commit: PRODUCER_FENCED"]
        assert now.enrol((100, 0), 4, name="o/open") == ["enrol: INVALID_PRODUCER_EPOCH"]
        assert now.enrol((102, 0), 4, name="o/empty") == ["enrol: INVALID_PRODUCER_ID_MAPPING"]
        assert now.decide(token, True) == ["decide: aborted, next none"]
        assert now.commit((103, 0), name="o/ending") == ["commit: PRODUCER_FENCED"], "nobody goes on with it"
        assert now.unit(1, 0, [token]) == ["unit: TRANSACTION_ABORTABLE"]
    world.open(0, name="o/newer", owner=1)
    assert world.restarted().describe("o/newer").state.name == "ONGOING", "what began since goes on"


def test_a_claim_that_was_cut_off_was_none(world: World) -> None:
    world.init_owner(claim=4)
    token = world.prepared(0, name="o/a", owner=0)
    world.open(1, name="o/b", owner=0)
    before = dict(world.rows)
    world.init_owner(claim=5)
    world = cut(world, before, "o/b")
    assert world.describe("o/a").token == token
    assert world.init_owner(claim=4) == ["owner: epoch 0 after unit -1"]
    assert world.init_owner(claim=5)[0].startswith("write owner o epoch 1 claim 5@1 unit -1; o/a PREPARE_ABORT")


def test_what_a_unit_committed_stays_so_though_the_append_had_a_claim_behind_it(world: World) -> None:
    """Of both only the owner's record got into the log."""
    world.init_owner(claim=4)
    token = world.prepared(0, name="o/a", owner=0)
    before = dict(world.rows)
    world.unit(0, 0, [token])
    world.init_owner(claim=5)
    world = cut(world, before, "o")
    assert world.started == ["write o/a PREPARE_COMMIT 100@1", "tell o/a commit 100@1: 0"]
    assert world.init_owner(claim=5) == ["owner: epoch 1 after unit 0"]
    assert world.decide(token, False) == ["decide: committed, next none"]


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
