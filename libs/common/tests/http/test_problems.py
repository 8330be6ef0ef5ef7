"""What an answer of a failure says about asking again."""

from __future__ import annotations

import orjson
import pytest

from headrace_common.http.problems import problem


@pytest.mark.parametrize(
    ("status", "retriable"),
    [(400, False), (404, False), (409, False), (422, False), (408, True), (502, True), (503, True)],
)
def test_what_may_go_well_the_next_time_is_retriable(status: int, retriable: bool) -> None:
    body = orjson.loads(bytes(problem(status, "no", "/v1/here", next_step="Ask again.").body))
    assert body["retriable"] is retriable
