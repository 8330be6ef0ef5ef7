"""What an answer of a failure is called, and what it says about asking again."""

from __future__ import annotations

import orjson
import pytest

from headrace_common.http.problems import problem


@pytest.mark.parametrize(
    ("status", "code", "retriable"),
    [
        (400, "INVALID_REQUEST", False),
        (403, "POLICY_VIOLATION", False),
        (404, "RESOURCE_NOT_FOUND", False),
        (405, "INVALID_REQUEST", False),
        (408, "REQUEST_TIMED_OUT", True),
        (409, "INVALID_UPDATE_VERSION", False),
        (413, "MESSAGE_TOO_LARGE", False),
        (422, "INVALID_REQUEST", False),
        (429, "OVERLOADED", True),
        (500, "UNKNOWN_SERVER_ERROR", False),
        (502, "NETWORK_EXCEPTION", True),
        (503, "OVERLOADED", True),
        (504, "REQUEST_TIMED_OUT", True),
    ],
)
def test_the_code_fits_the_status_and_says_what_may_go_well_the_next_time(
    status: int, code: str, retriable: bool
) -> None:
    body = orjson.loads(bytes(problem(status, "no", "/v1/here", next_step="Ask again.").body))
    assert (body["code"], body["type"], body["retriable"]) == (code, f"urn:headrace:error:{code}", retriable)
