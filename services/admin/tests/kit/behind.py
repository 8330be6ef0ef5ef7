"""
An admin service in front of one server that is controller, broker and coordinator at once: it writes down who asked it
for what, and answers what it was told to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import grpc.aio
from google.protobuf.message_factory import GetMessageClass
from libs.common.tests.kit.closed import Rows
from libs.common.tests.kit.fixed_tokens import Fixed
from services.admin.tests.kit.world import LIMITS

from headrace_admin.adapters.grpc_brokers import GrpcBrokers
from headrace_admin.adapters.grpc_controllers import GrpcCluster, GrpcControllers
from headrace_admin.adapters.grpc_coordinators import GrpcCoordinators
from headrace_admin.adapters.grpc_nodes import GrpcNodes
from headrace_admin.adapters.grpc_workers import GrpcWorkers
from headrace_admin.adapters.headrace_messages import HeadraceMessages
from headrace_admin.config import TransactionLimits
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.messages import Messages
from headrace_admin.rpc.access_table import ACCESS
from headrace_admin.rpc.engines import Engines
from headrace_admin.rpc.servicer import AdminServicer
from headrace_common.adapters.controller_calls import ControllerCalls
from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    INTERNAL_TOPICS,
    ClusterImage,
    Node,
    NodeKey,
    Partition,
    Role,
    Shard,
    ShardKey,
    ShardKind,
    Topic,
)
from headrace_common.rpc.node_gate import FORWARDED_KEY, NODE_KEY, KnownNodes, NodeGate, OnBehalf, node_security
from headrace_common.rpc.status import abort_with
from headrace_common.runtime.access_gate import Access, AccessGate, current_bearer, current_certificate, nobody_calls
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import (
    broker_pb2,
    certificates_pb2,
    cluster_pb2,
    controller_pb2,
    coordinator_pb2,
    transaction_pb2,
)
from headrace_proto.v1.admin_pb2_grpc import add_AdminServicer_to_server

ADMIN: Final = NodeKey(Role.ADMIN, NodeId(1))
TOPICS: Final = {"orders": TopicId(b"o" * 16), "secret": TopicId(b"s" * 16)}
_ALL: Final = (*TOPICS, *INTERNAL_TOPICS.values())
_METHODS: Final = {
    f"/{service.full_name}/{method.name}": method
    for module in (broker_pb2, certificates_pb2, controller_pb2, coordinator_pb2, transaction_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


@dataclass(frozen=True)
class Asked:
    """A call that came, and on whose behalf."""

    operation: str
    """Such as ``Broker/Fetch``."""
    bearer: str | None
    """None: by the node for itself."""
    request: Any = field(compare=False)


class Behind(grpc.GenericRpcHandler):
    """Takes every unary call of a node."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.at = ""
        self.answers: dict[str, Callable[[Any], Any]] = {
            "Broker/FindCoordinator": self._place,
            "Broker/ListOffsets": lambda request: broker_pb2.ListOffsetsResponse(
                partitions=[broker_pb2.ListOffsetsPartitionResult() for _ in request.partitions]
            ),
            "Broker/DeleteRecords": lambda request: broker_pb2.DeleteRecordsResponse(
                partitions=[broker_pb2.DeleteRecordsResult(topic_id=p.topic_id) for p in request.partitions]
            ),
            "Broker/DescribeProducers": lambda request: broker_pb2.DescribeProducersResponse(
                partitions=[broker_pb2.PartitionProducers(topic_id=p.topic_id) for p in request.partitions]
            ),
            "Coordinator/DescribeGroups": lambda request: coordinator_pb2.DescribeGroupsResponse(
                groups=[coordinator_pb2.GroupDescription(group_id=i) for i in request.group_ids]
            ),
            "Coordinator/DeleteGroups": lambda request: coordinator_pb2.DeleteGroupsResponse(
                groups=[coordinator_pb2.GroupResult(group_id=i) for i in request.group_ids]
            ),
            "Coordinator/FetchOffsets": lambda request: coordinator_pb2.FetchOffsetsResponse(
                offsets=[coordinator_pb2.CommittedOffset(topic="orders", partition=0, offset=0)]
            ),
            "Coordinator/CommitOffsets": lambda request: coordinator_pb2.CommitOffsetsResponse(
                results=[coordinator_pb2.OffsetResult(topic=o.topic) for o in request.offsets]
            ),
            "Coordinator/DeleteOffsets": lambda request: coordinator_pb2.DeleteOffsetsResponse(
                results=[coordinator_pb2.OffsetResult(topic=o.topic) for o in request.partitions]
            ),
            "TransactionCoordinator/DescribeTransactions": lambda request: transaction_pb2.DescribeTransactionsResponse(
                transactions=[
                    transaction_pb2.TransactionDescription(transactional_id=i, state=transaction_pb2.TXN_ONGOING)
                    for i in request.transactional_ids
                ]
            ),
        }
        """By operation; of others the empty answer."""

    def _place(self, request: Any) -> Any:
        host, _, port = self.at.rpartition(":")
        endpoint = cluster_pb2.Endpoint(host=host, port=int(port))
        return broker_pb2.FindCoordinatorResponse(
            coordinators=[broker_pb2.CoordinatorOfKey(key=k, coordinator=1, endpoint=endpoint) for k in request.keys]
        )

    def service(self, handler_call_details: Any) -> Any:
        method = _METHODS.get(handler_call_details.method)
        if method is None:
            return None
        metadata = dict(handler_call_details.invocation_metadata)
        operation = f"{method.containing_service.name}/{method.name}"
        bearer = metadata.get(FORWARDED_KEY)

        async def answer(request: Any, context: Any) -> Any:
            assert metadata[NODE_KEY] == str(ADMIN), "nobody else asks"
            self.asked.append(Asked(operation, None if bearer is None else bearer.decode(), request))
            made = self.answers.get(operation)
            try:
                return GetMessageClass(method.output_type)() if made is None else made(request)
            except HeadraceError as error:
                await abort_with(context, error)

        handler: Any = grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        return handler

    def whose(self) -> dict[str, set[str | None]]:
        """On whose behalf each operation was asked for."""
        found: dict[str, set[str | None]] = {}
        for one in self.asked:
            found.setdefault(one.operation, set()).add(one.bearer)
        return found


