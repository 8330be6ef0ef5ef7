"""Decides what HTTP's verbs mean beside the routes: HEAD is GET without the body, and which verbs a path takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_VERBS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


class HeadAsGet:
    """ASGI middleware in front of the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        asked = dict(scope, method="GET")
        try:
            await self._app(asked, receive, without_body)
        finally:
            scope["route"] = asked.get("route")  # for those in front, who measure by route


def allowed(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """The header ``Allow``: all verbs that the request's path takes."""
    there = [verb for verb in _VERBS if _takes(routes, dict(scope, method=verb))]
    return ", ".join(["GET", "HEAD", *there[1:]] if there[:1] == ["GET"] else there)


def _takes(routes: Iterable[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in routes)
