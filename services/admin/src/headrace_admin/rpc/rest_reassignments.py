"""``/v1/reassignments`` and ``/v1/cluster/rebalance``: replicas that move, planned by people or by us."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from headrace_admin.engine.administration import Administration
from headrace_admin.engine.reassignments import MEASURE_MS_MAX, Reassignments
from headrace_admin.rpc import answer_types
from headrace_admin.rpc import models_replication as shapes
from headrace_admin.rpc.messages_out import names_in, progress_message, rebalance_message
from headrace_admin.rpc.rest_elections import refs
from headrace_common.core.errors import Rejected
from headrace_common.rpc import answers
from headrace_proto.v1 import controller_pb2 as pb


def reassignment_routes(engine: Administration, reassignments: Reassignments) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1", tags=["partitions"])
    _reassignments(routes, engine, reassignments)
    _throttle(routes, reassignments)

    @routes.post("/cluster/rebalance", operation_id="rebalance_cluster")
    async def rebalance_cluster(body: shapes.Rebalance) -> answer_types.Plan:
        """Level replicas and preferred leaders over brokers and racks with few moves; plan it, or start it."""
        outcome = await reassignments.rebalance(
            body.topics, validate_only=body.validate_only, throttle_bytes_per_s=body.throttle_bytes_per_s
        )
        return answers.plan(rebalance_message(outcome, engine.cluster.image))

    return routes


def _reassignments(routes: APIRouter, engine: Administration, reassignments: Reassignments) -> None:
    @routes.get("/reassignments", operation_id="list_reassignments")
    async def list_reassignments(
        measure_ms: Annotated[
            int, Query(ge=0, le=MEASURE_MS_MAX, description="Look twice, this far apart, to tell rates.")
        ] = 0,
    ) -> answer_types.Reassignments:
        """Partitions whose replicas are being changed, and how far each new replica has come."""
        found = await reassignments.progress(measure_ms=measure_ms)
        return answers.reassignments(progress_message(found, engine.cluster.image, reassignments.throttle))

    @routes.post("/reassignments", operation_id="reassign_partitions")
    async def reassign_partitions(body: shapes.Reassign) -> answer_types.Outcomes:
        """Give partitions other replicas, while the old ones serve. Each partition succeeds or fails by itself."""
        image = engine.cluster.image
        named = [shapes.PartitionIn(topic=r.topic, partition=r.partition) for r in body.reassignments]
        ids = refs(image, named)
        if len(ids) != len(named):
            raise Rejected("a partition is named twice; name each once")
        wanted = [
            pb.Reassignment(topic_id=i.topic_id, partition=i.partition, replicas=r.replicas)
            for i, r in zip(ids, body.reassignments, strict=True)
        ]
        results = await reassignments.alter(
            wanted, validate_only=body.validate_only, throttle_bytes_per_s=body.throttle_bytes_per_s
        )
        return answers.outcomes(results, names_in(engine.cluster.image))

    @routes.post("/reassignments/cancel", operation_id="cancel_reassignments")
    async def cancel_reassignments(body: shapes.CancelReassignments) -> answer_types.Outcomes:
        """Stop moving: back to the replicas before it. Each partition succeeds or fails by itself."""
        if body.all == bool(body.partitions):
            raise Rejected('name partitions, or say "all": true')
        under_way = {(bytes(p.id.topic_id), p.id.partition) for p in await reassignments.under_way()}
        if body.all:
            chosen = sorted(under_way)
        else:
            whole = {one.topic for one in body.partitions if one.partition is None}
            known = [(bytes(i.topic_id), i.partition) for i in refs(engine.cluster.image, body.partitions)]
            whole_ids = {bytes(i) for name, i in engine.cluster.image.topic_ids.items() if name in whole}
            chosen = [i for i in known if i in under_way or i[0] not in whole_ids]
        if not chosen:
            return answers.outcomes([], names_in(engine.cluster.image))
        wanted = [pb.Reassignment(topic_id=topic_id, partition=n) for topic_id, n in chosen]
        results = await reassignments.alter(wanted, validate_only=False)
        return answers.outcomes(results, names_in(engine.cluster.image))


def _throttle(routes: APIRouter, reassignments: Reassignments) -> None:
    @routes.get("/reassignments/throttle", operation_id="describe_throttle")
    async def describe_throttle() -> answer_types.Throttle:
        """How fast each broker copies for reassignments."""
        return {"bytes_per_s": reassignments.throttle}

    @routes.put("/reassignments/throttle", operation_id="change_throttle")
    async def change_throttle(body: shapes.Throttle) -> answer_types.Throttle:
        """Change it for all brokers, also for what is under way."""
        await reassignments.set_throttle(body.bytes_per_s)
        return {"bytes_per_s": body.bytes_per_s if body.bytes_per_s >= 0 else None}
