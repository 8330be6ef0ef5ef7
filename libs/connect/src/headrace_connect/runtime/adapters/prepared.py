"""Prepared transactions of the cluster, over the SDK."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import aio
from headrace.admin_transaction_types import PreparedList
from headrace.errors import CoordinatorNotAvailable
from headrace_common.runtime.clock import Clock
from headrace_streams.patience import Patience


class SdkPrepared:
    """Satisfies ``Prepared``."""

    def __init__(self, admin: aio.AdminClient, clock: Clock, limit_ms: float) -> None:
        self._admin = admin
        self._patience = Patience(clock, limit_ms)

    async def find(self) -> Sequence[tuple[str, bytes]]:
        """See ``Prepared``."""
        found = await self._patience.ask(self._list)
        return [(one.transactional_id, bytes(one.token)) for one in found.transactions if one.token is not None]

    async def _list(self) -> PreparedList:
        """
        Raises:
            CoordinatorNotAvailable: some coordinator has not said what it has.
        """
        found = await self._admin.list_prepared_transactions()
        if found.missing:
            raise CoordinatorNotAvailable(f"it is not known what is prepared: {found.missing[0]}")
        return found

    async def decide(self, token: bytes, *, commit: bool) -> None:
        """See ``Prepared``."""
        decide = self._admin.commit_prepared if commit else self._admin.abort_prepared
        await self._patience.ask(lambda: decide(token))
