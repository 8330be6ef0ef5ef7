"""
Whether a topic may be created, grown or deleted, and what exactly is then written. Called by the active controller.

A plan is all that is needed to write the topic; it holds no chance and no time, these come in as parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_common.core.configs import BROKER_SETTINGS, check_topic_configs
from headrace_common.core.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    Rejected,
    TopicAlreadyExists,
)
from headrace_common.core.ids import (
    PARTITIONS_PER_TOPIC_MAX,
    NodeId,
    PartitionId,
    TopicId,
    check_topic_name,
    names_collide,
)
from headrace_common.core.image import ClusterImage, Node, Partition, Topic
from headrace_controller.core.placement import Candidate, place

UNSET: Final = -1
INTERNAL_PREFIX: Final = "__"
REPLICAS_MAX: Final = 32
Assignments = Sequence[tuple[NodeId, ...]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic as it was asked for."""

    name: str
    partition_count: int = UNSET
    replication_factor: int = UNSET
    configs: Mapping[str, str] | None = None
    assignments: Assignments = ()


@dataclass(frozen=True, slots=True)
class Chance:
    """Where placement starts; drawn by the caller."""

    start: int
    shift: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What this version and this cluster allow."""

    replication_factor_max: int
    """1 until partitions are replicated."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be written."""

    name: str
    configs: Mapping[str, str]
    assignments: Assignments
    notes: tuple[str, ...]
    """What the one who asked should know: defaults that could not be met."""

    def topic(self, topic_id: TopicId) -> Topic:
        """The record of the topic."""
        return Topic(self.name, topic_id, len(self.assignments), dict(self.configs))


def plan_topic(wanted: Wanted, image: ClusterImage, chance: Chance, limits: Limits, taken: Iterable[str] = ()) -> Plan:
    """
    Check everything about a new topic and place it.

    Args:
        taken: names that are being created or deleted just now.

    Raises:
        InvalidTopic, TopicAlreadyExists, InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment,
        InvalidConfig: with what to do instead.
    """
    check_new_name(wanted.name, (*image.topic_ids, *taken))
    configs = check_topic_configs(wanted.configs or {})
    if wanted.assignments:
        if wanted.partition_count != UNSET or wanted.replication_factor != UNSET:
            raise Rejected("give either the placement or the numbers: with assignments both numbers are -1")
        check_assignments(wanted.assignments, image, limits)
        _check_count(len(wanted.assignments))
        return Plan(wanted.name, configs, tuple(wanted.assignments), ())
    count = wanted.partition_count
    if count == UNSET:
        count = int(_cluster_setting(image, "num.partitions"))
    _check_count(count)
    replicas, notes = _replication_factor(wanted.replication_factor, image, limits)
    placed = place(candidates(image), range(count), replicas, start=chance.start, shift=chance.shift)
    return Plan(wanted.name, configs, tuple(placed), notes)


def plan_growth(
    topic: Topic, count: int, assignments: Assignments, image: ClusterImage, chance: Chance, limits: Limits
) -> Assignments:
    """
    The replicas of each new partition.

    Raises:
        InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor, InvalidTopic: what to do instead.
    """
    if topic.internal:
        raise InvalidTopic(f"{topic.name} is internal; its partitions are set in the brokers' configuration")
    if count <= topic.partition_count:
        raise InvalidPartitions(
            f"{topic.name} has {topic.partition_count} partitions and partitions cannot be taken away; "
            f"ask for more than {topic.partition_count}"
        )
    _check_count(count)
    new = range(topic.partition_count, count)
    if assignments:
        if len(assignments) != len(new):
            raise InvalidReplicaAssignment(f"{len(new)} partitions are new; give {len(new)} assignments")
        check_assignments(assignments, image, limits)
        return tuple(assignments)
    first = image.partitions[PartitionId(topic.topic_id, 0)]
    return place(candidates(image), new, len(first.replicas), start=chance.start, shift=chance.shift)


def first_partition(id: PartitionId, replicas: tuple[NodeId, ...], unfenced: frozenset[NodeId]) -> Partition:
    """A partition at its birth: every unfenced replica is in sync, the first of them leads."""
    isr = tuple(r for r in replicas if r in unfenced)
    assert isr, "placement takes live brokers only"
    return Partition(id, replicas, isr, leader=isr[0], leader_epoch=0, partition_epoch=0)


