"""
Carries ends of transactions to all their partitions, for all shards of this process; ``marker_plan`` decides.

Hosts hand over what was decided and is durable, and hear which partitions have it. It never gives up: a host that lets
its shard go takes its ends back, the next owner of the shard begins them anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from headrace_common.core.errors import HeadraceError, InvalidProducerEpoch
from headrace_common.core.ids import PartitionId
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.failpoints import failpoint
from headrace_common.runtime.logs import logger
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.engine.marker_plan import AskRevision, Done, MarkerPlan, Send, Source
from headrace_coordinator.ports import Cluster, Marker, MarkerErrors, Markers, Revisions

WARN_EVERY: Final = 20
"""Of the refusals of one partition, the first and then each so many are told."""

log = logger(__name__)


class MarkerDriver:
    """One per process; one event loop."""

    def __init__(
        self, markers: Markers, cluster: Cluster, revisions: Revisions, clock: Clock, tasks: TaskRunner
    ) -> None:
        self._markers = markers
        self._cluster = cluster
        self._revisions = revisions
        self._clock = clock
        self._tasks = tasks
        self._plan = MarkerPlan()
        self._pump_wanted = False
        self._timer: asyncio.Task[None] | None = None
        self._timer_at_ms = 0.0

    async def follow(self) -> None:
        """Send what is elsewhere now to where it is; runs until cancelled."""
        async for image in self._cluster.images():
            self._plan.image_changed(image, self._clock.monotonic_ms())
            self._pump()

    # --- called by hosts --------------------------------------------------------------------------------------

    def write(self, source: Source, transactional_id: str, marker: Marker, partitions: Iterable[PartitionId]) -> None:
        """An end was decided. What comes in the same turn of the event loop goes out together."""
        self._plan.add(source, transactional_id, marker, partitions, self._clock.monotonic_ms())
        if not self._pump_wanted:
            self._pump_wanted = True
            asyncio.get_running_loop().call_soon(self._pump)

    def forget(self, source: Source) -> None:
        """The shard was let go of."""
        self._plan.forget(source)

    def without(self, source: Source, transactional_id: str) -> tuple[PartitionId, ...]:
        """Partitions that do not have the end of this transaction yet."""
        return self._plan.without(source, transactional_id)

    @property
    def endings(self) -> int:
        """Transactions whose end is not everywhere yet."""
        return self._plan.endings

    # --- inside -----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._pump_wanted = False
        for effect in self._plan.pump(self._clock.monotonic_ms()):
            match effect:
                case Send():
                    self._tasks.start(self._send(effect), name=f"markers to {effect.to.at}")
                case Done(source, transactional_id, marker, partitions):
                    source.markers_written(transactional_id, marker, partitions)
                case AskRevision():
                    self._tasks.start(self._ask_revision(), name="markers-revision")
        self._schedule()

    async def _send(self, request: Send) -> None:
        results: MarkerErrors | HeadraceError
        failpoint("txn.marker.send.before")
        try:
            results = await self._markers.write(request.to, request.markers)
        except HeadraceError as error:
            results = error
        failpoint("txn.marker.send.after")
        now_ms = self._clock.monotonic_ms()
        if isinstance(results, HeadraceError):
            wrong = self._plan.failed(request.number, results, now_ms)
        else:
            wrong = self._plan.answered(request.number, results, now_ms)
        for transactional_id, id, why, tries in wrong:
            about = {"transactional_id": transactional_id, "partition": str(id), "tries": tries}
            if isinstance(why, InvalidProducerEpoch):
                log.warning("a partition has moved on from the end of a transaction: %s", why, extra=about)
            elif tries % WARN_EVERY == 0 or not why.retriable:
                log.warning("the end of a transaction is not taken yet: %s", why, extra=about)
            elif tries == 1:
                log.info("the end of a transaction is sent again: %s", why, extra=about)
        self._pump()

    async def _ask_revision(self) -> None:
        revision = None
        try:
            revision = await self._revisions.newest_revision()
        except HeadraceError as error:
            log.warning("topics of transactions that end are unknown, and no controller answers: %s", error)
        self._plan.revision_known(revision, self._clock.monotonic_ms())
        self._pump()

    def _schedule(self) -> None:
        due_ms = self._plan.next_due_ms()
        if due_ms is None or (self._timer is not None and self._timer_at_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = due_ms
        self._timer = self._tasks.start(self._wake_at(due_ms), name="markers-timer")

    async def _wake_at(self, due_ms: float) -> None:
        await self._clock.sleep_ms(due_ms - self._clock.monotonic_ms())
        self._timer = None
        self._pump()
