"""Positions that undecided transactions hold, in the cluster in memory. Owned by ``memory_groups``, under its lock."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import InvalidProducerEpoch
from headrace_common.core.ids import TopicPartition
from headrace_proto.v1 import coordinator_pb2 as pb

Positions = dict[TopicPartition, pb.CommittedOffset]


@dataclass(slots=True)
class _Held:
    """What one transaction has for one group."""

    epoch: int
    positions: Positions = field(default_factory=dict)


class PendingOffsets:
    """See the module's text."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], _Held] = {}
        """By producer id and group."""
        self._ended: dict[int, int] = {}
        """The highest epoch of a marker, by producer id."""

    def add(self, group_id: str, producer_id: int, epoch: int, positions: Positions) -> None:
        """
        Keep these until the transaction ends.

        Raises:
            InvalidProducerEpoch: it has ended.
        """
        held = self._held.get((producer_id, group_id))
        if epoch < self._ended.get(producer_id, 0) or (held is not None and epoch < held.epoch):
            raise InvalidProducerEpoch(f"the transaction of producer {producer_id} under epoch {epoch} has ended")
        if held is None or held.epoch < epoch:
            held = self._held[producer_id, group_id] = _Held(epoch)
        held.positions.update(positions)

    def end(self, producer_id: int, epoch: int) -> dict[str, Positions]:
        """A marker has come: what the transaction held, by group; held no more."""
        self._ended[producer_id] = max(epoch, self._ended.get(producer_id, 0))
        over = [key for key, held in self._held.items() if key[0] == producer_id and held.epoch < epoch]
        return {key[1]: self._held.pop(key).positions for key in over}

    def overwritten(self, group_id: str, partition: TopicPartition) -> None:
        """A plain commit came later, and wins."""
        for (_, group), held in self._held.items():
            if group == group_id:
                held.positions.pop(partition, None)

    def unstable(self, group_id: str) -> set[TopicPartition]:
        """Partitions of the group for which an undecided transaction has a position."""
        return {tp for (_, group), held in self._held.items() if group == group_id for tp in held.positions}
