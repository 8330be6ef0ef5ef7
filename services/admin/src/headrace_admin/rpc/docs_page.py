"""The documentation page: one file of our own that reads ``/openapi.json``; nothing comes from other machines."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from starlette.responses import HTMLResponse

_FILE: Final = "docs.html"


def docs_routes() -> APIRouter:
    page = files("headrace_admin.rpc").joinpath(_FILE).read_text("utf-8")
    headers = {
        "content-security-policy": (
            f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            f"script-src '{_hash(page, 'script')}'; style-src '{_hash(page, 'style')}'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    routes = APIRouter()

    @routes.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    return routes


def _hash(page: str, tag: str) -> str:
    """Of the page's one inline element of this kind, as the content security policy names it."""
    content = page.split(f"<{tag}>", 1)[1].split(f"</{tag}>", 1)[0]
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
