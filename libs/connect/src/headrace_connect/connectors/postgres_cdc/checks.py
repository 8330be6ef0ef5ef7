"""What keeps the connector from working, by key, and what to type about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from headrace_connect.connectors.postgres_cdc.facts import (
    Facts,
    Publication,
    captured,
    makes_publication,
)
from headrace_connect.connectors.postgres_cdc.position import BYTES_MAX, size_when_read
from headrace_connect.connectors.postgres_cdc.session import listed, quote
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings, matches
from headrace_connect.connectors.postgres_cdc.slots import FAILOVER_SINCE
from headrace_connect.connectors.postgres_cdc.tables import Table
from headrace_connect.settings import Problem

VERSION_MIN = 140_000
_SPARE_BYTES = 1_500
"""Of a position, for tables that are ahead and the key of a row."""


def find_problems(facts: Facts, settings: SourceSettings) -> list[Problem]:
    """All that is wrong; nothing has to be done for what is not named."""
    tables = captured(facts, settings)
    return [
        *_of_server(facts, settings),
        *_of_lists(facts, settings, tables),
        *_of_publication(facts, settings, tables),
        *_of_identity(facts, settings, tables),
        *_of_rows(settings, tables),
        *_of_topics(settings, tables),
        *_of_slot(facts, settings),
    ]


def _of_server(facts: Facts, settings: SourceSettings) -> Iterator[Problem]:
    if facts.version < VERSION_MIN:
        found = facts.version // 10_000
        yield _at("database.hostname", f"the server is PostgreSQL {found}; it takes 14 or newer")
    if facts.is_standby:
        yield _at("database.hostname", "the server is a standby; the connector writes marks, and needs the primary")
    if facts.wal_level != "logical":
        yield _at(
            "database.hostname",
            f"wal_level is {facts.wal_level}, and changes need logical: ALTER SYSTEM SET wal_level = logical; and "
            "restart the server",
        )
    if not facts.can_replicate:
        user = quote(settings.database_user)
        yield _at(
            "database.user",
            f"the user may not replicate: ALTER ROLE {user} REPLICATION; (a hosted server has a role for it, as in "
            f"GRANT rds_replication TO {user};)",
        )
    if settings.slot_failover and facts.version < FAILOVER_SINCE:
        yield _at("slot.failover", "the server has no slots that standbys have too; they came with PostgreSQL 17")


def _of_lists(facts: Facts, settings: SourceSettings, tables: Sequence[Table]) -> Iterator[Problem]:
    names = [str(table) for table in facts.tables]
    for pattern in settings.table_include_list:
        if not any(matches(pattern, name) for name in names):
            meant = get_close_matches(re.sub(r"[\[\]\\]", "", pattern), names, n=1, cutoff=0.75)
            hint = f"; is {meant[0]} meant?" if meant else "; a pattern is for the whole of SCHEMA.TABLE"
            yield _at("table.include.list", f"there is no table {pattern}{hint}")
    if not tables and not settings.table_include_list and makes_publication(settings):
        yield _at("table.include.list", "the database has no table that would be captured")


def _of_publication(facts: Facts, settings: SourceSettings, tables: Sequence[Table]) -> Iterator[Problem]:
    key, name = "publication.name", quote(settings.publication)
    publication = facts.publication
    if publication is None and not makes_publication(settings):
        wanted = [table for table in facts.tables if settings.captures(table.schema, table.name)]
        yield _at(key, f"there is no publication {name}: CREATE PUBLICATION {name} FOR TABLE {_names(wanted)};")
        return
    if publication is None and not facts.can_create:
        user = quote(settings.database_user)
        yield _at(
            "database.user",
            f"the user may not make the publication: GRANT CREATE ON DATABASE {quote(settings.database_dbname)} TO "
            f"{user}; or make it and set publication.autocreate.mode=disabled",
        )
    if publication is None and settings.publication_autocreate_mode == "all_tables" and not facts.is_superuser:
        yield _at("publication.autocreate.mode", "all_tables takes a superuser; filtered takes the owner of the tables")
    if publication is None or not publication.all_tables:
        foreign = [table for table in tables if not table.published and not table.owned]
        if foreign and settings.publication_autocreate_mode == "filtered":
            verb = "CREATE PUBLICATION {} FOR" if publication is None else "ALTER PUBLICATION {} ADD"
            yield _at(
                "publication.autocreate.mode",
                f"only their owner may publish {listed([str(table) for table in foreign])}: as that user, "
                f"{verb.format(name)} TABLE {_names(foreign)};",
            )
    if publication is not None:
        yield from _of_operations(publication, name)
        if not tables:
            yield _at(key, f"the publication {name} has none of the tables: ALTER PUBLICATION {name} ADD TABLE …;")


def _of_operations(publication: Publication, name: str) -> Iterator[Problem]:
    kinds = {"insert": publication.inserts, "update": publication.updates, "delete": publication.deletes}
    missing = [kind for kind, is_published in kinds.items() if not is_published]
    # One that publishes inserts alone is a choice: of tables that only grow.
    if missing and missing != ["update", "delete"]:
        yield _at(
            "publication.name",
            f"the publication {name} leaves out {' and '.join(missing)}: ALTER PUBLICATION {name} SET (publish = "
            "'insert, update, delete, truncate');",
        )


def _of_identity(facts: Facts, settings: SourceSettings, tables: Sequence[Table]) -> Iterator[Problem]:
    if facts.publication is not None and not facts.publication.needs_identity:
        return
    publishes_all = facts.publication is None and settings.publication_autocreate_mode == "all_tables"
    for table in facts.tables if publishes_all else tables:
        if not table.logs_changes:
            yield _at(
                "table.exclude.list" if not publishes_all else "publication.autocreate.mode",
                f"{table} has no primary key and no other replica identity: once it is published, its updates and "
                f"deletes fail. ALTER TABLE {quote(table.schema, table.name)} REPLICA IDENTITY FULL; or leave it out",
            )


def _of_rows(settings: SourceSettings, tables: Sequence[Table]) -> Iterator[Problem]:
    read = [table for table in tables if settings.reads_rows(table.schema, table.name)]
    closed = [table for table in (tables if settings.reselect_unavailable_values else read) if not table.readable]
    if closed:
        user = quote(settings.database_user)
        schemas = listed(sorted({quote(table.schema) for table in closed}))
        yield _at(
            "database.user",
            f"the user may not read rows: GRANT USAGE ON SCHEMA {schemas} TO {user}; GRANT SELECT ON {_names(closed)} "
            f"TO {user};",
        )
    needed = size_when_read([table.oid for table in read]) + _SPARE_BYTES
    if needed > BYTES_MAX:
        yield _at(
            "table.include.list",
            f"{len(read)} tables are too many for one connector: its position would have {needed:,} bytes, and "
            f"{BYTES_MAX:,} fit; share them among connectors, or set snapshot.mode=no_data",
        )


def _of_topics(settings: SourceSettings, tables: Sequence[Table]) -> Iterator[Problem]:
    topics: dict[str, Table] = {}
    for table in tables:
        try:
            topic = settings.topic_of(table.schema, table.name)
        except ValueError as error:
            yield _at("topic.prefix", str(error))
            continue
        other = topics.setdefault(topic, table)
        if other is not table:
            yield _at("table.exclude.list", f"{other} and {table} would have one topic, {topic}: leave one of them out")


def _of_slot(facts: Facts, settings: SourceSettings) -> Iterator[Problem]:
    slot = facts.slot
    if slot is None and facts.free_slots < 1:
        yield _at(
            "slot.name",
            "the server has no slot left: ALTER SYSTEM SET max_replication_slots to more and restart it, or drop one "
            "that nobody needs",
        )
    if slot is not None and (slot.plugin != "pgoutput" or slot.database != settings.database_dbname):
        what = f"is of {slot.plugin} in the database {slot.database}" if slot.plugin else "is a physical one"
        yield _at("slot.name", f"the slot {settings.slot} {what}; it takes one of pgoutput in this database")


def _names(tables: Sequence[Table]) -> str:
    return listed([quote(table.schema, table.name) for table in tables]) or "…"


def _at(key: str, message: str) -> Problem:
    return Problem(key, f"{key}: {message}")
