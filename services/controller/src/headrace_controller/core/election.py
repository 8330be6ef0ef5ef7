"""
Who leads a partition, and which replicas may (KIP-966). Called by the active controller whenever nodes change.

``settle`` looks at one partition and at the brokers as they are and gives the partition as it should be: level
triggered, so that it can be repeated at any time, by any controller, after any crash. What is known to hold all
committed records is the ISR; when it falls below min ISR, those who leave it become eligible leader replicas (ELR);
those who leave the ELR because they stopped uncleanly stay on as last known ELR, and lead again only when all of
them are back and their logs were compared (balanced recovery). A drained broker leads only where nobody else can, and
one without room on its disk where nobody has any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from headrace_common.core.ids import NO_NODE, NodeId
from headrace_common.core.image import Partition
from headrace_controller.core import reassign

LogEnd = tuple[int, int]
"""Last leader epoch and log end offset, both verified and on disk: what logs are compared by."""

LogEnds = Mapping[NodeId, LogEnd | None]
"""What replicas answered about their logs; None: it holds none that is whole. Who is not in it has not answered."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers as they are."""

    unfenced: frozenset[NodeId]
    leaving: frozenset[NodeId] = frozenset()
    """In controlled shutdown; unfenced too, until they are gone."""
    drained: frozenset[NodeId] = frozenset()
    """Kept from leading by an operator, while anybody else can."""
    crowded: frozenset[NodeId] = frozenset()
    """Their disks are below their reserve, so they refuse appends: they lead where nobody with room can."""
    epochs: Mapping[NodeId, int] = field(default_factory=lambda: MappingProxyType({}))
    """Epochs of the present registrations, of fenced brokers too."""

    def may_lead(self, broker: NodeId) -> bool:
        """Alive, and here to stay."""
        return broker in self.unfenced and broker not in self.leaving

    def first_of(self, members: Iterable[NodeId]) -> NodeId:
        """
        Who leads of ``members`` that may: the first with room that is not drained, else the first with room, else the
        first that is not drained, else the first; ``NO_NODE``: none may.
        """
        able = [m for m in members if self.may_lead(m)]
        return min(able, key=lambda m: (m in self.crowded, m in self.drained), default=NO_NODE)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a topic's settings say about elections."""

    min_isr: int
    unclean: bool = False
    """Whether a replica that may have lost committed records may lead."""
    epoch_floor: int = -1
    """Highest leader epoch that a broker has in its logs and the metadata forgot, after a restore; the next leader
    epochs are above it."""


def settle(partition: Partition, brokers: Brokers, rules: Rules, log_ends: LogEnds | None = None) -> Partition:
    """
    The partition as it should be; the same object when nothing is to change.

    Args:
        log_ends: what last known ELR members answered, where they were asked (``to_ask``).
    """
    if _stands(partition, brokers, rules):
        return partition
    state = reassign.finish(without_departed(partition, brokers, rules))
    leader = _leader_in_sync(state, brokers)
    if leader == NO_NODE and not state.isr:
        state, leader = _from_outside(state, brokers, rules, log_ends)
    return raise_epochs(partition, replace(state, leader=leader), rules.epoch_floor)


def settle_change(old: Partition, wanted: Partition, brokers: Brokers, rules: Rules) -> Partition:
    """``wanted``, a change of ``old`` without new epochs, settled and stamped as one step from ``old``."""
    new = settle(wanted, brokers, rules)
    return raise_epochs(
        old, replace(new, leader_epoch=old.leader_epoch, partition_epoch=old.partition_epoch), rules.epoch_floor
    )


def to_ask(partition: Partition, brokers: Brokers) -> tuple[NodeId, ...]:
    """
    Whose logs have to be compared before anybody leads; empty: nobody's, or not all are back yet.

    A single member is asked as well: a broker that came back on a wiped disk has no log to lead with.
    """
    known = partition.last_known_elr
    if partition.isr or partition.elr or not all(brokers.may_lead(r) for r in known):
        return ()
    return known


def without_departed(partition: Partition, brokers: Brokers, rules: Rules) -> Partition:
    """Fenced brokers leave the ISR, and so do leaving ones while another member stays; epochs are not touched."""
    alive = tuple(r for r in partition.isr if r in brokers.unfenced)
    staying = tuple(r for r in alive if r not in brokers.leaving)
    isr = staying or alive
    return with_isr(partition, isr, partition.elr + tuple(r for r in partition.isr if r not in isr), rules)


def with_isr(partition: Partition, isr: Iterable[NodeId], elr: Iterable[NodeId], rules: Rules) -> Partition:
    """New members of both sets, in assignment order; an ISR of min ISR members clears the ELRs."""
    members = _order_members(partition, isr)
    if len(members) >= _min_isr(partition, rules):
        return replace(partition, isr=members, elr=(), last_known_elr=())
    return replace(partition, isr=members, elr=tuple(r for r in _order_members(partition, elr) if r not in members))


def without_log(partition: Partition, broker: NodeId, rules: Rules, *, damaged: bool) -> Partition:
    """
    The partition after ``broker`` came back without proof that its log holds all that was committed.

    Stopped uncleanly: it leaves ISR and ELR and may stay as last known ELR. Damaged: it leaves that as well.
    """
    held = broker in partition.isr or broker in partition.elr or broker in partition.last_known_elr
    if not held:
        return partition
    isr = tuple(r for r in partition.isr if r != broker)
    elr = tuple(r for r in partition.elr if r != broker)
    state = with_isr(partition, isr, elr, rules)
    if len(state.isr) < _min_isr(partition, rules):
        known = {*state.last_known_elr, broker} - ({broker} if damaged else set())
        state = replace(state, last_known_elr=_order_members(partition, known))
    leader = NO_NODE if partition.leader == broker else partition.leader
    return raise_epochs(partition, replace(state, leader=leader), rules.epoch_floor)


