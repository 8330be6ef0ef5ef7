"""
Elections by command, and when leaders go back to their preferred replicas. Called by the active controller.

Each function gives the partition as the command wants it, or says why not. What happens by itself is in ``election``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from headrace_common.core.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
)
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_common.core.image import Partition
from headrace_controller.core.election import Brokers, LogEnds, Rules, give_up_others, longest, raise_epochs


class Election(Enum):
    """What an operator may ask for."""

    PREFERRED = "preferred"
    """The first replica leads, where it is in sync."""
    UNCLEAN = "unclean"
    """Where nobody leads, any living replica does; committed records may be lost."""
    WITHOUT_MISSING = "without missing"
    """Where nobody leads, the best of the known members that live; those away are given up."""


def is_preferred(partition: Partition) -> bool:
    """Whether it is led by the first of its replicas."""
    return partition.leader == partition.replicas[0]


def elect_preferred(partition: Partition, brokers: Brokers, rules: Rules) -> Partition:
    """
    Led by its first replica.

    Raises:
        ElectionNotNeeded: it is already.
        PreferredLeaderNotAvailable: that one is not in sync, or may not lead now.
    """
    first = partition.replicas[0]
    if partition.leader == first:
        raise ElectionNotNeeded(f"broker {first} leads {partition.id} already")
    if not _may_take_over(partition, brokers):
        raise PreferredLeaderNotAvailable(
            f"broker {first} cannot lead {partition.id} now: it is not in sync, or away, leaving, drained or without"
            " room on its disk"
        )
    return raise_epochs(partition, replace(partition, leader=first), rules.epoch_floor)


def lead_by_broker_with_room(partition: Partition, brokers: Brokers, rules: Rules) -> Partition:
    """
    Led by a replica in sync that has room on its disk, where the leader has none; the same object where nobody has.
    """
    if partition.leader not in brokers.crowded:
        return partition
    heir = brokers.first_of(r for r in partition.replicas if r in partition.isr)
    if heir in {NO_NODE, partition.leader} or heir in brokers.crowded or heir in brokers.drained:
        return partition
    return raise_epochs(partition, replace(partition, leader=heir), rules.epoch_floor)


def find_imbalanced(partitions: Iterable[Partition], brokers: Brokers, percentage_max: int) -> list[Partition]:
    """
    Partitions to give back to their preferred leaders: those of brokers that miss more than ``percentage_max`` of
    the leaderships they should have, where they can take them now.
    """
    owned: Counter[NodeId] = Counter()
    elsewhere: dict[NodeId, list[Partition]] = {}
    for partition in partitions:
        first = partition.replicas[0]
        owned[first] += 1
        if partition.leader not in {first, NO_NODE}:
            elsewhere.setdefault(first, []).append(partition)
    return [
        p
        for first, missed in elsewhere.items()
        if 100 * len(missed) > percentage_max * owned[first]
        for p in missed
        if _may_take_over(p, brokers)
    ]


def candidates(partition: Partition, election: Election, brokers: Brokers) -> tuple[NodeId, ...]:
    """
    Whose logs an operator's election of a leaderless partition compares.

    Raises:
        ElectionNotNeeded: somebody leads.
        EligibleLeadersNotAvailable: nobody lives who could.
    """
    if not partition.offline:
        raise ElectionNotNeeded(f"broker {partition.leader} leads {partition.id}; nothing is to be decided")
    pool = partition.replicas
    if election is Election.WITHOUT_MISSING:
        pool = tuple(r for r in pool if r in {*partition.isr, *partition.elr, *partition.last_known_elr})
    living = tuple(r for r in pool if brokers.may_lead(r))
    if not living:
        raise EligibleLeadersNotAvailable(
            f"none of the brokers {list(pool)} that may lead {partition.id} lives; start one of them"
        )
    return living


def elect_longest(
    partition: Partition, election: Election, brokers: Brokers, rules: Rules, log_ends: LogEnds
) -> Partition:
    """
    A leaderless partition led by the longest log there is, for better or worse: what others hold is given up.

    An unclean election takes even a replica without a log, when no living one has any.

    Raises:
        ElectionNotNeeded, EligibleLeadersNotAvailable: as ``candidates``; or no log is whole.
    """
    living = candidates(partition, election, brokers)
    chosen = longest(partition, living, log_ends)
    if chosen == NO_NODE and election is Election.UNCLEAN:
        chosen = brokers.first_of(living)
    if chosen == NO_NODE:
        raise EligibleLeadersNotAvailable(
            f"brokers {list(living)} have no whole log of {partition.id}; bring the others back, or elect UNCLEAN"
        )
    return raise_epochs(partition, give_up_others(partition, chosen, rules), rules.epoch_floor)


def _may_take_over(partition: Partition, brokers: Brokers) -> bool:
    first = partition.replicas[0]
    kept_off = first in brokers.drained or first in brokers.crowded
    return first in partition.isr and brokers.may_lead(first) and not kept_off
