"""What leaders may propose: dialogues in the order of the checks, and properties over any proposal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import (
    FencedLeaderEpoch,
    HeadraceError,
    IneligibleReplica,
    InvalidUpdateVersion,
    NotController,
    NotLeader,
    Rejected,
)
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition
from headrace_controller.core.election import Brokers, Rules
from headrace_controller.core.isr_changes import Proposal, apply_proposal

ID = PartitionId(TopicId(b"t" * 16), 0)
MIN2 = Rules(min_isr=2)


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


def up(*numbers: int, leaving: tuple[int, ...] = ()) -> Brokers:
    """Live brokers; the epoch of broker n is 100 + n."""
    epochs = {NodeId(n): 100 + n for n in range(10)}
    return Brokers(frozenset(ids(*numbers)), frozenset(ids(*leaving)), epochs=epochs)


def part(isr: tuple[int, ...], leader: int = 1, elr: tuple[int, ...] = ()) -> Partition:
    return Partition(ID, ids(1, 2, 3), ids(*isr), NodeId(leader), 5, 9, elr=ids(*elr))


def asks(*members: int, leader_epoch: int = 5, partition_epoch: int = 9, **epochs: int | None) -> Proposal:
    """A proposal; ``e3=7`` says that broker 3 fetched with epoch 7."""
    isr = {NodeId(m): epochs.get(f"e{m}") for m in members}
    return Proposal(ID, leader_epoch, partition_epoch, isr)


ALL = up(1, 2, 3)
LEADER = NodeId(1)


class TestTaken:
    def test_a_member_joins_and_keeps_assignment_order(self) -> None:
        new = apply_proposal(part((1, 3)), asks(3, 1, 2, e2=102), LEADER, ALL, MIN2)
        assert (new.isr, new.leader, new.leader_epoch, new.partition_epoch) == (ids(1, 2, 3), 1, 5, 10)

    def test_a_member_leaves(self) -> None:
        new = apply_proposal(part((1, 2, 3)), asks(1, 2), LEADER, ALL, MIN2)
        assert (new.isr, new.elr) == (ids(1, 2), ())

    def test_below_min_isr_who_leaves_becomes_eligible(self) -> None:
        new = apply_proposal(part((1, 2, 3)), asks(1), LEADER, ALL, MIN2)
        assert (new.isr, new.elr) == (ids(1), ids(2, 3))

    def test_back_at_min_isr_nobody_needs_to_be_eligible(self) -> None:
        new = apply_proposal(part((1,), elr=(2, 3)), asks(1, 3, e3=103), LEADER, ALL, MIN2)
        assert (new.isr, new.elr) == (ids(1, 3), ())

    def test_below_min_isr_who_joins_is_no_longer_only_eligible(self) -> None:
        new = apply_proposal(part((1,), elr=(2, 3)), asks(1, 2, e2=102), LEADER, ALL, Rules(min_isr=3))
        assert (new.isr, new.elr) == (ids(1, 2), ids(3))

    @pytest.mark.parametrize("known", [8, 9])
    def test_what_is_so_already_is_done(self, known: int) -> None:
        """The answer to the first proposal was lost."""
        old = part((1, 2, 3))
        assert apply_proposal(old, asks(1, 2, 3, e3=103, partition_epoch=known), LEADER, ALL, MIN2) is old

    @pytest.mark.parametrize("members", [(1, 2, 3), (1, 2), (1,)])
    def test_all_replicas_in_sync_end_recovering(self, members: tuple[int, ...]) -> None:
        old = replace(part((1, 3)), recovering=True)
        new = apply_proposal(old, asks(*members, e2=102), LEADER, ALL, MIN2)
        assert (new.isr, new.recovering, new.partition_epoch) == (ids(*members), len(members) < 3, 10)

    def test_who_has_nobody_to_wait_for_says_so_and_it_ends_recovering(self) -> None:
        old = replace(part((1, 2, 3)), recovering=True)
        new = apply_proposal(old, asks(1, 2, 3), LEADER, ALL, MIN2)
        assert (new.isr, new.recovering, new.partition_epoch) == (ids(1, 2, 3), False, 10)

    def test_a_recovering_partition_that_waits_for_one_more_stays_as_it_is(self) -> None:
        old = replace(part((1, 2)), recovering=True)
        assert apply_proposal(old, asks(1, 2, partition_epoch=8), LEADER, ALL, MIN2) is old


class TestResigning:
    def resigns(self, old: Partition, brokers: Brokers = ALL, **epochs: int) -> Partition:
        proposal = replace(asks(*old.isr, **epochs), resign=True)
        return apply_proposal(old, proposal, LEADER, brokers, MIN2)

    def test_the_next_in_sync_leads_and_the_isr_stays(self) -> None:
        new = self.resigns(part((1, 3)))
        assert (new.leader, new.isr, new.elr, new.leader_epoch, new.partition_epoch) == (3, ids(1, 3), (), 6, 10)

    def test_a_drained_broker_leads_only_if_nobody_else_can(self) -> None:
        assert self.resigns(part((1, 2, 3)), replace(ALL, drained=frozenset(ids(2)))).leader == 3
        assert self.resigns(part((1, 2)), replace(ALL, drained=frozenset(ids(2)))).leader == 2

    @pytest.mark.parametrize(("isr", "brokers"), [((1,), ALL), ((1, 2), up(1, 3)), ((1, 2), up(1, 2, leaving=(2,)))])
    def test_without_an_heir_the_leader_stays(self, isr: tuple[int, ...], brokers: Brokers) -> None:
        with pytest.raises(IneligibleReplica, match="no other replica"):
            self.resigns(part(isr), brokers)

    def test_it_is_for_the_leader_that_is_and_for_what_it_knows(self) -> None:
        with pytest.raises(FencedLeaderEpoch):
            self.resigns(part((1, 2)), leader_epoch=4)
        with pytest.raises(InvalidUpdateVersion):
            self.resigns(part((1, 2)), partition_epoch=8)
        with pytest.raises(NotLeader):
            self.resigns(part((1, 2), leader=2))

    def test_recovering_goes_on(self) -> None:
        assert self.resigns(replace(part((1, 2)), recovering=True)).recovering


class TestRefused:
    @pytest.mark.parametrize(
        ("proposal", "sender", "error"),
        [
            (asks(1, 2, leader_epoch=6), 1, NotController),
            (asks(1, 2, partition_epoch=10), 1, NotController),
            (asks(1, 2, leader_epoch=4), 1, FencedLeaderEpoch),
            (asks(2, 3), 2, NotLeader),
            (asks(1, 2, partition_epoch=8), 1, InvalidUpdateVersion),
            (asks(1, 2, 7), 1, Rejected),
            (asks(2, 3), 1, Rejected),
            (asks(), 1, Rejected),
        ],
    )
    def test_by_epochs_and_members(self, proposal: Proposal, sender: int, error: type[HeadraceError]) -> None:
        with pytest.raises(error):
            apply_proposal(part((1, 2, 3)), proposal, NodeId(sender), ALL, MIN2)

    @pytest.mark.parametrize(
        ("brokers", "epoch", "error"),
        [
            (up(1, 2), 103, IneligibleReplica),
            (up(1, 2, 3, leaving=(3,)), 103, IneligibleReplica),
            (ALL, 99, IneligibleReplica),
            (ALL, 104, IneligibleReplica),
            (ALL, None, Rejected),
        ],
    )
    def test_a_new_member_is_alive_stays_and_is_the_one_that_fetched(
        self, brokers: Brokers, epoch: int | None, error: type[HeadraceError]
    ) -> None:
        with pytest.raises(error):
            apply_proposal(part((1, 2)), asks(1, 2, 3, e3=epoch), LEADER, brokers, MIN2)

    def test_an_old_member_that_died_meanwhile_is_not_confirmed(self) -> None:
        with pytest.raises(IneligibleReplica):
            apply_proposal(part((1, 2, 3)), asks(1, 3), LEADER, up(1, 2), MIN2)


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    replicas = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True))
    roles = draw(st.lists(st.sampled_from("iiek-"), min_size=len(replicas), max_size=len(replicas)))
    picked = {role: ids(*(r for r, own in zip(replicas, roles, strict=True) if own == role)) for role in "iek"}
    leader = draw(st.sampled_from([*picked["i"], NO_NODE]))
    recovering = draw(st.booleans())
    return Partition(
        ID, ids(*replicas), picked["i"], NodeId(leader), 3, 4, picked["e"], picked["k"], recovering=recovering
    )


proposals = st.builds(
    lambda members, leader_epoch, epoch: Proposal(
        ID, leader_epoch, epoch, {NodeId(m): None if e == 0 else e + m for m, e in members.items()}
    ),
    st.dictionaries(st.integers(0, 5), st.sampled_from([0, 99, 100, 100, 100]), max_size=5),
    st.integers(2, 4),
    st.integers(3, 5),
)
some_brokers = st.builds(
    lambda alive, leaving: up(*alive, leaving=tuple(alive & leaving)),
    st.sets(st.integers(0, 5), min_size=2),
    st.sets(st.integers(0, 5), max_size=2),
)
some_rules = st.builds(Rules, st.integers(1, 4))


@given(partitions(), proposals, st.integers(0, 5), some_brokers, some_rules)
def test_whatever_is_taken_keeps_the_invariants(
    old: Partition, proposal: Proposal, sender: int, brokers: Brokers, rules: Rules
) -> None:
    try:
        new = apply_proposal(old, proposal, NodeId(sender), brokers, rules)
    except HeadraceError:
        return
    assert set(new.isr) == set(proposal.isr)
    assert new.leader == old.leader == sender
    assert (new.replicas, new.leader_epoch) == (old.replicas, old.leader_epoch)
    if new is old:
        return
    assert new.partition_epoch == old.partition_epoch + 1
    assert set(new.isr) <= brokers.unfenced - brokers.leaving
    assert all(proposal.isr[m] == brokers.epochs[m] for m in set(new.isr) - set(old.isr))
    assert not set(new.isr) & set(new.elr)
    full = len(new.isr) >= min(rules.min_isr, len(new.replicas))
    assert not (full and (new.elr or new.last_known_elr))
    assert full or {*old.isr, *old.elr} <= {*new.isr, *new.elr}, "nothing proven is forgotten below min ISR"
    again = apply_proposal(new, proposal, NodeId(sender), brokers, rules)
    assert again is new, "asking again is answered with what is"


@given(partitions(), some_brokers, some_rules)
def test_a_leader_that_proposes_what_is_gets_it(old: Partition, brokers: Brokers, rules: Rules) -> None:
    if old.leader == NO_NODE:
        return
    alive = replace(brokers, unfenced=brokers.unfenced | set(old.isr), leaving=frozenset())
    proposal = Proposal(ID, old.leader_epoch, old.partition_epoch, dict.fromkeys(old.isr))
    new = apply_proposal(old, proposal, old.leader, alive, rules)
    assert set(new.isr) == set(old.isr)
    assert new.recovering == (old.recovering and set(new.isr) < set(new.replicas))
