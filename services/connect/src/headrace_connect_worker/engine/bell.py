"""Tells those who listen that there is something new; what it is, they see for themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Bell:
    """Of one event loop."""

    def __init__(self) -> None:
        self._ears: set[asyncio.Event] = set()

    def ring(self) -> None:
        """There is something new."""
        for ear in self._ears:
            ear.set()

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._ears)

    @contextmanager
    def heard(self) -> Iterator[asyncio.Event]:
        """An event that each ring sets, and that is set at first."""
        ear = asyncio.Event()
        ear.set()
        self._ears.add(ear)
        try:
            yield ear
        finally:
            self._ears.discard(ear)
