"""An admin service that answers what a test says, and a transport that leads to it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Service:
    """Every call is kept in ``asked``; it raises the next of ``failures``, or answers ``answer``."""

    def __init__(self, answer: Any = None) -> None:
        self.asked: list[Any] = []
        self.answer = answer
        self.failures: list[Exception] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(request: Any, timeout: float) -> Any:
            self.asked.append(request)
            if self.failures:
                raise self.failures.pop(0)
            return self.answer

        return call


class AdminTransport:
    """Of ``port.Transport`` what an admin client needs."""

    def __init__(self, service: Any) -> None:
        self.service = service

    async def admin(self) -> Any:
        """See ``port.Transport``."""
        return self.service

    async def close(self) -> None:
        """There is nothing."""
