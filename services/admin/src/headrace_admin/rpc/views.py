"""Messages of the wire as the shapes of REST."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from headrace_admin.rpc import models
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import ClusterImage
from headrace_common.core.problems import problem_body
from headrace_common.rpc.status import error_of
from headrace_proto.v1 import admin_pb2, broker_pb2, cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

Source = Literal["default", "static", "cluster", "broker", "topic", "unknown"]

_SOURCES: Final[Mapping[int, Source]] = {
    pb.DEFAULT_CONFIG: "default",
    pb.STATIC_BROKER_CONFIG: "static",
    pb.DYNAMIC_DEFAULT_BROKER_CONFIG: "cluster",
    pb.DYNAMIC_BROKER_CONFIG: "broker",
    pb.DYNAMIC_TOPIC_CONFIG: "topic",
}
_STATES: Final[Mapping[int, str]] = {
    broker_pb2.ONLINE: "online",
    broker_pb2.STRAY: "stray",
    broker_pb2.DAMAGED: "damaged",
    broker_pb2.DELETING: "deleting",
}
_ROLES: Final[Mapping[int, str]] = {
    cluster_pb2.BROKER: "broker",
    cluster_pb2.CONTROLLER: "controller",
    cluster_pb2.COORDINATOR: "coordinator",
    cluster_pb2.ADMIN: "admin",
}

Sizes = Mapping[int, broker_pb2.LogDescription]


def _address(endpoint: cluster_pb2.Endpoint) -> str:
    return str(Endpoint(endpoint.host, endpoint.port))


def broker_out(node: cluster_pb2.Node) -> models.Broker:
    """A registered broker."""
    return models.Broker(
        id=node.id,
        grpc=_address(node.grpc),
        metrics=_address(node.metrics) if node.HasField("metrics") else None,
        rack=node.rack if node.HasField("rack") else None,
        epoch=node.epoch,
        fenced=node.fenced,
        in_controlled_shutdown=node.in_controlled_shutdown,
        drained=node.drained,
        version=node.version,
    )


def brokers_out(nodes: Iterable[cluster_pb2.Node]) -> list[models.Broker]:
    """All registered brokers, by id."""
    return sorted((broker_out(n) for n in nodes if n.role == cluster_pb2.BROKER), key=lambda b: b.id)


def cluster_out(cluster: pb.DescribeClusterResponse) -> models.Cluster:
    """The cluster at a glance."""
    active = cluster.active_controller
    return models.Cluster(
        cluster_id=cluster.cluster_id,
        revision=cluster.revision,
        metadata_store_reachable=cluster.metadata_store_reachable,
        active_controller=(
            models.ActiveController(
                id=active.id, epoch=active.epoch, grpc=_address(active.grpc) if active.HasField("grpc") else None
            )
            if cluster.HasField("active_controller") and active.id >= 0
            else None
        ),
        topic_count=cluster.topic_count,
        partition_count=cluster.partition_count,
        offline_partition_count=cluster.offline_partition_count,
        under_replicated_partition_count=cluster.under_replicated_partition_count,
        under_min_isr_partition_count=cluster.under_min_isr_partition_count,
        not_preferred_partition_count=cluster.not_preferred_partition_count,
        reassigning_partition_count=cluster.reassigning_partition_count,
        recovering_partition_count=cluster.recovering_partition_count,
        brokers=brokers_out(cluster.nodes),
        other_nodes=[_other(n) for n in cluster.nodes if n.role != cluster_pb2.BROKER],
    )


def _other(node: cluster_pb2.Node) -> models.OtherNode:
    return models.OtherNode(
        role=_ROLES.get(node.role, "unknown"),
        id=node.id,
        grpc=_address(node.grpc),
        http=_address(node.http) if node.HasField("http") else None,
        metrics=_address(node.metrics) if node.HasField("metrics") else None,
        fenced=node.fenced,
        version=node.version,
    )


def topics_out(answer: pb.ListTopicsResponse) -> models.Topics:
    """One page."""
    topics = [
        models.TopicSummary(
            name=t.name,
            id=t.topic_id.hex(),
            partitions=t.partition_count,
            internal=t.internal,
            configs=dict(t.configs),
        )
        for t in answer.topics
    ]
    return models.Topics(topics=topics, total=answer.total, next=topics[-1].name if answer.more and topics else None)


def topic_out(topic: pb.TopicDescription, sizes: Sizes) -> models.Topic:
    """A topic; ``sizes`` are the leaders' logs by partition, where they are known."""
    partitions = sorted(topic.partitions, key=lambda p: p.partition)
    return models.Topic(
        name=topic.topic.name,
        id=topic.topic.topic_id.hex(),
        internal=topic.topic.internal,
        configs=dict(topic.topic.configs),
        partitions=[partition_out(p, sizes.get(p.partition)) for p in partitions],
        notes=list(topic.notes),
    )


