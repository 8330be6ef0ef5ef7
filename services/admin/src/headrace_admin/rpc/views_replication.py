"""What the engine found out about replication as the shapes of REST."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

from headrace_admin.core.progress import Progress
from headrace_admin.core.status import TROUBLED_MAX, BrokerStatus
from headrace_admin.engine.reassignments import Leaving, Outcome
from headrace_admin.engine.statuses import Judged
from headrace_admin.rpc import models
from headrace_admin.rpc import models_replication as shapes
from headrace_admin.rpc.messages_out import topic_name
from headrace_admin.rpc.views import partition_out
from headrace_admin.rpc.views_transactions import open_transaction_out
from headrace_common.core.errors import HeadraceError, error_for
from headrace_common.core.ids import TopicId
from headrace_common.core.image import ClusterImage
from headrace_common.core.problems import problem_body
from headrace_common.rpc.convert import partition_to_proto
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1 import errors_pb2


def status_out(judged: Judged) -> shapes.Status:
    """The status with its verdict."""
    status = judged.status
    return shapes.Status(
        state=judged.state.value,
        verdict=judged.verdict,
        cluster_id=status.cluster_id,
        active_controller=status.controller,
        metadata_store_reachable=status.store_reachable,
        topics=status.topics,
        partitions=status.partitions,
        offline_partitions=len(status.offline),
        under_min_isr_partitions=len(status.under_min_isr),
        under_replicated_partitions=len(status.under_replicated),
        reassigning_partitions=status.reassigning,
        recovering_partitions=len(status.recovering),
        not_preferred_partitions=status.not_preferred,
        coordinators=len(status.coordinators),
        group_shards=status.shards,
        unowned_group_shards=status.unowned_shards,
        transaction_shards=status.transaction_shards,
        unowned_transaction_shards=status.unowned_transaction_shards,
        brokers=[_broker(b) for b in status.brokers],
        troubled=[
            shapes.Troubled(topic=t.topic, partition=partition_out(partition_to_proto(t.partition)), min_isr=t.min_isr)
            for t in status.troubles[:TROUBLED_MAX]
        ],
        holding_back=[open_transaction_out(t) for t in status.waiting.holding[:TROUBLED_MAX]],
        prepared_overdue=[
            shapes.PreparedOverdue(
                transactional_id=p.transactional_id, producer_id=p.producer_id, prepared_at_ms=p.prepared_at_ms
            )
            for p in status.waiting.overdue[:TROUBLED_MAX]
        ],
        stuck_compactions=[
            shapes.StuckCompaction(topic=s.topic, partition=s.partition, broker=s.broker, reason=s.reason)
            for s in status.stored.stuck[:TROUBLED_MAX]
        ],
    )


def _broker(b: BrokerStatus) -> shapes.BrokerStatus:
    state: Literal["online", "away", "stopping"] = "online"
    if b.node.in_controlled_shutdown:
        state = "stopping"
    elif b.node.fenced:
        state = "away"
    return shapes.BrokerStatus(
        id=b.node.key.id,
        rack=b.node.rack,
        state=state,
        drained=b.node.drained,
        leaders=b.leaders,
        replicas=b.replicas,
        in_sync=b.in_sync,
        away_since_ms=b.away_since_ms,
        disk_free_bytes=None if b.disk is None else b.disk.free,
        disk_total_bytes=None if b.disk is None else b.disk.total,
        disk_reserve_bytes=None if b.disk is None else b.disk.reserve,
        scrub=None if b.disk is None or b.disk.scrub is None else shapes.Scrub(**asdict(b.disk.scrub)),
    )


def outcomes_out(results: Iterable[pb.PartitionOutcome], image: ClusterImage) -> shapes.Outcomes:
    """What became of each partition."""
    return shapes.Outcomes(partitions=[_outcome(r, topic_name(image, TopicId(r.topic_id))) for r in results])


def _outcome(result: pb.PartitionOutcome, topic: str) -> shapes.Outcome:
    said = result.message.replace(result.topic_id.hex(), topic)  # controllers know topics by id
    error = None if result.error == errors_pb2.NONE else error_for(result.error, said)
    return shapes.Outcome(
        topic=topic,
        partition=result.partition,
        current=partition_out(result.current) if result.HasField("current") else None,
        error=problem_out(error, topic, result.partition),
    )


def problem_out(error: HeadraceError | None, topic: str, partition: int) -> models.Problem | None:
    """The problem of one partition."""
    instance = f"/v1/topics/{topic}/partitions/{partition}"
    return None if error is None else models.Problem(**problem_body(error, instance))


def progress_out(found: Iterable[Progress], image: ClusterImage, throttle: int | None) -> shapes.Reassignments:
    """Reassignments under way."""
    return shapes.Reassignments(
        reassignments=[
            shapes.Reassignment(
                topic=topic_name(image, p.partition.id.topic_id),
                partition=partition_out(partition_to_proto(p.partition)),
                leader_bytes=p.leader_bytes,
                new_replicas=[
                    shapes.ReplicaProgress(
                        broker=r.broker,
                        bytes=r.size_bytes,
                        percent=r.percent,
                        in_sync=r.in_sync,
                        bytes_per_s=r.bytes_per_s,
                    )
                    for r in p.replicas
                ],
                waits_for=list(p.waits_for),
            )
            for p in found
        ],
        throttle_bytes_per_s=throttle,
    )


def plan_out(outcome: Outcome) -> shapes.Plan:
    """A plan, or what became of it."""
    moves, loads, bytes_to_copy = _plan_parts(outcome)
    return shapes.Plan(moves=moves, brokers=loads, bytes_to_copy=bytes_to_copy)


def leaving_out(leaving: Leaving) -> shapes.Leaving:
    """How far a broker is from holding nothing."""
    moves, loads, bytes_to_copy = _plan_parts(leaving.outcome)
    return shapes.Leaving(
        moves=moves,
        brokers=loads,
        bytes_to_copy=bytes_to_copy,
        drained=leaving.drained,
        replicas_left=leaving.replicas_left,
        leaders_left=leaving.leaders_left,
        moving=leaving.moving,
        next_step=leaving.next_step,
    )


def _plan_parts(outcome: Outcome) -> tuple[list[shapes.Move], list[shapes.Load], int]:
    moves = [
        shapes.Move(
            topic=m.move.name.topic,
            partition=m.move.name.partition,
            replicas_before=list(m.move.before),
            replicas=list(m.move.after),
            size_bytes=m.move.size_bytes,
            error=problem_out(m.error, m.move.name.topic, m.move.name.partition),
        )
        for m in outcome.moves
    ]
    loads = [
        shapes.Load(
            broker=x.broker,
            replicas_before=x.replicas_before,
            replicas_after=x.replicas_after,
            leaders_before=x.leaders_before,
            leaders_after=x.leaders_after,
        )
        for x in outcome.plan.loads
    ]
    return moves, loads, outcome.plan.bytes_to_copy
