"""Topics that a running app reads and that are there no more: said once, and for a bounded time."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from headrace_common.core.errors import UnknownTopicOrPartition

_log = logging.getLogger(__name__)


class Missing:
    """Those of one app."""

    def __init__(self, app: str, limit_ms: float) -> None:
        """
        Args:
            limit_ms: how long a topic may be missing.
        """
        self._app = app
        self._limit_ms = limit_ms
        self._since_ms: dict[str, float] = {}

    @property
    def until_ms(self) -> float:
        """When the first of them has been missing for too long; infinite: none is missing."""
        return min(self._since_ms.values(), default=float("inf")) + self._limit_ms

    def seen(self, missing: Iterable[str], now_ms: float) -> None:
        """
        These are missing now, and no others.

        Raises:
            UnknownTopicOrPartition: one has been missing for too long.
        """
        before = self._since_ms
        self._since_ms = {topic: before.get(topic, now_ms) for topic in sorted(missing)}
        if now_ms >= self.until_ms:
            raise UnknownTopicOrPartition(
                f"{self._app} reads topics that were deleted: {', '.join(self._since_ms)}; {self._do()}"
            )
        if self._since_ms.keys() - before.keys():
            _log.warning(
                "%s reads topics that were deleted: %s; it stops in %g s if they stay away; %s",
                self._app,
                ", ".join(self._since_ms),
                (self.until_ms - now_ms) / 1e3,
                self._do(),
            )

    def _do(self) -> str:
        first = next(iter(self._since_ms))
        return (
            f"stop its workers, create them again, headrace topic create {first}, and have it begin anew, "
            f"headrace streams reset {self._app}"
        )
