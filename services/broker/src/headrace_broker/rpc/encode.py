"""Engine answers as messages of ``broker.proto``; pure, no decision about any partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headrace_broker.core.coordination import FoundCoordinator
from headrace_broker.core.copying import CopyAnswer
from headrace_broker.engine.broker import Trimmed
from headrace_broker.engine.describing import KnownProducers
from headrace_broker.engine.fetch import Fetched
from headrace_broker.engine.offsets import OffsetFound
from headrace_broker.engine.produce import Appended, ProduceCall
from headrace_common.core.errors import SHOWN_NAME_CHARS_MAX, ErrorCode, HeadraceError, unknown_topic
from headrace_common.core.ids import NO_NODE, PartitionId
from headrace_common.core.image import ClusterImage, Listener, Role, Topic
from headrace_common.rpc.convert import active_controller_to_proto, endpoint_to_proto, node_to_proto
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2, transaction_pb2

MESSAGE_CHARS_MAX = 4_000
NOBODY_REFUSED: Final[Mapping[str, HeadraceError]] = MappingProxyType({})


def code(error: HeadraceError | None) -> errors_pb2.ErrorCode.ValueType:
    """The error's number on the wire; the same as in the core."""
    return errors_pb2.NONE if error is None else errors_pb2.ErrorCode.ValueType(error.code)


def text(error: HeadraceError) -> str:
    """The sentence that goes with an error."""
    return str(error)[:MESSAGE_CHARS_MAX]


def hint(leader: tuple[int, int] | None, error: HeadraceError) -> pb.LeaderHint | None:
    """Who leads instead, where that helps."""
    if leader is None or error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return None
    return pb.LeaderHint(id=leader[0], leader_epoch=leader[1])


def produce_response(call: ProduceCall) -> pb.ProduceResponse:
    response = pb.ProduceResponse(correlation_id=call.correlation_id, throttle_ms=call.throttle_ms)
    add = response.partitions.add
    for partition, result in zip(call.partitions, call.results, strict=True):
        assert result is not None, "a call is answered when all its entries are decided"
        if result.error is None:
            add(
                topic_id=partition.topic_id,
                partition=partition.partition,
                base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time_ms,
                log_start_offset=result.log_start,
            )
        else:
            response.partitions.append(_encode_refused(partition, result, result.error))
    return response


def _encode_refused(partition: PartitionId, result: Appended, error: HeadraceError) -> pb.ProducePartitionResult:
    return pb.ProducePartitionResult(
        topic_id=partition.topic_id,
        partition=partition.partition,
        error=code(error),
        message=text(error),
        base_offset=result.base_offset,
        log_append_time_ms=-1,
        log_start_offset=-1,
        leader=hint(result.leader, error),
        fencing_token=result.fencing_token,
    )


def fetch_response(correlation_id: int, results: Iterable[Fetched], throttle_ms: int = 0) -> pb.FetchResponse:
    response = pb.FetchResponse(correlation_id=correlation_id, throttle_ms=throttle_ms)
    add = response.partitions.add
    for result in results:
        error = result.error
        message = add(
            topic_id=result.partition.topic_id,
            partition=result.partition.partition,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable,
            log_start_offset=result.log_start,
            batches=result.batches,
        )
        for aborted in result.aborted:
            message.aborted.add(producer_id=aborted.producer_id, first_offset=aborted.first, last_offset=aborted.last)
        if result.parted is not None:
            message.diverging.epoch, message.diverging.end_offset = result.parted
        if result.preferred is not None:
            message.preferred_replica = result.preferred
        if error is not None:
            message.error = code(error)
            message.message = text(error)
            leader = hint(result.leader, error)
            if leader is not None:
                message.leader.CopyFrom(leader)
    return response


def copy_answer(answer: CopyAnswer) -> pb.ReplicateResponse:
    """What a leader tells a follower."""
    response = pb.ReplicateResponse(number=answer.number)
    add = response.partitions.add
    for copied in answer.partitions:
        message = add(
            topic_id=copied.partition.topic_id,
            partition=copied.partition.partition,
            leader_epoch=copied.leader_epoch,
            high_watermark=copied.high_watermark,
            log_start=copied.log_start,
            batches=copied.batches,
            forgotten_to=copied.forgotten_to,
        )
        if copied.parted is not None:
            message.diverging.epoch, message.diverging.end_offset = copied.parted
        if copied.fencing_token >= 0:
            message.fencing_token = copied.fencing_token
        if copied.error is not None:
            message.error, message.message = code(copied.error), text(copied.error)
    return response


def copy_refused(error: HeadraceError) -> pb.ReplicateResponse:
    return pb.ReplicateResponse(error=code(error), message=text(error))


def fetch_refused(correlation_id: int, error: HeadraceError) -> pb.FetchResponse:
    """The request as a whole was wrong."""
    return pb.FetchResponse(correlation_id=correlation_id, error=code(error), message=text(error))


