"""
Gives a partition other replicas while it is served: start, cancel, finish, and which logs are to be deleted after.

While it lasts, ``replicas`` is the target followed by those that will go (``removing``); ``adding`` are those of the
target that were no replicas before. New replicas copy and join the ISR as any follower does; when the whole target is
in sync, ``finish`` cuts replicas and ISR down to it. That is asked for every partition that is looked at
(``election.settle``), so whoever is the active controller then finishes it.

A replica that is taken away ends the leader epoch: whatever a leader knows of its position is forgotten with the
epoch, so a broker that gets the replica back with an empty log is not taken for the one it was. Called by the active
controller.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from headrace_common.core.errors import (
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
)
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_common.core.image import Partition

REPLICAS_MAX: Final = 32
Replicas = tuple[NodeId, ...]


def is_under_way(partition: Partition) -> bool:
    """Whether its replicas are being changed."""
    return bool(partition.adding or partition.removing)


def target_of(partition: Partition) -> Replicas:
    """The replicas that it shall have in the end."""
    return tuple(r for r in partition.replicas if r not in partition.removing)


def original_of(partition: Partition) -> Replicas:
    """The replicas from before the change, in the order that they have now."""
    return tuple(r for r in partition.replicas if r not in partition.adding)


def check_target(target: Replicas, registered: Collection[NodeId], alive: Collection[NodeId]) -> None:
    """
    Whether a partition can have these replicas.

    Raises:
        InvalidReplicaAssignment: none, too many, repeated or unknown brokers, or none that lives.
    """
    if not 1 <= len(target) <= REPLICAS_MAX:
        raise InvalidReplicaAssignment(f"a partition has 1 to {REPLICAS_MAX} replicas, not {len(target)}")
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignment(f"{list(target)} names a broker twice; name each once")
    unknown = sorted(r for r in target if r not in registered)
    if unknown:
        raise InvalidReplicaAssignment(f"brokers {unknown} are not registered; there are {sorted(registered)}")
    if not any(r in alive for r in target):
        raise InvalidReplicaAssignment(f"none of the brokers {list(target)} is alive; start one or name others")


def start(partition: Partition, target: Replicas, min_isr: int) -> Partition:
    """
    On its way to ``target``, from wherever it was; epochs are not touched. The same object: it is there.

    What an earlier change was adding and this one does not want is dropped at once, unless too few would be left.

    Raises:
        EligibleLeadersNotAvailable: fewer than ``min_isr`` brokers that are known to hold all records would be left.
    """
    original = original_of(partition)
    if target == partition.replicas and not is_under_way(partition):
        return partition
    leaving = tuple(r for r in original if r not in target)
    wanted = replace(
        _keep_replicas(partition, (*target, *leaving), min_isr),
        adding=tuple(r for r in target if r not in original),
        removing=leaving,
    )
    return partition if wanted == partition else wanted


def cancel(partition: Partition, min_isr: int) -> Partition:
    """
    Back to the replicas from before; epochs are not touched.

    Raises:
        NoReassignmentInProgress: nothing is under way.
        EligibleLeadersNotAvailable: fewer than ``min_isr`` brokers that are known to hold all records would be left.
    """
    if not is_under_way(partition):
        raise NoReassignmentInProgress(f"the replicas of {partition.id} are not being changed; nothing to cancel")
    return replace(_keep_replicas(partition, original_of(partition), min_isr), adding=(), removing=())


def can_finish(partition: Partition) -> bool:
    """Whether the whole target is in sync."""
    return is_under_way(partition) and set(target_of(partition)) <= set(partition.isr)


def finish(partition: Partition) -> Partition:
    """The target alone, where it is in sync, else the same object; epochs are not touched."""
    if not can_finish(partition):
        return partition
    return replace(_keep_replicas(partition, target_of(partition), 1), adding=(), removing=())


def find_dropped(old: Partition, new: Partition) -> frozenset[NodeId]:
    """Who holds a replica no more."""
    return frozenset(old.replicas) - frozenset(new.replicas)


def to_delete(old: Partition, new: Partition, pending: Replicas) -> Replicas:
    """Brokers that are to delete their log once ``new`` is written, when ``pending`` were to before."""
    return tuple(sorted(({*pending} | find_dropped(old, new)) - {*new.replicas}))


def _keep_replicas(partition: Partition, replicas: Replicas, min_isr: int) -> Partition:
    """
    The partition with these replicas; the others leave all its sets, and then delete their logs.

    So the last copies that are known to be whole must not be among the others: a disk that fails afterwards would
    take acknowledged records with it, though ``min_isr`` brokers had them.
    """
    stay = frozenset(replicas)
    isr, elr, known = (_of(replicas, s) for s in (partition.isr, partition.elr, partition.last_known_elr))
    lost = [r for r in (*partition.isr, *partition.elr, *partition.last_known_elr) if r not in stay]
    if lost and (not isr or len(isr) + len(elr) < min(min_isr, len(replicas))):
        raise EligibleLeadersNotAvailable(
            f"brokers {lost} are needed: too few others are known to hold all records of {partition.id}; "
            "wait until another one is in sync"
        )
    return replace(
        partition,
        replicas=replicas,
        isr=isr,
        elr=elr,
        last_known_elr=known,
        leader=partition.leader if partition.leader in stay else NO_NODE,
    )


def _of(replicas: Replicas, members: Replicas) -> Replicas:
    return tuple(r for r in replicas if r in members)
