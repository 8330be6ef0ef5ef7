"""Processes that take every call and answer none, and addresses where nobody is: for tests of calls under way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.service import bind


@contextmanager
def unreachable() -> Iterator[Endpoint]:
    """An address that does not even refuse: whoever connects waits, as where a machine was switched off."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]  # more than the backlog takes
        try:
            for one in waiting:
                one.setblocking(False)
                with suppress(BlockingIOError):
                    one.connect(listening.getsockname())
            yield Endpoint("127.0.0.1", listening.getsockname()[1])
        finally:
            for one in waiting:
                one.close()


class SilentNode(grpc.GenericRpcHandler):
    """Any service, any method. ``asked`` has the names of the methods that were called, and ``endpoint`` where."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.endpoint = Endpoint("127.0.0.1", 1)
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[SilentNode]:
        """Serve on a free port until the block ends."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self,))
        self.endpoint = Endpoint("127.0.0.1", bind(server, Endpoint("127.0.0.1", 0)))
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """gRPC asks this for each call; a stream both ways fits every kind."""
        method = handler_call_details.method.rpartition("/")[2]

        async def wait(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for _ in requests:
                self.asked.append(method)
                self._changed.set()
            await asyncio.Event().wait()
            yield b""

        return grpc.stream_stream_rpc_method_handler(wait)

    async def until_asked(self, count: int = 1) -> None:
        """Wait until ``count`` requests have come in all."""
        while len(self.asked) < count:
            self._changed.clear()
            await self._changed.wait()
