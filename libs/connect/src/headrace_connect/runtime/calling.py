"""Calls methods of connectors: those that are not ``async`` in a thread, always the same one for an instance."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

from headrace_common.runtime.threads import run_in_thread
from headrace_connect.plugin import Chunk, Connector

_END = object()


async def _at_once() -> None:
    """Nothing to wait for."""


class Calls:
    """Of one instance."""

    def __init__(self, connector: Connector[Any]) -> None:
        self.connector = connector
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"connect {type(connector).__name__}")
        self._turn = asyncio.Lock()
        """Of generators that share the thread."""

    async def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """What ``method`` returns."""
        if inspect.iscoroutinefunction(method):
            return await method(*args)
        result = await run_in_thread(method, *args, pool=self._thread)
        return await result if inspect.isawaitable(result) else result

    async def iterate(
        self, method: Callable[..., Any], *args: Any, before: Callable[[], Awaitable[None]] = _at_once
    ) -> AsyncGenerator[tuple[Chunk, bool], None]:
        """
        The chunks of a generator, and of each whether its thread is shared with others meanwhile. Close it: what the
        generator holds open is given back then.

        Args:
            before: called before the generator is asked for a chunk; of those that share the thread one at a time.
        """
        if inspect.isasyncgenfunction(method):
            result = method(*args)
        else:
            result = await self.call(method, *args)
        if not hasattr(result, "__aiter__"):
            async with aclosing(self._pull(iter(result), before)) as chunks:
                async for chunk in chunks:
                    yield chunk, True
            return
        try:
            chunks = aiter(result)
            while True:
                await before()
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                yield chunk, False
        finally:
            if hasattr(result, "aclose"):
                await result.aclose()

    async def _pull(
        self, chunks: Iterator[Chunk], before: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[Chunk, None]:
        try:
            while True:
                async with self._turn:
                    await before()
                    chunk: Any = await run_in_thread(next, chunks, _END, pool=self._thread)
                if chunk is _END:
                    return
                yield chunk
        finally:
            if hasattr(chunks, "close"):
                self._thread.submit(chunks.close)

    async def stop(self) -> None:
        """The instance's last call."""
        try:
            await self.call(self.connector.stop)
        finally:
            self._thread.shutdown(wait=False)
