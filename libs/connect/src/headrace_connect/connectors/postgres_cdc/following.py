"""The loop of the connector: the stream of changes, and beside it the rows of tables, as chunks with positions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

from headrace_common.runtime.clock import give_way
from headrace_connect.connectors.postgres_cdc.collecting import Collector, Group
from headrace_connect.connectors.postgres_cdc.keys import keys_of
from headrace_connect.connectors.postgres_cdc.limits import (
    BATCH_BYTES,
    FRAMES_MAX,
    LOOK_MS,
    PAGE,
    PAUSE_MS,
    QUIET_MS,
)
from headrace_connect.connectors.postgres_cdc.lingering import Lingering
from headrace_connect.connectors.postgres_cdc.parts import Parts
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.rereading import AGAIN_PREFIX, wanted_tables
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.table_rows import TableRows
from headrace_connect.core.changes import Piece, Signal, piece_of
from headrace_connect.core.snapshot import MARK_PREFIX, EmitChunk, Mark, MarkSeen, Streamed
from headrace_connect.plugin import Chunk


@dataclass(frozen=True, slots=True)
class Taken:
    """Changes that become a chunk when what they lack is read."""

    group: Group
    place: Place
    drained: bool = False


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
        self._recorder = parts.recorder
        self._reselector = parts.reselector
        self._heart = parts.heart
        self._retained = parts.retained
        self._clock = parts.clock
        self._target = target
        self._caught_up = False
        self._reached = 0
        """All below is read, as far as it was there when reading began."""
        self._reached_ms = parts.clock.monotonic_ms()
        self._collector = Collector(place, parts.recorder.wants, settings.max_batch_size)
        self._rows = TableRows(settings, parts, self._collector)
        self._bytes = 0
        """That were handled since the last flush."""
        self._lingering = Lingering()
        self._given = place
        """The last place that was given with a chunk."""
        self._told = False
        """The last chunk was drained."""
        self._moved_ms = parts.clock.monotonic_ms()
        self._asked_ms = self._moved_ms - PAUSE_MS

    async def chunks(self) -> AsyncIterator[Chunk]:
        """What ``Source.read`` gives."""
        # The place itself is committed first: a slot that is lost from now on is noticed.
        yield self._give(self._recorder.record_nothing(self._collector.place))
        for chunk in self._rows.apply(self._rows.add_tables(self._publisher.tables)):
            yield self._give(chunk)
        while True:
            frames = self._replication.take(FRAMES_MAX)
            for lsn, data in frames:
                for taken in self._handle(lsn, data):
                    async for chunk in self._chunks_of(taken):
                        yield chunk
            is_empty = self._replication.is_empty
            if is_empty and self._lingers_ms() <= 0:
                for taken in self._settle():
                    async for chunk in self._chunks_of(taken):
                        yield chunk
            await self._heart.beat()
            await self._retained.look()
            worked = await self._rows.work()
            for chunk in self._rows.apply(worked or ()):
                yield self._give(chunk)
            if worked is not None or not is_empty:
                await give_way()
                continue
            for chunk in self._rest():
                yield self._give(chunk)
            await self._replication.wait(self._lingers_ms() if self._waits else self._idle_ms())

    async def _chunks_of(self, taken: Taken | Chunk) -> AsyncIterator[Chunk]:
        if isinstance(taken, Chunk):
            yield self._give(taken)
        elif self._reselector is None:
            yield self._give(self._chunk_of(taken, taken.group, taken.place))
        else:
            async for group, place in self._reselector.fill(taken.group, taken.place):
                yield self._give(self._chunk_of(taken, group, place))

    def _chunk_of(self, taken: Taken, group: Group, place: Place) -> Chunk:
        chunk = self._recorder.record_changes(group, place)
        return replace(chunk, drained=True) if taken.drained and place is taken.place else chunk

    def confirm(self, lsn: int) -> None:
        """All below is committed."""
        held = self._assembler.held_lsn
        self._replication.confirm(lsn if held is None else min(lsn, held))

    # --- the stream ------------------------------------------------------------------------------------------------

    def _handle(self, lsn: int, data: bytes) -> Iterator[Taken | Chunk]:
        for item in self._assembler.handle(lsn, data):
            match item:
                case Piece():
                    if self._rows.keys:
                        self._rows.handle(Streamed(item.transaction.xid, keys_of(item.changes, self._rows.keys)))
                    for group, place in self._collector.add(item):
                        yield Taken(group, place)
                case Signal(message) if message.prefix == MARK_PREFIX:
                    mark = Mark.decode(message.content)
                    if mark is not None:
                        yield from self._pass(mark, message.lsn)
                case Signal(message) if message.prefix == AGAIN_PREFIX:
                    yield from self._rows.apply(self._rows.read_again(wanted_tables(message.content, self._settings)))
                case Signal(message) if self._settings.captures_messages(message.prefix):
                    for group, place in self._collector.add(piece_of(message, self._clock.now_ms() * 1_000)):
                        yield Taken(group, place)
        self._bytes += len(data)
        if self._waits and not self._lingering.has_begun:
            self._lingering.begin(self._clock.monotonic_ms())
        if self._collector.is_full or self._bytes >= BATCH_BYTES:
            yield from self._flush()

    def _pass(self, mark: Mark, lsn: int) -> Iterator[Taken | Chunk]:
        effects = self._rows.handle(MarkSeen(mark))
        if any(isinstance(effect, EmitChunk) for effect in effects):
            yield from self._flush()
            self._collector.skip_to(lsn)
        yield from self._rows.apply(effects)

    def _flush(self) -> Iterator[Taken]:
        self._bytes = 0
        self._lingering.end(self._clock.monotonic_ms())
        for group, place in self._collector.flush():
            yield Taken(group, place)

    @property
    def _waits(self) -> bool:
        """Changes have come that are not given yet."""
        return not self._collector.is_empty

    def _lingers_ms(self) -> float:
        return self._lingering.left_ms(self._clock.monotonic_ms(), caught_up=self._caught_up)

    def _settle(self) -> Iterator[Taken]:
        """There is nothing more to take for now: what waits is given."""
        last: Taken | None = None
        for taken in self._flush():
            if last is not None:
                yield last
            last = taken
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
        return self._caught_up and self._rows.idle

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
        if not self._caught_up or self._rows.has_work:
            return PAUSE_MS
        since_ms = self._clock.monotonic_ms() - self._moved_ms
        return self._heart.wait_ms(max(1.0, min(self._settings.heartbeat_interval_ms - since_ms, LOOK_MS)))