def partition_out(p: cluster_pb2.Partition, log: broker_pb2.LogDescription | None = None) -> models.Partition:
    """A partition; ``log`` is its leader's, where it is known."""
    return models.Partition(
        partition=p.partition,
        leader=p.leader if p.leader >= 0 else None,
        leader_epoch=p.leader_epoch,
        replicas=list(p.replicas),
        isr=list(p.isr),
        elr=list(p.elr),
        recovering=p.recovering,
        adding=list(p.adding),
        removing=list(p.removing),
        log_start_offset=None if log is None else log.log_start_offset,
        high_watermark=None if log is None else log.high_watermark,
        last_stable_offset=None if log is None else log.last_stable_offset,
        size_bytes=None if log is None else log.size_bytes,
        oldest_timestamp_ms=None if log is None else _oldest(log),
        compaction=None if log is None else _compaction(log),
    )


def leader_logs(topic: pb.TopicDescription, answer: admin_pb2.DescribeClusterLogsResponse) -> Sizes:
    """The logs of each partition's leader, by partition."""
    leaders = {p.partition: p.leader for p in topic.partitions}
    return {
        log.partition: log
        for broker in answer.brokers
        for log in broker.logs.logs
        if log.topic_id == topic.topic.topic_id and leaders.get(log.partition) == broker.broker_id
    }


def configs_out(entries: Iterable[pb.ConfigEntry]) -> models.ConfigEntries:
    """Effective settings, by name."""
    return models.ConfigEntries(
        configs=[
            models.ConfigEntry(
                name=e.name,
                value=e.value,
                source=_SOURCES.get(e.source, "unknown"),
                read_only=e.read_only,
                type=e.type,
                documentation=e.documentation,
            )
            for e in sorted(entries, key=lambda e: e.name)
        ]
    )


def logs_out(broker_id: int, logs: broker_pb2.DescribeLogsResponse, image: ClusterImage) -> models.Logs:
    """What a broker keeps; topics by name where the image knows them."""
    names = {bytes(topic_id): topic.name for topic_id, topic in image.topics.items()}
    return models.Logs(
        broker=broker_id,
        disk_free_bytes=logs.disk_free_bytes,
        disk_total_bytes=logs.disk_total_bytes,
        recovery_report=logs.recovery_report,
        logs=[_log(log, names.get(log.topic_id)) for log in logs.logs],
    )


def topic_logs_out(topic: pb.TopicDescription, answer: admin_pb2.DescribeClusterLogsResponse) -> models.TopicLogs:
    """All replicas of a topic; brokers that did not answer are named if they should have one."""
    name, topic_id = topic.topic.name, topic.topic.topic_id
    holders = {replica for p in topic.partitions for replica in p.replicas}
    logs = [
        models.TopicLog(broker=broker.broker_id, **dict(_log(log, name)))
        for broker in answer.brokers
        for log in broker.logs.logs
        if log.topic_id == topic_id
    ]
    return models.TopicLogs(
        logs=sorted(logs, key=lambda log: (log.partition, log.broker)),
        unanswered=[
            models.Unanswered(
                broker=b.broker_id,
                error=models.Problem(**problem_body(error_of(b.error), f"/v1/brokers/{b.broker_id}/logs")),
            )
            for b in answer.brokers
            if b.HasField("error") and b.broker_id in holders
        ],
    )


def _oldest(log: broker_pb2.LogDescription) -> int | None:
    return log.oldest_timestamp_ms if log.HasField("oldest_timestamp_ms") else None


def _compaction(log: broker_pb2.LogDescription) -> models.Compaction | None:
    if not log.HasField("compaction"):
        return None
    c = log.compaction
    total = c.clean_bytes + c.dirty_bytes
    return models.Compaction(
        cleaned_to=c.cleaned_to,
        cleanable_to=c.cleanable_to,
        clean_bytes=c.clean_bytes,
        dirty_bytes=c.dirty_bytes,
        dirty_ratio=c.dirty_bytes / total if total else 0.0,
        last_compacted_ms=c.last_ms if c.HasField("last_ms") else None,
        stuck=c.stuck,
        waits_for=c.waits_for if c.HasField("waits_for") else None,
    )


def _log(log: broker_pb2.LogDescription, topic: str | None) -> models.Log:
    return models.Log(
        topic=topic,
        topic_id=log.topic_id.hex(),
        partition=log.partition,
        state=_STATES.get(log.state, "unknown"),
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        size_bytes=log.size_bytes,
        leader_epoch=log.leader_epoch,
        note=log.note if log.HasField("note") else None,
        oldest_timestamp_ms=_oldest(log),
        compaction=_compaction(log),
        segments=[
            models.Segment(
                base_offset=s.base_offset,
                end_offset=s.end_offset,
                size_bytes=s.size_bytes,
                created_at_ms=s.created_at_ms,
                sealed_at_ms=s.sealed_at_ms if s.HasField("sealed_at_ms") else None,
                min_timestamp_ms=s.min_timestamp_ms,
                max_timestamp_ms=s.max_timestamp_ms,
            )
            for s in log.segments
        ],
    )
