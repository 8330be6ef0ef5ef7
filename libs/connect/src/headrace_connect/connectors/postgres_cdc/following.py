"""The loop of the connector: the stream of changes, and beside it the rows of tables, as chunks with positions."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from headrace_common.runtime.clock import give_way
from headrace_connect.connectors.postgres_cdc.collecting import Collector
from headrace_connect.connectors.postgres_cdc.copying import Busy
from headrace_connect.connectors.postgres_cdc.keys import keys_of
from headrace_connect.connectors.postgres_cdc.limits import (
    BACKLOG_MS,
    BATCH_BYTES,
    BUSY_MS,
    FRAMES_MAX,
    LINGER_MS,
    LOOK_MS,
    PAGE,
    PAUSE_MS,
    QUIET_MS,
    TELL_MS,
)
from headrace_connect.connectors.postgres_cdc.parts import Parts
from headrace_connect.connectors.postgres_cdc.position import Place, Rows
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.tables import Table
from headrace_connect.core.changes import Piece, Signal
from headrace_connect.core.snapshot import (
    MARK_PREFIX,
    DropChunk,
    Effect,
    EmitChunk,
    Mark,
    MarkSeen,
    ReadChunk,
    ReadSnapshot,
    Streamed,
    TableAdded,
    TableRemoved,
    WriteMark,
)
from headrace_connect.plugin import Chunk

_log: Final = logging.getLogger(__name__)


class Follower:
    """One reading, from a place on, for good."""

    def __init__(self, settings: SourceSettings, parts: Parts, place: Place, target: int) -> None:
        """
        Args:
            target: the end of the WAL when reading began: what was there then is read when all below it is.
        """
        self._settings = settings
        self._replication = parts.replication
        self._assembler = parts.assembler
        self._publisher = parts.publisher
        self._copier = parts.copier
        self._recorder = parts.recorder
        self._snapshots = parts.snapshots
        self._clock = parts.clock
        self._target = target
        self._caught_up = False
        self._reached = 0
        """All below is read, as far as it was there when reading began."""
        self._reached_ms = parts.clock.monotonic_ms()
        self._collector = Collector(place, parts.recorder.wants, settings.max_batch_size)
        self._bytes = 0
        """That were handled since the last flush."""
        self._since_ms: float | None = None
        """When the first of what waits came; None: nothing waits."""
        self._given = place
        """The last place that was given with a chunk."""
        self._told = False
        """The last chunk was drained."""
        self._todo: deque[ReadSnapshot | WriteMark | ReadChunk] = deque()
        self._not_before_ms = 0.0
        """When ``_todo`` goes on."""
        self._keys: dict[int, tuple[str, ...]] = {}
        """Of the tables whose rows are being read, or will be."""
        self._moved_ms = self._looked_ms = self._waits_ms = parts.clock.monotonic_ms()
        self._asked_ms = self._moved_ms - PAUSE_MS

    async def chunks(self) -> AsyncIterator[Chunk]:
        """What ``Source.read`` gives."""
        # The place itself is committed first: a slot that is lost from now on is noticed.
        yield self._give(self._recorder.record_nothing(self._collector.place))
        for chunk in self._apply(self._add_tables(self._publisher.tables)):
            yield self._give(chunk)
        while True:
            frames = self._replication.take(FRAMES_MAX)
            for lsn, data in frames:
                for chunk in self._handle(lsn, data):
                    yield self._give(chunk)
            is_empty = self._replication.is_empty
            if is_empty and self._lingers_ms() <= 0:
                for chunk in self._settle():
                    yield self._give(chunk)
            worked = await self._work()
            for chunk in self._apply(worked or ()):
                yield self._give(chunk)
            if worked is not None or not is_empty:
                await give_way()
                continue
            for chunk in self._rest():
                yield self._give(chunk)
            await self._replication.wait(self._lingers_ms() if self._waits else self._idle_ms())

    def confirm(self, lsn: int) -> None:
        """All below is committed."""
        held = self._assembler.held_lsn
        self._replication.confirm(lsn if held is None else min(lsn, held))

    # --- the stream ------------------------------------------------------------------------------------------------

    def _handle(self, lsn: int, data: bytes) -> Iterator[Chunk]:
        for item in self._assembler.handle(lsn, data):
            match item:
                case Piece():
                    if self._keys:
                        self._snapshots.handle(Streamed(item.transaction.xid, keys_of(item.changes, self._keys)))
                    for group, place in self._collector.add(item):
                        yield self._recorder.record_changes(group, place)
                case Signal(message) if message.prefix == MARK_PREFIX:
                    mark = Mark.decode(message.content)
                    if mark is not None:
                        yield from self._pass(mark, message.lsn)
        self._bytes += len(data)
        if self._since_ms is None and self._waits:
            self._since_ms = self._clock.monotonic_ms()
        if self._collector.is_full or self._bytes >= BATCH_BYTES:
            yield from self._flush()

    def _pass(self, mark: Mark, lsn: int) -> Iterator[Chunk]:
        effects = self._snapshots.handle(MarkSeen(mark))
        if any(isinstance(effect, EmitChunk) for effect in effects):
            yield from self._flush()
            self._collector.skip_to(lsn)
        yield from self._apply(effects)

    def _flush(self) -> Iterator[Chunk]:
        self._bytes, self._since_ms = 0, None
        for group, place in self._collector.flush():
            yield self._recorder.record_changes(group, place)

    @property
    def _waits(self) -> bool:
        """Changes have come that are not given yet."""
        return not self._collector.is_empty

    def _lingers_ms(self) -> float:
        """How long what waits goes on to wait, so that more is converted together; 0 or less: no longer."""
        if self._since_ms is None:
            return 0
        return self._since_ms + (LINGER_MS if self._caught_up else BACKLOG_MS) - self._clock.monotonic_ms()

    def _settle(self) -> Iterator[Chunk]:
        """There is nothing more to take for now: what waits is given."""
        last: Chunk | None = None
        for chunk in self._flush():
            if last is not None:
                yield last
            last = chunk
        self._notice_end()
        if last is not None:
            yield replace(last, drained=self._is_drained)

    def _notice_end(self) -> None:
        """Whether all is read that was there when reading began."""
        if self._caught_up or not self._assembler.at_boundary:
            return
        reached, now_ms = max(self._replication.received, self._collector.place.lsn), self._clock.monotonic_ms()
        if reached > self._reached:
            self._reached, self._reached_ms = reached, now_ms
        is_quiet = now_ms - self._reached_ms > QUIET_MS and reached + PAGE >= self._target
        self._caught_up = reached >= self._target or is_quiet

    @property
    def _is_drained(self) -> bool:
        return self._caught_up and self._snapshots.idle

    # --- rows of tables --------------------------------------------------------------------------------------------

    def _add_tables(self, tables: Sequence[Table]) -> list[Effect]:
        """Those whose rows have to be read: first the one that was being read, then by name."""
        place, effects = self._collector.place, list[Effect]()
        wanted = [table for table in tables if table.oid not in place.read and self._reads(table)]
        rows = place.rows
        for table in sorted(wanted, key=lambda table: rows is None or table.oid != rows.table):
            if table.oid not in self._keys:
                self._keys[table.oid] = table.key
                goes_on = rows is not None and rows.table == table.oid and rows.key == table.key
                after = rows.after if rows is not None and goes_on else None
                effects += self._snapshots.handle(TableAdded(str(table.oid), after))
        return effects

    def _reads(self, table: Table) -> bool:
        return table.readable and self._settings.reads_rows(table.schema, table.name)

    def _apply(self, effects: Iterable[Effect]) -> Iterator[Chunk]:
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
            self._keys.pop(oid, None)
            place = replace(place, read=place.read | {oid}, rows=None)
        else:
            place = replace(place, rows=Rows(oid, read.table.key, effect.after))
        self._collector.place = place
        rows = [read.rows[at] for at in effect.places]
        if not rows:
            return self._recorder.record_nothing(place)
        return self._recorder.record_rows(read.relation, read.types, rows, place.lsn, place)

    async def _work(self) -> list[Effect] | None:
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
            self._keys.pop(int(event.table), None)
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
        for oid in [oid for oid in self._keys if oid not in known]:
            del self._keys[oid]
            effects += self._snapshots.handle(TableRemoved(str(oid)))
        return effects + self._add_tables(tables)

    # --- nothing to do ---------------------------------------------------------------------------------------------

    def _rest(self) -> Iterator[Chunk]:
        """The place moves with the server while nothing is captured; and it is told that there is nothing more."""
        now_ms = self._clock.monotonic_ms()
        if not self._caught_up and now_ms - self._asked_ms >= PAUSE_MS:
            self._replication.ask()
            self._asked_ms = now_ms
        if self._waits:
            return
        tells = self._is_drained and not self._told
        if not tells and now_ms - self._moved_ms < self._settings.heartbeat_interval_ms:
            return
        self._moved_ms = now_ms
        if self._assembler.at_boundary:
            held = self._assembler.held_lsn
            received = self._replication.received
            self._collector.skip_to(received if held is None else min(received, held))
        if tells or self._collector.place != self._given:
            yield self._recorder.record_nothing(self._collector.place, drained=self._is_drained)

    def _give(self, chunk: Chunk) -> Chunk:
        self._given, self._told = self._collector.place, chunk.drained
        return chunk

    def _idle_ms(self) -> float:
        if not self._caught_up or self._todo:
            return PAUSE_MS
        since_ms = self._clock.monotonic_ms() - self._moved_ms
        return max(1.0, min(self._settings.heartbeat_interval_ms - since_ms, LOOK_MS))
