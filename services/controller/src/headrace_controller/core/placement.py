"""
Where the replicas of new partitions go: leaders and replicas spread evenly, racks alternated, as Kafka does.

Brokers are laid out in a ring in which neighbours are in different racks as far as possible. Partition ``n`` has its
preferred leader at ``start + n``; its other replicas follow further on in the ring, each in a rack that the
partition is not in yet while there is one. Every turn of the ring shifts the followers by one more, so that the
partitions of one leader do not all share the same followers. Called when topics are created or grow; chance comes in
as ``start`` and ``shift``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from headrace_common.core.errors import InvalidReplicationFactor
from headrace_common.core.ids import NodeId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker that can take replicas."""

    id: NodeId
    rack: str | None = None


def ring(brokers: Sequence[Candidate]) -> list[Candidate]:
    """All brokers once, one of each rack in turn; those without a rack count as one rack of their own."""
    racks: dict[str, list[Candidate]] = {}
    for broker in sorted(brokers, key=lambda b: b.id):
        racks.setdefault(broker.rack or "", []).append(broker)
    turns = zip_longest(*(racks[name] for name in sorted(racks)))
    return [broker for turn in turns for broker in turn if broker is not None]


def place(
    brokers: Sequence[Candidate],
    partitions: range,
    replicas: int,
    *,
    start: int,
    shift: int,
    reserve: Sequence[Candidate] = (),
) -> list[tuple[NodeId, ...]]:
    """
    The replicas of each partition, preferred leader first.

    Args:
        partitions: the numbers to place; a topic that grows goes on where it stopped.
        start: index in the ring of the first leader; any number from 0.
        shift: how far on in the ring the first followers stand; any number from 0.
        reserve: brokers that only take the replicas for which ``brokers`` are too few, best first: registered ones
            that are away just now. They never come first.

    Raises:
        InvalidReplicationFactor: there are fewer brokers than replicas, or none for the first.
    """
    if not brokers:
        raise InvalidReplicationFactor("0 brokers are alive; start one, a partition needs a leader")
    if not 1 <= replicas <= len(brokers) + len(reserve):
        most = len(brokers) + len(reserve)
        raise InvalidReplicationFactor(
            f"replication factor {replicas} was asked and {most} brokers are registered; "
            f"start more brokers or ask for at most {most}"
        )
    spare = tuple(b.id for b in reserve[: max(0, replicas - len(brokers))])
    replicas = min(replicas, len(brokers))
    order = ring(brokers)
    racks = len({broker.rack or "" for broker in brokers})
    return [
        _one(order, racks, replicas, first=(start + n) % len(order), shift=shift + n // len(order)) + spare
        for n in partitions
    ]


def _one(order: Sequence[Candidate], racks: int, replicas: int, *, first: int, shift: int) -> tuple[NodeId, ...]:
    if replicas == 1:
        return (order[first].id,)
    chosen = [order[first]]
    used = {order[first].rack or ""}
    others = len(order) - 1
    followers = [order[(first + 1 + (shift + step) % others) % len(order)] for step in range(others)]
    while len(chosen) < replicas:
        fresh = [b for b in followers if b not in chosen]
        best = next((b for b in fresh if (b.rack or "") not in used), None) if len(used) < racks else None
        taken = best or fresh[0]
        chosen.append(taken)
        used.add(taken.rack or "")
    return tuple(broker.id for broker in chosen)
