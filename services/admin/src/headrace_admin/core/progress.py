"""
How far a reassignment has come: bytes of each new replica's log against the leader's. ``engine/reassignments`` looks
once, or twice for rates.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headrace_common.core.ids import NO_NODE, NodeId, PartitionId
from headrace_common.core.image import Partition

Held: TypeAlias = Mapping[tuple[NodeId, PartitionId], "Extent"]
"""What brokers said of their logs; what is not there could not be asked, or is not there yet."""


@dataclass(frozen=True, slots=True)
class Extent:
    """One log at one moment."""

    size_bytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """One new replica."""

    broker: NodeId
    size_bytes: int | None
    percent: int
    """Rounded down; 100 when it is in sync, and only then."""
    in_sync: bool
    bytes_per_s: int | None
    """None: looked once only, or the log was not seen."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One partition whose replicas are being changed."""

    partition: Partition
    leader_bytes: int | None
    replicas: tuple[ReplicaProgress, ...]
    waits_for: tuple[NodeId, ...] = ()
    """Brokers that are away and without which it cannot end."""


def waits_for(partition: Partition, present: Container[NodeId]) -> tuple[NodeId, ...]:
    """
    Whom a move waits for: those of its target that are away; where nobody leads, those that may.

    ``present``: brokers that serve.
    """
    p = partition
    if not (p.adding or p.removing):
        return ()
    needed: Iterable[NodeId] = (b for b in p.replicas if b not in p.removing and b not in p.isr)
    if p.leader == NO_NODE:
        needed = p.isr or p.elr or p.last_known_elr or p.replicas
    return tuple(b for b in needed if b not in present)


def progress_of(
    partition: Partition,
    held: Held,
    before: Held | None = None,
    elapsed_ms: float = 0,
    *,
    present: Container[NodeId] | None = None,
) -> Progress:
    """``before`` is what was held ``elapsed_ms`` earlier; ``present``: brokers that serve, where that is known."""
    leader = None if partition.leader == NO_NODE else held.get((partition.leader, partition.id))

    def replica(broker: NodeId) -> ReplicaProgress:
        key = (broker, partition.id)
        now, earlier = held.get(key), (before or {}).get(key)
        in_sync = broker in partition.isr
        rate = None
        if now is not None and before is not None and elapsed_ms > 0:
            grown = max(0, now.size_bytes - (earlier.size_bytes if earlier is not None else 0))
            rate = int(grown * 1_000 / elapsed_ms)
        return ReplicaProgress(
            broker, now.size_bytes if now else None, 100 if in_sync else _percent(now, leader), in_sync, rate
        )

    leader_bytes = leader.size_bytes if leader else None
    waited = () if present is None else waits_for(partition, present)
    return Progress(partition, leader_bytes, tuple(replica(b) for b in partition.adding), waited)


def _percent(now: Extent | None, leader: Extent | None) -> int:
    """By bytes; by offsets where the leader's log has none or the copy is laid out in fewer."""
    if now is None or leader is None:
        return 0
    if leader.end <= leader.start or now.end >= leader.end:
        return 99  # all is there; what is left is to be told in sync
    copied = (now.end - max(now.start, leader.start)) / (leader.end - leader.start)
    by_bytes = now.size_bytes / leader.size_bytes if leader.size_bytes else copied
    return max(0, min(99, int(100 * min(by_bytes, 1.0)) if now.size_bytes else int(100 * copied)))
