"""Clients of a principal that has as many calls as it may: they try again with pauses, say what is too much, go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from libs.sdk.tests.kit.doors import Door, closed_broker

from headrace import aio
from headrace.errors import DeliveryTimedOut, HeadraceError, Overloaded
from headrace_common.core.ids import Endpoint

SAID = "User:alice has 1 calls under way at this node, streams among them, and may have no more"
SHORT_MS = 1_500
LONG_MS = 60_000


@pytest.fixture
def door() -> Door:
    door = Door()
    door.bound(100)
    return door


@pytest.fixture
async def at(door: Door) -> AsyncIterator[Endpoint]:
    """Somebody of the same principal has a stream there."""
    async with closed_broker(door, {"t": 1}) as endpoint, producer(door, endpoint) as other:
        await write(other)
        yield endpoint


def producer(door: Door, at: Endpoint, **settings: Any) -> aio.Producer:
    settings.setdefault("delivery_timeout_ms", LONG_MS)
    return aio.Producer(str(at), api_key=door.make_key(), request_timeout_ms=1_000, **settings)


async def write(client: aio.Producer) -> None:
    await (await client.send("t", b"1"))


async def fails(call: Any, kind: type[HeadraceError]) -> str:
    async with asyncio.timeout(20):
        with pytest.raises(kind) as error:
            await call
    assert error.value.retriable
    return str(error.value)


async def test_a_producer_says_what_is_too_much_and_goes_on_when_there_is_room(door: Door, at: Endpoint) -> None:
    async with producer(door, at, max_block_ms=SHORT_MS) as client:
        door.bound(1)
        assert (await fails(client.send("t", b"1"), Overloaded)).startswith(SAID)
        door.bound(100)
        await asyncio.wait_for(write(client), 20)


async def test_records_wait_for_as_long_as_they_may_and_no_longer(door: Door, at: Endpoint) -> None:
    settings: dict[str, Any] = {"delivery_timeout_ms": SHORT_MS, "enable_idempotence": False}
    async with producer(door, at, **settings) as client:
        await client.partitions_for("t")
        door.bound(1)
        assert SAID in await fails(write(client), DeliveryTimedOut)
        sent = await client.send("t", b"1")
        door.bound(100)
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(sent)), 20)


async def test_what_waits_for_a_producer_id_says_why_there_was_none(door: Door, at: Endpoint) -> None:
    async with producer(door, at, delivery_timeout_ms=SHORT_MS) as client:
        await client.partitions_for("t")
        door.bound(1)
        said = await fails(write(client), DeliveryTimedOut)
        assert "it was never sent; the last failure was: " in said
        assert SAID in said


async def test_a_consumer_says_so_too_and_its_log_does(
    door: Door, at: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    door.bound(1)
    reading: dict[str, Any] = {"auto_offset_reset": "earliest", "default_api_timeout_ms": 2 * SHORT_MS}
    consumer = aio.Consumer("t", bootstrap_servers=str(at), api_key=door.make_key(), **reading)
    assert (await fails(consumer.poll(2 * SHORT_MS), Overloaded)).startswith(SAID)
    [warned] = [one for one in map(logging.LogRecord.getMessage, caplog.records) if "no broker has answered" in one]
    assert SAID in warned
    door.bound(100)
    async with asyncio.timeout(20):
        while not await consumer.poll(1_000):
            pass
    await consumer.close()
