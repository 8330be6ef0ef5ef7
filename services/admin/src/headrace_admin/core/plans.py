"""
Which replicas should move: to balance a cluster, or to empty a broker. Called by ``engine/reassignments``.

Every plan keeps each partition's number of replicas, puts no two on one broker, spreads them over racks as well as the
brokers allow, and is the same for the same input. A partition whose replicas are being changed already is planned from
what it will have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace_admin.core.balance import Leaders, Replicas, level
from headrace_admin.core.placement import BrokerPlace, PartitionName, Placed, Placement, differ
from headrace_common.core.errors import InvalidReplicationFactor
from headrace_common.core.ids import NodeId

ROUNDS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that gets other replicas, or another preferred leader among the same."""

    name: PartitionName
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]
    size_bytes: int

    @property
    def copies(self) -> int:
        """How many new replicas there are."""
        return len(set(self.after) - set(self.before))


@dataclass(frozen=True, slots=True)
class Load:
    """What a broker carries before and after a plan."""

    broker: NodeId
    replicas_before: int
    replicas_after: int
    leaders_before: int
    leaders_after: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves by partition, and what they do to the brokers."""

    moves: tuple[Move, ...]
    loads: tuple[Load, ...]

    @property
    def bytes_to_copy(self) -> int:
        """What new replicas will copy, as far as sizes are known."""
        return sum(move.copies * move.size_bytes for move in self.moves)


def rebalance(brokers: Iterable[BrokerPlace], partitions: Iterable[Placed]) -> Plan:
    """
    Replicas and preferred leaders level over the open brokers, within each topic and in all; racks come first.

    Levelled again until nothing moves any more: which chains are found depends on where replicas were before, and the
    plan after this one must be empty.

    Raises:
        InvalidReplicationFactor: a partition has a replica on a broker that is gone, and no other can take it.
    """
    places, held = list(brokers), list(partitions)
    now = before = Placement(places, held)
    for _ in range(ROUNDS_MAX):
        now = Placement(places, [Placed(p.name, tuple(now.replicas[p.name]), p.size_bytes) for p in held])
        _leave(now, {b for replicas in now.replicas.values() for b in replicas if b not in now.brokers})
        if now.racks_shared:
            _spread(now)
        level(Replicas(now))
        level(Leaders(now))
        if not any(now.changed()):
            break
    return _plan(now, before)


def evacuate(brokers: Iterable[BrokerPlace], partitions: Iterable[Placed], leaving: NodeId) -> Plan:
    """
    Only what ``leaving`` holds moves, each replica to the open broker that then carries least.

    Raises:
        InvalidReplicationFactor: too few other brokers are open.
    """
    places = [BrokerPlace(b.id, b.rack, b.open and b.id != leaving) for b in brokers]
    now, before = _placements(places, partitions)
    _leave(now, {leaving})
    return _plan(now, before)


def _placements(brokers: Iterable[BrokerPlace], partitions: Iterable[Placed]) -> tuple[Placement, Placement]:
    places, held = list(brokers), list(partitions)
    return Placement(places, held), Placement(places, held)


def _leave(now: Placement, leaving: set[NodeId]) -> None:
    """Replace each replica on a leaving broker."""
    for name, replicas in now.replicas.items():
        led_by_leaving = replicas[0] in leaving
        for old in [b for b in replicas if b in leaving]:
            now.move(name, old, _target(now, name, old))
        if led_by_leaving:
            counts = now.leaders_per_topic[name.topic]
            choice = [b for b in replicas if b in now.open] or replicas
            leader = min(choice, key=lambda b: (counts[b] - (b == replicas[0]), now.leaders[b] - (b == replicas[0])))
            if leader != replicas[0]:
                now.prefer(name, leader)


def _target(now: Placement, name: PartitionName, old: NodeId) -> NodeId:
    free = [b for b in now.open if b not in now.replicas[name]]
    if not free:
        raise InvalidReplicationFactor(
            f"{name} has {len(now.replicas[name])} replicas and no other broker can take the one of broker {old}: "
            f"{len(now.open)} could; start another broker, or create the topic again with fewer replicas"
        )
    counts = now.per_topic[name.topic]
    return min(free, key=lambda b: (now.crowding_change(name, old, b), counts[b], now.total[b], b))


def _spread(now: Placement) -> None:
    """Move replicas out of crowded racks; each move lowers the partition's crowding, so this ends."""
    for name, replicas in now.replicas.items():
        counts = now.per_topic[name.topic]
        while True:
            moves = (
                (now.crowding_change(name, old, new), counts[new], now.total[new], -counts[old], old, new)
                for old in replicas
                if old in now.open
                for new in now.open
                if new not in replicas
            )
            best = min(moves, default=None)
            if best is None or best[0] >= 0:
                break
            now.move(name, best[4], best[5])


def _plan(now: Placement, before: Placement) -> Plan:
    ends = ((placed, tuple(now.replicas[name])) for name, placed in before.before.items())
    moves = tuple(Move(p.name, p.replicas, end, p.size_bytes) for p, end in ends if differ(p.replicas, end))
    everyone = sorted({*now.brokers, *(b for b, n in before.total.items() if n)})
    loads = tuple(Load(b, before.total[b], now.total[b], before.leaders[b], now.leaders[b]) for b in everyone)
    return Plan(moves, loads)
