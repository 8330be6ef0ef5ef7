"""
The REST face: one application made of the routes, the error mapping, the gate in front, and its own documentation.

Called by ``main`` once. Nothing here decides about the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from fastapi import Depends, FastAPI, Request, status
from fastapi.exceptions import RequestValidationError
from opentelemetry.metrics import Meter
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace_admin.config import Limits
from headrace_admin.ports import Seals
from headrace_admin.rpc import models
from headrace_admin.rpc.answer_types import ANSWERS
from headrace_admin.rpc.docs_page import answer_refused, docs_routes
from headrace_admin.rpc.engines import Engines
from headrace_admin.rpc.rest_access import access_routes
from headrace_admin.rpc.rest_broker_changes import broker_change_routes, node_routes
from headrace_admin.rpc.rest_cluster import cluster_routes
from headrace_admin.rpc.rest_elections import election_routes
from headrace_admin.rpc.rest_groups import group_routes
from headrace_admin.rpc.rest_messages import message_routes
from headrace_admin.rpc.rest_reassignments import reassignment_routes
from headrace_admin.rpc.rest_restore import restore_routes
from headrace_admin.rpc.rest_session import session_routes
from headrace_admin.rpc.rest_status import status_routes
from headrace_admin.rpc.rest_streams import streams_routes
from headrace_admin.rpc.rest_topics import topic_routes
from headrace_admin.rpc.rest_transactions import transaction_routes
from headrace_admin.rpc.route_table import RouteRules
from headrace_admin.rpc.schemas import REFERENCE, components
from headrace_admin.rpc.session_gate import SessionGate, Sessions
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import HeadraceError, Internal, MetadataUnavailable
from headrace_common.http.access_gate import AccessGate
from headrace_common.http.foreign_pages import Hosts
from headrace_common.http.host_gate import HostGate
from headrace_common.http.json_gate import JsonGate
from headrace_common.http.metrics import RestMetrics
from headrace_common.http.paces import PaceBounds, Paces
from headrace_common.http.problems import MEDIA_TYPE, problem, problem_of
from headrace_common.http.queries import refuse_unknown_query
from headrace_common.http.safe_headers import SafeHeaders
from headrace_common.http.verbs import HeadAsGet, allowed
from headrace_common.runtime.access_gate import Access
from headrace_common.runtime.clock import Clock, SystemClock

_log = logging.getLogger(__name__)

_DESCRIPTION: Final = """
Administration of a Headrace cluster. Errors are `application/problem+json` (RFC 9457) with Kafka's error names, whether
the same request may be retried, and what to do next.
"""


class RestApp(FastAPI):
    """FastAPI whose document says what really comes back: problems, and only those. All of it is safe for browsers."""

    def build_middleware_stack(self) -> ASGIApp:
        """With headers around all that answers, faults of ours too."""
        return SafeHeaders(super().build_middleware_stack())

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"]["schemas"] |= components(ANSWERS)
            for operation in (o for methods in document["paths"].values() for o in methods.values()):
                operation["responses"].pop("422", None)
                for content in (c for r in operation["responses"].values() for c in r.get("content", {}).values()):
                    content["schema"] = content["schema"].get(REFERENCE, content["schema"])
                problem_content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
                operation["responses"]["default"] = {"description": "A problem", "content": problem_content}
            for unused in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(unused, None)
        assert self.openapi_schema is not None, "it was just made"
        return self.openapi_schema


def rest_app(
    engines: Engines,
    limits: Limits,
    *,
    ready: Callable[[], bool],
    hosts: Hosts,
    access: Access,
    seals: Seals,
    clock: Clock | None = None,
    meter: Meter | None = None,
) -> FastAPI:
    """
    The application.

    Args:
        ready: whether this process has joined the cluster and is not leaving.
        access: who calls and what they may.
        seals: of cookies.
        meter: measures requests where it is given.
        hosts: the names by which it may be asked for.
    """
    app = RestApp(
        title="Headrace admin",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": models.Problem}},
        redirect_slashes=False,
    )
    clock = clock or SystemClock()
    cluster = engines.administration.cluster
    sessions = Sessions(seals, clock, access, lambda: cluster.image.cluster_id)
    paces = Paces(_pace_bounds(limits), clock, lambda: access.view.mode is Mode.CLOSED)
    routers = [
        session_routes(engines.administration, sessions, paces),
        cluster_routes(engines.administration, engines.certificates),
        status_routes(engines.statuses, paces),
        reassignment_routes(engines.administration, engines.reassignments),
        broker_change_routes(engines.administration, engines.reassignments),
        node_routes(engines.administration, engines.reassignments),
        election_routes(engines.administration),
        restore_routes(engines.administration),
        topic_routes(engines.administration),
        message_routes(engines.messages, paces),
        group_routes(engines.groups, engines.resets),
        streams_routes(engines.streams),
        transaction_routes(engines.transactions, engines.open_transactions),
        access_routes(engines.accesses, engines.observations, engines.administration),
    ]
    docs = docs_routes()
    _health(app, ready)
    every = [*app.routes, *(route for router in (*routers, docs) for route in router.routes)]
    for router in routers:
        app.include_router(router, dependencies=[Depends(refuse_unknown_query)])
    app.include_router(docs)
    _errors(app)
    app.add_middleware(HeadAsGet)
    app.add_middleware(JsonGate, body_bytes_max=limits.body_bytes_max, hosts=hosts)
    app.add_middleware(  # before anything reads the body
        AccessGate,
        access=access,
        rule_of=RouteRules(every),
        answer=answer_refused,
        bearer=sessions.find_bearer,
        paces=paces,
    )
    app.add_middleware(SessionGate, sessions=sessions, hosts=hosts)
    app.add_middleware(HostGate, hosts=hosts)
    if meter is not None:
        app.add_middleware(RestMetrics, meter=meter, clock=clock, service="admin")  # added last: around the gate
    return app


def _pace_bounds(limits: Limits) -> PaceBounds:
    return PaceBounds(
        caller=limits.http_requests_per_second,
        stranger=limits.http_strangers_per_second,
        reads=limits.http_reads_per_second,
        reads_at_once=limits.http_reads_per_principal_max,
    )


def _health(app: FastAPI, ready: Callable[[], bool]) -> None:
    @app.get("/health/live", tags=["health"], operation_id="live")
    async def live() -> models.Health:
        """The process lives."""
        return models.Health(status="ok")

    @app.get("/health/ready", tags=["health"], operation_id="ready")
    async def is_ready() -> models.Health:
        """The process has joined the cluster and takes requests; 503 when not."""
        if not ready():
            raise MetadataUnavailable("this process has not joined the cluster yet, or is leaving it")
        return models.Health(status="ok")


def _errors(app: FastAPI) -> None:
    @app.exception_handler(HeadraceError)
    async def headrace(request: Request, error: HeadraceError) -> Response:
        if isinstance(error, Internal):
            _log.error("a request failed inside", exc_info=error, extra={"path": request.url.path})
        return problem_of(error, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        wrong = [
            {"where": "/".join(str(part) for part in e["loc"])[:200], "message": str(e["msg"])[:500]}
            for e in error.errors()[:20]
        ]
        detail = "; ".join(f"{e['where']}: {e['message']}" for e in wrong[:3])
        step = "Correct what `errors` names; /docs shows what is expected."
        return problem(400, detail, request.url.path, next_step=step, errors=wrong)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        step, headers = "See /docs for what there is.", error.headers
        if error.status_code == status.HTTP_405_METHOD_NOT_ALLOWED:
            headers = {"allow": allowed(app.routes, request.scope)}
        return problem(error.status_code, error.detail, request.url.path, next_step=step, headers=headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("unexpected failure in a request", exc_info=error, extra={"path": request.url.path})
        return problem_of(Internal("the request failed inside the server; its log has the details"), request.url.path)
