"""Transactions over real gRPC and RocksDB: a client, a coordinator that grants what it is asked, readers, a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from services.broker.tests.kit.batches import NOW_MS, batch_of
from services.broker.tests.kit.cluster import FakeCluster, image_of, topic_id_of, with_coordinator
from services.broker.tests.kit.dialogue import running_broker

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.grpc_transactions import GrpcTransactions
from headrace_broker.adapters.rocksdb_dump import dump_logs
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.engine.broker import EngineSettings
from headrace_broker.engine.storage_queue import Flush
from headrace_broker.ports import Enrolment
from headrace_common.core.batch import Marker, build_fence_batch, read_header, read_marker
from headrace_common.core.errors import ErrorCode, HeadraceError, NetworkFailed, NotCoordinator, ProducerFenced
from headrace_common.core.ids import Endpoint, PartitionId
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.answering import answer_stream
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn
from headrace_proto.v1 import transaction_pb2_grpc
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub

TOPIC = topic_id_of("t")


@dataclass
class Coordinator(transaction_pb2_grpc.TransactionCoordinatorServicer):
    """Says what a test says it should; then everything is enrolled."""

    answers: list[txn.TxnPartitionsResult] = field(default_factory=list)
    failures: list[HeadraceError] = field(default_factory=list)
    asked: list[txn.TxnPartitions] = field(default_factory=list)
    short: bool = False
    silent: bool = False

    calls: int = 0
    """Those that were no stream."""

    async def AddPartitionsToTxn(
        self, request: txn.AddPartitionsToTxnRequest, context: Any
    ) -> txn.AddPartitionsToTxnResponse:
        self.calls += 1
        return await self._enrol(request)

    def Enrol(self, requests: Any, context: Any) -> Any:
        return answer_stream(context, asyncio.Event(), self._enrol, txn.EnrolResponse)

    async def _enrol(self, request: txn.AddPartitionsToTxnRequest) -> txn.AddPartitionsToTxnResponse:
        if self.silent:
            await asyncio.Event().wait()
        if self.failures:
            raise self.failures.pop(0)
        self.asked += request.transactions
        count = 0 if self.short else len(request.transactions)
        results = [self.answers.pop(0) if self.answers else txn.TxnPartitionsResult() for _ in range(count)]
        return txn.AddPartitionsToTxnResponse(transactions=results)


@asynccontextmanager
async def coordinating(coordinator: Coordinator) -> AsyncIterator[Endpoint]:
    add = transaction_pb2_grpc.add_TransactionCoordinatorServicer_to_server
    async with GrpcService.open(ServerConfig(drain_ms_max=100), [(add, coordinator)]) as server:
        yield server.endpoint


@asynccontextmanager
async def asking(*, streams: bool = True) -> AsyncIterator[GrpcTransactions]:
    """The way to coordinators; by calls alone until all of them know streams."""
    async with TaskRunner() as tasks:
        transactions = GrpcTransactions(tasks, streams=lambda: streams)
        yield transactions
        await transactions.close()
    assert tasks.failure is None


@asynccontextmanager
async def serving(
    directory: Path, coordinator: Endpoint, leader_epoch: int = 1, **configs: str
) -> AsyncIterator[BrokerAsyncStub]:
    data = DataDirectory.open(directory)
    store, cluster = RocksDbLogs.open(data), FakeCluster()
    settings = EngineSettings(flush=Flush.GROUP)
    try:
        async with asking() as ways, running_broker(store, cluster, settings=settings, transactions=ways) as found:
            broker, server = found
            own = {name.replace("_", "."): value for name, value in configs.items()}
            image = image_of({"t": 2}, configs={"t": own}, endpoint=server.endpoint, leader_epoch=leader_epoch)
            cluster.show(with_coordinator(image, coordinator))
            await broker.follower.changed.wait()
            async with open_channel(str(server.endpoint)) as channel:
                yield BrokerStub(channel)
    finally:
        await store.close(None)
        data.close()


def produce(*batches: bytes, transactional_id: str | None = "id", token: int | None = None) -> pb.ProduceRequest:
    parts = [
        pb.ProducePartition(topic_id=TOPIC, partition=n, batch=batch, fencing_token=token)
        for n, batch in enumerate(batches)
    ]
    return pb.ProduceRequest(
        correlation_id=1, acks=-1, timeout_ms=10_000, partitions=parts, transactional_id=transactional_id
    )


def records(sequence: int = 0, *, epoch: int = 0, count: int = 1, pid: int = 7) -> bytes:
    return batch_of(count, producer_id=pid, epoch=epoch, sequence=sequence, transactional=True)


def fetch(offset: int = 0, isolation: pb.IsolationLevel.ValueType = pb.READ_COMMITTED) -> pb.FetchRequest:
    part = pb.FetchPartition(topic_id=TOPIC, partition=0, fetch_offset=offset, max_bytes=1 << 20)
    return pb.FetchRequest(
        correlation_id=1, min_bytes=0, max_wait_ms=0, max_bytes=1 << 20, partitions=[part], isolation_level=isolation
    )


async def ask(call: Any, message: Any) -> Any:
    await call.write(message)
    return await asyncio.wait_for(call.read(), 20)


async def mark(stub: BrokerAsyncStub, epoch: int, commit: bool, *partitions: int, pid: int = 7) -> list[int]:
    marker = txn.TxnMarker(
        producer_id=pid,
        producer_epoch=epoch,
        commit=commit,
        partitions=[txn.TxnPartition(topic_id=TOPIC, partition=n) for n in partitions],
    )
    answer = await stub.WriteTxnMarkers(txn.WriteTxnMarkersRequest(markers=[marker]))
    return [one.error for one in answer.markers[0].partitions]


async def test_a_transaction_from_its_first_batch_to_its_readers(tmp_path: Path) -> None:
    coordinator = Coordinator()
    async with coordinating(coordinator) as at, serving(tmp_path, at) as stub:
        produced = await ask(stub.Produce(), produce(records(count=2), records()))
        assert [(one.error, one.base_offset) for one in produced.partitions] == [(0, 0), (0, 0)]
        [entry] = coordinator.asked
        assert (entry.transactional_id, entry.producer_id, entry.producer_epoch) == ("id", 7, 0)
        assert sorted(one.partition for one in entry.partitions) == [0, 1]
        [held] = (await ask(stub.Fetch(), fetch())).partitions
        assert (len(held.batches), held.high_watermark, held.last_stable_offset) == (0, 2, 0)
        [described] = (await stub.DescribeLogs(pb.DescribeLogsRequest())).logs[:1]
        assert (described.last_stable_offset, described.oldest_open.producer_id) == (0, 7)
        assert described.oldest_open.since_ms > 0
        assert await mark(stub, 1, False, 0, 1, 9) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        [got] = (await ask(stub.Fetch(), fetch())).partitions
        assert [(one.producer_id, one.first_offset, one.last_offset) for one in got.aborted] == [(7, 0, 2)]
        assert (len(got.batches), got.last_stable_offset) == (2, 3)
        again = txn.TxnMarker(producer_id=7, producer_epoch=1, partitions=[txn.TxnPartition(topic_id=TOPIC)])
        marked = await ask(
            stub.Mark(), txn.MarkRequest(correlation_id=4, ask=txn.WriteTxnMarkersRequest(markers=[again]))
        )
        assert (marked.correlation_id, marked.answer.markers[0].partitions[0].error) == (4, 0), "over a stream"
        assert read_marker(got.batches[1], read_header(got.batches[1])) == Marker(7, 1, False)
        [raw] = (await ask(stub.Fetch(), fetch(isolation=pb.READ_UNCOMMITTED))).partitions
        assert (len(raw.batches), len(raw.aborted), raw.last_stable_offset) == (2, 0, 3)


async def test_a_fenced_writers_open_transaction_is_aborted_by_its_successor_who_then_writes(tmp_path: Path) -> None:
    first, second = (build_fence_batch(token, timestamp_ms=NOW_MS) for token in (1, 2))
    async with coordinating(Coordinator()) as at:
        async with serving(tmp_path, at, fencing_required="true") as stub:
            zombie, successor = stub.Produce(), stub.Produce()
            [refused] = (await ask(zombie, produce(records()))).partitions
            assert (refused.error, refused.HasField("fencing_token")) == (ErrorCode.FENCED_WRITER, False)
            await ask(zombie, produce(first, transactional_id=None))
            [written] = (await ask(zombie, produce(records(count=2), token=1))).partitions
            assert (written.error, written.base_offset) == (0, 1)

            [fence] = (await ask(successor, produce(second, transactional_id=None))).partitions
            assert (fence.error, fence.base_offset) == (0, 3)
            [late] = (await ask(zombie, produce(records(2), token=1))).partitions
            assert (late.error, late.fencing_token) == (ErrorCode.FENCED_WRITER, 2)
            [again] = (await ask(zombie, produce(records(count=2), token=1))).partitions
            assert (again.error, again.base_offset) == (0, 1), "it is there, and undecided"
            assert await mark(stub, 1, False, 0) == [0]
            [own] = (await ask(successor, produce(records(pid=8), token=2, transactional_id="other"))).partitions
            assert (own.error, own.base_offset) == (0, 5)
            assert await mark(stub, 1, True, 0, pid=8) == [0]
        async with serving(tmp_path, at, leader_epoch=2, fencing_required="true") as stub:
            [got] = (await ask(stub.Fetch(), fetch())).partitions
            assert [(one.producer_id, one.first_offset, one.last_offset) for one in got.aborted] == [(7, 1, 4)]
            assert (len(got.batches), got.last_stable_offset) == (6, 7)
            [late] = (await ask(stub.Produce(), produce(records(epoch=1), token=1))).partitions
            assert (late.error, late.fencing_token) == (ErrorCode.FENCED_WRITER, 2), "after a restart too"


async def test_all_of_it_outlives_a_restart(tmp_path: Path) -> None:
    async with coordinating(Coordinator()) as at:
        async with serving(tmp_path, at) as stub:
            call = stub.Produce()
            await ask(call, produce(records(count=2)))
            await mark(stub, 1, False, 0)
            await ask(call, produce(records(epoch=1)))
            await mark(stub, 2, True, 0)
            await ask(call, produce(records(epoch=2), records(epoch=2)))
        [one, _] = sorted(dump_logs(tmp_path, batches=10), key=lambda log: log["partition"])
        assert one["aborted"] == [{"producer_id": 7, "first_offset": 0, "last_offset": 2}]
        assert [batch.get("marker") for batch in one["batches"]] == [None, "abort", None, "commit", None]
        async with serving(tmp_path, at, leader_epoch=2) as stub:
            [part] = (await ask(stub.Fetch(), fetch())).partitions
            assert (part.high_watermark, part.last_stable_offset) == (6, 5)
            assert [(row.first_offset, row.last_offset) for row in part.aborted] == [(0, 2)]
            assert await mark(stub, 2, True, 0) == [ErrorCode.INVALID_PRODUCER_EPOCH], "a transaction is open since"
            asked = [pb.FollowedPartition(topic_id=TOPIC, partition=0)]
            [known] = (await stub.DescribeProducers(pb.DescribeProducersRequest(partitions=asked))).partitions
            [row] = known.producers
            assert (row.producer_id, row.producer_epoch, row.transaction_start, row.last_sequence) == (7, 2, 5, 0)
            assert row.transaction_since_ms > 0
            assert await mark(stub, 3, True, 0, 1) == [0, 0]
            assert await mark(stub, 3, True, 0, 1) == [0, 0], "a repeat"
            offsets = pb.ListOffsetsRequest(
                partitions=[pb.ListOffsetsPartition(topic_id=TOPIC, partition=0, timestamp_ms=-1)],
                isolation_level=pb.READ_COMMITTED,
            )
            assert (await stub.ListOffsets(offsets)).partitions[0].offset == 7


async def test_a_verdict_outlives_a_restart_by_its_row_alone(tmp_path: Path) -> None:
    async with coordinating(Coordinator()) as at:
        for epoch, commit in ((1, True), (2, False)):
            async with serving(tmp_path, at, leader_epoch=epoch) as stub:
                await ask(stub.Produce(), produce(records(epoch=epoch - 1)))
                await mark(stub, epoch, commit, 0)
            async with serving(tmp_path, at, leader_epoch=epoch) as stub:
                assert await mark(stub, epoch, not commit, 0) == [ErrorCode.INVALID_PRODUCER_EPOCH]
                assert await mark(stub, epoch, commit, 0) == [0]


async def test_what_the_coordinator_says_is_the_producers_answer(tmp_path: Path) -> None:
    coordinator = Coordinator(answers=[txn.TxnPartitionsResult(error=ErrorCode.PRODUCER_FENCED, message="newer")])
    async with coordinating(coordinator) as at, serving(tmp_path, at) as stub:
        [refused] = (await ask(stub.Produce(), produce(records()))).partitions
        assert (refused.error, refused.message) == (ErrorCode.PRODUCER_FENCED, "newer")
        coordinator.failures = [NotCoordinator("moved"), NotCoordinator("moved")]
        coordinator.answers = [txn.TxnPartitionsResult(error=ErrorCode.CONCURRENT_TRANSACTIONS)]
        [appended] = (await ask(stub.Produce(), produce(records()))).partitions
        assert (appended.error, appended.base_offset) == (0, 0)
        assert coordinator.failures == coordinator.answers == []


async def test_wrong_requests_are_refused_as_a_whole(tmp_path: Path) -> None:
    async with coordinating(Coordinator()) as at, serving(tmp_path, at) as stub:
        for call, message in (
            (stub.WriteTxnMarkers, txn.WriteTxnMarkersRequest()),
            (stub.WriteTxnMarkers, txn.WriteTxnMarkersRequest(markers=[txn.TxnMarker(producer_id=1)])),
            (stub.DescribeProducers, pb.DescribeProducersRequest()),
            (
                stub.DescribeProducers,
                pb.DescribeProducersRequest(partitions=[pb.FollowedPartition(topic_id=TOPIC)] * 2),
            ),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                await call(message)
            assert error_from_rpc(caught.value).code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("streams", [True, False])
class TestTheWayToCoordinators:
    one = Enrolment("id", 7, 3, (PartitionId(TOPIC, 0), PartitionId(TOPIC, 5)))

    async def test_answers_come_in_the_order_of_the_questions(self, streams: bool) -> None:
        coordinator = Coordinator(answers=[txn.TxnPartitionsResult(), txn.TxnPartitionsResult(error=90, message="x")])
        async with coordinating(coordinator) as at, asking(streams=streams) as transactions:
            fine, fenced = await transactions.enrol(at, [self.one, self.one], 5_000)
            assert fine is None
            assert isinstance(fenced, ProducerFenced)
            assert [one.partition for one in coordinator.asked[0].partitions] == [0, 5]
            await transactions.keep({Endpoint("127.0.0.1", 1)})
            assert await transactions.enrol(at, [self.one], 5_000) == [None], "it is opened anew"
            coordinator.failures = [NotCoordinator("moved")]
            with pytest.raises(NotCoordinator, match="moved"):
                await transactions.enrol(at, [self.one], 5_000)
            coordinator.short = True
            with pytest.raises(NetworkFailed):
                await transactions.enrol(at, [self.one], 5_000)
            assert coordinator.calls == (0 if streams else 4)

    async def test_a_connection_that_is_closed_under_a_call(self, streams: bool) -> None:
        async with coordinating(Coordinator(silent=True)) as at, asking(streams=streams) as transactions:
            call = asyncio.create_task(transactions.enrol(at, [self.one], 20_000))
            await asyncio.sleep(0.1)
            await transactions.keep(())
            with pytest.raises(NetworkFailed):
                await asyncio.wait_for(call, 5)

    async def test_a_call_that_is_given_up(self, streams: bool) -> None:
        async with coordinating(Coordinator(silent=True)) as at, asking(streams=streams) as transactions:
            call = asyncio.create_task(transactions.enrol(at, [self.one], 20_000))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    async def test_nobody_is_there(self, streams: bool) -> None:
        async with asking(streams=streams) as transactions:
            with pytest.raises(HeadraceError) as caught:
                await transactions.enrol(Endpoint("127.0.0.1", 1), [self.one], 300)
            assert caught.value.retriable
