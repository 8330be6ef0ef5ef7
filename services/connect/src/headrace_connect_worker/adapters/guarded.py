"""Who may ask this worker, by what brokers say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace import aio
from headrace.aio.guarding import Guard
from headrace.errors import CredentialInPlainText
from headrace.ticket_types import AccessQuestion, AnnouncedChange, TicketAudience
from headrace_common.core.errors import CoordinatorNotAvailable, Denied, HeadraceError, Overloaded, Unauthenticated
from headrace_common.core.secret import Secret
from headrace_common.runtime.clock import Clock


class SdkCallers:
    """Satisfies ``Callers``."""

    def __init__(self, admin: aio.AdminClient, group_id: str, endpoint: Callable[[], str], clock: Clock) -> None:
        """
        Args:
            endpoint: where this worker is asked, ``host:port``, as its group has it.
        """
        self._admin = admin
        self._guard = Guard(admin, clock)
        self._group_id = group_id
        self._endpoint = endpoint

    async def let_everybody(self) -> bool:
        """See ``Callers``."""
        return await self._guard.is_open()

    async def ask_by_bearer(
        self, bearer: Secret, questions: Sequence[AccessQuestion], change: AnnouncedChange | None = None
    ) -> Sequence[str]:
        """See ``Callers``."""
        return (await self._guard.ask_by_bearer(bearer, questions, change)).refusals

    async def ask_by_ticket(self, ticket: bytes, purpose: str, questions: Sequence[AccessQuestion]) -> Sequence[str]:
        """See ``Callers``."""
        audience = TicketAudience(self._group_id, self._endpoint(), purpose)
        return (await self._guard.ask_by_ticket(ticket, audience, questions)).refusals

    async def is_worker(self, ticket: bytes, purpose: str) -> bool:
        """See ``Callers``."""
        return not any(await self.ask_by_ticket(ticket, purpose, [self._in_group]))

    async def make_ticket(
        self, bearer: Secret, endpoint: str, purpose: str, questions: Sequence[AccessQuestion]
    ) -> bytes:
        """See ``Callers``."""
        audience = TicketAudience(self._group_id, endpoint, purpose)
        try:
            return (await self._admin.issue_ticket(audience, questions, bearer=bearer)).text
        except CredentialInPlainText as error:  # by this worker, to a broker
            raise _no_ticket(error) from error
        except (Denied, Unauthenticated, Overloaded):
            raise
        except HeadraceError as error:
            raise _no_ticket(error) from error

    async def make_own_ticket(self, endpoint: str, purpose: str) -> bytes:
        """See ``Callers``."""
        audience = TicketAudience(self._group_id, endpoint, purpose)
        try:
            return (await self._admin.issue_ticket(audience, [self._in_group])).text
        except HeadraceError as error:
            raise _no_ticket(error) from error

    @property
    def _in_group(self) -> AccessQuestion:
        """What whoever works in the group may."""
        return AccessQuestion("READ", "GROUP", self._group_id)


def _no_ticket(error: HeadraceError) -> CoordinatorNotAvailable:
    return CoordinatorNotAvailable(f"there is no ticket for the worker that leads, so it is not asked: {error}")
