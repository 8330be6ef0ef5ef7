"""
Decides how a typed error looks as JSON: RFC 9457, one mapping for REST and for commands that print JSON.

Members: ``type``, ``title``, ``status``, ``detail``, ``instance``, and ours: ``code`` (Kafka's name), ``retriable``
(the same request may succeed later), ``next_step`` (what to do), and ``errors`` (where a request is malformed).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace_common.core.errors import ErrorCode, HeadraceError, Kind, error_for

_STATUS_OF_KIND: Final[Mapping[Kind, int]] = {
    Kind.INVALID: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.DENIED: 403,
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
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
    ErrorCode.POLICY_VIOLATION: 403,
    ErrorCode.INVALID_TXN_STATE: 409,
}
_NEXT_STEP: Final[Mapping[Kind, str]] = {
    Kind.INVALID: "Correct the request; as it is it will never succeed.",
    Kind.UNAUTHENTICATED: "Send the header Authorization: Bearer hrk_ID_SECRET, with an API key that is valid; "
    "`headrace key create` makes one.",
    Kind.DENIED: "Ask somebody who may for the right; the detail names it.",
    Kind.NOT_FOUND: "Check the name; list the names that exist.",
    Kind.CONFLICT: "Look at the current state, then decide.",
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
    "kept forever.",
    ErrorCode.AUDIT_UNAVAILABLE: "Look at the disk of the audit (audit_dir) on the node that the detail names; nothing "
    "was changed.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "Its end is being written; wait a moment and send the same request again.",
}


def status_of(error: HeadraceError) -> int:
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
        "errors": None,
    }


def error_of_problem(problem: Mapping[str, Any]) -> HeadraceError:
    return error_for(ErrorCode[problem["code"]], problem["detail"])
