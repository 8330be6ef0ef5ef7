"""``/v1/elections``: leaders by command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fastapi import APIRouter

from headrace_admin.engine.administration import Administration
from headrace_admin.rpc import answer_types
from headrace_admin.rpc import models_replication as shapes
from headrace_admin.rpc.messages_out import names_in
from headrace_common.core.errors import Rejected, UnknownTopicOrPartition
from headrace_common.core.ids import check_topic_name
from headrace_common.core.image import ClusterImage
from headrace_common.rpc import answers
from headrace_common.rpc.convert import partition_ref_to_proto
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

_TYPES: Final[Mapping[str, pb.ElectionType.ValueType]] = {
    "preferred": pb.PREFERRED,
    "unclean": pb.UNCLEAN,
    "without-missing": pb.WITHOUT_MISSING,
}
_PARTITIONS_MAX: Final = 10_000


def election_routes(engine: Administration) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1", tags=["partitions"])

    @routes.post("/elections", operation_id="elect_leaders")
    async def elect_leaders(body: shapes.Elect) -> answer_types.Outcomes:
        """Elect leaders: preferred ones, or where nobody leads, such that may lack records. Each by itself."""
        if body.type != "preferred" and not body.confirm:
            raise Rejected(f'an election of type {body.type} may lose records for good; say so with "confirm": true')
        if body.type != "preferred" and not body.partitions:
            raise Rejected(f"name the partitions for an election of type {body.type}")
        partitions = refs(engine.cluster.image, body.partitions)
        answer = await engine.controllers.ask(
            lambda stub: stub.ElectLeaders, pb.ElectLeadersRequest(type=_TYPES[body.type], partitions=partitions)
        )
        return answers.outcomes(answer.partitions, names_in(engine.cluster.image))

    return routes


def refs(image: ClusterImage, wanted: Iterable[shapes.PartitionIn]) -> list[cluster_pb2.PartitionRef]:
    """
    Partitions by id; a topic without a partition is all of its.

    Raises:
        UnknownTopicOrPartition: one does not exist.
        Rejected: more than 10,000.
    """
    found: dict[tuple[str, int], cluster_pb2.PartitionRef] = {}
    for one in wanted:
        topic = image.topic(check_topic_name(one.topic))
        there = image.partitions_of(topic) if topic is not None else []
        chosen = [p for p in there if one.partition is None or p.id.partition == one.partition]
        if not chosen:
            what = f"topic {one.topic!r}" if topic is None else f"partition {one.topic}-{one.partition}"
            raise UnknownTopicOrPartition(f"{what} does not exist; GET /v1/topics lists what does")
        found |= {(one.topic, p.id.partition): partition_ref_to_proto(p.id) for p in chosen}
    if len(found) > _PARTITIONS_MAX:
        raise Rejected(f"{len(found)} partitions are more than the {_PARTITIONS_MAX} of one request; name fewer")
    return list(found.values())
