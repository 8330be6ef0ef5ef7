"""The machine of a node: virtual time since a day that is always the same, and chance from the seed."""

from __future__ import annotations

from typing import Final

from headrace_lab.loop import LabLoop

BEGAN_NS: Final = 1_767_225_600 * 10**9
"""2026-01-01, UTC."""


class LabMachine:
    """See ``headrace_common.runtime.machine.Machine``."""

    def __init__(self, loop: LabLoop) -> None:
        self._loop = loop
        self.random = loop.random.random
        self.random_bytes = loop.random.randbytes
        self.ahead_s = 0.0
        """How far its wall clock has been put ahead."""

    def time(self) -> float:
        """Wall clock, UTC."""
        return self.time_ns() / 1e9

    def time_ns(self) -> int:
        """Wall clock, UTC."""
        return BEGAN_NS + int((self._loop.time() + self.ahead_s) * 1e9)

    def monotonic(self) -> float:
        return self._loop.time()
