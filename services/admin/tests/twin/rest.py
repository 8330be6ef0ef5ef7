"""A whole REST application over a cluster in memory, for tests that are not on the lab yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import httpx
import pytest
from fastapi import FastAPI
from libs.common.tests.kit.clock import FakeClock
from services.admin.tests.document import Document
from services.admin.tests.twin.memory_cluster import MemoryCluster
from services.admin.tests.twin.memory_coordinators import MemoryCoordinators
from services.admin.tests.twin.memory_messages import MemoryMessages
from services.admin.tests.twin.memory_transactions import MemoryTransactions

from headrace_admin.config import Limits, TransactionLimits
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.messages import Messages
from headrace_admin.rpc.engines import Engines, Ports
from headrace_admin.rpc.foreign_pages import Hosts
from headrace_admin.rpc.rest import rest_app

JSON = {"content-type": "application/json"}
"""What every change needs, with a body or without."""
LIMITS = Limits(body_bytes_max=64_000, records_max=100)


@dataclass
class Rest:
    """The application, what is behind it, and a client in front of it."""

    cluster: MemoryCluster
    log: MemoryMessages
    coordinators: MemoryCoordinators
    transactions: MemoryTransactions
    app: FastAPI
    client: httpx.AsyncClient
    ready: list[bool] = field(default_factory=lambda: [True])


def make_app(
    cluster: MemoryCluster,
    log: MemoryMessages,
    coordinators: MemoryCoordinators,
    transactions: MemoryTransactions,
    ready: list[bool],
) -> FastAPI:
    messages = Messages(log, cluster, LIMITS)
    engine = Administration(cluster, cluster, cluster)
    engines = Engines.over(engine, messages, Ports(coordinators, transactions, FakeClock()), TransactionLimits())
    return rest_app(engines, LIMITS, ready=lambda: ready[0], hosts=Hosts.of(["headrace.example"]))


def check_against(app: FastAPI) -> Callable[[httpx.Response], Awaitable[None]]:
    """For clients: each answer of success is as the application's document says."""
    document = Document(app.openapi())

    async def check(response: httpx.Response) -> None:
        path = response.request.url.path
        if response.is_success and path.startswith(("/v1", "/health")) and await response.aread():
            document.check_answer(response.request.method, path, response.status_code, response.json())

    return check


@pytest.fixture
async def rest_in_memory() -> AsyncIterator[Rest]:
    cluster, log, ready = MemoryCluster(), MemoryMessages(), [True]
    coordinators = MemoryCoordinators(cluster)
    transactions = MemoryTransactions(cluster)
    app = make_app(cluster, log, coordinators, transactions, ready)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport,
        base_url="http://127.0.0.1:9480",
        headers=JSON,
        event_hooks={"response": [check_against(app)]},
    ) as client:
        yield Rest(cluster, log, coordinators, transactions, app, client, ready)
