"""The way of a node's audit to the topic ``__audit``: one partition for each node, asked of its leader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from opentelemetry.metrics import Meter

from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.errors import MetadataUnavailable
from headrace_common.core.features import ACCESS, say_too_low
from headrace_common.core.ids import Endpoint, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, NodeKey, Role, ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import Channels, Security
from headrace_common.rpc.convert import role_to_proto
from headrace_common.runtime.audit_settings import AuditConfig
from headrace_common.runtime.auditing import Auditing
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

_TIMEOUT_S: Final = 15.0
_TOPIC: Final = INTERNAL_TOPICS[ShardKind.AUDIT]


class GrpcAuditDelivery:
    """See ``runtime.audit.Delivery``. One event loop; ``close`` it at the end."""

    def __init__(self, key: NodeKey, image: Callable[[], ClusterImage], security: Security) -> None:
        self._key = key
        self._image = image
        self._channels: Channels[Endpoint] = Channels(security)
        self._turn = 0

    async def deliver(self, lines: Sequence[bytes]) -> None:
        """See ``Delivery``."""
        image = self._image()
        if not image.has(ACCESS):
            raise MetadataUnavailable(say_too_low("the topic of the audit", ACCESS, image.feature_level))
        partition, at = self._choose(image)
        role = role_to_proto(self._key.role)
        request = pb.WriteAuditRequest(role=role, id=self._key.id, partition=partition, lines=lines)
        await self._channels.keep({at})
        with CallTo(at):
            await BrokerStub(self._channels.to(at)).WriteAudit(request, timeout=_TIMEOUT_S)

    async def close(self) -> None:
        await self._channels.close()

    def _choose(self, image: ClusterImage) -> tuple[int, Endpoint]:
        """The partition of this node and where its leader is; while there is no topic, any broker: it has it made."""
        topic = image.topic(_TOPIC)
        if topic is None:
            alive = [node for node in image.brokers() if not node.fenced]
            if not alive:
                raise MetadataUnavailable("no broker is there yet")
            self._turn += 1
            node = alive[self._turn % len(alive)]
            return 0, node.internal or node.grpc
        number = partition_of(self._key, topic.partition_count)
        partition = image.partitions.get(PartitionId(topic.topic_id, number))
        leader = None if partition is None else image.nodes.get(NodeKey(Role.BROKER, partition.leader))
        if leader is None:
            raise MetadataUnavailable(f"nobody leads partition {number} of {_TOPIC} now")
        return number, leader.internal or leader.grpc


def partition_of(node: NodeKey, count: int) -> int:
    """Where the events of a node are, all of them, so that they stay in order."""
    return partition_for(str(node).encode(), count)


@asynccontextmanager
async def open_delivery(
    auditing: Auditing,
    config: AuditConfig,
    key: NodeKey,
    tasks: TaskRunner,
    meter: Meter,
    image: Callable[[], ClusterImage],
    security: Security,
) -> AsyncIterator[None]:
    """The audit of the process ``key``, as ``config`` says, until the block ends."""
    delivery = GrpcAuditDelivery(key, image, security)
    try:
        async with auditing.opened(config, key, tasks, meter, delivery):
            yield
    finally:
        await delivery.close()


def write_audit(
    client: ControllerClient, config: AuditConfig, tasks: TaskRunner, meter: Meter
) -> AbstractAsyncContextManager[None]:
    """The same for a node that has a client of the controllers."""
    return open_delivery(
        client.access.auditing, config, client.key, tasks, meter, lambda: client.image, client.security
    )
