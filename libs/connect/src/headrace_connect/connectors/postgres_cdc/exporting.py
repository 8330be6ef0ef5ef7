"""
The rows that are there are read by ``table_snapshot``: the slot is made, its snapshot is kept, the job is started, and
the unit awaited.

The job writes rows and the connector's position as one unit. So what is committed of a task that died is either all,
and the next one goes on from the slot; or nothing, and never will be, for the next one fences the job and begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from headrace_connect.connectors.postgres_cdc.exported import Point
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.replication import Replication
from headrace_connect.connectors.postgres_cdc.session import Session
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.slots import FAILOVER_SINCE, Holder, find_slot, free_slot
from headrace_connect.connectors.postgres_cdc.tables import Table
from headrace_connect.core import events
from headrace_connect.core.jobs import Job, JobFailed
from headrace_connect.core.pgoutput import format_lsn
from headrace_connect.plugin import Source, Split
from headrace_connect.settings import Problem, invalid

LOOK_MS: Final = 5_000.0
"""How often is asked whether the unit is committed."""
_log: Final = logging.getLogger(__name__)


class Exporter:
    """Of one reading without a position."""

    def __init__(
        self, source: Source[SourceSettings], session: Session, replication: Replication, split: Split
    ) -> None:
        """
        Raises:
            InvalidConfig: there is no cluster that could have units.
        """
        if source.units is None or source.jobs is None:
            raise invalid([Problem("snapshot.engine", "snapshot.engine=spark needs a cluster, and there is none here")])
        self._settings = source.settings
        self._session = session
        self._replication = replication
        self._units = source.units
        self._jobs = source.jobs
        self._notify = source.notify
        self._split = split

    async def place(self, tables: Collection[Table], holder: Holder) -> Place:
        """
        Where to go on: rows of the tables and all before it are in their topics.

        Raises:
            RetriableError: the snapshot is lost; all begins anew.
            JobFailed: the job cannot be started, or has ended without the unit; the same.
            HeadraceError: the cluster does not answer; the same.
        """
        await self._units.fence()
        found = await self._find()
        if found is not None:
            return found
        await self._drop_slot(holder)
        system, _ = await self._replication.identify()
        failover = self._settings.slot_failover and self._session.version >= FAILOVER_SINCE
        snapshot, lsn = await self._replication.export(self._settings.slot, failover=failover)
        await self._units.fence()  # a job that came between looks at the slot behind this, and finds another one
        if not any(table.readable and self._settings.reads_rows(table.schema, table.name) for table in tables):
            return Place(system, lsn)
        point = Point(snapshot, system, format_lsn(lsn), self._units.owner, self._units.offset_topic, self._split.id)
        async with self._running(Job("table_snapshot", ("--point", point.to_json()))) as job:
            found = await self._await(job)
        _log.info("the tables of %s are in their topics; changes follow", self._settings.name)
        return found

    @asynccontextmanager
    async def _running(self, job: Job) -> AsyncIterator[Job]:
        """However the block ends, the job is of no use behind it: it has done its work, or the snapshot is lost."""
        try:
            _log.warning(
                "the tables of %s are read by Spark, from a snapshot that this task keeps open; %s",
                self._settings.name,
                await self._jobs.start(job),
            )
            yield job
        finally:
            await self._jobs.end(job)

    async def _await(self, job: Job) -> Place:
        said = ""
        while True:
            await self._replication.check_held(LOOK_MS)
            state = await self._jobs.look(job)  # before the position: one that has ended well has committed it
            found = await self._find()
            if found is not None:
                return found
            if state is None:
                continue
            if state.ended:
                raise JobFailed(f"{state.text}, and the tables are not in their topics; it begins anew")
            if state.text != said:
                said = state.text
                self._notify(events.Event(events.SNAPSHOT, said))

    async def _find(self) -> Place | None:
        position = await self._units.position(self._split)
        return None if position is None else Place.from_json(position)

    async def _drop_slot(self, holder: Holder) -> None:
        """One that is there is of a task that died: nothing was committed of what it would send."""
        name = self._settings.slot
        slot = await find_slot(self._session, name)
        if slot is None:
            return
        _log.warning("the slot %s is made anew: nothing that follows it was committed", name)
        await free_slot(self._session, slot, name, holder)
        await self._session.fetch("select pg_drop_replication_slot($1)", name)
