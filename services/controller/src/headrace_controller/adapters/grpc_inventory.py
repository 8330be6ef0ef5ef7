"""What brokers have, asked of them over gRPC (``Broker.Inventory``) at the address they registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc.aio

from headrace_common.core.errors import StaleBrokerEpoch
from headrace_common.core.ids import PartitionId, TopicId
from headrace_common.core.image import Node
from headrace_common.rpc.channels import PLAIN, Security, open_channel
from headrace_common.rpc.convert import partition_id_from_proto, topic_from_proto
from headrace_common.rpc.status import error_from_rpc
from headrace_controller.core.held import HeldLog, HeldTopic, Inventory
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc

_TIMEOUT_S: Final = 30.0
_IDENTIFY_S: Final = 1.0


class GrpcInventory:
    """Asks over a connection of its own, since such questions are rare; keeps nothing."""

    def __init__(self, security: Security = PLAIN) -> None:
        self._security = security

    async def inventory(self, node: Node, topic_ids: Sequence[TopicId]) -> Inventory:
        """See the port. Who answers is asked on the same connection: it must be the process that registered."""
        topics: list[HeldTopic] = []
        logs: dict[PartitionId, HeldLog] = {}
        async with open_channel(str(node.inside), self._security, own_connection=True) as channel:
            stub = broker_pb2_grpc.BrokerStub(channel)
            try:
                who = await stub.Identify(broker_pb2.IdentifyRequest(), timeout=_IDENTIFY_S)
                request = broker_pb2.InventoryRequest(topic_ids=topic_ids)
                async for answer in stub.Inventory(request, timeout=_TIMEOUT_S):
                    topics += [HeldTopic(topic_from_proto(t.topic), t.incarnation, t.revision) for t in answer.topics]
                    logs.update((partition_id_from_proto(log), _log(log)) for log in answer.logs)
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from error
        if who.incarnation != node.incarnation:
            raise StaleBrokerEpoch(f"another process than the registered one answers as {node.key}; it has to register")
        return Inventory(tuple(topics), logs)


def _log(log: broker_pb2.HeldLog) -> HeldLog:
    return HeldLog(
        last_epoch=log.last_epoch,
        end=log.written_end,
        damaged=log.damaged,
        known_epoch=log.known_epoch,
        token=log.fencing_token if log.HasField("fencing_token") else None,
    )
