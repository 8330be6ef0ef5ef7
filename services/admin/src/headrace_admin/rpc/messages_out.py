"""What the engine found out about replication, as messages of the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Final, Literal

from headrace_admin.core.plans import Load
from headrace_admin.core.progress import Progress, ReplicaProgress
from headrace_admin.core.status import TROUBLED_MAX, BrokerStatus, State
from headrace_admin.engine.reassignments import Leaving, Outcome, Started
from headrace_admin.engine.statuses import Judged
from headrace_admin.rpc.transactions_out import open_transaction, overdue_message
from headrace_common.core.ids import TopicId
from headrace_common.core.image import ClusterImage, Listener
from headrace_common.rpc.convert import partition_to_proto
from headrace_common.rpc.status import detail_of
from headrace_proto.v1 import admin_pb2 as pb
from headrace_proto.v1 import broker_pb2, controller_pb2

_STATES: Final[Mapping[State, pb.ClusterState.ValueType]] = {
    State.HEALTHY: pb.HEALTHY,
    State.DEGRADED: pb.DEGRADED,
    State.UNAVAILABLE: pb.UNAVAILABLE,
}


_OTHERS: Final[tuple[Literal["external", "internal", "mtls"], ...]] = ("external", "internal", "mtls")
"""Addresses that are of no use to who comes by another one."""


def seen_from(
    listener: Listener, cluster: controller_pb2.DescribeClusterResponse
) -> controller_pb2.DescribeClusterResponse:
    """
    The cluster as who asks at ``listener`` is told of it: nodes at their addresses there, where they have one.

    Nodes without one are told as they are: this is to be read, clients connect to what a broker's Metadata names.
    """
    if listener not in {Listener.EXTERNAL, Listener.MTLS}:
        return cluster
    seen = controller_pb2.DescribeClusterResponse()
    seen.CopyFrom(cluster)
    for node in seen.nodes:
        outside = listener is Listener.EXTERNAL
        if not node.HasField("external" if outside else "mtls"):
            continue
        node.grpc.CopyFrom(node.external if outside else node.mtls)
        for name in _OTHERS:
            node.ClearField(name)
        if outside:
            node.ClearField("http")
            node.ClearField("metrics")
    return seen


def status_message(judged: Judged) -> pb.DescribeStatusResponse:
    """The status with its verdict."""
    status = judged.status
    return pb.DescribeStatusResponse(
        state=_STATES[judged.state],
        verdict=judged.verdict,
        cluster_id=status.cluster_id,
        controller_id=status.controller,
        metadata_store_reachable=status.store_reachable,
        brokers=[_broker(b) for b in status.brokers],
        topics=status.topics,
        partitions=status.partitions,
        offline=len(status.offline),
        under_min_isr=len(status.under_min_isr),
        under_replicated=len(status.under_replicated),
        reassigning=status.reassigning,
        recovering=len(status.recovering),
        not_preferred=status.not_preferred,
        troubled=[
            pb.TroubledPartition(topic=t.topic, partition=partition_to_proto(t.partition), min_isr=t.min_isr)
            for t in status.troubles[:TROUBLED_MAX]
        ],
        coordinators=len(status.coordinators),
        shards=status.shards,
        unowned_shards=status.unowned_shards,
        transaction_shards=status.transaction_shards,
        unowned_transaction_shards=status.unowned_transaction_shards,
        holding_back=map(open_transaction, status.waiting.holding[:TROUBLED_MAX]),
        holding_back_more=max(0, len(status.waiting.holding) - TROUBLED_MAX),
        prepared_overdue=map(overdue_message, status.waiting.overdue[:TROUBLED_MAX]),
        prepared_overdue_more=max(0, len(status.waiting.overdue) - TROUBLED_MAX),
        stuck_compactions=[
            pb.StuckCompaction(topic=s.topic, partition=s.partition, broker_id=s.broker, reason=s.reason)
            for s in status.stored.stuck[:TROUBLED_MAX]
        ],
        stuck_compactions_more=max(0, len(status.stored.stuck) - TROUBLED_MAX),
    )


def _broker(b: BrokerStatus) -> pb.BrokerStatus:
    return pb.BrokerStatus(
        broker_id=b.node.key.id,
        rack=b.node.rack,
        fenced=b.node.fenced,
        in_controlled_shutdown=b.node.in_controlled_shutdown,
        drained=b.node.drained,
        leaders=b.leaders,
        replicas=b.replicas,
        in_sync=b.in_sync,
        away_since_ms=b.away_since_ms,
        disk_free_bytes=None if b.disk is None else b.disk.free,
        disk_total_bytes=None if b.disk is None else b.disk.total,
        disk_reserve_bytes=None if b.disk is None else b.disk.reserve,
        scrub=None if b.disk is None or b.disk.scrub is None else broker_pb2.Scrub(**asdict(b.disk.scrub)),
    )


def progress_message(
    found: Iterable[Progress], image: ClusterImage, throttle: int | None
) -> pb.DescribeReassignmentsResponse:
    """Reassignments under way; topics by name where the image knows them."""
    return pb.DescribeReassignmentsResponse(
        partitions=[
            pb.ReassignmentProgress(
                topic=topic_name(image, p.partition.id.topic_id),
                partition=partition_to_proto(p.partition),
                leader_bytes=p.leader_bytes,
                replicas=[_replica(r) for r in p.replicas],
                waits_for=p.waits_for,
            )
            for p in found
        ],
        throttle_bytes_per_s=throttle,
    )


def _replica(r: ReplicaProgress) -> pb.ReplicaProgress:
    return pb.ReplicaProgress(
        broker_id=r.broker, bytes=r.size_bytes, percent=r.percent, in_sync=r.in_sync, bytes_per_s=r.bytes_per_s
    )


def topic_name(image: ClusterImage, topic_id: TopicId) -> str:
    """The topic's name, or its id where the image does not know it."""
    topic = image.topics.get(topic_id)
    return bytes(topic_id).hex() if topic is None else topic.name


