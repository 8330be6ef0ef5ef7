"""Stops a task at a step: for good, as a killed process, or for a while, as a paused one."""

from __future__ import annotations

import asyncio

STEPS_MAX = 5_000
"""A task that takes more has not come to an end."""


class Killed(BaseException):
    """The process ends here; nothing that it does afterwards counts."""


class KillAt:
    """Satisfies ``Steps``: kills at the step of this number, from 1; 0: never. Counts steps."""

    def __init__(self, number: int = 0) -> None:
        self._number = number
        self.reached: list[str] = []

    async def reach(self, step: str) -> None:
        """See ``Steps``."""
        self.reached.append(step)
        assert len(self.reached) < STEPS_MAX, f"the task does not come to an end: {self.reached[-6:]}"
        if len(self.reached) == self._number:
            raise Killed(step)


class HoldAt(KillAt):
    """Stops at the step until ``go`` is set; ``here`` is set then."""

    def __init__(self, number: int) -> None:
        super().__init__(0)
        self._hold = number
        self.here = asyncio.Event()
        self.go = asyncio.Event()

    def end_with(self, run: asyncio.Task[None]) -> None:
        """``here`` is set when the run ends, too: it may have fewer steps than the one that was counted."""
        run.add_done_callback(lambda _: self.here.set())

    async def reach(self, step: str) -> None:
        """See ``Steps``."""
        await super().reach(step)
        if len(self.reached) == self._hold:
            self.here.set()
            await self.go.wait()
