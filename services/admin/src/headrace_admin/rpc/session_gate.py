"""
Decides who a browser is that has logged in: its cookie stands for the caller's own credential, which the gate behind
looks at as at any other, and which goes on to controllers and brokers. Nothing is kept here.

A request with a header ``Authorization`` is one of a program: that counts, and the cookie does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_admin.core.browser_sessions import BrowserSession
from headrace_admin.ports import Seals
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import CredentialsExpired, HeadraceError, Unauthenticated
from headrace_common.core.secret import Secret
from headrace_common.http.access_gate import find_bearer
from headrace_common.http.foreign_pages import Hosts, find_cookie_refusal
from headrace_common.http.problems import problem_of_refusal
from headrace_common.runtime.access_gate import AUTHORIZATION_KEY, Access
from headrace_common.runtime.clock import Clock

COOKIE: Final = "headrace"
"""What its name begins with; the cluster follows, for browsers know no ports, and clusters share a machine's names."""
OF_THIS_HOST: Final = "__Host-"
"""By HTTPS this comes before it: browsers take it from this very host only."""
_ID_CHARS: Final = 8
_STATE: Final = "headrace.cookie"
_CHARS_MAX: Final = 4_096


@dataclass(slots=True)
class Cookie:
    """What a request's cookie says, and what its answer shall say."""

    session: BrowserSession | None = None
    """None: it cannot be read, or is over."""
    error: HeadraceError | None = None
    """Why, then."""
    by_old_key: bool = False
    """Whoever goes on gets another one, before that key is gone."""
    counts: bool = False
    """The request was asked who it comes from."""
    next: BrowserSession | None = None
    """What the answer sets."""
    ends: bool = False
    """The answer takes it away."""


class Sessions:
    """Of browsers. One event loop; any number of requests at one time."""

    def __init__(self, seals: Seals, clock: Clock, access: Access, cluster_id: Callable[[], str]) -> None:
        """
        Args:
            cluster_id: empty while it is not known.
        """
        self._seals = seals
        self._clock = clock
        self._access = access
        self._cluster_id = cluster_id

    def read(self, scope: Scope) -> Cookie:
        """What the request's cookie says, if it counts."""
        headers = Headers(scope=scope)
        sealed = cookie_parser(headers.get("cookie", "")).get(self._name(scope))
        if not sealed or AUTHORIZATION_KEY in headers:
            return Cookie()
        opened = self._seals.open(sealed) if len(sealed) <= _CHARS_MAX else None
        session = None if opened is None else BrowserSession.of_text(opened.text)
        if opened is None or session is None:
            return Cookie(error=Unauthenticated("the cookie is of another time or cluster; log in again"))
        try:
            session.check(self._clock.now_ms())
        except CredentialsExpired as error:
            return Cookie(error=error)
        return Cookie(session, by_old_key=opened.by_old_key)

    def find_bearer(self, scope: Scope) -> str | None:
        """
        What a request shows, by its header or by its cookie; None: nothing.

        Raises:
            Unauthenticated: its cookie is worth nothing any more, and the cluster is closed.
        """
        cookie = cookie_of(scope)
        if cookie.session is None and cookie.error is None:
            return find_bearer(scope)
        cookie.counts = True
        if cookie.session is not None:
            cookie.next = cookie.session.use(self._clock.now_ms(), anew=cookie.by_old_key)
            return cookie.session.bearer.reveal()
        assert cookie.error is not None, "a cookie that is there has one of them"
        if self._access.view.mode is Mode.CLOSED:
            raise cookie.error
        cookie.ends = True
        return None

    def begin(self, scope: Scope, bearer: Secret) -> BrowserSession:
        """Who asks has logged in: the answer sets the cookie."""
        session = BrowserSession.begin(bearer, self._clock.now_ms())
        cookie_of(scope).next = session
        return session

    def header(self, scope: Scope, cookie: Cookie, status: int) -> str | None:
        """The header ``Set-Cookie`` of an answer; None: it has none."""
        if cookie.ends or (cookie.counts and status == 401):
            return self._set(scope, "", 0)
        if cookie.next is None:
            return None
        left_s = (cookie.next.ends_ms - self._clock.now_ms()) // 1_000
        return self._set(scope, self._seals.seal(cookie.next.to_text()), left_s)

    def _set(self, scope: Scope, value: str, seconds: int) -> str:
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        return f"{self._name(scope)}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"

    def _name(self, scope: Scope) -> str:
        return cookie_name(self._cluster_id(), secure=scope.get("scheme") == "https")


def cookie_name(cluster_id: str, *, secure: bool) -> str:
    """Of a cluster's cookie, by HTTPS (``secure``) or without."""
    return f"{OF_THIS_HOST if secure else ''}{COOKIE}-{cluster_id[:_ID_CHARS]}"


class SessionGate:
    """ASGI middleware around the gate that asks for a credential."""

    def __init__(self, app: ASGIApp, sessions: Sessions, hosts: Hosts) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        cookie = scope[_STATE] = self._sessions.read(scope)
        if cookie.session is not None or cookie.error is not None:
            refusal = find_cookie_refusal(scope["method"], Headers(scope=scope), self._hosts)
            if refusal is not None:
                await problem_of_refusal(refusal, scope["path"])(scope, receive, send)
                return

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = self._sessions.header(scope, cookie, message["status"])
                if header is not None:
                    MutableHeaders(scope=message).append("set-cookie", header)
            await send(message)

        await self._app(scope, receive, with_cookie)


def cookie_of(scope: Scope) -> Cookie:
    """What the gate has read of a request's cookie, for whoever answers it."""
    cookie: Cookie = scope[_STATE]
    return cookie
