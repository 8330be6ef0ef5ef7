"""What a partition's leader gives of its log to who fetches it: batches as they are stored, and which transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace._transport.port import Transport
from headrace.errors import ErrorCode, HeadraceError, NetworkFailed, error_for
from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2 as pb

BYTES_MAX: Final = 1 << 26


@dataclass
class Log:
    """One partition, as it was at one moment."""

    topic_id: bytes
    leader: int
    leader_epoch: int
    start: int
    end: int
    stable_end: int
    """Transactions below it are decided."""
    batches: list[bytes]
    aborted: list[pb.AbortedTransaction] = field(default_factory=list)

    @property
    def undecided(self) -> bool:
        """Whether a transaction is open."""
        return self.stable_end < self.end

    def values(self) -> list[bytes | None]:
        """All of them, in order, whatever became of their transactions."""
        decoded = [decode_batch(batch) for batch in self.batches]
        return [value for batch in decoded if not batch.is_control for value in batch.values()]

    def committed_values(self) -> list[bytes | None]:
        """Those that a reader of committed records sees."""
        values: list[bytes | None] = []
        for batch in map(decode_batch, self.batches):
            header = batch.header
            dropped = header.transactional and any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
                for each in self.aborted
            )
            if not (batch.is_control or dropped) and header.base_offset < self.stable_end:
                values += batch.values()
        return values


async def read_log(transport: Transport, topic: str, partition: int) -> Log:
    """From its leader. Raises: HeadraceError: there is none."""
    request = pb.MetadataRequest(topics=[topic])
    [described] = (await transport.metadata(request)).topics
    if described.error:
        raise error_for(ErrorCode(described.error), topic)
    at = next(each for each in described.partitions if each.partition == partition)
    if at.leader < 0:
        raise NetworkFailed(f"nobody leads {topic}-{partition}")
    leader = NodeId(at.leader)
    bounds = [await _offset(transport, leader, described.topic_id, partition, which) for which in (-2, -1)]
    log = Log(described.topic_id, at.leader, at.leader_epoch, bounds[0], bounds[1], -1, [])
    await _fetch(transport, log, partition)
    return log


async def _fetch(transport: Transport, log: Log, partition: int) -> None:
    stable = await _offset(transport, NodeId(log.leader), log.topic_id, partition, -1, committed=True)
    log.stable_end, offset = stable, log.start
    while offset < log.end:
        # What is undecided comes to those alone who take everything; which were aborted is told to the others.
        committed = offset < stable
        request = pb.FetchRequest(min_bytes=1, max_wait_ms=1_000, max_bytes=BYTES_MAX)
        request.isolation_level = pb.READ_COMMITTED if committed else pb.READ_UNCOMMITTED
        request.partitions.add(topic_id=log.topic_id, partition=partition, fetch_offset=offset, max_bytes=BYTES_MAX)
        answer = await transport.fetch_stream(NodeId(log.leader)).send(request)
        for result in answer.partitions:
            if result.error:
                raise error_for(ErrorCode(result.error), result.message)
            log.batches += result.batches
            log.aborted += result.aborted
            if result.batches:
                offset = read_header(result.batches[-1]).next_offset


async def _offset(
    transport: Transport, leader: NodeId, topic_id: bytes, partition: int, which: int, *, committed: bool = False
) -> int:
    request = pb.ListOffsetsRequest(isolation_level=pb.READ_COMMITTED if committed else pb.READ_UNCOMMITTED)
    request.partitions.add(topic_id=topic_id, partition=partition, timestamp_ms=which)
    [result] = (await transport.list_offsets(leader, request)).partitions
    if result.error:
        raise error_for(ErrorCode(result.error), result.message)
    return result.offset


async def append(transport: Transport, topic: str, partition: int, batch: bytes, key: str | None = None) -> int:
    """Write one batch; the offset of its first record."""
    while True:
        [described] = (await transport.metadata(pb.MetadataRequest(topics=[topic]))).topics
        leader = next(each.leader for each in described.partitions if each.partition == partition)
        request = pb.ProduceRequest(acks=-1, timeout_ms=10_000, transactional_id=key)
        request.partitions.add(topic_id=described.topic_id, partition=partition, batch=batch)
        try:
            [result] = (await transport.produce_stream(NodeId(leader)).send(request)).partitions
            if not result.error:
                return result.base_offset
            raise error_for(ErrorCode(result.error), result.message)
        except HeadraceError as error:
            if not error.retriable:
                raise
