"""
A small cluster in this process: the twin of the real one for tests, behind the same port.

It appends batches, gives offsets, recognises repeated batches of idempotent producers, serves fetches and long polls,
and fails when told to: ``inject`` queues faults for the next requests, ``on_request`` is asked for one each time.
Logs are shared by all brokers, as if replication took no time; leaders and their epochs are real: they move on demand
(``move_leader``), with the death of a broker (``kill``), and uncleanly (``lose``). A paused broker is silent.

::

    >>> from headrace import Producer
    >>> from libs.sdk.tests.twin.memory import MemoryCluster
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
from typing import Any, Final

from libs.sdk.tests.twin.memory_coordinator import Ends, MemoryTransactions
from libs.sdk.tests.twin.memory_faults import Does, Fault
from libs.sdk.tests.twin.memory_groups import MemoryGroups
from libs.sdk.tests.twin.memory_log import END, MemoryLog
from libs.sdk.tests.twin.memory_partition import MemoryPartition
from libs.sdk.tests.twin.memory_streams import MemoryFetchStream, MemoryProduceStream
from libs.sdk.tests.twin.memory_transport import MemoryTransport

from headrace.errors import HeadraceError, InvalidTxnState
from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2, errors_pb2
from headrace_proto.v1 import coordinator_pb2 as group_pb

MAX_MESSAGE_BYTES: Final = 1_048_588
EPOCH_MAX: Final = 2**15 - 1

__all__ = ["Does", "Fault", "MemoryCluster", "MemoryTransport"]


@dataclass(slots=True)
class _Topic:
    name: str
    topic_id: bytes
    max_message_bytes: int
    log_append_time: bool
    partitions: list[MemoryPartition] = field(default_factory=list)


class MemoryCluster:
    """
    Topics and leaders. Methods are plain calls that tests make, from any thread while nothing is under way.

    Args:
        brokers: how many, with ids from 1.
    """

    def __init__(self, brokers: int = 3) -> None:
        self.brokers = [NodeId(number) for number in range(1, brokers + 1)]
        self.down: set[NodeId] = set()
        """Brokers that refuse every connection."""
        self.racks: dict[NodeId, str] = {}
        """Where brokers are; followers there serve clients of that rack."""
        self._awake = {broker: asyncio.Event() for broker in self.brokers}
        self._streams: list[MemoryProduceStream | MemoryFetchStream] = []
        for awake in self._awake.values():
            awake.set()
        self.revision = 1
        self.feature_level = 0
        self.incarnation = bytes(16)
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
        self.groups = MemoryGroups(self._topic_sizes)
        """The coordinator of groups."""
        self.transactions = MemoryTransactions(self._new_producer_id, self._write_markers)
        """The coordinator of transactions."""

    def _topic_sizes(self) -> dict[str, tuple[bytes, int]]:
        return {topic.name: (topic.topic_id, len(topic.partitions)) for topic in list(self._topics.values())}

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
            topic.partitions.append(MemoryPartition(self.brokers[number % len(self.brokers)]))
        self._changed()

    def delete_topic(self, name: str) -> None:
        """Gone at once."""
        del self._topics[name]
        self._changed()

    def move_leader(self, name: str, partition: int, broker: int) -> None:
        """Another leader, or none with -1, under the next leader epoch."""
        self.partition(name, partition).lead(NodeId(broker))
        self._changed()

    def lose(self, name: str, partition: int, log_end: int, broker: int) -> None:
        """An unclean election: ``broker`` leads, and never had what is at ``log_end`` and above."""
        self.partition(name, partition).lead(NodeId(broker), log_end=log_end)
        self._changed()

    def kill(self, broker: int, *, elect: bool = True) -> None:
        """Its connections break and its port is closed; with ``elect`` others lead what it led. On the loop."""
        self.down.add(NodeId(broker))
        for stream in self._streams:
            if stream.broker == broker:
                stream.broke(f"broker {broker} was killed")
        if elect:
            self.depose(broker)

    def revive(self, broker: int) -> None:
        """It runs again and leads nothing."""
        self.down.discard(NodeId(broker))
        self._changed()

    def depose(self, broker: int) -> None:
        """Others lead what ``broker`` led; nobody, if no other is up."""
        heirs = [each for each in self.brokers if each != broker and each not in self.down and self.awake(each)]
        for topic in self._topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.leader == broker:
                    partition.lead(heirs[number % len(heirs)] if heirs else NO_NODE)
        self._changed()

    def pause(self, broker: int) -> None:
        """It keeps its connections and says nothing, until ``resume``."""
        self._awake[NodeId(broker)].clear()

    def resume(self, broker: int) -> None:
        """It goes on with what it was asked."""
        self._awake[NodeId(broker)].set()

    def awake(self, broker: NodeId) -> bool:
        """Whether it is not paused."""
        return self._awake[broker].is_set()

    async def until_awake(self, broker: NodeId) -> None:
        """Wait while it is paused."""
        await self._awake[broker].wait()

    def enlist(self, stream: MemoryProduceStream | MemoryFetchStream) -> None:
        """A transport has opened a stream."""
        self._streams.append(stream)

    def partition(self, name: str, partition: int) -> MemoryPartition:
        """Its leader, its log, and what its followers know."""
        return self._topics[name].partitions[partition]

    def trim(self, name: str, partition: int, start: int) -> None:
        """Records below ``start`` are gone."""
        self.log(name, partition).start = start
        self._changed()

    def inject(self, api: str, *faults: Fault) -> None:
        """The next requests of ``api`` ("produce", "fetch", "metadata", "list_offsets", "init_producer_id") fail so."""
        self._faults.setdefault(api, deque()).extend(faults)

    def log(self, name: str, partition: int) -> MemoryLog:
        """What was written to a partition."""
        return self.partition(name, partition).log

    def values(self, name: str, partition: int) -> list[bytes | None]:
        """The values of a partition, in order, whatever became of their transactions."""
        log = self.log(name, partition)
        decoded = [decode_batch(batch) for batch in log.batches]
        return [value for batch in decoded if not batch.is_control for value in batch.values()]

    def committed_values(self, name: str, partition: int) -> list[bytes | None]:
        """Those that a reader of committed records sees."""
        log = self.log(name, partition)
        end = log.transactions.last_stable(log.end)
        values: list[bytes | None] = []
        for batch in map(decode_batch, log.read(log.start, 1 << 40, first=True, end=end)):
            begin = batch.header.base_offset
            gone = log.transactions.overlapping(begin, batch.header.next_offset)
            dropped = batch.header.transactional and any(each.producer_id == batch.header.producer_id for each in gone)
            if not (batch.is_control or dropped):
                values += batch.values()
        return values

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
        answer = pb.MetadataResponse(
            cluster_id="memory",
            incarnation=self.incarnation,
            revision=self.revision,
            feature_level=self.feature_level,
        )
        for broker in self.brokers:
            if broker not in self.down:
                node = answer.nodes.add(role=cluster_pb2.BROKER, id=broker)
                node.grpc.host, node.grpc.port = "memory", broker
        for name in list(self._topics) if request.all_topics else request.topics:
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
        self.transactions.expire()
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
                self._enrol(request, entry, partition)
                result.base_offset = partition.log.append(entry.batch, partition.leader_epoch, now_ms)
            except HeadraceError as error:
                result.error, result.message = errors_pb2.ErrorCode.ValueType(error.code), str(error)
                continue
            result.log_append_time_ms = -1 if now_ms is None else now_ms
            result.log_start_offset = partition.log.start
        self._changed(metadata=False)
        return answer

    def _enrol(self, request: pb.ProduceRequest, entry: pb.ProducePartition, partition: MemoryPartition) -> None:
        """Raises: what a leader says of a batch that its transaction may not have."""
        header = read_header(entry.batch)
        if header.transactional != request.HasField("transactional_id"):
            raise InvalidTxnState("a batch has the transactional bit, and its request the transactional id, or neither")
        if not header.transactional or partition.log.check(header) is not None:
            return
        if not partition.log.in_transaction(header):
            key, where = request.transactional_id, (entry.topic_id, entry.partition)
            self.transactions.enrol(key, header.producer_id, header.producer_epoch, where)

    def _write_markers(self, ends: Ends) -> None:
        by_id = {topic.topic_id: topic for topic in self._topics.values()}
        for topic_id, number in sorted(ends.partitions):
            if topic_id in by_id:
                partition = by_id[topic_id].partitions[number]
                partition.log.end_transaction(
                    ends.producer_id,
                    ends.epoch,
                    commit=ends.commit,
                    leader_epoch=partition.leader_epoch,
                    now_ms=self.now_ms,
                )
        self.groups.end_transaction(ends.producer_id, ends.epoch, commit=ends.commit)
        self._changed(metadata=False)

    def hold_offsets(self, request: group_pb.TxnOffsetCommitRequest) -> group_pb.CommitOffsetsResponse:
        """Positions in a transaction."""
        self.groups.check()
        self.transactions.enrol(request.transactional_id, request.producer_id, request.producer_epoch, None)
        return self.groups.hold(request)

    def _find(
        self, broker: NodeId, entry: Any, result: Any, *, followers: bool = False
    ) -> tuple[_Topic, MemoryPartition] | None:
        """The partition, if this broker may answer for it; else the error goes into ``result``."""
        topic = next((t for t in self._topics.values() if t.topic_id == entry.topic_id), None)
        if topic is None:
            result.error = errors_pb2.UNKNOWN_TOPIC_ID
            return None
        if not 0 <= entry.partition < len(topic.partitions):
            result.error = errors_pb2.UNKNOWN_TOPIC_OR_PARTITION
            return None
        partition = topic.partitions[entry.partition]
        refused = partition.refused(broker, entry, result, followers=followers)
        return None if refused else (topic, partition)

    def fetch(self, broker: NodeId, request: pb.FetchRequest) -> tuple[pb.FetchResponse, int]:
        """What is there now, and how many bytes."""
        self.transactions.expire()
        answer = pb.FetchResponse(correlation_id=request.correlation_id)
        total = 0
        for entry in request.partitions:
            result = pb.FetchPartitionResult(topic_id=entry.topic_id, partition=entry.partition)
            result.high_watermark = result.last_stable_offset = -1
            found = self._find(broker, entry, result, followers=request.HasField("rack"))
            if found is not None:
                near = found[1].near(broker, request.rack, self.racks, self.down)
                room = request.max_bytes - total
                committed = request.isolation_level == pb.READ_COMMITTED
                total += found[1].fetch(broker, entry, result, room, first=total == 0, near=near, committed=committed)
            turned_away = result.HasField("diverging") or result.HasField("preferred_replica")
            if result.batches or result.error or turned_away:
                answer.partitions.append(result)
        return answer, total

    def list_offsets(self, broker: NodeId, request: pb.ListOffsetsRequest) -> tuple[pb.ListOffsetsResponse, bool]:
        """The answer, and whether a long poll is over."""
        self.transactions.expire()
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
            if entry.timestamp_ms == END and not partition.end_known:
                result.error = errors_pb2.OFFSET_NOT_AVAILABLE
                over = True
                continue
            result.leader_epoch = partition.leader_epoch
            committed = request.isolation_level == pb.READ_COMMITTED
            result.offset, result.timestamp_ms = partition.find(entry.timestamp_ms, committed=committed)
            if entry.HasField("wait_above") and result.offset > entry.wait_above:
                over = True
        return answer, over

    def init_producer_id(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        """A new id, or the next epoch."""
        if request.HasField("producer_id") and request.producer_epoch < EPOCH_MAX:
            return pb.InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)
        return pb.InitProducerIdResponse(producer_id=self._new_producer_id(), producer_epoch=0)

    def _new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    # --- long polls -------------------------------------------------------------------------------------------

    async def news(self, timeout_ms: float) -> bool:
        """Wait until something was appended or changed; False when ``timeout_ms`` passed without."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):  # wait_for loses a cancellation that comes with the news
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    def _changed(self, *, metadata: bool = True) -> None:
        if metadata:
            self.revision += 1
            self.groups.topics_changed()
        for waiter in self._waiters.copy():
            loop = waiter.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
