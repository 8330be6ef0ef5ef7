"""ISR changes that leaders ask for (``AlterPartitions``), for one term of the active controller."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_common.core.errors import HeadraceError, UnknownTopicOrPartition
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import Partition
from headrace_controller.core.isr_changes import Proposal, changed
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.settling import Settling


class IsrChanges:
    """Takes or refuses proposals, each by itself; what is taken is written in chunks."""

    def __init__(self, follower: Follower, settling: Settling) -> None:
        self._follower = follower
        self._settling = settling
        self.taken = 0
        """Partitions whose ISR was changed in this term because their leader asked."""
        self.refused = 0
        """Proposals refused in this term."""

    async def alter(self, sender: NodeId, proposals: Sequence[Proposal]) -> list[Partition | HeadraceError]:
        """
        What became of each proposal: the partition as it is now, or why not; the sender's epoch was checked.

        Raises:
            HeadraceError: as ``Writer.decide``; some of it may be done, repeat the whole.
        """
        by_id = {p.id: p for p in proposals}
        refusals: dict[PartitionId, HeadraceError] = {}

        def step(partition: Partition) -> Partition:
            refusals.pop(partition.id, None)
            brokers, rules = self._settling.brokers(), self._settling.rules_of(partition)
            try:
                return changed(partition, by_id[partition.id], sender, brokers, rules)
            except HeadraceError as refusal:
                refusals[partition.id] = refusal
                return partition

        async with self._settling.turn:
            image = self._follower.mirror.image
            found = [image.partitions[i] for i in by_id if i in image.partitions]
            self.taken += await self._settling.bring(found, step)
        self.refused += len(refusals)
        return [refusals.get(p.id) or self._now(p.id) for p in proposals]

    def _now(self, id: PartitionId) -> Partition | HeadraceError:
        found = self._follower.mirror.image.partitions.get(id)
        return found or UnknownTopicOrPartition(f"partition {id} does not exist any more; its topic was deleted")
