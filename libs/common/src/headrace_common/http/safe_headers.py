"""
Decides what every answer of a port tells browsers: no frame around it, no guess at what it is, nothing kept, and
nothing that a page of another origin could read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_common.http.foreign_pages import is_public_name

SAFE_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
STRICT_TRANSPORT: Final = "max-age=31536000"


class SafeHeaders:
    """ASGI middleware around everything that answers; what an answer says of these itself stays."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
                if scope.get("scheme") == "https" and is_public_name(Headers(scope=scope).get("host", "")):
                    headers.setdefault("strict-transport-security", STRICT_TRANSPORT)
            await send(message)

        await self._app(scope, receive, safe)
