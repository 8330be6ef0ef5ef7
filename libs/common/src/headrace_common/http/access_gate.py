"""
Decides who asks over HTTP, and whether the request gets as far as its route: what ``runtime.access_gate`` is for gRPC.

Who shows nothing valid to a closed cluster is refused before anything of the body is read, and so is who may not do
what the route is for, as far as its path and query tell. Routes find the rights of their caller in ``current_rights``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_common.core.access.authentication import Shown, bearer_of
from headrace_common.core.access.principal import ANONYMOUS
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import ClusterAuthorizationFailed, HeadraceError, Unauthenticated
from headrace_common.http.problems import problem_of
from headrace_common.rpc.access_rules import NOBODY, NODES, Rule
from headrace_common.runtime.access_gate import AUTHORIZATION_KEY, Access, check

ANYONE: Final = Shown(Caller(ANONYMOUS))


class AccessGate:
    """ASGI middleware, outside of whatever reads the body."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        rule_of: Callable[[Scope], Rule],
        *,
        answer: Callable[[HeadraceError, str], Response] = problem_of,
    ) -> None:
        """
        Args:
            rule_of: what is asked of a request, whose rules are given its scope; what it raises is answered.
                ``NOBODY``: it is answered as to a caller without a credential, whatever it shows.
            answer: makes the answer of a refusal for a path.
        """
        self._app = app
        self._access = access
        self._rule_of = rule_of
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            rule = self._rule_of(scope)
            shown = ANYONE if rule is NOBODY else self._shown(scope)
            if rule is NODES:
                raise ClusterAuthorizationFailed("this is for nodes of the cluster, which do not come by HTTP")
            with self._access.serving(shown, _rpc(scope)) as rights:
                check(rule, scope, shown, rights)
        except HeadraceError as error:
            await self._answer(error, scope["path"])(scope, receive, send)
            return
        with self._access.serving(shown, _rpc(scope)):
            await self._app(scope, receive, send)

    def _shown(self, scope: Scope) -> Shown:
        authorization = Headers(scope=scope).get(AUTHORIZATION_KEY)
        bearer = None if authorization is None else bearer_of(authorization)
        client = scope.get("client")
        host = client[0] if client else ""
        try:
            shown = self._access.authenticate(bearer, host)
        except Unauthenticated as error:
            self._access.auditing.failed(error, bearer, host, _rpc(scope))
            raise
        self._access.see(shown)
        return shown


def _rpc(scope: Scope) -> str:
    """How the audit names a request."""
    return f"REST/{scope['method']} {scope['path']}"
