"""
``/v1/login``, ``/v1/logout`` and ``/v1/session``: people in a browser.

The password goes no further: this service proves to the active controller by SCRAM that it was told the right one, and
gets an API key of some hours, as ``headrace login`` does. The cookie holds that key, sealed.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from fastapi import APIRouter, Depends, Request, Response, status
from starlette.types import Scope

from headrace_admin.core.browser_sessions import BrowserSession
from headrace_admin.engine.administration import Administration
from headrace_admin.rpc import models_session as shapes
from headrace_admin.rpc.session_gate import Sessions, cookie_of
from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.scram import DEFAULT_MECHANISM, ClientExchange
from headrace_common.core.connections import subscriber
from headrace_common.core.errors import Overloaded, Rejected
from headrace_common.core.secret import Secret
from headrace_common.http.paces import Paces
from headrace_common.runtime.access_gate import current_shown
from headrace_common.runtime.entropy import new_nonce
from headrace_common.runtime.threads import run_in_thread
from headrace_proto.v1 import access_pb2 as pb

AT_ONCE_MAX: Final = 8
"""Logins; each takes some 20 ms of a core."""


def session_routes(engine: Administration, sessions: Sessions, paces: Paces) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1", tags=["session"])
    logins = _Logins(engine)

    @routes.post("/login", operation_id="log_in", dependencies=[Depends(paces.count_sender)])
    async def log_in(body: shapes.LogIn, request: Request) -> shapes.Session:
        """Log in with a user and a password: the answer sets a cookie for 8 hours, 1 hour without use."""
        _check_private(request.scope)
        client = request.client
        host = subscriber(client.host) if client else ""
        made = await logins.log_in(body.user, Secret(body.password.get_secret_value()), host)
        session = sessions.begin(request.scope, Secret(made.key))
        expires_ms = min(session.ends_ms, made.description.expires_ms)
        return _session(made.description.owner, session, expires_ms)

    @routes.post("/logout", operation_id="log_out", status_code=status.HTTP_204_NO_CONTENT)
    async def log_out(request: Request) -> Response:
        """Log out: the login is worth nothing any more, wherever it was copied to."""
        cookie, key = cookie_of(request.scope), current_shown().key
        if key is not None and key.login:
            await engine.controllers.ask(lambda stub: stub.DeleteKeys, pb.DeleteKeysRequest(ids=[key.id]))
        elif cookie.session is None:
            raise Rejected("this request came by no login; DELETE /v1/keys/{id} is for keys that were made as such")
        cookie.ends = True
        return Response(status_code=status.HTTP_204_NO_CONTENT)

    @routes.get("/session", operation_id="describe_session")
    async def describe_session(request: Request) -> shapes.Session:
        """Who asks, and until when."""
        cookie, shown = cookie_of(request.scope), current_shown()
        principal = str(shown.caller.principal)
        if cookie.session is not None and _is_known(shown):
            ends = [cookie.session.ends_ms, *([] if shown.expires_ms is None else [shown.expires_ms])]
            return _session(principal, cookie.next or cookie.session, min(ends))
        return shapes.Session(
            principal=principal,
            by="bearer" if _is_known(shown) else "nothing",
            expires_ms=shown.expires_ms,
            idle_expires_ms=None,
        )

    return routes


class _Logins:
    """Those under way."""

    def __init__(self, engine: Administration) -> None:
        self._engine = engine
        self._running = 0

    async def log_in(self, user: str, password: Secret, host: str) -> pb.CreateKeyResponse:
        """
        The key of who has this password. Who failed too often has to wait; the controller counts, by user and address.

        Raises:
            Unauthenticated: the user or the password is wrong.
            Overloaded: too many log in.
        """
        if self._running >= AT_ONCE_MAX:
            raise Overloaded(f"{self._running} logins are under way; try again in a second")
        self._running += 1
        try:
            exchange = await run_in_thread(_begin, user, password)
            first = pb.LoginRequest(mechanism=exchange.mechanism, message=exchange.first(), host=host)
            begun = await self._engine.controllers.ask(lambda stub: stub.Login, first)
            proof = await run_in_thread(exchange.last, begun.message)
            last = pb.LoginRequest(exchange_id=begun.exchange_id, message=proof, host=host)
            done = await self._engine.controllers.ask(lambda stub: stub.Login, last)
            exchange.check(done.message)
            return done.made
        finally:
            self._running -= 1


def _begin(user: str, password: Secret) -> ClientExchange:
    return ClientExchange(DEFAULT_MECHANISM, user, password.reveal(), new_nonce())


def _is_known(shown: Shown) -> bool:
    return shown.key is not None or shown.token is not None or shown.session is not None


def _session(principal: str, session: BrowserSession, expires_ms: int) -> shapes.Session:
    idle_expires_ms = min(session.idle_ends_ms, expires_ms)
    return shapes.Session(principal=principal, by="cookie", expires_ms=expires_ms, idle_expires_ms=idle_expires_ms)


def _check_private(scope: Scope) -> None:
    """
    Raises:
        Rejected: whoever sees the traffic would see the password.
    """
    client = scope.get("client")
    if scope.get("scheme") != "https" and not _is_loopback(client[0] if client else ""):
        raise Rejected(
            "passwords are taken by HTTPS, or on this machine alone; give this service a certificate (tls_cert), "
            "or show an API key"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
