"""
Whether a topic may be created, grown or deleted, and what exactly is then written. Called by the active controller.

A plan is all that is needed to write the topic; it holds no chance and no time, these come in as parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_common.core.configs import BROKER_SETTINGS, check_lags, check_topic_configs, min_isr_in_force
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
class Plan:
    """What is to be written."""

    name: str
    configs: Mapping[str, str]
    assignments: Assignments
    notes: tuple[str, ...]
    """What the one who asked should know: defaults that could not be met."""
    internal: bool = False
    """Made by the system."""

    def topic(self, topic_id: TopicId) -> Topic:
        return Topic(self.name, topic_id, len(self.assignments), dict(self.configs), self.internal)


def plan_topic(wanted: Wanted, image: ClusterImage, chance: Chance, taken: Iterable[str] = ()) -> Plan:
    """
    Check everything about a new topic and place it.

    Args:
        taken: names that are being created or deleted just now.

    Raises:
        InvalidTopic, TopicAlreadyExists, InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment,
        InvalidConfig: with what to do instead.
    """
    check_new_name(wanted.name, (*image.topic_ids, *taken))
    configs = check_topic_configs(wanted.configs or {}, image.feature_level)
    check_lags(configs, image.cluster_configs)
    if wanted.assignments:
        if wanted.partition_count != UNSET or wanted.replication_factor != UNSET:
            raise Rejected("give either the placement or the numbers: with assignments both numbers are -1")
        check_assignments(wanted.assignments, image)
        _check_count(len(wanted.assignments))
        return Plan(wanted.name, configs, tuple(wanted.assignments), ())
    count = wanted.partition_count
    if count == UNSET:
        count = int(_cluster_setting(image, "num.partitions"))
    _check_count(count)
    replicas, notes = _replication_factor(wanted.replication_factor, image)
    assignments = place_replicas(image, range(count), replicas, chance)
    return Plan(wanted.name, configs, tuple(assignments), notes)


def plan_growth(topic: Topic, count: int, assignments: Assignments, image: ClusterImage, chance: Chance) -> Assignments:
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
        check_assignments(assignments, image)
        return tuple(assignments)
    first = image.partitions[PartitionId(topic.topic_id, 0)]
    return place_replicas(image, new, len(first.replicas) - len(first.removing), chance)


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
        if names_collide(name, other):  # which may be one that the caller must not know of
            raise InvalidTopic(
                f"topic {name} would have the same metrics as one that exists, since '.' and '_' look alike there; "
                "choose another name"
            )


def check_assignments(assignments: Assignments, image: ClusterImage) -> None:
    """
    Whether a placement by hand can be used.

    Raises:
        InvalidReplicaAssignment: unknown or repeated brokers, uneven lengths, no live replica.
        InvalidReplicationFactor: more replicas than a partition can have.
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
    if width > REPLICAS_MAX:
        raise InvalidReplicationFactor(f"a partition has 1 to {REPLICAS_MAX} replicas, not {width}")


def min_isr_of(topic: Topic | None, partition: Partition) -> int:
    """``min.insync.replicas`` in force for a partition, as brokers reckon it too."""
    own = None if topic is None else topic.configs.get("min.insync.replicas")
    return min_isr_in_force(
        None if own is None else int(own),
        len(partition.replicas),
        adding=len(partition.adding),
        removing=len(partition.removing),
    )


def _alive(node: Node) -> bool:
    return not node.fenced and not node.in_controlled_shutdown


def _check_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitions(f"a topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}")


def _replication_factor(asked: int, image: ClusterImage) -> tuple[int, tuple[str, ...]]:
    if asked != UNSET:
        if not 1 <= asked <= REPLICAS_MAX:
            raise InvalidReplicationFactor(f"a partition has 1 to {REPLICAS_MAX} replicas, not {asked}")
        return asked, ()
    default = int(_cluster_setting(image, "default.replication.factor"))
    registered = len(image.brokers())
    possible = min(default, max(1, registered))
    if possible == default:
        return default, ()
    note = f"created with {possible} of {default} replicas (default.replication.factor): there are no more brokers"
    return possible, (note,)


def place_replicas(image: ClusterImage, partitions: range, replicas: int, chance: Chance) -> list[tuple[NodeId, ...]]:
    """
    The replicas of new partitions: on brokers that live and are not drained, on others only where those are too few.

    Raises:
        InvalidReplicationFactor: there are fewer brokers than replicas, or none that lives.
    """
    nodes = image.brokers()
    alive = [n for n in nodes if _alive(n)]
    best = [n for n in alive if not n.drained] or alive
    rest = sorted((n for n in nodes if n not in best), key=lambda n: (not _alive(n), n.key.id))
    first, others = ([Candidate(n.key.id, n.rack) for n in part] for part in (best, rest))
    return place(first, partitions, replicas, start=chance.start, shift=chance.shift, reserve=others)


def _cluster_setting(image: ClusterImage, name: str) -> str:
    return image.cluster_configs.get(name, BROKER_SETTINGS[name].default)
