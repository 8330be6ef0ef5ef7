"""Where logs end, asked of brokers over gRPC (``Broker.LogEnds``) at the address they registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import grpc.aio

from headrace_common.core.errors import StaleBrokerEpoch
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import Node
from headrace_common.rpc.channels import PLAIN, Security, open_channel
from headrace_common.rpc.convert import partition_id_from_proto
from headrace_common.rpc.status import error_from_rpc
from headrace_controller.core.election import LogEnd
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc

_TIMEOUT_S: Final = 1.5
_IDENTIFY_S: Final = 0.5


class GrpcLogEnds:
    """Asks over a connection of its own, since such questions are rare; keeps nothing."""

    def __init__(self, security: Security = PLAIN) -> None:
        self._security = security

    async def log_ends(self, node: Node, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, LogEnd]:
        """See the port. Who answers is asked on the same connection: it must be the process that registered."""
        wanted = [broker_pb2.FollowedPartition(topic_id=i.topic_id, partition=i.partition) for i in partitions]
        async with open_channel(str(node.inside), self._security, own_connection=True) as channel:
            stub = broker_pb2_grpc.BrokerStub(channel)
            try:
                who = await stub.Identify(broker_pb2.IdentifyRequest(), timeout=_IDENTIFY_S)
                answer = await stub.LogEnds(broker_pb2.LogEndsRequest(partitions=wanted), timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from error
        if who.incarnation != node.incarnation:
            raise StaleBrokerEpoch(f"another process than the registered one answers as {node.key}; it has to register")
        asked = frozenset(partitions)
        ends = {partition_id_from_proto(e): (e.last_epoch, e.written_end) for e in answer.logs}
        return {i: end for i, end in ends.items() if i in asked}
