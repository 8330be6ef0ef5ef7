"""
When drained splits are read again that share their thread. Those of a process that are due at one beat are looked at
together, in one thread; only those that may have something new are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from headrace_common.runtime.clock import Clock, until_beat_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.threads import run_in_thread

Still = Callable[[], bool]
"""``Source.is_still``, of one split."""
LOOK_MS_MAX: Final = 1_000.0
"""A look that takes longer is not waited for: splits are read as if there were none."""


class Polls:
    """Of one event loop. ``async with`` it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runner = TaskRunner()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="connect polls")
        self._resting: dict[float, dict[asyncio.Future[None], Still]] = {}
        """By interval."""
        self._look: asyncio.Task[list[bool]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.close()
        self._thread.shutdown(wait=False)

    async def rest(self, is_still: Still, interval_ms: float) -> None:
        """Until a split is to be read again: at the beat of ``interval_ms`` at which it is not still any more."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        resting = self._resting.get(interval_ms)
        if resting is None:
            resting = self._resting[interval_ms] = {}
            self._runner.start(self._beat(interval_ms, resting), name=f"look at what rests, every {interval_ms:g} ms")
        resting[due] = is_still
        try:
            await due
        finally:
            resting.pop(due, None)

    async def _beat(self, interval_ms: float, resting: dict[asyncio.Future[None], Still]) -> None:
        while resting:
            await self._clock.sleep_ms(until_beat_ms(self._clock.monotonic_ms(), interval_ms))
            asked = dict(resting)
            for due, is_still in zip(asked, await self._ask(list(asked.values())), strict=True):
                if not is_still and not due.done():
                    del resting[due]
                    due.set_result(None)
        del self._resting[interval_ms]

    async def _ask(self, stills: Sequence[Still]) -> Sequence[bool]:
        if self._look is not None and not self._look.done():
            return [False] * len(stills)
        self._look = self._runner.start(self._look_at(stills), name="look")
        done, _ = await asyncio.wait({self._look}, timeout=LOOK_MS_MAX / 1_000)
        return self._look.result() if done else [False] * len(stills)

    async def _look_at(self, stills: Sequence[Still]) -> list[bool]:
        try:
            return await run_in_thread(_look, stills, pool=self._thread)
        except RuntimeError:  # the system gives no thread
            return [False] * len(stills)


def _look(stills: Sequence[Still]) -> list[bool]:
    return [_is_still(one) for one in stills]


def _is_still(still: Still) -> bool:
    try:
        return still()
    except Exception:  # noqa: BLE001 - of a connector: reading says what is wrong
        return False
