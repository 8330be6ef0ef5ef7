"""
How the sync clients live that have one engine and nothing to lose: closing, forks, and being forgotten.

``LogWatch`` and ``RangeReader`` are such. Producers and consumers have more to do at their end and do it themselves.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, ClassVar, Self, TypeVar

from headrace import _runtime
from headrace._waits import check_seconds
from headrace.errors import ClientClosed, HeadraceError

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0

End = Callable[[], Coroutine[Any, Any, None]]
"""Ends the engine; runs on the loop, and refers to the engine but not to the client."""


class Lifetime:
    """A part of such a client; ``_begin_life`` comes last in its ``__init__``."""

    _KIND: ClassVar[str]
    """What it is called in texts."""
    _closed = True  # until it works, there is nothing to warn of
    _abandoned = False

    def _begin_life(self, end: End) -> None:
        self._end = end
        self._loop = _runtime.loop_thread()
        self._closed = False
        _runtime.enroll(self)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """
        Close the connections. Idempotent; every other call raises ``ClientClosed`` afterwards.

        Args:
            timeout: seconds.
        """
        check_seconds(timeout)
        if self._closed or self._abandoned:
            return
        self._closed = True
        _runtime.dismiss(self)
        self._loop.call(self._end(), timeout)

    def __del__(self) -> None:
        if self._closed or self._abandoned or sys.is_finalizing():
            return
        text = f"{self!r} was not closed; use close() or a with block"
        self._closed = True
        warnings.warn(text, ResourceWarning, 2, self)
        self._loop.call_soon(_end_soon, self._end, self._KIND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _abandon(self) -> None:
        self._abandoned = True

    def _close_at_exit(self, timeout: float) -> None:
        """Nothing is lost with the process."""

    def _check_usable(self) -> None:
        if self._abandoned:
            raise ClientClosed.by_fork(self._KIND)
        if self._closed:
            raise ClientClosed(f"the {self._KIND} is closed; make a new one")

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """
        The engine's answer.

        Raises:
            ClientClosed: another thread has closed the client meanwhile.
        """
        try:
            return self._loop.call(question)
        except (HeadraceError, CancelledError):
            self._check_usable()
            raise


def _end_soon(end: End, kind: str) -> None:
    """On the loop: nobody waits for it, and the client itself is gone."""
    _runtime.Tasks().start(end(), f"{kind}: end one that was not closed")
