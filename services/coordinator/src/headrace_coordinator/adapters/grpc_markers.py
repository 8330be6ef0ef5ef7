"""Ends of transactions over gRPC, to leaders of partitions and to coordinators of groups: ``Markers``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import grpc.aio

from headrace_common.core.errors import HeadraceError, NetworkFailed, error_for
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import Role
from headrace_common.rpc.calls import CallTo
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.ports import Destination, Marker, MarkerErrors
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub

ATTEMPT_S_MAX: Final = 5.0
"""How long a request may take before it is sent again; repeats are harmless."""


class GrpcMarkers:
    """See ``Markers``."""

    def __init__(self, connections: BrokerConnections) -> None:
        self._connections = connections
        self._stubs: WeakKeyDictionary[grpc.aio.Channel, CoordinatorAsyncStub] = WeakKeyDictionary()
        """Of coordinators, while their connections live."""

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
        with CallTo(f"the {to.role.value} at {to.at}"):
            answer = await self._call(to, request)
        if [len(one.partitions) for one in answer.markers] != [len(ids) for _, ids in markers]:
            raise NetworkFailed(f"{to.role.value} at {to.at} left out ends that it was told")
        return [[_error(result) for result in one.partitions] for one in answer.markers]

    async def _call(self, to: Destination, request: pb.WriteTxnMarkersRequest) -> pb.WriteTxnMarkersResponse:
        if to.role is Role.BROKER:
            return await self._connections.stub(to.at).WriteTxnMarkers(request, timeout=ATTEMPT_S_MAX)
        channel = self._connections.channel(to.at)
        stub = self._stubs.get(channel)
        if stub is None:
            stub = self._stubs[channel] = CoordinatorStub(channel)
        return await stub.WriteTxnMarkers(request, timeout=ATTEMPT_S_MAX)


def _error(result: pb.TxnMarkerPartitionResult) -> HeadraceError | None:
    return error_for(result.error, result.message) if result.error else None
