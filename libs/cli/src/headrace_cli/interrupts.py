"""
Ctrl+C and SIGTERM as an exception of our own, which every command may catch as ``KeyboardInterrupt``.

Python ends a process by SIGINT, whatever its exit code was to be, if a plain ``KeyboardInterrupt`` ever left code that
was run from text, and importing a module with a dataclass in it is such code. A subclass does not count there.

An exception that comes while Python runs a finaliser or a callback of a weak reference is dropped by Python. Loops that
go on until somebody interrupts them call ``end_if_interrupted``, so that Ctrl+C need not be pressed twice.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Somebody wants the command to end."""


class _Came:
    """Whether a signal came since the block was entered; set by the handler, in the main thread alone."""

    signal = False


class interruptible:  # noqa: N801 - reads as the statement it is
    """While in this block these signals raise ``Interrupted``; for the main thread."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        _Came.signal = False
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
    _Came.signal = True
    raise Interrupted


def end_if_interrupted() -> None:
    """Raises: Interrupted: a signal came, and what it raised was dropped."""
    if _Came.signal:
        raise Interrupted
