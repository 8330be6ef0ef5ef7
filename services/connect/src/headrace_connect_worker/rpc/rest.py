"""
The REST face: one application made of the routes, the error answers and the gate in front. Called by ``main`` once.

Paths, statuses and bodies are those of Kafka Connect; ``docs/connect-rest.md`` has what differs, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from opentelemetry.metrics import Meter

from headrace_common.http.foreign_pages import Hosts
from headrace_common.http.host_gate import HostGate
from headrace_common.http.json_gate import JsonGate
from headrace_common.http.metrics import RestMetrics
from headrace_common.http.queries import refuse_unknown_query
from headrace_common.http.safe_headers import SafeHeaders
from headrace_common.http.verbs import HeadAsGet
from headrace_common.runtime.clock import SystemClock
from headrace_connect_worker.ports import Callers
from headrace_connect_worker.rpc import models
from headrace_connect_worker.rpc.access_gate import AccessGate
from headrace_connect_worker.rpc.answering import TimeLimit, add_error_answers, refuse_at_gate
from headrace_connect_worker.rpc.paths import RawPaths
from headrace_connect_worker.rpc.rest_connectors import changing_routes, reading_routes
from headrace_connect_worker.rpc.rest_offsets import offset_routes
from headrace_connect_worker.rpc.rest_ours import our_routes
from headrace_connect_worker.rpc.rest_plugins import plugin_routes
from headrace_connect_worker.rpc.rest_running import running_routes, status_routes
from headrace_connect_worker.rpc.rest_verify import verify_routes
from headrace_connect_worker.rpc.rest_worker import worker_routes
from headrace_connect_worker.rpc.workers import Worker

BODY_BYTES_MAX: Final = 4 << 20
REQUEST_MS_MAX: Final = 90_000
"""Kafka's: how long a request may take, in ms."""
_DESCRIPTION: Final = """
Connectors: data of other systems into topics, and topics into other systems. The paths of Kafka Connect, with its
statuses and bodies; errors are `{"error_code", "message"}`. Below `/v1` is what Kafka Connect does not have, with
problems (RFC 9457).
"""
_ROUTES: Final[tuple[Callable[[Worker], Any], ...]] = (
    worker_routes,
    reading_routes,
    changing_routes,
    status_routes,
    running_routes,
    offset_routes,
    plugin_routes,
    our_routes,
    verify_routes,
)


class RestApp(FastAPI):
    """FastAPI whose document says what really comes back."""

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            for operation in (o for methods in document["paths"].values() for o in methods.values()):
                operation["responses"].pop("422", None)
            for unused in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(unused, None)
        assert self.openapi_schema is not None, "it was just made"
        return self.openapi_schema


def rest_app(worker: Worker, callers: Callers, *, hosts: Hosts, meter: Meter | None = None) -> FastAPI:
    """
    The application.

    Args:
        callers: says who may ask.
        hosts: the names by which it may be asked for.
        meter: measures requests where it is given.
    """
    app = RestApp(
        title="Headrace Connect",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": models.Error, "description": "It failed"}},
        redirect_slashes=False,
    )
    app.add_middleware(HeadAsGet)
    app.add_middleware(RawPaths)
    app.add_middleware(TimeLimit, ms_max=REQUEST_MS_MAX)
    app.add_middleware(JsonGate, body_bytes_max=BODY_BYTES_MAX, hosts=hosts, bodiless=True, answer=refuse_at_gate)
    routers = [routes(worker) for routes in _ROUTES]
    every = [*app.routes, *(route for router in routers for route in router.routes)]
    app.add_middleware(AccessGate, callers=callers, routes=every)  # before anything reads the body
    app.add_middleware(HostGate, hosts=hosts, answer=refuse_at_gate)
    if meter is not None:
        app.add_middleware(RestMetrics, meter=meter, clock=SystemClock(), service="connect")  # around the gates
    app.add_middleware(SafeHeaders)
    for router in routers:
        app.include_router(router, dependencies=[Depends(_strict_changes)])
    add_error_answers(app)
    return app


async def _strict_changes(request: Request) -> None:
    """Whoever asks may say more than is read, as with Kafka; a change that is half understood is none."""
    if request.method != "GET":
        await refuse_unknown_query(request)
