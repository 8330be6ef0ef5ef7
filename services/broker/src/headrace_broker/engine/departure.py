"""
How this broker leaves the cluster: it waits until the rolling rule lets it, then its leaders move away. Once.

Asked by a signal (``main``) or by ``prestop`` through its socket; whoever asks first begins it, and all others
wait for the same end. While it waits for the rule the broker serves as ever. The rule is judged by the broker's own
image. Where no controller has answered for ``ALONE_MS`` there will be no other image: all of the cluster leaves, or
waiting helps nobody, and the broker goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final, Protocol

from headrace_broker.core.rolling import Allowed, Blocked, may_restart
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import ClusterImage
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import first_of

ALONE_MS: Final = 20_000.0
"""Longer than controllers take to be back after they were all restarted at once."""

_NAMED_IN_LOG: Final = 20
_LOG_EVERY_MS: Final = 5_000.0

_log = logging.getLogger(__name__)


class Membership(Protocol):
    """The broker's tie to the cluster, as the controller client has it."""

    @property
    def registered(self) -> object | None:
        """The registration; None: it never joined."""
        ...

    @property
    def contact_ms(self) -> float | None:
        """When the last heartbeat was sent that a controller answered, monotonic; None: not yet."""
        ...

    def images(self) -> AsyncIterator[ClusterImage]:
        """The image each time it changed, newest only, beginning with the present one; never ends."""
        ...

    async def leave(self, timeout_ms: float) -> bool:
        """Ask that leaders move away and wait for it; then heartbeats stop. Whether nothing depends on this broker."""
        ...


class Departure:
    """One for the process; all calls on one event loop."""

    def __init__(self, broker: NodeId, clock: Clock, *, wait_ms_max: float, leave_ms_max: float) -> None:
        self._broker = broker
        self._clock = clock
        self._wait_ms_max = wait_ms_max
        self._leave_ms_max = leave_ms_max
        self._asked = asyncio.Event()
        self._over = asyncio.Event()
        self._clean = False

    async def wait_asked(self) -> None:
        """Return when somebody has."""
        await self._asked.wait()

    async def ask(self) -> bool:
        """Have the broker leave and wait until it has; whether nothing depended on it then. May be asked again."""
        self._asked.set()
        await self._over.wait()
        return self._clean

    async def wait_allowed(self, member: Membership, hurry: asyncio.Event) -> None:
        """
        Return when the rolling rule lets this broker restart, or no controller answers any more, or its time is over,
        or ``hurry`` is set.

        The caller goes on serving meanwhile, and to ``leave`` after it.
        """
        if self._wait_ms_max > 0:
            limit = self._clock.sleep_ms(self._wait_ms_max)
            await first_of(self._wait_for_permission(member), self._wait_alone(member), limit, hurry.wait())

    async def leave(self, member: Membership) -> bool:
        """Leave now; whether nothing depends on this broker. A broker that never joined has nothing to leave."""
        self._asked.set()
        nothing_to_leave = member.registered is None
        self._clean = await member.leave(self._leave_ms_max) or nothing_to_leave
        self._over.set()
        return self._clean

    async def _wait_for_permission(self, member: Membership) -> None:
        began = self._clock.monotonic_ms()
        told_ms = began - _LOG_EVERY_MS
        told: Blocked | None = None
        try:
            async for image in member.images():
                verdict = may_restart(image, self._broker)
                now = self._clock.monotonic_ms()
                if isinstance(verdict, Allowed):
                    self._say_allowed(verdict, now - began, told)
                    told = None
                    return
                if verdict != told and now - told_ms >= _LOG_EVERY_MS:
                    told_ms = now
                    _log.info("waits until it may restart: others must catch up first", extra=_about(verdict.by))
                told = verdict
        finally:
            if told is not None:
                _log.warning(
                    "leaves though others have not caught up: these partitions cannot be written with acks=all until "
                    "it is back",
                    extra={**_about(told.by), "waited_ms": round(self._clock.monotonic_ms() - began)},
                )

    async def _wait_alone(self, member: Membership) -> None:
        """Return when no controller has answered for ``ALONE_MS``, counted from the call on at the earliest."""
        heard = self._clock.monotonic_ms()
        while (left := heard + ALONE_MS - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep_ms(left)
            heard = max(heard, member.contact_ms or heard)
        _log.warning("waits no longer: no controller has answered", extra={"for_ms": round(ALONE_MS)})

    def _say_allowed(self, verdict: Allowed, waited_ms: float, told: Blocked | None) -> None:
        if told is not None:
            _log.info("may restart now", extra={"waited_ms": round(waited_ms)})
        if verdict.exposed:
            _log.warning(
                "these partitions have too few replicas to be written while this broker restarts",
                extra=_about(verdict.exposed),
            )


def _about(partitions: tuple[PartitionId, ...]) -> dict[str, object]:
    return {"count": len(partitions), "partitions": [str(one) for one in partitions[:_NAMED_IN_LOG]]}
