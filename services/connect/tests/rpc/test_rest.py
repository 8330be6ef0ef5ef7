"""The whole REST interface over the twin: each path, each error, who leads, what may be reached."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from services.connect.tests.kit.rest import JSON, Rest, problem
from services.connect.tests.kit.twin import ME, OTHER

from headrace_common.core.errors import NetworkFailed
from headrace_connect.core.options import Problem
from headrace_connect_worker.core.events import Happened
from headrace_connect_worker.core.records import RunState, TargetState
from headrace_connect_worker.core.refusals import Conflict, NotWritten
from headrace_connect_worker.ports import ConnectorOffset, Forwarded
from headrace_connect_worker.rpc.answering import TimeLimit

SOURCE = {"connector.class": "FileStreamSource", "topic": "t"}


def refused(answer: httpx.Response, status: int, says: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert says in answer.json()["message"]


class TestWorker:
    async def test_about(self, rest: Rest) -> None:
        assert (await rest.client.get("/")).json() == {
            "version": "0.1.0",
            "commit": "abc",
            "kafka_cluster_id": "cluster-1",
        }

    async def test_health_says_whether_everything_was_read(self, rest: Rest) -> None:
        answer = await rest.client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "healthy")
        rest.herd.is_ready = False
        answer = await rest.client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")

    @pytest.mark.parametrize("path", ["", "/s", "/s/config", "/s/status", "/s/tasks", "/s/offsets", "/s/topics"])
    async def test_before_that_nothing_is_said_of_connectors(self, rest: Rest, path: str) -> None:
        rest.herd.is_ready = False
        refused(await rest.client.get(f"/connectors{path}"), 503, "still reads")

    async def test_loggers(self, rest: Rest) -> None:
        try:
            answer = await rest.client.put("/admin/loggers/a.b", json={"level": "debug"})
            assert answer.json() == ["a.b"]
            logging.getLogger("a.b.c")
            assert (await rest.client.put("/admin/loggers/a", json={"level": "WARN"})).json() == ["a", "a.b", "a.b.c"]
            level = (await rest.client.get("/admin/loggers/a.b")).json()
            assert level["level"] == "WARN"
            assert level["last_modified"] > 0
            assert (await rest.client.get("/admin/loggers")).json()["a"]["level"] == "WARN"
            assert (await rest.client.get("/admin/loggers/root")).json()["last_modified"] is None
        finally:
            for name in ("a", "a.b", "a.b.c"):
                logging.getLogger(name).setLevel(logging.NOTSET)

    async def test_loggers_that_are_none(self, rest: Rest) -> None:
        refused(await rest.client.get("/admin/loggers/nobody.at.all"), 404, "not found")
        refused(await rest.client.put("/admin/loggers/a", json={"level": "loud"}), 404, "loud")
        refused(await rest.client.put("/admin/loggers/a", json={}), 400, "level")
        refused(await rest.client.put("/admin/loggers/a?scope=cluster", json={"level": "INFO"}), 400, "each worker")


class TestCreate:
    async def test_a_connector(self, rest: Rest) -> None:
        answer = await rest.client.post("/connectors", json={"name": "s", "config": SOURCE})
        assert answer.status_code == 201
        assert answer.headers["location"] == "http://127.0.0.1:8083/connectors/s"
        assert answer.json() == {"name": "s", "config": {**SOURCE, "name": "s"}, "tasks": [], "type": "source"}
        rest.herd.follow()
        answer = await rest.client.get("/connectors/s")
        assert (answer.json()["tasks"], answer.json()["type"]) == ([{"connector": "s", "task": 0}], "source")
        refused(await rest.client.post("/connectors", json={"name": "s", "config": SOURCE}), 409, "already exists")

    @pytest.mark.parametrize(("state", "target"), [("stopped", TargetState.STOPPED), ("PAUSED", TargetState.PAUSED)])
    async def test_that_does_not_run_yet(self, rest: Rest, state: str, target: TargetState) -> None:
        body = {"name": "s", "config": SOURCE, "initial_state": state}
        assert (await rest.client.post("/connectors", json=body)).status_code == 201
        assert rest.herd.state.connectors["s"].target is target

    async def test_everything_that_is_wrong_is_said(self, rest: Rest) -> None:
        config = {"connector.class": "FileStreamSource", "tasks.max": "many", "tpoic": "t"}
        answer = await rest.client.post("/connectors", json={"name": "s", "config": config})
        refused(answer, 400, "contains the following 3 error(s):\n")
        assert all(word in answer.json()["message"] for word in ("tpoic", "topic is missing", "tasks.max"))
        assert "validate" in answer.json()["message"]
        assert not rest.herd.state.connectors

    async def test_a_class_that_there_is_not(self, rest: Rest) -> None:
        answer = await rest.client.post("/connectors", json={"name": "s", "config": {"connector.class": "Nobody"}})
        refused(answer, 400, "Nobody")
        refused(await rest.client.post("/connectors", json={"name": "s", "config": {}}), 400, "no connector type")

    async def test_the_other_system_is_not_asked(self, rest: Rest) -> None:
        rest.hosts.outside = (Problem("", "the database is away"),)
        assert (await rest.create("s")).status_code == 201

    async def test_a_host_that_does_not_answer(self, rest: Rest) -> None:
        rest.hosts.crash = "Segmentation fault"
        refused(await rest.client.post("/connectors", json={"name": "s", "config": SOURCE}), 500, "Segmentation fault")
        assert not rest.herd.state.connectors

    async def test_plain_secrets_are_refused(self, rest: Rest) -> None:
        refused(await rest.create("s", password="hunter2"), 400, "is a secret and stands here")
        refused(await rest.create("s", file="https://shop:hunter2@db/shop"), 400, "has a password")
        answer = await rest.create("s", password="hunter2", **{"allow.plain.secrets": "true"})
        assert answer.status_code == 201

    async def test_references_stay_references_everywhere(self, rest: Rest) -> None:
        reference = "${env:SHOP_PASSWORD}"
        assert (await rest.create("s", password=reference)).status_code == 201
        for path in ("/s", "/s/config", "/s/tasks", "/s/tasks-config", "?expand=info"):
            assert reference in (await rest.client.get(f"/connectors{path}")).text


class TestReach:
    """What a configuration names of the machines that it runs on."""

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            ({"connector.class": "shop.py:Weather"}, "plugins.allowed"),
            ({"connector.class": "os:system"}, "plugins.allowed"),
            ({"transforms": "a", "transforms.a.type": "python:os:system"}, "transforms.python.allowed"),
            ({"password": "${file:/etc/shadow:root}"}, "config.providers.file.allowed.paths"),
            ({"password": "${file:/etc/headrace/../shadow:root}"}, "config.providers.file.allowed.paths"),
            ({"password": "${dir:/etc:shadow}"}, "config.providers.file.allowed.paths"),
            ({"password": "${env:AWS_SECRET_ACCESS_KEY}"}, "env.allowed"),
            ({"file": "/etc/passwd"}, "files.allowed.paths"),
        ],
    )
    async def test_nothing_that_is_not_allowed_is_looked_at(
        self, rest: Rest, config: dict[str, str], says: str
    ) -> None:
        refused(await rest.create("s", **config), 400, says)
        assert all(what == "plugins" for what, _ in rest.hosts.asked), "the configuration went to a host"
        validated = await rest.client.put(
            f"/connector-plugins/{config.get('connector.class', 'FileStreamSource')}/config/validate",
            json={**SOURCE, "name": "s", **config},
        )
        assert says in validated.text
        assert all(what != "validate" for what, _ in rest.hosts.asked)

    async def test_a_class_of_a_plugin_with_a_name_may_be_written_out(self, rest: Rest) -> None:
        answer = await rest.create("s", **{"connector.class": "twin.module:FileStreamSource"})
        refused(answer, 400, "there is no connector")  # the twin knows the name alone; it came to the host
        assert rest.hosts.asked[-1][0] == "validate"

    async def test_a_preview_is_held_to_it_too(self, rest: Rest) -> None:
        answer = await rest.client.post("/v1/preview", json={"config": {**SOURCE, "file": "/etc/passwd"}})
        assert answer.status_code == 400
        assert "files.allowed.paths" in answer.json()["detail"]
        refused(await rest.client.get("/connector-plugins/os%3Asystem/config"), 404, "plugins.allowed")


class TestNames:
    @pytest.mark.parametrize("name", ["a b", "a/b", "a%2Fb", "süß", "a?b#c", "...", "a.b", '"', "a" * 80])
    async def test_there_and_back(self, rest: Rest, name: str) -> None:
        answer = await rest.create(name)
        assert answer.status_code == 201
        there = httpx.URL(answer.headers["location"])
        assert (await rest.client.get(there)).json()["name"] == name
        assert (await rest.client.put(there.copy_with(raw_path=there.raw_path + b"/pause"))).status_code == 202
        assert (await rest.client.delete(there)).status_code == 204

    @pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\x7fb", "a" * 81, "ü" * 14, "a" * 300, ".", ".."])
    async def test_names_that_nobody_can_have(self, rest: Rest, name: str) -> None:
        refused(await rest.create(name), 400, "name")

    async def test_spaces_around_it_are_no_part_of_it(self, rest: Rest) -> None:
        assert (await rest.create(" s\t")).json()["name"] == "s"

    async def test_a_path_is_decoded_once(self, rest: Rest) -> None:
        await rest.create("a%2Fb")
        assert (await rest.client.get("/connectors/a%252Fb")).status_code == 200
        refused(await rest.client.get("/connectors/a%2Fb"), 404, "a/b not found")

    async def test_what_is_no_text(self, rest: Rest) -> None:
        refused(await rest.client.get("/connectors/%ff"), 400, "UTF-8")


class TestRead:
    async def test_nobody(self, rest: Rest) -> None:
        assert (await rest.client.get("/connectors")).json() == []
        for path in ("", "/config", "/status", "/tasks", "/tasks-config", "/tasks/0/status", "/offsets"):
            refused(await rest.client.get(f"/connectors/nobody{path}"), 404, "nobody")
        assert (await rest.client.get("/connectors/nobody/topics")).json() == {"nobody": {"topics": []}}

    async def test_lists(self, rest: Rest) -> None:
        await rest.create("b")
        await rest.create("a")
        assert (await rest.client.get("/connectors")).json() == ["a", "b"]
        found = (await rest.client.get("/connectors?expand=status&expand=info&expand=other&more=1")).json()
        assert found["a"].keys() == {"status", "info"}
        assert found["a"]["info"] == (await rest.client.get("/connectors/a")).json()
        assert found["a"]["status"] == (await rest.client.get("/connectors/a/status")).json()
        assert (await rest.client.get("/connectors?expand=other")).json() == {"a": {}, "b": {}}

    async def test_one_of_which_nobody_has_said_anything(self, rest: Rest) -> None:
        await rest.client.post("/connectors", json={"name": "s", "config": SOURCE})
        refused(await rest.client.get("/connectors/s/status"), 404, "No status found")
        found = (await rest.client.get("/connectors?expand=status&expand=info")).json()
        assert found["s"].keys() == {"info"}

    async def test_status(self, rest: Rest) -> None:
        await rest.create("s")
        running = {"state": "RUNNING", "worker_id": ME}
        assert (await rest.client.get("/connectors/s/status")).json() == {
            "name": "s",
            "connector": running,
            "tasks": [{"id": 0, **running}],
            "type": "source",
        }
        rest.herd.run("s", RunState.RESTARTING, "the database is away")
        task = (await rest.client.get("/connectors/s/tasks/0/status")).json()
        assert task == {"id": 0, "state": "RESTARTING", "worker_id": ME, "trace": "the database is away"}
        refused(await rest.client.get("/connectors/s/tasks/1/status"), 404, "s-1")
        refused(await rest.client.get("/connectors/s/tasks/x/status"), 404)

    async def test_tasks_say_what_they_run_with(self, rest: Rest) -> None:
        await rest.create("s", file="/data/a")
        (task,) = (await rest.client.get("/connectors/s/tasks")).json()
        assert task["id"] == {"connector": "s", "task": 0}
        assert task["config"]["topic"] == "t"
        assert json.loads(task["config"]["headrace.splits"]) == [{"id": "/data/a", "detail": {}}]
        assert (await rest.client.get("/connectors/s/tasks-config")).json() == {"s-0": task["config"]}

    async def test_topics(self, rest: Rest) -> None:
        await rest.create("s")
        assert (await rest.client.get("/connectors/s/topics")).json() == {"s": {"topics": ["t"]}}
        assert (await rest.client.put("/connectors/s/topics/reset")).status_code == 202
        assert (await rest.client.get("/connectors/s/topics")).json() == {"s": {"topics": []}}


class TestChange:
    async def test_put(self, rest: Rest) -> None:
        answer = await rest.client.put("/connectors/s/config", json=SOURCE)
        assert (answer.status_code, answer.headers["location"]) == (201, "http://127.0.0.1:8083/connectors/s")
        answer = await rest.client.put("/connectors/s/config", json={**SOURCE, "topic": "other", "batch.size": 5})
        assert (answer.status_code, "location" in answer.headers) == (200, False)
        assert (await rest.client.get("/connectors/s/config")).json() == {
            **SOURCE,
            "topic": "other",
            "batch.size": "5",
            "name": "s",
        }
        refused(await rest.client.put("/connectors/s/config", json={**SOURCE, "name": "x"}), 400, "doesn't match")
        refused(await rest.client.put("/connectors/s/config", json={**SOURCE, "batch.size": "0"}), 400, "batch.size")

    async def test_patch(self, rest: Rest) -> None:
        await rest.create("s", **{"batch.size": "5", "file": "/data/a"})
        answer = await rest.client.patch("/connectors/s/config", json={"batch.size": None, "topic": "u"})
        assert answer.status_code == 200
        assert answer.json()["config"] == {**SOURCE, "topic": "u", "file": "/data/a", "name": "s"}
        refused(await rest.client.patch("/connectors/s/config", json={"topic": None}), 400, "topic is missing")
        refused(await rest.client.patch("/connectors/s/config", json={"name": "x"}), 400, "doesn't match")
        refused(await rest.client.patch("/connectors/nobody/config", json={"topic": "u"}), 404, "nobody")
        assert rest.herd.state.connectors["s"].config["topic"] == "u"

    async def test_delete(self, rest: Rest) -> None:
        await rest.create("s")
        answer = await rest.client.delete("/connectors/s")
        assert (answer.status_code, answer.content) == (204, b"")
        refused(await rest.client.delete("/connectors/s"), 404)
        refused(await rest.client.get("/connectors/s/status"), 404)

    async def test_there_are_so_many_at_most(self, rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace_connect_worker.core.changes.CONNECTORS_MAX", 1)
        await rest.create("a")
        refused(await rest.create("b"), 400, "1 is the most")

    async def test_there_are_so_many_tasks_at_most(self, rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace_connect_worker.core.changes.TASKS_MAX", 1)
        await rest.create("a")
        refused(await rest.create("b"), 400, "tasks, and 1 is the most: delete connectors, or lower their tasks.max")

    async def test_a_configuration_is_so_large_at_most(self, rest: Rest) -> None:
        refused(await rest.create("s", file="x" * (256 << 10)), 400, "262144 is the most")
        assert not rest.hosts.asked
        body = {"name": "s", "config": {**SOURCE, "file": "x" * (5 << 20)}}
        refused(await rest.client.post("/connectors", json=body), 413, "larger than")


class TestRun:
    @pytest.mark.parametrize(
        ("what", "status", "target"),
        [
            ("pause", 202, TargetState.PAUSED),
            ("stop", 204, TargetState.STOPPED),
            ("resume", 202, TargetState.STARTED),
        ],
    )
    async def test_targets(self, rest: Rest, what: str, status: int, target: TargetState) -> None:
        await rest.create("s")
        for _ in range(2):
            answer = await rest.client.put(f"/connectors/s/{what}")
            assert (answer.status_code, answer.content) == (status, b"")
        assert rest.herd.state.connectors["s"].target is target
        refused(await rest.client.put(f"/connectors/nobody/{what}"), 404, "nobody")

    async def test_a_stopped_one_has_no_tasks(self, rest: Rest) -> None:
        await rest.create("s")
        await rest.client.put("/connectors/s/stop")
        rest.herd.follow()
        assert (await rest.client.get("/connectors/s")).json()["tasks"] == []
        status = (await rest.client.get("/connectors/s/status")).json()
        assert (status["connector"]["state"], status["tasks"]) == ("STOPPED", [])

    async def test_restart(self, rest: Rest) -> None:
        await rest.create("s")
        answer = await rest.client.post("/connectors/s/restart")
        assert (answer.status_code, answer.content) == (204, b"")
        answer = await rest.client.post("/connectors/s/restart?includeTasks=true")
        assert answer.status_code == 202
        assert answer.json()["connector"]["state"] == "RESTARTING"
        assert answer.json()["tasks"][0]["state"] == "RESTARTING"
        answer = await rest.client.post("/connectors/s/restart?includeTasks=true&onlyFailed=true")
        assert answer.json()["tasks"][0]["state"] == "RUNNING"
        rest.herd.run("s", RunState.FAILED, "why")
        answer = await rest.client.post("/connectors/s/restart?onlyFailed=true")
        assert answer.json()["connector"] == {"state": "RESTARTING", "worker_id": ME, "trace": "why"}
        assert answer.json()["tasks"][0]["state"] == "FAILED"
        assert rest.herd.restarts == [
            ("s", True, (), False),
            ("s", True, None, False),
            ("s", True, None, True),
            ("s", True, (), True),
        ]
        refused(await rest.client.post("/connectors/nobody/restart"), 404)

    async def test_restart_of_a_task(self, rest: Rest) -> None:
        await rest.create("s")
        answer = await rest.client.post("/connectors/s/tasks/0/restart")
        assert (answer.status_code, answer.content) == (204, b"")
        assert rest.herd.restarts == [("s", False, [0], False)]
        refused(await rest.client.post("/connectors/s/tasks/1/restart"), 404)
        refused(await rest.client.post("/connectors/s/tasks/-1/restart"), 404)

    async def test_what_nothing_reads_is_no_change(self, rest: Rest) -> None:
        await rest.create("s")
        refused(await rest.client.post("/connectors/s/restart?onlyfailed=true"), 400, "onlyFailed")
        assert rest.herd.restarts == []


class TestOffsets:
    async def test_of_a_source(self, rest: Rest) -> None:
        await rest.create("s", file="/data/a")
        rest.herd.kept["s"] = [ConnectorOffset({"split": "/data/a"}, {"at": 5})]
        pair = {"partition": {"split": "/data/a"}, "offset": {"at": 5}}
        assert (await rest.client.get("/connectors/s/offsets")).json() == {"offsets": [pair]}
        body = {"offsets": [{**pair, "offset": {"at": 1}}]}
        refused(await rest.client.patch("/connectors/s/offsets", json=body), 400, "STOPPED")
        refused(await rest.client.delete("/connectors/s/offsets"), 400, "STOPPED")
        await rest.client.put("/connectors/s/stop")
        answer = await rest.client.patch("/connectors/s/offsets", json=body)
        assert answer.json() == {"message": "The offsets for this connector have been altered successfully"}
        assert rest.herd.kept["s"][-1] == ConnectorOffset({"split": "/data/a"}, {"at": 1})
        answer = await rest.client.delete("/connectors/s/offsets")
        assert answer.json() == {"message": "The offsets for this connector have been reset successfully"}
        assert (await rest.client.get("/connectors/s/offsets")).json() == {"offsets": []}

    async def test_of_a_sink(self, rest: Rest) -> None:
        config = {"connector.class": "FileStreamSink", "topics": "t"}
        await rest.client.post("/connectors", json={"name": "k", "config": config, "initial_state": "STOPPED"})
        rest.herd.follow()
        pair = {"partition": {"kafka_topic": "t", "kafka_partition": "0"}, "offset": {"kafka_offset": "7"}}
        assert (await rest.client.patch("/connectors/k/offsets", json={"offsets": [pair]})).status_code == 200
        assert rest.herd.kept["k"] == [ConnectorOffset({"kafka_topic": "t", "kafka_partition": 0}, {"kafka_offset": 7})]

    async def test_of_one_that_was_never_looked_at(self, rest: Rest) -> None:
        await rest.client.post("/connectors", json={"name": "s", "config": SOURCE, "initial_state": "STOPPED"})
        body = {"offsets": [{"partition": {"split": "a"}, "offset": None}]}
        refused(await rest.client.patch("/connectors/s/offsets", json=body), 409, "source or a sink")


class TestPlugins:
    async def test_lists(self, rest: Rest) -> None:
        found = (await rest.client.get("/connector-plugins")).json()
        assert {"class": "FileStreamSink", "type": "sink", "version": "1.0"} in found
        more = (await rest.client.get("/connector-plugins?connectorsOnly=false")).json()
        assert {one["type"] for one in more} == {"source", "sink", "converter", "transformation", "predicate"}

    async def test_settings(self, rest: Rest) -> None:
        found = {
            one["name"]: one for one in (await rest.client.get("/connector-plugins/FileStreamSource/config")).json()
        }
        assert found["batch.size"]["default_value"] == "2000"
        assert found["topic"]["required"]
        assert found["errors.tolerance"]["group"] == "Error Handling"
        assert not any(name.endswith((".", "*")) for name in found), "a family is no setting"
        mask = (await rest.client.get("/connector-plugins/MaskField%24Value/config")).json()
        assert "fields" in {one["name"] for one in mask}
        assert (await rest.client.get("/connector-plugins/json/config")).status_code == 200
        refused(await rest.client.get("/connector-plugins/Nobody/config"), 404, "Nobody")

    async def test_validate(self, rest: Rest) -> None:
        path = "/connector-plugins/FileStreamSource/config/validate"
        rest.hosts.outside = (Problem("", "the disk is away"),)
        config = {
            **SOURCE,
            "name": "v",
            "tasks.max": "many",
            "transforms": "",
            "transforms.a.type": "x",
            "password": "hunter2",
            "connection.url": "postgresql://shop:hunter2@db/shop",
            "batch.size": None,
        }
        found = (await rest.client.put(path, json=config)).json()
        by_name = {one["value"]["name"]: one for one in found["configs"]}
        assert found["name"] == "FileStreamSource"
        assert found["error_count"] == sum(len(one["value"]["errors"]) for one in found["configs"])
        assert "many" in by_name["tasks.max"]["value"]["errors"][0]
        assert by_name["tasks.max"]["definition"]["type"] == "INT"
        assert by_name["connector.class"]["value"]["errors"] == ["the disk is away"]
        assert by_name["transforms.a.type"]["definition"] is None
        assert "null" in by_name["batch.size"]["value"]["errors"][0]
        assert by_name["password"]["value"]["value"] == "[hidden]"
        assert "hunter2" not in json.dumps(found)
        assert "Error Handling" in found["groups"]

    async def test_what_cannot_be_validated(self, rest: Rest) -> None:
        path = "/connector-plugins/FileStreamSource/config/validate"
        refused(await rest.client.put(path, json={"topic": "t"}), 400, "no connector type")
        refused(await rest.client.put(path, json={"connector.class": "Other"}), 400, "does not match")
        refused(await rest.client.put(path, json=[]), 400)
        longer = "/connector-plugins/FileStreamSourceConnector/config/validate"
        assert (await rest.client.put(longer, json={**SOURCE, "name": "v"})).json()["error_count"] == 0

    async def test_preview(self, rest: Rest) -> None:
        rest.hosts.records = [{"value": "a"}, {"value": "b"}]
        answer = await rest.client.post("/v1/preview", json={"config": SOURCE, "records": 1})
        assert answer.json() == {"records": [{"value": "a"}]}
        wrong = await rest.client.post("/v1/preview", json={"config": SOURCE, "records": 0})
        assert (wrong.status_code, wrong.json()["code"]) == (400, "INVALID_REQUEST")
        rest.hosts.away = "RetriableError: the desk does not answer"
        problem(await rest.client.post("/v1/preview", json={"config": SOURCE}), 502, rest.hosts.away)


class TestOurs:
    async def test_a_plan_of_a_new_one_and_of_a_change(self, rest: Rest) -> None:
        body = {"name": "s", "config": {**SOURCE, "batch.size": 5}}
        planned = (await rest.client.post("/v1/plan", json=body)).json()
        assert (planned["name"], planned["action"], planned["problems"]) == ("s", "create", [])
        assert [one["key"] for one in planned["changes"]] == ["batch.size", "connector.class", "topic"]
        assert not rest.herd.state.connectors
        await rest.create("s", **{"batch.size": "4"})
        planned = (await rest.client.post("/v1/plan", json=body)).json()
        assert planned["action"] == "change"
        assert planned["changes"] == [{"key": "batch.size", "before": "4", "after": "5"}]
        assert rest.herd.state.connectors["s"].config["batch.size"] == "4"
        body["config"] = {**SOURCE, "batch.size": 4}
        assert (await rest.client.post("/v1/plan", json=body)).json()["action"] == "none"

    @pytest.mark.parametrize(
        ("config", "key"),
        [
            ({**SOURCE, "tpoic": "t"}, "tpoic"),
            ({"connector.class": "FileStreamSource"}, "topic"),
            ({**SOURCE, "batch.size": "many"}, "batch.size"),
            ({"topic": "t"}, "connector.class"),
            ({"connector.class": "Nobody"}, "connector.class"),
            ({**SOURCE, "file": "/etc/passwd"}, "file"),
        ],
    )
    async def test_a_plan_says_what_is_wrong_at_its_key(self, rest: Rest, config: Any, key: str) -> None:
        planned = (await rest.client.post("/v1/plan", json={"name": "s", "config": config})).json()
        assert key in [one["key"] for one in planned["problems"]]
        assert all(key in one["problem"] for one in planned["problems"] if one["key"] == key)

    @pytest.mark.parametrize(
        "body",
        [{}, [], {"name": "s"}, {"name": "", "config": {}}, {"name": ".", "config": SOURCE}, {"name": "s", "x": 1}],
    )
    async def test_a_plan_of_nothing(self, rest: Rest, body: Any) -> None:
        problem(await rest.client.post("/v1/plan", json=body), 400, "")

    async def test_snapshot_asks_a_host_about_the_connector(self, rest: Rest) -> None:
        await rest.create("a/b")
        config = rest.herd.state.connectors["a/b"].config
        answer = await rest.client.post("/v1/connectors/a%2Fb/snapshot", json={"tables": ["orders"]})
        assert answer.json() == {"tables": ["public.orders"]}
        assert rest.hosts.asked[-1] == ("snapshot", (config, ("orders",)))

    @pytest.mark.parametrize("body", [{}, {"tables": []}, {"tables": [1]}, {"tables": ["a"], "more": 1}])
    async def test_a_snapshot_that_cannot_be(self, rest: Rest, body: Any) -> None:
        await rest.create("s")
        rest.hosts.asked.clear()
        problem(await rest.client.post("/v1/connectors/s/snapshot", json=body), 400, "")
        assert not rest.hosts.asked

    async def test_events(self, rest: Rest) -> None:
        await rest.create("a/b")
        for number in range(3):
            kind = "drift" if number else "failed"
            rest.herd.happened.add(Happened("a/b", number, kind, "x", 0, "w", {"table": "t"}))
        found = (await rest.client.get("/v1/connectors/a%2Fb/events?limit=2")).json()["events"]
        one = {"kind": "drift", "text": "x", "task": 0, "worker_id": "w", "detail": {"table": "t"}}
        assert found == [{"at": 1, **one}, {"at": 2, **one}]
        found = (await rest.client.get("/v1/connectors/a%2Fb/events?kind=failed")).json()["events"]
        assert [event["at"] for event in found] == [0]
        problem(await rest.client.get("/v1/connectors/nobody/events"), 404, "nobody not found")
        problem(await rest.client.get("/v1/connectors/a%2Fb/events?limit=0"), 400, "limit")

    async def test_who_cannot_be_asked_for_a_snapshot(self, rest: Rest) -> None:
        path, body = "/v1/connectors/s/snapshot", {"tables": ["a"]}
        problem(await rest.client.post(path, json=body), 404, "Connector s not found")
        problem(await rest.client.post("/v1/connectors/%FF/snapshot", json=body), 400, "not UTF-8")
        await rest.create("s")
        rest.hosts.refuses = "FileStreamSource cannot do that"
        problem(await rest.client.post(path, json=body), 400, "cannot do that", "INVALID_CONFIG")
        rest.hosts.crash = "Segmentation fault"
        problem(await rest.client.post(path, json=body), 500, "Segmentation fault")
        rest.herd.is_ready = False
        problem(await rest.client.post(path, json=body), 503, "still reads", "METADATA_UNAVAILABLE")


CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/connectors", {"name": "s", "config": SOURCE}),
    ("PUT", "/connectors/s/config", SOURCE),
    ("PATCH", "/connectors/s/config", {"topic": "u"}),
    ("DELETE", "/connectors/s", None),
    ("POST", "/connectors/s/restart?includeTasks=true", None),
    ("POST", "/connectors/s/tasks/0/restart", None),
    ("PUT", "/connectors/s/pause", None),
    ("PUT", "/connectors/s/resume", None),
    ("PUT", "/connectors/s/stop", None),
    ("PATCH", "/connectors/s/offsets", {"offsets": [{"partition": {"split": "a"}, "offset": None}]}),
    ("DELETE", "/connectors/s/offsets", None),
]


class TestLeader:
    @pytest.mark.parametrize(("method", "path", "body"), CHANGES)
    async def test_changes_go_to_who_leads(self, rest: Rest, method: str, path: str, body: Any) -> None:
        await rest.create("s")
        rest.herd.lead(OTHER)
        rest.hosts.asked.clear()
        answer = await rest.client.request(method, path, json=body)
        ((url, sent_method, sent_path, query, content),) = rest.forwarding.sent
        bare, _, asked = path.partition("?")
        assert (url, sent_method, sent_path) == (OTHER, method, bare)
        assert query == [*([("includeTasks", "true")] if asked else []), ("forward", "false")]
        assert (json.loads(content) if content else None) == body
        assert not rest.hosts.asked, "whoever leads looks at it"
        assert answer.status_code == 200

    @pytest.mark.parametrize(("method", "path", "body"), CHANGES)
    async def test_one_hop_and_no_more(self, rest: Rest, method: str, path: str, body: Any) -> None:
        rest.herd.lead(OTHER)
        again = f"{path}{'&' if '?' in path else '?'}forward=false"
        refused(await rest.client.request(method, again, json=body), 409, "another worker leads")
        assert not rest.forwarding.sent

    async def test_an_answer_comes_back_as_it_is(self, rest: Rest) -> None:
        rest.herd.lead(OTHER)
        rest.forwarding.answers = Forwarded(201, b'{"a": 1}', f"{OTHER}/connectors/a%2Fb")
        answer = await rest.client.post("/connectors", json={"name": "a/b", "config": SOURCE})
        assert (answer.status_code, answer.content) == (201, b'{"a": 1}')
        assert answer.headers["location"] == "http://127.0.0.1:8083/connectors/a%2Fb"
        rest.forwarding.answers = Forwarded(204, b"")
        answer = await rest.client.put("/connectors/s/stop")
        assert (answer.status_code, answer.content, "content-type" in answer.headers) == (204, b"", False)

    async def test_a_leader_that_does_not_answer(self, rest: Rest) -> None:
        rest.herd.lead(OTHER)
        rest.forwarding.raises = NetworkFailed("the leader did not answer")
        refused(await rest.client.put("/connectors/s/stop"), 500, "did not answer")

    async def test_a_leader_that_stands_still_until_another_one_leads(self, rest: Rest) -> None:
        rest.herd.lead(OTHER)
        rest.forwarding.stands = lambda: rest.herd.lead(f"http://{ME}")
        refused(await rest.client.put("/connectors/s/stop"), 409, "another worker leads by now")

    async def test_nobody_leads(self, rest: Rest) -> None:
        rest.herd.leader = None
        refused(await rest.client.put("/connectors/s/stop"), 409, "no worker leads")
        answer = await rest.client.post("/v1/connectors/s/verify", json={})
        problem(answer, 409, "no worker leads", "LEADER_NOT_AVAILABLE")
        assert answer.json()["retriable"]

    async def test_who_is_to_lead_and_does_not_yet_asks_not_itself(self, rest: Rest) -> None:
        rest.herd.lead(f"http://{ME}")
        refused(await rest.client.put("/connectors/s/stop"), 409, "no worker leads")
        assert not rest.forwarding.sent

    async def test_another_one_has_taken_over_meanwhile(self, rest: Rest) -> None:
        await rest.create("s")
        rest.herd.lost = True
        assert (await rest.client.put("/connectors/s/stop")).status_code == 200
        assert rest.forwarding.sent[0][:3] == (OTHER, "PUT", "/connectors/s/stop")

    async def test_what_is_written_elsewhere_is_refused_as_it_is(self, rest: Rest) -> None:
        await rest.create("s")
        rest.herd.raises = NotWritten("not within 30 s", unknown=True)
        refused(await rest.client.put("/connectors/s/stop"), 500, "look first")
        rest.herd.raises = Conflict("100 changes wait")
        refused(await rest.client.put("/connectors/s/stop"), 409, "100 changes")

    async def test_reading_needs_no_leader(self, rest: Rest) -> None:
        await rest.create("s")
        rest.herd.lead(OTHER)
        assert (await rest.client.get("/connectors/s")).status_code == 200


class TestGate:
    @pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}])
    async def test_pages_of_others_change_nothing(self, rest: Rest, headers: dict[str, str]) -> None:
        await rest.create("s")
        for method, path in (("POST", "/restart"), ("PUT", "/stop"), ("DELETE", "")):
            answer = await rest.client.request(method, f"/connectors/s{path}", headers=headers)
            refused(answer, 403, "may not change anything")
        assert rest.herd.restarts == []
        assert (await rest.client.get("/connectors/s", headers=headers)).status_code == 200

    async def test_names_that_nobody_set_are_not_answered(self, rest: Rest) -> None:
        refused(await rest.client.get("/connectors", headers={"host": "evil.example"}), 421, "--hosts")
        assert (await rest.client.get("/connectors", headers={"host": "connect.example:8083"})).status_code == 200

    async def test_a_body_is_json_and_says_so(self, rest: Rest) -> None:
        body = json.dumps({"name": "s", "config": SOURCE})
        for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
            refused(await rest.client.post("/connectors", content=body, headers=headers), 415)
        headers = {"content-type": "application/json; charset=utf-8"}
        assert (await rest.client.post("/connectors", content=body, headers=headers)).status_code == 201

    @pytest.mark.parametrize(
        "body", [b'{"name"', b'{"name": "a", "name": "b"}', b'{"name": NaN}', b"\xff", b"", b"[" * 100]
    )
    async def test_bodies_without_one_meaning(self, rest: Rest, body: bytes) -> None:
        refused(await rest.client.post("/connectors", content=body, headers=JSON), 400)

    async def test_no_such_path_and_verb(self, rest: Rest) -> None:
        refused(await rest.client.get("/nothing"), 404, "HTTP 404 Not Found")
        answer = await rest.client.put("/connectors")
        refused(answer, 405, "HTTP 405 Method Not Allowed")
        assert answer.headers["allow"] == "GET, HEAD, POST"
        problem(await rest.client.get("/v1/nothing"), 404, "Not Found")
        assert (await rest.client.head("/connectors")).status_code == 200

    async def test_a_bug_is_logged_and_not_told(self, rest: Rest, caplog: pytest.LogCaptureFixture) -> None:
        rest.herd.raises = ZeroDivisionError("secret")
        answer = await rest.client.put("/connectors/s/stop")
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "secret" in caplog.text

    async def test_a_request_has_an_end(self) -> None:
        transport = httpx.ASGITransport(TimeLimit(_never, ms_max=10))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.put("/connectors/s/stop")
            assert answer.json() == {
                "error_code": 500,
                "message": "Request timed out. It may have been carried out: look first.",
            }
            assert (await client.get("/connectors")).json()["message"] == "Request timed out"


async def _never(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


async def test_every_operation_is_described(rest: Rest) -> None:
    document = (await rest.client.get("/openapi.json")).json()
    operations = [o for methods in document["paths"].values() for o in methods.values()]
    assert len(operations) == 38
    assert all(o.get("description") for o in operations)
    assert len({o["operationId"] for o in operations}) == len(operations)
