"""The kit that other tests rely on: faults strike the requests that they name, before or after they are carried out."""

from __future__ import annotations

import asyncio

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import Producer
from headrace.aio import Producer as AioProducer
from headrace.errors import ErrorCode, HeadraceError
from headrace_proto.v1 import broker_pb2 as pb


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs(2)
    made.create_topic("t", 3)
    return made


def test_for_threads(cluster: LabCluster) -> None:
    with Producer(_transport=cluster.transport(), linger_ms=0) as producer:
        assert producer.send("t", b"x", partition=1).result(10).offset == 0
        cluster.inject("produce", Fault(Does.DROP, after=True))
        assert producer.send("t", b"y", partition=1).result(10).offset == 1
        cluster.move_leader("t", 1, 1)
        cluster.move_leader("t", 1, 2)
        assert producer.send("t", b"z", partition=1).result(10).offset == 2
    assert cluster.values("t", 1) == [b"x", b"y", b"z"]
    assert len(cluster.faults.produced) >= 4


async def test_in_virtual_time(cluster: LabCluster) -> None:
    async with AioProducer(_transport=cluster.transport(), linger_ms=0) as producer:
        assert (await (await producer.send("t", b"x", partition=1))).offset == 0
        cluster.inject("produce", Fault(Does.DROP, after=True))
        assert (await (await producer.send("t", b"y", partition=1))).offset == 1
        cluster.move_leader("t", 1, 1)
        cluster.kill(1)
        assert (await (await producer.send("t", b"z", partition=1))).offset == 2
        await asyncio.sleep(60)
    assert cluster.values("t", 1) == [b"x", b"y", b"z"]


@pytest.mark.parametrize("does", [Does.ERROR, Does.DROP])
async def test_calls_fail_as_told_and_only_those_of_clients(cluster: LabCluster, does: Does) -> None:
    asked: list[str] = []
    cluster.on_request = lambda api, *_: asked.append(api)
    cluster.inject("metadata", *[Fault(does, code=ErrorCode.METADATA_UNAVAILABLE)] * 2)  # one for each broker
    cluster.create_topic("u")
    transport = cluster.transport()
    with pytest.raises(HeadraceError):
        await transport.metadata(pb.MetadataRequest())
    assert asked == []
    await transport.metadata(pb.MetadataRequest())
    assert asked == ["metadata"]
    await transport.close()


async def test_held_is_what_comes_behind_it_too(cluster: LabCluster) -> None:
    until = asyncio.Event()
    async with AioProducer(_transport=cluster.transport(), linger_ms=0) as producer:
        await (await producer.send("t", b"0", partition=0))
        cluster.inject("produce", Fault(Does.HOLD, until=until))
        held = [await producer.send("t", b"%d" % n, partition=0) for n in (1, 2)]
        await asyncio.sleep(5)
        assert cluster.values("t", 0) == [b"0"]
        until.set()
        assert [(await each).offset for each in held] == [1, 2]
