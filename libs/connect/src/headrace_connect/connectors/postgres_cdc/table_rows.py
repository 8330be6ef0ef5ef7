"""The rows of tables that are read beside the stream: which are read, and what the database is asked for them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from headrace_connect.connectors.postgres_cdc.collecting import Collector
from headrace_connect.connectors.postgres_cdc.copying import Busy
from headrace_connect.connectors.postgres_cdc.limits import BUSY_MS, LOOK_MS, PAUSE_MS, TELL_MS
from headrace_connect.connectors.postgres_cdc.parts import Parts
from headrace_connect.connectors.postgres_cdc.position import Rows
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.tables import Table
from headrace_connect.core import events
from headrace_connect.core.snapshot import (
    DropChunk,
    Effect,
    EmitChunk,
    Event,
    ReadChunk,
    ReadSnapshot,
    TableAdded,
    TableRemoved,
    WriteMark,
)
from headrace_connect.plugin import Chunk

_log: Final = logging.getLogger(__name__)


class TableRows:
    """Of one reading. What it emits stands in the stream where its collector is."""

    def __init__(self, settings: SourceSettings, parts: Parts, collector: Collector) -> None:
        self._settings = settings
        self._publisher = parts.publisher
        self._copier = parts.copier
        self._recorder = parts.recorder
        self._snapshots = parts.snapshots
        self._clock = parts.clock
        self._notify = parts.notify
        self._collector = collector
        self._todo: deque[ReadSnapshot | WriteMark | ReadChunk] = deque()
        self._not_before_ms = 0.0
        """When ``_todo`` goes on."""
        self.keys: dict[int, tuple[str, ...]] = {}
        """Of the tables whose rows are being read, or will be."""
        self._looked_ms = self._waits_ms = parts.clock.monotonic_ms()

    @property
    def idle(self) -> bool:
        """All rows are read."""
        return self._snapshots.idle

    @property
    def has_work(self) -> bool:
        """The database has to be asked something."""
        return bool(self._todo)

    def handle(self, event: Event) -> list[Effect]:
        """What the stream tells."""
        return self._snapshots.handle(event)

    def add_tables(self, tables: Sequence[Table]) -> list[Effect]:
        """Those whose rows have to be read: first the one that was being read, then by name."""
        place, effects = self._collector.place, list[Effect]()
        wanted = [table for table in tables if self._reads(table)]
        rows = place.rows
        for table in sorted(wanted, key=lambda table: rows is None or table.oid != rows.table):
            if table.oid not in self.keys:
                self.keys[table.oid] = table.key
                goes_on = rows is not None and rows.table == table.oid and rows.key == table.key
                after = rows.after if rows is not None and goes_on else None
                effects += self._snapshots.handle(TableAdded(str(table.oid), after))
        return effects

    def _reads(self, table: Table) -> bool:
        place = self._collector.place
        if not table.readable or table.oid in place.read:
            return False
        return table.oid in place.wanted or self._settings.reads_rows(table.schema, table.name)

    def read_again(self, names: Collection[str]) -> list[Effect]:
        """Tables that somebody wants to be read from their first row on, whatever of them was read."""
        tables = [table for table in self._publisher.tables if str(table) in names and table.readable]
        oids = frozenset(table.oid for table in tables)
        place, effects = self._collector.place, list[Effect]()
        rows = None if place.rows is not None and place.rows.table in oids else place.rows
        self._collector.place = replace(place, read=place.read - oids, wanted=place.wanted | oids, rows=rows)
        for table in tables:
            self._tell(table, "are read again")
            self.keys[table.oid] = table.key
            effects += self._snapshots.handle(TableAdded(str(table.oid)))
        return effects

    def _tell(self, table: Table, what: str) -> None:
        self._notify(events.Event(events.SNAPSHOT, f"all rows of {table} {what}", {"table": str(table)}))

    def _forget(self, oid: int) -> None:
        self.keys.pop(oid, None)
        place = self._collector.place
        if oid in place.wanted:
            self._collector.place = replace(place, wanted=place.wanted - {oid})

    def apply(self, effects: Iterable[Effect]) -> Iterator[Chunk]:
        """Do what can be done at once; the rest waits its turn."""
        for effect in effects:
            match effect:
                case EmitChunk():
                    yield self._emit(effect)
                case DropChunk(chunk):
                    self._copier.drop(chunk)
                case ReadSnapshot() | WriteMark() | ReadChunk():
                    if isinstance(effect, ReadSnapshot) and effect.pause:
                        self._not_before_ms = self._clock.monotonic_ms() + PAUSE_MS
                    self._todo.append(effect)

    def _emit(self, effect: EmitChunk) -> Chunk:
        read = self._copier.take(effect.chunk)
        oid, place = read.table.oid, self._collector.place
        if effect.done:
            self.keys.pop(oid, None)
            self._notify(
                events.Event(events.SNAPSHOT, f"all rows of {read.table} are read", {"table": str(read.table)})
            )
            place = replace(place, read=place.read | {oid}, rows=None, wanted=place.wanted - {oid})
        else:
            place = replace(place, rows=Rows(oid, read.table.key, effect.after))
        self._collector.place = place
        if not effect.places:
            return self._recorder.record_nothing(place)
        columns = read.columns
        if len(effect.places) < len(columns[0]):
            columns = [column.take(pa.array(effect.places)) for column in columns]
        return self._recorder.record_rows(read.relation, read.types, columns, place.lsn, place)

    async def work(self) -> list[Effect] | None:
        """One thing that the database has to be asked, and what follows from it; None: there was none."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= max(LOOK_MS, self._settings.heartbeat_interval_ms):
            self._looked_ms = now_ms
            return await self._look()
        if not self._todo or now_ms < self._not_before_ms:
            return None
        try:
            event = await self._copier.do(self._todo[0])
        except Busy as why:
            _log.warning("rows of a table are read later: %s", why.__cause__)
            self._not_before_ms = now_ms + BUSY_MS
            return None
        self._todo.popleft()
        self._tell_waits(now_ms)
        if isinstance(event, TableRemoved):
            self._forget(int(event.table))
        return [] if event is None else self._snapshots.handle(event)

    def _tell_waits(self, now_ms: float) -> None:
        waits_for = self._snapshots.waits_for
        if not waits_for:
            self._waits_ms = now_ms
        elif now_ms - self._waits_ms > TELL_MS:
            self._waits_ms = now_ms
            open_ = sorted({xid for xids in waits_for.values() for xid in xids})
            _log.warning("rows are read when transactions have ended that are open: %s", open_[:10])

    async def _look(self) -> list[Effect]:
        """New tables are published, and their rows are read; what waits for tables that are not there is forgotten."""
        tables = await self._publisher.look()
        known = {table.oid for table in tables}
        effects: list[Effect] = []
        for oid in [oid for oid in self.keys if oid not in known]:
            self._forget(oid)
            effects += self._snapshots.handle(TableRemoved(str(oid)))
        return effects + self.add_tables(tables)
