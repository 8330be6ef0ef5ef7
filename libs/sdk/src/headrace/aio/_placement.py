"""
What the admin client asks about leaders and replicas: elections, reassignments, drained brokers.

``aio.admin`` is the only caller. Partitions are named by topic and number outside, by topic id on the wire; the ids
come from one listing of the topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.admin_types import PartitionInfo, Reassignment
from headrace.errors import HeadraceError, Rejected, error_for
from headrace.records import TopicPartition
from headrace_common.core.errors import unknown_topic
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

ELECTIONS: Final = {
    "preferred": pb.PREFERRED,
    "unclean": pb.UNCLEAN,
    "without_missing": pb.WITHOUT_MISSING,
}


class TopicIds:
    """Ids of topics by name, and back; a name or an id that is not there is told."""

    def __init__(self, ids: Mapping[str, bytes]) -> None:
        self._ids = ids
        self._names = {topic_id: name for name, topic_id in ids.items()}

    def ref(self, tp: TopicPartition) -> cluster_pb2.PartitionRef:
        """
        The partition on the wire.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
        """
        return cluster_pb2.PartitionRef(topic_id=self.id(tp.topic), partition=tp.partition)

    def id(self, topic: str) -> bytes:
        """
        Its 16 bytes.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
        """
        if topic not in self._ids:
            raise unknown_topic(topic)
        return self._ids[topic]

    def name(self, topic_id: bytes) -> str:
        """Its name; one that was made or deleted meanwhile is shown as its id."""
        return self._names.get(topic_id, topic_id.hex())


def elect_request(kind: str, partitions: Iterable[TopicPartition], ids: TopicIds) -> pb.ElectLeadersRequest:
    """
    For ``ElectLeaders``.

    Raises:
        Rejected: there is no such kind, or it needs partitions.
    """
    if kind not in ELECTIONS:
        raise Rejected(f"an election is {', '.join(map(repr, ELECTIONS))}, not {kind!r}")
    request = pb.ElectLeadersRequest(type=ELECTIONS[kind], partitions=[ids.ref(tp) for tp in partitions])
    if not request.partitions and kind != "preferred":
        raise Rejected(f"a {kind!r} election may lose records: name the partitions it is for")
    return request


def reassign_request(
    targets: Mapping[TopicPartition, Sequence[int] | None], ids: TopicIds, *, validate_only: bool
) -> pb.AlterReassignmentsRequest:
    """
    For ``AlterReassignments``.

    Raises:
        Rejected: replicas are given as an empty list.
    """
    request = pb.AlterReassignmentsRequest(validate_only=validate_only)
    for tp, replicas in targets.items():
        if replicas is not None and not replicas:
            raise Rejected(f"{tp} needs at least one replica; None cancels what is under way")
        request.reassignments.add(topic_id=ids.id(tp.topic), partition=tp.partition, replicas=replicas or ())
    return request


def outcomes(
    answered: Iterable[pb.PartitionOutcome], ids: TopicIds
) -> dict[TopicPartition, PartitionInfo | HeadraceError]:
    """What became of each partition."""
    results: dict[TopicPartition, PartitionInfo | HeadraceError] = {}
    for outcome in answered:
        tp = TopicPartition(ids.name(outcome.topic_id), outcome.partition)
        if outcome.error:
            results[tp] = error_for(outcome.error, f"{tp}: {outcome.message}" if outcome.message else f"{tp}")
        else:
            results[tp] = PartitionInfo.of(outcome.current)
    return results


def reassignments(partitions: Iterable[cluster_pb2.Partition], ids: TopicIds) -> list[Reassignment]:
    named = ((TopicPartition(ids.name(p.topic_id), p.partition), p) for p in partitions)
    return [Reassignment.of(p, partition=tp) for tp, p in sorted(named, key=lambda one: one[0])]
