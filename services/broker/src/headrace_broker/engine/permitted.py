"""
The logs here as one caller may use them. Clients name topics by their ids, rules by their names: here the two meet.

Who may not use a topic is refused before it is told whether this broker has the partition, and who else leads it.
"""

from __future__ import annotations

from headrace_broker.engine.replicas import Replica, Replicas
from headrace_common.core.access.control import Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.right import Right
from headrace_common.core.errors import Denied, HeadraceError
from headrace_common.core.ids import PartitionId, TopicId


class Permitted:
    """For one stream or request, and one operation on topics. Rights that change count at once. One event loop."""

    def __init__(self, replicas: Replicas, rights: Rights, operation: Operation) -> None:
        self._replicas = replicas
        self._rights = rights
        self._operation = operation
        self._right = Right(rights, operation, ResourceType.TOPIC)
        self._get_leading, self._get_readable = replicas.get_leading, replicas.get_readable
        self._may = self._right.may  # a request may name 10,000 partitions

    def get_leading(self, partition: PartitionId, epoch: int | None) -> Replica:
        """
        As ``Replicas.get_leading``.

        Raises:
            Denied: the caller may not do this with the topic.
            HeadraceError: as there.
        """
        try:
            replica = self._get_leading(partition, epoch)
        except HeadraceError:
            self._check_unserved(partition.topic_id)
            raise
        if not self._may(replica.topic):
            raise self._refusal(replica.topic, partition.topic_id)
        return replica

    def get_readable(self, partition: PartitionId, epoch: int | None) -> Replica:
        """
        As ``Replicas.get_readable``.

        Raises:
            Denied, HeadraceError: as ``get_leading``.
        """
        try:
            replica = self._get_readable(partition, epoch)
        except HeadraceError:
            self._check_unserved(partition.topic_id)
            raise
        if not self._may(replica.topic):
            raise self._refusal(replica.topic, partition.topic_id)
        return replica

    def may(self, replica: Replica) -> bool:
        """Whether the caller may do this with its topic."""
        return self._right.may(replica.topic)

    def check(self, replica: Replica) -> None:
        """
        Raises:
            Denied: the caller may not do this with its topic.
        """
        if not self._right.may(replica.topic):
            raise self._refusal(replica.topic, replica.id.topic_id)

    def _check_unserved(self, topic_id: TopicId) -> None:
        """Of a topic that is not known it is told that it is not: an id says nothing to who does not have it."""
        topic = self._replicas.image.topics.get(topic_id)
        if topic is not None and not self._right.may(topic.name):
            raise self._refusal(topic.name, topic_id) from None

    def _refusal(self, name: str, topic_id: TopicId) -> Denied:
        """The name is told to who may know it."""
        if self._rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return self._right.refusal(name)
        shown = f"with the id {topic_id.hex()}"
        return self._rights.refusal(self._operation, ResourceType.TOPIC, shown, explained=False)
