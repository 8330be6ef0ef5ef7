"""
Whether a leader's proposal of a new ISR is taken, and what the partition is then (KIP-497, 903, 966).

Called by the active controller for each partition of ``AlterPartitions``. Two answers only let a leader go back to
the ISR it had: done, and ``IneligibleReplica``. With every other refusal newer metadata is on its way to the leader,
which keeps its maximal ISR until it has it; so a proposal is never half believed by either side.

A recovering partition (led after an unclean election) is recovered when all its replicas are in sync. Nothing else
depends on it: our leader has nothing to do before it serves, its log is the truth from its first moment on, and
refusing a second member until then would only leave it alone for longer. A leader that has no replica to wait for
proposes the ISR as it is.

A leader may also resign: it lost stored bytes, and is needed in the ISR until others are rebuilt from another leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace_common.core.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    NotController,
    NotLeader,
    Rejected,
)
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId
from headrace_common.core.image import Partition
from headrace_controller.core.election import Brokers, Rules, raise_epochs, with_isr


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new ISR, whole, and what the leader acted on."""

    id: PartitionId
    leader_epoch: int
    partition_epoch: int
    isr: Mapping[NodeId, int | None]
    """Members; the broker epoch each fetched with, None for those that are in the ISR already."""
    resign: bool = False
    """The ISR stays as it is, and another member of it leads."""


def apply_proposal(
    partition: Partition, proposal: Proposal, sender: NodeId, brokers: Brokers, rules: Rules
) -> Partition:
    """
    The partition with the proposed ISR, or another leader; the same object when it is so already.

    Who leaves an ISR that falls below min ISR becomes eligible; an ISR of min ISR members needs no eligible ones.

    Raises:
        NotController: the leader knows more than this controller.
        NotLeader, FencedLeaderEpoch, InvalidUpdateVersion: the leader knows less.
        IneligibleReplica: a member may not join now, or nobody else may lead.
        Rejected: no leader proposes this.
    """
    _check_epochs(partition, proposal, sender)
    ends = partition.recovering and frozenset(proposal.isr) == frozenset(partition.replicas)
    if frozenset(proposal.isr) == frozenset(partition.isr) and not ends and not proposal.resign:
        return partition  # an answer was lost, and the leader asks again
    if proposal.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersion(
            f"partition {partition.id} has partition epoch {partition.partition_epoch}, the proposal was made for "
            f"{proposal.partition_epoch}; wait for newer metadata"
        )
    if proposal.resign:
        return _resign(partition, brokers, rules)
    _check_members(partition, proposal, brokers)
    left = (r for r in partition.isr if r not in proposal.isr)
    new = with_isr(partition, proposal.isr, (*partition.elr, *left), rules)
    return raise_epochs(partition, replace(new, recovering=partition.recovering and not ends), rules.epoch_floor)


def _resign(partition: Partition, brokers: Brokers, rules: Rules) -> Partition:
    heir = brokers.first_of(r for r in partition.replicas if r in partition.isr and r != partition.leader)
    if heir == NO_NODE:
        raise IneligibleReplica(
            f"no other replica of partition {partition.id} is in sync and may lead; its leader stays until one is"
        )
    return raise_epochs(partition, replace(partition, leader=heir), rules.epoch_floor)


def _check_epochs(partition: Partition, proposal: Proposal, sender: NodeId) -> None:
    newer = proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch
    if newer:
        raise NotController(
            f"broker {sender} knows a newer partition {partition.id} than this controller; ask the active one"
        )
    if proposal.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(
            f"partition {partition.id} is in leader epoch {partition.leader_epoch}, not {proposal.leader_epoch}; "
            "wait for newer metadata"
        )
    if partition.leader != sender:
        raise NotLeader(f"broker {sender} does not lead partition {partition.id}; wait for newer metadata")


def _check_members(partition: Partition, proposal: Proposal, brokers: Brokers) -> None:
    strangers = sorted(r for r in proposal.isr if r not in partition.replicas)
    if strangers:
        raise Rejected(f"brokers {strangers} hold no replica of partition {partition.id}; propose replicas only")
    if partition.leader not in proposal.isr:
        raise Rejected(f"the leader {partition.leader} is not in the ISR that it proposes for {partition.id}; add it")
    for member, epoch in proposal.isr.items():
        if not brokers.may_lead(member):
            raise IneligibleReplica(f"broker {member} is fenced or leaving; it joins {partition.id} when it is back")
        if epoch is None and member not in partition.isr:
            raise Rejected(f"broker {member} would join {partition.id} without the epoch it fetched with; name it")
        if epoch is not None and epoch != brokers.epochs.get(member):
            raise IneligibleReplica(
                f"broker {member} fetched from {partition.id} with epoch {epoch} and was restarted since; it joins "
                "when it fetches with its present epoch"
            )
