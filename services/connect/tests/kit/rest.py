"""The REST application over the twin, and a client in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import httpx
from fastapi import FastAPI
from libs.common.tests.kit.document import Document
from services.connect.tests.kit.callers import TwinCallers
from services.connect.tests.kit.twin import ME, TwinForwarding, TwinHerd, TwinHosts

from headrace_common.http.foreign_pages import Hosts
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect_worker.core.policy import Policy
from headrace_connect_worker.engine.checking import Checking
from headrace_connect_worker.engine.loggers import Loggers
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.engine.verifying import Verifying
from headrace_connect_worker.rpc.answering import OURS
from headrace_connect_worker.rpc.forwarding import AtLeader
from headrace_connect_worker.rpc.rest import rest_app
from headrace_connect_worker.rpc.workers import About, Worker

ALLOWED: Final = Policy(
    python=("shop.money:round",),
    secrets=("/etc/headrace",),
    variables=("SHOP_PASSWORD",),
    files=("/data", "/var/spool"),
    classes=("shop.plugins:Weather",),
)
JSON: Final = {"content-type": "application/json"}


@dataclass
class Rest:
    """What is behind the application, and a client in front of it."""

    herd: TwinHerd
    hosts: TwinHosts
    forwarding: TwinForwarding
    verifying: Verifying
    callers: TwinCallers
    client: httpx.AsyncClient

    async def create(self, name: str, **config: str) -> httpx.Response:
        """A source, which runs."""
        body = {"name": name, "config": {"connector.class": "FileStreamSource", "topic": "t", **config}}
        answer = await self.client.post("/connectors", json=body)
        self.herd.follow()
        return answer


class _Now:
    """Hands on to the test's own: making the application takes longer than most tests."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        return getattr(getattr(_CURRENT[-1], self._name), method)


_CURRENT: Final[list[Rest]] = []


def make_verifying(herd: Any, hosts: Any, runner: TaskRunner) -> Verifying:
    """What carries out verifications, as ``main`` makes it."""
    return Verifying(herd, hosts, Checking(hosts, ALLOWED), Place(ME, f"http://{ME}"), runner, SystemClock())


def make_app(
    herd: Any, hosts: Any, forwarding: Any, verifying: Any, policy: Policy = ALLOWED, callers: Any = None
) -> FastAPI:
    """The application as ``main`` makes it."""
    worker = Worker(
        herd,
        Checking(hosts, policy),
        verifying,
        AtLeader(herd, forwarding, lambda: f"http://{ME}"),
        Loggers(SystemClock()),
        About("0.1.0", "abc", lambda: "cluster-1"),
    )
    return rest_app(worker, callers or TwinCallers(), hosts=Hosts.of(["connect.example"]))


@cache
def the_app() -> FastAPI:
    """One for all tests."""
    return make_app(_Now("herd"), _Now("hosts"), _Now("forwarding"), _Now("verifying"), callers=_Now("callers"))


@cache
def the_document() -> Document:
    return Document(the_app().openapi())


async def _check(response: httpx.Response) -> None:
    """Each answer is as the application's document says, or an error in one of the two forms."""
    path = response.request.url.raw_path.decode().partition("?")[0]
    body = await response.aread()
    if _CURRENT[-1].forwarding.sent:  # what the twin of a leader answers is nothing of ours
        return
    if response.is_success:
        if body and path != "/openapi.json":
            the_document().check_answer(response.request.method, path, response.status_code, response.json())
    elif path.startswith(OURS):
        assert response.headers["content-type"] == "application/problem+json"
    elif response.request.method != "HEAD" and path != "/health":
        assert response.json().keys() == {"error_code", "message"}
        assert response.json()["error_code"] == response.status_code


@asynccontextmanager
async def served() -> AsyncIterator[Rest]:
    """REST over a new twin."""
    transport = httpx.ASGITransport(the_app(), raise_app_exceptions=False)
    hooks: Any = {"response": [_check]}
    async with (
        TaskRunner() as runner,
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8083", event_hooks=hooks) as client,
    ):
        herd, hosts = TwinHerd(), TwinHosts()
        verifying = make_verifying(herd, hosts, runner)
        _CURRENT.append(Rest(herd, hosts, TwinForwarding(), verifying, TwinCallers(), client))
        try:
            yield _CURRENT[-1]
        finally:
            _CURRENT.clear()


CODES = {
    400: "INVALID_REQUEST",
    404: "RESOURCE_NOT_FOUND",
    409: "INVALID_UPDATE_VERSION",
    500: "UNKNOWN_SERVER_ERROR",
    502: "NETWORK_EXCEPTION",
    503: "OVERLOADED",
}


def problem(answer: httpx.Response, status: int, says: str, code: str = "") -> None:
    """The answer is one below ``/v1``, of a failure that says this."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in answer.json()["detail"]
    assert answer.json()["code"] == (code or CODES[status])
    assert answer.json()["type"] == f"urn:headrace:error:{answer.json()['code']}"
