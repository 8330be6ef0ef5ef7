"""Asks what a connector has to do, as long as it is watched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, cast

from headrace_common.runtime.clock import limit_ms
from headrace_connect.core.backoff import Backoff
from headrace_connect.core.errors import Fault
from headrace_connect.plugin import Source, Split, Topics
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.failing import failed_by

T = TypeVar("T")
RESTART: Final = Backoff(1_000, 300_000)
"""Between two starts of what has failed by the world's fault."""
_log: Final = logging.getLogger(__name__)


class Watch(Generic[T]):
    """Asks the same again and again."""

    def __init__(
        self, ask: Callable[[], Awaitable[T]], name: str, on_failure: Callable[[Exception], None] = lambda _: None
    ) -> None:
        """
        Args:
            name: of the connector.
            on_failure: called with each failure by the world's fault, after which it is asked again.
        """
        self._ask = ask
        self._name = name
        self._on_failure = on_failure

    async def first(self, stop: asyncio.Event) -> T | None:
        """
        The first answer; asked until there is one. None: ``stop`` was set before.

        Raises:
            TaskFailed: asking again does not help.
        """
        attempt = 0
        while not stop.is_set():
            answer = await self._try()
            if answer is not None:
                return answer
            attempt += 1
            with suppress(TimeoutError):
                async with limit_ms(RESTART.wait_ms(attempt)):
                    await stop.wait()
        return None

    async def again(self) -> T | None:
        """
        The answer now; None: there is none for now.

        Raises:
            TaskFailed: asking again does not help.
        """
        return await self._try()

    async def _try(self) -> T | None:
        try:
            return await self._ask()
        except Exception as error:
            failed = failed_by(error)
            if failed.fault is not Fault.WORLD:
                raise failed from error
            _log.warning("%s cannot say what there is to do: %s", self._name, failed)
            self._on_failure(error)
            return None


async def ask_splits(fresh: Callable[[], Configured], topics: Topics) -> list[Split]:
    """
    What there is to read of a source now.

    Args:
        topics: where it writes to.

    Raises:
        Exception: of the connector.
    """
    calls = Calls(fresh().make())
    source = cast("Source[Any]", calls.connector)
    source.topics = topics
    try:
        await calls.call(source.start)
        return list(await calls.call(source.splits))
    finally:
        await calls.stop()
