"""
What a process takes from its machine, time and chance: the only reader of either.

``clock`` and ``entropy`` ask here. Where a whole cluster runs in one process, its nodes are given another machine,
whose time is virtual and whose chance comes from a seed.
"""

from __future__ import annotations

import os
import random
import time
from contextvars import ContextVar
from typing import Final, Protocol


class Machine(Protocol):
    """Time and chance."""

    def time(self) -> float:
        """Wall clock, UTC, seconds since the epoch."""
        ...

    def time_ns(self) -> int:
        """Wall clock, UTC, nanoseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment in the past; never goes back."""
        ...

    def random(self) -> float:
        """From 0 to below 1, evenly."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """That nobody can guess, but for who knows the seed where there is one."""
        ...


class _Here:
    """The machine that this is."""

    def __init__(self) -> None:
        self.time = time.time
        self.time_ns = time.time_ns
        self.monotonic = time.monotonic
        self.random = random.random
        self.random_bytes = os.urandom


_HERE: Final = _Here()
MACHINE: Final[ContextVar[Machine]] = ContextVar("headrace_machine", default=_HERE)
"""Of who runs."""
