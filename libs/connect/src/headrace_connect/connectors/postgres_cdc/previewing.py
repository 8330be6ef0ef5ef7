"""Shows what records will look like, and leaves nothing behind in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_connect.connectors.postgres_cdc.facts import captured, find_facts
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.recording import Recorder
from headrace_connect.connectors.postgres_cdc.session import open_session, quote
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.tables import describe
from headrace_connect.plugin import Chunk

ROWS: Final = 100
"""Of each table."""


async def preview_rows(settings: SourceSettings, clock: Clock) -> AsyncIterator[Chunk]:
    """
    The first rows of each table that would be captured, as records.

    Raises:
        RetriableError: the server is away or busy.
        InvalidConfig: it refuses.
    """
    session = await open_session(settings)
    place = Place("", 0)
    try:
        tables = captured(await find_facts(session, settings), settings)
        recorder = Recorder(settings, {}, {table.oid: table for table in tables}, clock)
        for table in tables:
            relation, types = await describe(session, table)
            columns = ", ".join(quote(column.name) for column in relation.columns)
            where = f" where {table.row_filter}" if table.row_filter else ""
            rows = await session.fetch_columns(
                f"select {columns} from {quote(table.schema, table.name)}{where} limit {ROWS}"
            )
            if rows and len(rows[0]):
                yield recorder.record_rows(relation, types, rows, 0, place)
        yield recorder.record_nothing(place, drained=True)
    finally:
        await session.close()
