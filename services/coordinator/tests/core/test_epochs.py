"""Epochs of groups never fall: not where a group was deleted, expired, or is an older copy of itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_coordinator.core.events import GroupDeletionAsked
from headrace_coordinator.core.floors import epoch_by_clock
from headrace_coordinator.core.records import group_key, read_group
from headrace_coordinator.core.values import Moment

from .world import TODAY, G, World

DAY = 86_400_000
HOUR = 3_600_000


@pytest.fixture
def w() -> World:
    world = World()
    world.wall = TODAY
    return world


def first_epoch(w: World) -> int:
    """A member joins the empty group, and leaves it."""
    epoch = w.enter(1, "a").member_epoch
    w.leave(1, "a")
    return epoch


def change(w: World, times: int) -> int:
    """The group changes so often at once; its epoch is far ahead of the clock then."""
    epoch = 0
    for _ in range(times):
        epoch = first_epoch(w)
    return epoch


def delete(w: World) -> None:
    assert w.ask(GroupDeletionAsked(G, w.ref(), w.at)) is None


def kept(w: World) -> object:
    """What the log has of the group."""
    value = w.log[group_key(G)]
    return None if value is None else read_group(value)


def test_the_first_epoch_of_a_group_is_the_clocks(w: World) -> None:
    assert first_epoch(w) == epoch_by_clock(w.at) > 200_000_000


def test_epochs_go_on_one_by_one_and_never_stay_behind_the_clock(w: World) -> None:
    first = first_epoch(w)
    assert first_epoch(w) == first + 2  # who left made one too
    w.sleep(60_000)
    assert first_epoch(w) == epoch_by_clock(w.at) == first + 60


@pytest.mark.parametrize("moved", [False, True])
def test_a_group_that_was_ahead_of_the_clock_and_was_deleted_goes_on_where_it_was(w: World, moved: bool) -> None:
    last = change(w, 50)
    delete(w)
    assert not w.shard.list_groups()
    if moved:
        w.move()
        assert not w.shard.list_groups()
    w.sleep(5_000)
    assert epoch_by_clock(w.at) < last < first_epoch(w)
    assert [group.group_id for group in w.shard.list_groups()] == [G]


def test_the_epoch_of_a_deleted_group_goes_when_all_clocks_have_passed_it(w: World) -> None:
    last = change(w, 50)
    delete(w)
    w.sleep(HOUR / 2)
    assert kept(w) is not None
    w.sleep(HOUR)
    assert kept(w) is None
    assert last < first_epoch(w)


def test_a_group_that_all_clocks_have_passed_leaves_nothing(w: World) -> None:
    first_epoch(w)
    w.commit(7)  # else it expires meanwhile
    w.sleep(1.1 * HOUR)
    assert kept(w) is not None
    delete(w)
    assert kept(w) is None


def test_a_group_that_is_deleted_in_the_second_of_its_epoch_does_not_begin_with_the_same(w: World) -> None:
    last = first_epoch(w) + 1  # who left made one
    w.sleep(1_000)
    assert epoch_by_clock(w.at) == last
    delete(w)
    assert last < first_epoch(w)


@pytest.mark.parametrize("moved", [False, True])
def test_a_clock_that_is_behind_the_one_that_a_deleted_group_went_by(w: World, moved: bool) -> None:
    last = first_epoch(w) + 1
    w.sleep(10_000)
    delete(w)
    w.wall -= int(0.9 * HOUR)
    if moved:
        w.move()
    assert last < first_epoch(w)


def test_eight_days_away(w: World) -> None:
    last = change(w, 50)
    w.sleep(8 * DAY)
    assert not w.shard.list_groups()
    assert last < first_epoch(w)


def test_an_older_copy_of_the_log_is_taken_for_the_whole_one(w: World) -> None:
    """As after a restore from a backup: what the group was meanwhile is not known any more."""
    first_epoch(w)
    backup = dict(w.log)
    w.sleep(DAY)
    last = first_epoch(w)
    w.log = backup
    w.sleep(60_000)
    w.move()
    assert last < first_epoch(w)


def test_a_group_of_positions_only_keeps_the_epoch_of_the_one_that_was_deleted(w: World) -> None:
    last = change(w, 50)
    delete(w)
    w.commit(7)
    w.move()
    assert w.committed() == 7
    assert last < first_epoch(w)


def test_a_clock_that_goes_back_does_not_take_epochs_with_it(w: World) -> None:
    last = first_epoch(w)
    w.wall -= DAY
    assert first_epoch(w) == last + 2
    w.move()
    assert first_epoch(w) == last + 4


def test_a_deleted_group_begins_above_its_epoch_with_the_other_protocol_too(w: World) -> None:
    last = change(w, 50)
    delete(w)
    w.join(5)
    w.sleep(w.settings.group_initial_rebalance_delay_ms)
    assert last < w.joined(5).generation


@given(st.integers(-(2**62), 2**62))
def test_no_clock_leaves_too_few_epochs(wall_ms: int) -> None:
    assert 0 <= epoch_by_clock(Moment(0, wall_ms)) < 2**31 - 10_000_000