def check_new_name(name: str, existing: Iterable[str]) -> None:
    """
    Whether a user may create a topic of this name.

    Raises:
        InvalidTopic: the name is not allowed, reserved, or too close to another.
        TopicAlreadyExists: there is one.
    """
    check_topic_name(name)
    if name.startswith(INTERNAL_PREFIX):
        raise InvalidTopic(
            f"names that start with {INTERNAL_PREFIX} are for internal topics; choose another than {name}"
        )
    for other in existing:
        if other == name:
            raise TopicAlreadyExists(f"topic {name} exists; use it, or delete it first")
        if names_collide(name, other):
            raise InvalidTopic(
                f"topic {name} would have the same metrics as {other}, since '.' and '_' look alike there; "
                "choose another name"
            )


def check_assignments(assignments: Assignments, image: ClusterImage, limits: Limits) -> None:
    """
    Whether a placement by hand can be used.

    Raises:
        InvalidReplicaAssignment: unknown or repeated brokers, uneven lengths, no live replica.
        InvalidReplicationFactor: more replicas than this version keeps.
    """
    brokers = {node.key.id: node for node in image.brokers()}
    width = len(assignments[0])
    for number, replicas in enumerate(assignments):
        if not replicas or len(replicas) != width:
            raise InvalidReplicaAssignment(
                f"entry {number} has {len(replicas)} replicas and entry 0 has {width}; give all the same number"
            )
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"entry {number} names a broker twice: {list(replicas)}; name each once")
        unknown = [r for r in replicas if r not in brokers]
        if unknown:
            raise InvalidReplicaAssignment(
                f"entry {number} names brokers that are not registered: {unknown}; there are {sorted(brokers)}"
            )
        if not any(_alive(brokers[r]) for r in replicas):
            raise InvalidReplicaAssignment(
                f"entry {number} names only brokers that are not alive: {list(replicas)}; start one or name others"
            )
    _check_gate(width, limits)


def candidates(image: ClusterImage) -> list[Candidate]:
    """The brokers that can take replicas now."""
    return [Candidate(n.key.id, n.rack) for n in image.brokers() if _alive(n)]


def min_insync(topic: Topic | None, replicas: int) -> int:
    """Effective ``min.insync.replicas``: as set for the topic, else 2 with three replicas or more, else 1."""
    own = None if topic is None else topic.configs.get("min.insync.replicas")
    return int(own) if own is not None else default_min_insync(replicas)


def default_min_insync(replicas: int) -> int:
    """What holds for a topic that does not say."""
    return 2 if replicas >= 3 else 1


def _alive(node: Node) -> bool:
    return not node.fenced and not node.in_controlled_shutdown


def _check_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitions(f"a topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}")


def _check_gate(replicas: int, limits: Limits) -> None:
    if replicas > limits.replication_factor_max:
        most = limits.replication_factor_max
        raise InvalidReplicationFactor(
            f"replication factor {replicas} was asked; this version keeps "
            f"{'one replica' if most == 1 else f'at most {most} replicas'} of a partition, use {most}"
        )


def _replication_factor(asked: int, image: ClusterImage, limits: Limits) -> tuple[int, tuple[str, ...]]:
    if asked != UNSET:
        if not 1 <= asked <= REPLICAS_MAX:
            raise InvalidReplicationFactor(f"a partition has 1 to {REPLICAS_MAX} replicas, not {asked}")
        _check_gate(asked, limits)
        return asked, ()
    default = int(_cluster_setting(image, "default.replication.factor"))
    possible = min(default, limits.replication_factor_max, max(1, len(image.brokers())))
    if possible == default:
        return default, ()
    why = "this version keeps no more" if possible == limits.replication_factor_max else "there are no more brokers"
    return possible, (f"created with {possible} of {default} replicas (default.replication.factor): {why}",)


def _cluster_setting(image: ClusterImage, name: str) -> str:
    return image.cluster_configs.get(name, BROKER_SETTINGS[name].default)
