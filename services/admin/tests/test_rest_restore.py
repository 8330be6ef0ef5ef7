"""Restored metadata and stray logs over REST and gRPC, and what the verdict says of them."""

from __future__ import annotations

from typing import Any

import pytest
from services.admin.tests.kit.rest import Rest

from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

ID = bytes(range(16))


def stray() -> pb.StrayTopic:
    return pb.StrayTopic(
        topic_id=ID,
        topic=cluster_pb2.Topic(topic_id=ID, name="late", partition_count=2),
        logs=[pb.StrayLog(broker_id=2, partition=1, log_end_offset=9, damaged=True)],
    )


def restored(rest: Rest, told: pb.DescribeRestoreResponse) -> None:
    """What the controller says of a restore."""

    async def describe_restore(request: pb.DescribeRestoreRequest) -> pb.DescribeRestoreResponse:
        answer = pb.DescribeRestoreResponse()
        answer.CopyFrom(told)
        if not request.strays:
            del answer.strays[:]
        return answer

    rest.world.controller_calls.DescribeRestore = describe_restore


async def test_there_was_none(rest: Rest) -> None:
    assert (await rest.client.get("/v1/restore")).json() == {"restore": None}
    assert (await rest.client.get("/v1/strays")).json() == {"strays": [], "silent_brokers": []}


@pytest.mark.parametrize(
    ("missing", "says"),
    [([2, 3], "it waits for brokers 2, 3; start them"), ([3], "broker 3; start it"), ([], "all have joined")],
)
async def test_an_unfinished_one_is_what_is_wrong(rest: Rest, missing: list[int], says: str) -> None:
    await rest.client.post("/v1/topics", json={"name": "t", "assignments": [[2]]})
    rest.world.lab.stop(2)
    restore = pb.Restore(backup_revision=5, backup_time_ms=6, restore_time_ms=7, expected=[1, 2, 3], missing=missing)
    restored(rest, pb.DescribeRestoreResponse(restore=restore))
    assert (await rest.client.get("/v1/restore")).json()["restore"] == {
        "finished": False,
        "backup_revision": 5,
        "backup_time_ms": 6,
        "restore_time_ms": 7,
        "expected_brokers": [1, 2, 3],
        "missing_brokers": missing,
        "silent_brokers": [],
        "adopted_topics": 0,
        "empty_topics": 0,
    }
    health = await rest.client.get("/health/cluster")
    assert health.status_code == 503
    verdict = health.json()["verdict"]
    assert verdict.startswith("unavailable: the metadata was restored from a backup")
    assert says in verdict
    assert "unclean" not in verdict, "nobody should give records up now"


async def test_a_broker_may_be_silent(rest: Rest) -> None:
    restored(rest, pb.DescribeRestoreResponse(restore=pb.Restore(expected=[1, 2]), silent=[2]))
    assert (await rest.client.get("/v1/restore")).json()["restore"]["silent_brokers"] == [2]
    assert "broker 2 does not say what it has" in (await rest.client.get("/health/cluster")).json()["verdict"]


async def test_a_finished_one_is_over(rest: Rest) -> None:
    restored(rest, pb.DescribeRestoreResponse(restore=pb.Restore(finished=True, expected=[1], adopted_topics=3)))
    assert (await rest.client.get("/v1/restore")).json()["restore"]["adopted_topics"] == 3
    assert (await rest.client.get("/health/cluster")).json()["state"] == "healthy"


async def test_strays_are_listed_and_adopted(rest: Rest) -> None:
    nameless = pb.StrayTopic(topic_id=bytes(16), note="no broker knows its name")
    restored(rest, pb.DescribeRestoreResponse(strays=[stray(), nameless], silent=[7]))
    listed = (await rest.client.get("/v1/strays")).json()
    assert listed["silent_brokers"] == [7]
    assert listed["strays"] == [
        {
            "topic_id": ID.hex(),
            "name": "late",
            "partitions": 2,
            "logs": [{"broker": 2, "partition": 1, "log_end_offset": 9, "damaged": True}],
            "note": None,
        },
        {"topic_id": "0" * 32, "name": None, "partitions": None, "logs": [], "note": "no broker knows its name"},
    ]


async def test_one_is_adopted(rest: Rest) -> None:
    """A topic whose metadata was made anew without it."""
    url, asked = f"/v1/strays/{ID.hex()}/adopt", list[pb.AdoptTopicRequest]()
    unknown = await rest.client.post(url, json={})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "UNKNOWN_TOPIC_ID")

    async def adopt_topic(request: pb.AdoptTopicRequest) -> pb.AdoptTopicResponse:
        asked.append(request)
        name = request.name if request.HasField("name") else "late"
        described = pb.TopicDescription(topic=cluster_pb2.Topic(topic_id=ID, name=name, partition_count=2))
        return pb.AdoptTopicResponse(result=pb.TopicResult(name=name, topic=described))

    rest.world.controller_calls.AdoptTopic = adopt_topic
    planned = await rest.client.post(url, json={"name": "other", "partitions": 3, "validate_only": True})
    assert (planned.status_code, planned.json()["name"]) == (200, "other")
    assert asked.pop() == pb.AdoptTopicRequest(topic_id=ID, name="other", partition_count=3, validate_only=True)
    made = await rest.client.post(url, json={})
    assert (made.status_code, made.headers["location"], made.json()["name"]) == (201, "/v1/topics/late", "late")


@pytest.mark.parametrize("body", [{"name": "a/b"}, {"partitions": -1}, {"partitions": 1.5}, {"nam": "x"}])
async def test_bad_input_is_refused(rest: Rest, body: dict[str, Any]) -> None:
    restored(rest, pb.DescribeRestoreResponse(strays=[stray()]))
    assert (await rest.client.post(f"/v1/strays/{ID.hex()}/adopt", json=body)).status_code in {400, 422}
    for wrong in ("x" * 32, "00", "0" * 33):
        assert (await rest.client.post(f"/v1/strays/{wrong}/adopt", json={})).status_code in {400, 422}
