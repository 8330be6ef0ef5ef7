"""Topics of workers: what cannot be read is skipped, and what is not acknowledged is a failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_common.core.errors import NetworkFailed
from headrace_common.runtime.clock import SystemClock
from headrace_connect_worker.adapters.following import RawRead, decode_each
from headrace_connect_worker.adapters.keyed_topic import KeyedTopic
from headrace_connect_worker.core.encoding import decode_status, encode
from headrace_connect_worker.core.records import RunState, Status


def test_a_record_that_cannot_be_read_is_skipped() -> None:
    status = Status("c", 0, RunState.RUNNING)
    key, value = encode(status)
    read = RawRead([(3, key, b"{"), (4, b"another's", b"{}"), (5, key, value)], True)
    assert decode_each(read, decode_status, "t") == [(5, status)]


async def test_a_record_that_is_not_acknowledged_is_a_failure() -> None:
    class Producer:
        async def send(self, topic: str, value: bytes, key: bytes) -> Any:
            delivery = asyncio.get_running_loop().create_future()
            delivery.set_exception(NetworkFailed("away"))
            return delivery

        async def flush(self) -> None:
            return

    topics: Any = None
    producer: Any = Producer()
    topic = KeyedTopic("localhost:1", "t", 1, {}, topics, SystemClock(), 1_000)
    topic._producer = producer
    with pytest.raises(NetworkFailed):
        await topic.write([(b"k", b"v")])
