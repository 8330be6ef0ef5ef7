"""A second Ctrl+C, or a second cancellation, while a failed transaction is being aborted."""

from __future__ import annotations

import asyncio

import pytest

from headrace import TopicPartition
from headrace._transport.memory import Does, Fault

from .worlds import consumer, fill, made, producer

FIRST = TopicPartition("in", 0)


async def test_the_consumer_goes_back_even_if_nobody_waits_for_the_abort() -> None:
    cluster = made()
    await fill(cluster, "in", *[b"%d" % n for n in range(4)])
    until = asyncio.Event()
    async with producer(cluster) as writer, consumer(cluster, "in") as reader:
        cluster.inject("end_txn", Fault(Does.HOLD, until=until))

        async def fails() -> None:
            async with writer.transaction(reader):
                for record in await reader.poll(timeout_ms=5_000):
                    await writer.send("one", record.value)
                await writer.flush()
                raise KeyError("mine")

        failing = asyncio.ensure_future(fails())
        while not cluster.log("one", 0).batches:
            await asyncio.sleep(0.001)
        for _ in range(3):
            await asyncio.sleep(0.02)
            failing.cancel()
        with pytest.raises((asyncio.CancelledError, KeyError)):
            await failing
        until.set()
        async with writer.transaction(reader):
            records = await reader.poll(timeout_ms=5_000)
            assert [record.offset for record in records] == [0, 1, 2, 3]
