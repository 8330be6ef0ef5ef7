"""
Decides how a failure looks over HTTP: RFC 9457 ``application/problem+json``, one mapping for all errors.

Members: ``type``, ``title``, ``status``, ``detail``, ``instance``, and ours: ``code`` (Kafka's name), ``retriable``
(the same request may succeed later), ``next_step`` (what to do), and ``errors`` (where a request is malformed).
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.responses import Response

from headrace_common.core.errors import ErrorCode, HeadraceError, Kind

MEDIA_TYPE: Final = "application/problem+json"

_STATUS_OF_KIND: Final[Mapping[Kind, int]] = {
    Kind.INVALID: 400,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.MOVED: 503,
    Kind.FENCED: 409,
    Kind.BUSY: 503,
    Kind.UNKNOWN: 504,
    Kind.DAMAGED: 500,
    Kind.INTERNAL: 500,
}
_STATUS_OF_CODE: Final[Mapping[ErrorCode, int]] = {
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.RECORD_LIST_TOO_LARGE: 413,
    ErrorCode.OVERLOADED: 429,
    ErrorCode.POLICY_VIOLATION: 403,
    ErrorCode.INVALID_TXN_STATE: 409,
}
_NEXT_STEP: Final[Mapping[Kind, str]] = {
    Kind.INVALID: "Correct the request; as it is it will never succeed.",
    Kind.NOT_FOUND: "Check the name; list what there is.",
    Kind.CONFLICT: "Look at what is there now, then decide.",
    Kind.MOVED: "Wait a moment and send the same request again.",
    Kind.FENCED: "Start the operation again from its beginning.",
    Kind.BUSY: "Wait a moment and send the same request again.",
    Kind.UNKNOWN: "It may have been carried out: look first, then send it again if it was not.",
    Kind.DAMAGED: "Stop writing there and look at the broker's log; an operator has to decide.",
    Kind.INTERNAL: "This is a fault of Headrace; its log has the details.",
}
_NEXT_STEP_OF_CODE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.NON_EMPTY_GROUP: "Stop the group's members, wait until GET /v1/groups/{group} shows none, and repeat it.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members that read the topic, or have them read others; repeat it.",
    ErrorCode.GROUP_ID_NOT_FOUND: "Check the id; GET /v1/groups lists those there are.",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "Check the id; GET /v1/transactions lists those there are.",
    ErrorCode.INVALID_TXN_STATE: "GET /v1/transactions/{id} shows how it is; GET /v1/transactions-prepared the tokens "
    "that decide prepared ones, GET /v1/transactions-open what holds readers back.",
    ErrorCode.TXN_VERDICT_UNKNOWN: "Look at the data, or into the application's own records: what became of it is not "
    "kept for ever.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "Its end is being written; wait a moment and send the same request again.",
}
_TITLE_OF_STATUS: Final[Mapping[int, str]] = {
    404: "There is nothing here",
    405: "The method is not allowed here",
    406: "That form cannot be given",
    403: "The request is not allowed",
    408: "The request took too long",
    413: "The request is too large",
    415: "The body is not JSON",
    421: "The request is for another host",
    431: "The head of the request is too large",
    503: "There is no room now",
}


def status_of(error: HeadraceError) -> int:
    """The HTTP status of an error."""
    return _STATUS_OF_CODE.get(error.code) or _STATUS_OF_KIND[error.kind]


def problem_body(error: HeadraceError, instance: str) -> dict[str, Any]:
    """The members of the problem for a typed error."""
    return {
        "type": f"urn:headrace:error:{error.code.name}",
        "title": error.code.name.replace("_", " ").capitalize(),
        "status": status_of(error),
        "detail": str(error),
        "instance": instance,
        "code": error.code.name,
        "retriable": error.retriable,
        "next_step": _NEXT_STEP_OF_CODE.get(error.code) or _NEXT_STEP[error.kind],
    }


def problem_of(error: HeadraceError, instance: str) -> Response:
    """The answer for a typed error."""
    headers = {"retry-after": "1"} if error.kind in {Kind.BUSY, Kind.MOVED} else {}
    return _response(status_of(error), problem_body(error, instance), headers)


def problem(
    status: int,
    detail: str,
    instance: str,
    *,
    next_step: str,
    errors: list[dict[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer for a request that never reached the engine."""
    body: dict[str, Any] = {
        "type": "urn:headrace:error:INVALID_REQUEST",
        "title": _TITLE_OF_STATUS.get(status, "The request is not valid"),
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": ErrorCode.INVALID_REQUEST.name,
        "retriable": False,
        "next_step": next_step,
    }
    if errors:
        body["errors"] = errors
    return _response(status, body, headers or {})


def refusal(status: int, detail: str, next_step: str) -> bytes:
    """The answer, as it goes over the wire, of a connection that never got as far as a request; it ends with it."""
    response = problem(status, detail, "", next_step=next_step, headers={"connection": "close"})
    head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), *map(b": ".join, response.raw_headers)]
    return b"\r\n".join(head) + b"\r\n\r\n" + bytes(response.body)


def _response(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    return Response(orjson.dumps(body), status, dict(headers), MEDIA_TYPE)
