"""A statement that is executed in the database again and again: ``heartbeat.action.query``."""

from __future__ import annotations

import logging
from typing import Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import Clock
from headrace_connect.connectors.postgres_cdc.copying import BUSY
from headrace_connect.connectors.postgres_cdc.session import Session, sqlstate_of
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.plugin import RetriableError
from headrace_connect.settings import Problem, invalid

_SETTINGS: Final = 'begin; set local search_path to "$user", public; set local statement_timeout to 5000'
"""Nothing is read of the stream meanwhile, so it may not take long."""
_log: Final = logging.getLogger(__name__)


class Heart:
    """Has the session that no other statement is running on meanwhile."""

    def __init__(self, session: Session, settings: SourceSettings, clock: Clock) -> None:
        self._session = session
        self._query = settings.heartbeat_action_query
        self._interval_ms = settings.heartbeat_interval_ms
        self._clock = clock
        self._due_ms = clock.monotonic_ms()

    def wait_ms(self, most: float) -> float:
        """Until it is due, but at most so long."""
        return max(1.0, min(most, self._due_ms - self._clock.monotonic_ms())) if self._query else most

    async def beat(self) -> None:
        """
        Execute the statement, if it is due. One that meets a lock is left out.

        Raises:
            RetriableError: the server is away.
            InvalidConfig: it refuses the statement.
        """
        if not self._query or self._clock.monotonic_ms() < self._due_ms:
            return
        try:
            await self._session.fetch(_SETTINGS)
            await self._session.fetch(self._query)
            await self._session.fetch("commit")
        except RetriableError as error:
            if sqlstate_of(error) not in BUSY:
                raise
            _log.warning("heartbeat.action.query is left out this time: %s", error)
            await self._session.rollback()
        except InvalidConfig as error:
            raise invalid([Problem("heartbeat.action.query", f"heartbeat.action.query: {error}")]) from error
        # Not sooner, however long it took: nothing was read meanwhile.
        self._due_ms = self._clock.monotonic_ms() + self._interval_ms
