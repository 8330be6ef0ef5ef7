"""Who leads: dialogues in the order of KIP-966, and properties over any partition and any brokers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition
from headrace_controller.core.election import Brokers, LogEnds, Rules, settle, to_ask, with_cleared_elr, without_log
from headrace_controller.core.leadership import lead_by_broker_with_room

ID = PartitionId(TopicId(b"t" * 16), 0)


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


def alive(*numbers: int, leaving: tuple[int, ...] = ()) -> Brokers:
    return Brokers(frozenset(ids(*numbers)), frozenset(ids(*leaving)))


def part(
    replicas: tuple[int, ...], isr: tuple[int, ...], leader: int, elr: tuple[int, ...] = (), lke: tuple[int, ...] = ()
) -> Partition:
    return Partition(ID, ids(*replicas), ids(*isr), NodeId(leader), 5, 9, elr=ids(*elr), last_known_elr=ids(*lke))


RF3 = part((1, 2, 3), (1, 2, 3), 1)
MIN2 = Rules(min_isr=2)
MIN1 = Rules(min_isr=1)


class TestOneReplica:
    def test_fenced_it_stays_eligible_and_nobody_leads(self) -> None:
        down = settle(part((1,), (1,), 1), alive(), MIN1)
        assert down == part((1,), (), -1, elr=(1,)) or (down.leader, down.isr, down.elr) == (NO_NODE, (), ids(1))
        assert (down.leader_epoch, down.partition_epoch) == (6, 10)

    def test_back_it_leads_again_in_a_new_epoch(self) -> None:
        down = settle(part((1,), (1,), 1), alive(), MIN1)
        up = settle(down, alive(1), MIN1)
        assert (up.leader, up.isr, up.elr) == (1, ids(1), ())
        assert (up.leader_epoch, up.partition_epoch) == (7, 11)

    def test_after_an_unclean_stop_it_leads_as_the_only_last_known_member(self) -> None:
        down = without_log(settle(part((1,), (1,), 1), alive(), MIN1), NodeId(1), MIN1, damaged=False)
        assert (down.isr, down.elr, down.last_known_elr) == ((), (), ids(1))
        assert settle(down, alive(), MIN1) is down
        assert settle(down, alive(1), MIN1) is down, "it is asked first whether it has its log"
        assert to_ask(down, alive(1)) == ids(1)
        assert settle(down, alive(1), MIN1, {NodeId(1): None}) is down
        up = settle(down, alive(1), MIN1, {NodeId(1): (5, 0)})
        assert (up.leader, up.isr, up.last_known_elr, up.recovering) == (1, ids(1), (), False)

    def test_damaged_it_never_leads_again_by_itself(self) -> None:
        down = without_log(settle(part((1,), (1,), 1), alive(), MIN1), NodeId(1), MIN1, damaged=True)
        assert (down.isr, down.elr, down.last_known_elr) == ((), (), ())
        assert settle(down, alive(1), MIN1) is down

    def test_leaving_it_leads_no_more_but_stays_in_sync(self) -> None:
        left = settle(part((1,), (1,), 1), alive(1, leaving=(1,)), MIN1)
        assert (left.leader, left.isr, left.elr) == (NO_NODE, ids(1), ())
        assert settle(left, alive(1), MIN1).leader == 1


class TestThreeReplicas:
    def test_a_valid_leader_stays(self) -> None:
        assert settle(RF3, alive(1, 2, 3), MIN2) is RF3

    def test_the_first_in_sync_in_assignment_order_follows(self) -> None:
        after = settle(part((3, 1, 2), (1, 2, 3), 3), alive(1, 2), MIN2)
        assert (after.leader, after.isr, after.elr) == (1, ids(1, 2), ())
        assert (after.leader_epoch, after.partition_epoch) == (6, 10)

    def test_a_follower_that_dies_costs_no_leader_epoch(self) -> None:
        after = settle(RF3, alive(1, 2), MIN2)
        assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (1, ids(1, 2), 5, 10)

    def test_below_min_isr_those_who_leave_become_eligible(self) -> None:
        one = settle(settle(RF3, alive(1, 2), MIN2), alive(2), MIN2)
        assert (one.leader, one.isr, one.elr) == (2, ids(2), ids(1))
        none = settle(one, alive(), MIN2)
        assert (none.leader, none.isr, none.elr) == (NO_NODE, (), ids(1, 2))

    def test_an_eligible_replica_becomes_the_isr(self) -> None:
        none = part((1, 2, 3), (), -1, elr=(1, 2))
        up = settle(none, alive(2, 3), MIN2)
        assert (up.leader, up.isr, up.elr) == (2, ids(2), ids(1))

    def test_a_replica_that_is_neither_in_sync_nor_eligible_never_leads(self) -> None:
        none = part((1, 2, 3), (), -1, elr=(1, 2))
        assert settle(none, alive(3), MIN2) is none

    def test_uncleanly_stopped_eligible_replicas_wait_for_each_other(self) -> None:
        state = part((1, 2, 3), (), -1, elr=(1, 2))
        state = without_log(without_log(state, NodeId(1), MIN2, damaged=False), NodeId(2), MIN2, damaged=False)
        assert (state.elr, state.last_known_elr) == ((), ids(1, 2))
        assert settle(state, alive(1, 3), MIN2) is state
        assert settle(state, alive(1, 2, 3), MIN2) is state, "their logs were not compared"
        assert to_ask(state, alive(1, 3)) == ()
        assert to_ask(state, alive(1, 2, 3)) == ids(1, 2)
        assert settle(state, alive(1, 2, 3), MIN2, {NodeId(1): (4, 100)}) is state, "one has not answered"
        ends: LogEnds = {NodeId(1): (4, 100), NodeId(2): (5, 90)}
        up = settle(state, alive(1, 2, 3), MIN2, ends)
        assert (up.leader, up.isr, up.last_known_elr, up.recovering) == (2, ids(2), (), False)

    def test_a_damaged_member_is_not_waited_for(self) -> None:
        state = part((1, 2, 3), (), -1, lke=(1, 2))
        state = without_log(state, NodeId(2), MIN2, damaged=True)
        assert state.last_known_elr == ids(1)
        assert settle(state, alive(1), MIN2, {NodeId(1): (5, 7)}).leader == 1

    def test_unclean_election_only_when_allowed_and_marked(self) -> None:
        none = part((1, 2, 3), (), -1)
        assert settle(none, alive(3), MIN2) is none
        up = settle(none, alive(3), Rules(2, unclean=True))
        assert (up.leader, up.isr, up.recovering) == (3, ids(3), True)

    def test_leaving_moves_the_leader_before_it_is_gone(self) -> None:
        after = settle(RF3, alive(1, 2, 3, leaving=(1,)), MIN2)
        assert (after.leader, after.isr) == (2, ids(2, 3))

    def test_a_full_isr_clears_what_was_eligible(self) -> None:
        assert settle(part((1, 2, 3), (1, 2), 1, elr=(3,)), alive(1, 2, 3), MIN2).elr == ()

    def test_min_isr_changes_clear_elr_only_where_the_isr_is_not_empty(self) -> None:
        assert with_cleared_elr(part((1, 2), (1,), 1, elr=(2,))).elr == ()
        empty = part((1, 2), (), -1, elr=(2,))
        assert with_cleared_elr(empty) is empty


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    replicas = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True))
    roles = draw(st.lists(st.sampled_from("iek-"), min_size=len(replicas), max_size=len(replicas)))
    picked = {role: ids(*(r for r, own in zip(replicas, roles, strict=True) if own == role)) for role in "iek"}
    leader = draw(st.sampled_from([*picked["i"], NO_NODE]))
    return Partition(ID, ids(*replicas), picked["i"], NodeId(leader), 3, 4, elr=picked["e"], last_known_elr=picked["k"])


some_brokers = st.builds(
    lambda up, leaving, drained, crowded: Brokers(
        frozenset(ids(*up)),
        frozenset(ids(*up)) & frozenset(ids(*leaving)),
        frozenset(ids(*drained)),
        frozenset(ids(*crowded)),
    ),
    st.sets(st.integers(0, 6)),
    st.sets(st.integers(0, 6)),
    st.sets(st.integers(0, 6), max_size=3),
    st.sets(st.integers(0, 6), max_size=3),
)
some_rules = st.builds(Rules, st.integers(1, 6), st.booleans())


@given(partitions(), some_brokers, some_rules)
def test_what_is_settled_keeps_the_invariants(old: Partition, brokers: Brokers, rules: Rules) -> None:
    new = settle(old, brokers, rules)
    least = min(rules.min_isr, len(new.replicas))
    assert set(new.isr) <= brokers.unfenced, "a fenced broker is in no ISR"
    assert not set(new.isr) & set(new.elr)
    assert len(new.isr) < least or not new.elr, "a full ISR needs no eligible replicas"
    assert new.leader == NO_NODE or (new.leader in new.isr and brokers.may_lead(new.leader))
    assert new.replicas == old.replicas
    if any(brokers.may_lead(r) for r in new.isr):
        assert new.leader != NO_NODE, "who can lead leads"


@given(partitions(), some_brokers, some_rules)
def test_settling_twice_changes_nothing_and_epochs_count_changes(
    old: Partition, brokers: Brokers, rules: Rules
) -> None:
    new = settle(old, brokers, rules)
    assert settle(new, brokers, rules) is new
    if new is old:
        return
    assert new != old
    assert new.partition_epoch == old.partition_epoch + 1
    assert new.leader_epoch == old.leader_epoch + (new.leader != old.leader)


@given(partitions(), some_brokers, some_rules)
def test_without_unclean_elections_only_proven_replicas_lead(old: Partition, brokers: Brokers, rules: Rules) -> None:
    new = settle(old, brokers, replace(rules, unclean=False))
    proven = {*old.isr, *old.elr}
    assert new.leader == NO_NODE or new.leader in proven
    assert not new.recovering


@given(partitions(), some_brokers, some_rules)
def test_nothing_proven_is_forgotten_below_min_isr(old: Partition, brokers: Brokers, rules: Rules) -> None:
    new = settle(old, brokers, replace(rules, unclean=False))
    if len(new.isr) < min(rules.min_isr, len(new.replicas)):
        assert {*old.isr, *old.elr} <= {*new.isr, *new.elr}


@given(partitions(), st.integers(0, 6), some_rules, st.booleans())
def test_a_log_without_proof_is_in_no_set_that_stands_for_proof(
    old: Partition, broker: int, rules: Rules, damaged: bool
) -> None:
    new = without_log(old, NodeId(broker), rules, damaged=damaged)
    assert broker not in {*new.isr, *new.elr}
    assert new.leader != broker
    if damaged:
        assert broker not in new.last_known_elr


@given(partitions(), some_brokers, some_rules)
def test_relief_moves_nothing_but_the_leader_and_to_room_only_and_stays(
    old: Partition, brokers: Brokers, rules: Rules
) -> None:
    calm = settle(old, brokers, rules)
    new = lead_by_broker_with_room(calm, brokers, rules)
    assert lead_by_broker_with_room(new, brokers, rules) is new
    assert settle(new, brokers, rules) is new, "what settles does not take it back"
    if new is not calm:
        assert calm.leader in brokers.crowded
        assert new.leader in set(new.isr) - brokers.crowded - brokers.drained - brokers.leaving
        assert replace(new, leader=calm.leader, leader_epoch=calm.leader_epoch, partition_epoch=9) == replace(
            calm, partition_epoch=9
        )
