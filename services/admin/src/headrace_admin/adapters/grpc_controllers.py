"""The ``Controllers`` and ``Cluster`` ports over this node's controller client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.errors import HeadraceError
from headrace_common.core.image import ClusterImage
from headrace_common.rpc.calls import A_co, Method, Q_contra
from headrace_common.runtime.access_gate import by_itself
from headrace_common.runtime.clock import limit_ms
from headrace_proto.v1 import access_pb2
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
                return await self.newer((await self._revision(timeout_ms)) - 1, timeout_ms)
        except (TimeoutError, HeadraceError):
            return self._client.image

    async def _revision(self, timeout_ms: float) -> int:
        """That of the active controller's image, whatever the caller may know of the cluster."""
        request = pb.DescribeClusterRequest()
        with by_itself():
            now = await self._client.calls.active(lambda stub: stub.DescribeCluster, request, timeout_ms=timeout_ms)
        return now.revision


class GrpcControllers:
    """Forwards to the active controller; repeats only what may be carried out twice."""

    def __init__(self, client: ControllerClient, timeout_ms: float) -> None:
        self._calls = client.calls
        self._timeout_ms = timeout_ms

    async def ask(self, method: Callable[[ControllerAsyncStub], Method[Q_contra, A_co]], request: Q_contra) -> A_co:
        timeout_ms = max(self._timeout_ms, _least_ms(request))
        return await self._calls.active(method, request, timeout_ms=timeout_ms, repeatable=_may_be_repeated(request))


def _least_ms(request: object) -> float:
    match request:
        case pb.CreateTopicsRequest():
            return min(max(request.timeout_ms, 0), 600_000) + 5_000
        case pb.AdoptTopicRequest() | pb.DescribeRestoreRequest(strays=True):
            return _INVENTORY_MS  # the controller asks every broker for all it has
    return 0


def _may_be_repeated(request: object) -> bool:
    """Whether it is the same when it is carried out twice, as reading, setting and draining are."""
    match request:
        case pb.DeleteTopicsRequest() | pb.UnregisterNodeRequest() | access_pb2.DeleteKeysRequest():
            return False
        case access_pb2.CreateKeyRequest():
            return False  # nobody would have the first one's secret
        case access_pb2.CreateUserRequest() | access_pb2.ChangePasswordRequest() | access_pb2.DeleteUserRequest():
            return False
        case access_pb2.LoginRequest():
            return not request.exchange_id  # its last step is good for one try
        case access_pb2.AlterAccessRequest():  # what is taken away is not there the second time
            return request.validate_only or not any(change.remove for change in request.changes)
        case pb.CreateTopicsRequest() | pb.CreatePartitionsRequest() | pb.AdoptTopicRequest():
            return request.validate_only  # the second answer would say that it exists
        case pb.ElectLeadersRequest():
            return request.type == pb.PREFERRED  # the other kinds may lose records
        case pb.AlterReassignmentsRequest():  # the second cancellation finds nothing
            return request.validate_only or all(r.replicas for r in request.reassignments)
    return True
