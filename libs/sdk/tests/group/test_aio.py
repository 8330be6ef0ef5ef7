"""Members with asyncio: what is different from the sync twin, and what must not be."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import TopicPartition, aio, errors
from headrace.records import Committed

from .groups import PATIENCE_S, PROTOCOLS

ONE = TopicPartition("t", 0)


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs(group_consumer_heartbeat_interval_ms=50)
    backend.create_topic("t", 4)
    return backend


def member(memory: LabCluster, protocol: str, *topics: str, **settings: Any) -> aio.Consumer:
    settings = {"group_id": "g", "retry_backoff_ms": 10, **PROTOCOLS[protocol], **settings}
    return memory.aio_consumer(*topics, **settings)


async def fill(memory: LabCluster, *values: bytes, partition: int = 0) -> None:
    async with memory.aio_producer(linger_ms=0) as producer:
        for value in values:
            await (await producer.send("t", value, partition=partition))


async def until(condition: Callable[[], bool], *consumers: aio.Consumer) -> list[bytes]:
    values: list[bytes] = []
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        for consumer in consumers:
            values += [record.value for record in await consumer.poll(timeout_ms=5)]
        assert asyncio.get_running_loop().time() < deadline, [(c.state, c.assignment()) for c in consumers]
    return values


async def test_callbacks_are_awaited_in_the_task_that_polls(memory: LabCluster, protocol: str) -> None:
    story: list[tuple[str, int, asyncio.Task[Any] | None]] = []

    async def on_assign(partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        story.append(("+", len(partitions), asyncio.current_task()))

    def on_revoke(partitions: list[TopicPartition]) -> None:
        story.append(("-", len(partitions), asyncio.current_task()))

    first, second = member(memory, protocol), member(memory, protocol, "t")
    await first.subscribe(["t"], on_assign=on_assign, on_revoke=on_revoke)
    await until(lambda: len(first.assignment()) == 4, first)
    await until(lambda: len(second.assignment()) == len(first.assignment()) == 2, first, second)
    await first.close()
    assert {task for _, _, task in story} == {asyncio.current_task()}
    assert story[0][:2] == ("+", 4)
    assert story[-1][:2] == ("-", 2), "closing gives up what is held"
    await until(lambda: len(second.assignment()) == 4, second)
    await second.close()


@pytest.mark.real_time
async def test_a_handler_that_blocks_the_event_loop_does_not_stop_heartbeats(memory: LabCluster, protocol: str) -> None:
    async with member(memory, protocol, "t") as consumer:
        await until(lambda: len(consumer.assignment()) == 4, consumer)
        heard = consumer._steps.group.core.heard_ms
        deadline = time.monotonic() + PATIENCE_S
        while consumer._steps.group.core.heard_ms <= heard:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # what awaits nothing holds the loop
        assert consumer.state == "reading"


async def test_commits_and_their_callbacks(memory: LabCluster, protocol: str) -> None:
    await fill(memory, b"a", b"b")
    answers: list[tuple[dict[TopicPartition, Committed], errors.HeadraceError | None]] = []

    async def answered(offsets: dict[TopicPartition, Committed], error: errors.HeadraceError | None) -> None:
        answers.append((offsets, error))

    async with member(memory, protocol, "t", enable_auto_commit=False) as consumer:
        values: list[bytes] = []
        while len(values) < 2:
            values += [record.value for record in await consumer.poll(timeout_ms=5)]
        await consumer.commit()
        assert (await consumer.committed([ONE]))[ONE] == Committed(2, 0)
        await consumer.commit({ONE: Committed(1, metadata="half")})
        assert (await consumer.committed([ONE]))[ONE] == Committed(1, -1, "half")
        consumer.commit_async(answered, {ONE: 2})
        await until(lambda: bool(answers), consumer)
        assert answers == [({ONE: Committed(2, 0)}, None)]


async def test_iteration_and_what_an_exception_leaves_uncommitted(memory: LabCluster, protocol: str) -> None:
    await fill(memory, b"a", b"b", b"c")

    async def fails_at_b() -> None:
        async with member(memory, protocol, "t") as consumer:
            async for record in consumer:
                if record.value == b"b":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails_at_b()
    async with member(memory, protocol, "t") as consumer:
        values: list[bytes] = []
        async for record in consumer:
            values.append(record.value)
            if record.value == b"c":
                break
        assert b"b" in values, "the record that was not handled is read again"
    async with member(memory, protocol, "t") as consumer:
        await until(lambda: len(consumer.assignment()) == 4, consumer)
        assert await consumer.position(ONE) == 3, "what was handled before the break is committed"


async def test_cancelling_a_poll_loses_nothing(memory: LabCluster, protocol: str) -> None:
    async with member(memory, protocol, "t") as consumer:
        for _ in range(20):
            polling = asyncio.ensure_future(consumer.poll(timeout_ms=None))
            await asyncio.sleep(0.001)
            polling.cancel()
            await asyncio.wait([polling])
        await fill(memory, b"a")
        assert [record.value for record in await consumer.poll(timeout_ms=10_000)] == [b"a"]


async def test_one_that_nobody_closed_leaves_when_it_is_collected(memory: LabCluster) -> None:

    async def leaves_it() -> None:
        consumer = member(memory, "server-side", "t")
        await until(lambda: len(consumer.assignment()) == 4, consumer)
        await consumer._reading.close()

    with pytest.warns(ResourceWarning, match="was not closed"):  # noqa: PT031 - it is collected within
        await leaves_it()
        gc.collect()
    async with member(memory, "server-side", "t") as other:
        await until(lambda: len(other.assignment()) == 4, other)
