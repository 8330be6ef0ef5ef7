"""The Replicate stream over real gRPC: a dialogue, and what followers that lie or babble get for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.dialogue import running_broker

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.grpc_leaders import GrpcLeaders
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.copying import CopyAnswer, CopyAsk, Position
from headrace_broker.engine.broker import Broker
from headrace_common.core.batch import read_header
from headrace_common.core.errors import ErrorCode, HeadraceError, NetworkFailed, StaleBrokerEpoch
from headrace_common.core.ids import Endpoint, NodeId, Offset, PartitionId
from headrace_common.rpc.channels import open_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

ID = PartitionId(topic_id_of("t"), 0)
FOLLOWER = NodeId(2)


class Served:
    """A broker that leads topic t in leader epoch 1, with five batches of two records."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.endpoint = Endpoint("127.0.0.1", port)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    data = DataDirectory.open(tmp_path / "data")
    store = RocksDbLogs.open(data)
    cluster = FakeCluster()
    try:
        async with running_broker(store, cluster) as (broker, server):
            cluster.show(image_of({"t": 3}, endpoint=Endpoint("127.0.0.1", server.port), leader_epoch=1))
            await broker.follower.changed.wait()
            async with open_channel(f"127.0.0.1:{server.port}") as channel:
                call = BrokerStub(channel).Produce()
                for number in range(5):
                    entry = pb.ProducePartition(topic_id=ID.topic_id, partition=0, batch=batch_of(2))
                    await call.write(
                        pb.ProduceRequest(correlation_id=number, acks=-1, timeout_ms=9_000, partitions=[entry])
                    )
                    await call.read()
                call.cancel()
            yield Served(broker, server.port)
    finally:
        await store.close(None)
        data.close()


def position(log_end: int = 0, *, last: int = -1, epoch: int = 1, written: int | None = None, n: int = 0) -> Position:
    held = log_end if written is None else written
    return Position(PartitionId(ID.topic_id, n), epoch, last, Offset(log_end), Offset(held), wants=True)


async def answer_to(served: Served, *positions: Position) -> CopyAnswer:
    stream = await GrpcLeaders().open(NodeId(1), served.endpoint)
    try:
        await stream.send(CopyAsk(FOLLOWER, 7, positions))
        answer = await asyncio.wait_for(stream.receive(), 10)
        assert answer is not None
        return answer
    finally:
        await stream.close()


