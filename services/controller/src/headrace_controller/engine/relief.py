"""
Takes leaderships from brokers whose disks are below their reserve, for one term of the active controller.

Such a broker refuses what is written to partitions that it leads, though others that are in sync could take it. It says
so with its heartbeats, with hysteresis of its own, so nothing is stored: a controller that takes over hears it within a
heartbeat. Leaderships go where there is room, each partition at most once in ``AGAIN_MS`` of a term, and nowhere if
nobody has any. They come back as preferred leaderships do, once there is room again.
"""

from __future__ import annotations

from typing import Final

from headrace_common.core.errors import MetadataUnavailable
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import Partition
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_controller.core import leadership
from headrace_controller.core.sessions import Sessions
from headrace_controller.engine.elections import MOVED_AT_ONCE
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.settling import Settling
from headrace_controller.ports import StoreOutcomeUnknown

AGAIN_MS: Final = 600_000
"""How long a partition stays where it was moved, however full that disk gets."""

_TICK_MS: Final = 1_000

log = logger(__name__)


class Relief:
    """One loop of one term."""

    def __init__(self, follower: Follower, settling: Settling, sessions: Sessions, clock: Clock) -> None:
        self._follower = follower
        self._settling = settling
        self._sessions = sessions
        self._clock = clock
        self._moved_ms: dict[PartitionId, float] = {}
        """When each was moved, of those that may not be moved again yet."""

    async def run(self) -> None:
        """
        Look every second, until cancelled.

        Raises:
            NotController: the term is over.
        """
        while True:
            await self._clock.sleep_ms(_TICK_MS)
            try:
                await self.look()
            except (MetadataUnavailable, StoreOutcomeUnknown) as error:
                log.warning("leaders leave full disks later", extra={"reason": str(error)})

    async def look(self) -> int:
        """
        Once; how many leaderships were moved.

        Raises:
            HeadraceError: as ``Settling.bring``.
        """
        self._note(self._sessions.without_room())
        if not self._settling.crowded:
            return 0
        now_ms = self._clock.monotonic_ms()
        self._moved_ms = {id: at for id, at in self._moved_ms.items() if now_ms - at < AGAIN_MS}
        due = [p for p in self._follower.mirror.image.partitions.values() if self._step(p) is not p]
        for start in range(0, len(due), MOVED_AT_ONCE):
            some = due[start : start + MOVED_AT_ONCE]
            self._moved_ms.update((p.id, now_ms) for p in some)  # also where it fails: it may be done
            async with self._settling.turn:
                await self._settling.bring(some, self._relieve)
        if due:
            extra = {"partitions": len(due), "without_room": sorted(self._settling.crowded)}
            log.warning("others lead instead of brokers whose disks are below their reserve", extra=extra)
        return len(due)

    def _note(self, crowded: frozenset[NodeId]) -> None:
        if crowded != self._settling.crowded:
            log.warning("brokers without room on their disks", extra={"brokers": sorted(crowded)})
            self._settling.crowded = crowded

    def _step(self, partition: Partition) -> Partition:
        if partition.leader not in self._settling.crowded or partition.id in self._moved_ms:
            return partition
        return self._relieve(partition)

    def _relieve(self, partition: Partition) -> Partition:
        return leadership.lead_by_broker_with_room(
            partition, self._settling.brokers(), self._settling.rules_of(partition)
        )
