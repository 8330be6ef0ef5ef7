"""
How the same steps run on both twins: generators of *actions*, which the sync consumer carries out by blocking and the
asyncio consumer by awaiting.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace._runtime import LoopThread
from headrace_common.runtime.clock import Clock

T = TypeVar("T")

SLICE_MS_MIN: Final = 20
SLICE_MS_MAX: Final = 80
"""Iteration looks at the group about as often as this, in ms of the application's work."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function of the application; if it returns an awaitable, await that."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OnGroup:
    """Run on the loop of the group, and wait."""

    work: Callable[[], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class OnReading:
    """Run on the loop of the reading engine, and wait."""

    work: Callable[[], Coroutine[Any, Any, Any]]


Action = Call | OnGroup | OnReading
Steps = Generator[Action, Any, T]


def run_blocking(steps: Steps[T], loop: LoopThread) -> T:
    """Carry ``steps`` out on a thread that may block; both loops are ``loop``."""
    try:
        action = next(steps)
        while True:
            try:
                result = action.function(*action.arguments) if isinstance(action, Call) else loop.call(action.work())
            except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the steps, which end by it
                action = steps.throw(error)
            else:
                action = steps.send(result)
    except StopIteration as over:
        returned: T = over.value
        return returned


async def run_awaiting(steps: Steps[T], loop: LoopThread | None) -> T:
    """Carry ``steps`` out on the application's event loop; the group, if there is one, is on ``loop``."""
    try:
        action = next(steps)
        while True:
            try:
                result = await _perform(action, loop)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the steps, which end by it
                action = steps.throw(error)
            else:
                action = steps.send(result)
    except StopIteration as over:
        returned: T = over.value
        return returned


async def _perform(action: Action, loop: LoopThread | None) -> Any:
    match action:
        case Call(function, arguments):
            result = function(*arguments)
            return await result if inspect.isawaitable(result) else result
        case OnGroup(work):
            assert loop is not None, "only a group has work on its loop"
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop.loop))
        case OnReading(work):
            return await work()


class Pace:
    """How many records iteration hands out between two looks at the group: fewer to a slow application."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._count = 1
        self._since_ms = 0.0

    def begin(self) -> int:
        self._since_ms = self._clock.monotonic_ms()
        return self._count

    def end(self) -> None:
        took_ms = self._clock.monotonic_ms() - self._since_ms
        if took_ms < SLICE_MS_MIN:
            self._count = min(self._most, self._count * 2)
        elif took_ms > SLICE_MS_MAX:
            self._count = max(1, self._count // 2)
