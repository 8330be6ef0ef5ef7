"""
Enrols shards of groups in transactions: ``Enrolments`` over gRPC, at the coordinator that the image names for the id.

The same rule as ``FindCoordinator``'s decides which one: the id, up to its first slash, is hashed to a shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace_common.core.errors import CoordinatorNotAvailable, NetworkFailed, error_for
from headrace_common.core.features import TRANSACTION_STREAMS
from headrace_common.core.ids import NO_NODE, Endpoint, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, Node, NodeKey, Role, ShardKey, ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_common.rpc.calls import CallTo
from headrace_common.runtime.asking import AskingStreams, raise_error
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.core.transactions.values import key_of
from headrace_coordinator.ports import Cluster
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorAsyncStub

ATTEMPT_MS_MAX: Final = 5_000.0
"""How long one attempt may take; the coordinator lets it wait for the end of the transaction before."""


class GrpcEnrolments:
    """See ``Enrolments``. Until all nodes know ``Enrol`` each question is a call."""

    def __init__(self, cluster: Cluster, connections: BrokerConnections) -> None:
        self._cluster = cluster
        self._connections = connections
        self._streams: AskingStreams[pb.EnrolRequest, pb.EnrolResponse] = connections.streams(
            lambda at: self._stub(at).Enrol(), "coordinator"
        )

    async def enrol(self, transactional_id: str, producer_id: int, producer_epoch: int, shard: int) -> None:
        image = self._cluster.image
        partition = _partition_of(image, shard)
        node = coordinator_in(image, transactional_id)
        request = pb.AddPartitionsToTxnRequest(
            transactions=[
                pb.TxnPartitions(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    partitions=[pb.TxnPartition(topic_id=partition.topic_id, partition=partition.partition)],
                )
            ]
        )
        answer = await self._ask(node.inside, request, image.has(TRANSACTION_STREAMS))
        if len(answer.transactions) != 1:
            raise NetworkFailed(
                f"the coordinator at {node.inside} answered one transaction with {len(answer.transactions)}"
            )
        result = answer.transactions[0]
        if result.error:
            raise error_for(result.error, result.message)

    async def _ask(
        self, at: Endpoint, request: pb.AddPartitionsToTxnRequest, streams: bool
    ) -> pb.AddPartitionsToTxnResponse:
        if streams:
            found = await self._streams.ask(at, pb.EnrolRequest(ask=request), ATTEMPT_MS_MAX)
            raise_error(found)
            return found.answer
        with CallTo(f"the coordinator at {at}"):
            return await self._stub(at).AddPartitionsToTxn(request, timeout=ATTEMPT_MS_MAX / 1_000)

    def _stub(self, at: Endpoint) -> TransactionCoordinatorAsyncStub:
        return TransactionCoordinatorStub(self._connections.channel(at))


def coordinator_in(image: ClusterImage, transactional_id: str) -> Node:
    """
    Who coordinates the id, by this image.

    Raises:
        CoordinatorNotAvailable: nobody does now.
    """
    topic = image.topic(INTERNAL_TOPICS[ShardKind.TRANSACTIONS])
    if topic is None:
        raise CoordinatorNotAvailable("there are no transactions yet; init the transactional id first")
    number = partition_for(key_of(transactional_id).encode(), topic.partition_count)
    shard = image.shards.get(ShardKey(ShardKind.TRANSACTIONS, number))
    node = image.nodes.get(NodeKey(Role.COORDINATOR, NO_NODE if shard is None else shard.owner))
    if node is None or node.fenced:
        raise CoordinatorNotAvailable(f"nobody coordinates {transactional_id!r} now; try again in a moment")
    return node


def _partition_of(image: ClusterImage, shard: int) -> PartitionId:
    topic = image.topic(INTERNAL_TOPICS[ShardKind.GROUPS])
    if topic is None:
        raise CoordinatorNotAvailable("the topic of groups is not there; try again in a moment")
    return PartitionId(topic.topic_id, shard)
