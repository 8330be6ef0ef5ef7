"""
Logs that brokers have and the metadata does not know: what is listed of them, and how a topic is made of them again.

Called for ``DescribeRestore`` and ``AdoptTopic``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_common.core.errors import (
    InvalidPartitions,
    Rejected,
    TopicAlreadyExists,
    UnknownTopicId,
)
from headrace_common.core.ids import PARTITIONS_PER_TOPIC_MAX, NodeId, PartitionId, TopicId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, Topic
from headrace_controller.core.held import HeldLog, HeldTopic, Inventories, by_partition, by_topic, notes_of
from headrace_controller.core.restoring import TopicPlan, adoption, count_in
from headrace_controller.core.topics import check_new_name


@dataclass(frozen=True, slots=True)
class Stray:
    """The stray logs of one topic."""

    topic_id: TopicId
    topic: Topic | None
    """As brokers remember it; None: none does."""
    logs: Mapping[tuple[int, NodeId], HeldLog]
    """By partition and broker, ascending."""
    note: str | None


def strays(image: ClusterImage, inventories: Inventories) -> list[Stray]:
    """Every log that is no replica of the image and not ordered to be deleted, by topic."""
    found: dict[TopicId, dict[tuple[int, NodeId], HeldLog]] = {}
    for id, holders in by_partition(inventories).items():
        for broker, log in holders.items():
            if not _has_place(image, id, broker):
                found.setdefault(id.topic_id, {})[id.partition, broker] = log
    notes = _newest(image, inventories)
    return [
        Stray(topic_id, notes.get(topic_id), dict(sorted(logs.items())), _why(image, topic_id, notes.get(topic_id)))
        for topic_id, logs in sorted(found.items())
    ]


def plan_adoption(
    image: ClusterImage, inventories: Inventories, topic_id: TopicId, name: str | None, partition_count: int
) -> TopicPlan:
    """
    The topic that is made of stray logs.

    Args:
        name: None: the one that it had.
        partition_count: 0: as many as brokers remember, or as there are logs.

    Raises:
        UnknownTopicId: no broker has a log of it.
        TopicAlreadyExists, InvalidTopic: it is no stray, or the name is taken or not allowed.
        Rejected: no broker knows its name and none was given.
        InvalidPartitions: fewer than there are logs, or too many.
    """
    if topic_id in image.topics:
        raise TopicAlreadyExists(
            f"topic {topic_id.hex()} exists, as {image.topics[topic_id].name}; it needs no adoption"
        )
    held = by_topic(by_partition(inventories)).get(topic_id)
    if held is None:
        raise UnknownTopicId(f"no broker has a log of topic {topic_id.hex()}; list the strays for those that there are")
    if topic_id in image.deletions:
        raise TopicAlreadyExists(f"topic {topic_id.hex()} was deleted and its logs are on their way out")
    known = _newest(image, inventories).get(topic_id)
    if known is None and name is None:
        raise Rejected(f"no broker knows the name of topic {topic_id.hex()}; give one")
    topic = Topic(name or "", topic_id, 0) if known is None else known
    if name is not None and name != topic.name:
        topic = Topic(name, topic_id, topic.partition_count, topic.configs)
    _check_name(image, topic)
    least = count_in(held)
    if partition_count and not least <= partition_count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitions(
            f"there are logs of {least} partitions; ask for {least} to {PARTITIONS_PER_TOPIC_MAX}, or for 0 to have "
            "as many as brokers remember"
        )
    count = partition_count or max(topic.partition_count, least, 1)
    whole = Topic(topic.name, topic_id, count, topic.configs, topic.internal)
    return adoption(whole, held, sorted(inventories))


def _check_name(image: ClusterImage, topic: Topic) -> None:
    if not topic.internal or topic.name not in INTERNAL_TOPICS.values():
        check_new_name(topic.name, image.topic_ids)
    elif topic.name in image.topic_ids:
        raise TopicAlreadyExists(f"topic {topic.name} exists; give the stray one another name")


def _has_place(image: ClusterImage, id: PartitionId, broker: NodeId) -> bool:
    partition = image.partitions.get(id)
    if partition is not None and broker in partition.replicas:
        return True
    removal = image.removals.get(id)
    return id.topic_id in image.deletions or (removal is not None and broker in removal.pending)


def _newest(image: ClusterImage, inventories: Inventories) -> dict[TopicId, Topic]:
    best: dict[TopicId, HeldTopic] = {}
    for note in notes_of(inventories):
        known = best.get(note.topic.topic_id)
        if known is None or _age(image, note) > _age(image, known):
            best[note.topic.topic_id] = note
    return {topic_id: note.topic for topic_id, note in best.items()}


def _age(image: ClusterImage, note: HeldTopic) -> tuple[bool, int]:
    return note.incarnation == image.incarnation, note.revision


def _why(image: ClusterImage, topic_id: TopicId, known: Topic | None) -> str | None:
    topic = image.topics.get(topic_id)
    if topic is not None:
        return f"topic {topic.name} exists and has other replicas; these logs are left over"
    if known is None:
        return "no broker knows its name"
    return f"its name {known.name} is taken" if known.name in image.topic_ids else None
