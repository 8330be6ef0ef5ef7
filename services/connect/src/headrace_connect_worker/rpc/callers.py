"""
Who asks: by the bearer that the request shows, by the ticket that another worker shows for its caller, or anybody,
where the cluster is not closed. Routes find the caller of theirs in ``current_caller``.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Final
from urllib.parse import unquote

from starlette.types import Scope

from headrace.ticket_types import AccessQuestion, AnnouncedChange
from headrace_common.core.access.tickets import maker_of
from headrace_common.core.errors import ClusterAuthorizationFailed, Unauthenticated
from headrace_common.core.secret import Secret
from headrace_connect_worker.core.refusals import Conflict
from headrace_connect_worker.ports import Callers

CONNECTOR: Final = "CONNECTOR"
QUESTIONS_MAX: Final = 1_000
"""In one call to a broker."""
_EVERY_NAME: Final = "*"


def on_connector(operation: str, name: str) -> AccessQuestion:
    """
    Whether somebody may ``operation`` the connector ``name``.

    Raises:
        Denied: rules cannot tell this name from all names, so that nobody may.
    """
    if name in ("", _EVERY_NAME):
        raise ClusterAuthorizationFailed(f"in a closed cluster nobody may use a connector that is called {name!r}")
    return AccessQuestion(operation, CONNECTOR, name)


class Caller:
    """Of one request. This one may do everything: the cluster is not closed."""

    async def check_any(self, *questions: AccessQuestion, change: AnnouncedChange | None = None) -> None:
        """
        Let it pass if it may do one of these; with none, if it is somebody.

        Args:
            change: what it has this worker do next. It is in the cluster's audit when it passes, by the worker that it
                has shown its credential to; not by the one that leads, which is shown a ticket.

        Raises:
            Denied: it may not.
            AuditUnavailable: ``change`` cannot be written.
            Unauthenticated, CoordinatorNotAvailable, Overloaded: as ``Callers``.
        """

    async def check(self, operation: str, name: str, change: AnnouncedChange | None = None) -> None:
        """Let it pass if it may ``operation`` the connector ``name``. Raises: as ``check_any``."""

    async def check_put(self, name: str, *, exists: bool) -> None:
        """Let it pass if it may give a connector a configuration, or make it so. Raises: as ``check_any``."""

    async def those_it_may(self, operation: str, names: Iterable[str]) -> list[str]:
        """Which of some connectors it may ``operation``, in their order. Raises: as ``Callers``."""
        return list(names)

    async def ticket_for(self, endpoint: str, purpose: str, *, as_worker: bool = False) -> bytes:
        """
        What another worker at ``endpoint`` is to be shown when the request is sent there; empty: nothing. It is good
        for what the caller was let in for; ``as_worker``: it says that a worker asks, which selects what is told.

        Raises:
            Denied, Unauthenticated, CoordinatorNotAvailable, Overloaded: as ``Callers``.
        """
        return b""


EVERYBODY: Final = Caller()


class _Known(Caller):
    """One who is asked about."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._passed: dict[AccessQuestion, None] = {}

    async def _refusals(
        self, questions: Sequence[AccessQuestion], change: AnnouncedChange | None = None
    ) -> Sequence[str]:
        raise NotImplementedError

    async def check_any(self, *questions: AccessQuestion, change: AnnouncedChange | None = None) -> None:
        refusals = await self._refusals(questions, change)
        allowed = [one for one, refusal in zip(questions, refusals, strict=True) if not refusal]
        if questions and not allowed:
            raise ClusterAuthorizationFailed(refusals[-1])
        self._passed |= dict.fromkeys(allowed)

    async def check(self, operation: str, name: str, change: AnnouncedChange | None = None) -> None:
        await self.check_any(on_connector(operation, name), change=change)

    async def check_put(self, name: str, *, exists: bool) -> None:
        both = [on_connector("CREATE", name), on_connector("ALTER_CONFIGS", name)]
        await self.check_any(*both)  # who may neither is not told which of them it would take
        await self.check_any(both[exists])

    async def those_it_may(self, operation: str, names: Iterable[str]) -> list[str]:
        found: list[str] = []
        asked = [name for name in names if name not in ("", _EVERY_NAME)]
        for begin in range(0, len(asked), QUESTIONS_MAX):
            some = asked[begin : begin + QUESTIONS_MAX]
            refusals = await self._refusals([on_connector(operation, name) for name in some])
            found += [name for name, refusal in zip(some, refusals, strict=True) if not refusal]
        return found


class ByBearer(_Known):
    """Who shows a credential of the cluster."""

    def __init__(self, callers: Callers, bearer: Secret) -> None:
        super().__init__(callers)
        self._bearer = bearer

    async def _refusals(
        self, questions: Sequence[AccessQuestion], change: AnnouncedChange | None = None
    ) -> Sequence[str]:
        return await self._callers.ask_by_bearer(self._bearer, questions, change)

    async def ticket_for(self, endpoint: str, purpose: str, *, as_worker: bool = False) -> bytes:
        if as_worker:
            return await self._callers.make_own_ticket(endpoint, purpose)
        return await self._callers.make_ticket(self._bearer, endpoint, purpose, list(self._passed))


class ByTicket(_Known):
    """Whom another worker has let in, and for whom it shows a ticket for this one request."""

    def __init__(self, callers: Callers, ticket: bytes, purpose: str) -> None:
        super().__init__(callers)
        self._ticket = ticket
        self._purpose = purpose

    async def _refusals(
        self, questions: Sequence[AccessQuestion], change: AnnouncedChange | None = None
    ) -> Sequence[str]:
        return await self._callers.ask_by_ticket(self._ticket, self._purpose, questions)

    async def those_it_may(self, operation: str, names: Iterable[str]) -> list[str]:
        """A worker asks for its caller: it selects itself."""
        if await self._callers.is_worker(self._ticket, self._purpose):
            return list(names)
        return await super().those_it_may(operation, names)

    async def ticket_for(self, endpoint: str, purpose: str, *, as_worker: bool = False) -> bytes:
        raise Conflict("Cannot complete request because of a conflicting operation: another worker leads by now")


CURRENT: Final[ContextVar[Caller]] = ContextVar("caller")


def current_caller() -> Caller:
    """
    Of the request that is being answered.

    Raises:
        LookupError: nobody has looked who it is.
    """
    return CURRENT.get()


def purpose_of(method: str, path: str) -> str:
    """What a ticket is for that is shown with this request; ``path`` may be encoded one way or another."""
    return f"{method} {unquote(path)}"


def change_of(scope: Scope) -> AnnouncedChange:
    """What a request does, as the audit has it."""
    client = scope.get("client")
    return AnnouncedChange(purpose_of(scope["method"], scope["path"]), client[0] if client else "")


def show_ticket(ticket: bytes) -> str:
    """The header ``Authorization`` of who shows it."""
    return f"Ticket {urlsafe_b64encode(ticket).decode()}"


def ticket_of(text: str) -> bytes:
    """What is in such a header, behind its first word. Raises: Unauthenticated: it is no ticket."""
    try:
        ticket = urlsafe_b64decode(text.strip().encode("ascii"))
    except ValueError:
        ticket = b""
    if maker_of(ticket) is None:
        raise Unauthenticated("this is no ticket")
    return ticket
