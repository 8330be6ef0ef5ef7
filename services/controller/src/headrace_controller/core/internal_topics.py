"""
How topics of the system are made and kept: their settings, how many replicas they have, and when they get more.

They are made when first needed, maybe on a cluster that is still starting; so they have as many replicas as there are
brokers, up to what is set, and get more when brokers join. Called by the active controller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headrace_common.core.configs import BROKER_SETTINGS
from headrace_common.core.errors import CoordinatorNotAvailable, InvalidConfig, InvalidTopic
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, Node, Partition, ShardKind, Topic
from headrace_controller.core.reassign import is_under_way
from headrace_controller.core.settings import Alteration, Op
from headrace_controller.core.topics import Chance, Plan, place_replicas

_PREFIXES: Mapping[ShardKind, str] = {
    ShardKind.GROUPS: "offsets.topic",
    ShardKind.TRANSACTIONS: "transaction.state.log",
    ShardKind.AUDIT: "offsets.topic",  # as many replicas as that one
}
AUDIT_PARTITIONS = 3
AUDIT_RETENTION_MS = 90 * 86_400_000
AUDIT_RETENTION_MS_MIN = 7 * 86_400_000
ALTERABLE = frozenset(
    {
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
        "min.insync.replicas",
        "segment.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)
"""What users may set on internal topics: when they are compacted, and how many replicas a write waits for. All else,
``cleanup.policy`` first, decides whether coordinators find what they wrote."""
ALTERABLE_OF_AUDIT = ALTERABLE - {"max.compaction.lag.ms", "min.cleanable.dirty.ratio"} | {"retention.ms"}
_MESSAGE_BYTES_MAX = 16 << 20
"""A group is one record, whatever its size: ten thousand members with long subscriptions have a few MiB. So is the
decision of a unit of transactions."""


def plan_internal(kind: ShardKind, image: ClusterImage, chance: Chance) -> Plan:
    """
    The internal topic of a kind, on the brokers there are.

    Raises:
        CoordinatorNotAvailable: too few brokers have joined; it will work when they have.
    """
    name, prefix = INTERNAL_TOPICS[kind], _PREFIXES[kind]
    registered = image.brokers()
    alive = sum(_takes(n) for n in registered)
    expected = max(1, _number(image, "cluster.expected.brokers"))
    if alive < expected:
        raise CoordinatorNotAvailable(
            f"topic {name} waits for brokers: {alive} of {expected} have joined "
            "(cluster.expected.brokers); start the others, or lower that setting"
        )
    replicas = min(_number(image, f"{prefix}.replication.factor"), len(registered))
    count = AUDIT_PARTITIONS if kind is ShardKind.AUDIT else _number(image, f"{prefix}.num.partitions")
    assignments = place_replicas(image, range(count), replicas, chance)
    return Plan(name, internal_configs(kind, image), tuple(assignments), (), internal=True)


def internal_configs(kind: ShardKind, image: ClusterImage) -> dict[str, str]:
    """
    What an internal topic is made with. Its segments are small: what is read when a shard moves is what compaction has
    not reached yet.
    """
    prefix = _PREFIXES[kind]
    if kind is ShardKind.AUDIT:
        return {
            "cleanup.policy": "delete",
            "compression.type": "zstd",
            "max.message.bytes": str(_MESSAGE_BYTES_MAX),
            "min.insync.replicas": str(_number(image, f"{prefix}.min.isr")),
            "retention.bytes": "-1",
            "retention.ms": str(AUDIT_RETENTION_MS),
            "unclean.leader.election.enable": "false",
        }
    return {
        "cleanup.policy": "compact",
        "max.message.bytes": str(_MESSAGE_BYTES_MAX),
        "min.insync.replicas": str(_number(image, f"{prefix}.min.isr")),
        "segment.bytes": str(_number(image, f"{prefix}.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }


def internal_changes(topic: Topic, changes: Sequence[Alteration], image: ClusterImage) -> list[Alteration]:
    """
    Changes that users ask for, as they are made: what is to go back to its default goes to what the topic is made with.

    Raises:
        InvalidTopic: a setting that is the system's.
        InvalidConfig: the audit would be deleted too early.
    """
    kind = next(kind for kind, name in INTERNAL_TOPICS.items() if name == topic.name)
    alterable = ALTERABLE_OF_AUDIT if kind is ShardKind.AUDIT else ALTERABLE
    refused = sorted(c.name[:80] for c in changes if c.name not in alterable)
    if refused:
        raise InvalidTopic(
            f"{topic.name} is internal: {', '.join(refused)} {'is' if len(refused) == 1 else 'are'} the system's; "
            f"it takes {', '.join(sorted(alterable))}"
        )
    if kind is ShardKind.AUDIT:
        _check_retention(changes)
    made_with = internal_configs(kind, image)
    return [
        Alteration(c.name, Op.SET, made_with[c.name]) if c.op is Op.DELETE and c.name in made_with else c
        for c in changes
    ]


def _check_retention(changes: Sequence[Alteration]) -> None:
    for change in changes:
        if change.name == "retention.ms" and change.op is not Op.DELETE:
            number = change.value.strip()
            if number.lstrip("-").isdigit() and 0 <= int(number) < AUDIT_RETENTION_MS_MIN:
                raise InvalidConfig(f"the audit is kept for 7 days at least: retention.ms {AUDIT_RETENTION_MS_MIN}")


def add_replicas(image: ClusterImage) -> dict[PartitionId, tuple[NodeId, ...]]:
    """
    Replicas of internal partitions that have too few of them and could have more now.

    The new ones go to the brokers that hold the fewest of the topic, other racks first; the first of each (its
    preferred leader) is chosen anew, so that a topic made on one broker is not led by that one for ever.
    """
    takers = [n for n in image.brokers() if _takes(n) and not n.drained]
    targets: dict[PartitionId, tuple[NodeId, ...]] = {}
    for kind, name in INTERNAL_TOPICS.items():
        topic = image.topic(name)
        if topic is None:
            continue
        wanted = _number(image, f"{_PREFIXES[kind]}.replication.factor")
        spread = _Spread(image.partitions_of(topic), takers)
        for partition in image.partitions_of(topic):
            target = spread.grown(partition, wanted)
            if target != partition.replicas:
                targets[partition.id] = target
    return targets


class _Spread:
    """How many replicas and preferred leaderships of one topic each broker has, counted while more are given."""

    def __init__(self, partitions: list[Partition], takers: list[Node]) -> None:
        self._racks = {n.key.id: n.rack for n in takers}
        self._held = Counter(r for p in partitions for r in p.replicas)
        self._first = Counter(p.replicas[0] for p in partitions)

    def grown(self, partition: Partition, wanted: int) -> tuple[NodeId, ...]:
        replicas = partition.replicas
        if is_under_way(partition) or len(replicas) >= wanted:
            return replicas
        chosen = list(replicas)
        while len(chosen) < wanted and (free := [b for b in self._racks if b not in chosen]):
            used = {self._racks.get(b) for b in chosen}
            best = min(free, key=lambda b: (self._racks[b] is not None and self._racks[b] in used, self._held[b], b))
            self._held[best] += 1
            chosen.append(best)
        if len(chosen) == len(replicas):
            return replicas
        first = min(chosen, key=lambda b: (b not in self._racks, self._first[b] - (b == chosen[0]), b != chosen[0], b))
        self._first[chosen[0]] -= 1
        self._first[first] += 1
        return (first, *(b for b in chosen if b != first))


def _takes(node: Node) -> bool:
    return not node.fenced and not node.in_controlled_shutdown


def _number(image: ClusterImage, name: str) -> int:
    return int(image.cluster_configs.get(name, BROKER_SETTINGS[name].default))
