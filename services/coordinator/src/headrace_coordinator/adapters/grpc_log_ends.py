"""Where logs end, asked of their leaders: ``LogEnds`` over gRPC. One call per broker, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Endpoint, Offset, PartitionId, TopicId
from headrace_common.core.image import NodeKey, Role
from headrace_common.runtime.logs import logger
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.ports import Cluster
from headrace_proto.v1 import broker_pb2 as pb

PARTITIONS_PER_CALL: Final = 10_000
END: Final = -1

log = logger(__name__)


class GrpcLogEnds:
    """See ``LogEnds``."""

    def __init__(self, cluster: Cluster, connections: BrokerConnections) -> None:
        self._cluster = cluster
        self._connections = connections

    async def ends(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, Offset]:
        asks: dict[Endpoint, list[PartitionId]] = {}
        image = self._cluster.image
        for id in partitions:
            led = image.partitions.get(id)
            node = None if led is None else image.nodes.get(NodeKey(Role.BROKER, led.leader))
            if node is not None:
                asks.setdefault(node.inside, []).append(id)
        calls = [
            self._ask(endpoint, ids[at : at + PARTITIONS_PER_CALL])
            for endpoint, ids in asks.items()
            for at in range(0, len(ids), PARTITIONS_PER_CALL)
        ]
        found: dict[PartitionId, Offset] = {}
        for part in await asyncio.gather(*calls):
            found.update(part)
        return found

    async def _ask(self, endpoint: Endpoint, ids: list[PartitionId]) -> dict[PartitionId, Offset]:
        request = pb.ListOffsetsRequest(
            partitions=[
                pb.ListOffsetsPartition(topic_id=id.topic_id, partition=id.partition, timestamp_ms=END) for id in ids
            ]
        )
        try:
            answer = await self._connections.list_offsets(endpoint, request)
        except HeadraceError as error:
            log.info("lag is measured without broker %s: %s", endpoint, error, extra={"partitions": len(ids)})
            return {}
        return {
            PartitionId(TopicId(one.topic_id), one.partition): Offset(one.offset)
            for one in answer.partitions
            if not one.error
        }
