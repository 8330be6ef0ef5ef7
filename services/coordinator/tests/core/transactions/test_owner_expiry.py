"""Owners are forgotten as ids are, by whichever coordinator; nobody of a forgotten one passes for one of the next."""

from __future__ import annotations

import pytest

from headrace_coordinator.core.room import transactional_ids
from headrace_coordinator.core.transactions.records import owner_key, read_owner

from .world import DAY, HOUR, WALL, World


@pytest.fixture
def world() -> World:
    return World()


def owners(world: World) -> set[str]:
    return set(world.shard._register.owners)


def stored(world: World) -> bytes:
    value = world.rows[owner_key("o")]
    assert value is not None
    return value


def test_an_owner_that_nobody_uses_is_forgotten_after_as_long_as_an_id(world: World) -> None:
    world.init_owner()
    world.pass_ms(7 * DAY - 1)
    assert owners(world) == {"o"}
    world.pass_ms(HOUR)
    assert owners(world) == set()
    assert world.rows[owner_key("o")] is None


def test_an_owner_with_ids_is_not(world: World) -> None:
    world.init_owner()
    world.pass_ms(6 * DAY)
    world.init("o/a", owner=0)
    world.pass_ms(2 * DAY)
    assert owners(world) == {"o"}


def test_what_is_done_as_the_owner_keeps_it(world: World) -> None:
    world.init_owner()
    for _ in range(3):
        world.pass_ms(4 * DAY)
        world.init_owner()
    assert owners(world) == {"o"}


def test_who_comes_after_it_was_forgotten_begins_above_it(world: World) -> None:
    """A driver that was stopped for so long, and its workers, are fenced and stay so, after a restart too."""
    world.init_owner()
    world.init_owner()
    world.pass_ms(8 * DAY)
    assert owners(world) == set()
    world = world.restarted()
    assert world.init_owner()[-1] == "owner: epoch 2 after unit -1"
    assert world.init("o/a", owner=1)[-1] == "init: FENCED_OWNER"
    assert world.init_owner("p")[-1] == "owner: epoch 2 after unit -1", "any other begins there too"


def test_without_the_feature_level_records_are_as_before_and_time_counts_from_the_load(world: World) -> None:
    world.init_owner()
    assert stored(world)[0] == 1
    world = world.restarted(after_ms=6 * DAY)
    world.pass_ms(2 * DAY)
    assert owners(world) == {"o"}
    world.pass_ms(6 * DAY)
    assert owners(world) == set()


def test_with_it_the_time_is_in_the_record(world: World) -> None:
    world.shard.write_times()
    world.init_owner(claim=4)
    assert stored(world)[0] == 3
    read = read_owner("o", stored(world))
    assert (read.epoch, read.claim, read.used_at_ms) == (0, 4, WALL)
    world = world.restarted(after_ms=6 * DAY)
    world.pass_ms(2 * DAY)
    assert owners(world) == set()


def test_a_claim_is_bounded_by_the_clock(world: World) -> None:
    """A driver whose clock is a day ahead does not keep those out that come later."""
    ahead = (WALL + DAY) << 20
    assert world.init_owner(claim=ahead)[-1] == "owner: INVALID_REQUEST"
    assert owners(world) == set(), "a refused claim makes no owner"
    now = WALL << 20
    assert world.init_owner(claim=now)[-1] == "owner: epoch 0 after unit -1"
    assert world.init_owner(claim=ahead)[-1] == "owner: INVALID_REQUEST"
    assert world.init_owner(claim=now + 1)[-1] == "owner: epoch 1 after unit -1"
    world.pass_ms(DAY)
    assert world.init_owner(claim=ahead)[-1] == "owner: epoch 2 after unit -1"
    assert world.init_owner(claim=ahead)[-1] == "owner: epoch 2 after unit -1", "a repeat is answered as before"


def test_new_ids_and_owners_are_refused_where_there_are_as_many_as_may_be(world: World) -> None:
    room = transactional_ids(3)
    world = World(room=room)
    world.init("a", "a")
    world.init_owner()
    world.init("o/a", "o/a", owner=0)
    assert world.init("b", "b")[-1] == "b: POLICY_VIOLATION"
    assert world.init("o/b", "o/b", owner=0)[-1] == "o/b: POLICY_VIOLATION"
    assert world.init_owner("p")[-1] == "owner: POLICY_VIOLATION"
    assert world.init("a", "a")[-1].startswith("a: 100@"), "what is there goes on"
    assert world.init_owner()[-1] == "owner: epoch 1 after unit -1"
    world.pass_ms(8 * DAY)
    assert world.init("b", "b")[-1].startswith("b: "), "what has expired makes room"
    assert "POLICY" not in world.init("c", "c")[-1]
