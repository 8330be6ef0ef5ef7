"""The source ``postgres-cdc``: changes of tables, and the rows that were there before, each once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import Clock, SystemClock, limit_s
from headrace_connect.connectors.postgres_cdc.beating import Heart
from headrace_connect.connectors.postgres_cdc.checks import find_problems
from headrace_connect.connectors.postgres_cdc.copying import Copier
from headrace_connect.connectors.postgres_cdc.exporting import Exporter
from headrace_connect.connectors.postgres_cdc.facts import find_facts
from headrace_connect.connectors.postgres_cdc.following import Follower
from headrace_connect.connectors.postgres_cdc.parts import Parts
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.previewing import preview_rows
from headrace_connect.connectors.postgres_cdc.publishing import Publisher
from headrace_connect.connectors.postgres_cdc.recording import Recorder
from headrace_connect.connectors.postgres_cdc.replication import PROTOCOL, Replication
from headrace_connect.connectors.postgres_cdc.rereading import ask
from headrace_connect.connectors.postgres_cdc.reselecting import Reselector
from headrace_connect.connectors.postgres_cdc.retaining import Retained
from headrace_connect.connectors.postgres_cdc.session import Session, open_session
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.slots import Holder, create_slot, find_slot, free_slot, now_us
from headrace_connect.connectors.postgres_cdc.spool import DiskSpool
from headrace_connect.connectors.postgres_cdc.starting import Begin, Lost, Server, decide, decide_anew
from headrace_connect.core.assembling import Assembler
from headrace_connect.core.snapshot import Snapshots
from headrace_connect.plugin import Chunk, Position, RetriableError, Source, Split
from headrace_connect.settings import Problem, invalid

_ASK_S: Final = 700.0
"""Longer than any ``offset.flush.interval.ms``."""
_log: Final = logging.getLogger(__name__)


class PostgresSource(Source[SourceSettings]):
    """One slot of one database: a split, for the order of commits is that of all its tables."""

    clock: Clock = SystemClock()

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._follower: Follower | None = None
        self._safe = 0
        """The greatest LSN that was committed by this instance, or before it."""
        self._committed = asyncio.Event()
        self._started: int | None = None

    async def start(self) -> None:
        """See ``Connector``: what a job has prepared and not committed would hold up who asks for the position."""
        if self.settings.snapshot_engine == "spark" and self.units is not None:
            await self.units.fence()

    async def check(self) -> Sequence[str]:
        """See ``Connector``."""
        try:
            session = await open_session(self.settings)
        except (RetriableError, InvalidConfig) as error:
            return [f"database.hostname: {error}; check host, port, database, user, password and TLS"]
        try:
            facts = await find_facts(session, self.settings)
        except (RetriableError, InvalidConfig) as error:
            return [f"database.user: {error}"]
        finally:
            await session.close()
        return [problem.message for problem in find_problems(facts, self.settings)]

    async def read_again(self, tables: Sequence[str]) -> Sequence[str]:
        """See ``Source``."""
        session = await open_session(self.settings)
        try:
            return await ask(session, self.settings, tables)
        finally:
            await session.close()

    async def preview(self, split: Split) -> AsyncIterator[Chunk]:
        """See ``Source``: rows that are there, without a slot or a publication."""
        async for chunk in preview_rows(self.settings, self.clock):
            yield chunk

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        """
        See ``Source``.

        Raises:
            InvalidConfig: ``after`` is no position of this connector, the server is not set up, or changes are lost.
        """
        place = _place_of(after)
        async with AsyncExitStack() as stack:
            session = await open_session(self.settings)
            stack.push_async_callback(session.close)
            publisher = Publisher(session, self.settings)
            await publisher.open(first=place is None)
            if self._started is None:
                self._started = await now_us(session)
            holder = Holder.of(self.settings.name, self._started)
            replication = await Replication.open(self.settings, str(holder), self.clock)
            stack.push_async_callback(replication.close)
            if place is None and self.settings.snapshot_engine == "spark":
                exporter = Exporter(self, session, replication, split)
                place = await exporter.place(publisher.tables, holder)
            server = Server(*await replication.identify())
            begin = await self._begin(session, place, server)
            if isinstance(begin, Lost):
                assert place is not None, "without a position nothing is lost"
                # A task that another one has followed finds the slot moved; that it may not commit says so.
                self._committed.clear()
                yield Chunk([], replace(place, asked=place.asked + 1).to_json(), boundary=True)
                async with limit_s(_ASK_S):
                    await self._committed.wait()
                raise _lost(begin.reason, self.settings)
            await self._open(stack, session, publisher, replication, holder, begin.place)
            assert self._follower is not None, "it was opened"
            async for chunk in self._follower.chunks():
                yield chunk

    async def committed(self, split: Split, position: Position) -> None:
        """See ``Source``: the slot moves; it is never before what is committed."""
        self._safe = max(self._safe, Place.from_json(position).lsn)
        self._committed.set()
        if self._follower is not None:
            try:
                self._follower.confirm(self._safe)
            except RetriableError as error:
                _log.debug("the slot moves when there is a connection again: %s", error)

    async def _begin(self, session: Session, place: Place | None, server: Server) -> Begin | Lost:
        """Where to begin; the slot is made if need be."""
        name = self.settings.slot
        slot = await find_slot(session, name)
        decision = decide(place, slot, server, name)
        if isinstance(decision, Lost):
            if self.settings.on_slot_lost == "fail":
                if place is None:
                    raise _lost(decision.reason, self.settings)
                return decision
            _log.warning("%s; all tables are read again", decision.reason)
            if slot is not None and slot.is_lost:
                await session.fetch("select pg_drop_replication_slot($1)", name)
                slot = None
            decision = decide_anew(slot, server)
        if isinstance(decision, Begin):
            return decision
        await create_slot(session, self.settings)
        decision = decide_anew(await find_slot(session, name), server)
        if not isinstance(decision, Begin):
            raise RetriableError(f"the slot {name} was dropped while it was made")
        return decision

    async def _open(
        self,
        stack: AsyncExitStack,
        session: Session,
        publisher: Publisher,
        replication: Replication,
        holder: Holder,
        place: Place,
    ) -> None:
        """Begin to receive, with all that is needed to handle it."""
        settings, name = self.settings, self.settings.slot
        spool = DiskSpool(settings.spool_directory)
        stack.callback(spool.close)
        slot = await find_slot(session, name)
        if slot is not None:
            await free_slot(session, slot, name, holder)
        _, target = await replication.identify()
        await replication.start(name, settings.publication, place.lsn, slot.confirmed if slot else 0)
        assembler = Assembler(PROTOCOL, spool, piece_changes_max=settings.max_batch_size)
        generation = f"{holder.connector}-{await now_us(session)}"
        parts = Parts(
            replication,
            assembler,
            publisher,
            Copier(session, publisher.by_name, settings.snapshot_unkeyed_rows_max),
            Recorder(settings, assembler.types, publisher.by_oid, self.clock, self.notify, place.columns),
            Snapshots(generation, chunk_rows=settings.incremental_snapshot_chunk_size),
            Heart(session, settings, self.clock),
            Retained(session, settings, self.clock, self._retain),
            self.clock,
            self.notify,
            Reselector(session, publisher.by_oid) if settings.reselect_unavailable_values else None,
        )
        self._follower = Follower(settings, parts, place, target)
        stack.callback(self._close_follower)
        self._follower.confirm(self._safe)

    def _retain(self, size: int | None) -> None:
        self.retained_bytes = size

    def _close_follower(self) -> None:
        self._follower = None


def _place_of(after: Position | None) -> Place | None:
    try:
        return None if after is None else Place.from_json(after)
    except ValueError as error:
        raise invalid([Problem("", str(error))]) from error


def _lost(reason: str, settings: SourceSettings) -> InvalidConfig:
    return invalid(
        [
            Problem(
                "on.slot.lost",
                f"changes are lost: {reason}. Set on.slot.lost=resnapshot to read all tables again, or delete the "
                f"connector's offsets and drop the slot: SELECT pg_drop_replication_slot('{settings.slot}');",
            )
        ]
    )
