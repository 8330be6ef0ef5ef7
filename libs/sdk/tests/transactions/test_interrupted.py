"""Ctrl+C, cancellations and what signal handlers raise, while transactions end; and again while they are aborted."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, Labs

from headrace import Producer, TopicPartition
from headrace._core.transaction import State

from .worlds import QUICK, consumer, fill, made, producer

FIRST = TopicPartition("in", 0)


async def test_the_consumer_goes_back_even_if_nobody_waits_for_the_abort(labs: Labs) -> None:
    cluster = made(labs)
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


class Stop(Exception):
    """What a signal handler raises."""


@pytest.fixture
def handler() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_what_a_signal_handler_raises_while_the_commit_delivers_aborts(labs: Labs, handler: None) -> None:
    cluster = made(labs)
    main, until = threading.get_ident(), asyncio.Event()
    with Producer(_transport=cluster.transport(), transactional_id="billing", **QUICK) as writer:
        with writer.transaction():
            writer.send("one", b"first")
        core = writer._engine.transactions.core

        def interrupt() -> None:
            while core.state is not State.ENDING:
                time.sleep(0.001)
            signal.pthread_kill(main, signal.SIGUSR1)

        cluster.inject("produce", Fault(Does.HOLD, until=until))
        interrupting = threading.Thread(target=interrupt)

        def interrupted() -> None:
            with writer.transaction():
                writer.send("one", b"never seen")
                interrupting.start()

        with pytest.raises(Stop):
            interrupted()
        interrupting.join()
        assert core.state is State.READY, "it is aborted, not left to its timeout"
        writer._thread.call_soon(until.set)
        with writer.transaction():
            writer.send("one", b"last")
    assert cluster.committed_values("one", 0) == [b"first", b"last"]


async def test_who_aborts_waits_for_the_cancelled_end_to_be_through(labs: Labs) -> None:
    cluster, until = made(labs), asyncio.Event()
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"never seen")
        cluster.inject("produce", Fault(Does.HOLD, until=until))
        commit = asyncio.ensure_future(writer.commit_transaction())
        await asyncio.sleep(0.01)
        commit.cancel()  # and another thread is here before it hears of that
        await writer.abort_transaction()
        assert commit.cancelled()
        until.set()
        async with writer.transaction():
            await writer.send("one", b"last")
    assert cluster.committed_values("one", 0) == [b"last"]
