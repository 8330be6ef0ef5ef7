"""Answers nobody who asks by a name that is not ours, before they are asked who they are."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_common.http.foreign_pages import Hosts, Refusal, find_host_refusal
from headrace_common.http.problems import problem_of_refusal


class HostGate:
    """
    ASGI middleware around the gates that know callers: a page whose own name leads here (DNS rebinding) is of our
    origin to the browser, and may show any header that it likes.
    """

    def __init__(
        self, app: ASGIApp, hosts: Hosts, *, answer: Callable[[Refusal, str], Response] = problem_of_refusal
    ) -> None:
        """
        Args:
            answer: makes the answer of a refusal for a path.
        """
        self._app = app
        self._hosts = hosts
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = find_host_refusal(Headers(scope=scope), self._hosts) if scope["type"] == "http" else None
        if refusal is not None:
            await self._answer(refusal, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)
