"""
Decides who asks over REST, and whether the request gets as far as its route, by the table of routes. Brokers know: who
may what is asked there, with what the caller shows, before anything of the body is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_common.core.access.authentication import bearer_of, check_shown
from headrace_common.core.errors import HeadraceError, Overloaded, Unauthenticated
from headrace_common.core.secret import Secret
from headrace_common.runtime.admission import network_of
from headrace_connect_worker.core.refusals import Refusal
from headrace_connect_worker.ports import Callers
from headrace_connect_worker.rpc.answering import failure, status_and_text
from headrace_connect_worker.rpc.callers import (
    CURRENT,
    EVERYBODY,
    ByBearer,
    ByTicket,
    Caller,
    change_of,
    purpose_of,
    ticket_of,
)
from headrace_connect_worker.rpc.paths import raw_path
from headrace_connect_worker.rpc.route_table import OPEN, RouteRules, check_row

AUTHORIZATION: Final = "authorization"
_TICKET: Final = "ticket"
ASKING_PER_ADDRESS_MAX: Final = 32
"""Half of what may be asked at one time (``aio.guarding``), and as many as another worker sends: who floods from one
address leaves the rest to others."""


class AccessGate:
    """ASGI middleware, outside of whatever reads the body."""

    def __init__(self, app: ASGIApp, callers: Callers, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._callers = callers
        self._rules = RouteRules(routes)
        self._asking: Counter[str] = Counter()
        """Requests of each address that wait for what brokers say."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = raw_path(scope)
        try:
            caller = await self._let_in(dict(scope, path=path))
        except (HeadraceError, Refusal) as error:
            answer = failure(*status_and_text(error), path, code=error.code)
            if isinstance(error, Unauthenticated):
                answer.headers["www-authenticate"] = "Bearer"
            await answer(scope, receive, send)
            return
        before = CURRENT.set(caller)
        try:
            await self._app(scope, receive, send)
        finally:
            CURRENT.reset(before)

    async def _let_in(self, scope: Scope) -> Caller:
        row, given = self._rules.find(scope)
        if row is OPEN or await self._callers.let_everybody():
            return EVERYBODY
        caller = self._caller(scope)
        with self._place(scope):
            await check_row(row, given, caller, change_of(scope))
        return caller

    @contextmanager
    def _place(self, scope: Scope) -> Iterator[None]:
        """
        One of those that the caller's address may have, while it is asked who calls.

        Raises:
            Overloaded: all are taken.
        """
        client = scope.get("client")
        address = network_of(client[0]) if client else ""
        if self._asking[address] >= ASKING_PER_ADDRESS_MAX:
            raise Overloaded(f"too many requests from {address} want to know what they may; ask again in a moment")
        self._asking[address] += 1
        try:
            yield
        finally:
            self._asking[address] -= 1
            if not self._asking[address]:
                del self._asking[address]

    def _caller(self, scope: Scope) -> Caller:
        """Raises: Unauthenticated: nothing was shown that could be something."""
        authorization = Headers(scope=scope).get(AUTHORIZATION)
        scheme, _, text = (authorization or "").partition(" ")
        if scheme.lower() == _TICKET:
            return ByTicket(self._callers, ticket_of(text), purpose_of(scope["method"], scope["path"]))
        bearer = check_shown(None if authorization is None else bearer_of(authorization))
        if not (bearer.isascii() and bearer.isprintable()):
            raise Unauthenticated("the credential has characters that none has")
        return ByBearer(self._callers, Secret(bearer))
