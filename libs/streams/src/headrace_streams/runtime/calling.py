"""Steps of a worker's tasks, in which functions of the program may run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace_streams.core.errors import Blocked


class Calling:
    """Runs one step after the other, each for so long at most."""

    def __init__(self, app: str, compute: Callable[..., Awaitable[Any]], limit_ms: float) -> None:
        """
        Args:
            limit_ms: ``max_poll_interval_ms``.
        """
        self._app = app
        self._compute = compute
        self._limit_ms = limit_ms
        self.blocked = False
        """A step has not come back, and may hold stores."""

    async def __call__(self, step: Callable[..., Any], *args: Any) -> Any:
        """
        What the step gives.

        Raises:
            Blocked: it has not come back in time.
        """
        taken = asyncio.ensure_future(self._compute(step, *args))
        done, _ = await asyncio.wait([taken], timeout=self._limit_ms / 1e3)
        if not done:
            self.blocked = True
            raise Blocked(
                f"a function of {self._app} has not returned for {self._limit_ms / 1e3:g} s (max_poll_interval_ms), so "
                "this worker gives its tasks up and ends: bound what the function waits for"
            )
        return taken.result()
