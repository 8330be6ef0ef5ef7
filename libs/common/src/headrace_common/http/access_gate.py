"""
Decides who asks over HTTP, and whether the request gets as far as its route: what ``runtime.access_gate`` is for gRPC.

Who shows nothing valid to a closed cluster is refused before anything of the body is read, and so is who may not do
what the route is for, as far as its path and query tell. Routes find the rights of their caller in ``current_rights``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_common.core.access.authentication import Shown, bearer_of
from headrace_common.core.access.principal import ANONYMOUS
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import ClusterAuthorizationFailed, HeadraceError, Unauthenticated
from headrace_common.http.paces import Paces
from headrace_common.http.problems import problem_of
from headrace_common.rpc.access_rules import NOBODY, NODES, Rule
from headrace_common.runtime.access_gate import AUTHORIZATION_KEY, Access, check

ANYONE: Final = Shown(Caller(ANONYMOUS))


def find_bearer(scope: Scope) -> str | None:
    """What a request shows in its header ``Authorization``; None: it has none."""
    authorization = Headers(scope=scope).get(AUTHORIZATION_KEY)
    return None if authorization is None else bearer_of(authorization)


def answer_problem(error: HeadraceError, scope: Scope) -> Response:
    """As everything else is answered."""
    return problem_of(error, scope["path"])


class AccessGate:
    """ASGI middleware, outside of whatever reads the body."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        rule_of: Callable[[Scope], Rule],
        *,
        answer: Callable[[HeadraceError, Scope], Response] = answer_problem,
        bearer: Callable[[Scope], str | None] = find_bearer,
        paces: Paces | None = None,
    ) -> None:
        """
        Args:
            rule_of: what is asked of a request, whose rules are given its scope; what it raises is answered.
                ``NOBODY``: it is answered as to a caller without a credential, whatever it shows.
            answer: makes the answer of a refusal for a request.
            bearer: what a request shows; what it raises is answered, as what nobody is let in with.
            paces: of requests that need a credential; None: everybody may be as fast as they are.
        """
        self._app = app
        self._access = access
        self._rule_of = rule_of
        self._answer = answer
        self._bearer = bearer
        self._paces = paces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            rule = self._rule_of(scope)
            shown = self._shown(scope, rule)
            if rule is NODES:
                raise ClusterAuthorizationFailed("this is for nodes of the cluster, which do not come by HTTP")
            with self._access.serving(shown, _rpc(scope)) as rights:
                check(rule, scope, shown, rights)
        except HeadraceError as error:
            await self._answer(error, scope)(scope, receive, send)
            return
        with self._access.serving(shown, _rpc(scope)):
            await self._app(scope, receive, send)

    def _shown(self, scope: Scope, rule: Rule) -> Shown:
        client = scope.get("client")
        host = client[0] if client else ""
        if rule is NOBODY:
            return ANYONE
        bearer: str | None = None
        try:
            bearer = self._bearer(scope)
            shown = self._access.authenticate(bearer, host)
        except Unauthenticated as error:
            self._access.auditing.failed(error, bearer, host, _rpc(scope))
            self._count(None, host)
            raise
        self._count(shown, host)
        if self._access.nodes.also_plain and scope.get("scheme") != "https":
            shown = replace(shown, plain=True)
        self._access.see(shown)
        return shown

    def _count(self, shown: Shown | None, host: str) -> None:
        if self._paces is not None:
            if shown is None:
                self._paces.count_stranger(host)
            else:
                self._paces.count_caller(shown)


def _rpc(scope: Scope) -> str:
    """How the audit names a request."""
    return f"REST/{scope['method']} {scope['path']}"
