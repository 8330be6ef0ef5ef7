"""A client of controllers, and a broker that only registers, for tests against real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio

from headrace_common.core.errors import HeadraceError
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage
from headrace_common.rpc.channels import PLAIN, Security, open_channel
from headrace_common.rpc.convert_delta import delta_from_proto
from headrace_common.rpc.options import server_options
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.service import bind
from headrace_proto.v1 import broker_pb2, cluster_pb2, controller_pb2_grpc
from headrace_proto.v1 import controller_pb2 as pb

T = TypeVar("T")


class Client:
    """One channel to one controller; failures come as typed errors."""

    def __init__(self, endpoint: Endpoint, security: Security = PLAIN) -> None:
        self.channel = open_channel(str(endpoint), security, own_connection=True)
        self.stub = controller_pb2_grpc.ControllerStub(self.channel)

    @staticmethod
    @asynccontextmanager
    async def open(endpoint: Endpoint, security: Security = PLAIN) -> AsyncIterator[Client]:
        client = Client(endpoint, security)
        try:
            yield client
        finally:
            await client.channel.close()

    async def call(self, method: str, request: Any, timeout_s: float = 20) -> Any:
        """One call."""
        try:
            return await getattr(self.stub, method)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def cluster(self) -> pb.DescribeClusterResponse:
        answer: pb.DescribeClusterResponse = await self.call("DescribeCluster", pb.DescribeClusterRequest())
        return answer

    async def create(self, name: str, count: int, replicas: int = 1) -> pb.TopicResult:
        topic = pb.NewTopic(name=name, partition_count=count, replication_factor=replicas)
        answer = await self.call("CreateTopics", pb.CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 40)
        result: pb.TopicResult = answer.topics[0]
        return result

    async def describe(self, name: str) -> pb.TopicResult:
        answer = await self.call("DescribeTopics", pb.DescribeTopicsRequest(names=[name]))
        result: pb.TopicResult = answer.topics[0]
        return result

    async def register(self, node: cluster_pb2.Node, **claims: Any) -> pb.RegisterNodeResponse:
        """Register and be unfenced."""
        joined: pb.RegisterNodeResponse = await self.call("RegisterNode", pb.RegisterNodeRequest(node=node, **claims))
        await self.beat(node, joined.epoch, joined.revision)
        return joined

    async def beat(self, node: cluster_pb2.Node, epoch: int, revision: int, **wishes: Any) -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(role=node.role, id=node.id, epoch=epoch, image_revision=revision, **wishes)
        answer: pb.HeartbeatResponse = await self.call("Heartbeat", request)
        return answer


class StubBroker:
    """A broker that says who it is and nothing else."""

    def __init__(self, number: int, start: int = 0) -> None:
        self.node = cluster_pb2.Node(
            role=cluster_pb2.BROKER,
            id=number,
            incarnation=bytes([number, start]) * 8,
            feature_level_max=HIGHEST,
        )
        self._server = grpc.aio.server(options=server_options())
        identify = grpc.unary_unary_rpc_method_handler(
            self._identify,
            request_deserializer=broker_pb2.IdentifyRequest.FromString,
            response_serializer=broker_pb2.IdentifyResponse.SerializeToString,
        )
        log_ends = grpc.unary_unary_rpc_method_handler(
            self._log_ends,
            request_deserializer=broker_pb2.LogEndsRequest.FromString,
            response_serializer=broker_pb2.LogEndsResponse.SerializeToString,
        )
        self.log_end: tuple[int, int] | None = (0, 0)
        """Last epoch and end of each of its logs; None: it holds none."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Identify": identify, "LogEnds": log_ends}
        handler = grpc.method_handlers_generic_handler("headrace.v1.Broker", methods)
        self._server.add_generic_rpc_handlers((handler,))

    @staticmethod
    @asynccontextmanager
    async def open(number: int, start: int = 0) -> AsyncIterator[StubBroker]:
        broker = StubBroker(number, start)
        port = bind(broker._server, Endpoint("127.0.0.1", 0))
        broker.node.grpc.CopyFrom(cluster_pb2.Endpoint(host="127.0.0.1", port=port))
        await broker._server.start()
        try:
            yield broker
        finally:
            await broker.die()

    async def die(self) -> None:
        """Stop listening at once."""
        await self._server.stop(0)

    async def _identify(
        self, request: broker_pb2.IdentifyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> broker_pb2.IdentifyResponse:
        return broker_pb2.IdentifyResponse(
            role=self.node.role, id=self.node.id, incarnation=self.node.incarnation, cluster_id=""
        )

    async def _log_ends(
        self, request: broker_pb2.LogEndsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> broker_pb2.LogEndsResponse:
        if self.log_end is None:
            return broker_pb2.LogEndsResponse()
        epoch, end = self.log_end
        return broker_pb2.LogEndsResponse(
            logs=[
                broker_pb2.LogEnd(topic_id=p.topic_id, partition=p.partition, last_epoch=epoch, written_end=end)
                for p in request.partitions
            ]
        )


class Watcher:
    """Follows the image on one stream, as a broker does; never accepts a gap or a step back."""

    def __init__(self, client: Client, node: cluster_pb2.Node | None = None, image: ClusterImage = EMPTY_IMAGE) -> None:
        self.image = image
        self.steps = 0
        self.ended: HeadraceError | None = None
        """Why the stream broke."""
        key = None if node is None else cluster_pb2.NodeKey(role=node.role, id=node.id)
        self._call = client.stub.WatchMetadata(pb.WatchMetadataRequest(node=key))
        self._moved = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def until(self, holds: Callable[[ClusterImage], bool], timeout_s: float = 20) -> None:
        """Wait until the image is so."""
        async with asyncio.timeout(timeout_s):
            while not holds(self.image):
                self._moved.clear()
                await self._moved.wait()

    async def close(self) -> None:
        """End the stream."""
        self._call.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async for update in self._call:
                self.image = self.image.apply(delta_from_proto(update))
                self.steps += 1
                self._moved.set()
        except grpc.aio.AioRpcError as error:
            self.ended = error_from_rpc(error)


async def eventually(
    action: Callable[[], Awaitable[T]], holds: Callable[[T], bool] = lambda _: True, timeout_s: float = 30
) -> T:
    """The first result of ``action`` for which ``holds``; typed errors mean: not yet."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                result = await action()
            except HeadraceError:
                pass
            else:
                if holds(result):
                    return result
            await asyncio.sleep(0.05)


async def active_of(clients: Sequence[Client], besides: int = -1) -> Client:
    """The client of whoever is active and says so itself, not counting controller ``besides``."""

    async def look() -> Client | None:
        for client in clients:
            try:
                await client.call("DeleteTopics", pb.DeleteTopicsRequest(names=["no-such-topic"]), 2)
                cluster = await client.cluster()
            except HeadraceError:
                continue
            if cluster.active_controller.id != besides:
                return client
        return None

    found = await eventually(look, lambda c: c is not None)
    assert found is not None, "the condition says so"
    return found