def apply_registration(
    partition: Partition, broker: NodeId, brokers: Brokers, rules: Rules, *, clean: bool, damaged: bool
) -> Partition:
    """
    The partition before ``broker``, which was registered before, is registered anew and fenced.

    Args:
        brokers: as they are; ``broker`` counts as fenced, whatever they say.
        clean: it stopped cleanly, or is the same process: its log holds what it held.
        damaged: its log lost acknowledged records, or its disk is a new one.
    """
    others = replace(brokers, unfenced=brokers.unfenced - {broker}, leaving=brokers.leaving - {broker})
    new = settle(partition, others, rules)
    if damaged or not clean:
        new = without_log(new, broker, rules, damaged=damaged)
    return partition if new == partition else new


def with_cleared_elr(partition: Partition) -> Partition:
    """Min ISR was changed: the ELR is no longer what it says, except where it is all there is."""
    if not partition.isr:
        return partition
    return raise_epochs(partition, replace(partition, elr=(), last_known_elr=()))


def raise_epochs(old: Partition, new: Partition, epoch_floor: int = -1) -> Partition:
    """
    ``new`` with its epochs above ``old``'s where it differs.

    The leader epoch grows with the leader, above ``epoch_floor`` too, and when a replica is taken away (see
    ``reassign``).
    """
    if new == old:
        return old
    same = new.leader == old.leader and not reassign.find_dropped(old, new)
    epoch = old.leader_epoch if same else max(old.leader_epoch, epoch_floor) + 1
    result = replace(new, leader_epoch=epoch, partition_epoch=old.partition_epoch + 1)
    check(result)
    return result


def check(partition: Partition) -> None:
    """The invariants of one partition, whatever happens."""
    replicas = set(partition.replicas)
    assert len(replicas) == len(partition.replicas) > 0, "each replica once, and at least one"
    assert {*partition.isr, *partition.elr, *partition.last_known_elr} <= replicas, "only replicas are in sync"
    assert {*partition.adding, *partition.removing} <= replicas, "who comes or goes is a replica meanwhile"
    assert not set(partition.adding) & set(partition.removing), "nobody comes and goes"
    assert not set(partition.isr) & set(partition.elr), "in sync or eligible, not both"
    assert partition.leader == NO_NODE or partition.leader in partition.isr, "a leader is in sync"


def _stands(partition: Partition, brokers: Brokers, rules: Rules) -> bool:
    if _leader_in_sync(partition, brokers) != partition.leader or partition.leader == NO_NODE:
        return False
    if any(not brokers.may_lead(r) for r in partition.isr) or reassign.can_finish(partition):
        return False
    full = len(partition.isr) >= _min_isr(partition, rules)
    return not (full and (partition.elr or partition.last_known_elr))


def _leader_in_sync(partition: Partition, brokers: Brokers) -> NodeId:
    """Who of the ISR leads: who does now, while it may and nobody drained it; else the first in assignment order."""
    now = partition.leader
    stays = now in partition.isr and brokers.may_lead(now)
    if stays and now not in brokers.drained:
        return now
    best = brokers.first_of(r for r in partition.replicas if r in partition.isr)
    return now if stays and (best in brokers.drained or best in brokers.crowded) else best


def _from_outside(
    state: Partition, brokers: Brokers, rules: Rules, log_ends: LogEnds | None
) -> tuple[Partition, NodeId]:
    eligible = brokers.first_of(r for r in state.replicas if r in state.elr)
    if eligible != NO_NODE:
        return with_isr(state, (eligible,), state.elr, rules), eligible
    if not state.elr and (known := to_ask(state, brokers)):
        if log_ends is None:
            return state, NO_NODE
        best = NO_NODE if any(r not in log_ends for r in known) else longest(state, known, log_ends)
        if best != NO_NODE:
            return replace(with_isr(state, (best,), (), rules), last_known_elr=()), best
    if rules.unclean:
        living = [r for r in state.replicas if brokers.may_lead(r)]
        hoped = [r for r in living if r in state.last_known_elr]
        anyone = longest(state, living, log_ends or {}) if log_ends else NO_NODE
        chosen = anyone if anyone != NO_NODE else brokers.first_of(hoped or living)
        if chosen != NO_NODE:
            return give_up_others(state, chosen, rules), chosen
    return state, NO_NODE


def give_up_others(partition: Partition, leader: NodeId, rules: Rules) -> Partition:
    """``leader`` alone is the ISR and whatever others may hold beyond it is lost; epochs are not touched."""
    emptied = replace(partition, isr=(), elr=(), last_known_elr=(), recovering=True)
    return replace(with_isr(emptied, (leader,), (), rules), leader=leader)


def longest(partition: Partition, members: Iterable[NodeId], log_ends: LogEnds) -> NodeId:
    """Whose log is the longest of those that have one: by epoch, then end, then order; ``NO_NODE``: nobody's."""
    ends = {r: end for r in members if (end := log_ends.get(r)) is not None}
    return max(ends, key=lambda r: (ends[r], -partition.replicas.index(r)), default=NO_NODE)


def _min_isr(partition: Partition, rules: Rules) -> int:
    return min(rules.min_isr, len(partition.replicas))


def _order_members(partition: Partition, members: Iterable[NodeId]) -> tuple[NodeId, ...]:
    wanted = frozenset(members)
    return tuple(r for r in partition.replicas if r in wanted)
