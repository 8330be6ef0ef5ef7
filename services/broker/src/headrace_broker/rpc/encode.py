"""Engine answers as messages of ``broker.proto``; pure, no decision about any partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace_broker.core.coordination import FoundCoordinator
from headrace_broker.core.copying import CopyAnswer
from headrace_broker.core.rows import SegmentRow
from headrace_broker.core.topic_notes import TopicNote
from headrace_broker.engine.broker import Trimmed
from headrace_broker.engine.cleaner import Compaction
from headrace_broker.engine.describing import KnownProducers, oldest_ms, stored_bytes
from headrace_broker.engine.fetch import Fetched
from headrace_broker.engine.inventory import Page
from headrace_broker.engine.offsets import OffsetFound
from headrace_broker.engine.produce import Appended, ProduceCall
from headrace_broker.engine.replicas import ACCEPT_LOSS, Replica, Standing
from headrace_broker.engine.scrubber import Scrub
from headrace_broker.ports import RecoveryReport
from headrace_common.core.errors import ErrorCode, HeadraceError, unknown_topic
from headrace_common.core.ids import NO_NODE, PartitionId
from headrace_common.core.image import ClusterImage, Role, Topic
from headrace_common.rpc.convert import active_controller_to_proto, endpoint_to_proto, node_to_proto, topic_to_proto
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2, transaction_pb2

MESSAGE_CHARS_MAX = 4_000

_STATES = {
    Standing.ONLINE: pb.ONLINE,
    Standing.STRAY: pb.STRAY,
    Standing.DAMAGED: pb.DAMAGED,
    Standing.DELETING: pb.DELETING,
}


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
    """The answer to one produce request."""
    response = pb.ProduceResponse(correlation_id=call.correlation_id)
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
            response.partitions.append(_refused(partition, result, result.error))
    return response


def _refused(partition: PartitionId, result: Appended, error: HeadraceError) -> pb.ProducePartitionResult:
    return pb.ProducePartitionResult(
        topic_id=partition.topic_id,
        partition=partition.partition,
        error=code(error),
        message=text(error),
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        leader=hint(result.leader, error),
        fencing_token=result.fencing_token,
    )


def fetch_response(correlation_id: int, results: Iterable[Fetched]) -> pb.FetchResponse:
    """The answer to one fetch request."""
    response = pb.FetchResponse(correlation_id=correlation_id)
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
    """The stream ends."""
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


def coordinator(found: FoundCoordinator, *, outside: bool = False) -> pb.CoordinatorOfKey:
    """One key of FindCoordinator; ``outside``: for a client that reaches external addresses only."""
    message = pb.CoordinatorOfKey(key=found.key, shard=found.shard, shard_epoch=found.shard_epoch)
    if found.error is not None:
        message.error, message.message = code(found.error), text(found.error)
    elif found.node is not None:
        node = found.node.from_outside() if outside else found.node
        if node is None:
            message.error = errors_pb2.COORDINATOR_NOT_AVAILABLE
            message.message = (
                f"coordinator {found.node.key.id} cannot be reached from outside: it has no external_advertise"
            )
        else:
            message.coordinator = node.key.id
            message.endpoint.CopyFrom(endpoint_to_proto(node.grpc))
    return message


def metadata(
    image: ClusterImage, names: Iterable[str] | None, max_message_bytes: dict[bytes, int], *, outside: bool = False
) -> pb.MetadataResponse:
    """
    The image for clients; ``names`` None: every topic.

    ``outside``: for a client that reaches external addresses only; it is told no others, nor of nodes without one.
    """
    topics = sorted(image.topics.values(), key=lambda topic: topic.name) if names is None else None
    described = (
        [_topic(image, topic, max_message_bytes) for topic in topics]
        if topics is not None
        else [_named(image, name, max_message_bytes) for name in dict.fromkeys(names or ())]
    )
    shown = (
        node.from_outside() if outside else node.for_clients()
        for node in image.nodes.values()
        if (node.key.role is Role.BROKER and not node.fenced) or node.key.role is Role.ADMIN
    )
    nodes = [node_to_proto(node) for node in shown if node is not None]
    active = image.active_controller
    if outside and active is not None:
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


def _named(image: ClusterImage, name: str, max_message_bytes: dict[bytes, int]) -> pb.TopicMetadata:
    topic = image.topic(name)
    if topic is not None:
        return _topic(image, topic, max_message_bytes)
    return pb.TopicMetadata(
        error=errors_pb2.UNKNOWN_TOPIC_OR_PARTITION,
        message=str(unknown_topic(name)),
        name=name[:249],
    )


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


def log_description(
    replica: Replica,
    segments: Sequence[SegmentRow] | None,
    compaction: Compaction | None = None,
    known_as: TopicNote | None = None,
    unreadable: str | None = None,
) -> pb.LogDescription:
    """One log of this broker; ``known_as``: what is noted of its topic; ``unreadable``: a batch of it."""
    core = replica.core
    damage = replica.damage
    note = None
    if damage is not None:
        note = (
            f"lost acknowledged records {damage.recovered_end} to {damage.evident_end - 1}: {damage.reason};"
            f" {ACCEPT_LOSS}"
        )
    elif replica.standing is Standing.STRAY:
        name = "" if known_as is None else f"; last heard of as {known_as.topic.name}-{replica.id.partition}"
        note = f"not in the cluster's metadata: kept, not served{name}"
    return pb.LogDescription(
        topic_id=replica.id.topic_id,
        partition=replica.id.partition,
        state=_STATES[replica.standing],
        log_start_offset=core.log_start,
        log_end_offset=core.log_end,
        high_watermark=core.high_watermark,
        size_bytes=stored_bytes(core),
        leader_epoch=core.epochs.latest,
        segments=[_segment(row, core.log_start, core.log_end) for row in segments or ()],
        note=note,
        fencing_token=core.fences.token if core.fences.token >= 0 else None,
        last_stable_offset=core.last_stable,
        oldest_open=_oldest_open(replica),
        oldest_timestamp_ms=oldest_ms(core),
        compaction=None if compaction is None else _compaction(compaction),
        unreadable=unreadable,
    )


def scrub(found: Scrub) -> pb.Scrub:
    """How far the scrub of this broker is."""
    return pb.Scrub(
        running=found.running,
        logs=found.logs,
        logs_done=found.logs_done,
        bytes_read=found.bytes_read,
        lost_logs=found.lost,
        last_ended_ms=found.last_ended_ms,
    )


def inventory_page(page: Page) -> pb.InventoryResponse:
    """One answer of Inventory."""
    return pb.InventoryResponse(
        topics=[
            pb.HeldTopic(topic=topic_to_proto(note.topic), incarnation=note.incarnation, revision=note.revision)
            for note in page.topics
        ],
        logs=[
            pb.HeldLog(
                topic_id=log.id.topic_id,
                partition=log.id.partition,
                last_epoch=log.last_epoch,
                written_end=log.written_end,
                damaged=log.damaged,
                known_epoch=log.known_epoch,
                fencing_token=log.fencing_token,
            )
            for log in page.logs
        ],
    )


def _compaction(found: Compaction) -> pb.LogCompaction:
    return pb.LogCompaction(
        cleaned_to=found.cleaned_to,
        cleanable_to=found.cleanable_to,
        clean_bytes=found.clean_bytes,
        dirty_bytes=found.dirty_bytes,
        last_ms=found.last_ms,
        waits_for=found.waits_for,
        stuck=found.stuck,
    )


def _oldest_open(replica: Replica) -> pb.LogTransaction | None:
    found = replica.core.producers.oldest_open()
    if found is None:
        return None
    producer_id, known = found
    return pb.LogTransaction(
        producer_id=producer_id,
        producer_epoch=known.epoch,
        first_offset=known.transaction_start or 0,
        since_ms=known.transaction_since_ms,
    )


def marker_result(errors: Sequence[HeadraceError | None]) -> transaction_pb2.TxnMarkerResult:
    """One marker of WriteTxnMarkers."""
    message = transaction_pb2.TxnMarkerResult()
    add = message.partitions.add
    for error in errors:
        if error is None:
            add()
        else:
            add(error=code(error), message=text(error))
    return message


def partition_producers(found: KnownProducers) -> pb.PartitionProducers:
    """One partition of DescribeProducers."""
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


def _segment(row: SegmentRow, log_start: int, log_end: int) -> pb.SegmentDescription:
    end = log_end if row.end_offset is None else row.end_offset
    return pb.SegmentDescription(
        base_offset=row.base_offset,
        end_offset=end,
        size_bytes=row.size if log_start < end else 0,
        created_at_ms=row.created_at_ms,
        sealed_at_ms=row.sealed_at_ms,
        min_timestamp_ms=row.min_timestamp,
        max_timestamp_ms=row.max_timestamp,
    )


def report_text(report: RecoveryReport) -> str:
    """What opening the data directory found, in sentences."""
    first = (
        f"{'clean' if report.clean else 'unclean'} start: {report.logs} logs, {report.bytes_checked} bytes checked in"
        f" {report.seconds:.2f} s"
    )
    damaged = [f"{one.partition}: {one.reason}" for one in report.damaged]
    return "; ".join([first, *report.cuts, *damaged])
