"""One real broker, a producer and a consumer in the lab."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from libs.lab.tests.history import History
from services.broker.tests.kit.standalone import FakeCluster, image_of, running_broker

import headrace.aio as headrace
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.clock import SystemClock
from headrace_lab.lab import Lab, laboratory
from headrace_lab.loop import LabLoop

RECORDS = 100


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    values: list[bytes]
    seconds: float
    """Virtual ones."""
    messages: int
    digest: str


async def _serve(at: asyncio.Future[Endpoint], stop: asyncio.Event) -> None:
    cluster = FakeCluster()
    async with running_broker(MemoryLogs(), cluster, clock=SystemClock()) as (broker, server):
        endpoint = Endpoint("127.0.0.1", server.port)
        cluster.show(image_of({"t": 3}, endpoint=endpoint))
        await broker.follower.changed.wait()
        at.set_result(endpoint)
        await stop.wait()


async def _send_and_read(lab: Lab, records: int) -> list[bytes]:
    at, stop = lab.loop.create_future(), asyncio.Event()
    serving = lab.loop.create_task(_serve(at, stop), context=lab.node("broker-1").context)
    servers = [str(await at)]
    read: list[bytes] = []
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(headrace.Producer(servers))
        consumer = await stack.enter_async_context(
            headrace.Consumer("t", bootstrap_servers=servers, auto_offset_reset="earliest")
        )
        for number in range(records):
            await producer.send("t", b"%d" % number, partition=number % 3)
            if number % 10 == 0:
                await producer.flush()
                read += [record.value or b"" for record in await consumer.poll(timeout_ms=100)]
        await producer.flush()
        while len(read) < records:
            read += [record.value or b"" for record in await consumer.poll(timeout_ms=1_000)]
    stop.set()
    await serving
    return read


def play(seed: int, records: int = RECORDS) -> Outcome:
    """One run."""
    loop = LabLoop(seed)
    history = History(loop)
    try:
        with laboratory(loop) as lab:
            values = loop.run_until_complete(_send_and_read(lab, records))
    finally:
        loop.close()
    return Outcome(values, loop.time(), lab.network.messages, history.digest)
