"""REST as its users see it: what comes back for what is sent."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.request import urlopen

import httpx
import pytest
from libs.common.tests.kit.closed import Rows
from services.admin.tests.kit.rest import JSON, Rest
from services.admin.tests.kit.world import LIMITS

from headrace_admin.adapters.aes_seals import AesSeals
from headrace_admin.rpc.rest import rest_app
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import Internal, MetadataUnavailable, NetworkFailed, Overloaded, RequestTimedOut
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.http import json_gate
from headrace_common.http.foreign_pages import Hosts
from headrace_common.runtime.metrics import open_metrics
from headrace_lab.nodes import address


def assert_problem(answer: Any, status: int, code: str, says: str = "") -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["code"] == code
    assert body["status"] == status
    assert body["next_step"]
    assert body["title"]
    assert body["type"] == f"urn:headrace:error:{code}"
    assert says in body["detail"], body["detail"]
    return body


async def create(rest: Rest, name: str = "t", **fields: Any) -> Any:
    return await rest.client.post("/v1/topics", json={"name": name, **fields})


class TestCluster:
    async def test_at_a_glance(self, rest: Rest) -> None:
        await create(rest, partitions=3)
        body = (await rest.client.get("/v1/cluster")).json()
        assert body["cluster_id"] == rest.world.image.cluster_id
        assert body["partition_count"] == 3
        assert body["active_controller"] == {"id": 1, "epoch": 1, "grpc": str(address("controller-1"))}
        assert [b["id"] for b in body["brokers"]] == [1, 2]

    async def test_brokers(self, rest: Rest) -> None:
        assert [b["grpc"] for b in (await rest.client.get("/v1/brokers")).json()["brokers"]] == [
            str(address("broker-1")),
            str(address("broker-2")),
        ]
        assert (await rest.client.get("/v1/brokers/2")).json()["id"] == 2
        assert_problem(await rest.client.get("/v1/brokers/9"), 404, "RESOURCE_NOT_FOUND", "not registered")

    async def test_logs_of_a_broker(self, rest: Rest) -> None:
        await create(rest, assignments=[[1], [2], [1], [2]])
        await create(rest, name="u", assignments=[[1]])
        logs = (await rest.client.get("/v1/brokers/1/logs?topic=t")).json()
        assert [(log["topic"], log["partition"], log["state"]) for log in logs["logs"]] == [
            ("t", 0, "online"),
            ("t", 2, "online"),
        ]
        assert_problem(await rest.client.get("/v1/brokers/7/logs"), 404, "RESOURCE_NOT_FOUND", "registered are: 1, 2")
        rest.world.lab.refuse("broker-1")
        assert_problem(await rest.client.get("/v1/brokers/1/logs"), 504, "NETWORK_EXCEPTION")

    async def test_broker_settings(self, rest: Rest) -> None:
        change = {"set": {"num.partitions": "3"}}
        assert (await rest.client.patch("/v1/cluster/configs", json=change)).status_code == 200
        one = await rest.client.patch("/v1/brokers/1/configs", json=change)
        assert_problem(one, 400, "INVALID_CONFIG", "set it for the cluster")
        own = {"set": {"follower.replication.throttled.rate": "1000"}}
        assert (await rest.client.patch("/v1/brokers/1/configs", json=own)).status_code == 200
        configs = (await rest.client.get("/v1/brokers/1/configs")).json()["configs"]
        values = {c["name"]: c["value"] for c in configs}
        assert (values["num.partitions"], values["follower.replication.throttled.rate"]) == ("3", "1000")
        wrong = await rest.client.patch("/v1/cluster/configs", json={"set": {"no.such": "1"}})
        assert_problem(wrong, 400, "INVALID_CONFIG", "no.such")


class TestTopics:
    async def test_one_that_is_there_already_is_enough_if_that_is_asked_for(self, rest: Rest) -> None:
        fresh = await create(rest, partitions=3, if_not_exists=True)
        assert (fresh.status_code, fresh.headers["location"]) == (201, "/v1/topics/t")
        assert_problem(await create(rest, partitions=5), 409, "TOPIC_ALREADY_EXISTS")
        there = await create(rest, partitions=5, if_not_exists=True)
        assert there.status_code == 200, there.text
        assert "location" not in there.headers
        assert (there.json()["id"], len(there.json()["partitions"])) == (fresh.json()["id"], 3)
        assert_problem(await create(rest, "a b", if_not_exists=True), 400, "INVALID_REQUEST")

    async def test_create_and_describe(self, rest: Rest) -> None:
        created = await create(rest, "flights", assignments=[[1], [2], [1]], configs={"retention.ms": "1000"})
        assert created.status_code == 201
        assert created.headers["location"] == "/v1/topics/flights"
        body = (await rest.client.get("/v1/topics/flights")).json()
        assert body["configs"] == {"retention.ms": "1000"}
        assert [(p["partition"], p["leader"], p["size_bytes"]) for p in body["partitions"]] == [
            (0, 1, 0),
            (1, 2, 0),
            (2, 1, 0),
        ]

    async def test_sizes_are_null_where_a_leader_does_not_answer(self, rest: Rest) -> None:
        await create(rest, assignments=[[1], [2]])
        await rest.world.fill("t", 0, 3)
        rest.world.lab.refuse("broker-2")
        partitions = (await rest.client.get("/v1/topics/t")).json()["partitions"]
        log = rest.world.lab.log("t", 0)
        assert [p["size_bytes"] for p in partitions] == [sum(map(len, log.batches)), None]

    async def test_a_dry_run_changes_nothing(self, rest: Rest) -> None:
        assert (await create(rest, validate_only=True)).status_code == 200
        assert_problem(await rest.client.get("/v1/topics/t"), 404, "UNKNOWN_TOPIC_OR_PARTITION")

    async def test_what_exists_is_a_conflict(self, rest: Rest) -> None:
        await create(rest)
        assert not assert_problem(await create(rest), 409, "TOPIC_ALREADY_EXISTS")["retriable"]

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "ü", "x" * 250, "a\0b", "a/b"])
    async def test_names_that_no_topic_can_have(self, rest: Rest, name: str) -> None:
        answer = await create(rest, name)
        assert answer.status_code == 400
        assert answer.json()["code"] in {"INVALID_REQUEST", "INVALID_TOPIC_EXCEPTION"}

    async def test_numbers_and_assignments_exclude_each_other(self, rest: Rest) -> None:
        assert_problem(await create(rest, partitions=1, assignments=[[1]]), 400, "INVALID_REQUEST", "assignments")
        assert (await create(rest, assignments=[[1], [2]])).status_code == 201

    async def test_pages(self, rest: Rest) -> None:
        for n in range(5):
            await create(rest, f"t{n}")
        seen, after = [], ""
        for _ in range(3):
            page = (await rest.client.get("/v1/topics", params={"limit": 2, "after": after})).json()
            seen += [t["name"] for t in page["topics"]]
            assert page["total"] == 5
            after = page["next"]
        assert seen == [f"t{n}" for n in range(5)]
        assert after is None

    async def test_a_parameter_that_nothing_reads_is_refused(self, rest: Rest) -> None:
        await create(rest, "t")
        assert_problem(
            await rest.client.delete("/v1/topics/t?confirm=t&dryRun=true"),
            400,
            "INVALID_REQUEST",
            "'dryRun'; this operation takes confirm",
        )
        assert_problem(await rest.client.get("/v1/cluster?verbose"), 400, "INVALID_REQUEST", "takes none")
        assert (await rest.client.get("/v1/topics/t")).status_code == 200
        assert (await rest.client.get("/health/live?at=1")).status_code == 200

    async def test_deleting_wants_the_name_twice(self, rest: Rest) -> None:
        await create(rest)
        for wrong in ("", "?confirm=", "?confirm=T", "?confirm=true"):
            assert_problem(await rest.client.delete(f"/v1/topics/t{wrong}"), 400, "INVALID_REQUEST", "?confirm=t")
        assert (await rest.client.delete("/v1/topics/t?confirm=t")).status_code == 204
        assert_problem(await rest.client.delete("/v1/topics/t?confirm=t"), 404, "UNKNOWN_TOPIC_OR_PARTITION")

    async def test_settings(self, rest: Rest) -> None:
        await create(rest)
        changed = await rest.client.patch("/v1/topics/t/configs", json={"set": {"retention.ms": "5"}})
        entry = next(c for c in changed.json()["configs"] if c["name"] == "retention.ms")
        assert (entry["value"], entry["source"]) == ("5", "topic")
        await rest.client.patch("/v1/topics/t/configs", json={"delete": ["retention.ms"]})
        configs = (await rest.client.get("/v1/topics/t/configs")).json()["configs"]
        assert next(c for c in configs if c["name"] == "retention.ms")["source"] == "default"

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({}, "INVALID_REQUEST"),
            ({"set": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
            ({"set": {"retention.ms": "1"}, "delete": ["retention.ms"]}, "INVALID_REQUEST"),
            ({"set": {"retention.ms": 1}}, "INVALID_REQUEST"),
            ({"sett": {}}, "INVALID_REQUEST"),
        ],
    )
    async def test_settings_that_are_refused(self, rest: Rest, change: dict[str, Any], code: str) -> None:
        await create(rest)
        assert_problem(await rest.client.patch("/v1/topics/t/configs", json=change), 400, code)

    async def test_partitions_are_only_added(self, rest: Rest) -> None:
        await create(rest)
        added = await rest.client.post("/v1/topics/t/partitions", json={"partitions": 3})
        assert len(added.json()["partitions"]) == 3
        fewer = await rest.client.post("/v1/topics/t/partitions", json={"partitions": 2})
        assert_problem(fewer, 400, "INVALID_PARTITIONS")

    async def test_trimming_is_told_per_partition(self, rest: Rest) -> None:
        await create(rest, assignments=[[1], [1], [2]])
        for partition in range(3):
            await rest.world.fill("t", partition, 10)
        rest.world.lab.stop(2)
        wanted = [{"partition": 0, "offset": 4}, {"partition": 1, "offset": 99}, {"partition": 2, "offset": -1}]
        results = (await rest.client.post("/v1/topics/t/trim", json={"partitions": wanted})).json()["partitions"]
        assert results[0] == {"partition": 0, "log_start_offset": 4, "error": None}
        assert results[1]["error"]["code"] == "OFFSET_OUT_OF_RANGE"
        assert results[2]["error"]["code"] == "LEADER_NOT_AVAILABLE"
        assert results[2]["error"]["retriable"]


class TestMessages:
    async def test_there_and_back_in_every_form(self, rest: Rest) -> None:
        await create(rest, partitions=1)
        records = [
            {"value": "plain", "key": {"text": "k"}},
            {"value": {"json": {"a": [1, None, "ü"]}}, "headers": [{"name": "h", "value": {"text": "v"}}]},
            {"value": {"base64": base64.b64encode(b"\xff\x00").decode()}, "partition": 0, "timestamp_ms": 5},
            {"key": "only a key"},
        ]
        written = await rest.client.post("/v1/topics/t/records", json={"records": records})
        assert written.status_code == 201
        assert [w["offset"] for w in written.json()["records"]] == [0, 1, 2, 3]
        read = (await rest.client.get("/v1/topics/t/partitions/0/records?form=json")).json()
        assert read["next_offset"] == 4
        assert [r["value"] for r in read["records"]] == [
            {"text": "plain"},
            {"json": {"a": [1, None, "ü"]}},
            {"base64": "/wA="},
            None,
        ]
        assert read["records"][1]["headers"] == [{"name": "h", "value": {"text": "v"}}]
        assert read["records"][2]["timestamp_ms"] == 5
        auto = (await rest.client.get("/v1/topics/t/partitions/0/records?offset=1&limit=1")).json()
        assert auto["records"][0]["value"] == {"text": '{"a":[1,null,"ü"]}'}
        assert auto["next_offset"] == 2
        raw = (await rest.client.get("/v1/topics/t/partitions/0/records?form=base64&limit=1")).json()
        assert raw["records"][0]["key"] == {"base64": "aw=="}

    async def test_latest_is_where_nothing_is_yet(self, rest: Rest) -> None:
        await create(rest)
        await rest.client.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        latest = (await rest.client.get("/v1/topics/t/partitions/0/records?offset=latest")).json()
        assert latest == {"records": [], "next_offset": 1}

    async def test_bytes_are_bounded_but_for_the_first(self, rest: Rest) -> None:
        await create(rest)
        await rest.client.post("/v1/topics/t/records", json={"records": [{"value": "x" * 50}] * 3})
        page = (await rest.client.get("/v1/topics/t/partitions/0/records?bytes_max=1")).json()
        assert len(page["records"]) == 1

    @pytest.mark.parametrize("offset", ["-1", "1e3", "٣", "first", "99999999999999999999", str(2**63)])
    async def test_offsets_that_are_none(self, rest: Rest, offset: str) -> None:
        await create(rest)
        answer = await rest.client.get("/v1/topics/t/partitions/0/records", params={"offset": offset})
        assert_problem(answer, 400, "INVALID_REQUEST")

    async def test_out_of_range(self, rest: Rest) -> None:
        await create(rest)
        answer = await rest.client.get("/v1/topics/t/partitions/0/records?offset=7")
        assert_problem(answer, 400, "OFFSET_OUT_OF_RANGE")

    async def test_unknown_topics_and_partitions(self, rest: Rest) -> None:
        await create(rest)
        one = {"records": [{"value": "x"}]}
        assert_problem(
            await rest.client.post("/v1/topics/nope/records", json=one), 404, "UNKNOWN_TOPIC_OR_PARTITION", "create it"
        )
        assert_problem(
            await rest.client.get("/v1/topics/t/partitions/5/records"), 404, "UNKNOWN_TOPIC_OR_PARTITION", "0 to 0"
        )
        there = {"records": [{"value": "x", "partition": 5}]}
        assert_problem(await rest.client.post("/v1/topics/t/records", json=there), 404, "UNKNOWN_TOPIC_OR_PARTITION")

    async def test_broken_base64(self, rest: Rest) -> None:
        await create(rest)
        answer = await rest.client.post("/v1/topics/t/records", json={"records": [{"value": {"base64": "%%"}}]})
        assert_problem(answer, 400, "INVALID_REQUEST", "not base64")


class TestGate:
    @pytest.mark.parametrize(
        ("body", "says"),
        [
            (b"{", "not JSON"),
            (b'{"name": "t", "name": "u"}', "occurs twice"),
            (b'{"name": "t", "configs": {"a": "1", "a": "2"}}', "occurs twice"),
            (b'{"name": NaN}', "NaN"),
            (b'{"name": 1e999}', "too large"),
            (b'{"name": ' + b"9" * 5000 + b"}", "too many digits"),
            (b"\xff", "UTF-8"),
            (b'{"name": "\\ud800"}', "surrogate"),
            (b"[" * 100_0 + b"]" * 1_000, "nested deeper"),
            (b"[" * 30_000 + b"]" * 30_000, "nested deeper"),
        ],
    )
    async def test_bodies_without_one_meaning(self, rest: Rest, body: bytes, says: str) -> None:
        answer = await rest.client.post("/v1/topics", content=body, headers={"content-type": "application/json"})
        assert_problem(answer, 400, "INVALID_REQUEST", says)

    async def test_a_body_without_an_end_is_not_read_for_ever(
        self, rest: Rest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(json_gate, "DRAIN_BYTES_MAX", 100_000)
        taken = 0

        async def endless() -> Any:
            nonlocal taken
            while True:
                taken += 1
                yield b" " * 10_000

        answer = await rest.client.post("/v1/topics", content=endless(), headers={"content-type": "application/json"})
        assert_problem(answer, 413, "MESSAGE_TOO_LARGE", "64000")
        assert taken < 20

    @pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
    async def test_only_json(self, rest: Rest, content_type: str) -> None:
        answer = await rest.client.post("/v1/topics", content=b"{}", headers={"content-type": content_type})
        assert_problem(answer, 415, "INVALID_REQUEST", "content type")

    async def test_a_request_whose_body_does_not_come_is_not_carried_out(self, rest: Rest) -> None:
        sent: list[Any] = []
        messages = iter([{"type": "http.request", "body": b"", "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"9")]
        scope = {"type": "http", "method": "POST", "path": "/v1/brokers/1/drain", "headers": headers}
        await rest.app({**scope, "query_string": b"", "root_path": "", "http_version": "1.1"}, receive, send)
        assert sent == []
        assert not rest.world.image.nodes[NodeKey(Role.BROKER, NodeId(1))].drained


CHANGES = [
    ("POST", "/v1/brokers/1/drain"),
    ("DELETE", "/v1/topics/t?confirm=t"),
    ("POST", "/v1/topics/t/records"),
    ("PATCH", "/v1/cluster/configs"),
    ("PUT", "/v1/cluster"),
]


class TestForeignPages:
    @pytest.mark.parametrize(("method", "path"), CHANGES)
    async def test_what_is_changed_needs_a_content_type_that_no_form_has(
        self, rest: Rest, method: str, path: str
    ) -> None:
        await create(rest)
        for content_type in ("", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
            answer = await rest.client.request(method, path, headers={"content-type": content_type})
            assert_problem(answer, 415, "INVALID_REQUEST", "content type")
        assert (await rest.client.get("/v1/topics/t")).status_code == 200
        assert not rest.world.image.nodes[NodeKey(Role.BROKER, NodeId(1))].drained

    @pytest.mark.parametrize(("method", "path"), CHANGES)
    @pytest.mark.parametrize(
        "said",
        [
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "Cross-Site", "origin": "http://127.0.0.1:9480"},
            {"origin": "null"},
            {"origin": "https://evil.example"},
            {"origin": "http://localhost:3000"},
            {"origin": "http://127.0.0.1:9481"},
            {"origin": "file://127.0.0.1:9480"},
            {"origin": ""},
        ],
    )
    async def test_pages_of_others_change_nothing(
        self, rest: Rest, method: str, path: str, said: dict[str, str]
    ) -> None:
        await create(rest)
        assert_problem(await rest.client.request(method, path, headers=JSON | said), 403, "POLICY_VIOLATION", "page")
        assert (await rest.client.get("/v1/topics/t")).status_code == 200
        assert not rest.world.image.nodes[NodeKey(Role.BROKER, NodeId(1))].drained

    @pytest.mark.parametrize(
        "said",
        [
            {},
            {"origin": "http://127.0.0.1:9480", "sec-fetch-site": "same-origin"},
            {"host": "headrace.example", "origin": "https://headrace.example:443"},
            {"host": "127.0.0.1:9480", "origin": "https://headrace.example"},
        ],
    )
    async def test_its_own_page_and_programs_do(self, rest: Rest, said: dict[str, str]) -> None:
        drained = await rest.client.post("/v1/brokers/1/drain", headers=JSON | said)
        assert drained.status_code == 200, drained.text

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:9480", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::1", "a:b"],
    )
    @pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
    async def test_names_that_nobody_set_are_not_answered(self, rest: Rest, host: str, method: str) -> None:
        answer = await rest.client.request(method, "/v1/cluster", headers={"host": host, **JSON})
        assert answer.status_code == 421
        if method != "HEAD":
            body = assert_problem(answer, 421, "INVALID_REQUEST", "does not answer as")
            assert "HEADRACE_ADMIN_HOSTS" in body["next_step"]

    @pytest.mark.parametrize(
        "host",
        [
            *("localhost", "localhost:1", "LOCALHOST.", "127.0.0.1", "[::1]", "[::1]:9480", "10.1.2.3:8080"),
            *("headrace.example", "Headrace.Example:443", "headrace.example."),
        ],
    )
    async def test_this_machine_addresses_and_names_that_were_set_are(self, rest: Rest, host: str) -> None:
        assert (await rest.client.get("/v1/cluster", headers={"host": host})).status_code == 200

    async def test_any_name_where_that_was_set(self) -> None:
        assert Hosts.of(["*"]).has("evil.example")


def fail(rest: Rest, failure: Exception) -> None:
    """From now on the cluster cannot be described."""

    async def describe_cluster(_: Any) -> Any:
        raise failure

    rest.world.controller_calls.DescribeCluster = describe_cluster


class TestErrors:
    async def test_no_such_path_and_method(self, rest: Rest) -> None:
        assert_problem(await rest.client.get("/v2/nothing"), 404, "RESOURCE_NOT_FOUND")
        answer = await rest.client.put("/v1/cluster", headers=JSON)
        assert_problem(answer, 405, "INVALID_REQUEST")
        assert answer.headers["allow"] == "GET, HEAD"

    @pytest.mark.parametrize(
        ("path", "allow"),
        [
            ("/v1/topics", "GET, HEAD, POST"),
            ("/v1/topics/t", "GET, HEAD, DELETE"),
            ("/v1/brokers/1/drain", "POST, DELETE"),
            ("/v1/reassignments/throttle", "GET, HEAD, PUT"),
            ("/docs", "GET, HEAD"),
        ],
    )
    async def test_all_verbs_of_a_path_are_named(self, rest: Rest, path: str, allow: str) -> None:
        answer = await rest.client.request("OPTIONS", path)
        assert_problem(answer, 405, "INVALID_REQUEST")
        assert answer.headers["allow"] == allow

    async def test_every_path_that_can_be_read_has_a_head(self, rest: Rest) -> None:
        await create(rest)
        paths = [p for p, verbs in (await rest.client.get("/openapi.json")).json()["paths"].items() if "get" in verbs]
        for path in [*(re.sub(r"{(partition|broker)\w*}", "1", p).replace("{topic}", "t") for p in paths), "/docs"]:
            got, head = await rest.client.get(path), await rest.client.head(path)
            assert (head.status_code, head.content) == (got.status_code, b""), path
            assert head.headers["content-length"] == str(len(got.content)), path
            assert head.headers["content-type"] == got.headers["content-type"], path
        assert (await rest.client.head("/nothing")).status_code == 404

    async def test_every_malformed_field_is_named(self, rest: Rest) -> None:
        body = assert_problem(await create(rest, partitions=0, replication_factor="x"), 400, "INVALID_REQUEST")
        assert [e["where"] for e in body["errors"]] == ["body/partitions", "body/replication_factor"]

    @pytest.mark.parametrize(
        ("failure", "status", "retriable"),
        [
            (MetadataUnavailable("etcd is away"), 503, True),
            (Overloaded("queue full"), 429, True),
            (RequestTimedOut("no answer"), 504, True),
            (NetworkFailed("broke"), 504, True),
            (Internal("a bug"), 500, False),
        ],
    )
    async def test_one_mapping(self, rest: Rest, failure: Any, status: int, retriable: bool) -> None:
        fail(rest, failure)
        body = assert_problem(await rest.client.get("/v1/cluster"), status, failure.code.name)
        assert body["retriable"] is retriable

    async def test_a_bug_is_logged_and_not_told(self, rest: Rest, caplog: pytest.LogCaptureFixture) -> None:
        fail(rest, KeyError("the secret inside"))
        body = assert_problem(await rest.client.get("/v1/cluster"), 500, "UNKNOWN_SERVER_ERROR")
        assert "secret" not in str(body)
        assert any(r.exc_info and "secret" in str(r.exc_info[1]) for r in caplog.records)


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 has it; text is readable from 4.5 on."""

    def luminance(color: str) -> float:
        parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


