"""ISR changes that leaders ask for (``AlterPartitions``), for one term of the active controller."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId
from headrace_common.core.image import Partition
from headrace_controller.core.isr_changes import Proposal, apply_proposal
from headrace_controller.engine.settling import Settling


class IsrChanges:
    """Takes or refuses proposals, each by itself; what is taken is written in chunks."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling
        self.taken = 0
        """Proposals of this term that hold now."""
        self.refused = 0
        """Proposals refused in this term."""

    async def alter(self, sender: NodeId, proposals: Sequence[Proposal]) -> list[Partition | HeadraceError]:
        """
        What became of each proposal: the partition as it is now, or why not; the sender's epoch was checked.

        Raises:
            HeadraceError: as ``Settling.bring``; some of it may be done, repeat the whole.
        """
        by_id = {p.id: p for p in proposals}

        def step(partition: Partition) -> Partition:
            brokers, rules = self._settling.brokers(), self._settling.rules_of(partition)
            return apply_proposal(partition, by_id[partition.id], sender, brokers, rules)

        results = await self._settling.attempt(list(by_id), step)
        refused = sum(isinstance(r, HeadraceError) for r in results)
        self.refused += refused
        self.taken += len(results) - refused
        return results
