"""Consumer groups over REST."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from libs.sdk.tests.kit.cluster import LabCluster
from services.admin.tests.kit.rest import Rest
from services.admin.tests.kit.world import TIME_ZERO_MS


@pytest.fixture
async def groups(lab: LabCluster, rest: Rest) -> AsyncIterator[Rest]:
    """Topic t with 500 and 900 records; group g behind in one of them, group live with a member."""
    lab.create_topic("t", 2)
    await rest.world.fill("t", 0, 500)
    await rest.world.fill("t", 1, 900)
    await rest.world.make_shards()
    await rest.world.commit("g", {("t", 0): 495, ("t", 1): 900})
    async with await rest.world.join("live", "t"):
        yield rest


def refused(answer: Any, status: int, code: str, says: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert answer.json()["next_step"]
    assert says in answer.json()["detail"]


async def test_a_list_says_what_is_missing(groups: Rest) -> None:
    listed = (await groups.client.get("/v1/groups")).json()
    assert [(g["group"], g["protocol"], g["state"], g["members"]) for g in listed["groups"]] == [
        ("g", None, "empty", 0),
        ("live", "consumer", "stable", 1),
    ]
    assert listed["missing_shards"] == []
    assert [g["group"] for g in (await groups.client.get("/v1/groups?state=stable")).json()["groups"]] == ["live"]
    for number in (1, 2):
        groups.world.lab.kill_coordinator(number)
    missing = (await groups.client.get("/v1/groups")).json()["missing_shards"]
    assert [(m["shard"], m["error"]["code"]) for m in missing] == [(n, "NETWORK_EXCEPTION") for n in range(4)]
    refused(await groups.client.get("/v1/groups?state=happy"), 400, "INVALID_REQUEST")


async def test_a_group_with_its_members(groups: Rest) -> None:
    live = (await groups.client.get("/v1/groups/live")).json()
    assert (live["state"], live["assignor"]) == ("stable", "uniform")
    assert live["generation"] > 0
    (member,) = live["members"]
    assert member["client_id"] == "reader"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", member["client_address"])
    assert member["assigned"] == [{"topic": "t", "partitions": [0, 1]}]
    refused(await groups.client.get("/v1/groups/nope"), 404, "GROUP_ID_NOT_FOUND", "headrace group list")


async def test_lag_in_records_and_seconds(groups: Rest) -> None:
    lag = (await groups.client.get("/v1/groups/g/lag")).json()
    assert lag["total_lag"] == 5
    assert 505 <= lag["lag_seconds_max"] < 510
    assert [(p["partition"], p["committed_offset"], p["end_offset"], p["lag"]) for p in lag["partitions"]] == [
        (0, 495, 500, 5),
        (1, 900, 900, 0),
    ]
    without = (await groups.client.get("/v1/groups/g/lag?seconds=false&topic=t")).json()
    assert [p["lag_seconds"] for p in without["partitions"]] == [None, None]
    assert (await groups.client.get("/v1/groups/g/lag?topic=other")).json()["partitions"] == []


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ({"to": "earliest"}, [0, 0]),
        ({"to": "latest"}, [500, 900]),
        ({"to": "current"}, [495, 900]),
        ({"to_offset": 7}, [7, 7]),
        ({"shift_by": -5}, [490, 895]),
        ({"to_datetime": TIME_ZERO_MS + 30_000}, [30, 30]),
        ({"to_datetime": "2025-12-31T23:43:50Z"}, [30, 30]),
        ({"by_duration": "PT900S"}, [101, 101]),
        ({"by_duration": "15m"}, [101, 101]),
        ({"offsets": [{"topic": "t", "partition": 1, "offset": 4}]}, [495, 4]),
    ],
)
async def test_every_way_to_reset(groups: Rest, where: Any, offsets: list[int]) -> None:
    url = "/v1/groups/g/offsets/reset"
    plan = (await groups.client.post(url, json=where)).json()
    assert plan["executed"] is False
    assert sorted((await groups.world.committed("g")).values()) == [495, 900]
    done = (await groups.client.post(url, json=where | {"execute": True})).json()
    assert done["executed"] is True
    assert [p["new_offset"] for p in done["partitions"]] == [p["new_offset"] for p in plan["partitions"]]
    assert [offset for _, offset in sorted((await groups.world.committed("g")).items())] == offsets


async def test_resets_that_make_no_sense_are_refused(groups: Rest) -> None:
    url = "/v1/groups/g/offsets/reset"
    for body in ({}, {"to": "latest", "shift_by": 1}):
        refused(await groups.client.post(url, json=body), 400, "INVALID_REQUEST", "exactly one of")
    no_zone = await groups.client.post(url, json={"to_datetime": "2023-11-14T21:57:10"})
    refused(no_zone, 400, "INVALID_REQUEST", "zone")
    refused(await groups.client.post(url, json={"by_duration": "soon"}), 400, "INVALID_REQUEST", "1h30m")
    twice = {"offsets": [{"topic": "t", "partition": 1, "offset": 4}] * 2}
    refused(await groups.client.post(url, json=twice), 400, "INVALID_REQUEST", "twice")
    unknown = {"to": "latest", "topics": [{"topic": "nope"}]}
    refused(await groups.client.post(url, json=unknown), 404, "UNKNOWN_TOPIC_OR_PARTITION")


async def test_a_living_group_is_not_reset_and_says_how_to_stop_it(groups: Rest) -> None:
    body = {"to": "earliest", "topics": [{"topic": "t"}], "execute": True}
    answer = await groups.client.post("/v1/groups/live/offsets/reset", json=body)
    refused(answer, 409, "NON_EMPTY_GROUP", "reader at 127.0.0.1:")
    assert "Stop the group's members" in answer.json()["next_step"]
    plan = (await groups.client.post("/v1/groups/live/offsets/reset", json=body | {"execute": False})).json()
    assert (plan["members"], plan["new_group"]) == (1, False)


async def test_groups_and_offsets_are_forgotten(groups: Rest) -> None:
    one = {"topics": [{"topic": "t", "partitions": [1]}]}
    gone = (await groups.client.post("/v1/groups/g/offsets/delete", json=one)).json()
    assert gone == {"partitions": [{"topic": "t", "partition": 1, "error": None}]}
    live = await groups.client.post("/v1/groups/live/offsets/delete", json=one)
    refused(live, 409, "GROUP_SUBSCRIBED_TO_TOPIC")
    refused(await groups.client.delete("/v1/groups/g"), 400, "INVALID_REQUEST", "?confirm=g")
    refused(await groups.client.delete("/v1/groups/live?confirm=live"), 409, "NON_EMPTY_GROUP")
    assert (await groups.client.delete("/v1/groups/g?confirm=g")).status_code == 204
    refused(await groups.client.delete("/v1/groups/g?confirm=g"), 404, "GROUP_ID_NOT_FOUND")


@pytest.mark.parametrize(
    "group", ["team/app", "ü b", "a?b#c", "..", "%2F", "lag", "a/offsets", "a/lag", "lag/lag", "a/lag/b"]
)
async def test_a_group_may_have_any_name(groups: Rest, group: str) -> None:
    await groups.world.commit(group, {("t", 0): 495})
    url = f"/v1/groups/{quote(group, safe='')}".replace("/..", "/%2E%2E")
    assert (await groups.client.get(url)).json()["group"] == group
    assert (await groups.client.get(f"{url}/lag")).json()["total_lag"] == 5
    done = await groups.client.post(f"{url}/offsets/reset", json={"to": "latest", "execute": True})
    assert done.json()["group"] == group
    assert await groups.world.committed(group) == {("t", 0): 500}
    assert (await groups.client.delete(url, params={"confirm": group})).status_code == 204


async def test_positions_that_cannot_be_told_are_not_moved(groups: Rest) -> None:
    fetch = groups.world.group_calls.FetchOffsets

    async def pending(*given: Any) -> Any:
        answer = await fetch(*given)
        answer.offsets[0].error, answer.offsets[0].message = 88, "a transaction has an offset pending there"
        return answer

    groups.world.group_calls.FetchOffsets = pending
    url = "/v1/groups/g/offsets/reset"
    refused(await groups.client.post(url, json={"to": "latest"}), 503, "UNSTABLE_OFFSET_COMMIT", "pending")
    lag = (await groups.client.get("/v1/groups/g/lag")).json()["partitions"]
    assert [(p["lag"], p["error"] and p["error"]["code"]) for p in lag] == [(None, "UNSTABLE_OFFSET_COMMIT"), (0, None)]
    other = {"to": "latest", "topics": [{"topic": "t", "partitions": [1]}]}
    assert (await groups.client.post(url, json=other)).status_code == 200
