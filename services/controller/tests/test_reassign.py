"""Replicas on the move: dialogues from start to finish, and properties over any partition and any target."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.configs import min_isr_in_force
from headrace_common.core.errors import (
    EligibleLeadersNotAvailable,
    HeadraceError,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
)
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition
from headrace_controller.core.election import Brokers, Rules, settle, settle_change
from headrace_controller.core.isr_changes import Proposal, apply_proposal
from headrace_controller.core.reassign import (
    cancel,
    check_target,
    is_under_way,
    original_of,
    start,
    target_of,
    to_delete,
)

ID = PartitionId(TopicId(b"t" * 16), 0)
MIN2 = Rules(min_isr=2)


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


ALL = Brokers(frozenset(ids(*range(9))), epochs={NodeId(n): n for n in range(9)})
RF3 = Partition(ID, ids(1, 2, 3), ids(1, 2, 3), NodeId(1), 5, 9)


def move(partition: Partition, *target: int, brokers: Brokers = ALL) -> Partition:
    return settle_change(partition, start(partition, ids(*target), 2), brokers, MIN2)


def join(partition: Partition, *members: int) -> Partition:
    """The leader says that ``members`` are in sync too; then the controller looks at the partition."""
    isr = dict.fromkeys(partition.isr) | {NodeId(m): m for m in members if m not in partition.isr}
    proposal = Proposal(ID, partition.leader_epoch, partition.partition_epoch, isr)
    return settle(apply_proposal(partition, proposal, partition.leader, ALL, MIN2), ALL, MIN2)


class TestMove:
    def test_new_replicas_copy_while_the_old_ones_serve(self) -> None:
        on = move(RF3, 4, 5, 1)
        assert (on.replicas, on.adding, on.removing) == (ids(4, 5, 1, 2, 3), ids(4, 5), ids(2, 3))
        assert (on.isr, on.leader, on.leader_epoch, on.partition_epoch) == (ids(1, 2, 3), 1, 5, 10)
        assert (target_of(on), original_of(on)) == (ids(4, 5, 1), ids(1, 2, 3))

    def test_it_ends_when_the_whole_target_is_in_sync(self) -> None:
        on = join(move(RF3, 4, 5, 1), 4)
        assert is_under_way(on)
        done = join(on, 5)
        assert (done.replicas, done.isr, done.adding, done.removing) == (ids(4, 5, 1), ids(4, 5, 1), (), ())
        assert done.leader == 1
        assert done.leader_epoch == on.leader_epoch + 1, "who is gone is gone with the epoch"

    def test_a_leader_that_goes_hands_over_in_the_same_step(self) -> None:
        done = join(move(RF3, 4, 5, 6), 4, 5, 6)
        assert (done.leader, done.replicas) == (4, ids(4, 5, 6))

    def test_fewer_replicas_are_there_at_once(self) -> None:
        done = move(RF3, 3)
        assert (done.replicas, done.isr, done.leader, done.adding, done.removing) == (ids(3), ids(3), 3, (), ())
        assert (done.leader_epoch, done.partition_epoch) == (6, 10)

    def test_another_order_needs_no_copy_and_no_epoch_of_a_leader(self) -> None:
        done = move(RF3, 3, 1, 2)
        assert (done.replicas, done.isr, done.leader, done.leader_epoch) == (ids(3, 1, 2), ids(3, 1, 2), 1, 5)

    def test_what_is_so_already_is_not_touched(self) -> None:
        assert start(RF3, ids(1, 2, 3), 2) is RF3
        on = move(RF3, 4, 5, 1)
        assert start(on, ids(4, 5, 1), 2) is on

    def test_a_target_member_that_is_away_is_waited_for(self) -> None:
        away = Brokers(frozenset(ids(1, 2, 4)))
        on = settle(move(RF3, 4, 3, brokers=away), away, MIN2)
        assert (on.removing, is_under_way(on)) == (ids(1, 2), True)

    def test_another_target_drops_what_only_the_first_wanted(self) -> None:
        on = join(move(RF3, 4, 5, 1), 4)
        other = move(on, 1, 2, 6)
        assert (other.replicas, other.adding, other.removing) == (ids(1, 2, 6, 3), ids(6), ids(3))
        assert (other.isr, other.leader_epoch) == (ids(1, 2, 3), on.leader_epoch + 1)


class TestCancel:
    def test_back_to_the_replicas_before(self) -> None:
        on = join(move(RF3, 4, 5, 1), 4)
        back = settle_change(on, cancel(on, 2), ALL, MIN2)
        assert (set(back.replicas), set(back.isr), back.leader) == ({1, 2, 3}, {1, 2, 3}, 1)
        assert (back.adding, back.removing) == ((), ())

    def test_nothing_to_cancel(self) -> None:
        with pytest.raises(NoReassignmentInProgress):
            cancel(RF3, 2)

    def test_what_alone_holds_all_records_is_kept(self) -> None:
        on = replace(move(RF3, 4, 5, 1), isr=ids(4), leader=NodeId(4))
        with pytest.raises(EligibleLeadersNotAvailable, match="wait"):
            cancel(on, 2)
        down = replace(on, isr=(), leader=NO_NODE, elr=ids(4))
        with pytest.raises(EligibleLeadersNotAvailable, match="wait"):
            cancel(down, 2)

    def test_a_copy_that_min_isr_counts_on_is_not_deleted_either(self) -> None:
        """Two hold all records, one of them came with the change: dropping it would leave one disk to trust."""
        on = replace(move(RF3, 4, 5, 1), isr=ids(4, 1), leader=NodeId(4))
        with pytest.raises(EligibleLeadersNotAvailable, match="wait"):
            cancel(on, 2)
        with pytest.raises(EligibleLeadersNotAvailable, match="wait"):
            start(on, ids(5, 6, 1), 2)
        assert 4 not in cancel(replace(on, isr=ids(4, 1, 2)), 2).replicas
        assert 4 not in cancel(replace(on, elr=ids(2)), 2).replicas
        assert 4 not in cancel(on, 1).replicas


@pytest.mark.parametrize(
    ("target", "text"),
    [((), "1 to 32"), (tuple(range(33)), "1 to 32"), ((1, 1), "twice"), ((1, 99), "not registered"), ((8,), "alive")],
)
def test_targets_that_cannot_be(target: tuple[int, ...], text: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=text):
        check_target(ids(*target), ids(*range(9)), ids(1, 2))


def test_logs_are_deleted_where_the_replica_went_away_and_not_where_it_came_back() -> None:
    on = move(RF3, 4, 5, 1)
    assert to_delete(RF3, on, ()) == ()
    done = join(on, 4, 5)
    assert to_delete(on, done, ()) == (2, 3)
    again = move(done, 4, 5, 2)
    assert to_delete(done, again, ids(2, 3)) == (3,)


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    replicas = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    roles = draw(st.lists(st.sampled_from("iek-"), min_size=len(replicas), max_size=len(replicas)))
    picked = {role: ids(*(r for r, own in zip(replicas, roles, strict=True) if own == role)) for role in "iek"}
    leader = draw(st.sampled_from([*picked["i"], NO_NODE]))
    return Partition(ID, ids(*replicas), picked["i"], NodeId(leader), 3, 4, elr=picked["e"], last_known_elr=picked["k"])


targets = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(lambda t: ids(*t))
some_brokers = st.builds(
    lambda up, drained: Brokers(frozenset(ids(*up)), drained=frozenset(ids(*drained))),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 5), max_size=2),
)
commands = st.lists(st.one_of(targets, st.none(), st.integers(0, 5), some_brokers), max_size=8)


def rules(partition: Partition) -> Rules:
    moved = {"adding": len(partition.adding), "removing": len(partition.removing)}
    return Rules(min_isr_in_force(2, len(partition.replicas), **moved))


@given(partitions(), commands, some_brokers)
def test_any_course_of_commands_keeps_the_invariants(old: Partition, course: list[object], up: Brokers) -> None:
    """Targets, cancellations (None), members that catch up (a number) and brokers that come and go."""
    brokers = up
    for command in course:
        old = settle(old, brokers, rules(old))
        match command:
            case Brokers():
                brokers = command
                new = settle(old, brokers, rules(old))
            case int() if old.leader != NO_NODE and command in old.replicas and brokers.may_lead(NodeId(command)):
                with_it = tuple(r for r in old.replicas if r in old.isr or r == command)
                joined = replace(old, isr=with_it, elr=tuple(e for e in old.elr if e != command))
                new = settle_change(old, joined, brokers, rules(old))
            case int():
                continue
            case _:
                try:
                    least = rules(old).min_isr
                    wanted = cancel(old, least) if command is None else start(old, command, least)  # drawn
                except HeadraceError:
                    continue
                new = old if wanted is old else settle_change(old, wanted, brokers, rules(wanted))
        least = rules(new).min_isr
        assert set(new.isr) <= brokers.unfenced & set(new.replicas)
        assert not set(new.isr) & set(new.elr)
        assert len(new.isr) < least or not new.elr or is_under_way(old) != is_under_way(new)
        assert new.leader == NO_NODE or new.leader in new.isr
        assert new.partition_epoch >= old.partition_epoch
        assert new.leader_epoch >= old.leader_epoch
        if set(old.replicas) - set(new.replicas) or new.leader != old.leader:
            assert new.leader_epoch > old.leader_epoch
        had = {*old.isr, *old.elr, *old.last_known_elr}
        assert not had or {*new.isr, *new.elr, *new.last_known_elr}, "somebody still holds all records"
        assert set(new.adding) <= set(target_of(new))
        old = new


@given(partitions(), targets)
def test_cancelling_is_the_way_back(old: Partition, target: tuple[NodeId, ...]) -> None:
    old = settle(old, ALL, rules(old))
    on = start(old, target, rules(old).min_isr)
    if not is_under_way(on):
        return
    back = cancel(on, rules(on).min_isr)
    assert set(back.replicas) == set(old.replicas)
    assert set(back.isr) == set(old.isr)
    assert (set(back.elr), back.leader) == (set(old.elr), old.leader)
