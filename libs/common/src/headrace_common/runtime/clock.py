"""
Decides where time comes from: nothing else asks the event loop or the machine for it (``tests/tools`` holds that).

What reads the time, or waits for a time of day, is given a ``Clock``. Limits and timers are those of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVarTuple

from headrace_common.runtime.machine import MACHINE

Ts = TypeVarTuple("Ts")
_NOW_MS: Final = 1.0
"""A timer of the event loop may be early by less."""


class Clock(Protocol):
    """Time as a service sees it; a test owns its own."""

    def now_ms(self) -> int:
        """Wall clock, UTC, milliseconds since the epoch. It may jump; never subtract two of them."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some moment in the past; never goes back. For durations."""
        ...

    async def sleep_ms(self, ms: float) -> None:
        """Wait; 0 or less lets other tasks run once."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall clock, UTC."""
        return MACHINE.get().time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return MACHINE.get().monotonic() * 1_000

    async def sleep_ms(self, ms: float) -> None:
        """Wait on the event loop."""
        await pause_ms(ms)


class Deadline:
    """The moment ``ms`` from now, by the event loop, which keeps the time of the lab in the lab."""

    __slots__ = ("_at",)

    def __init__(self, ms: float) -> None:
        self._at = asyncio.get_running_loop().time() + ms / 1_000

    @property
    def left_ms(self) -> float:
        """Until then; 0 or less: it has passed."""
        return (self._at - asyncio.get_running_loop().time()) * 1_000

    def limit(self) -> asyncio.Timeout:
        """For ``async with``: a block that lasts longer ends with ``TimeoutError``."""
        return asyncio.timeout_at(self._at)

    def call(self, call: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
        """Call it then, unless the timer is cancelled."""
        return asyncio.get_running_loop().call_at(self._at, call, *args)


def limit_ms(ms: float | None) -> asyncio.Timeout:
    """For ``async with``: a block that lasts longer than ``ms`` ends with ``TimeoutError``. None: no limit yet."""
    return asyncio.timeout(None if ms is None else ms / 1_000)


limit_s = asyncio.timeout
"""The same in seconds."""


def call_later_ms(ms: float, call: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
    """Call it after ``ms``, unless the timer is cancelled."""
    return asyncio.get_running_loop().call_later(ms / 1_000, call, *args)


def until_beat_ms(now_ms: float, every_ms: float) -> float:
    """
    How long until the next multiple of ``every_ms`` that is not now: what waits for it wakes the process together with
    its like.
    """
    left_ms = every_ms - now_ms % every_ms
    return left_ms if left_ms > _NOW_MS else left_ms + every_ms


async def pause_ms(ms: float) -> None:
    """Wait; 0 or less lets other tasks run once."""
    await asyncio.sleep(max(0.0, ms) / 1_000)


async def give_way() -> None:
    """Let other tasks run once."""
    await asyncio.sleep(0)
