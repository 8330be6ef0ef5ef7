"""One client's connections to the cluster in memory: each call may fail as its faults say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from libs.sdk.tests.twin.memory_calls import MemoryTransactionCalls
from libs.sdk.tests.twin.memory_faults import Does, Fault
from libs.sdk.tests.twin.memory_groups import MemoryMembershipStream
from libs.sdk.tests.twin.memory_streams import MemoryFetchStream, MemoryProduceStream

from headrace._transport.port import Coordinator
from headrace.errors import NetworkFailed, error_for
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import coordinator_pb2 as group_pb

if TYPE_CHECKING:
    from libs.sdk.tests.twin.memory import MemoryCluster

    from headrace_proto.v1.admin_pb2_grpc import AdminAsyncStub


class MemoryTransport(MemoryTransactionCalls):
    """See ``port.Transport``."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._produce: dict[NodeId, MemoryProduceStream] = {}
        self._fetch: dict[NodeId, MemoryFetchStream] = {}
        self._closed = False

    async def metadata(self, request: pb.MetadataRequest, *, elsewhere: bool = False) -> pb.MetadataResponse:
        """From any broker that is up; they all know the same."""
        await self._call("metadata", request)
        return self._cluster.metadata(request)

    def produce_stream(self, broker: NodeId) -> MemoryProduceStream:
        """The one produce stream to that broker."""
        if broker not in self._produce:
            self._produce[broker] = MemoryProduceStream(self._cluster, broker, "produce")
            self._cluster.enlist(self._produce[broker])
        return self._produce[broker]

    def fetch_stream(self, broker: NodeId) -> MemoryFetchStream:
        """The one fetch stream to that broker."""
        if broker not in self._fetch:
            self._fetch[broker] = MemoryFetchStream(self._cluster, broker, "fetch")
            self._cluster.enlist(self._fetch[broker])
        return self._fetch[broker]

    async def list_offsets(self, broker: NodeId, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """At once, or after a long poll."""
        await self._call("list_offsets", request, broker)
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1_000
        while True:
            answer, over = self._cluster.list_offsets(broker, request)
            left = deadline - asyncio.get_running_loop().time()
            if over or left <= 0:
                return answer
            await self._cluster.news(left * 1_000)

    async def init_producer_id(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        """From any broker that is up."""
        await self._call("init_producer_id", request)
        return self._cluster.init_producer_id(request)

    async def find_coordinator(self, key: str, kind: Any = pb.GROUP) -> Coordinator:
        """The one there is."""
        if kind == pb.TRANSACTION:
            return await self.find_transaction_coordinator(key)
        group_id = key
        await self._call("find_coordinator", group_id)
        return self._cluster.groups.find(group_id)

    def membership(self, coordinator: Coordinator) -> MemoryMembershipStream:
        """A new stream of one member."""
        return self._cluster.groups.open()

    async def commit_offsets(
        self, coordinator: Coordinator, request: group_pb.CommitOffsetsRequest, timeout_ms: float
    ) -> group_pb.CommitOffsetsResponse:
        """At once."""
        await self._call("commit_offsets", request)
        return self._cluster.groups.commit(request)

    async def fetch_offsets(
        self, coordinator: Coordinator, request: group_pb.FetchOffsetsRequest, timeout_ms: float
    ) -> group_pb.FetchOffsetsResponse:
        """At once."""
        await self._call("fetch_offsets", request)
        return self._cluster.groups.fetch(request)

    def group_call(self, method: Any, request: Any) -> Any:
        """By the name of the RPC."""

        async def call(coordinator: Coordinator, timeout_ms: float) -> Any:
            return await method(_Rpcs(self))(coordinator, request, timeout_ms)

        return call

    transaction_call = group_call

    def sibling(self) -> MemoryTransport:
        """Another connection."""
        return MemoryTransport(self._cluster)

    async def admin(self) -> AdminAsyncStub:
        """There is none."""
        raise NetworkFailed("a cluster in memory has no admin service; use its own methods")

    async def _call(self, api: str, request: Any, broker: NodeId | None = None) -> Fault | None:
        """Let other tasks run once, and fail if that is due; returns the fault that is due afterwards."""
        await asyncio.sleep(0)
        cluster = self._cluster
        up = [each for each in cluster.brokers if each not in cluster.down and (broker == each or cluster.awake(each))]
        if self._closed or not up or (broker is not None and broker not in up):
            raise NetworkFailed("no broker answered; is the cluster up?")
        if broker is not None:
            await cluster.until_awake(broker)
        fault = cluster.fault(api, broker or up[0], request)
        match fault:
            case Fault(after=True):
                return fault
            case Fault(Does.HOLD, until=asyncio.Event() as until):
                await until.wait()
            case Fault(Does.ERROR, code=code):
                raise error_for(code, "injected")
            case Fault():
                raise NetworkFailed("injected")
        return None

    async def close(self) -> None:
        """Close all streams. Idempotent."""
        self._closed = True
        for produce in self._produce.values():
            await produce.close()
        for fetch in self._fetch.values():
            await fetch.close()


class _Rpcs:
    """Names of RPCs, for the calls of a transport."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.CommitOffsets, self.FetchOffsets = transport.commit_offsets, transport.fetch_offsets
        self.TxnOffsetCommit, self.EndTxn = transport.commit_offsets_in_txn, transport.end_txn
        self.InitTransactionalId, self.PrepareTxn = transport.init_transactional_id, transport.prepare_txn
        self.DecidePrepared, self.InitOwner = transport.decide_prepared, transport.init_owner
        self.CommitUnit = transport.commit_unit
