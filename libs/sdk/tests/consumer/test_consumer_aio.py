"""The asyncio consumer against a real broker; what it shares with the sync one is tested there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

from headrace import TopicPartition, errors
from headrace.aio.consumer import Consumer
from headrace.errors import NoGroup
from headrace.records import Record

ONE = TopicPartition("one", 0)


@asynccontextmanager
async def open_consumer(broker: BrokerThread, *topics: str, **settings: object) -> AsyncIterator[Consumer]:
    given = {"auto_offset_reset": "earliest"} | settings
    async with Consumer(*topics, bootstrap_servers=broker.address, **given) as consumer:
        yield consumer


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, end)]


async def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        records += await consumer.poll(timeout_ms=1000, max_records=count - len(records))
    return records


async def test_iteration_can_be_left_and_taken_up_anywhere(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 100))
    async with open_consumer(broker, "one") as consumer:
        assert consumer.assignment() == {ONE}
        async for record in consumer:
            if record.offset == 41:
                break
        assert await consumer.position(ONE) == 42
        assert [r.offset for r in await consumer.poll(max_records=2)] == [42, 43]
        async for record in consumer:
            assert record.offset == 44
            break
        assert (await consumer.poll_table(max_records=2))["offset"].to_pylist() == [45, 46]


async def test_a_seek_inside_a_loop_takes_effect_at_once(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 100))
    seen = []
    async with open_consumer(broker, "one") as consumer:
        async for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1]:
                consumer.seek(ONE, 90)
            if record.offset == 91:
                break
    assert seen == [0, 1, 90, 91]


async def test_a_cancelled_poll_loses_nothing(broker: BrokerThread) -> None:
    async with open_consumer(broker, "one") as consumer:
        waiting = asyncio.ensure_future(consumer.poll(timeout_ms=None))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(broker.append, "one", 0, numbered(0, 3))
        assert [r.value for r in await read(consumer, 3)] == numbered(0, 3)


async def test_positions_offsets_and_lag(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 10), timestamps_ms=list(range(1000, 1010)))
    async with open_consumer(broker, "one") as consumer:
        assert await consumer.position(ONE) == 0
        assert await consumer.lag() == {ONE: 10}
        assert await consumer.beginning_offsets([ONE]) == {ONE: 0}
        assert await consumer.end_offsets([ONE]) == {ONE: 10}
        found = await consumer.offsets_for_times({ONE: 1004, ("t", 0): 5})
        assert found[ONE] is not None
        assert found[ONE].offset == 4
        assert found[TopicPartition("t", 0)] is None
        consumer.seek_to_timestamp(1007)
        assert [r.offset for r in await read(consumer, 3)] == [7, 8, 9]
        consumer.seek_to_end()
        assert await consumer.position(ONE) == 10
        consumer.seek_to_beginning(ONE)
        assert await consumer.position(ONE) == 0


async def test_pause_and_resume(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 3))
    async with open_consumer(broker, "one") as consumer:
        consumer.pause()
        assert consumer.paused() == {ONE}
        assert await consumer.poll(timeout_ms=50) == []
        assert consumer.health().paused == 1
        consumer.resume(ONE)
        assert len(await read(consumer, 3)) == 3


async def test_subscription_and_assignment_can_change(broker: BrokerThread) -> None:
    broker.append("one", 0, [b"x"])
    async with open_consumer(broker, "t") as consumer:
        assert consumer.state == "reading"
        await consumer.subscribe(["one"])
        assert (consumer.subscription(), consumer.assignment()) == ({"one"}, {ONE})
        assert [r.value for r in await read(consumer, 1)] == [b"x"]
        await consumer.assign([("t", 1)])
        assert (consumer.subscription(), consumer.assignment()) == (set(), {TopicPartition("t", 1)})
        assert await consumer.partitions_for("t") == {0, 1}
        await consumer.assign([])
        assert consumer.state == "idle"


async def test_a_topic_that_is_deleted_is_raised_after_the_timeout(
    broker: BrokerThread,
) -> None:
    broker.append("one", 0, numbered(0, 3))
    async with open_consumer(broker, "one", metadata_max_age_ms=100, default_api_timeout_ms=500) as consumer:
        assert len(await read(consumer, 3)) == 3
        await asyncio.to_thread(broker.show, {"t": 2})
        with pytest.raises(errors.HeadraceError, match="one-0 could not be read"):
            await consumer.poll(timeout_ms=None)


async def test_what_needs_a_group_says_so(broker: BrokerThread) -> None:
    async with open_consumer(broker, "t") as consumer:
        with pytest.raises(NoGroup):
            await consumer.commit()
        with pytest.raises(NoGroup):
            await consumer.committed([ONE])
        with pytest.raises(NoGroup):
            consumer.commit_async()


async def test_a_start_that_fails_closes_what_was_opened() -> None:
    consumer = Consumer("t", bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=200)
    with pytest.raises(errors.NetworkFailed):
        async with consumer:
            raise AssertionError("not reached")
    assert consumer.state == "closed"
    with pytest.raises(errors.ClientClosed):
        await consumer.poll()