def names_in(image: ClusterImage) -> Callable[[bytes], str]:
    """Names of topics by their ids, as the image has them."""
    return lambda topic_id: topic_name(image, TopicId(topic_id))


def rebalance_message(outcome: Outcome, image: ClusterImage) -> pb.RebalanceClusterResponse:
    """A plan, or what became of it."""
    return pb.RebalanceClusterResponse(
        moves=[_move(m, image) for m in outcome.moves],
        brokers=[_load(x) for x in outcome.plan.loads],
        bytes_to_copy=outcome.plan.bytes_to_copy,
    )


def leaving_message(leaving: Leaving, image: ClusterImage) -> pb.DecommissionBrokerResponse:
    """How far a broker is from holding nothing."""
    return pb.DecommissionBrokerResponse(
        moves=[_move(m, image) for m in leaving.outcome.moves],
        brokers=[_load(x) for x in leaving.outcome.plan.loads],
        bytes_to_copy=leaving.outcome.plan.bytes_to_copy,
        drained=leaving.drained,
        replicas_left=leaving.replicas_left,
        leaders_left=leaving.leaders_left,
        moving=leaving.moving,
        next_step=leaving.next_step,
    )


def _move(started: Started, image: ClusterImage) -> pb.PlannedMove:
    move = started.move
    message = pb.PlannedMove(
        topic=move.name.topic,
        topic_id=image.topic_ids.get(move.name.topic, b""),
        partition=move.name.partition,
        replicas_before=list(move.before),
        replicas=list(move.after),
        size_bytes=move.size_bytes,
    )
    if started.error is not None:
        detail = detail_of(started.error)
        message.error, message.message = detail.code, detail.message
    return message


def _load(x: Load) -> pb.BrokerLoad:
    return pb.BrokerLoad(
        broker_id=x.broker,
        replicas_before=x.replicas_before,
        replicas_after=x.replicas_after,
        leaders_before=x.leaders_before,
        leaders_after=x.leaders_after,
    )
