"""
Compacts the logs of topics that have ``cleanup.policy=compact``, led and followed alike, one at a time.

One task for the broker: it looks at all of them, takes the dirtiest that is due, and looks again; with nothing to do it
waits ``log.cleaner.backoff.ms``. A log that cannot be compacted is left aside for a while, and named; the others go on.
The rules are in ``core/compaction``, one pass over one log is in ``compacting``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace_broker.core.compaction.plan import (
    CompactionSettings,
    DirtyRange,
    dirty_range,
    next_to_clean,
    why_it_waits,
)
from headrace_broker.core.compaction.rules import Rules, rules_of
from headrace_broker.core.measures import Measures
from headrace_broker.core.partition_events import RetentionChecked
from headrace_broker.core.rows import LogId
from headrace_broker.core.time_search import Floor
from headrace_broker.engine.broker_settings import BrokerSettings
from headrace_broker.engine.compacting import Compacting, Done, Outpaced, Stuck
from headrace_broker.engine.replicas import Replica, Replicas, Standing
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.throttle import Throttle
from headrace_broker.ports import BytesLost, LogStore
from headrace_common.core.errors import HeadraceError, StorageFailed
from headrace_common.core.ids import Offset, PartitionId
from headrace_common.runtime.clock import Clock, give_way
from headrace_common.runtime.entropy import new_seed
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.threads import run_in_thread

T = TypeVar("T")
SLEEP_MS: Final = 1_000.0
"""The longest sleep between looks at the settings."""
BACKOFF_MS_MIN: Final = 100.0
LOOKED_AT_ONCE: Final = 16
"""Logs that are looked at before others have their turn; each takes a few seeks."""
STUCK_MS: Final = 900_000.0
"""How long a log that cannot be read is left aside at least."""
AWAY_MS_MIN: Final = 60_000
"""A follower that has been silent for as long as deletions stay, and so long, is not waited for."""
RECLAIM_BYTES: Final = 64 << 20
"""So much is removed before its space is asked back, while there is more to do."""
ROOM_PART: Final = 4
"""It rests while less than this part of the disk's reserve is free: what it writes comes before what it frees."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Bad:
    """A log that cannot be compacted."""

    log: LogId
    reason: str
    at: Offset
    truncations: int
    until_ms: float


@dataclass(slots=True)
class _Seen:
    """A log as it was at the last look."""

    key: tuple[object, ...]
    """What the range depends on, but for the time."""
    dirty: DirtyRange
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class Compaction:
    """How far the compaction of one log is."""

    cleaned_to: Offset
    cleanable_to: Offset
    clean_bytes: int
    dirty_bytes: int
    last_ms: int | None
    """Wall clock; None: not since the broker started."""
    waits_for: str | None
    stuck: bool


