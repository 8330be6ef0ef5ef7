"""Decides which thread takes work that would block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def run_in_thread(call: Callable[[*Ts], T], *args: *Ts, pool: Executor | None = None) -> T:
    """What ``call`` returns, in a thread of ``pool``, else in one of the event loop's; the thread sees our context."""
    work = partial(copy_context().run, call, *args)
    return await asyncio.get_running_loop().run_in_executor(pool, work)
