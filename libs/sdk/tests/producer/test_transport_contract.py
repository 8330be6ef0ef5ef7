"""What ``port.Transport`` promises, over gRPC; that the lab's is the same is for ``libs/lab`` to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from services.broker.tests.kit.dialogue import serving_broker

from headrace._transport.grpc import GrpcTransport
from headrace._transport.port import Transport
from headrace.errors import ErrorCode, NetworkFailed
from headrace_common.core.batch import RecordColumns, build_batch, decode_batch
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2 as pb

TOPICS = {"one": 1, "t": 3}


@asynccontextmanager
async def open_transport() -> AsyncIterator[GrpcTransport]:
    """To a broker of its own, over gRPC."""
    async with serving_broker(TOPICS) as endpoint:
        yield GrpcTransport([str(endpoint)])


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    async with open_transport() as transport:
        yield transport
        await transport.close()


async def described(transport: Transport) -> dict[str, pb.TopicMetadata]:
    answer = await transport.metadata(pb.MetadataRequest(topics=[*TOPICS]))
    return {topic.name: topic for topic in answer.topics}


def produce(topic: pb.TopicMetadata, *values: bytes, partition: int = 0, acks: int = -1) -> pb.ProduceRequest:
    request = pb.ProduceRequest(acks=acks, timeout_ms=5_000)
    batch = build_batch(RecordColumns(list(values), timestamps_ms=1_700_000_000_000))
    request.partitions.add(topic_id=topic.topic_id, partition=partition, batch=batch)
    return request


def leader(topic: pb.TopicMetadata, partition: int = 0) -> NodeId:
    return NodeId(topic.partitions[partition].leader)


async def test_metadata_describes_topics_and_says_which_are_unknown(transport: Transport) -> None:
    answer = await transport.metadata(pb.MetadataRequest(topics=["t", "nobody"]))
    topics = {topic.name: topic for topic in answer.topics}
    assert [p.partition for p in topics["t"].partitions] == [0, 1, 2]
    assert len(topics["t"].topic_id) == 16
    assert topics["t"].max_message_bytes > 1_000_000
    assert topics["nobody"].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert all(p.leader in {node.id for node in answer.nodes} for p in topics["t"].partitions)


async def test_all_topics_are_listed(transport: Transport) -> None:
    answer = await transport.metadata(pb.MetadataRequest(all_topics=True))
    assert sorted(topic.name for topic in answer.topics) == [*TOPICS]


async def test_what_is_produced_is_fetched(transport: Transport) -> None:
    topic = (await described(transport))["one"]
    stream = transport.produce_stream(leader(topic))
    answers = await asyncio.gather(*[stream.send(produce(topic, b"%d" % n, b"-")) for n in range(20)])
    assert [answer.partitions[0].base_offset for answer in answers] == list(range(0, 40, 2))
    request = pb.FetchRequest(min_bytes=1, max_wait_ms=5_000, max_bytes=1 << 20)
    request.partitions.add(topic_id=topic.topic_id, partition=0, fetch_offset=3, max_bytes=1 << 20)
    answer = await transport.fetch_stream(leader(topic)).send(request)
    [fetched] = answer.partitions
    values = [value for batch in fetched.batches for value in decode_batch(batch).values()]
    assert values == [part for n in range(1, 20) for part in (b"%d" % n, b"-")]
    assert fetched.high_watermark == 40


async def test_a_fetch_waits_for_records(transport: Transport) -> None:
    topic = (await described(transport))["one"]
    request = pb.FetchRequest(min_bytes=1, max_wait_ms=30_000, max_bytes=1 << 20)
    request.partitions.add(topic_id=topic.topic_id, partition=0, fetch_offset=0, max_bytes=1 << 20)
    waiting = asyncio.ensure_future(transport.fetch_stream(leader(topic)).send(request))
    await transport.produce_stream(leader(topic)).send(produce(topic, b"now"))
    answer = await waiting
    assert decode_batch(answer.partitions[0].batches[0]).values() == [b"now"]


async def test_errors_of_one_partition_are_in_the_answer(transport: Transport) -> None:
    topics = await described(transport)
    request = produce(topics["t"], b"good", partition=1)
    request.partitions.add(topic_id=b"?" * 16, partition=0, batch=request.partitions[0].batch)
    answer = await transport.produce_stream(leader(topics["t"], 1)).send(request)
    assert [bool(p.error) for p in answer.partitions] == [False, True]
    assert [p.partition for p in answer.partitions] == [1, 0]
    assert answer.partitions[1].base_offset == -1


async def test_without_acks_the_answer_is_empty(transport: Transport) -> None:
    topic = (await described(transport))["one"]
    stream = transport.produce_stream(leader(topic))
    await stream.send(produce(topic, b"unheard", acks=0))
    answer = await stream.send(produce(topic, b"heard"))
    assert answer.partitions[0].base_offset == 1, "both were written, in order"


async def test_a_repeated_batch_gets_its_old_offset(transport: Transport) -> None:
    topic = (await described(transport))["one"]
    me = await transport.init_producer_id(pb.InitProducerIdRequest())
    batch = build_batch(
        RecordColumns([b"once"], timestamps_ms=1_700_000_000_000),
        producer_id=me.producer_id,
        producer_epoch=me.producer_epoch,
        base_sequence=0,
    )
    offsets = []
    for _ in range(2):
        request = produce(topic, b"")
        request.partitions[0].batch = batch
        answer = await transport.produce_stream(leader(topic)).send(request)
        offsets.append(answer.partitions[0].base_offset)
    assert offsets == [0, 0]


async def test_producer_ids_differ_and_epochs_grow(transport: Transport) -> None:
    one = await transport.init_producer_id(pb.InitProducerIdRequest())
    two = await transport.init_producer_id(pb.InitProducerIdRequest())
    assert one.producer_id != two.producer_id
    request = pb.InitProducerIdRequest(producer_id=one.producer_id, producer_epoch=one.producer_epoch)
    again = await transport.init_producer_id(request)
    assert (again.producer_id, again.producer_epoch) == (one.producer_id, one.producer_epoch + 1)


async def test_offsets_by_position_and_by_waiting(transport: Transport) -> None:
    topic = (await described(transport))["one"]
    request = pb.ListOffsetsRequest(max_wait_ms=30_000)
    request.partitions.add(topic_id=topic.topic_id, partition=0, timestamp_ms=-1, wait_above=0)
    waiting = asyncio.ensure_future(transport.list_offsets(leader(topic), request))
    await transport.produce_stream(leader(topic)).send(produce(topic, b"a", b"b"))
    assert (await waiting).partitions[0].offset == 2


async def test_closing_fails_what_waits(transport: Transport) -> None:
    topic = (await described(transport))["one"]
    request = pb.FetchRequest(min_bytes=1, max_wait_ms=60_000, max_bytes=1 << 20)
    request.partitions.add(topic_id=topic.topic_id, partition=0, fetch_offset=0, max_bytes=1 << 20)
    stream = transport.fetch_stream(leader(topic))
    waiting = asyncio.ensure_future(stream.send(request))
    await asyncio.sleep(0)
    await transport.close()
    with pytest.raises(NetworkFailed):
        await waiting
    with pytest.raises(NetworkFailed):
        await stream.send(request)
    await transport.close()


async def test_an_address_where_nobody_listens_is_named() -> None:
    transport = GrpcTransport(["127.0.0.1:1"])
    with pytest.raises(NetworkFailed, match=r"127\.0\.0\.1:1"):
        await transport.metadata(pb.MetadataRequest())
    with pytest.raises(NetworkFailed, match="metadata"):
        await transport.produce_stream(NodeId(9)).send(pb.ProduceRequest())
    await transport.close()


async def test_the_next_bootstrap_address_is_asked() -> None:
    async with open_transport() as good:
        assert isinstance(good, GrpcTransport)
        transport = GrpcTransport(["127.0.0.1:1", *good._bootstrap])
        assert await described(transport)
        await transport.close()
        await good.close()
