"""A controller that says what a test has it say, over real gRPC: what none of today says, or not at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from typing_extensions import override

from headrace_common.core.errors import HeadraceError, NotController, NotRegistered, StaleBrokerEpoch
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    ActiveController,
    ClusterImage,
    ImageDelta,
    Node,
    NodeKey,
    Partition,
    Topic,
)
from headrace_common.rpc.convert import node_from_proto, node_key_from_proto
from headrace_common.rpc.convert_delta import delta_to_proto
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1.controller_pb2_grpc import ControllerServicer, add_ControllerServicer_to_server

Context = Any


class ScriptedController(ControllerServicer):
    """
    Registers whoever comes, unfences who has seen its registration, and sends every change to all watchers.

    A test steers it: ``active``, ``refusals`` (errors to raise, per RPC name, first in first out), ``put_topic``,
    ``change``, ``break_streams``; and looks at ``beats`` and ``calls``.
    """

    def __init__(self, cluster_id: str = "test-cluster") -> None:
        self.active = True
        self.hint: str | None = None
        self.refusals: dict[str, list[HeadraceError]] = {}
        self.calls: list[str] = []
        self.beats: list[pb.HeartbeatRequest] = []
        self.registrations: list[pb.RegisterNodeRequest] = []
        self.confirmed: list[bytes] = []
        self.heartbeat_interval_ms = 50
        self.image: ClusterImage = replace(EMPTY_IMAGE, incarnation=b"m" * 16, revision=1, cluster_id=cluster_id)
        self.endpoint: Endpoint | None = None
        self._next_epoch = 1
        self._next_producer_id = 1_000
        self._watchers: set[asyncio.Queue[cluster_pb2.MetadataUpdate | None]] = set()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[ScriptedController]:
        """Serve on a port of this machine until the block ends."""
        config = ServerConfig(drain_ms_max=0)
        async with GrpcService.open(config, [(add_ControllerServicer_to_server, self)]) as server:
            self.endpoint = server.endpoint
            self.change(active_controller=ActiveController(NodeId(1), 1, server.endpoint))
            yield self

    # --- steering ---------------------------------------------------------------------------------------------

    def change(self, **fields: Any) -> ClusterImage:
        """Apply an ``ImageDelta`` of these fields as the next revision and send it to all watchers."""
        delta = ImageDelta(
            incarnation=self.image.incarnation,
            previous_revision=self.image.revision,
            revision=self.image.revision + 1,
            cluster_id=self.image.cluster_id,
            **fields,
        )
        self.image = self.image.apply(delta)
        self.send(delta)
        return self.image

    def send(self, delta: ImageDelta) -> None:
        """Send any delta, also a wrong one, without applying it."""
        for watcher in self._watchers:
            watcher.put_nowait(delta_to_proto(delta))

    def put_topic(self, name: str, partitions: int, leader: int = 1, configs: dict[str, str] | None = None) -> Topic:
        """A topic whose partitions are all led by one broker."""
        topic_id = TopicId(name.encode().ljust(16, b"\0")[:16])
        topic = Topic(name, topic_id, partitions, configs or {})
        one = (NodeId(leader),)
        parts = tuple(
            Partition(PartitionId(topic_id, n), one, one, NodeId(leader), leader_epoch=0, partition_epoch=0)
            for n in range(partitions)
        )
        self.change(topics=(topic,), partitions=parts)
        return topic

    def break_streams(self) -> None:
        """End all watch streams, as a controller that restarts does."""
        for watcher in self._watchers:
            watcher.put_nowait(None)

    async def until_beat(self, count: int = 1) -> pb.HeartbeatRequest:
        """Wait for ``count`` more heartbeats; the last of them."""
        wanted = len(self.beats) + count
        while len(self.beats) < wanted:
            await self._changed.wait()
        return self.beats[-1]

    async def until_called(self, name: str, count: int) -> None:
        """Wait until the RPC was called ``count`` times in all."""
        while self.calls.count(name) < count:
            await self._changed.wait()

    # --- the service ------------------------------------------------------------------------------------------

    @override
    async def RegisterNode(self, request: pb.RegisterNodeRequest, context: Context) -> pb.RegisterNodeResponse:
        """Always a new epoch."""
        self._entered("RegisterNode")
        self.registrations.append(request)
        node = replace(node_from_proto(request.node), epoch=self._next_epoch, fenced=True)
        self._next_epoch += 1
        image = self.change(nodes=(node,))
        return pb.RegisterNodeResponse(
            cluster_id=image.cluster_id,
            epoch=node.epoch,
            revision=image.revision,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            session_timeout_ms=1_000,
        )

    @override
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        """Unfences a node that wants it and has seen its registration."""
        self._entered("Heartbeat")
        self.beats.append(request)
        self._something_happened()
        node = self._known(node_key_from_proto(pb_key(request)), request.epoch)
        fenced = request.want_fenced or (node.fenced and request.image_revision < 1)
        if fenced != node.fenced:
            self.change(nodes=(replace(node, fenced=fenced),))
        return pb.HeartbeatResponse(fenced=fenced, may_shut_down=request.want_shutdown)

    @override
    async def WatchMetadata(
        self, request: pb.WatchMetadataRequest, context: Context
    ) -> AsyncIterator[cluster_pb2.MetadataUpdate]:
        """A snapshot, then what ``change`` and ``send`` bring."""
        self.calls.append("WatchMetadata")
        self._something_happened()
        self._raise_refusal("WatchMetadata")
        watcher: asyncio.Queue[cluster_pb2.MetadataUpdate | None] = asyncio.Queue(10_000)
        self._watchers.add(watcher)
        try:
            yield delta_to_proto(self.image.snapshot())
            while (update := await watcher.get()) is not None:
                yield update
        finally:
            self._watchers.discard(watcher)

    @override
    async def AllocateProducerIds(
        self, request: pb.AllocateProducerIdsRequest, context: Context
    ) -> pb.AllocateProducerIdsResponse:
        """The next 1000."""
        self._entered("AllocateProducerIds")
        first = self._next_producer_id
        self._next_producer_id += 1_000
        return pb.AllocateProducerIdsResponse(first_id=first, count=1_000)

    @override
    async def ConfirmDeletions(
        self, request: pb.ConfirmDeletionsRequest, context: Context
    ) -> pb.ConfirmDeletionsResponse:
        """Noted in ``confirmed``."""
        self._entered("ConfirmDeletions")
        self.confirmed += request.topic_ids
        return pb.ConfirmDeletionsResponse()

    def _something_happened(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _entered(self, name: str) -> None:
        self.calls.append(name)
        self._something_happened()
        self._raise_refusal(name)
        if not self.active:
            raise NotController("this controller is not active", endpoint_hint=self.hint)

    def _raise_refusal(self, name: str) -> None:
        if self.refusals.get(name):
            raise self.refusals[name].pop(0)

    def _known(self, key: NodeKey, epoch: int) -> Node:
        node = self.image.nodes.get(key)
        if node is None:
            raise NotRegistered(f"{key} is not registered; register it")
        if epoch != node.epoch:
            raise StaleBrokerEpoch(f"{key} has epoch {node.epoch}, not {epoch}; register again")
        return node


def pb_key(request: pb.HeartbeatRequest) -> cluster_pb2.NodeKey:
    """Role and id of whoever beats."""
    return cluster_pb2.NodeKey(role=request.role, id=request.id)
