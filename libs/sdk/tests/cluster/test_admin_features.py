"""What the admin client makes of the cluster's feature level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from libs.sdk.tests.twin.memory import MemoryCluster, MemoryTransport

from headrace import aio
from headrace.admin_feature_types import FeatureInfo, FeaturesInfo, NodeFeatures
from headrace_proto.v1 import admin_pb2, cluster_pb2


class Service:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(request: Any, timeout: float) -> Any:
            return self.answer

        return call


class Transport(MemoryTransport):
    def __init__(self, service: Service) -> None:
        super().__init__(MemoryCluster(brokers=1))
        self.service = service

    async def admin(self) -> Any:
        return self.service


async def test_features() -> None:
    answer = admin_pb2.DescribeFeaturesResponse(
        level=0,
        features=[admin_pb2.Feature(level=1, name="n", brings="b")],
        nodes=[admin_pb2.NodeFeatures(role=cluster_pb2.COORDINATOR, id=3, fenced=True, version="v")],
        waits_for="level 1 waits",
    )
    admin = aio.AdminClient(_transport=Transport(Service(answer)))
    node = NodeFeatures("coordinator-3", 0, True, "v")
    assert await admin.describe_features() == FeaturesInfo(0, (FeatureInfo(1, "n", "b"),), (node,), "level 1 waits")
    answer.ClearField("waits_for")
    assert (await admin.describe_features()).waits_for is None
