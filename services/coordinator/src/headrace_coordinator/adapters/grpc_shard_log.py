"""
The log of a shard in its partition's leader, over gRPC: ``ShardLog`` and ``ShardLogs``.

**Exactly in order although answers get lost.** A batch that was sent and not answered may still be under way. Were it
only sent again, the first copy could arrive after the *next* append and bring old values back. So each log writes as
an idempotent producer with one batch under way: the leader knows a repeated sequence, and refuses one that is out of
order. Writers of other epochs are kept out by the fencing token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from headrace_common.core.batch import build_fence_batch
from headrace_common.core.errors import (
    FencedWriter,
    InvalidProducerEpoch,
    InvalidTimestamp,
    LeaderNotAvailable,
    OffsetNotAvailable,
    OutOfOrderSequence,
    error_for,
)
from headrace_common.core.ids import Offset
from headrace_common.core.image import INTERNAL_TOPICS, ShardKey
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_common.runtime.threads import run_in_thread
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.adapters.leader_calls import Leader, LeaderCalls
from headrace_coordinator.adapters.log_batches import build, cut, decode
from headrace_coordinator.ports import Cluster, Record, Slice
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2

ATTEMPT_MS_MAX: Final = 3_000
"""How long one request to a leader may take before it is sent again."""
READ_BYTES: Final = 1 << 20
"""What one answer brings; more would keep the event loop waiting while it is taken in."""
READ_WAIT_MS: Final = 500
NO_TIMESTAMP: Final = -1
_SEQUENCES: Final = 2**31

log = logger(__name__)


class _OtherToken(FencedWriter):
    """The partition has another token."""

    def __init__(self, message: str, token: int | None) -> None:
        super().__init__(message)
        self.token = token


class GrpcShardLogs:
    """See ``ShardLogs``."""

    def __init__(self, cluster: Cluster, connections: BrokerConnections, clock: Clock) -> None:
        self._cluster = cluster
        self._connections = connections
        self._clock = clock

    def open(self, key: ShardKey, token: int) -> GrpcShardLog:
        calls = LeaderCalls(INTERNAL_TOPICS[key.kind], key.number, self._cluster, self._clock)
        return GrpcShardLog(calls, token, self._connections, self._clock)

    async def follow(self) -> None:
        """Close connections to addresses where nobody is any more; runs until cancelled."""
        async for image in self._cluster.images():
            await self._connections.keep({node.inside for node in image.nodes.values()})


class GrpcShardLog:
    """See ``ShardLog``."""

    def __init__(self, calls: LeaderCalls, token: int, connections: BrokerConnections, clock: Clock) -> None:
        self._calls = calls
        self._token = token
        self._connections = connections
        self._clock = clock
        self._producer: tuple[int, int] | None = None
        self._sequence = 0
        self._own_time = True
        """False once a leader found our clock too far from its own: then batches carry no time."""

    # --- writing ----------------------------------------------------------------------------------------------

    async def take_over(self) -> Offset:
        while True:
            try:
                result = await self._calls.ask(self._fence)
            except _OtherToken as error:
                if error.token != self._token:
                    raise
                # A fence of ours was appended and its answer lost. Whether it is committed, an append of ours tells.
                try:
                    result = await self._append_part(())
                except _OtherToken as other:
                    if other.token is not None and other.token > self._token:
                        raise
                    continue  # it was cut again before it was committed
            return Offset(result.base_offset + 1)

    async def append(self, records: Sequence[Record]) -> None:
        for part in cut(records):
            await self._append_part(part)

    async def _append_part(self, part: Sequence[Record]) -> pb.ProducePartitionResult:
        result = await self._calls.ask(lambda leader: self._write(leader, part))
        self._sequence = (self._sequence + max(1, len(part))) % _SEQUENCES
        return result

    async def _fence(self, leader: Leader) -> pb.ProducePartitionResult:
        batch = build_fence_batch(self._token, timestamp_ms=self._timestamp())
        return await self._produce(leader, batch, None)

    async def _write(self, leader: Leader, part: Sequence[Record]) -> pb.ProducePartitionResult:
        if self._producer is None:
            self._producer = await self._connections.init_producer_id(leader.endpoint)
            self._sequence = 0
        batch = build(part, timestamp_ms=self._timestamp(), producer=self._producer, sequence=self._sequence)
        try:
            return await self._produce(leader, batch, self._token)
        except (OutOfOrderSequence, InvalidProducerEpoch) as error:
            log.warning("the log does not know its writer: %s", error, extra={"partition": self._calls.where})
            self._producer = None
            raise LeaderNotAvailable(str(error)) from error

    async def _produce(self, leader: Leader, batch: bytes, token: int | None) -> pb.ProducePartitionResult:
        entry = pb.ProducePartition(
            topic_id=leader.id.topic_id,
            partition=leader.id.partition,
            batch=batch,
            leader_epoch=leader.epoch,
            fencing_token=token,
        )
        result = await self._connections.produce(leader.endpoint, entry, ATTEMPT_MS_MAX)
        if not result.error:
            return result
        if result.error == errors_pb2.FENCED_WRITER:
            raise _OtherToken(result.message, result.fencing_token if result.HasField("fencing_token") else None)
        error = error_for(result.error, result.message)
        if isinstance(error, InvalidTimestamp) and self._own_time:
            self._own_time = False
            log.warning("batches go without a time from now on: %s", error, extra={"partition": self._calls.where})
            raise LeaderNotAvailable(str(error)) from error
        raise error

    def _timestamp(self) -> int:
        return self._clock.now_ms() if self._own_time else NO_TIMESTAMP

    async def close(self) -> None:
        """See ``ShardLog``; connections are shared and stay."""

    # --- reading ----------------------------------------------------------------------------------------------

    async def read(self, until: Offset) -> AsyncIterator[Slice]:
        at = await self._calls.ask(self._start)
        while at < until:
            batches, log_start = await self._fetch_batches(at)
            if log_start > at:
                at = Offset(log_start)
                continue
            # Beside the event loop: other shards answer heartbeats meanwhile.
            part = await run_in_thread(decode, batches, at, until, self._calls.where)
            at = part.next_offset
            if part.keys:
                yield part

    async def _fetch_batches(self, at: Offset) -> tuple[list[bytes], int]:
        return await self._calls.ask(lambda leader: self._fetch(leader, at))

    async def _start(self, leader: Leader) -> Offset:
        ask = pb.ListOffsetsPartition(topic_id=leader.id.topic_id, partition=leader.id.partition, timestamp_ms=-2)
        answer = await self._connections.list_offsets(leader.endpoint, pb.ListOffsetsRequest(partitions=[ask]))
        result = answer.partitions[0]
        if result.error:
            raise error_for(result.error, result.message)
        return Offset(result.offset)

    async def _fetch(self, leader: Leader, at: Offset) -> tuple[list[bytes], int]:
        """Batches from ``at`` on, or where the log begins if that is above."""
        entry = pb.FetchPartition(
            topic_id=leader.id.topic_id,
            partition=leader.id.partition,
            fetch_offset=at,
            max_bytes=READ_BYTES,
            leader_epoch=leader.epoch,
        )
        request = pb.FetchRequest(
            correlation_id=1, min_bytes=1, max_wait_ms=READ_WAIT_MS, max_bytes=READ_BYTES, partitions=[entry]
        )
        answer = await self._connections.fetch(leader.endpoint, request)
        if answer.error:
            raise error_for(answer.error, answer.message)
        if not answer.partitions:
            return [], -1
        result = answer.partitions[0]
        if result.error == errors_pb2.OFFSET_OUT_OF_RANGE:
            if result.log_start_offset > at:
                return [], result.log_start_offset  # trimmed or compacted meanwhile
            raise OffsetNotAvailable(f"the leader does not have offset {at} yet: {result.message}")
        if result.error:
            raise error_for(result.error, result.message)
        return list(result.batches), -1
