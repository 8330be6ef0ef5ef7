"""
Tables that somebody wants to be read again: asked for by a message in the WAL, which the connector meets in the stream.

So it is durable, needs no connector that runs, and has a place among the changes: a position behind it knows of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from headrace_connect.connectors.postgres_cdc.facts import captured, find_facts
from headrace_connect.connectors.postgres_cdc.session import Session
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.settings import Problem, invalid, near

AGAIN_PREFIX: Final = "headrace-read-again"
"""The prefix of these messages, for ``pg_logical_emit_message``."""
# With an id of its own the transaction is flushed when it commits, and the message with it.
_MESSAGE: Final = "select pg_current_xact_id(), pg_logical_emit_message(false, $1::text, $2::text)"


async def ask(session: Session, settings: SourceSettings, tables: Sequence[str]) -> list[str]:
    """
    Write the message; in the WAL when it returns. The names of the tables.

    Raises:
        InvalidConfig: a table is not captured or may not be read, or the connector has not begun yet.
        RetriableError: the server is away.
    """
    facts = await find_facts(session, settings)
    known = {str(table): table for table in captured(facts, settings)}
    problems = [
        Problem(
            "tables", f"tables: {name[:200]} is not captured: name it in table.include.list{near(name, list(known))}"
        )
        for name in tables
        if name not in known
    ]
    problems += [
        Problem("tables", f"tables: the user may not read {name}: GRANT SELECT on it")
        for name in tables
        if name in known and not known[name].readable
    ]
    if facts.slot is None:
        problems.append(
            Problem("", f"there is no slot {settings.slot} yet: the connector reads all tables when it runs first")
        )
    if problems:
        raise invalid(problems)
    names = list(dict.fromkeys(tables))
    await session.fetch(_MESSAGE, AGAIN_PREFIX, json.dumps({"slot": settings.slot, "tables": names}))
    return names


def wanted_tables(content: bytes, settings: SourceSettings) -> list[str]:
    """Of a message; none: it is for another connector, or nobody of us wrote it."""
    try:
        given = json.loads(content)
        return [str(name) for name in given["tables"]] if given["slot"] == settings.slot else []
    except (ValueError, KeyError, TypeError):
        return []