def offset_result(partition: PartitionId, found: OffsetFound) -> pb.ListOffsetsPartitionResult:
    """One partition of ListOffsets."""
    error = found.error
    return pb.ListOffsetsPartitionResult(
        topic_id=partition.topic_id,
        partition=partition.partition,
        error=code(error),
        message=None if error is None else text(error),
        offset=found.offset,
        timestamp_ms=found.timestamp_ms,
        leader_epoch=found.leader_epoch,
    )


def trim_result(trimmed: Trimmed) -> pb.DeleteRecordsResult:
    """One partition of DeleteRecords."""
    error = trimmed.error
    return pb.DeleteRecordsResult(
        topic_id=trimmed.partition.topic_id,
        partition=trimmed.partition.partition,
        error=code(error),
        message=None if error is None else text(error),
        log_start_offset=trimmed.log_start,
    )


_LACKING: Final[Mapping[Listener, str]] = {
    Listener.EXTERNAL: "from outside: it has no external_advertise",
    Listener.MTLS: "with a certificate: it has no mtls_listen",
}


def coordinator(found: FoundCoordinator, *, listener: Listener = Listener.CLIENT) -> pb.CoordinatorOfKey:
    """One key of FindCoordinator, for a client that asks at ``listener``."""
    message = pb.CoordinatorOfKey(key=found.key, shard=found.shard, shard_epoch=found.shard_epoch)
    if found.error is not None:
        message.error, message.message = code(found.error), text(found.error)
    elif found.node is not None:
        node = found.node.seen_from(listener)
        if node is None:
            message.error = errors_pb2.COORDINATOR_NOT_AVAILABLE
            message.message = f"coordinator {found.node.key.id} cannot be reached {_LACKING.get(listener, '')}"
        else:
            message.coordinator = node.key.id
            message.endpoint.CopyFrom(endpoint_to_proto(node.grpc))
    return message


def metadata(
    image: ClusterImage,
    names: Iterable[str],
    max_message_bytes: dict[bytes, int],
    *,
    listener: Listener = Listener.CLIENT,
    refused: Mapping[str, HeadraceError] = NOBODY_REFUSED,
) -> pb.MetadataResponse:
    """
    The image for clients, with the topics of these names.

    ``listener``: where the client asks; it is told the addresses of the same, and nothing of nodes without one.
    ``refused``: names of which nothing is told, and what is said instead.
    """
    described = [
        _encode_named(image, name, max_message_bytes) if name not in refused else _named_error(name, refused[name])
        for name in dict.fromkeys(names)
    ]
    shown = (
        node.seen_from(listener)
        for node in image.nodes.values()
        if (node.key.role is Role.BROKER and not node.fenced) or node.key.role is Role.ADMIN
    )
    nodes = [node_to_proto(node) for node in shown if node is not None]
    active = image.active_controller
    if listener is Listener.EXTERNAL and active is not None:
        active = replace(active, grpc=None)
    return pb.MetadataResponse(
        cluster_id=image.cluster_id,
        revision=image.revision,
        nodes=nodes,
        topics=described,
        active_controller=None if active is None or active.id < 0 else active_controller_to_proto(active),
        incarnation=image.incarnation,
        feature_level=image.feature_level,
    )


def _encode_named(image: ClusterImage, name: str, max_message_bytes: dict[bytes, int]) -> pb.TopicMetadata:
    topic = image.topic(name)
    if topic is not None:
        return _topic(image, topic, max_message_bytes)
    return _named_error(name, unknown_topic(name))


def _named_error(name: str, error: HeadraceError) -> pb.TopicMetadata:
    return pb.TopicMetadata(error=code(error), message=text(error), name=name[:SHOWN_NAME_CHARS_MAX])


def _topic(image: ClusterImage, topic: Topic, max_message_bytes: dict[bytes, int]) -> pb.TopicMetadata:
    message = pb.TopicMetadata(
        name=topic.name,
        topic_id=topic.topic_id,
        internal=topic.internal,
        max_message_bytes=max_message_bytes[topic.topic_id],
    )
    add = message.partitions.add
    for partition in image.partitions_of(topic):
        add(
            partition=partition.id.partition,
            leader=NO_NODE if partition.offline else partition.leader,
            leader_epoch=partition.leader_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
        )
    return message


def marker_result(errors: Sequence[HeadraceError | None]) -> transaction_pb2.TxnMarkerResult:
    message = transaction_pb2.TxnMarkerResult()
    add = message.partitions.add
    for error in errors:
        if error is None:
            add()
        else:
            add(error=code(error), message=text(error))
    return message


def partition_producers(found: KnownProducers) -> pb.PartitionProducers:
    message = pb.PartitionProducers(
        topic_id=found.partition.topic_id,
        partition=found.partition.partition,
        error=code(found.error),
        message=None if found.error is None else text(found.error),
        high_watermark=found.high_watermark,
        last_stable_offset=found.last_stable,
        more=found.more,
    )
    for row in found.producers:
        opened = row.transaction_start is not None
        message.producers.add(
            producer_id=row.producer_id,
            producer_epoch=row.epoch,
            last_sequence=row.batches[-1].last_sequence if row.batches else -1,
            last_timestamp_ms=row.last_timestamp_ms,
            transaction_start=row.transaction_start,
            transaction_since_ms=row.transaction_since_ms if opened else None,
        )
    return message
