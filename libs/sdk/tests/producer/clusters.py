"""Brokers over gRPC that producers and transports are tested on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from services.broker.tests.kit.dialogue import serving_broker

from headrace._transport.grpc import GrpcTransport

T = TypeVar("T")
TOPICS = {"one": 1, "t": 3}


@asynccontextmanager
async def open_transport(topics: Mapping[str, int] = TOPICS) -> AsyncIterator[GrpcTransport]:
    """To a broker of its own, over gRPC."""
    async with serving_broker(topics) as endpoint:
        yield GrpcTransport([str(endpoint)])


class BrokerThread:
    """A real broker on a thread of its own, for tests that block."""

    def __init__(self, topics: Mapping[str, int] = TOPICS) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self.address = str(self.run(self._stack.enter_async_context(serving_broker(topics))))

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(30)

    def stop(self) -> None:
        self.run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
