"""
When a broker is ready: whether a rolling restart may go on to the next one. Called by the engine with each image.

Ready is a latch. It is reached once this process was let take part, and each replica placed here at that moment was
in the ISR since, or cannot get there now (its partition has no leader and nobody alive who could lead it), or is gone,
or is only being moved; or once ``limit_ms`` passed since that moment. Partitions that are created later, and what
happens to any of them after they were in sync once, change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import ClusterImage, NodeKey, Partition, Role


@dataclass(slots=True)
class Readiness:
    """Of one process; times are monotonic milliseconds."""

    broker: NodeId
    incarnation: bytes
    limit_ms: float
    ready: bool = False
    deadline_ms: float | None = None
    """When it is ready however far behind; None: it was not let take part yet."""
    behind: set[PartitionId] = field(default_factory=set)
    """Replicas placed here that were not in the ISR yet; what holds them may be hopeless. Kept for the log."""

    def take(self, image: ClusterImage, now_ms: float) -> bool:
        """Whether it is ready after ``image``."""
        if self.ready or not self._takes_part(image):
            return self.ready
        if self.deadline_ms is None:
            self.deadline_ms = now_ms + self.limit_ms
            self.behind = {i for i, partition in image.partitions.items() if self.broker in partition.replicas}
        alive = frozenset(node.key.id for node in image.brokers() if not node.fenced)
        self.behind = {i for i in self.behind if not self._in_sync(image.partitions.get(i))}
        self.ready = not any(self._waits_for(image.partitions.get(i), alive) for i in self.behind)
        return self.look(now_ms)

    def look(self, now_ms: float) -> bool:
        """Whether it is ready at this time, without news."""
        if self.deadline_ms is not None and now_ms >= self.deadline_ms:
            self.ready = True
        return self.ready

    def _takes_part(self, image: ClusterImage) -> bool:
        node = image.nodes.get(NodeKey(Role.BROKER, self.broker))
        return node is not None and not node.fenced and node.incarnation == self.incarnation

    def _in_sync(self, partition: Partition | None) -> bool:
        return partition is not None and self.broker in partition.isr

    def _waits_for(self, partition: Partition | None, alive: frozenset[NodeId]) -> bool:
        """Whether the replica here gets in sync by itself, and the cluster counts on it."""
        if partition is None or self.broker not in partition.replicas:
            return False
        if self.broker in partition.adding or self.broker in partition.removing:
            return False
        return not partition.offline or _may_be_led(partition, alive)


def _may_be_led(partition: Partition, alive: frozenset[NodeId]) -> bool:
    """Whether somebody alive leads a partition next that has no leader, by its image alone (see the elections)."""
    if partition.isr or partition.elr:
        return any(broker in alive for broker in (*partition.isr, *partition.elr))
    return bool(partition.last_known_elr) and all(broker in alive for broker in partition.last_known_elr)
