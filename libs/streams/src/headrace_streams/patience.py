"""How long a worker asks again before it gives up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from headrace_common.core.errors import HeadraceError, Then
from headrace_common.runtime.clock import Clock

T = TypeVar("T")
PAUSE_MS: Final = 100.0


class Patience:
    """Asks again while an error says that this may help, for a bounded time."""

    def __init__(self, clock: Clock, limit_ms: float) -> None:
        self._clock = clock
        self._limit_ms = limit_ms

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """
        What the call gives.

        Raises:
            HeadraceError: the last one, if the time is over or asking again does not help.
        """
        until_ms = self._clock.monotonic_ms() + self._limit_ms
        while True:
            try:
                return await call()
            except HeadraceError as error:
                if error.then != Then.RETRY or self._clock.monotonic_ms() >= until_ms:
                    raise
            await self._clock.sleep_ms(PAUSE_MS)
