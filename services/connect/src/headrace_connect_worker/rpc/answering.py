"""
Decides what status and body an error has: ``{"error_code", "message"}`` as Kafka Connect, and below ``/v1`` a problem
as everywhere else (RFC 9457).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_common.core.errors import ErrorCode, HeadraceError, Internal, Kind
from headrace_common.http.foreign_pages import Refusal as Refused
from headrace_common.http.problems import MEDIA_TYPE, on_the_wire, problem
from headrace_common.http.verbs import allowed
from headrace_common.runtime.clock import limit_ms
from headrace_connect_worker.core.refusals import NotWritten, Refusal
from headrace_connect_worker.ports import HostUnavailable, NotAnswered
from headrace_connect_worker.rpc import kafka_shapes

OURS: Final = "/v1/"
"""Below this, answers are not Kafka's."""
_STATUS_OF_KIND: Final[Mapping[Kind, int]] = {
    Kind.INVALID: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.DENIED: 403,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.BUSY: 503,
    Kind.MOVED: 503,
}
"""Of others 500, as with Kafka, where an answer did not come in time too."""
_BUSY: Final = frozenset({429, 503})

_log = logging.getLogger(__name__)


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A body as JSON."""
    return Response(orjson.dumps(body), status, dict(headers or {}), "application/json")


def no_body(status: int) -> Response:
    """204, and 202 of what happens later."""
    return Response(status_code=status)


def forwarded(status: int, body: bytes, path: str, headers: Mapping[str, str]) -> Response:
    """What another worker has answered, as it is where ``path`` is."""
    kind = MEDIA_TYPE if path.startswith(OURS) and status >= HTTPStatus.BAD_REQUEST else "application/json"
    return Response(body, status, dict(headers), kind if body else None)


def failure(status: int, message: str, path: str, next_step: str = "", code: ErrorCode | None = None) -> Response:
    """
    The answer of a failure, as it is where ``path`` is.

    Args:
        code: of a problem; None: what ``status`` stands for.
    """
    headers = {"retry-after": "1"} if status in _BUSY else {}
    if path.startswith(OURS):
        step = next_step or "See /openapi.json for what there is."
        return problem(status, message, path, next_step=step, code=code, headers=headers)
    said = f"{message}. {next_step}" if next_step else message
    return answer(kafka_shapes.error(status, said), status, headers)


def refuse_at_gate(refusal: Refused, path: str) -> Response:
    """The answer for a request that got no further than the gate."""
    return failure(refusal.status, refusal.detail, path, refusal.next_step)


def refuse_connection(status: int, detail: str, next_step: str) -> bytes:
    """The answer, as it goes over the wire, of a connection that never got as far as a request."""
    return on_the_wire(failure(status, detail, "", next_step))


def status_and_text(error: Exception) -> tuple[int, str]:
    """What is said of an error that is expected."""
    match error:
        case Refusal():
            return error.status, str(error)
        case NotAnswered():
            return 502, str(error)
        case HostUnavailable():
            return 500, f"the host process did not answer: {error}"
        case HeadraceError():
            return _STATUS_OF_KIND.get(error.kind, 500), str(error)
    raise AssertionError(f"nobody expects {type(error).__name__}")


def add_error_answers(app: FastAPI) -> None:
    """Have every failure answered in one of the two forms."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        step = "It may have been carried out: look first." if isinstance(error, NotWritten) and error.unknown else ""
        return failure(*status_and_text(error), request.url.path, step, error.code)

    @app.exception_handler(HostUnavailable)
    async def no_host(request: Request, error: HostUnavailable) -> Response:
        return failure(*status_and_text(error), request.url.path)

    @app.exception_handler(NotAnswered)
    async def away(request: Request, error: NotAnswered) -> Response:
        return failure(*status_and_text(error), request.url.path, "Have the other system answer, and ask again.")

    @app.exception_handler(HeadraceError)
    async def headrace(request: Request, error: HeadraceError) -> Response:
        if isinstance(error, Internal):
            _log.error("a request failed inside", exc_info=error, extra={"path": request.url.path})
        return failure(*status_and_text(error), request.url.path, code=error.code)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        wrong = [f"{'/'.join(str(part) for part in e['loc'])[:200]}: {str(e['msg'])[:500]}" for e in error.errors()]
        return failure(400, "; ".join(wrong[:3]), request.url.path)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        plain = error.detail == HTTPStatus(error.status_code).phrase
        said = f"HTTP {error.status_code} {error.detail}" if plain else error.detail
        response = failure(error.status_code, said, request.url.path)
        if error.status_code == 405:
            response.headers["allow"] = allowed(app.routes, request.scope)
        return response

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("unexpected failure in a request", exc_info=error, extra={"path": request.url.path})
        return failure(500, "the request failed inside the worker; its log has the details", request.url.path)


class TimeLimit:
    """ASGI middleware: a request that is not answered in time is answered with 500, as Kafka does."""

    def __init__(self, app: ASGIApp, ms_max: float) -> None:
        self._app = app
        self._ms_max = ms_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            async with limit_ms(self._ms_max):
                await self._app(scope, receive, noting)
        except TimeoutError:
            if begun:
                raise
            step = "It may have been carried out: look first." if scope["method"] != "GET" else ""
            await failure(500, "Request timed out", scope["path"], step)(scope, receive, send)
