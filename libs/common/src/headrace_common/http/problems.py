"""
Decides how a failure looks over HTTP: RFC 9457 ``application/problem+json``, as ``core.problems`` has it for all, with
``errors`` beside it where a request is malformed.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.responses import Response

from headrace_common.core.errors import ErrorCode, HeadraceError, Kind
from headrace_common.core.problems import problem_body, status_of
from headrace_common.http.foreign_pages import Refusal
from headrace_common.http.safe_headers import SAFE_HEADERS

MEDIA_TYPE: Final = "application/problem+json"

_TITLE_OF_STATUS: Final[Mapping[int, str]] = {
    404: "There is nothing here",
    405: "The method is not allowed here",
    406: "That form cannot be given",
    403: "The request is not allowed",
    408: "The request took too long",
    409: "It conflicts with what is there now",
    413: "The request is too large",
    415: "The body is not JSON",
    421: "The request is for another host",
    431: "The head of the request is too large",
    500: "The request failed inside",
    502: "Another system does not answer",
    503: "There is no room now",
}
_CODE_OF_STATUS: Final[Mapping[int, ErrorCode]] = {
    403: ErrorCode.POLICY_VIOLATION,
    404: ErrorCode.RESOURCE_NOT_FOUND,
    408: ErrorCode.REQUEST_TIMED_OUT,
    409: ErrorCode.INVALID_UPDATE_VERSION,
    413: ErrorCode.MESSAGE_TOO_LARGE,
    429: ErrorCode.OVERLOADED,
    500: ErrorCode.UNKNOWN_SERVER_ERROR,
    502: ErrorCode.NETWORK_EXCEPTION,
    503: ErrorCode.OVERLOADED,
    504: ErrorCode.REQUEST_TIMED_OUT,
}
"""As typed errors of these statuses have them; of others the request is what is wrong."""


def problem_of(error: HeadraceError, instance: str) -> Response:
    """The answer for a typed error."""
    headers = {"retry-after": "1"} if error.kind in {Kind.BUSY, Kind.MOVED} else {}
    if error.kind is Kind.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    body = {name: value for name, value in problem_body(error, instance).items() if value is not None}
    return _response(status_of(error), body, headers)


def problem(
    status: int,
    detail: str,
    instance: str,
    *,
    next_step: str,
    code: ErrorCode | None = None,
    errors: list[dict[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """
    The answer for a request that never reached the engine.

    Args:
        code: None: what ``status`` stands for.
    """
    code = code or _CODE_OF_STATUS.get(status, ErrorCode.INVALID_REQUEST)
    body: dict[str, Any] = {
        "type": f"urn:headrace:error:{code.name}",
        "title": _TITLE_OF_STATUS.get(status, "The request is not valid"),
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code.name,
        "retriable": code.retriable,
        "next_step": next_step,
    }
    if errors:
        body["errors"] = errors
    return _response(status, body, headers or {})


def problem_of_refusal(refusal: Refusal, instance: str) -> Response:
    """The answer for a request that got no further than the gate."""
    return problem(refusal.status, refusal.detail, instance, next_step=refusal.next_step)


def refusal(status: int, detail: str, next_step: str) -> bytes:
    """The answer, as it goes over the wire, of a connection that never got as far as a request; it ends with it."""
    return on_the_wire(problem(status, detail, "", next_step=next_step))


def on_the_wire(response: Response) -> bytes:
    """A whole answer, after which the connection is closed."""
    response.headers.update({"connection": "close", **SAFE_HEADERS})
    status = response.status_code
    head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), *map(b": ".join, response.raw_headers)]
    return b"\r\n".join(head) + b"\r\n\r\n" + bytes(response.body)


def _response(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    return Response(orjson.dumps(body), status, dict(headers), MEDIA_TYPE)
