"""
Replicas of partitions on brokers: the state that plans are made on, and which single changes are allowed.

``plans`` fills it, ``balance`` and ``evacuation`` change it. A broker that is not ``open`` (away, stopping or drained)
keeps what it has and gets nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace_common.core.ids import NodeId


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """A broker as a place for replicas."""

    id: NodeId
    rack: str | None = None
    """None: a failure domain of its own."""
    open: bool = True
    """Whether it may get replicas and preferred leaders now."""


@dataclass(frozen=True, slots=True, order=True)
class PartitionName:
    """A partition as people name it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Placed:
    """One partition with its replicas, preferred leader first."""

    name: PartitionName
    replicas: tuple[NodeId, ...]
    size_bytes: int = 0
    """Of the leader's log; 0 where it is not known. Among equals the smaller one moves."""


def differ(one: tuple[NodeId, ...], other: tuple[NodeId, ...]) -> bool:
    """Whether these are other replicas, or another preferred leader among the same."""
    return one[0] != other[0] or set(one) != set(other)


class Placement:
    """Who holds what, counted per topic and in all. Changed by one caller at a time."""

    def __init__(self, brokers: Iterable[BrokerPlace], partitions: Iterable[Placed]) -> None:
        self.brokers = {b.id: b for b in sorted(brokers, key=lambda b: b.id)}
        self.open = [b.id for b in self.brokers.values() if b.open]
        racks = [b.rack for b in self.brokers.values() if b.rack is not None]
        self.racks_shared = len(set(racks)) < len(racks)
        """Whether racks rule anything: two brokers are in one."""
        self.before = {p.name: p for p in sorted(partitions, key=lambda p: p.name)}
        self.replicas: dict[PartitionName, list[NodeId]] = {n: list(p.replicas) for n, p in self.before.items()}
        self.per_topic: defaultdict[str, Counter[NodeId]] = defaultdict(Counter)
        """Replicas of a topic by broker."""
        self.leaders_per_topic: defaultdict[str, Counter[NodeId]] = defaultdict(Counter)
        self.total: Counter[NodeId] = Counter()
        """Replicas by broker."""
        self.leaders: Counter[NodeId] = Counter()
        """Preferred leaders by broker."""
        self.holding: defaultdict[tuple[str, NodeId], set[PartitionName]] = defaultdict(set)
        """Partitions of a topic with a replica on a broker."""
        self.leading: defaultdict[tuple[str, NodeId], set[PartitionName]] = defaultdict(set)
        """Partitions of a topic that prefer a broker as leader."""
        for name, replicas in self.replicas.items():
            for broker in replicas:
                self._count(name, broker, 1)
            self._count_leader(name, replicas[0], 1)

    def rack_of(self, broker: NodeId) -> str | NodeId:
        """The failure domain of a broker; one that is not known any more is on its own."""
        place = self.brokers.get(broker)
        return broker if place is None or place.rack is None else place.rack

    def crowding(self, replicas: Iterable[NodeId]) -> int:
        """How badly replicas share racks: the sum of squares of replicas per rack. Less is better."""
        return sum(n * n for n in Counter(map(self.rack_of, replicas)).values())

    def crowding_change(self, name: PartitionName, old: NodeId, new: NodeId) -> int:
        """What ``new`` in the place of ``old`` does to it; negative is better."""
        if self.rack_of(old) == self.rack_of(new):
            return 0
        others = Counter(self.rack_of(b) for b in self.replicas[name] if b != old)
        return 2 * (others[self.rack_of(new)] - others[self.rack_of(old)])

    def cost_of_move(self, name: PartitionName, old: NodeId, new: NodeId) -> tuple[int, int, PartitionName]:
        """How much more has to be copied than now; to choose among moves that balance alike."""
        had = self.before[name].replicas
        copies = (new not in had) - (old not in had)
        return copies, copies * self.before[name].size_bytes, name

    def move(self, name: PartitionName, old: NodeId, new: NodeId) -> None:
        """Put ``new`` in the place of ``old``."""
        replicas = self.replicas[name]
        assert new not in replicas, "a replica moves to where none is"
        at = replicas.index(old)
        replicas[at] = new
        self._count(name, old, -1)
        self._count(name, new, 1)
        if at == 0:
            self._count_leader(name, old, -1)
            self._count_leader(name, new, 1)

    def prefer(self, name: PartitionName, leader: NodeId) -> None:
        """Make a replica the preferred leader; the others keep their order."""
        replicas = self.replicas[name]
        old = replicas[0]
        replicas.remove(leader)
        replicas.insert(0, leader)
        self._count_leader(name, old, -1)
        self._count_leader(name, leader, 1)

    def changed(self) -> Iterator[tuple[Placed, tuple[NodeId, ...]]]:
        """Partitions that are to have other replicas or another preferred leader, by name, with those."""
        for name, placed in self.before.items():
            replicas = tuple(self.replicas[name])
            if differ(placed.replicas, replicas):
                yield placed, replicas

    def _count(self, name: PartitionName, broker: NodeId, by: int) -> None:
        self.per_topic[name.topic][broker] += by
        self.total[broker] += by
        held = self.holding[name.topic, broker]
        held.add(name) if by > 0 else held.discard(name)

    def _count_leader(self, name: PartitionName, broker: NodeId, by: int) -> None:
        self.leaders_per_topic[name.topic][broker] += by
        self.leaders[broker] += by
        led = self.leading[name.topic, broker]
        led.add(name) if by > 0 else led.discard(name)
