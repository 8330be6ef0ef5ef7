"""
Which coordinator answers for a group or a transactional id, by the cluster image.

``FindCoordinator`` asks, and who enrols partitions with a transaction; nobody else computes this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.core.errors import CoordinatorNotAvailable, HeadraceError, InvalidGroupId, Rejected
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, Node, NodeKey, Role, ShardKey, ShardKind
from headrace_common.core.murmur2 import partition_for

KEY_CHARS_MAX: Final = 249


@dataclass(frozen=True, slots=True)
class FoundCoordinator:
    """The answer for one key: a coordinator, or why there is none now."""

    key: str
    shard: int = -1
    """-1: not known, the internal topic does not exist."""
    shard_epoch: int = 0
    node: Node | None = None
    error: HeadraceError | None = None


def coordinator_of(kind: ShardKind, key: str, image: ClusterImage) -> FoundCoordinator:
    """Who answers for ``key`` now; the error is ``InvalidGroupId``, ``Rejected`` or ``CoordinatorNotAvailable``."""
    if not 1 <= len(key) <= KEY_CHARS_MAX:
        return FoundCoordinator(key[:KEY_CHARS_MAX], error=_wrong_length(kind, key))
    topic = image.topic(INTERNAL_TOPICS[kind])
    if topic is None:
        missing = f"topic {INTERNAL_TOPICS[kind]} does not exist yet; try again in a moment"
        return FoundCoordinator(key, error=CoordinatorNotAvailable(missing))
    number = partition_for(_choose_hash_key(kind, key).encode(), topic.partition_count)
    shard = image.shards.get(ShardKey(kind, number))
    owner, epoch = (NO_NODE, 0) if shard is None else (shard.owner, shard.epoch)
    node = image.nodes.get(NodeKey(Role.COORDINATOR, owner))
    if node is None or node.fenced:
        return FoundCoordinator(key, number, epoch, error=CoordinatorNotAvailable(_describe_unserved(number, owner)))
    return FoundCoordinator(key, number, epoch, node)


def _choose_hash_key(kind: ShardKind, key: str) -> str:
    """What decides the shard: a transactional id "owner/suffix" lives where its owner does."""
    return key.partition("/")[0] if kind is ShardKind.TRANSACTIONS else key


def _wrong_length(kind: ShardKind, key: str) -> HeadraceError:
    if kind is ShardKind.GROUPS:
        return InvalidGroupId(f"a group id has 1 to {KEY_CHARS_MAX} characters, not {len(key)}")
    return Rejected(f"a transactional id has 1 to {KEY_CHARS_MAX} characters, not {len(key)}")


def _describe_unserved(number: int, owner: NodeId) -> str:
    why = "no coordinator has it" if owner == NO_NODE else f"coordinator {owner}, which has it, is away"
    return f"shard {number} is not served: {why}; try again in a moment, and see that a coordinator runs"
