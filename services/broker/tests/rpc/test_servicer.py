"""The broker over real gRPC and RocksDB: dialogues, and what bad input gets for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import BROKER_ID, FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.dialogue import running_broker

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.config import REQUEST_BYTES_MAX
from headrace_broker.engine.broker import Broker, EngineSettings
from headrace_broker.engine.storage_queue import Flush
from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.errors import ErrorCode
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import EMPTY_IMAGE
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub

TOPIC = topic_id_of("t")


@dataclass
class Served:
    """A broker and a connection to it."""

    broker: Broker
    stub: BrokerAsyncStub
    port: int


@asynccontextmanager
async def served(
    directory: Path, flush: Flush = Flush.GROUP, configs: dict[str, dict[str, str]] | None = None
) -> AsyncIterator[Served]:
    """A broker on the RocksDB in ``directory``."""
    data = DataDirectory.open(directory)
    store = RocksDbLogs.open(data)
    cluster = FakeCluster()
    try:
        async with running_broker(store, cluster, settings=EngineSettings(flush=flush)) as (broker, server):
            endpoint = Endpoint("127.0.0.1", server.port)
            cluster.ensuring.set()
            cluster.show(image_of({"t": 3}, configs=configs, endpoint=endpoint, leader_epoch=1))
            await broker.follower.changed.wait()
            async with open_channel(f"127.0.0.1:{server.port}") as channel:
                yield Served(broker, BrokerStub(channel), server.port)
    finally:
        await store.close(None)
        data.close()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path / "data") as one:
        yield one


def request(correlation_id: int = 1, acks: int = -1, timeout_ms: int = 10_000, **batches: bytes) -> pb.ProduceRequest:
    """A request for topic t; batches by partition, as ``p0=…``."""
    return pb.ProduceRequest(
        correlation_id=correlation_id,
        acks=acks,
        timeout_ms=timeout_ms,
        partitions=[
            pb.ProducePartition(topic_id=TOPIC, partition=int(name[1:]), batch=batch) for name, batch in batches.items()
        ],
    )


async def ask(call: Any, message: Any) -> Any:
    """Send one message and read the next answer."""
    await call.write(message)
    return await asyncio.wait_for(call.read(), 20)


def fetch(offset: int = 0, partition: int = 0, **changes: Any) -> pb.FetchRequest:
    """A request for one partition of topic t."""
    part = pb.FetchPartition(topic_id=TOPIC, partition=partition, fetch_offset=offset, max_bytes=1 << 20)
    whole = {"correlation_id": 1, "min_bytes": 1, "max_wait_ms": 0, "max_bytes": 1 << 20, "partitions": [part]}
    return pb.FetchRequest(**{**whole, **changes})


async def test_what_was_produced_is_fetched(broker: Served) -> None:
    answer = await ask(broker.stub.Produce(), request(7, p0=batch_of([b"a", b"b"]), p2=batch_of([b"c"])))
    assert answer.correlation_id == 7
    assert [(one.partition, one.error, one.base_offset, one.log_start_offset) for one in answer.partitions] == [
        (0, 0, 0, 0),
        (2, 0, 0, 0),
    ]
    read = await ask(broker.stub.Fetch(), fetch())
    [part] = read.partitions
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (2, 2, 0)
    assert decode_batch(part.batches[0]).values() == [b"a", b"b"]
    assert read_header(part.batches[0]).leader_epoch == 1


async def test_many_requests_may_be_under_way_and_each_is_answered_once(broker: Served) -> None:
    call = broker.stub.Produce()
    for number in range(200):
        await call.write(request(number, acks=number % 3 - 1, p0=batch_of(1)))
    expected = {number for number in range(200) if number % 3 != 1}
    answers = [await asyncio.wait_for(call.read(), 20) for _ in expected]
    assert {answer.correlation_id for answer in answers} == expected
    assert {answer.partitions[0].base_offset for answer in answers} == expected, "in the order of the stream"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_the_streams_of_an_address_wait_while_its_share_of_the_queue_is_full(broker: Served) -> None:
    size = 1 << 30
    share = broker.broker.shares.of("127.0.0.1")
    share.take(size)
    call = broker.stub.Produce()
    await call.write(request(1, p0=batch_of(1)))
    await call.write(request(2, p0=batch_of(1)))
    answer = asyncio.ensure_future(call.read())
    await ask(broker.stub.Fetch(), fetch())  # a whole exchange, so that the writes have long arrived
    assert not answer.done()
    share.give_back(size)
    assert (await asyncio.wait_for(answer, 20)).correlation_id == 1
    assert (await asyncio.wait_for(call.read(), 20)).correlation_id == 2


async def test_errors_travel_beside_successes_with_a_text_and_who_leads(broker: Served) -> None:
    message = request(p0=batch_of(1), p9=batch_of(1), p1=b"garbage")
    message.partitions.add(topic_id=b"u" * 16, partition=0, batch=batch_of(1))
    message.partitions.add(topic_id=b"short", partition=0, batch=batch_of(1))
    message.partitions.add(topic_id=TOPIC, partition=2, batch=batch_of(1), leader_epoch=0)
    message.partitions.add(topic_id=TOPIC, partition=1, batch=batch_of(1))
    answer = await ask(broker.stub.Produce(), message)
    assert [one.error for one in answer.partitions] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    ]
    assert all(one.message for one in answer.partitions[1:])
    assert all(one.base_offset == -1 for one in answer.partitions[1:])


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (request(acks=2, p0=batch_of(1)), ErrorCode.INVALID_REQUIRED_ACKS),
        (request(timeout_ms=0, p0=batch_of(1)), ErrorCode.INVALID_REQUEST),
        (request(timeout_ms=-5, p0=batch_of(1)), ErrorCode.INVALID_REQUEST),
        (request(p0=b""), ErrorCode.CORRUPT_MESSAGE),
        (request(p0=b"\0" * 61), ErrorCode.CORRUPT_MESSAGE),
        (request(p0=batch_of(1) + b"\0"), ErrorCode.CORRUPT_MESSAGE),
        (request(p0=batch_of([b"x" * (1 << 20)])), ErrorCode.MESSAGE_TOO_LARGE),
        (request(p0=batch_of(1, timestamp_ms=1 << 60)), ErrorCode.INVALID_TIMESTAMP),
    ],
)
async def test_bad_requests_are_answered_and_the_stream_goes_on(
    broker: Served, message: pb.ProduceRequest, code: ErrorCode
) -> None:
    call = broker.stub.Produce()
    answer = await ask(call, message)
    assert answer.partitions[0].error == code
    assert answer.partitions[0].message
    assert (await ask(call, request(p0=batch_of(1)))).partitions[0].base_offset == 0


async def test_a_huge_topic_id_is_not_sent_back(broker: Served) -> None:
    huge = bytes(8 << 20)
    produce = pb.ProduceRequest(
        acks=-1, timeout_ms=1_000, partitions=[pb.ProducePartition(topic_id=huge, batch=batch_of(1))]
    )
    position = pb.ListOffsetsRequest(partitions=[pb.ListOffsetsPartition(topic_id=huge, timestamp_ms=-1)])
    trim = pb.DeleteRecordsRequest(partitions=[pb.DeleteRecordsPartition(topic_id=huge)])
    answers = [
        await ask(broker.stub.Produce(), produce),
        await ask(broker.stub.Fetch(), fetch(partitions=[pb.FetchPartition(topic_id=huge, max_bytes=1)])),
        await broker.stub.ListOffsets(position),
        await broker.stub.DeleteRecords(trim),
    ]
    for answer in answers:
        assert answer.partitions[0].error == ErrorCode.UNKNOWN_TOPIC_ID
        assert answer.ByteSize() < 1_000


async def test_ten_thousand_partitions_in_one_request_and_one_more(broker: Served) -> None:
    batch = batch_of(1)
    call = broker.stub.Produce()
    parts = [pb.ProducePartition(topic_id=TOPIC, partition=100 + n, batch=batch) for n in range(10_000)]
    answer = await ask(call, pb.ProduceRequest(correlation_id=1, acks=1, timeout_ms=1000, partitions=parts))
    assert len(answer.partitions) == 10_000
    assert {one.error for one in answer.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(call, pb.ProduceRequest(acks=1, timeout_ms=1000, partitions=[*parts, pb.ProducePartition()]))
    assert "10001 partitions; 10000 is the most" in str(error_from_rpc(raised.value))


@pytest.mark.parametrize("kind", ["Produce", "Fetch"])
async def test_half_a_million_empty_entries_get_one_refusal_and_nothing_is_built_for_them(
    broker: Served, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Any] = []
    for name in ("produce_entry", "fetch_entry"):
        monkeypatch.setattr(f"headrace_broker.rpc.decode.{name}", decoded.append)
    many = {
        "Produce": pb.ProduceRequest.FromString(bytes([0x22, 0]) * 500_000),
        "Fetch": pb.FetchRequest.FromString(bytes([0x2A, 0]) * 500_000),
    }[kind]
    assert len(many.partitions) == 500_000
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(getattr(broker.stub, kind)(), many)
    error = error_from_rpc(raised.value)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "500000 partitions; 10000 is the most" in str(error)
    assert not decoded


@pytest.mark.parametrize(
    "message",
    [
        fetch(partitions=[]),
        fetch(max_wait_ms=-1),
        fetch(max_wait_ms=300_001),
        fetch(max_bytes=0),
        fetch(min_bytes=-1),
        fetch(partitions=[pb.FetchPartition(topic_id=TOPIC), pb.FetchPartition(topic_id=TOPIC)]),
    ],
)
async def test_bad_fetches_are_refused_as_a_whole_and_the_stream_goes_on(
    broker: Served, message: pb.FetchRequest
) -> None:
    call = broker.stub.Fetch()
    answer = await ask(call, message)
    assert answer.error == ErrorCode.INVALID_REQUEST
    assert answer.message
    assert (await ask(call, fetch())).error == ErrorCode.NONE


async def test_fetches_are_answered_in_order_though_the_first_waits(broker: Served) -> None:
    call = broker.stub.Fetch()
    await call.write(fetch(correlation_id=1, max_wait_ms=60_000))
    await call.write(fetch(correlation_id=2))
    await ask(broker.stub.Produce(), request(p0=batch_of(1)))
    assert [(await asyncio.wait_for(call.read(), 20)).correlation_id for _ in range(2)] == [1, 2]


async def test_metadata_promises_no_larger_batch_than_the_listener_takes(tmp_path: Path) -> None:
    configs = {"t": {"max.message.bytes": str(2 * REQUEST_BYTES_MAX)}}
    async with served(tmp_path, configs=configs) as broker:
        for request in (pb.MetadataRequest(topics=["t"]), pb.MetadataRequest(all_topics=True)):
            (topic,) = (await broker.stub.Metadata(request)).topics
            assert topic.max_message_bytes == REQUEST_BYTES_MAX


async def test_metadata_names_what_there_is_and_what_there_is_not(broker: Served) -> None:
    answer = await broker.stub.Metadata(pb.MetadataRequest(topics=["t", "nope", "t", "x" * 300, "a\0b"]))
    assert [(topic.name[:4], topic.error) for topic in answer.topics] == [
        ("t", 0),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("xxxx", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a\0b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    known = answer.topics[0]
    assert (known.topic_id, known.max_message_bytes) == (TOPIC, 1_048_588)
    assert [(one.partition, one.leader, one.leader_epoch) for one in known.partitions] == [(n, 1, 1) for n in range(3)]
    assert [(node.id, node.grpc.port) for node in answer.nodes] == [(1, broker.port)]
    everything = await broker.stub.Metadata(pb.MetadataRequest(all_topics=True))
    assert [topic.name for topic in everything.topics] == ["t"]
    assert everything == await broker.stub.Metadata(pb.MetadataRequest(all_topics=True))


async def test_metadata_tells_the_incarnation_that_it_is_of(broker: Served) -> None:
    for asked in (pb.MetadataRequest(topics=["t"]), pb.MetadataRequest(all_topics=True)):
        broker.broker.replicas.image = replace(broker.broker.replicas.image, incarnation=b"a" * 16)
        assert (await broker.stub.Metadata(asked)).incarnation == b"a" * 16
        broker.broker.replicas.image = replace(broker.broker.replicas.image, incarnation=b"b" * 16)
        assert (await broker.stub.Metadata(asked)).incarnation == b"b" * 16


async def test_metadata_tells_the_feature_level(broker: Served) -> None:
    for asked in (pb.MetadataRequest(), pb.MetadataRequest(all_topics=True)):
        image = broker.broker.replicas.image
        broker.broker.replicas.image = replace(
            image, feature_level=image.feature_level + 1, revision=image.revision + 1
        )
        assert (await broker.stub.Metadata(asked)).feature_level == image.feature_level + 1


@pytest.mark.parametrize(("incarnation", "later"), [(b"r" * 16, 0), (b"i" * 16, 1)])
async def test_all_topics_are_told_anew_at_another_revision_and_after_a_restore_to_the_same(
    incarnation: bytes, later: int, broker: Served
) -> None:
    everything = pb.MetadataRequest(all_topics=True)
    before = await broker.stub.Metadata(everything)
    changed = replace(image_of({"t": 3, "new": 1}), incarnation=incarnation, revision=before.revision + later)
    broker.broker.replicas.image = changed
    after = await broker.stub.Metadata(everything)
    assert (after.incarnation, after.revision) == (incarnation, before.revision + later)
    assert [topic.name for topic in after.topics] == ["new", "t"]


async def test_before_its_first_image_a_broker_does_not_say_that_topics_do_not_exist(broker: Served) -> None:
    replicas = broker.broker.replicas
    replicas.image = EMPTY_IMAGE  # as after a restart, until a controller has answered
    for request_ in (pb.MetadataRequest(topics=["t"]), pb.MetadataRequest(all_topics=True)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await broker.stub.Metadata(request_)
        assert error_from_rpc(caught.value).code is ErrorCode.METADATA_UNAVAILABLE


async def test_positions_producer_ids_trims_logs_and_identity(broker: Served) -> None:
    stub = broker.stub
    await ask(stub.Produce(), request(p0=batch_of([b"a", b"b", b"c"], timestamp_ms=[5, 9, 7])))
    asks = [pb.ListOffsetsPartition(topic_id=TOPIC, partition=0, timestamp_ms=when) for when in (-1, -2, -3, 6, 10, -4)]
    found = await stub.ListOffsets(pb.ListOffsetsRequest(partitions=asks))
    assert [(one.offset, one.timestamp_ms) for one in found.partitions] == [
        (3, -1),
        (0, -1),
        (1, 9),
        (1, 9),
        (-1, -1),
        (-1, -1),
    ]
    assert found.partitions[-1].error == ErrorCode.INVALID_REQUEST
    given_id = await stub.InitProducerId(pb.InitProducerIdRequest())
    bumped = await stub.InitProducerId(pb.InitProducerIdRequest(producer_id=given_id.producer_id, producer_epoch=0))
    assert (bumped.producer_id, bumped.producer_epoch) == (given_id.producer_id, 1)
    trim = pb.DeleteRecordsPartition(topic_id=TOPIC, partition=0, offset=2)
    trimmed = await stub.DeleteRecords(pb.DeleteRecordsRequest(partitions=[trim]))
    assert trimmed.partitions[0].log_start_offset == 2
    logs = await stub.DescribeLogs(pb.DescribeLogsRequest(topic_ids=[TOPIC], segments=True))
    [first, *_] = logs.logs
    assert (first.state, first.log_start_offset, first.log_end_offset, first.high_watermark) == (pb.ONLINE, 2, 3, 3)
    assert [(one.base_offset, one.end_offset) for one in first.segments] == [(0, 3)]
    assert logs.disk_total_bytes > logs.disk_free_bytes > 0
    assert logs.disk_total_bytes > logs.disk_reserve_bytes > 0
    assert not (await stub.DescribeLogs(pb.DescribeLogsRequest(only_stuck=True))).logs
    assert "unclean start: 0 logs" in logs.recovery_report
    who = await stub.Identify(pb.IdentifyRequest())
    assert (who.id, who.incarnation, who.cluster_id) == (BROKER_ID, broker.broker.who.incarnation, "standalone")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("ListOffsets", pb.ListOffsetsRequest()),
        ("ListOffsets", pb.ListOffsetsRequest(partitions=[pb.ListOffsetsPartition()], max_wait_ms=-1)),
        ("InitProducerId", pb.InitProducerIdRequest(producer_id=1)),
        ("InitProducerId", pb.InitProducerIdRequest(producer_id=-1, producer_epoch=0)),
        ("Metadata", pb.MetadataRequest(topics=["t"] * 10_001)),
    ],
)
async def test_bad_calls_fail_with_a_typed_status(broker: Served, method: str, message: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await getattr(broker.stub, method)(message)
    error = error_from_rpc(caught.value)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert str(error)


async def test_bytes_that_are_no_message_end_the_call_and_not_the_broker(broker: Served) -> None:
    async with open_channel(f"127.0.0.1:{broker.port}") as channel:
        for method in ("Produce", "Fetch"):
            raw = channel.stream_stream(f"/headrace.v1.Broker/{method}")()
            await raw.write(b"\xff\xff\xff\xff")
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.wait_for(raw.read(), 20)
            assert error_from_rpc(caught.value).code is ErrorCode.INVALID_REQUEST
    assert (await ask(broker.stub.Produce(), request(p0=batch_of(1)))).partitions[0].error == 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
async def test_a_mutated_batch_is_refused_or_stored_whole(broker: Served, data: st.DataObject) -> None:
    """Any byte changed anywhere: a typed error, or a batch that reads back; never a broken stream."""
    batch = bytearray(batch_of([b"value-1", b"value-2"], producer_id=1, epoch=0, sequence=0))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    answer = await ask(broker.stub.Produce(), request(p0=bytes(batch)))
    [result] = answer.partitions
    if result.error == ErrorCode.NONE:
        read = await ask(broker.stub.Fetch(), fetch(result.base_offset))
        assert decode_batch(read.partitions[0].batches[0]).values() == [b"value-1", b"value-2"]
    else:
        assert result.message


async def test_a_broker_comes_back_with_all_it_acknowledged(tmp_path: Path) -> None:
    batch = batch_of(2, producer_id=4, epoch=0, sequence=0)
    async with served(tmp_path / "data") as first:
        await ask(first.stub.Produce(), request(p0=batch))
        trim = pb.DeleteRecordsPartition(topic_id=TOPIC, partition=0, offset=1)
        await first.stub.DeleteRecords(pb.DeleteRecordsRequest(partitions=[trim]))
    async with served(tmp_path / "data") as second:
        again = await ask(second.stub.Produce(), request(p0=batch))
        assert [(one.error, one.base_offset, one.log_start_offset) for one in again.partitions] == [(0, 0, 1)]
        read = await ask(second.stub.Fetch(), fetch(1))
        assert decode_batch(read.partitions[0].batches[0]).values() == [b"0", b"1"]


async def test_a_stream_ends_when_the_broker_drains(tmp_path: Path) -> None:
    data = DataDirectory.open(tmp_path / "data")
    store = RocksDbLogs.open(data)
    cluster = FakeCluster()
    async with running_broker(store, cluster) as (broker, server):
        cluster.show(image_of({"t": 1}))
        channel = open_channel(f"127.0.0.1:{server.port}")
        stub: BrokerAsyncStub = BrokerStub(channel)
        produce, waiting = stub.Produce(), stub.Fetch()
        await ask(produce, request(p0=batch_of(1)))
        await waiting.write(fetch(1, max_wait_ms=60_000))
        last = asyncio.ensure_future(waiting.read())
        async with asyncio.timeout(20):
            while not any(replica.waiters for replica in broker.replicas.all()):
                await asyncio.sleep(0.01)
    assert (await last).error == ErrorCode.NONE
    assert await produce.read() is grpc.aio.EOF
    assert await waiting.read() is grpc.aio.EOF
    await channel.close()
    await store.close(None)
    data.close()


async def test_retention_and_trims_leave_the_same_segments_on_disk_as_in_memory(tmp_path: Path) -> None:
    configs = {"t": {"segment.bytes": "1024", "retention.ms": "1000"}}
    describe = pb.DescribeLogsRequest(topic_ids=[TOPIC], segments=True)
    old, young = SystemClock().now_ms() - 60_000, SystemClock().now_ms() + 3_000_000
    async with served(tmp_path / "data", configs=configs) as first:
        call = first.stub.Produce()
        for stamp in (old, old, young, young):
            await ask(call, request(p0=batch_of([b"x" * 800], timestamp_ms=stamp)))
        for _ in range(3):
            await ask(call, request(p1=batch_of([b"x" * 800], timestamp_ms=old)))
        await first.broker.upkeep.check_retention()
        await ask(call, request(p1=batch_of([b"x" * 800], timestamp_ms=young)))
        before = (await first.stub.DescribeLogs(describe)).logs
        assert [(log.log_start_offset, log.log_end_offset) for log in before] == [(2, 4), (3, 4), (0, 0)]
        assert [[one.base_offset for one in log.segments] for log in before] == [[2, 3], [3], [0]]
    async with served(tmp_path / "data", configs=configs) as second:
        after = (await second.stub.DescribeLogs(describe)).logs
        assert [log.segments for log in after] == [log.segments for log in before]
        assert [log.size_bytes for log in after] == [log.size_bytes for log in before]


async def test_streams_that_clients_break_off_leave_nothing_behind(broker: Served) -> None:
    """Also where the answer waits for a slow reader and more requests were read ahead."""
    produce = broker.stub.Produce()
    for _ in range(10):
        await ask(produce, request(p0=batch_of([b"x" * 900_000])))
    calls = [broker.stub.Fetch() for _ in range(3)]
    big = [pb.FetchPartition(topic_id=TOPIC, partition=0, fetch_offset=0, max_bytes=1 << 30)]
    for call in calls:
        for _ in range(4):
            await call.write(fetch(max_bytes=1 << 30, partitions=big))
    waiting = broker.stub.Fetch()
    await waiting.write(fetch(10, max_wait_ms=60_000))
    await ask(produce, request(p1=batch_of(1)))
    for call in (*calls, waiting, produce):
        call.cancel()
    names = {"fetch-read", "fetch-drain", "produce-read", "produce-drain"}

    def left() -> bool:
        tasks = any(task.get_name() in names for task in asyncio.all_tasks())
        waiters = any(replica.waiters for replica in broker.broker.replicas.all())
        return tasks or waiters or bool(broker.broker.fetches.answers.all.size or broker.broker.upkeep.sessions)

    async with asyncio.timeout(20):
        while left():
            await asyncio.sleep(0.01)


async def test_coordinators_are_found_or_the_answer_says_why_not(tmp_path: Path) -> None:
    async with served(tmp_path / "data") as one:
        answer = await one.stub.FindCoordinator(pb.FindCoordinatorRequest(type=pb.GROUP, keys=["g", "x" * 300]))
        [group, long] = answer.coordinators
        assert (group.key, group.error) == ("g", ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert "shard" in group.message
        assert not group.HasField("endpoint")
        assert (long.error, long.key) == (ErrorCode.INVALID_GROUP_ID, "x" * 249)
        for wrong in (pb.FindCoordinatorRequest(), pb.FindCoordinatorRequest(type=9, keys=["g"])):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await one.stub.FindCoordinator(wrong)
            assert error_from_rpc(refused.value).code is ErrorCode.INVALID_REQUEST
