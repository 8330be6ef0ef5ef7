"""What stands where the clients' thread stands in a lab with virtual time: its own loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace._runtime import LoopThread
from headrace_common.core.errors import Rejected

T = TypeVar("T")


class LabThread(LoopThread):
    """See ``headrace._runtime.LoopThread``. Work that is given to it is a turn of the loop, never at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = os.getpid()
        self.loop = loop

    @property
    def here(self) -> bool:
        """As if it were another thread."""
        return False

    def call(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Nobody can wait for a loop on its own thread. Raises: Rejected."""
        del timeout
        coro.close()
        raise Rejected("clients for threads cannot wait where time is virtual; take those of headrace.aio")
