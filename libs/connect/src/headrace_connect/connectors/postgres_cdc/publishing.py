"""The tables that are captured: which they are, and that they are published."""

from __future__ import annotations

import logging
from typing import Final

from headrace_connect.connectors.postgres_cdc.checks import find_problems
from headrace_connect.connectors.postgres_cdc.facts import Facts, captured, find_facts, statement_for
from headrace_connect.connectors.postgres_cdc.session import Session
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.tables import Table
from headrace_connect.settings import Problem, invalid

_log: Final = logging.getLogger(__name__)


class Publisher:
    """Has the tables that are captured now; publishes those that are new."""

    def __init__(self, session: Session, settings: SourceSettings) -> None:
        self._session = session
        self._settings = settings
        self._skipped: set[int] = set()
        self.by_oid: dict[int, Table] = {}
        """Those that are published, and those that were since it was opened."""
        self.by_name: dict[str, Table] = {}
        """The same, by the oid as text."""
        self.tables: list[Table] = []
        """Those that are published."""

    async def open(self, *, first: bool) -> Facts:
        """
        Look at the server, and publish.

        Args:
            first: nothing was read yet: whatever is wrong with a table is an error. Later it is left out, so that a
                table that somebody has made does not stop the others.

        Raises:
            InvalidConfig: what is wrong, each with its key.
            RetriableError: the server is away or busy.
        """
        facts = await find_facts(self._session, self._settings)
        problems = find_problems(facts, self._settings)
        if problems and first:
            raise invalid(problems)
        for problem in problems:
            _log.warning("%s", problem.message)
        facts = await self._publish(facts)
        if not self.tables:
            raise invalid(problems or [Problem("", "there is no table that could be captured")])
        return facts

    async def look(self) -> list[Table]:
        """
        Publish tables that are new.

        Raises:
            InvalidConfig: the publication was dropped.
            RetriableError: the server is away or busy.
        """
        facts = await find_facts(self._session, self._settings)
        if facts.publication is None:
            name = self._settings.publication
            raise invalid([Problem("publication.name", f"publication.name: the publication {name} was dropped")])
        await self._publish(facts)
        return self.tables

    async def _publish(self, facts: Facts) -> Facts:
        statement = statement_for(facts, self._settings)
        if statement is not None:
            _log.info("%s", statement)
            await self._session.fetch(statement)
            facts = await find_facts(self._session, self._settings)
        wanted = captured(facts, self._settings)
        for table in wanted:
            if not table.published and table.oid not in self._skipped:
                self._skipped.add(table.oid)
                _log.warning("%s is left out: it is not published; `validate` says why", table)
        self.tables = [table for table in wanted if table.published]
        self.by_oid |= {table.oid: table for table in self.tables}
        self.by_name |= {str(table.oid): table for table in self.tables}
        return facts
