"""The REST application in front of a world, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final, cast

import httpx
from fastapi import FastAPI
from libs.common.tests.kit.closed import Rows
from libs.common.tests.kit.document import Document
from services.admin.tests.kit.world import LIMITS, World

from headrace_admin.adapters.aes_seals import AesSeals
from headrace_admin.rpc.engines import Engines
from headrace_admin.rpc.rest import rest_app
from headrace_common.core.access.rows import Mode
from headrace_common.http.foreign_pages import Hosts

JSON: Final = {"content-type": "application/json"}
"""What every change needs, with a body or without."""


class _Now:
    """An engine of the world that a test has now: making the application takes longer than making a cluster."""

    worlds: Final[list[World]] = []
    ready: Final[list[bool]] = []

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        return getattr(getattr(self.worlds[-1].engines, self._name), method)


@dataclass
class Rest:
    """The application, what is behind it, and a client in front of it."""

    world: World
    app: FastAPI
    client: httpx.AsyncClient
    ready: list[bool]
    """What its readiness is; the last counts."""


@cache
def the_app() -> FastAPI:
    """One for all tests."""
    engines = Engines(*(cast(Any, _Now(each.name)) for each in fields(Engines)))
    return rest_app(
        engines,
        LIMITS,
        ready=lambda: _Now.ready[-1],
        hosts=Hosts.of(["headrace.example"], "--hosts, HEADRACE_ADMIN_HOSTS"),
        access=Rows(Mode.OPEN).access(),
        seals=AesSeals.of_this_process(),
    )


@cache
def the_document() -> Document:
    """That of the application."""
    return Document(the_app().openapi())


async def check(response: httpx.Response) -> None:
    """Each answer of success is as the application's document says."""
    path = response.request.url.path
    if response.is_success and path.startswith(("/v1", "/health")) and await response.aread():
        the_document().check_answer(response.request.method, path, response.status_code, response.json())


@asynccontextmanager
async def served(world: World, *, raise_app_exceptions: bool = False) -> AsyncIterator[Rest]:
    """REST over ``world``."""
    _Now.worlds.append(world)
    _Now.ready.append(True)
    app = the_app()
    transport = httpx.ASGITransport(app, raise_app_exceptions=raise_app_exceptions)
    hooks: dict[str, list[Callable[..., Awaitable[None]]]] = {"response": [check]}
    base_url = "http://127.0.0.1:9480"
    try:
        async with httpx.AsyncClient(transport=transport, base_url=base_url, headers=JSON, event_hooks=hooks) as client:
            yield Rest(world, app, client, _Now.ready)
    finally:
        _Now.worlds.clear()
        _Now.ready.clear()
