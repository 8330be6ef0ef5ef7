"""Ends of transactions over gRPC, to leaders of partitions and to coordinators of groups: ``Markers``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace_common.core.errors import HeadraceError, NetworkFailed, error_for
from headrace_common.core.features import TRANSACTION_STREAMS
from headrace_common.core.ids import Endpoint, PartitionId
from headrace_common.core.image import Role
from headrace_common.rpc.calls import CallTo
from headrace_common.runtime.asking import AskingStreams, raise_error
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.ports import Cluster, Destination, Marker, MarkerErrors
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub

ATTEMPT_MS_MAX: Final = 5_000.0
"""How long a request may take before it is sent again; repeats are harmless."""


class GrpcMarkers:
    """See ``Markers``. Until all nodes know ``Mark`` each request is a call."""

    def __init__(self, cluster: Cluster, connections: BrokerConnections) -> None:
        self._cluster = cluster
        self._connections = connections
        self._streams: dict[Role, AskingStreams[pb.MarkRequest, pb.MarkResponse]] = {
            Role.BROKER: connections.streams(lambda at: connections.stub(at).Mark(), "broker"),
            Role.COORDINATOR: connections.streams(lambda at: self._stub(at).Mark(), "coordinator"),
        }

    async def write(self, to: Destination, markers: Sequence[tuple[Marker, Sequence[PartitionId]]]) -> MarkerErrors:
        request = pb.WriteTxnMarkersRequest(
            markers=[
                pb.TxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.epoch,
                    commit=marker.commit,
                    partitions=[pb.TxnPartition(topic_id=id.topic_id, partition=id.partition) for id in ids],
                )
                for marker, ids in markers
            ]
        )
        answer = await self._ask(to, request)
        if [len(one.partitions) for one in answer.markers] != [len(ids) for _, ids in markers]:
            raise NetworkFailed(f"{to.role.value} at {to.at} left out ends that it was told")
        return [[_error(result) for result in one.partitions] for one in answer.markers]

    async def _ask(self, to: Destination, request: pb.WriteTxnMarkersRequest) -> pb.WriteTxnMarkersResponse:
        if self._cluster.image.has(TRANSACTION_STREAMS):
            found = await self._streams[to.role].ask(to.at, pb.MarkRequest(ask=request), ATTEMPT_MS_MAX)
            raise_error(found)
            return found.answer
        stub = self._connections.stub(to.at) if to.role is Role.BROKER else self._stub(to.at)
        with CallTo(f"the {to.role.value} at {to.at}"):
            return await stub.WriteTxnMarkers(request, timeout=ATTEMPT_MS_MAX / 1_000)

    def _stub(self, at: Endpoint) -> CoordinatorAsyncStub:
        return CoordinatorStub(self._connections.channel(at))


def _error(result: pb.TxnMarkerPartitionResult) -> HeadraceError | None:
    return error_for(result.error, result.message) if result.error else None
