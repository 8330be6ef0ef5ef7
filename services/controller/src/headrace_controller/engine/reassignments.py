"""Changes of replicas by command, for one term of the active controller; ``Settling`` finishes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import ClusterImage, Partition
from headrace_common.runtime.logs import logger
from headrace_controller.core import election, reassign
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.settling import Settling

log = logger(__name__)

Targets = Mapping[PartitionId, tuple[NodeId, ...]]
"""The replicas each partition shall have; none: cancel what is under way."""


class Reassignments:
    """Starts and cancels."""

    def __init__(self, follower: Follower, settling: Settling) -> None:
        self._follower = follower
        self._settling = settling

    async def alter(self, targets: Targets, *, validate_only: bool) -> list[Partition | HeadraceError]:
        """
        What became of each: the partition as it is now, or with ``validate_only`` would be, or why not.

        Raises:
            HeadraceError: as ``Settling.bring``; some of it may be done, repeat the whole.
        """

        def step(partition: Partition) -> Partition:
            target = targets[partition.id]
            brokers = self._settling.brokers()
            min_isr = self._settling.rules_of(partition).min_isr
            if target:
                reassign.check_target(target, brokers.epochs.keys(), brokers.unfenced)
                wanted = reassign.start(partition, target, min_isr)
            else:
                wanted = reassign.cancel(partition, min_isr)
            if wanted is partition:
                return partition
            return election.settle_change(partition, wanted, brokers, self._settling.rules_of(wanted))

        results = await self._settling.attempt(list(targets), step, validate_only=validate_only)
        if not validate_only:
            done = sum(not isinstance(r, HeadraceError) for r in results)
            log.info("replicas are changed", extra={"asked": len(results), "accepted": done})
        return results


def under_way(image: ClusterImage, ids: Sequence[PartitionId]) -> list[Partition]:
    """Those of ``ids``, or of all, whose replicas are being changed, in order."""
    found = (image.partitions.get(i) for i in ids) if ids else image.partitions.values()
    return sorted((p for p in found if p is not None and reassign.is_under_way(p)), key=lambda p: p.id)
