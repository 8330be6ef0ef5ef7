"""The tables of a database, as its catalogue has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace_connect.connectors.postgres_cdc.session import Session
from headrace_connect.core.pgoutput.messages import Column, Relation

FILTERS_SINCE: Final = 150_000
"""Publications have lists of columns and filters of rows."""
_OWN_TYPES_FROM: Final = 10_000
"""Oids of types that are not built in, of which a replication connection says what is below them."""
_KEY: Final = """array(select a.attname::text from pg_index i
    cross join lateral unnest(i.indkey::int2[]) with ordinality k(number, place)
    join pg_attribute a on a.attrelid = c.oid and a.attnum = k.number
    where i.indrelid = c.oid and i.{} and k.place <= i.indnkeyatts order by k.place)"""
_TABLES: Final = f"""
select c.oid::int8, n.nspname::text, c.relname::text, c.relreplident::text,
    {_KEY.format("indisprimary")}, {_KEY.format("indisreplident")},
    has_table_privilege(c.oid, 'SELECT') and has_schema_privilege(n.oid, 'USAGE'),
    pg_has_role(c.relowner, 'USAGE'), c.relispartition,
    p.pubname is not null, {{filters}}
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_publication_tables p on p.pubname = $1 and p.schemaname = n.nspname and p.tablename = c.relname
where c.relkind in ('r', 'p') and c.relpersistence = 'p' and n.nspname !~ '^pg_'
    and n.nspname <> 'information_schema'
order by 2, 3
"""
_COLUMNS: Final = """
select a.attname::text, a.atttypid::int8, a.atttypmod
from pg_attribute a
where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attnum
"""
_TYPES: Final = """
with recursive below (top, oid) as (
    select t.oid, t.oid from pg_type t where t.oid = any($1::oid[])
    union all
    select below.top, t.typbasetype from below join pg_type t on t.oid = below.oid where t.typtype = 'd'
)
select below.top::int8, n.nspname::text, t.typname::text
from below join pg_type t on t.oid = below.oid join pg_namespace n on n.oid = t.typnamespace
where t.typtype <> 'd'
"""
Types = Mapping[int, tuple[str, str]]
"""By oid: schema and name of what is below a type that is not built in."""


@dataclass(frozen=True, slots=True)
class Table:
    """What is to be known of a table before it is captured."""

    oid: int
    schema: str
    name: str
    identity: str
    """Which columns its changes are logged with: d (primary key), i (a unique index), f (all), n (nothing)."""
    primary_key: tuple[str, ...] = ()
    identity_index: tuple[str, ...] = ()
    """The columns of the index, where the identity is i."""
    readable: bool = True
    owned: bool = True
    """It may be put into a publication by this user."""
    is_partition: bool = False
    published: bool = False
    columns: tuple[str, ...] | None = None
    """Those that are published; None: all."""
    row_filter: str | None = None
    """Of the publication."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell its rows apart; none: nothing does."""
        return self.identity_index if self.identity == "i" else self.primary_key

    @property
    def logs_changes(self) -> bool:
        """Whether the server allows updates and deletes of it when they are published."""
        return self.identity == "f" or (self.identity in "di" and bool(self.key))


async def find_tables(session: Session, publication: str) -> list[Table]:
    """All tables of the database, in the order of their names."""
    filters = "p.attnames::text[], p.rowfilter" if session.version >= FILTERS_SINCE else "null::text[], null::text"
    found: list[Table] = []
    for row in await session.fetch(_TABLES.format(filters=filters), publication):
        oid, schema, name, identity, primary, index, readable, owned, partition, published, columns, row_filter = row
        key, own = tuple(primary), tuple(index)
        chosen = None if columns is None else tuple(columns)
        found.append(
            Table(oid, schema, name, identity, key, own, readable, owned, partition, published, chosen, row_filter)
        )
    return found


async def describe(session: Session, table: Table) -> tuple[Relation, Types]:
    """
    A table as a replication connection describes it, in the session's transaction.

    Returns:
        Without columns, where there is no such table.
    """
    rows = await session.fetch(_COLUMNS, table.oid)
    own = [oid for _, oid, _ in rows if oid >= _OWN_TYPES_FROM]
    types: Types = {}
    if own:
        found = await session.fetch(_TYPES, "{" + ",".join(map(str, own)) + "}")
        types = {oid: (schema, name) for oid, schema, name in found}
    in_key = {*table.key} if table.identity in "di" else {name for name, _, _ in rows if table.identity == "f"}
    columns = tuple(
        Column(name, type_, modifier, name in in_key)
        for name, type_, modifier in rows
        if table.columns is None or name in table.columns
    )
    return Relation(table.oid, table.schema, table.name, table.identity, columns), types
