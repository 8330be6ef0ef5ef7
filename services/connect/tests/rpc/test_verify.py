"""Verifications over REST: begun, looked at, deleted, and ended by what happens meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from services.connect.tests.kit.rest import Rest, problem
from services.connect.tests.kit.twin import OTHER

from headrace_common.runtime.clock import limit_s, pause_ms
from headrace_connect_worker.core.verifications import ENDED_MAX
from headrace_connect_worker.ports import Forwarded

PATH = "/v1/connectors/s/verify"


async def begin(rest: Rest, path: str = PATH, **body: Any) -> Any:
    answer = await rest.client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"http://127.0.0.1:8083{answer.json()['path']}"
    return answer.json()


async def get(rest: Rest, begun: Any) -> Any:
    answer = await rest.client.get(begun["path"])
    assert answer.status_code == 200, answer.text
    return answer.json()


async def until(rest: Rest, begun: Any, state: str) -> Any:
    async with limit_s(10):
        while (one := await get(rest, begun))["state"] != state:
            await pause_ms(1)
    return one


async def stopped(rest: Rest) -> None:
    await rest.create("s")
    await rest.client.put("/connectors/s/stop")
    rest.herd.follow()


async def test_it_is_begun_runs_and_has_its_result_when_it_ends(rest: Rest) -> None:
    await rest.create("a/b")
    rest.hosts.slow = True
    begun = await begin(rest, "/v1/connectors/a%2Fb/verify", records=5, topics=["t"])
    assert begun["path"] == f"/v1/connectors/a%2Fb/verify/{begun['id']}"
    config = rest.herd.state.connectors["a/b"].config
    async with limit_s(10):
        while not rest.hosts.verifying:
            await pause_ms(1)
    assert rest.hosts.asked[-1] == ("verify", (config, ("t",), 5, False))
    assert await get(rest, begun) == {
        **begun,
        "connector": "a/b",
        "repair": False,
        "state": "running",
        "progress": {"offsets": 100, "scanned": 0, "compared": 40},
        "result": None,
        "error": None,
    }
    rest.hosts.slow = False
    one = await until(rest, begun, "completed")
    assert one["result"] == {"name": "a/b", "agrees": True, "wrong": 0, "repaired": 0, "ranges": []}
    assert one["error"] is None


async def test_deleted_it_has_ended_and_is_forgotten(rest: Rest) -> None:
    await rest.create("s")
    rest.hosts.slow = True
    begun = await begin(rest)
    async with limit_s(10):
        while not rest.hosts.verifying:
            await pause_ms(1)
    assert (await rest.client.delete(begun["path"])).status_code == 204
    assert not rest.hosts.verifying
    problem(await rest.client.get(begun["path"]), 404, "it was deleted")
    problem(await rest.client.delete(begun["path"]), 404, "Begin another one")
    rest.hosts.slow = False
    other = await begin(rest)
    await until(rest, other, "completed")
    problem(await rest.client.get(other["path"].replace("/s/", "/t/")), 404, "t has no verification")
    assert (await rest.client.delete(other["path"])).status_code == 204


async def test_why_it_failed_is_said_as_an_answer_would_say_it(rest: Rest) -> None:
    await rest.create("s")
    rest.hosts.refuses = "FileStreamSource cannot be verified"
    one = await until(rest, await begin(rest), "failed")
    assert one["error"] == {"status": 400, "detail": "FileStreamSource cannot be verified"}
    rest.hosts.refuses, rest.hosts.away = "", "the database does not answer"
    one = await until(rest, await begin(rest), "failed")
    assert one["error"] == {"status": 502, "detail": "the database does not answer"}
    rest.hosts.crash = "Segmentation fault"
    one = await until(rest, await begin(rest), "failed")
    assert one["error"]["status"] == 500
    assert "Segmentation fault" in one["error"]["detail"]
    assert one["result"] is None


async def test_who_cannot_be_verified(rest: Rest) -> None:
    problem(await rest.client.post(PATH, json={}), 404, "Connector s not found")
    problem(await rest.client.post("/v1/connectors/%FF/verify", json={}), 400, "not UTF-8")
    await rest.create("s")
    rest.herd.state.connectors["s"].config["file"] = "/etc/passwd"  # type: ignore[index] # as a reach that has shrunk
    problem(await rest.client.post(PATH, json={}), 400, "/etc/passwd")
    assert "verify" not in [what for what, _ in rest.hosts.asked]
    rest.herd.is_ready = False
    problem(await rest.client.post(PATH, json={}), 503, "still reads", "METADATA_UNAVAILABLE")


@pytest.mark.parametrize(
    "body", [{"records": 0}, {"records": "many"}, {"recrods": 1}, {"repair": "perhaps"}, {"topics": "t"}, []]
)
async def test_bodies_that_cannot_be(rest: Rest, body: Any) -> None:
    await rest.create("s")
    rest.hosts.asked.clear()
    problem(await rest.client.post(PATH, json=body), 400, "")
    assert not rest.hosts.asked


async def test_a_repair_needs_a_connector_that_is_stopped_and_ends_when_it_is_to_run(rest: Rest) -> None:
    await rest.create("s")
    problem(await rest.client.post(PATH, json={"repair": True}), 409, "stop s before")
    await rest.client.put("/connectors/s/stop")
    rest.herd.follow()
    await until(rest, await begin(rest, repair=True), "completed")
    assert rest.hosts.asked[-1][1][-1] is True
    rest.hosts.slow = True
    begun = await begin(rest, repair=True)
    await rest.client.put("/connectors/s/resume")
    one = await until(rest, begun, "failed")
    assert (one["error"]["status"], "is to run again" in one["error"]["detail"]) == (409, True)
    assert not rest.hosts.verifying


async def test_comparing_goes_on_while_the_connector_is_stopped_and_resumed_and_not_when_it_is_deleted(
    rest: Rest,
) -> None:
    await stopped(rest)
    rest.hosts.slow = True
    begun = await begin(rest)
    await rest.client.put("/connectors/s/resume")
    await asyncio.sleep(0.01)
    assert (await get(rest, begun))["state"] == "running"
    await rest.client.delete("/connectors/s")
    one = await until(rest, begun, "failed")
    assert one["error"] == {"status": 404, "detail": "Connector s was deleted"}
    assert not rest.hosts.verifying


async def test_one_of_a_connector_and_two_in_all(rest: Rest) -> None:
    for name in ("s", "t", "u"):
        await rest.create(name)
    rest.hosts.slow = True
    begun = await begin(rest)
    problem(await rest.client.post(PATH, json={}), 409, begun["id"])
    await begin(rest, "/v1/connectors/t/verify")
    answer = await rest.client.post("/v1/connectors/u/verify", json={})
    problem(answer, 503, "those of s and t run")
    assert answer.headers["retry-after"] == "1"
    await rest.client.delete(begun["path"])
    await begin(rest, "/v1/connectors/u/verify")


async def test_the_newest_results_are_retained(rest: Rest) -> None:
    await rest.create("s")
    begun = []
    for _ in range(ENDED_MAX + 1):
        begun.append(await begin(rest))
        await until(rest, begun[-1], "completed")
    problem(await rest.client.get(begun[0]["path"]), 404, f"{ENDED_MAX} others have ended since")
    assert (await get(rest, begun[1]))["state"] == "completed"


async def test_when_another_worker_leads_it_ends_and_that_one_is_asked(rest: Rest) -> None:
    await rest.create("s")
    rest.hosts.slow = True
    begun = await begin(rest)
    leader = rest.herd.leader
    rest.herd.lead(OTHER)
    async with limit_s(10):
        while rest.verifying.find("s", begun["id"]).is_running:
            await pause_ms(1)
    assert "another worker leads" in str(rest.verifying.find("s", begun["id"]).error)
    assert not rest.hosts.verifying
    for method in ("GET", "DELETE"):
        await rest.client.request(method, begun["path"])
        assert rest.forwarding.sent.pop() == (OTHER, method, begun["path"], [("forward", "false")], b"")
    rest.forwarding.answers = Forwarded(202, b"{}", f"{OTHER}{PATH}/7")
    answer = await rest.client.post(PATH, json={"records": 7})
    assert json.loads(rest.forwarding.sent[-1][-1]) == {"records": 7}
    assert (answer.status_code, answer.headers["location"]) == (202, f"http://127.0.0.1:8083{PATH}/7")
    assert answer.headers["content-type"] == "application/json"
    rest.forwarding.answers = Forwarded(404, b"{}")
    problem_of_leader = await rest.client.get(begun["path"])
    assert problem_of_leader.headers["content-type"] == "application/problem+json"
    answer = await rest.client.get(f"{begun['path']}?forward=false")
    assert answer.status_code == 409
    assert leader is not None


async def test_a_worker_that_stops_ends_all_and_begins_none(rest: Rest) -> None:
    await rest.create("s")
    rest.hosts.slow = True
    begun = await begin(rest)
    await rest.verifying.stop()
    assert not rest.hosts.verifying
    one = await get(rest, begun)
    assert (one["state"], one["error"]["status"]) == ("failed", 409)
    problem(await rest.client.post(PATH, json={}), 409, "this worker stops")


async def test_a_list_of_them_has_the_newest_first_and_no_ranges(rest: Rest) -> None:
    await rest.create("a/b")
    await rest.create("s")
    empty = await rest.client.get("/v1/verifications")
    assert (empty.status_code, empty.json()) == (200, {"verifications": []})
    assert (await rest.client.get(PATH)).json() == {"verifications": []}
    first = await begin(rest, "/v1/connectors/a%2Fb/verify")
    await until(rest, first, "completed")
    rest.hosts.refuses = "FileStreamSource cannot be verified"
    failed = await begin(rest)
    await until(rest, failed, "failed")
    rest.hosts.refuses, rest.hosts.slow = "", True
    last = await begin(rest)
    async with limit_s(10):
        while not rest.hosts.verifying:
            await pause_ms(1)
    found = (await rest.client.get("/v1/verifications")).json()["verifications"]
    assert [one["id"] for one in found] == [last["id"], failed["id"], first["id"]]
    assert [one["state"] for one in found] == ["running", "failed", "completed"]
    assert all("result" not in one for one in found)
    nothing = {"agrees": None, "wrong": None, "repaired": None}
    assert found[0] == {key: value for key, value in last.items() if key != "result"} | nothing | {
        "progress": {"offsets": 100, "scanned": 0, "compared": 40}
    }
    assert found[1]["error"] == {"status": 400, "detail": "FileStreamSource cannot be verified"}
    assert {key: found[2][key] for key in nothing} == {"agrees": True, "wrong": 0, "repaired": 0}
    assert found[2]["path"] == first["path"]
    assert (await rest.client.get(PATH)).json()["verifications"] == found[:2]


async def test_a_list_of_a_connector_that_is_gone_has_those_that_are_retained(rest: Rest) -> None:
    problem(await rest.client.get(PATH), 404, "Connector s not found")
    await rest.create("s")
    rest.hosts.slow = True
    begun = await begin(rest)
    await rest.client.delete("/connectors/s")
    await until(rest, begun, "failed")
    assert [one["id"] for one in (await rest.client.get(PATH)).json()["verifications"]] == [begun["id"]]
    await rest.client.delete(begun["path"])
    problem(await rest.client.get(PATH), 404, "Connector s not found")


async def test_who_leads_is_asked_for_the_list(rest: Rest) -> None:
    await rest.create("s")
    rest.herd.lead(OTHER)
    for path in ("/v1/verifications", PATH):
        await rest.client.get(path)
        assert rest.forwarding.sent.pop() == (OTHER, "GET", path, [("forward", "false")], b"")
