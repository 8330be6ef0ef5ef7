"""Listens for a web hook: the HTTP server that services have, within its bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headrace_common.core.ids import Endpoint
from headrace_common.http.problems import refusal
from headrace_common.http.protocol import HttpBounds
from headrace_common.http.server import HttpServer
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.connectors.http.hook import Hook
from headrace_connect.connectors.http.settings import SourceSettings

_HEAD_MS_MAX: Final = 10_000
_DRAIN_MS_MAX: Final = 1_000
"""For answers that are under way when it ends."""
_SPARE_CONNECTIONS: Final = 100
"""Beyond the requests that there is room for: for those that are answered with 429."""


@asynccontextmanager
async def serve(hook: Hook, settings: SourceSettings) -> AsyncIterator[Endpoint]:
    """
    Listen while the block lasts; gives the real port.

    Raises:
        OSError: the address is taken, or not of this machine.
    """
    bounds = HttpBounds(
        connections_max=settings.queue_requests + _SPARE_CONNECTIONS,
        connections_per_address_max=settings.connections_per_address,
        head_ms_max=_HEAD_MS_MAX,
        body_ms_max=settings.body_timeout_ms,
        refusal=refusal,
    )
    async with (
        TaskRunner() as tasks,
        HttpServer.open(hook, settings.endpoint, tasks, bounds, drain_ms_max=_DRAIN_MS_MAX, option="listen") as server,
    ):
        yield server.endpoint
