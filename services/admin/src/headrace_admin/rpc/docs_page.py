"""
The pages for people, each one file of our own; nothing comes from other machines. ``docs.html`` reads
``/openapi.json``; ``login.html`` is what a browser gets in its place that has not logged in, and logs it in.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from headrace_common.core.errors import HeadraceError, Kind
from headrace_common.http.access_gate import answer_problem

_DOCS: Final = "docs.html"
_LOGIN: Final = "login.html"
_PATH: Final = "/docs"


def docs_routes() -> APIRouter:
    routes = APIRouter()

    @routes.get(_PATH, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return _page(_DOCS)

    return routes


def answer_refused(error: HeadraceError, scope: Scope) -> Response:
    """A problem, or for a browser that asks for the page, and is not logged in, how to."""
    asks_for_page = scope["path"] == _PATH and "text/html" in Headers(scope=scope).get("accept", "")
    if error.kind is Kind.UNAUTHENTICATED and asks_for_page:
        return _page(_LOGIN, status=401)
    return answer_problem(error, scope)


def _page(name: str, status: int = 200) -> HTMLResponse:
    text, policy = _read(name)
    return HTMLResponse(text, status, {"content-security-policy": policy})


@cache
def _read(name: str) -> tuple[str, str]:
    """A page and its content security policy, by which nothing of it works but what stands in the file."""
    text = files("headrace_admin.rpc").joinpath(name).read_text("utf-8")
    policy = (
        f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"script-src '{_hash(text, 'script')}'; style-src '{_hash(text, 'style')}'"
    )
    return text, policy


def _hash(page: str, tag: str) -> str:
    """Of the page's one inline element of this kind, as the content security policy names it."""
    content = page.split(f"<{tag}>", 1)[1].split(f"</{tag}>", 1)[0]
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
