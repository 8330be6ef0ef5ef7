"""One worker: its parts, put together over the ports, and how it begins and leaves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect_worker.core.placing import LEADER
from headrace_connect_worker.engine.commanding import Commanding
from headrace_connect_worker.engine.events import Events
from headrace_connect_worker.engine.following import Following
from headrace_connect_worker.engine.leading import Leading, LeadingLimits
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.engine.reporting import Reporting
from headrace_connect_worker.engine.working import Working
from headrace_connect_worker.ports import ConfigLog, EventLog, Hosts, Membership, OffsetStore, StatusLog

FLUSH_MS: Final = 3_000.0


@dataclass(frozen=True, slots=True)
class Outside:
    """What a worker needs."""

    configs: ConfigLog
    statuses: StatusLog
    events: EventLog
    offsets: OffsetStore
    membership: Membership
    hosts: Hosts
    clock: Clock


class ConnectWorker:
    """See the module's text. ``herd`` is what REST gets; it answers from ``begin`` on."""

    def __init__(self, outside: Outside, place: Place, limits: LeadingLimits | None = None) -> None:
        """
        Args:
            place: known before ``begin``.
        """
        self._outside = outside
        self._place = place
        clock = outside.clock
        self.following = Following(outside.configs, outside.statuses)
        self.reporting = Reporting(outside.statuses, self.following, clock)
        self.events = Events(outside.events, clock, place)
        self.leading = Leading(outside.configs, self.following, self.reporting, self.events, clock, place, limits)
        self.working = Working(
            outside.membership,
            outside.hosts,
            self.following,
            self.reporting,
            self.leading,
            self.events,
            clock,
            place,
        )
        self.herd = Commanding(
            self.following, self.leading, self.reporting, outside.offsets, outside.hosts, self.events, place
        )

    def begin(self, tasks: TaskRunner) -> None:
        """Follow, join, and do what comes; what fails for good is the runner's failure."""
        assert self._place.url, "it listens"
        tasks.start(self.following.follow_configs(), name="config topic")
        tasks.start(self.following.follow_statuses(), name="status topic")
        tasks.start(self.reporting.run(), name="statuses")
        tasks.start(self.events.follow(), name="events")
        tasks.start(self.events.run(), name="write events")
        tasks.start(self.working.hear(), name="hosts")
        tasks.start(self.working.declare(), name="declaration")
        tasks.start(self.working.share(tasks), name="work group")

    @property
    def leads(self) -> bool:
        """Whether it writes the configuration; any thread may ask."""
        return LEADER in self.working.items

    async def ready(self) -> None:
        """Wait until it has read what there is."""
        await self.following.until(lambda: self.following.is_ready)

    async def leave(self, ms: float) -> None:
        """End what it has, then leave the group, which gives it to others at once; at most about so long."""
        await self.working.leave(ms)
        await asyncio.gather(self._outside.membership.close(), self.reporting.flush(FLUSH_MS))
