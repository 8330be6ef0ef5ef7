"""
A small cluster in this process: the twin of the real one for tests, behind the same port.

It appends batches, gives offsets, recognises repeated batches of idempotent producers, serves fetches and long polls,
and fails when told to: ``inject`` queues faults for the next requests, ``on_request`` is asked for one each time.
Logs are shared by all brokers, as if replication took no time; leaders and their epochs are real.

::

    >>> from headrace import Producer
    >>> from headrace._transport.memory import MemoryCluster
    >>> cluster = MemoryCluster(brokers=1)
    >>> _ = cluster.create_topic("orders", partitions=1)
    >>> with Producer(_transport=cluster.transport()) as orders:
    ...     orders.send("orders", b"one").result().offset
    0
    >>> cluster.values("orders", 0)
    [b'one']
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace._transport.memory_faults import Does, Fault
from headrace._transport.memory_log import MemoryLog
from headrace._transport.memory_streams import MemoryFetchStream, MemoryProduceStream
from headrace.errors import HeadraceError, NetworkFailed
from headrace_common.core.batch import decode_batch
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2, errors_pb2

if TYPE_CHECKING:
    from headrace_proto.v1.admin_pb2_grpc import AdminAsyncStub

MAX_MESSAGE_BYTES: Final = 1_048_588
EPOCH_MAX: Final = 2**15 - 1

__all__ = ["Does", "Fault", "MemoryCluster", "MemoryTransport"]


@dataclass(slots=True)
class _Partition:
    log: MemoryLog
    leader: NodeId
    leader_epoch: int = 0


@dataclass(slots=True)
class _Topic:
    name: str
    topic_id: bytes
    max_message_bytes: int
    log_append_time: bool
    partitions: list[_Partition] = field(default_factory=list)


class MemoryCluster:
    """
    Topics and leaders. Methods are plain calls that tests make, from any thread while nothing is under way.

    Args:
        brokers: how many, with ids from 1.
    """

    def __init__(self, brokers: int = 3) -> None:
        self.brokers = [NodeId(number) for number in range(1, brokers + 1)]
        self.down: set[NodeId] = set()
        """Brokers that answer nobody."""
        self.revision = 1
        self.now_ms = 1_700_000_000_000
        """Stamped on records of topics with LogAppendTime."""
        self.on_request: Callable[[str, NodeId, Any], Fault | None] | None = None
        """Asked before each request: ("produce", "fetch", "metadata", ...; broker; request)."""
        self.produced: list[pb.ProduceRequest] = []
        """Every produce request that reached a broker, in order."""
        self._topics: dict[str, _Topic] = {}
        self._faults: dict[str, deque[Fault]] = {}
        self._next_producer_id = 1_000
        self._waiters: set[asyncio.Future[None]] = set()

    # --- what a test sets up ----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        log_append_time: bool = False,
    ) -> bytes:
        """A new topic, its leaders spread over the brokers; returns its id."""
        topic_id = (len(self._topics) + 1 + self.revision).to_bytes(16, "big")
        self._topics[name] = _Topic(name, topic_id, max_message_bytes, log_append_time)
        self.add_partitions(name, partitions)
        return topic_id

    def add_partitions(self, name: str, count: int) -> None:
        """``count`` more."""
        topic = self._topics[name]
        for number in range(len(topic.partitions), len(topic.partitions) + count):
            topic.partitions.append(_Partition(MemoryLog(), self.brokers[number % len(self.brokers)]))
        self._changed()

    def delete_topic(self, name: str) -> None:
        """Gone at once."""
        del self._topics[name]
        self._changed()

    def move_leader(self, name: str, partition: int, broker: int) -> None:
        """Another leader, or none with -1, under the next leader epoch."""
        moved = self._topics[name].partitions[partition]
        moved.leader = NodeId(broker)
        moved.leader_epoch += 1
        self._changed()

    def trim(self, name: str, partition: int, start: int) -> None:
        """Records below ``start`` are gone."""
        self.log(name, partition).start = start
        self._changed()

    def inject(self, api: str, *faults: Fault) -> None:
        """The next requests of ``api`` ("produce", "fetch", "metadata", "list_offsets", "init_producer_id") fail so."""
        self._faults.setdefault(api, deque()).extend(faults)

    def log(self, name: str, partition: int) -> MemoryLog:
        """What was written to a partition."""
        return self._topics[name].partitions[partition].log

    def values(self, name: str, partition: int) -> list[bytes | None]:
        """The values of a partition, in order."""
        log = self.log(name, partition)
        return [value for batch in log.batches for value in decode_batch(batch).values()]

    def transport(self) -> MemoryTransport:
        """A connection for one client."""
        return MemoryTransport(self)

    # --- what transports ask ----------------------------------------------------------------------------------

    def fault(self, api: str, broker: NodeId, request: Any) -> Fault | None:
        """What goes wrong with this request."""
        queued = self._faults.get(api)
        if queued:
            return queued.popleft()
        return self.on_request(api, broker, request) if self.on_request is not None else None

    def metadata(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        """As any broker answers."""
        answer = pb.MetadataResponse(cluster_id="memory", revision=self.revision)
        for broker in self.brokers:
            if broker not in self.down:
                node = answer.nodes.add(role=cluster_pb2.BROKER, id=broker)
                node.grpc.host, node.grpc.port = "memory", broker
        for name in self._topics if request.all_topics else request.topics:
            topic = self._topics.get(name)
            described = answer.topics.add(name=name)
            if topic is None:
                described.error = errors_pb2.UNKNOWN_TOPIC_OR_PARTITION
                continue
            described.topic_id = topic.topic_id
            described.max_message_bytes = topic.max_message_bytes
            for number, each in enumerate(topic.partitions):
                leader = each.leader if each.leader not in self.down else -1
                described.partitions.add(
                    partition=number, leader=leader, leader_epoch=each.leader_epoch, replicas=self.brokers
                )
        return answer

    def produce(self, broker: NodeId, request: pb.ProduceRequest, spared: int | None = None) -> pb.ProduceResponse:
        """Append; ``spared`` names a partition that is left out, as a fault answers it."""
        answer = pb.ProduceResponse(correlation_id=request.correlation_id)
        for entry in request.partitions:
            result = answer.partitions.add(
                topic_id=entry.topic_id, partition=entry.partition, base_offset=-1, log_append_time_ms=-1
            )
            if entry.partition == spared:
                continue
            found = self._find(broker, entry, result)
            if found is None:
                continue
            topic, partition = found
            if len(entry.batch) > topic.max_message_bytes:
                result.error = errors_pb2.MESSAGE_TOO_LARGE
                continue
            now_ms = self.now_ms if topic.log_append_time else None
            try:
                result.base_offset = partition.log.append(entry.batch, partition.leader_epoch, now_ms)
            except HeadraceError as error:
                result.error, result.message = errors_pb2.ErrorCode.ValueType(error.code), str(error)
                continue
            result.log_append_time_ms = -1 if now_ms is None else now_ms
            result.log_start_offset = partition.log.start
        self._changed(metadata=False)
        return answer

    def _find(self, broker: NodeId, entry: Any, result: Any) -> tuple[_Topic, _Partition] | None:
        """The partition, if this broker leads it under the epoch asked for; else the error goes into ``result``."""
        topic = next((t for t in self._topics.values() if t.topic_id == entry.topic_id), None)
        if topic is None:
            result.error = errors_pb2.UNKNOWN_TOPIC_ID
            return None
        if not 0 <= entry.partition < len(topic.partitions):
            result.error = errors_pb2.UNKNOWN_TOPIC_OR_PARTITION
            return None
        partition = topic.partitions[entry.partition]
        if entry.HasField("leader_epoch") and entry.leader_epoch < partition.leader_epoch:
            result.error = errors_pb2.FENCED_LEADER_EPOCH
        elif entry.HasField("leader_epoch") and entry.leader_epoch > partition.leader_epoch:
            result.error = errors_pb2.UNKNOWN_LEADER_EPOCH
        if partition.leader != broker:
            result.error = errors_pb2.NOT_LEADER_OR_FOLLOWER
            if hasattr(result, "leader") and partition.leader >= 0:
                result.leader.id, result.leader.leader_epoch = partition.leader, partition.leader_epoch
        return None if result.error else (topic, partition)

    def fetch(self, broker: NodeId, request: pb.FetchRequest) -> tuple[pb.FetchResponse, int]:
        """What is there now, and how many bytes."""
        answer = pb.FetchResponse(correlation_id=request.correlation_id)
        total = 0
        for entry in request.partitions:
            result = pb.FetchPartitionResult(topic_id=entry.topic_id, partition=entry.partition)
            result.high_watermark = result.last_stable_offset = -1
            found = self._find(broker, entry, result)
            if found is not None:
                log = found[1].log
                result.high_watermark = result.last_stable_offset = log.end
                result.log_start_offset = log.start
                if not log.start <= entry.fetch_offset <= log.end:
                    result.error = errors_pb2.OFFSET_OUT_OF_RANGE
                elif total < request.max_bytes:
                    room = min(entry.max_bytes, request.max_bytes - total)
                    batches = log.read(entry.fetch_offset, room, first=total == 0)
                    result.batches.extend(batches)
                    total += sum(map(len, batches))
            if result.batches or result.error:
                answer.partitions.append(result)
        return answer, total

    def list_offsets(self, broker: NodeId, request: pb.ListOffsetsRequest) -> tuple[pb.ListOffsetsResponse, bool]:
        """The answer, and whether a long poll is over."""
        answer = pb.ListOffsetsResponse()
        over = not any(entry.HasField("wait_above") for entry in request.partitions)
        for entry in request.partitions:
            result = answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, offset=-1)
            result.timestamp_ms = result.leader_epoch = -1
            found = self._find(broker, entry, result)
            if found is None:
                over = True
                continue
            partition = found[1]
            result.leader_epoch = partition.leader_epoch
            result.offset, result.timestamp_ms = partition.log.find(entry.timestamp_ms)
            if entry.HasField("wait_above") and result.offset > entry.wait_above:
                over = True
        return answer, over

    def init_producer_id(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        """A new id, or the next epoch."""
        if request.HasField("producer_id") and request.producer_epoch < EPOCH_MAX:
            return pb.InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)
        self._next_producer_id += 1
        return pb.InitProducerIdResponse(producer_id=self._next_producer_id, producer_epoch=0)

    # --- long polls -------------------------------------------------------------------------------------------

    async def news(self, timeout_ms: float) -> bool:
        """Wait until something was appended or changed; False when ``timeout_ms`` passed without."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_ms / 1_000)
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    def _changed(self, *, metadata: bool = True) -> None:
        if metadata:
            self.revision += 1
        for waiter in list(self._waiters):
            loop = waiter.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class MemoryTransport:
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
        return self._produce[broker]

    def fetch_stream(self, broker: NodeId) -> MemoryFetchStream:
        """The one fetch stream to that broker."""
        if broker not in self._fetch:
            self._fetch[broker] = MemoryFetchStream(self._cluster, broker, "fetch")
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

    async def admin(self) -> AdminAsyncStub:
        """There is none."""
        raise NetworkFailed("a cluster in memory has no admin service; use its own methods")

    async def _call(self, api: str, request: Any, broker: NodeId | None = None) -> None:
        """Let other tasks run once, and fail if that is due."""
        await asyncio.sleep(0)
        up = [each for each in self._cluster.brokers if each not in self._cluster.down]
        if self._closed or not up or (broker is not None and broker not in up):
            raise NetworkFailed("no broker answered; is the cluster up?")
        fault = self._cluster.fault(api, broker or up[0], request)
        match fault:
            case Fault(Does.HOLD, until=asyncio.Event() as until):
                await until.wait()
            case Fault(Does.ERROR, code=code):
                raise NetworkFailed("injected", code=code)
            case Fault():
                raise NetworkFailed("injected")

    async def close(self) -> None:
        """Close all streams. Idempotent."""
        self._closed = True
        for produce in self._produce.values():
            await produce.close()
        for fetch in self._fetch.values():
            await fetch.close()
