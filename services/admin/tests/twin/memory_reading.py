"""
What brokers of the memory cluster say of offsets, records and coordinators. ``MemoryCluster`` has it.

Records are written a second apart, ten to a batch: offset n of any partition at ``TIME_ZERO_MS`` + n seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.admin.tests.twin.memory_producers import MemoryProducers

from headrace_common.core.batch import RecordColumns, build_batch
from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    NetworkFailed,
    NotLeader,
    OffsetOutOfRange,
    UnknownTopicId,
)
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    INTERNAL_TOPICS,
    ClusterImage,
    ImageDelta,
    Node,
    NodeKey,
    Partition,
    Role,
    Shard,
    ShardKey,
    ShardKind,
    Topic,
)
from headrace_common.core.murmur2 import murmur2
from headrace_common.rpc.status import detail_of
from headrace_proto.v1 import broker_pb2 as pb

TIME_ZERO_MS: Final = 1_699_999_000_000
_STEP_MS: Final = 1_000
_BATCH: Final = 10


class MemoryReading(MemoryProducers):
    """Part of ``MemoryCluster``, whose image and logs it reads."""

    image: ClusterImage
    down: set[int]
    ends: dict[PartitionId, int]
    starts: dict[PartitionId, int]

    def __init__(self) -> None:
        super().__init__()
        self.coordinator_ids: tuple[int, ...] = ()
        self.shard_count = 4

    # --- shards ---------------------------------------------------------------------------------------------------

    def start_coordinators(self, *ids: int) -> None:
        """They register; the internal topic is made when somebody first looks for one."""
        self.coordinator_ids = ids
        nodes = [
            Node(NodeKey(Role.COORDINATOR, NodeId(n)), Endpoint("127.0.0.1", 9600 + n), bytes(16), n, fenced=False)
            for n in ids
        ]
        self._apply(nodes=tuple(nodes))

    def make_shards(self, kind: ShardKind = ShardKind.GROUPS) -> None:
        """The internal topic, with its shards spread over the coordinators."""
        name = INTERNAL_TOPICS[kind]
        topic = Topic(name, TopicId(name.encode()[:16].ljust(16, b"\0")), self.shard_count, {}, internal=True)
        broker = self.image.brokers()[0].key.id
        partitions = [
            Partition(PartitionId(topic.topic_id, n), (broker,), (broker,), broker, 0, 0)
            for n in range(self.shard_count)
        ]
        self._apply(topics=(topic,), partitions=tuple(partitions))
        for n in range(self.shard_count):
            owner = self.coordinator_ids[n % len(self.coordinator_ids)] if self.coordinator_ids else NO_NODE
            self.give_shard(n, owner, kind)

    def give_shard(self, number: int, owner: int, kind: ShardKind = ShardKind.GROUPS) -> None:
        """To another coordinator, or to nobody (-1)."""
        key = ShardKey(kind, number)
        before = self.image.shards.get(key)
        self._apply(shards=(Shard(key, NodeId(owner), 1 if before is None else before.epoch + 1),))

    def shard_of(self, key: str, kind: ShardKind = ShardKind.GROUPS) -> int:
        """Which shard a group or a transactional id belongs to."""
        hashed = key.partition("/")[0] if kind is ShardKind.TRANSACTIONS else key
        return (murmur2(hashed.encode()) & 0x7FFFFFFF) % self.shard_count

    def coordinator_of(self, key: str, kind: ShardKind = ShardKind.GROUPS) -> int:
        """Who has it; -1: nobody."""
        shard = self.image.shards.get(ShardKey(kind, self.shard_of(key, kind)))
        return NO_NODE if shard is None else shard.owner

    async def find_coordinator(self, broker: NodeId, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        """By the image."""
        self._reach(broker)
        kind = ShardKind.TRANSACTIONS if request.type == pb.TRANSACTION else ShardKind.GROUPS
        if self.image.topic(INTERNAL_TOPICS[kind]) is None:
            self.make_shards(kind)
        answer = pb.FindCoordinatorResponse()
        for key in request.keys:
            owner = self.coordinator_of(key, kind)
            node = self.image.nodes.get(NodeKey(Role.COORDINATOR, NodeId(owner)))
            found = answer.coordinators.add(key=key, shard=self.shard_of(key, kind), coordinator=owner)
            if node is None:
                detail = detail_of(CoordinatorNotAvailable(f"no coordinator has shard {found.shard}; start one"))
                found.error, found.message = detail.code, detail.message
            else:
                found.endpoint.host, found.endpoint.port = node.grpc.host, node.grpc.port
        return answer

    # --- logs -----------------------------------------------------------------------------------------------------

    async def list_offsets(self, broker: NodeId, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """Start, end, or the first record at or after a time."""
        self._reach(broker)
        answer = pb.ListOffsetsResponse()
        for p in request.partitions:
            i = PartitionId(TopicId(p.topic_id), p.partition)
            result = answer.partitions.add(topic_id=p.topic_id, partition=p.partition, offset=-1, timestamp_ms=-1)
            try:
                start, end = self._extent(broker, i)
            except HeadraceError as error:
                detail = detail_of(error)
                result.error, result.message = detail.code, detail.message
                continue
            if request.isolation_level == pb.READ_COMMITTED:
                end = max(start, self.stable_end(i))
            at = max(start, -(-(p.timestamp_ms - TIME_ZERO_MS) // _STEP_MS))
            result.offset = {-1: end, -2: start}.get(p.timestamp_ms, at if at < end else -1)
        return answer

    async def fetch(self, broker: NodeId, request: pb.FetchRequest) -> pb.FetchResponse:
        """One batch of each."""
        self._reach(broker)
        answer = pb.FetchResponse(correlation_id=request.correlation_id)
        for p in request.partitions:
            i = PartitionId(TopicId(p.topic_id), p.partition)
            result = answer.partitions.add(topic_id=p.topic_id, partition=p.partition)
            try:
                start, end = self._extent(broker, i)
                if not start <= p.fetch_offset <= end:
                    raise OffsetOutOfRange(f"{p.fetch_offset} is not there")
            except HeadraceError as error:
                detail = detail_of(error)
                result.error, result.message = detail.code, detail.message
                continue
            base = max(start, p.fetch_offset - p.fetch_offset % _BATCH)
            if p.fetch_offset < end:
                result.batches.append(_batch(base, range(base, min(end, base - base % _BATCH + _BATCH))))
        return answer

    def _extent(self, broker: NodeId, i: PartitionId) -> tuple[int, int]:
        partition = self.image.partitions.get(i)
        if partition is None:
            raise UnknownTopicId("no topic has this id")
        if partition.leader != broker:
            raise NotLeader(f"broker {broker} does not lead it")
        return self.starts.get(i, 0), self.ends.get(i, 0)

    def _reach(self, broker: NodeId) -> None:
        if broker in self.down:
            raise NetworkFailed(f"broker {broker} does not answer")

    def _apply(
        self,
        *,
        nodes: tuple[Node, ...] = (),
        topics: tuple[Topic, ...] = (),
        partitions: tuple[Partition, ...] = (),
        shards: tuple[Shard, ...] = (),
    ) -> None:
        now = self.image
        delta = ImageDelta(
            now.incarnation,
            now.revision,
            now.revision + 1,
            now.cluster_id,
            nodes=nodes,
            topics=topics,
            partitions=partitions,
            shards=shards,
        )
        self.image = now.apply(delta)


def _batch(base: int, offsets: Sequence[int]) -> bytes:
    times = [TIME_ZERO_MS + o * _STEP_MS for o in offsets]
    return build_batch(RecordColumns([b"x"] * len(offsets), timestamps_ms=times), base_offset=base)
