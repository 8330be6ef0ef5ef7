"""The kit that other tests rely on: faults strike the requests that they name, before these are carried out or after."""

from __future__ import annotations

import asyncio

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import Producer
from headrace.aio import Producer as AioProducer


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
