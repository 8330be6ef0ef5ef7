"""How much WAL the server keeps for the slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_connect.connectors.postgres_cdc.limits import LOOK_MS
from headrace_connect.connectors.postgres_cdc.session import Session
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings

_RETAINED: Final = """
select pg_wal_lsn_diff(
    case when pg_is_in_recovery() then pg_last_wal_receive_lsn() else pg_current_wal_lsn() end, restart_lsn
)::int8 from pg_replication_slots where slot_name = $1
"""


class Retained:
    """Asks now and then, on the session that no other statement is running on meanwhile."""

    def __init__(
        self, session: Session, settings: SourceSettings, clock: Clock, tell: Callable[[int | None], None]
    ) -> None:
        """
        Args:
            tell: called with the bytes; None: there is no slot.
        """
        self._session = session
        self._slot = settings.slot
        self._clock = clock
        self._tell = tell
        self._due_ms = clock.monotonic_ms()

    async def look(self) -> None:
        """
        Ask, if it is due.

        Raises:
            RetriableError: the server is away.
        """
        if self._clock.monotonic_ms() < self._due_ms:
            return
        rows = await self._session.fetch(_RETAINED, self._slot)
        value = rows[0][0] if rows else None
        self._tell(value if isinstance(value, int) else None)
        self._due_ms = self._clock.monotonic_ms() + LOOK_MS