@dataclass
class Tie:
    """What of a ``ControllerClient`` the adapters use: an image that never changes by itself, and calls."""

    image: ClusterImage
    calls: Any = None

    async def images(self) -> AsyncIterator[ClusterImage]:
        yield self.image


@dataclass
class Front:
    """The admin service and what is behind it."""

    behind: Behind
    tie: Tie
    access: Access
    engines: Engines
    workers: GrpcWorkers
    rows: Rows

    def told(self, rows: Rows) -> None:
        """The image has these rows from now on."""
        self.rows = rows
        self.tie.image = rows.image(replace(self.tie.image, revision=self.tie.image.revision + 1))


@asynccontextmanager
async def opened(rows: Rows) -> AsyncIterator[Front]:
    """All of it, the adapters over real connections."""
    async with AsyncExitStack() as stack:
        behind = Behind()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((behind,))
        at = Endpoint("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        behind.at = str(at)
        await server.start()
        stack.push_async_callback(server.stop, None)
        tie = Tie(rows.image(_image(at)))
        clock = SystemClock()
        access = Access(lambda: tie.image, NodeGate(), clock)
        security = node_security(
            ADMIN,
            Fixed(),
            KnownNodes(lambda: tie.image),
            behalf=OnBehalf(
                current_bearer,
                current_certificate,
                nobody=lambda: access.view.mode is Mode.PERMISSIVE and nobody_calls(),
            ),
            closed=lambda: access.view.mode is Mode.CLOSED,
        )
        tie.calls = ControllerCalls(ControllerRoute([at]), clock, security)
        stack.push_async_callback(tie.calls.close)
        client: Any = tie
        cluster = GrpcCluster(client)
        brokers = GrpcBrokers(cluster, 5_000, security)
        coordinators, workers = GrpcCoordinators(5_000, security), GrpcWorkers(5_000, brokers.issue_ticket, clock)
        log = HeadraceMessages(cluster)
        nodes = GrpcNodes(ADMIN, 5_000, security)
        for port in (brokers, coordinators, workers, nodes, log):
            stack.push_async_callback(port.close)
        engines = Engines.over(
            Administration(cluster, GrpcControllers(client, 5_000), brokers),
            Messages(log, cluster, LIMITS),
            coordinators,
            workers,
            nodes,
            TransactionLimits(),
            clock,
            lambda: access.view,
        )
        yield Front(behind, tie, access, engines, workers, rows)


@asynccontextmanager
async def serving(front: Front) -> AsyncIterator[str]:
    """Where its gRPC is."""
    gate: Any = AccessGate(front.access, ACCESS, takes_nodes=True)
    servicers = [(add_AdminServicer_to_server, AdminServicer(front.engines))]
    config = ServerConfig(drain_ms_max=0)
    async with GrpcService.open(config, servicers, (), [gate]) as it:
        yield str(it.endpoint)


def _image(at: Endpoint) -> ClusterImage:
    """One node of each role, all of them at ``at``; each topic has one partition, and each kind of shards one."""
    one = NodeId(1)
    nodes = {NodeKey(role, one): Node(NodeKey(role, one), at, bytes(16), 1, fenced=False) for role in (*Role,)}
    ids = {name: TOPICS.get(name, TopicId(name.encode()[:16].ljust(16, b"_"))) for name in _ALL}
    topics = {i: Topic(name, i, 1, internal=name.startswith("__")) for name, i in ids.items()}
    partitions = {PartitionId(i, 0): Partition(PartitionId(i, 0), (one,), (one,), one, 1, 1) for i in ids.values()}
    shards = {ShardKey(kind, 0): Shard(ShardKey(kind, 0), one, 1) for kind in ShardKind}
    return replace(
        EMPTY_IMAGE,
        revision=1,
        cluster_id="c",
        nodes=nodes,
        topics=topics,
        topic_ids=ids,
        partitions=partitions,
        shards=shards,
    )
