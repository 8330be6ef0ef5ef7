"""Creating many topics, against an admin service that makes some of them at the second asking only."""

from __future__ import annotations

from typing import Any

import pytest
from libs.sdk.tests.kit.admin_service import AdminTransport

from headrace import aio
from headrace.admin import NewTopic
from headrace.errors import ErrorCode, HeadraceError
from headrace_proto.v1 import controller_pb2 as pb


class Service:
    def __init__(self, refused: dict[str, list[ErrorCode]]) -> None:
        self.refused = refused
        self.asked: list[list[str]] = []

    async def CreateTopics(self, request: pb.CreateTopicsRequest, timeout: float) -> pb.CreateTopicsResponse:
        self.asked.append([t.name for t in request.topics])
        answer = pb.CreateTopicsResponse()
        for topic in request.topics:
            code = self.refused[topic.name].pop(0) if self.refused.get(topic.name) else ErrorCode.NONE
            answer.topics.add(name=topic.name, error=code.value, message=code.name)
        return answer


async def create(refused: dict[str, list[ErrorCode]], **settings: Any) -> tuple[Service, dict[str, object]]:
    service = Service(refused)
    async with aio.AdminClient(_transport=AdminTransport(service), retry_backoff_ms=1, **settings) as admin:
        results = await admin.create_topics([NewTopic(name) for name in "abcd"], validate_only=True)
    return service, {n: r.code if isinstance(r, HeadraceError) else ErrorCode.NONE for n, r in results.items()}


async def test_those_of_which_nothing_was_changed_are_asked_for_again() -> None:
    gone, busy = ErrorCode.NOT_CONTROLLER, ErrorCode.OVERLOADED
    service, results = await create({"b": [gone], "c": [busy, gone], "d": [ErrorCode.TOPIC_ALREADY_EXISTS]})
    assert service.asked == [["a", "b", "c", "d"], ["b", "c"], ["c"]]
    assert list(results.items()) == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        ("c", ErrorCode.NONE),
        ("d", ErrorCode.TOPIC_ALREADY_EXISTS),
    ]


@pytest.mark.parametrize("code", [ErrorCode.METADATA_UNAVAILABLE, ErrorCode.REQUEST_TIMED_OUT])
async def test_those_that_may_have_been_made_are_not(code: ErrorCode) -> None:
    service, results = await create({"b": [code]})
    assert len(service.asked) == 1
    assert results["b"] == code


async def test_asking_again_has_an_end() -> None:
    service, results = await create({"b": [ErrorCode.OVERLOADED] * 1_000_000}, default_api_timeout_ms=50)
    assert results["b"] == ErrorCode.OVERLOADED
    assert len(service.asked) > 1
