"""The place in the work group over the SDK."""

from __future__ import annotations

from collections.abc import Callable, Collection

from headrace import aio
from headrace.work_types import Declaration, WorkChange
from headrace_common.runtime.clock import Clock
from headrace_connect_worker.core.placing import NOTHING


class SdkMembership:
    """Satisfies ``Membership``."""

    def __init__(self, servers: str, group_id: str, endpoint: Callable[[], str], clock: Clock, call_ms: int) -> None:
        """
        Args:
            endpoint: where this worker answers REST, ``host:port``; asked when it joins.
        """
        self._servers = servers
        self._group_id = group_id
        self._endpoint = endpoint
        self._clock = clock
        self._call_ms = call_ms
        self._group: aio.WorkGroup | None = None

    def declare(self, declaration: Declaration) -> None:
        """See ``Membership``."""
        if self._group is None:
            self._group = aio.WorkGroup(
                self._group_id,
                declaration,
                self._servers,
                endpoint=self._endpoint(),
                default_api_timeout_ms=self._call_ms,
            )
        else:
            self._group.declare(declaration)

    def retire(self) -> None:
        """See ``Membership``."""
        if self._group is not None:
            self._group.declare(NOTHING)

    async def poll(self, timeout_ms: float) -> WorkChange | None:
        """See ``Membership``."""
        if self._group is None:
            await self._clock.sleep_ms(timeout_ms)
            return None
        return await self._group.poll(timeout_ms)

    def give_up(self, items: Collection[str]) -> None:
        """See ``Membership``."""
        if self._group is not None:
            self._group.give_up(*items)

    def refuse(self, item: str, token: int) -> None:
        """See ``Membership``."""
        if self._group is not None:
            self._group.report(refused={item: token})

    @property
    def suspended(self) -> bool:
        """See ``Membership``."""
        return self._group is not None and self._group.suspended

    async def close(self) -> None:
        """See ``Membership``."""
        if self._group is not None:
            await self._group.close()
