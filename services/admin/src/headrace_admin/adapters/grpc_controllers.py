"""The ``Controllers`` and ``Cluster`` ports over this node's controller client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.errors import HeadraceError
from headrace_common.core.image import ClusterImage
from headrace_common.rpc.calls import A_co, Method, Q_contra
from headrace_common.runtime.clock import limit_ms
from headrace_proto.v1 import controller_pb2 as pb

if TYPE_CHECKING:
    from headrace_proto.v1.controller_pb2_grpc import ControllerAsyncStub

_INVENTORY_MS: Final = 45_000


class GrpcCluster:
    """The image that the controller client follows."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    @property
    def image(self) -> ClusterImage:
        return self._client.image

    async def newer(self, revision: int, timeout_ms: float) -> ClusterImage:
        """The image once its revision is above ``revision``, or the present one after ``timeout_ms``."""
        try:
            async with limit_ms(timeout_ms):
                async for image in self._client.images():
                    if image.revision > revision:
                        break
        except TimeoutError:
            pass
        return self._client.image

    async def caught_up(self, timeout_ms: float) -> ClusterImage:
        """The image once it is as new as the active controller's is now, or the present one after ``timeout_ms``."""
        try:
            async with limit_ms(timeout_ms):
                request = pb.DescribeClusterRequest()
                now = await self._client.calls.active(lambda stub: stub.DescribeCluster, request, timeout_ms=timeout_ms)
                return await self.newer(now.revision - 1, timeout_ms)
        except (TimeoutError, HeadraceError):
            return self._client.image


class GrpcControllers:
    """Forwards to the active controller; repeats only what may be carried out twice."""

    def __init__(self, client: ControllerClient, timeout_ms: float) -> None:
        self._calls = client.calls
        self._timeout_ms = timeout_ms

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        return await self._ask(lambda stub: stub.DescribeCluster, request)

    async def create_topics(self, request: pb.CreateTopicsRequest) -> pb.CreateTopicsResponse:
        """Repeated only as a dry run: the second answer would say that the topic exists."""
        own = min(max(request.timeout_ms, 0), 600_000)
        return await self._ask(
            lambda stub: stub.CreateTopics,
            request,
            at_least_ms=own + 5_000,
            repeatable=request.validate_only,
        )

    async def delete_topics(self, request: pb.DeleteTopicsRequest) -> pb.DeleteTopicsResponse:
        """Not repeated."""
        return await self._ask(lambda stub: stub.DeleteTopics, request, repeatable=False)

    async def list_topics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        return await self._ask(lambda stub: stub.ListTopics, request)

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        return await self._ask(lambda stub: stub.DescribeTopics, request)

    async def create_partitions(self, request: pb.CreatePartitionsRequest) -> pb.CreatePartitionsResponse:
        """Repeated only as a dry run."""
        return await self._ask(lambda stub: stub.CreatePartitions, request, repeatable=request.validate_only)

    async def describe_configs(self, request: pb.DescribeConfigsRequest) -> pb.DescribeConfigsResponse:
        return await self._ask(lambda stub: stub.DescribeConfigs, request)

    async def alter_configs(self, request: pb.IncrementalAlterConfigsRequest) -> pb.IncrementalAlterConfigsResponse:
        """Repeated: setting, deleting, appending and subtracting twice is the same as once."""
        return await self._ask(lambda stub: stub.IncrementalAlterConfigs, request)

    async def unregister_node(self, request: pb.UnregisterNodeRequest) -> pb.UnregisterNodeResponse:
        """Not repeated."""
        return await self._ask(lambda stub: stub.UnregisterNode, request, repeatable=False)

    async def elect_leaders(self, request: pb.ElectLeadersRequest) -> pb.ElectLeadersResponse:
        """Preferred leaders may be elected twice; the other kinds are asked for once, for they may lose records."""
        return await self._ask(lambda stub: stub.ElectLeaders, request, repeatable=request.type == pb.PREFERRED)

    async def alter_reassignments(self, request: pb.AlterReassignmentsRequest) -> pb.AlterReassignmentsResponse:
        """Repeated: the same replicas again change nothing; not when it cancels, for then the second finds nothing."""
        cancels = any(not r.replicas for r in request.reassignments)
        return await self._ask(
            lambda stub: stub.AlterReassignments,
            request,
            repeatable=request.validate_only or not cancels,
        )

    async def list_reassignments(self, request: pb.ListReassignmentsRequest) -> pb.ListReassignmentsResponse:
        return await self._ask(lambda stub: stub.ListReassignments, request)

    async def drain_broker(self, request: pb.DrainBrokerRequest) -> pb.DrainBrokerResponse:
        """Repeated: drained twice is drained."""
        return await self._ask(lambda stub: stub.DrainBroker, request)

    async def describe_restore(self, request: pb.DescribeRestoreRequest) -> pb.DescribeRestoreResponse:
        """Read. Where strays are asked for, the controller asks every broker for all it has."""
        return await self._ask(
            lambda stub: stub.DescribeRestore,
            request,
            at_least_ms=_INVENTORY_MS if request.strays else 0,
        )

    async def adopt_topic(self, request: pb.AdoptTopicRequest) -> pb.AdoptTopicResponse:
        """Repeated only as a dry run: the second answer would say that the topic exists."""
        return await self._ask(
            lambda stub: stub.AdoptTopic,
            request,
            at_least_ms=_INVENTORY_MS,
            repeatable=request.validate_only,
        )

    async def _ask(
        self,
        method: Callable[[ControllerAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
        *,
        repeatable: bool = True,
        at_least_ms: float = 0,
    ) -> A_co:
        timeout_ms = max(self._timeout_ms, at_least_ms)
        return await self._calls.active(method, request, timeout_ms=timeout_ms, repeatable=repeatable)
