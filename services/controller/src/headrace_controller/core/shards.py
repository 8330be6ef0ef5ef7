"""
Which coordinator keeps which shard: balanced within one, and no shard moves that need not.

A shard is a partition of an internal topic. Its owner is a coordinator that is registered, not fenced and not leaving;
nobody, where there is none. Every change of owner raises the epoch, which the new owner makes the fencing token of the
partition; so of two processes that believe they own a shard only the later one can write. Called by the active
controller with what it knows; the same input always gives the same owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace_common.core.ids import NO_NODE, NodeId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, Node, Role, Shard, ShardKey, ShardKind


@dataclass(frozen=True, slots=True)
class Ownership:
    """How the shards of a cluster stand."""

    shards: int
    """One for each partition of an internal topic."""
    unowned: int
    """Shards that nobody serves: their owner is away, or they have none."""


def coordinators(image: ClusterImage) -> frozenset[NodeId]:
    """Those that may own shards."""
    return frozenset(n.key.id for n in image.nodes.values() if n.key.role is Role.COORDINATOR and takes_part(n))


def takes_part(node: Node) -> bool:
    """Whether a coordinator may get a shard, and keep it."""
    return not node.fenced and not node.in_controlled_shutdown


def find_due(image: ClusterImage) -> list[Shard]:
    """
    Every shard whose owner must change, as it is to be, the most urgent first.

    Shards that nobody serves, or that a leaving coordinator gives up, come before those that only balance.
    """
    candidates = coordinators(image)
    changes: list[Shard] = []
    for kind, count in counts(image).items():
        present = [image.shards.get(ShardKey(kind, n)) or Shard(ShardKey(kind, n), NO_NODE, 0) for n in range(count)]
        changes += reassign(present, candidates)
    return sorted(changes, key=lambda s: _owner(image, s.key) in candidates)


def counts(image: ClusterImage) -> Mapping[ShardKind, int]:
    """How many shards of each kind there are; kinds whose topic does not exist yet are left out."""
    topics = ((kind, image.topic(name)) for kind, name in INTERNAL_TOPICS.items() if kind is not ShardKind.AUDIT)
    return {kind: topic.partition_count for kind, topic in topics if topic is not None}


def ownership(image: ClusterImage) -> Ownership:
    """How many shards there are, and how many of them nobody serves."""
    alive = {n.key.id for n in image.nodes.values() if n.key.role is Role.COORDINATOR and not n.fenced}
    keys = [ShardKey(kind, n) for kind, count in counts(image).items() for n in range(count)]
    return Ownership(len(keys), sum(_owner(image, key) not in alive for key in keys))


def reassign(shards: Sequence[Shard], candidates: Collection[NodeId]) -> list[Shard]:
    """
    The shards of one kind that change, with their new owners and epochs, ascending.

    With ``n`` shards and ``k`` candidates each gets ``n // k`` or one more. Those who have the most keep the one more,
    and everybody keeps what fits: so fewest move.
    """
    held: dict[NodeId, list[Shard]] = {c: [] for c in sorted(candidates)}
    homeless = [s for s in shards if s.owner not in held]
    for shard in shards:
        if shard.owner in held:
            held[shard.owner].append(shard)
    if not held:
        return [_give(s, NO_NODE) for s in homeless if s.owner != NO_NODE or s.epoch == 0]
    room = _room(Counter({c: len(s) for c, s in held.items()}), len(shards))
    for candidate, own in held.items():
        homeless += own[room[candidate] :]
        room[candidate] -= min(len(own), room[candidate])
    moved = []
    for shard in homeless:
        taker = max(room, key=lambda c: (room[c], -c))
        assert room[taker] > 0, "the room is for all shards"
        room[taker] -= 1
        moved.append(_give(shard, taker))
    return sorted(moved, key=lambda s: s.key.number)


def _room(sizes: Mapping[NodeId, int], shards: int) -> dict[NodeId, int]:
    least, more = divmod(shards, len(sizes))
    richest = sorted(sizes, key=lambda c: (-sizes[c], c))
    return {c: least + (place < more) for place, c in enumerate(richest)}


def _give(shard: Shard, owner: NodeId) -> Shard:
    return Shard(shard.key, owner, shard.epoch + 1)


def _owner(image: ClusterImage, key: ShardKey) -> NodeId:
    shard = image.shards.get(key)
    return NO_NODE if shard is None else shard.owner
