"""
What the broker does by the clock, for all partitions together: retention, the disk's reserve, late requests.

Three loops, nothing periodic per partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

from headrace_broker.core.local_log import segment_rows
from headrace_broker.core.measures import Measures
from headrace_broker.core.partition_events import RetentionChecked
from headrace_broker.core.retention_clock import RetentionClock
from headrace_broker.core.rows import SegmentRow
from headrace_broker.engine.produce import ProduceSession
from headrace_broker.engine.replicas import Replica, Replicas, Standing
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.ports import LogStore, TimeMemory
from headrace_common.core.configs import BROKER_SETTINGS
from headrace_common.core.errors import StorageFailed
from headrace_common.runtime.clock import Clock, give_way

DISK_CHECK_MS: Final = 2_000
LATE_CHECK_MS: Final = 1_000
CHECKED_AT_ONCE: Final = 32
"""Partitions given to the storage loop in one go: 1 to 3 ms where all of them drop something. Others come between."""
UNDER_WAY_MAX: Final = 4 * CHECKED_AT_ONCE
"""Partitions that may wait for the storage loop, or for the sync of what it wrote."""
ROOM_PART: Final = 4
"""Leaderships come back when this part of the reserve is free above it."""
KEPT_EVERY_MS: Final = 20_000
"""How often the time that retention goes by is written down."""
RETENTION_SLEEP_MS: Final = 1_000
"""The longest sleep between looks at the interval and the disk, either of which may change."""

_log = logging.getLogger(__name__)


class Upkeep:
    """One for the broker; the three loops are background tasks."""

    def __init__(
        self,
        replicas: Replicas,
        loop: StorageLoop,
        store: LogStore,
        clock: Clock,
        measures: Measures,
        reserve_bytes: Callable[[int], int],
    ) -> None:
        self._replicas = replicas
        self._loop = loop
        self._store = store
        self._clock = clock
        self._measures = measures
        self._reserve_bytes = reserve_bytes
        self._time = RetentionClock(clock.now_ms(), clock.monotonic_ms())
        self._memory: TimeMemory | None = None
        self._kept_ms = -inf
        self._disk_is_low = False
        self._leads_nothing = False
        self.on_disk_low: Callable[[bool], None] = lambda low: None
        """Told when others should lead what is led here, because the disk is full, and when no longer."""
        loop.on_growth = self.check_disk
        self.sessions: dict[ProduceSession, None] = {}
        """Produce streams whose requests may become late."""

    def setting(self, name: str) -> int:
        """A broker setting's effective value now."""
        image = self._replicas.image
        own = image.broker_configs.get(self._replicas.broker_id, {})
        return int(own.get(name, image.cluster_configs.get(name, BROKER_SETTINGS[name].default)))

    def remember(self, memory: TimeMemory) -> None:
        """Go on from the time that the last process went by, and keep it for the next. Before the loops begin."""
        self._memory = memory
        self._time = RetentionClock(self._clock.now_ms(), self._clock.monotonic_ms(), memory.last_ms())

    def time_ms(self) -> int:
        """The time that retention and compaction go by."""
        return self._time.now(self._clock.now_ms(), self._clock.monotonic_ms())

    async def run_expiry(self) -> None:
        """Answer produce requests whose time is over."""
        while True:
            await self._clock.sleep_ms(LATE_CHECK_MS)
            if self.sessions:
                now = self._clock.monotonic_ms()
                for session in tuple(self.sessions):
                    session.expire(now)

    async def run_retention(self) -> None:
        """Check all partitions every ``log.retention.check.interval.ms``, and at once when the disk is full."""
        last = self._clock.monotonic_ms()
        while True:
            now = self._clock.monotonic_ms()
            await self._keep_time(now)
            left = last + self.setting("log.retention.check.interval.ms") - now
            if left > 0 and not self._disk_is_low:
                await self._clock.sleep_ms(min(left, RETENTION_SLEEP_MS))
                continue
            last, self._disk_is_low = now, False
            await self.check_retention()

    async def _keep_time(self, monotonic_ms: float) -> None:
        if self._memory is None or monotonic_ms - self._kept_ms < KEPT_EVERY_MS:
            return
        self._kept_ms = monotonic_ms
        try:
            await self._memory.keep(self.time_ms())
        except StorageFailed as error:
            _log.warning("the time that retention goes by is not kept: %s", error)

    async def check_retention(self) -> None:
        """Seal what is old enough for it, and drop what may go in every partition that is led here."""
        now_ms = self.time_ms()
        event = RetentionChecked(now_ms, now_ms - self.setting("producer.id.expiration.ms"))
        checked = [replica for replica in self._replicas.all() if _is_checked(replica)]
        before: list[tuple[Replica, Sequence[SegmentRow]]] = []
        posted: list[asyncio.Future[None]] = []
        for chunk in _chunks(checked):
            before += [(replica, segment_rows(replica.core)) for replica in chunk]
            posted += [self._loop.post(replica, event) for replica in chunk]
            await give_way()  # the storage loop takes them, and others their turn
            if len(posted) > UNDER_WAY_MAX:
                await asyncio.wait([posted[-UNDER_WAY_MAX]])
        if posted:
            await asyncio.gather(*posted)
        dropped = sum(_count_dropped(replica, rows) for replica, rows in before)
        if dropped > 0:
            self._measures.retention_dropped_bytes += dropped
            _log.info("retention dropped old records", extra={"bytes": dropped})
        await self._store.reclaim()  # also of what was trimmed

    async def run_disk_watch(self) -> None:
        """Refuse appends while the disk is below its reserve; let retention run at once."""
        while True:
            self.check_disk()
            if self._loop.disk_full is not None:
                await self._store.reclaim()
            await self._clock.sleep_ms(DISK_CHECK_MS)

    def check_disk(self) -> None:
        """Look once; what is queued is as good as written."""
        free, total = self._store.free_bytes()
        free = max(0, free - self._loop.queued_bytes)
        reserve = self._reserve_bytes(total)
        full = self._loop.disk_full is not None
        if free < reserve:
            self._loop.disk_full = (
                f"the broker's disk has {free} bytes free, below its reserve of {reserve}; appends resume when there"
                " is space: delete topics, lower retention, or enlarge the disk"
            )
            if not full:
                _log.error("disk below its reserve: appends are refused", extra={"free": free, "reserve": reserve})
                self._disk_is_low = True
        elif full:
            self._loop.disk_full = None
            _log.info("disk above its reserve: appends resume", extra={"free": free, "reserve": reserve})
        self._say_low(free, reserve)

    def _say_low(self, free: int, reserve: int) -> None:
        """Leaders leave at the reserve, and come back when there is a good part more: they should not swing."""
        low = free < (reserve + reserve // ROOM_PART if self._leads_nothing else reserve)
        if low is not self._leads_nothing:
            self._leads_nothing = low
            self.on_disk_low(low)


def _chunks(replicas: list[Replica]) -> Iterable[list[Replica]]:
    for at in range(0, len(replicas), CHECKED_AT_ONCE):
        yield replicas[at : at + CHECKED_AT_ONCE]


def _is_checked(replica: Replica) -> bool:
    """What is led; and what is compacted here, for which it must be sealed."""
    core = replica.core
    return core.leader_epoch is not None or (core.config.compacts and replica.standing is Standing.ONLINE)


def _count_dropped(replica: Replica, before: Sequence[SegmentRow]) -> int:
    """Bytes of the segments that were there ``before`` and are not any more."""
    first = replica.core.segments.first
    return sum(row.size for row in before if row.base_offset < first)