async def test_a_follower_gets_whole_batches_from_its_end_on_and_the_high_watermark(served: Served) -> None:
    [copied] = (await answer_to(served, position(4, last=1))).partitions
    assert copied.error is None
    assert [read_header(batch).base_offset for batch in copied.batches] == [4, 6, 8]
    assert (copied.high_watermark, copied.log_start, copied.leader_epoch) == (10, 0, 1)


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (position(epoch=0), ErrorCode.FENCED_LEADER_EPOCH),
        (position(epoch=2), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (position(n=99), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (position(-1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (position(-(2**62)), ErrorCode.OFFSET_OUT_OF_RANGE),
        (position(4, last=1, written=5), ErrorCode.INVALID_REQUEST),
        (Position(PartitionId(ID.topic_id[:3], 0), 1, 1, Offset(0), Offset(0), True), ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
async def test_a_position_that_cannot_be_served_is_told_why(served: Served, ask: Position, code: ErrorCode) -> None:
    [copied] = (await answer_to(served, ask)).partitions
    assert copied.error is not None
    assert copied.error.code is code
    assert copied.batches == []


@pytest.mark.parametrize(("log_end", "last", "parted"), [(12, 1, (1, 10)), (5, 0, (-1, -1)), (2**62, 9, (1, 10))])
async def test_logs_that_part_are_told_where(served: Served, log_end: int, last: int, parted: tuple[int, int]) -> None:
    [copied] = (await answer_to(served, position(log_end, last=last))).partitions
    assert copied.parted == parted
    assert copied.batches == []


async def test_a_stream_belongs_to_one_broker_in_one_epoch(served: Served) -> None:
    stream = await GrpcLeaders().open(NodeId(1), served.endpoint)
    await stream.send(CopyAsk(FOLLOWER, 7, [position()]))
    assert await stream.receive() is not None
    await stream.send(CopyAsk(FOLLOWER, 8, [position()]))
    with pytest.raises(StaleBrokerEpoch):
        await stream.receive()
    await stream.close()


async def test_too_many_positions_end_the_stream_with_a_reason(served: Served) -> None:
    stream = await GrpcLeaders().open(NodeId(1), served.endpoint)
    await stream.send(CopyAsk(FOLLOWER, 7, [position(n=n) for n in range(10_001)]))
    with pytest.raises(HeadraceError, match="10000 is the most"):
        await stream.receive()
    await stream.close()


async def test_a_stream_that_ended_unseen_is_broken_for_who_sends(served: Served) -> None:
    stream = await GrpcLeaders().open(NodeId(1), served.endpoint)
    await stream.send(CopyAsk(FOLLOWER, 7, [position()]))
    await stream._channel.close()  # as when a process was paused for so long that its connections are gone
    with pytest.raises(NetworkFailed):
        await stream.send(CopyAsk(FOLLOWER, 7, [position()]))
    await stream.close()


async def test_bytes_that_are_no_message_end_the_stream_and_not_the_broker(served: Served) -> None:
    async with open_channel(str(served.endpoint)) as channel:
        call: Any = channel.stream_stream("/headrace.v1.Broker/Replicate")()
        await call.write(b"\xff\xff\xff garbage")
        assert pb.ReplicateResponse.FromString(await call.read()).error == ErrorCode.INVALID_REQUEST
        assert await call.read() is grpc.aio.EOF
    [copied] = (await answer_to(served, position(8, last=1))).partitions
    assert len(copied.batches) == 1


async def test_nobody_listening_is_said_at_once() -> None:
    with pytest.raises(NetworkFailed):
        await GrpcLeaders().open(NodeId(9), Endpoint("127.0.0.1", 1))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_position_whatever_crashes_a_leader_or_moves_its_high_watermark_back(
    served: Served, data: st.DataObject
) -> None:
    number = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 12)
    small = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 3)
    asks = data.draw(
        st.lists(
            st.builds(
                Position,
                st.builds(PartitionId, st.just(ID.topic_id) | st.binary(max_size=20), small),
                small,
                small,
                number,
                number,
                st.booleans(),
            ),
            max_size=4,
        )
    )
    stream = await GrpcLeaders().open(NodeId(1), served.endpoint)
    await stream.send(CopyAsk(FOLLOWER, 7, asks))
    await stream.send(CopyAsk(FOLLOWER, 7, [position(8, last=1, n=0)], [ask.partition for ask in asks]))
    async with asyncio.timeout(10):
        while True:
            answer = await stream.receive()
            assert answer is not None
            if any(one.partition == ID and len(one.batches) == 1 for one in answer.partitions):
                break
    await stream.close()
    replica = served.broker.replicas.get(ID)
    assert replica is not None
    assert (replica.core.high_watermark, replica.core.log_end) == (10, 10)


async def test_log_ends_are_told_of_sound_logs_only(served: Served) -> None:
    async with open_channel(str(served.endpoint)) as channel:
        asked = [pb.FollowedPartition(topic_id=ID.topic_id, partition=n) for n in (0, 1, 99)]
        answer = await BrokerStub(channel).LogEnds(pb.LogEndsRequest(partitions=asked))
        assert [(one.partition, one.last_epoch, one.written_end) for one in answer.logs] == [(0, 1, 10), (1, -1, 0)]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await BrokerStub(channel).LogEnds(pb.LogEndsRequest(partitions=asked * 4_000))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
