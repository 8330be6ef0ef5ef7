"""Between the engine's values and the messages of ``controller.proto``; decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace_common.core.access.resources import CLUSTER_NAME, ResourceType
from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import Partition
from headrace_common.rpc.convert import partition_id_from_proto, partition_to_proto, topic_to_proto
from headrace_controller.core.isr_changes import Proposal
from headrace_controller.core.leadership import Election
from headrace_controller.core.restore_record import Restore
from headrace_controller.core.settings import (
    Alteration,
    BrokerResource,
    Entry,
    Op,
    Resource,
    Source,
    TopicResource,
    broker_resource,
)
from headrace_controller.core.strays import Stray
from headrace_controller.core.topics import Assignments, Wanted
from headrace_controller.engine.strays import RestoreStatus
from headrace_controller.engine.topics import Described
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1 import errors_pb2

_SOURCES: Final = {
    Source.DEFAULT: pb.DEFAULT_CONFIG,
    Source.CLUSTER: pb.DYNAMIC_DEFAULT_BROKER_CONFIG,
    Source.BROKER: pb.DYNAMIC_BROKER_CONFIG,
    Source.TOPIC: pb.DYNAMIC_TOPIC_CONFIG,
}
_ELECTIONS: Final[Mapping[int, Election]] = {
    pb.PREFERRED: Election.PREFERRED,
    pb.UNCLEAN: Election.UNCLEAN,
    pb.WITHOUT_MISSING: Election.WITHOUT_MISSING,
}
_OPS: Final = {pb.SET: Op.SET, pb.DELETE: Op.DELETE, pb.APPEND: Op.APPEND, pb.SUBTRACT: Op.SUBTRACT}


def decode_topic(topic: pb.NewTopic) -> Wanted:
    return Wanted(
        name=topic.name,
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        assignments=assignments(topic.assignments),
    )


def assignments(entries: Iterable[pb.ReplicaAssignment]) -> Assignments:
    return tuple(tuple(map(NodeId, entry.replicas)) for entry in entries)


def description(described: Described) -> pb.TopicDescription:
    """A topic with its partitions."""
    return pb.TopicDescription(
        topic=topic_to_proto(described.topic),
        partitions=map(partition_to_proto, described.partitions),
        notes=described.notes,
    )


def topic_result(name: str, result: Described | HeadraceError) -> pb.TopicResult:
    if isinstance(result, HeadraceError):
        return pb.TopicResult(name=name, error=_code(result), message=str(result))
    return pb.TopicResult(name=name, topic=description(result))


def restore_status(status: RestoreStatus) -> pb.DescribeRestoreResponse:
    restore = status.restore
    return pb.DescribeRestoreResponse(
        restore=None if restore is None else _restore(restore, status.missing),
        strays=map(_stray, status.strays),
        silent=status.silent,
    )


def _restore(restore: Restore, missing: Sequence[NodeId]) -> pb.Restore:
    return pb.Restore(
        backup_revision=restore.backup_revision,
        backup_time_ms=restore.backup_time_ms,
        restore_time_ms=restore.restore_time_ms,
        expected=restore.expected,
        missing=missing,
        finished=restore.finished,
        adopted_topics=restore.adopted_topics,
        empty_topics=restore.empty_topics,
    )


def _stray(stray: Stray) -> pb.StrayTopic:
    return pb.StrayTopic(
        topic_id=stray.topic_id,
        topic=None if stray.topic is None else topic_to_proto(stray.topic),
        logs=[
            pb.StrayLog(broker_id=broker, partition=number, log_end_offset=log.end, damaged=log.damaged)
            for (number, broker), log in stray.logs.items()
        ],
        note=stray.note,
    )


def resource(message: pb.ConfigResource) -> Resource:
    """
    What settings belong to.

    Raises:
        Rejected: an unknown type, or a broker that is no number.
    """
    if message.type == pb.TOPIC_CONFIG:
        return TopicResource(message.name)
    if message.type == pb.BROKER_CONFIG:
        return broker_resource(message.name)
    raise Rejected(f"config resource type {message.type} is not known; use TOPIC_CONFIG or BROKER_CONFIG")


def accessed(target: Resource) -> tuple[ResourceType, str]:
    """Whose rights are asked for settings of ``target``: those on the topic, or on the cluster for all of brokers."""
    match target:
        case TopicResource(name):
            return ResourceType.TOPIC, name
        case BrokerResource():
            return ResourceType.CLUSTER, CLUSTER_NAME


def alterations(changes: Sequence[pb.AlterConfig]) -> list[Alteration]:
    """
    What is to be changed.

    Raises:
        Rejected: an unknown operation.
    """
    unknown = [c.op for c in changes if c.op not in _OPS]
    if unknown:
        raise Rejected(f"operation {unknown[0]} is not known; use SET, DELETE, APPEND or SUBTRACT")
    return [Alteration(c.name, _OPS[c.op], c.value) for c in changes]


def config_result(message: pb.ConfigResource, result: Sequence[Entry] | HeadraceError) -> pb.ConfigResult:
    """One resource's part of an answer."""
    if isinstance(result, HeadraceError):
        return pb.ConfigResult(resource=message, error=_code(result), message=str(result))
    entries = [
        pb.ConfigEntry(
            name=e.setting.name,
            value=e.value,
            source=_SOURCES[e.source],
            read_only=not e.setting.dynamic,
            documentation=e.setting.doc,
            type=e.setting.type.value,
        )
        for e in result
    ]
    return pb.ConfigResult(resource=message, entries=entries)


def proposal(message: pb.AlterPartition) -> Proposal:
    """
    A new ISR that a leader asks for.

    Raises:
        Rejected: a malformed topic id, or a member named twice.
    """
    id = partition_id_from_proto(message)
    isr = {NodeId(m.broker_id): m.broker_epoch if m.HasField("broker_epoch") else None for m in message.isr}
    if len(isr) != len(message.isr):
        raise Rejected(f"the ISR proposed for {id} names a broker twice; name each once")
    return Proposal(id, message.leader_epoch, message.partition_epoch, isr, resign=message.resign)


def isr_result(id: PartitionId, result: Partition | HeadraceError) -> pb.AlterPartitionResult:
    """One proposal's part of an answer."""
    if isinstance(result, HeadraceError):
        error, text = _code(result), str(result)
        return pb.AlterPartitionResult(topic_id=id.topic_id, partition=id.partition, error=error, message=text)
    now = partition_to_proto(result)
    return pb.AlterPartitionResult(topic_id=id.topic_id, partition=id.partition, current=now)


def election(kind: int) -> Election:
    """
    What kind of election is asked for.

    Raises:
        Rejected: unspecified, or not known here.
    """
    if kind not in _ELECTIONS:
        raise Rejected(f"election type {kind} is not known; use PREFERRED, UNCLEAN or WITHOUT_MISSING")
    return _ELECTIONS[kind]


def outcome(id: PartitionId, result: Partition | HeadraceError) -> pb.PartitionOutcome:
    """One partition's part of the answer to a command."""
    if isinstance(result, HeadraceError):
        error, text = _code(result), str(result)
        return pb.PartitionOutcome(topic_id=id.topic_id, partition=id.partition, error=error, message=text)
    return pb.PartitionOutcome(topic_id=id.topic_id, partition=id.partition, current=partition_to_proto(result))


def _code(error: HeadraceError) -> errors_pb2.ErrorCode.ValueType:
    return errors_pb2.ErrorCode.ValueType(error.code)
