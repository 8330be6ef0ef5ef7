"""
What a replica does about a newer image: it leads, follows, or does neither.

To begin to lead, the image must show this very process, unfenced (``may_lead``); to go on it must only not say
otherwise. A damaged log leads only once its loss is accepted: until then it neither leads nor follows whom it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace_broker.core.leadership import Assignment
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import Deposed, Elected, Followed, Reassigned
from headrace_common.core.errors import NotLeader
from headrace_common.core.ids import NO_NODE, PartitionId
from headrace_common.core.image import Partition as PartitionMetadata

Turn = Elected | Reassigned | Followed | Deposed


def choose_role(
    core: Partition, partition: PartitionMetadata, assignment: Assignment, now_ms: float, *, sound: bool, may_lead: bool
) -> Turn | None:
    """
    What the replica is told; None: nothing changes for it.

    Args:
        assignment: what ``partition`` says to its leader, with this broker as ``me``.
        now_ms: monotonic.
        sound: nothing of the log is damaged.
    """
    leads, epoch = partition.leader == assignment.me, partition.leader_epoch
    if leads and sound:
        if core.leader_epoch == epoch:
            return Reassigned(assignment, now_ms)
        return Elected(assignment, now_ms) if may_lead else None
    if leads or partition.leader == NO_NODE:
        return None if core.known_epoch is None else depose()
    if core.following == (partition.leader, epoch):
        return None
    moved = NotLeader(f"broker {partition.leader} leads the partition now; refresh metadata and ask there")
    return Followed(partition.leader, epoch, moved)


def depose() -> Deposed:
    """What a replica is told that neither leads nor follows from now on."""
    return Deposed(NotLeader("the partition moved to another leader; refresh metadata and ask there"))


def find_changed(
    old: Mapping[PartitionId, PartitionMetadata], new: Mapping[PartitionId, PartitionMetadata]
) -> Iterator[PartitionId]:
    """Partitions that are new, or not as they were, or gone; images share what did not change."""
    kept = 0
    for id, partition in new.items():
        before = old.get(id)
        kept += before is not None
        if before is not partition:
            yield id
    if kept < len(old):
        yield from (id for id in old if id not in new)
