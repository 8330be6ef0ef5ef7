"""Three real brokers and a real controller in the lab; a broker is killed in the midst of what is sent."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from libs.lab.tests.history import History

import headrace.aio as headrace
from headrace_lab.cluster import Cluster
from headrace_lab.lab import Lab, laboratory
from headrace_lab.loop import LabLoop

RECORDS = 60
PATIENCE_S = 300.0
"""Virtual ones."""


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    acknowledged: list[bytes]
    read: list[bytes]
    seconds: float
    steps: int
    messages: int
    digest: str


async def _play(lab: Lab, records: int, kill: bool) -> tuple[list[bytes], list[bytes]]:
    cluster = Cluster(lab, brokers=3, controllers=1, coordinators=1)
    await cluster.start()
    await cluster.create_topic("t", 3)
    sent: dict[bytes, headrace.Delivery] = {}
    read: list[bytes] = []
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(cluster.producer())
        consumer = await stack.enter_async_context(cluster.consumer("t"))
        for number in range(records):
            value = b"%d" % number
            sent[value] = await producer.send("t", value, partition=number % 3)
            if number % 10 == 9:
                await producer.flush()
            if kill and number == records // 2:
                cluster.kill(broker=2)
        await producer.flush()
        acknowledged = [value for value, delivery in sent.items() if delivery.done() and not delivery.exception()]
        while len(read) < len(acknowledged) and lab.loop.time() < PATIENCE_S:
            read += [record.value or b"" for record in await consumer.poll(timeout_ms=1_000)]
    await cluster.end()
    return acknowledged, read


def play(seed: int, records: int = RECORDS, *, kill: bool = True) -> Outcome:
    """One run."""
    loop = LabLoop(seed)
    history = History(loop)
    try:
        with laboratory(loop) as lab:
            acknowledged, read = loop.run_until_complete(_play(lab, records, kill))
            return Outcome(acknowledged, read, loop.time(), loop.steps, lab.network.messages, history.digest)
    finally:
        loop.close()
