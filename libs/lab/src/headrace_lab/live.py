"""The loop of a lab in real time: on a thread of its own, for clients of other threads. Its order has no seed."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import TypeVarTuple, Unpack

from headrace_lab.loop import NODE, LabLoop

Ts = TypeVarTuple("Ts")


class LiveLoop(LabLoop):
    """A ``LabLoop`` whose time is the machine's, and which other threads may call."""

    virtual = False

    def __init__(self) -> None:
        super().__init__(0)
        self._calls: SimpleQueue[asyncio.Handle] = SimpleQueue()
        """Of other threads. Its ``put`` is one instruction: a signal that came within a lock would leave it locked."""

    def time(self) -> float:
        """The machine's monotonic clock."""
        return time.monotonic()

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """From any thread; what comes from none of the nodes is the test's. After the end nothing is done."""
        if context is None and NODE.get(None) is None:
            context = self.test.context
        handle = asyncio.Handle(callback, args, self, context)
        self._calls.put(handle)
        return handle

    def _run_once(self) -> None:
        self._make_due_ready()
        with suppress(Empty):
            if not self._runnable:
                self._make_ready(self._calls.get(timeout=self._pause_s()))
            while True:
                self._make_ready(self._calls.get_nowait())
        if self._runnable:
            super()._run_once()

    def _make_due_ready(self) -> None:
        timers, now = self._timers, self.time()
        while timers and timers[0][0] <= now:
            _, _, timer = heapq.heappop(timers)
            if not timer._cancelled:
                self._make_ready(timer)

    def _pause_s(self) -> float | None:
        """Until the next timer."""
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self.time()) if self._timers else None
