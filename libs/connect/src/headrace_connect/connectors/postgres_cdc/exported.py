"""
The tables of a snapshot that a task keeps open, in ranges that are read side by side. For the Spark job
``table_snapshot``.

A range is one of pages, by ``ctid``: it needs no key, and the server reads nothing twice. Pages stay what they are as
long as no table is rewritten; who plans the ranges holds locks against that until all are read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import Clock
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.recording import Recorder
from headrace_connect.connectors.postgres_cdc.session import NAME, TEXTS, Session, connect, quote
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.slots import find_slot
from headrace_connect.connectors.postgres_cdc.tables import Table, Types, describe, find_tables
from headrace_connect.core.pgoutput import format_lsn, parse_lsn
from headrace_connect.core.pgoutput.messages import Relation
from headrace_connect.plugin import Chunk
from headrace_connect.settings import Problem, invalid

FETCH_ROWS: Final = 5_000
"""That become a chunk."""
_OPTIONS: Final = {**TEXTS, "idle_in_transaction_session_timeout": "0", "lock_timeout": "60000"}
_PARTS: Final = "(select $1::oid union select relid::oid from pg_partition_tree($1::oid::regclass))"
"""A table, and what it is parted into."""
_SIZE: Final = f"""
select coalesce(max(pg_relation_size(c.oid)), 0)::int8 / current_setting('block_size')::int8
from pg_class c where c.oid in {_PARTS} and c.relkind = 'r'
"""
"""Pages of the largest part."""
_REWRITTEN: Final = f"""
select c.oid::regclass::text from pg_class c
where c.oid in {_PARTS} and c.relkind = 'r' and c.relfilenode is distinct from pg_relation_filenode(c.oid)
"""
"""The transaction sees the file that a table had at the snapshot; the function, the one that it has."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a slot begins, and how to read the tables as they were there."""

    snapshot: str
    """For SET TRANSACTION SNAPSHOT."""
    system: str
    """The server, as IDENTIFY_SYSTEM names it."""
    lsn: str
    """Where the slot begins."""
    owner: str
    """Of the unit."""
    offset_topic: str
    split: str

    def to_json(self) -> str:
        """As it stands in a command."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Point:
        """
        Raises:
            ValueError: it is none.
        """
        try:
            return cls(**{name: str(value) for name, value in json.loads(text).items()})
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"it is none that the connector has logged: {error}") from error


@dataclass(frozen=True, slots=True)
class Range:
    """Pages of a table; travels pickled."""

    table: Table
    relation: Relation
    types: Types
    first: int
    end: int | None
    """None: as far as there are any."""


async def open_at(settings: SourceSettings, point: Point) -> Session:
    """
    A session in a transaction that sees what was there at the point.

    Raises:
        RetriableError: the server is away.
        InvalidConfig: the snapshot is not kept any more.
    """
    session = Session(await connect(settings, NAME, _OPTIONS))
    try:
        await session.fetch("begin isolation level repeatable read read only")
        await session.fetch(f"set transaction snapshot '{point.snapshot}'")
    except InvalidConfig as error:
        await session.close()
        raise _old("the snapshot is not kept any more: the connector's task that kept it has ended") from error
    except BaseException:
        await session.close()
        raise
    return session


async def plan_ranges(session: Session, settings: SourceSettings, point: Point, pages: int) -> list[Range]:
    """
    All tables whose rows are wanted. They are locked until the session's transaction ends: nobody rewrites them.

    Args:
        session: of ``open_at``.
        pages: of a range.

    Raises:
        RetriableError: a table is locked by others, or the server is away.
        InvalidConfig: the slot is another one, or a table was rewritten or renamed since: the connector has to begin
            anew.
    """
    slot = await find_slot(session, settings.slot)
    if slot is None or slot.confirmed != parse_lsn(point.lsn):
        at = "there is none" if slot is None else f"it is at {format_lsn(slot.confirmed)}"
        raise _old(f"the slot {settings.slot} does not begin at {point.lsn}: {at}")
    found: list[Range] = []
    for table in await find_tables(session, settings.publication):
        wanted = settings.captures(table.schema, table.name) and settings.reads_rows(table.schema, table.name)
        if not (wanted and table.published and table.readable):
            continue
        await _lock(session, table)
        rewritten = await session.fetch(_REWRITTEN, table.oid)
        if rewritten:
            raise _old(f"the table {rewritten[0][0]} was rewritten since the snapshot")
        relation, types = await describe(session, table)
        ((size,),) = await session.fetch(_SIZE, table.oid)
        starts = range(0, max(size, 1), pages)
        found += [
            Range(table, relation, types, start, None if start == starts[-1] else start + pages) for start in starts
        ]
    return found


async def _lock(session: Session, table: Table) -> None:
    await _check_name(session, table)
    await session.fetch(f"lock table {quote(table.schema, table.name)} in access share mode")
    await _check_name(session, table)  # it could change until then


async def _check_name(session: Session, table: Table) -> None:
    """Names are those of now, whatever the transaction sees: another table may have the one that this had."""
    ((named,),) = await session.fetch("select to_regclass($1)::oid::int8", quote(table.schema, table.name))
    if named != table.oid:
        raise _old(f"the table {table.schema}.{table.name} has another name since the snapshot, or is gone")


async def read_range(settings: SourceSettings, point: Point, each: Range, clock: Clock) -> AsyncIterator[Chunk]:
    """
    The rows of a range, as records that the connector would make of them; a few thousand at a time.

    Raises:
        RetriableError: the server is away, or a table is locked.
        InvalidConfig: the snapshot is not kept any more.
    """
    recorder = Recorder(settings, {}, {each.table.oid: each.table}, clock)
    place = place_of(point, ())
    session = await open_at(settings, point)
    try:
        await session.fetch(f"declare rows no scroll cursor for {_query(each)}")
        while True:
            columns = await session.fetch_columns(f"fetch {FETCH_ROWS} from rows")
            count = len(columns[0]) if columns else 0
            if count:
                yield recorder.record_rows(each.relation, each.types, columns, place.lsn, place)
            if count < FETCH_ROWS:
                return
    finally:
        await session.close()


def place_of(point: Point, read: Sequence[Range]) -> Place:
    """The position of who has read these ranges, and no change behind the point."""
    return Place(point.system, parse_lsn(point.lsn), read=frozenset(each.table.oid for each in read))


def _query(each: Range) -> str:
    columns = ", ".join(quote(column.name) for column in each.relation.columns)
    conditions = [f"({each.table.row_filter})"] if each.table.row_filter else []
    conditions += [f"ctid >= '({each.first},0)'"] if each.first else []
    conditions += [f"ctid < '({each.end},0)'"] if each.end is not None else []
    where = f" where {' and '.join(conditions)}" if conditions else ""
    return f"select {columns} from {quote(each.table.schema, each.table.name)}{where}"


def _old(what: str) -> Exception:
    text = f"{what}; restart the connector, unless it has begun anew since, and run the command that it has logged last"
    return invalid([Problem("", text)])
