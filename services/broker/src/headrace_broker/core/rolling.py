"""
The rolling rule: whether a broker may be restarted now without a partition falling below its minimum by that.

Called with each image while a broker that is to stop waits for its turn. For every partition it holds: the ISR has at
least ``min.insync.replicas`` members, and more than these where the broker is one of them. Partitions with no more
replicas than the minimum could never be restarted by that rule: they are told and do not block.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.configs import min_isr_in_force
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import ClusterImage, Partition, Topic


@dataclass(frozen=True, slots=True)
class Allowed:
    """The restart takes nothing away that has another copy to stand in."""

    exposed: tuple[PartitionId, ...] = ()
    """Partitions that nobody can write, or nobody at all can reach, during the restart: they have too few replicas."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Wait: others have to catch up first."""

    by: tuple[PartitionId, ...]
    """Ascending; never empty."""


def may_restart(image: ClusterImage, broker: NodeId) -> Allowed | Blocked:
    """Whether ``broker`` may restart, as far as ``image`` knows. Topics under deletion do not count."""
    blocked: list[PartitionId] = []
    exposed: list[PartitionId] = []
    for partition in image.partitions.values():
        topic = image.topics.get(partition.id.topic_id)
        if topic is None or topic.topic_id in image.deletions or broker not in partition.replicas:
            continue
        least = _min_isr(topic, partition)
        if _count_settled(partition) <= least:
            if broker in partition.isr:
                exposed.append(partition.id)
        elif len(partition.isr) < least or (len(partition.isr) == least and broker in partition.isr):
            blocked.append(partition.id)
    if blocked:
        return Blocked(tuple(sorted(blocked)))
    return Allowed(tuple(sorted(exposed)))


def _count_settled(partition: Partition) -> int:
    """How many replicas there are; while they are exchanged, before or after, whichever is less."""
    return len(partition.replicas) - max(len(partition.adding), len(partition.removing))


def _min_isr(topic: Topic, partition: Partition) -> int:
    own = topic.configs.get("min.insync.replicas")
    return min_isr_in_force(
        None if own is None else int(own),
        len(partition.replicas),
        adding=len(partition.adding),
        removing=len(partition.removing),
    )
