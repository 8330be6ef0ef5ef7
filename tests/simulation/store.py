"""The metadata store: one linearizable map with compares, as etcd is to the controllers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import Node, Partition
from headrace_controller.core.election import Brokers

Key = tuple[str, object]
"""``("node", id)``, ``("partition", id)``, ``("removal", id)`` or ``("epoch", None)``."""


@dataclass(frozen=True)
class Snapshot:
    """Everything at one revision; never changed."""

    revision: int
    nodes: dict[NodeId, Node]
    partitions: dict[PartitionId, Partition]
    removals: dict[PartitionId, tuple[NodeId, ...]]
    """Who is still to delete its log."""
    epoch: int
    """The last broker epoch that was given."""
    mods: dict[Key, int] = field(default_factory=dict)

    def brokers(self) -> Brokers:
        """As the elections want them; as ``settling.brokers_of``."""
        alive = [n for n in self.nodes.values() if not n.fenced]
        return Brokers(
            unfenced=frozenset(n.key.id for n in alive),
            leaving=frozenset(n.key.id for n in alive if n.in_controlled_shutdown),
            drained=frozenset(n.key.id for n in self.nodes.values() if n.drained),
            epochs={n.key.id: n.epoch for n in self.nodes.values()},
        )


@dataclass(frozen=True)
class Decision:
    """What to write, if nothing of it was changed since ``seen``."""

    seen: Snapshot
    puts: tuple[tuple[Key, object], ...]


class Store:
    """Holds the newest snapshot and who may write."""

    def __init__(self, first: Snapshot) -> None:
        self.snapshot = first
        self.term = 0
        """Elections so far; only the last one's winner writes."""
        self.lease_until_ms = 0.0
        self.on_commit: Callable[[Snapshot, Snapshot], None] = lambda _old, _new: None

    def commit(self, term: int, decision: Decision) -> str:
        """``committed``, ``changed`` (decide again) or ``lost`` (another controller was elected)."""
        old = self.snapshot
        if term != self.term:
            return "lost"
        for key, _ in decision.puts:
            if old.mods.get(key, 0) != decision.seen.mods.get(key, 0):
                return "changed"
        self.snapshot = written(old, decision.puts)
        self.on_commit(old, self.snapshot)
        return "committed"


def written(old: Snapshot, puts: tuple[tuple[Key, object], ...]) -> Snapshot:
    """The next snapshot."""
    revision = old.revision + 1
    nodes, partitions, removals, epoch = old.nodes, old.partitions, old.removals, old.epoch
    mods = dict(old.mods)
    for key, value in puts:
        mods[key] = revision
        kind, id = key
        if kind == "node":
            nodes = {**nodes, id: value}
        elif kind == "partition":
            partitions = {**partitions, id: value}
        elif kind == "removal":
            removals = {**removals, id: value}
        else:
            assert isinstance(value, int)
            epoch = value
    return replace(
        old, revision=revision, nodes=nodes, partitions=partitions, removals=removals, epoch=epoch, mods=mods
    )
