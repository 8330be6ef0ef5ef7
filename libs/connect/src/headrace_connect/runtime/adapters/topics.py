"""Makes topics that do not exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace import aio
from headrace_common.core.errors import InvalidConfig, UnknownTopicOrPartition
from headrace_common.runtime.clock import Clock

_LEVEL_MS: Final = 5_000.0
"""A cluster that has just started knows after a moment what all its nodes can do."""
_PAUSE_MS: Final = 200.0


class SdkTopics:
    """Of one process."""

    def __init__(self, admin: aio.AdminClient, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self._known: set[str] = set()

    async def ensure(self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None) -> None:
        """
        There is a topic of this name; one that is there stays as it is.

        Args:
            partitions: None: the cluster's default.

        Raises:
            HeadraceError: it cannot be made so.
        """
        if name in self._known:
            return
        until_ms = self._clock.monotonic_ms() + _LEVEL_MS
        while True:
            try:
                await self._admin.create_topic(name, partitions, None, configs, if_not_exists=True)
                break
            except InvalidConfig:
                if self._clock.monotonic_ms() >= until_ms:
                    raise
                await self._clock.sleep_ms(_PAUSE_MS)
        self._known.add(name)

    async def partitions(self, name: str) -> int:
        """
        How many partitions a topic has; 0: there is none of this name.
        """
        try:
            return len((await self._admin.describe_topic(name)).partitions)
        except UnknownTopicOrPartition:
            return 0

    async def names(self) -> list[str]:
        """All topics that are not internal."""
        return [topic.name for topic in await self._admin.list_topics()]
