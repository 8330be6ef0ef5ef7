"""What the admin client makes of the cluster's feature level."""

from __future__ import annotations

from libs.sdk.tests.kit.admin_service import AdminTransport, Service

from headrace import aio
from headrace.admin_feature_types import FeatureInfo, FeaturesInfo, NodeFeatures
from headrace_proto.v1 import admin_pb2, cluster_pb2


async def test_features() -> None:
    answer = admin_pb2.DescribeFeaturesResponse(
        level=0,
        features=[admin_pb2.Feature(level=1, name="n", brings="b")],
        nodes=[admin_pb2.NodeFeatures(role=cluster_pb2.COORDINATOR, id=3, fenced=True, version="v")],
        waits_for="level 1 waits",
    )
    admin = aio.AdminClient(_transport=AdminTransport(Service(answer)))
    node = NodeFeatures("coordinator-3", 0, True, "v")
    assert await admin.describe_features() == FeaturesInfo(0, (FeatureInfo(1, "n", "b"),), (node,), "level 1 waits")
    answer.ClearField("waits_for")
    assert (await admin.describe_features()).waits_for is None
