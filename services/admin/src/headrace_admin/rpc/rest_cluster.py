"""``/v1/cluster`` and ``/v1/brokers``: the cluster at a glance, its brokers, their logs and settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from headrace_admin.engine.administration import Administration
from headrace_admin.engine.certificates import NodeCertificates
from headrace_admin.rpc import answer_types, certificates_out, models
from headrace_admin.rpc.features_out import features_message
from headrace_admin.rpc.rest_configs import alter, describe
from headrace_common.core.errors import NotFound
from headrace_common.rpc import answers
from headrace_common.rpc.status import error_of
from headrace_proto.v1 import admin_pb2, broker_pb2
from headrace_proto.v1 import controller_pb2 as pb

BrokerId = Annotated[int, Path(ge=0, le=models.INT32_MAX)]


def cluster_routes(engine: Administration, certificates: NodeCertificates) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1", tags=["cluster"])
    _cluster(routes, engine, certificates)
    _brokers(routes, engine)
    return routes


async def _now(engine: Administration) -> pb.DescribeClusterResponse:
    return await engine.controllers.ask(lambda stub: stub.DescribeCluster, pb.DescribeClusterRequest())


def _cluster(routes: APIRouter, engine: Administration, certificates: NodeCertificates) -> None:
    @routes.get("/cluster", operation_id="describe_cluster")
    async def describe_cluster() -> answer_types.Cluster:
        """The cluster at a glance: who is in it, who leads it, and whether partitions are without a leader."""
        return answers.cluster(await _now(engine))

    @routes.get("/cluster/features", operation_id="describe_features")
    async def describe_features() -> answer_types.Features:
        """The cluster's feature level, what comes with each, what every node knows, and what the next waits for."""
        return answers.features(features_message(await engine.feature_levels()))

    @routes.get("/cluster/certificates", operation_id="describe_certificates")
    async def describe_certificates(
        look: Annotated[bool, Query(description="Have nodes look at their files first.")] = False,
    ) -> answer_types.Certificates:
        """Which certificates each node shows until when, whom it trusts, and what it refused."""
        request = admin_pb2.DescribeCertificatesRequest(look=look)
        return answers.certificates(await certificates_out.described(certificates, request))

    @routes.get("/cluster/configs", operation_id="describe_cluster_configs")
    async def describe_cluster_configs() -> answer_types.ConfigEntries:
        """Settings that hold for all brokers."""
        return await describe(engine, pb.BROKER_CONFIG, "")

    @routes.patch("/cluster/configs", operation_id="change_cluster_configs")
    async def change_cluster_configs(change: models.ChangeConfigs) -> answer_types.ConfigEntries:
        """Change settings of all brokers; the answer has them as they are then."""
        return await alter(engine, pb.BROKER_CONFIG, "", change)


def _brokers(routes: APIRouter, engine: Administration) -> None:
    @routes.get("/brokers", operation_id="list_brokers")
    async def list_brokers() -> answer_types.Brokers:
        """All registered brokers, fenced ones included."""
        return {"brokers": answers.brokers((await _now(engine)).nodes)}

    @routes.get("/brokers/{broker}", operation_id="describe_broker")
    async def describe_broker(broker: BrokerId) -> answer_types.Node:
        """One broker."""
        found = [b for b in answers.brokers((await _now(engine)).nodes) if b["id"] == broker]
        if not found:
            raise NotFound(f"broker {broker} is not registered; GET /v1/brokers lists those that are")
        return found[0]

    @routes.get("/brokers/{broker}/logs", operation_id="describe_logs")
    async def describe_logs(
        broker: BrokerId,
        topic: Annotated[str | None, Query(max_length=249, description="Only logs of this topic.")] = None,
        segments: Annotated[bool, Query(description="Also each segment.")] = False,
    ) -> answer_types.Logs:
        """What a broker keeps on its disk: sizes, offsets and states of its logs, strays included."""
        engine.broker_known(broker)
        topic_ids = [] if topic is None else [(await engine.topic(topic)).topic.topic_id]
        answer = await engine.describe_logs(
            admin_pb2.DescribeClusterLogsRequest(
                broker_id=broker, request=broker_pb2.DescribeLogsRequest(topic_ids=topic_ids, segments=segments)
            )
        )
        (one,) = answer.brokers
        if one.HasField("error"):
            raise error_of(one.error)
        names = {bytes(i): topic.name for i, topic in engine.cluster.image.topics.items()}
        return answers.broker_logs(one, names)

    @routes.get("/brokers/{broker}/configs", operation_id="describe_broker_configs")
    async def describe_broker_configs(broker: BrokerId) -> answer_types.ConfigEntries:
        """Effective settings of one broker."""
        return await describe(engine, pb.BROKER_CONFIG, str(broker))

    @routes.patch("/brokers/{broker}/configs", operation_id="change_broker_configs")
    async def change_broker_configs(broker: BrokerId, change: models.ChangeConfigs) -> answer_types.ConfigEntries:
        """Change settings of one broker; the answer has them as they are then."""
        return await alter(engine, pb.BROKER_CONFIG, str(broker), change)