class Cleaner:
    """One for the broker; ``run`` is a background task."""

    def __init__(
        self,
        replicas: Replicas,
        loop: StorageLoop,
        store: LogStore,
        clock: Clock,
        tasks: TaskRunner,
        measures: Measures,
        now_ms: Callable[[], int],
        reserve_bytes: Callable[[int], int],
    ) -> None:
        """``now_ms``: the time that retention goes by."""
        self._replicas = replicas
        self._loop = loop
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._measures = measures
        self._now_ms = now_ms
        self._reserve_bytes = reserve_bytes
        self._settings = BrokerSettings(replicas)
        self._throttle = Throttle(self._rate)
        self._thread = ThreadPoolExecutor(1, "cleaner")
        self._seen: dict[PartitionId, _Seen] = {}
        self._bad: dict[PartitionId, _Bad] = {}
        self._last: dict[PartitionId, int] = {}
        self._current: PartitionId | None = None
        self._work: Compacting | None = None
        self._removed = 0
        self._ran_ms = clock.monotonic_ms()
        self._draining = False
        self.on_lost: Callable[[Replica, BytesLost], None] = lambda _replica, _error: None
        """Called when a batch is gone or is not what was written."""

    def drain(self) -> None:
        """The broker is about to stop: begin nothing more, and end what is under way with its next step."""
        self._draining = True

    async def run(self) -> None:
        try:
            while True:
                busy = self._settings.flag("log.cleaner.enable") and not self._draining and await self.look()
                self._ran_ms = self._clock.monotonic_ms()
                if not busy:
                    await self._reclaim()
                    await self._rest()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def look(self) -> bool:
        """Compact the dirtiest log that is due; False: none is, or it could not be."""
        now_ms = self._now_ms()
        looked = await self._look_at_all(now_ms)
        if not looked or not self.may_go_on():
            return False
        chosen = next_to_clean(((id, seen.dirty, _settings(replica)) for id, (replica, seen) in looked.items()), now_ms)
        if chosen is None:
            return False
        id, dirty = chosen
        replica, _ = looked[id]
        self._current = id
        try:
            with self._spare_others(replica):
                if not await self._compact(replica, dirty, now_ms):
                    return False
            return True
        finally:
            self._current = self._work = None

    # --- which --------------------------------------------------------------------------------------------

    async def _look_at_all(self, now_ms: int) -> dict[PartitionId, tuple[Replica, _Seen]]:
        """Those that may be compacted, with what is dirty of them."""
        found: dict[PartitionId, tuple[Replica, _Seen]] = {}
        compacted = [one for one in self._replicas.all() if _is_compacted(one)]
        for at, replica in enumerate(compacted):
            if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await give_way()
            if not _is_compacted(replica):
                continue
            if replica.core.is_aged(now_ms):  # what is sealed only when something is appended would never be compacted
                await self._seal(replica, now_ms)
            with self._spare_others(replica):
                seen = self._look_at(replica, now_ms)
                if seen is not None and not self._is_bad(replica):
                    found[replica.id] = replica, seen
        known = {replica.id for replica in compacted}
        for kept in (self._seen, self._bad, self._last):
            for id in kept.keys() - known:
                del kept[id]
        return found

    async def _seal(self, replica: Replica, now_ms: int) -> None:
        try:
            await self._loop.post(replica, RetentionChecked(now_ms, 0))
        except StorageFailed:
            raise
        except HeadraceError:
            return

    def _look_at(self, replica: Replica, now_ms: int) -> _Seen | None:
        core = replica.core
        key = (
            core.log,
            core.first_batch,
            core.cleaned_to,
            core.segments.active.base_offset,
            core.last_stable,
            core.truncations,
            core.rewrites,
            core.config.compaction_lag_ms_min,
        )
        seen = self._seen.get(replica.id)
        if seen is None or seen.key != key or core.config.compaction_lag_ms_min > 0:
            try:
                dirty = dirty_range(core, self._floor(core.log), core.config.compaction_lag_ms_min, now_ms)
            except StorageFailed as error:
                self._leave_aside(replica, Offset(-1), str(error))
                return None
            seen = self._seen[replica.id] = _Seen(key, dirty)
        seen.waits_for = why_it_waits(core, seen.dirty, _settings(replica), now_ms)
        return seen

    def _floor(self, log: LogId) -> Floor:
        return lambda offset: self._store.floor(log, offset)

    # --- one ----------------------------------------------------------------------------------------------

    async def _compact(self, replica: Replica, dirty: DirtyRange, now_ms: int) -> bool:
        rules = self._rules(replica, dirty, now_ms)
        began = self._clock.monotonic_ms()
        work = Compacting(replica, dirty, rules, self, self._store, self._loop, self._tasks, self._measures)
        self._work = work
        try:
            done = await work.run(self._settings.whole("log.cleaner.dedupe.buffer.size"), new_seed())
        except Outpaced as error:
            _log.debug("a compaction ended early: %s", error, extra=replica.log_fields)
            return False
        except Stuck as error:
            self._leave_aside(replica, error.at, str(error))
        except BytesLost as error:
            self._leave_aside(replica, Offset(-1), str(error))
            self.on_lost(replica, error)
        else:
            self._note_done(replica, dirty, done, self._clock.monotonic_ms() - began)
            if self._removed >= RECLAIM_BYTES:
                await self._reclaim()
        return True

    def _rules(self, replica: Replica, dirty: DirtyRange, now_ms: int) -> Rules:
        core, retention_ms = replica.core, replica.core.config.delete_retention_ms
        spares = core.forgets_below(self._clock.monotonic_ms(), max(retention_ms, AWAY_MS_MIN))
        return rules_of(core, dirty.end, core.clean_points, retention_ms, now_ms, spares)

    def _note_done(self, replica: Replica, dirty: DirtyRange, done: Done, took_ms: float) -> None:
        self._bad.pop(replica.id, None)
        self._last[replica.id] = self._clock.now_ms()
        self._removed += done.bytes_removed
        self._measures.cleaner_runs += 1
        self._measures.cleaner_bytes_removed += done.bytes_removed
        extra = {"bytes": dirty.clean_bytes + dirty.dirty_bytes, "removed": done.bytes_removed, "ms": round(took_ms)}
        _log.info("compacted up to %d", done.end, extra={**replica.log_fields, **extra})

    async def _reclaim(self) -> None:
        if self._removed:
            self._removed = 0
            await self._store.reclaim()

    # --- logs that cannot be compacted --------------------------------------------------------------------

    @contextmanager
    def _spare_others(self, replica: Replica) -> Iterator[None]:
        """
        What nobody expected of one log is said, with its traceback, and this log is left aside; all else goes on.

        Each replica has the same records, so an error that ended the process would end every broker of the log, and
        again whenever one is started. What the pass wrote is sound, step by step. ``StorageFailed`` passes.
        """
        try:
            yield
        except StorageFailed:
            raise
        except Exception as error:  # noqa: BLE001 - one pass is run like a task, and its failure means this log alone
            self._measures.cleaner_crashes += 1
            at = Offset(-1) if self._work is None else self._work.at
            where = "" if at < 0 else f", at offset {at} or before"
            reason = f"an error that nobody expected{where}: {type(error).__name__}: {str(error)[:200]}"
            self._leave_aside(replica, at, f"{reason}; the broker's log has the traceback, report it", error)

    def _leave_aside(self, replica: Replica, at: Offset, reason: str, bug: Exception | None = None) -> None:
        core = replica.core
        self._measures.cleaner_failures += 1
        wait_ms = max(STUCK_MS, self._settings.number("log.cleaner.backoff.ms"))
        known = self._bad.get(replica.id)
        self._bad[replica.id] = _Bad(core.log, reason, at, core.truncations, self._clock.monotonic_ms() + wait_ms)
        if known is None or known.reason != reason:
            extra = {**replica.log_fields, "retry_ms": round(wait_ms)}
            _log.error("the log cannot be compacted; the others go on: %s", reason, exc_info=bug, extra=extra)

    def _is_bad(self, replica: Replica) -> bool:
        """Whether to leave it aside: until its time has come, or what was bad of it has gone."""
        bad, core = self._bad.get(replica.id), replica.core
        if bad is None:
            return False
        gone = bad.log != core.log or bad.truncations != core.truncations or 0 <= bad.at < core.first_batch
        if gone:
            del self._bad[replica.id]
        return not gone and self._clock.monotonic_ms() < bad.until_ms

    # --- how fast -----------------------------------------------------------------------------------------

    async def work(self, call: Callable[[], T]) -> T:
        return await run_in_thread(call, pool=self._thread)

    async def spend(self, size: int) -> None:
        wait_ms = self._throttle.spend(size, self._clock.monotonic_ms())
        while wait_ms >= 1 and self.may_go_on():
            await self._clock.sleep_ms(min(wait_ms, SLEEP_MS))
            wait_ms = self._throttle.spend(0, self._clock.monotonic_ms())

    def may_go_on(self) -> bool:
        """See ``Pace``. A broker whose disk is full goes on: it frees space, as long as there is some to work with."""
        if self._draining or not self._settings.flag("log.cleaner.enable"):
            return False
        return self._loop.disk_full is None or not self._is_cramped()

    def _is_cramped(self) -> bool:
        free, total = self._store.free_bytes()
        return free < self._reserve_bytes(total) // ROOM_PART

    def _rate(self) -> int:
        return int(self._settings.number("log.cleaner.io.max.bytes.per.second"))

    async def _rest(self) -> None:
        began = self._clock.monotonic_ms()
        while True:
            backoff_ms = max(BACKOFF_MS_MIN, self._settings.number("log.cleaner.backoff.ms"))
            left = began + backoff_ms - self._clock.monotonic_ms()
            if left <= 0:
                return
            await self._clock.sleep_ms(min(left, SLEEP_MS))

    # --- what is told -------------------------------------------------------------------------------------

    def describe(self, replica: Replica) -> Compaction | None:
        """As of the last look; None: the log is not one to compact, or was not looked at yet."""
        core, seen = replica.core, self._seen.get(replica.id)
        if not _is_compacted(replica):
            return None
        bad = self._bad.get(replica.id)
        dirty = DirtyRange(core.cleaned_to, core.cleaned_to, 0, 0, -1) if seen is None else seen.dirty
        return Compaction(
            core.cleaned_to,
            Offset(max(dirty.end, core.cleaned_to)),
            dirty.clean_bytes,
            dirty.dirty_bytes,
            self._last.get(replica.id),
            self._waits_for(replica, seen, bad),
            bad is not None,
        )

    def _waits_for(self, replica: Replica, seen: _Seen | None, bad: _Bad | None) -> str | None:
        if bad is not None:
            return bad.reason
        if not self._settings.flag("log.cleaner.enable"):
            return "log.cleaner.enable is false"
        if seen is None or replica.id == self._current:
            return None
        if seen.waits_for is None and seen.dirty.end > seen.dirty.start:
            if self._loop.disk_full is not None and self._is_cramped():
                return "there is too little room on the disk even for what frees some"
            return None if self._current is None else "other logs are compacted first"
        return seen.waits_for

    @property
    def dirty_ratio_max(self) -> float:
        """Of all logs that can be compacted, at the last look."""
        return max((seen.dirty.ratio for id, seen in tuple(self._seen.items()) if id not in self._bad), default=0.0)

    @property
    def stuck_logs(self) -> int:
        return len(self._bad)

    @property
    def idle_s(self) -> float:
        """Since the last look, or the last log; it grows while one log takes long, and for ever if all has stopped."""
        return max(0.0, (self._clock.monotonic_ms() - self._ran_ms) / 1_000)


def _is_compacted(replica: Replica) -> bool:
    return replica.core.config.compacts and replica.standing is Standing.ONLINE and replica.damage is None


def _settings(replica: Replica) -> CompactionSettings:
    config = replica.core.config
    return CompactionSettings(
        config.dirty_ratio_min, config.compaction_lag_ms_min, config.compaction_lag_ms_max, config.delete_retention_ms
    )
