"""What the server is like, as far as the connector depends on it, and what has to be made there."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_connect.connectors.postgres_cdc.session import Session, quote
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.slots import Slot, find_slot
from headrace_connect.connectors.postgres_cdc.tables import Table, find_tables

_SERVER = """
select current_setting('wal_level'), pg_is_in_recovery(), r.rolreplication or r.rolsuper, r.rolsuper,
    has_database_privilege(current_database(), 'CREATE'),
    current_setting('max_replication_slots')::int8 - (select count(*) from pg_replication_slots)
from pg_roles r where r.rolname = current_user
"""
_PUBLICATION = """
select puballtables, pubinsert, pubupdate, pubdelete from pg_publication where pubname = $1
"""
_VIA_ROOT = "with (publish_via_partition_root = true)"


@dataclass(frozen=True, slots=True)
class Publication:
    """As the server has it; its tables are marked as ``published``."""

    all_tables: bool
    inserts: bool = True
    updates: bool = True
    deletes: bool = True

    @property
    def needs_identity(self) -> bool:
        """Whether tables without a replica identity cannot be updated or deleted from while they are in it."""
        return self.updates or self.deletes


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one database and one user."""

    version: int
    """150004 is 15.4."""
    wal_level: str
    is_standby: bool
    can_replicate: bool
    is_superuser: bool
    can_create: bool
    """Publications, in this database."""
    free_slots: int
    tables: tuple[Table, ...]
    """All of the database."""
    publication: Publication | None
    slot: Slot | None


async def find_facts(session: Session, settings: SourceSettings) -> Facts:
    """
    Ask the server; nothing is changed.

    Raises:
        RetriableError: it is away or busy.
    """
    ((wal_level, standby, replicates, superuser, creates, free),) = await session.fetch(_SERVER)
    publications = await session.fetch(_PUBLICATION, settings.publication)
    return Facts(
        session.version,
        wal_level,
        standby,
        replicates,
        superuser,
        creates,
        free,
        tuple(await find_tables(session, settings.publication)),
        Publication(*publications[0]) if publications else None,
        await find_slot(session, settings.slot),
    )


def captured(facts: Facts, settings: SourceSettings) -> list[Table]:
    """
    The tables whose changes are wanted, by their names: those that are published, and those that are to be.

    A partition counts only where a publication has it in the place of the table that it is a part of.
    """
    wanted = [table for table in facts.tables if settings.captures(table.schema, table.name)]
    return [table for table in wanted if table.published or (makes_publication(settings) and not table.is_partition)]


def makes_publication(settings: SourceSettings) -> bool:
    """Whether the connector makes and changes the publication."""
    return settings.publication_autocreate_mode != "disabled"


def statement_for(facts: Facts, settings: SourceSettings) -> str | None:
    """
    What has to be done so that the captured tables are published that may be; None: nothing.

    A table without a replica identity is never published: its updates and deletes would fail from then on.
    """
    name, publication = quote(settings.publication), facts.publication
    if publication is None and settings.publication_autocreate_mode == "all_tables":
        return f"create publication {name} for all tables {_VIA_ROOT}" if _all_log_changes(facts) else None
    needs_identity = publication is None or publication.needs_identity
    missing = [table for table in captured(facts, settings) if not table.published and table.owned]
    missing = [table for table in missing if table.logs_changes or not needs_identity]
    if not missing or not makes_publication(settings) or (publication is not None and publication.all_tables):
        return None
    tables = ", ".join(quote(table.schema, table.name) for table in missing)
    if publication is None:
        return f"create publication {name} for table {tables} {_VIA_ROOT}"
    return f"alter publication {name} add table {tables}"


def _all_log_changes(facts: Facts) -> bool:
    return all(table.logs_changes for table in facts.tables)