class TestHealthAndDocs:
    async def test_health(self, rest: Rest) -> None:
        assert (await rest.client.get("/health/live")).json() == {"status": "ok"}
        assert (await rest.client.get("/health/ready")).json() == {"status": "ok"}
        rest.ready[0] = False
        assert_problem(await rest.client.get("/health/ready"), 503, "METADATA_UNAVAILABLE")
        assert (await rest.client.get("/health/live")).status_code == 200

    async def test_the_docs_page_loads_nothing_from_elsewhere(self, rest: Rest) -> None:
        page = await rest.client.get("/docs")
        assert page.status_code == 200
        assert "http://" not in page.text
        assert "https://" not in page.text
        assert "src=" not in page.text
        dark, light = page.text.split("prefers-color-scheme: dark")[1].split("\n}")[0], page.text.split("@media")[0]
        for css, background in ((light, "#ffffff"), (dark, "#1c1b22")):
            colors = re.findall(r"--verb: (#[0-9a-f]{6})", css)
            assert len(colors) == 5
            assert min(contrast(color, background) for color in colors) >= 4.5
        assert "default-src 'none'" in page.headers["content-security-policy"]

    async def test_every_operation_is_described(self, rest: Rest) -> None:
        api = (await rest.client.get("/openapi.json")).json()
        operations = [(path, m, op) for path, methods in api["paths"].items() for m, op in methods.items()]
        assert len(operations) >= 20
        for path, method, operation in operations:
            assert operation["description"], (method, path)
            problem = operation["responses"]["default"]["content"]
            assert problem["application/problem+json"]["schema"]["$ref"].endswith("/Problem")
            assert "422" not in operation["responses"], (method, path)


async def test_requests_are_measured_by_route(rest: Rest) -> None:
    with open_metrics("admin", 1, Endpoint("127.0.0.1", 0)) as metrics:
        app = rest_app(
            rest.world.engines,
            LIMITS,
            ready=lambda: True,
            hosts=Hosts(),
            meter=metrics.meter,
            access=Rows(Mode.OPEN).access(),
            seals=AesSeals.of_this_process(),
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            for path in ("/v1/topics/a", "/v1/topics/b", "/nothing"):
                assert (await client.get(path)).status_code == 404
        text = urlopen(f"http://{metrics.endpoint}/metrics", timeout=10).read().decode()
    counts = [line for line in text.splitlines() if line.startswith("headrace_admin_http_requests_total{")]
    assert any(
        'route="/v1/topics/{topic}"' in line and 'status="404"' in line and line.endswith(" 2.0") for line in counts
    )
    assert any('route="none"' in line and line.endswith(" 1.0") for line in counts)
