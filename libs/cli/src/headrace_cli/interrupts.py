"""
Ctrl+C and SIGTERM as an exception of our own, which every command may catch as ``KeyboardInterrupt``.

Python ends a process by SIGINT, whatever its exit code was to be, if a plain ``KeyboardInterrupt`` ever left code that
was run from text, and importing a module with a dataclass in it is such code. A subclass does not count there.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Somebody wants the command to end."""


class interruptible:  # noqa: N801 - reads as the statement it is
    """While in this block these signals raise ``Interrupted``; for the main thread."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, _interrupt) for number in self._numbers}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class held:  # noqa: N801 - reads as the statement it is
    """What comes of these signals in this block comes when it ends: a child that was started has a name by then."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._before: dict[signal.Signals, Any] = {}
        self._came: list[int] = []

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._note) for number in self._numbers}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for came in self._came:
            signal.raise_signal(came)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted
