"""Inventory over real gRPC, RocksDB and the file of notes: strays, before any image, beside appends, bad input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.dialogue import running_broker

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.adapters.topic_notes_file import FILE, TopicNotesFile
from headrace_broker.engine.broker import Broker, EngineSettings
from headrace_broker.engine.storage_queue import Flush
from headrace_common.core.errors import ErrorCode
from headrace_common.core.image import ClusterImage
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import error_from_rpc
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
    channel: grpc.aio.Channel


@asynccontextmanager
async def served(directory: Path, image: ClusterImage | None) -> AsyncIterator[Served]:
    """A broker on the RocksDB and the notes in ``directory`` that was shown ``image``, or none."""
    data = DataDirectory.open(directory)
    store, cluster = RocksDbLogs.open(data), FakeCluster()
    notes = TopicNotesFile(directory)
    try:
        async with running_broker(store, cluster, settings=EngineSettings(Flush.GROUP), notes=notes) as (
            broker,
            server,
        ):
            if image is not None:
                cluster.show(image)
                await broker.follower.changed.wait()
            async with open_channel(f"127.0.0.1:{server.port}") as channel:
                yield Served(broker, BrokerStub(channel), channel)
    finally:
        await store.close(None)
        data.close()


async def inventory(stub: BrokerAsyncStub, *topics: bytes) -> tuple[list[pb.HeldTopic], list[pb.HeldLog]]:
    held, logs = list[pb.HeldTopic](), list[pb.HeldLog]()
    async for answer in stub.Inventory(pb.InventoryRequest(topic_ids=topics)):
        assert 1 <= len(answer.topics) + len(answer.logs) <= 1_000
        held += answer.topics
        logs += answer.logs
    return held, logs


async def produce(stub: BrokerAsyncStub, batches: Iterable[bytes], partition: int = 0) -> list[int]:
    """Append one after the other; the end after each."""
    calls, ends = stub.Produce(), list[int]()
    for number, batch in enumerate(batches):
        entry = pb.ProducePartition(topic_id=TOPIC, partition=partition, batch=batch)
        await calls.write(pb.ProduceRequest(correlation_id=number, acks=1, timeout_ms=10_000, partitions=[entry]))
        answer = await calls.read()
        assert isinstance(answer, pb.ProduceResponse)
        assert answer.partitions[0].error == 0, answer
        ends.append(answer.partitions[0].base_offset)
    await calls.done_writing()
    return ends


async def test_a_broker_without_any_image_tells_what_it_has(tmp_path: Path) -> None:
    image = image_of({"t": 3}, configs={"t": {"retention.ms": "77"}}, leader_epoch=4)
    async with served(tmp_path / "data", image) as one:
        await produce(one.stub, [batch_of(3), batch_of(2)], 1)
    async with served(tmp_path / "data", None) as one:
        [held], logs = await inventory(one.stub)
        assert (held.topic.name, held.topic.topic_id, held.topic.partition_count) == ("t", TOPIC, 3)
        assert (dict(held.topic.configs), held.topic.internal) == ({"retention.ms": "77"}, False)
        assert (held.incarnation, held.revision) == (b"i" * 16, 1)
        told = {log.partition: (log.last_epoch, log.written_end, log.known_epoch) for log in logs}
        assert told == {0: (-1, 0, 4), 1: (4, 5, 4), 2: (-1, 0, 4)}
        assert {log.topic_id for log in logs} == {TOPIC}
        assert not any(log.damaged or log.HasField("fencing_token") for log in logs)


async def test_strays_without_notes_are_told_without_a_topic(tmp_path: Path) -> None:
    async with served(tmp_path / "data", image_of({"t": 2})):
        pass
    (tmp_path / "data" / FILE).unlink()
    async with served(tmp_path / "data", image_of({"u": 1})) as one:
        held, logs = await inventory(one.stub)
        assert [topic.topic.name for topic in held] == ["u"]
        assert sorted(log.topic_id for log in logs) == sorted([TOPIC, TOPIC, topic_id_of("u")])


async def test_a_stray_is_described_with_the_name_that_was_noted(tmp_path: Path) -> None:
    async with served(tmp_path / "data", image_of({"t": 1})):
        pass
    async with served(tmp_path / "data", image_of({"u": 1})) as one:
        logs = (await one.stub.DescribeLogs(pb.DescribeLogsRequest())).logs
    notes = {log.topic_id: log.note for log in logs if log.HasField("note")}
    assert notes == {TOPIC: "not in the cluster's metadata: kept, not served; last heard of as t-0"}


async def test_while_batches_are_appended_each_end_was_acknowledged_or_is_about_to_be(tmp_path: Path) -> None:
    async with served(tmp_path / "data", image_of({"t": 2}, leader_epoch=1)) as one:
        writing = asyncio.create_task(produce(one.stub, [batch_of(1)] * 300))
        seen = list[int]()
        while not writing.done():
            _, logs = await inventory(one.stub)
            log = next(log for log in logs if log.partition == 0)
            assert log.last_epoch == (1 if log.written_end else -1)
            seen.append(log.written_end)
        await writing
        assert seen == sorted(seen)
        assert len(set(seen)) > 1, "it was asked while batches came"
        _, logs = await inventory(one.stub)
        assert {log.partition: log.written_end for log in logs} == {0: 300, 1: 0}


async def test_thousands_of_logs_come_in_several_answers() -> None:
    cluster = FakeCluster()
    async with running_broker(MemoryLogs(), cluster) as (broker, server):
        cluster.show(image_of({"t": 2_300, "u": 1}))
        await broker.follower.changed.wait()
        async with open_channel(f"127.0.0.1:{server.port}") as channel:
            held, logs = await inventory(BrokerStub(channel))
    assert {topic.topic.name for topic in held} == {"t", "u"}
    assert len({(log.topic_id, log.partition) for log in logs}) == len(logs) == 2_301


async def test_too_many_topics_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path / "data", image_of({"t": 1})) as one:
        with pytest.raises(grpc.RpcError) as refused:
            await inventory(one.stub, *(bytes(16) for _ in range(10_001)))
        error = error_from_rpc(refused.value)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert "10000 is the most" in str(error)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path / "data", image_of({"t": 1})) as one:
        yield one


@given(raw=st.binary(max_size=60))
@examples(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_is_sent_gets_an_inventory_or_a_typed_error(broker: Served, raw: bytes) -> None:
    call = broker.channel.unary_stream(
        "/headrace.v1.Broker/Inventory", request_serializer=None, response_deserializer=pb.InventoryResponse.FromString
    )(raw)
    error = None
    try:
        async for answer in call:
            assert {log.topic_id for log in answer.logs} == {TOPIC}
    except grpc.aio.AioRpcError as refused:
        error = error_from_rpc(refused)
    assert error is None or error.code is ErrorCode.INVALID_REQUEST


@given(ids=st.lists(st.sampled_from([TOPIC, b"", TOPIC[:15], TOPIC + b"x", b"x" * 100_000, bytes(16)]), min_size=1))
@examples(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_topic_ids_that_nothing_has_are_answered_with_nothing(broker: Served, ids: list[bytes]) -> None:
    held, logs = await inventory(broker.stub, *ids)
    assert len(held) == len(logs) == (TOPIC in ids)
