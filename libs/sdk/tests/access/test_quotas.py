"""Clients that are above their quota: they wait as they are told, and nothing is lost, doubled or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from libs.sdk.tests.kit.doors import Door
from services.broker.tests.kit.cluster import FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.dialogue import running_broker

from headrace import aio
from headrace.errors import WaitTimedOut
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.engine.broker import Broker
from headrace_broker.engine.client_rates import ClientRate
from headrace_common.core.ids import Endpoint
from headrace_common.core.quotas.entities import Clients
from headrace_common.core.quotas.kinds import Rate
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.options import CLIENT_ID_KEY
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

RECORDS = 120
VALUES = [Random(n).randbytes(1_000) for n in range(RECORDS)]


@asynccontextmanager
async def serving(door: Door) -> AsyncIterator[tuple[Broker, str]]:
    cluster = FakeCluster()
    async with running_broker(MemoryLogs(), cluster, interceptors=[door.gate]) as (broker, server):
        at = Endpoint("127.0.0.1", server.port)
        cluster.show(image_of({"t": 1}, endpoint=at))
        await broker.follower.changed.wait()
        yield broker, str(at)


@pytest.mark.parametrize("rate", [Rate.PRODUCER_BYTE_RATE, Rate.CONSUMER_BYTE_RATE])
async def test_who_is_above_its_quota_waits_and_gets_all_of_it(rate: Rate) -> None:
    """By the client id that it shows. They are a little more than its bucket holds."""
    door = Door()
    door.limit(Clients(None, "app"), rate, 10_000)
    me = {"api_key": door.make_key(), "client_id": "app"}
    async with serving(door) as (broker, at):
        async with aio.Producer(at, **me) as producer:
            for delivery in [await producer.send("t", value) for value in VALUES]:
                await delivery
            await (await producer.send("t", b"last"))
        async with aio.Consumer("t", bootstrap_servers=at, auto_offset_reset="earliest", **me) as consumer:
            read: list[bytes | None] = []
            while len(read) <= RECORDS:
                read += [record.value for record in await consumer.poll(10_000)]
        assert read == [*VALUES, b"last"]
        assert broker.measures.throttled_seconds > 0


async def test_a_client_that_is_told_to_wait_asks_for_nothing_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of a broker that would take it: what goes out while it is not read would run into its time."""

    async def no_wait(self: ClientRate) -> None:
        del self

    monkeypatch.setattr(ClientRate, "holds", True)
    monkeypatch.setattr(ClientRate, "record", lambda self, size: 60_000)
    monkeypatch.setattr(ClientRate, "room", no_wait)
    door = Door()
    key = door.make_key()
    async with serving(door) as (broker, at):
        writer, another = (aio.Producer(at, api_key=key) for _ in range(2))
        await (await writer.send("t", b"1"))
        waits = await writer.send("t", b"2")
        async with aio.Consumer("t", bootstrap_servers=at, auto_offset_reset="earliest", api_key=key) as consumer:
            assert [record.value for record in await consumer.poll(10_000)] == [b"1"]
            await (await another.send("t", b"3"))
            assert await consumer.poll(100) == []
            assert not waits.done()
            assert (broker.measures.produce_requests, broker.measures.fetch_requests) == (2, 1)
        for client in (writer, another):
            with suppress(WaitTimedOut):
                await client.close(0)


async def test_a_client_that_does_not_wait_is_not_answered_meanwhile_and_gets_small_answers() -> None:
    door = Door()
    door.limit(Clients(None, "hasty"), Rate.CONSUMER_BYTE_RATE, 200)
    key = door.make_key()
    shown = (("authorization", f"Bearer {key}"), (CLIENT_ID_KEY, b"hasty"))
    async with serving(door) as (_, at):
        async with aio.Producer(at, api_key=key) as producer:
            for value in VALUES[:5]:
                await (await producer.send("t", value))
        async with open_channel(at) as channel:
            call = BrokerStub(channel).Fetch(metadata=shown)
            for offset in (0, 2, 4):
                request = pb.FetchRequest(max_bytes=1 << 20)
                request.partitions.add(topic_id=topic_id_of("t"), fetch_offset=offset, max_bytes=1 << 20)
                await call.write(request)
            told = [await call.read() for _ in range(2)]
            assert [sum(map(len, one.partitions[0].batches)) // 1_000 for one in told] == [2, 2]
            assert told[0].throttle_ms == 0
            assert told[1].throttle_ms > 5_000
            third = asyncio.ensure_future(call.read())
            await asyncio.wait([third], timeout=0.1)
            assert not third.done()
            call.cancel()
