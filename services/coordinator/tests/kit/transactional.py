"""A transactional producer that is nothing but its calls, and what readers see: for tests against real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc
from services.coordinator.tests.kit.processes import START_S, Cluster, answered, until_answered

from headrace_common.core.batch import RecordColumns, build_batch, decode_batch, read_header
from headrace_common.core.errors import HeadraceError, error_for
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import broker_pb2, cluster_pb2, transaction_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorAsyncStub

READ_BYTES = 1 << 20


async def coordinator_of(cluster: Cluster, transactional_id: str) -> tuple[int, TransactionCoordinatorAsyncStub]:
    """The node id and a stub of the id's coordinator, once there is one."""
    node_id, at = await cluster.locate(broker_pb2.TRANSACTION, transactional_id)
    stub: TransactionCoordinatorAsyncStub = TransactionCoordinatorStub(cluster.channel(at))
    return node_id, stub


async def asked(cluster: Cluster, transactional_id: str, method: str, request: Any) -> Any:
    """The answer of whoever coordinates the id, asked again while that may help."""

    async def once() -> Any:
        _, stub = await coordinator_of(cluster, transactional_id)
        return await answered(getattr(stub, method)(request, timeout=6))

    return await until_answered(once)


class TransactionalProducer:
    """One transactional id; sequences are kept per transaction. ``send`` and ``end`` go on until they succeed."""

    def __init__(self, cluster: Cluster, transactional_id: str, *, owner_epoch: int | None = None) -> None:
        self.cluster = cluster
        self.id = transactional_id
        self.producer_id, self.epoch = -1, -1
        self._owner_epoch = owner_epoch
        self._sequences: dict[tuple[str, int], int] = {}
        self._streams: dict[str, Any] = {}
        self._topics: dict[str, Any] = {}

    async def init(self, timeout_ms: int = 60_000) -> transaction_pb2.InitTransactionalIdResponse:
        """Fence all others of this id."""
        request = transaction_pb2.InitTransactionalIdRequest(
            transactional_id=self.id, transaction_timeout_ms=timeout_ms, owner_epoch=self._owner_epoch
        )
        found: transaction_pb2.InitTransactionalIdResponse = await asked(
            self.cluster, self.id, "InitTransactionalId", request
        )
        self._became(found.producer_id, found.producer_epoch)
        return found

    def _became(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences = {}

    async def send(self, topic: str, partition: int, *values: bytes) -> int:
        """Write one batch; its offset."""
        sequence = self._sequences.get((topic, partition), 0)
        batch = build_batch(
            RecordColumns(values=list(values), timestamps_ms=-1),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        offset: int = await until_answered(lambda: self._send(topic, partition, batch))
        self._sequences[topic, partition] = sequence + len(values)
        return offset

    async def _send(self, topic: str, partition: int, batch: bytes) -> int:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = await metadata(self.cluster, topic)
        at = found.leaders.get(partition)
        if at is None:
            del self._topics[topic]
            raise error_for(5, "no leader")
        entry = broker_pb2.ProducePartition(topic_id=found.topic_id, partition=partition, batch=batch)
        request = broker_pb2.ProduceRequest(
            correlation_id=1, acks=-1, timeout_ms=5_000, partitions=[entry], transactional_id=self.id
        )
        try:
            stream = self._streams.get(at)
            if stream is None:
                stub: Any = BrokerStub(self.cluster.channel(at))
                stream = self._streams[at] = stub.Produce()
            async with asyncio.timeout(8):
                await stream.write(request)
                answer = await stream.read()
            result = answer.partitions[0]
            if result.error:
                raise error_for(result.error, result.message)
            return int(result.base_offset)
        except (TimeoutError, AttributeError, asyncio.InvalidStateError, grpc.RpcError, HeadraceError) as error:
            self._topics.pop(topic, None)
            self._streams.pop(at, None)
            if isinstance(error, grpc.RpcError):
                raise error_from_rpc(error) from error
            if isinstance(error, HeadraceError):
                raise
            raise error_for(13, f"the stream broke: {error!r}") from error

    async def end(self, *, commit: bool) -> None:
        """Commit or abort."""
        request = transaction_pb2.EndTxnRequest(
            transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch, commit=commit
        )
        found = await asked(self.cluster, self.id, "EndTxn", request)
        self._became(found.producer_id, found.producer_epoch)

    async def prepare(self) -> transaction_pb2.PreparedToken:
        """What decides the open transaction from now on."""
        request = transaction_pb2.PrepareTxnRequest(
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            owner_epoch=self._owner_epoch,
        )
        token: transaction_pb2.PreparedToken = (await asked(self.cluster, self.id, "PrepareTxn", request)).token
        return token


class _Metadata:
    def __init__(self, topic_id: bytes, leaders: dict[int, str]) -> None:
        self.topic_id = topic_id
        self.leaders = leaders


async def metadata(cluster: Cluster, topic: str) -> _Metadata:
    """Who leads the partitions of a topic, by any broker that lives."""
    for broker in cluster.brokers:
        if broker.running is None or broker.running.returncode is not None:
            continue
        stub: Any = BrokerStub(cluster.channel(broker.address))
        try:
            found = await stub.Metadata(broker_pb2.MetadataRequest(topics=[topic]), timeout=5)
        except grpc.RpcError:
            continue
        addresses = {
            node.id: f"{node.grpc.host}:{node.grpc.port}" for node in found.nodes if node.role == cluster_pb2.BROKER
        }
        leaders = {
            one.partition: addresses[one.leader] for one in found.topics[0].partitions if one.leader in addresses
        }
        return _Metadata(found.topics[0].topic_id, leaders)
    raise error_for(5, "no broker answers")


async def visible(cluster: Cluster, topic: str, partition: int) -> tuple[list[bytes], bool]:
    """What readers of committed records see, from the beginning; and whether nothing more is held back."""

    async def once() -> tuple[list[bytes], bool]:
        found = await metadata(cluster, topic)
        at = found.leaders.get(partition)
        if at is None:
            raise error_for(5, "no leader")
        stub: Any = BrokerStub(cluster.channel(at))
        entry = broker_pb2.FetchPartition(
            topic_id=found.topic_id, partition=partition, fetch_offset=0, max_bytes=READ_BYTES
        )
        request = broker_pb2.FetchRequest(
            correlation_id=1,
            min_bytes=0,
            max_bytes=READ_BYTES,
            partitions=[entry],
            isolation_level=broker_pb2.READ_COMMITTED,
        )
        call = stub.Fetch()
        try:
            async with asyncio.timeout(8):
                await call.write(request)
                answer = await call.read()
            result = answer.partitions[0]
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        finally:
            call.cancel()
        if result.error:
            raise error_for(result.error, result.message)
        aborted = [(one.producer_id, one.first_offset, one.last_offset) for one in result.aborted]
        return _committed(result.batches, aborted), result.last_stable_offset == result.high_watermark

    seen: tuple[list[bytes], bool] = await until_answered(once)
    return seen


def _committed(batches: Sequence[bytes], aborted: Sequence[tuple[int, int, int]]) -> list[bytes]:
    values: list[bytes] = []
    for batch in batches:
        header = read_header(batch)
        dropped = any(
            header.producer_id == producer_id and first <= header.base_offset <= last
            for producer_id, first, last in aborted
        )
        if not header.control and not dropped:
            values += [value or b"" for value in decode_batch(batch).values()]
    return values


async def until_stable(cluster: Cluster, topic: str, partition: int) -> list[bytes]:
    """What readers see once nothing is held back from them any more."""
    async with asyncio.timeout(START_S):
        while True:
            values, stable = await visible(cluster, topic, partition)
            if stable:
                return values
            await asyncio.sleep(0.02)
