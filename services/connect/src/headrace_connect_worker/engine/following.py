"""What this worker has read of the config and the status topic: one task for each, and a bell for the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from headrace_connect_worker.core.herd import HerdState
from headrace_connect_worker.core.records import LeaderSaid, StatusRecord
from headrace_connect_worker.core.status import Statuses
from headrace_connect_worker.engine.bell import Bell
from headrace_connect_worker.ports import ConfigLog, StatusLog


class Following:
    """
    ``state`` may be acted upon while ``is_exact``: then it was read to the end that the log had. ``bell`` rings when it
    is so again, and with each status; the bell of a connector only when something of it was read in the config topic.
    """

    def __init__(self, configs: ConfigLog, statuses: StatusLog) -> None:
        self.state = HerdState()
        self.statuses = Statuses()
        self.bell = Bell()
        self._bells: defaultdict[str, Bell] = defaultdict(Bell)
        self._changed: set[str] = set()
        """Connectors of which something was read since the state was exact."""
        self.is_exact = False
        self.has_configs = False
        """The config topic was read to its end once."""
        self.has_statuses = False
        """The status topic was read to its end once."""
        self.on_status: Callable[[StatusRecord, bool], None] = lambda record, counts: None
        """Called with each status, and whether it counts."""
        self._configs = configs
        self._statuses = statuses

    @property
    def is_ready(self) -> bool:
        """Whether both were read to their ends once."""
        return self.has_statuses and self.has_configs

    async def follow_configs(self) -> None:
        """For good."""
        async for read in self._configs.follow():
            for offset, record in read.records:
                self.state.apply(offset, record)
                if not isinstance(record, LeaderSaid):
                    self._changed.add(record.name)
            self.is_exact = read.at_end
            if read.at_end:
                self.has_configs = True
                self._ring()

    def _ring(self) -> None:
        self.bell.ring()
        changed, self._changed = self._changed, set()
        for name in changed & self._bells.keys():
            self._bells[name].ring()

    def bell_of(self, name: str) -> Bell:
        """Of a connector; dropped with ``forget_bell``."""
        return self._bells[name]

    def forget_bell(self, name: str) -> None:
        """Nobody listens any more."""
        if name in self._bells and not self._bells[name].is_heard:
            del self._bells[name]

    async def follow_statuses(self) -> None:
        """For good."""
        async for records, at_end in self._statuses.follow():
            for record in records:
                self.on_status(record, self.statuses.apply(record))
            self.has_statuses = self.has_statuses or at_end
            if records or at_end:
                self.bell.ring()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that was read."""
        with self.bell.heard() as ear:
            while True:
                ear.clear()
                if holds():
                    return
                await ear.wait()

    async def reached(self, offset: int) -> None:
        """Wait until the record at ``offset`` was read."""
        await self.until(lambda: self.is_exact and self.state.offset >= offset)
