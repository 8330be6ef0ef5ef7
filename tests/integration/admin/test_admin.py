"""The admin service in a real cluster: etcd, controllers, brokers and admin, each a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import pytest
from libs.common.tests.kit.as_node import as_node

from headrace import AdminClient
from headrace.securing import security_of
from headrace_cli.local import LocalCluster
from headrace_common.core.errors import Kind
from headrace_common.core.features import HIGHEST
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import admin_pb2, broker_pb2, cluster_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

JSON = {"content-type": "application/json"}


def eventually(what: Callable[[], Any], holds: Callable[[Any], bool], seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while True:
        seen = what()
        if holds(seen):
            return seen
        assert time.monotonic() < end, f"still {seen!r}"
        time.sleep(0.05)


def test_a_topic_from_its_creation_to_its_end(http: httpx.Client) -> None:
    created = http.post("/v1/topics", json={"name": "life", "partitions": 2, "configs": {"retention.ms": "-1"}})
    assert created.status_code == 201, created.text
    assert http.post("/v1/topics", json={"name": "life"}).json()["code"] == "TOPIC_ALREADY_EXISTS"
    records = [{"key": "k", "value": {"json": {"n": n}}, "partition": 0} for n in range(50)]
    written = http.post("/v1/topics/life/records", json={"records": records}).json()["records"]
    assert [w["offset"] for w in written] == list(range(50))
    read = http.get("/v1/topics/life/partitions/0/records?form=json&offset=10&limit=5").json()
    assert [r["value"]["json"]["n"] for r in read["records"]] == [10, 11, 12, 13, 14]
    assert read["next_offset"] == 15
    described = http.get("/v1/topics/life").json()
    assert [p["high_watermark"] for p in described["partitions"]] == [50, 0]
    assert described["partitions"][0]["size_bytes"] > 0
    trimmed = http.post("/v1/topics/life/trim", json={"partitions": [{"partition": 0, "offset": 20}]}).json()
    assert trimmed["partitions"] == [{"partition": 0, "log_start_offset": 20, "error": None}]
    assert http.get("/v1/topics/life/partitions/0/records?limit=1").json()["records"][0]["offset"] == 20
    gone = http.get("/v1/topics/life/partitions/0/records?offset=3")
    assert (gone.status_code, gone.json()["code"]) == (400, "OFFSET_OUT_OF_RANGE")
    more = http.post("/v1/topics/life/partitions", json={"partitions": 4})
    assert len(more.json()["partitions"]) == 4
    assert http.delete("/v1/topics/life?confirm=life").status_code == 204
    assert http.get("/v1/topics/life").status_code == 404
    assert http.post("/v1/topics/life/records", json={"records": [{"value": "x"}]}).status_code == 404


def test_any_bytes_there_and_back(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "bytes"})
    body = {
        "records": [
            {
                "value": {"base64": "AP8="},
                "key": {"base64": ""},
                "headers": [{"name": "h", "value": {"base64": "/w=="}}],
            },
            {"value": None, "headers": [{"name": "h"}, {"name": "h", "value": "ü"}], "timestamp_ms": 5},
        ]
    }
    answer = http.post("/v1/topics/bytes/records", json=body)
    assert answer.status_code == 201, answer.text
    first, second = http.get("/v1/topics/bytes/partitions/0/records?limit=10").json()["records"]
    assert first["value"] == {"base64": "AP8="}
    assert first["key"] == {"text": ""}
    assert first["headers"] == [{"name": "h", "value": {"base64": "/w=="}}]
    assert second["value"] is None
    assert second["key"] is None
    assert second["timestamp_ms"] == 5
    assert second["headers"] == [{"name": "h", "value": None}, {"name": "h", "value": {"text": "ü"}}]


def test_a_read_waits_for_what_is_written_meanwhile(http: httpx.Client, shared: LocalCluster) -> None:
    from concurrent.futures import ThreadPoolExecutor

    http.post("/v1/topics", json={"name": "tail"})

    def read() -> Any:
        return httpx.get(
            f"{shared.admin_url}/v1/topics/tail/partitions/0/records?offset=0&wait_ms=20000",
            timeout=60,
            headers=shared.authorization,
        ).json()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read)
        time.sleep(0.3)
        assert not waiting.done()
        http.post("/v1/topics/tail/records", json={"records": [{"value": "now"}]})
        assert waiting.result()["records"][0]["value"] == {"text": "now"}


def test_what_cannot_be_is_refused_by_name(http: httpx.Client) -> None:
    def code(answer: httpx.Response) -> str:
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        assert answer.json()["next_step"]
        return str(answer.json()["code"])

    assert code(http.post("/v1/topics", json={"name": "x", "replication_factor": 3})) == "INVALID_REPLICATION_FACTOR"
    assert code(http.post("/v1/topics", json={"name": "x", "configs": {"cleanup.policy": "shred"}})) == (
        "INVALID_CONFIG"
    )
    assert http.get("/v1/topics/nope/configs").status_code == 404
    assert code(http.get("/v1/topics/nope")) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert code(http.patch("/v1/brokers/1/configs", json={"set": {"broker.session.timeout.ms": "1"}})) == (
        "INVALID_CONFIG"
    )
    assert code(http.get("/v1/brokers/77/logs")) == "RESOURCE_NOT_FOUND"


def test_settings_are_changed_and_take_their_default_again(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "set"})

    def retention() -> tuple[str, str]:
        configs = http.get("/v1/topics/set/configs").json()["configs"]
        entry = next(c for c in configs if c["name"] == "retention.ms")
        return entry["value"], entry["source"]

    http.patch("/v1/topics/set/configs", json={"set": {"retention.ms": "7"}})
    assert retention() == ("7", "topic")
    http.patch("/v1/topics/set/configs", json={"set": {"retention.ms": "8"}, "validate_only": True})
    assert retention() == ("7", "topic")
    http.patch("/v1/topics/set/configs", json={"delete": ["retention.ms"]})
    assert retention()[1] == "default"


def test_a_new_cluster_has_all_features_at_once(http: httpx.Client, shared: LocalCluster) -> None:
    found = eventually(lambda: http.get("/v1/cluster/features").json(), lambda seen: seen["level"] == HIGHEST)
    assert found["waits_for"] is None
    assert {node["node"].partition("-")[0] for node in found["nodes"]} == {
        "broker",
        "controller",
        "coordinator",
        "admin",
    }
    assert {node["feature_level_max"] for node in found["nodes"]} == {HIGHEST}
    with AdminClient(shared.bootstrap_servers) as admin:
        assert admin.describe_features().level == HIGHEST


def test_pages_of_others_and_names_of_others_reach_nothing(http: httpx.Client) -> None:
    attacks: list[tuple[int, dict[str, str]]] = [
        (415, {"content-type": "application/x-www-form-urlencoded"}),
        (415, {"content-type": "text/plain"}),
        (403, {"sec-fetch-site": "cross-site"}),
        (403, {"origin": "https://evil.example"}),
        (421, {"host": "evil.example"}),
    ]
    for status, headers in attacks:
        answer = http.post("/v1/brokers/1/drain", headers=headers)
        assert answer.status_code == status, answer.text
    (broker,) = [b for b in http.get("/v1/cluster/status").json()["brokers"] if b["id"] == 1]
    assert not broker["drained"]
    for host in ("localhost", socket.gethostname(), "[::1]:80"):
        assert http.get("/v1/cluster", headers={"host": host}).status_code == 200


async def test_the_same_over_grpc_and_found_through_metadata(shared: LocalCluster) -> None:
    async with open_channel(shared.bootstrap_servers[0], security_of(shared.address)) as channel:
        metadata = await BrokerStub(channel).Metadata(broker_pb2.MetadataRequest())
    (admin,) = [n for n in metadata.nodes if n.role == cluster_pb2.ADMIN]
    assert f"http://{admin.http.host}:{admin.http.port}" == shared.admin_url
    async with open_channel(f"{admin.grpc.host}:{admin.grpc.port}", security_of(shared.address)) as channel:
        stub = AdminStub(channel)
        created = await stub.CreateTopics(
            pb.CreateTopicsRequest(
                topics=[pb.NewTopic(name=n, partition_count=2, replication_factor=-1) for n in ("g1", "bad name")],
                timeout_ms=10_000,
            )
        )
        assert [t.error for t in created.topics] == [errors_pb2.NONE, errors_pb2.INVALID_TOPIC_EXCEPTION]
        described = await stub.DescribeTopics(pb.DescribeTopicsRequest(names=["g1"]))
        topic_id = described.topics[0].topic.topic.topic_id
        logs = await stub.DescribeLogs(admin_pb2.DescribeClusterLogsRequest())
        assert [b.broker_id for b in logs.brokers] == [1, 2]
        trimmed = await stub.DeleteRecords(
            broker_pb2.DeleteRecordsRequest(
                partitions=[
                    broker_pb2.DeleteRecordsPartition(topic_id=topic_id, partition=p, offset=-1) for p in (1, 0)
                ]
            )
        )
        assert [(p.partition, p.error) for p in trimmed.partitions] == [(1, 0), (0, 0)]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.UnregisterNode(pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=1))
        assert error_from_rpc(refused.value).kind is Kind.CONFLICT


def test_a_new_controller_is_found(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(brokers=1, controllers=2)
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as http:
        assert http.post("/v1/topics", json={"name": "before"}).status_code == 201
        active = http.get("/v1/cluster").json()["active_controller"]["id"]
        cluster.kill(f"controller-{active}")
        answer = http.post("/v1/topics", json={"name": "after"})
        if answer.status_code != 201:
            assert answer.json()["retriable"], answer.text
            answer = eventually(
                lambda: http.post("/v1/topics", json={"name": "after"}), lambda a: a.status_code in {201, 409}
            )
        seen = eventually(
            lambda: http.get("/v1/cluster").json(),
            lambda c: c.get("active_controller") and c["active_controller"]["id"] != active,
        )
        assert seen["topic_count"] == 2


def test_a_paused_controller_is_passed_over(make_cluster: Callable[..., LocalCluster]) -> None:
    """Its connections stay open; only silence tells."""
    cluster = make_cluster(brokers=1, controllers=2)
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as http:
        active = http.get("/v1/cluster").json()["active_controller"]["id"]
        cluster.signal(f"controller-{active}", signal.SIGSTOP)
        try:
            seen = eventually(
                lambda: http.get("/v1/cluster").json(),
                lambda c: c.get("active_controller") and c["active_controller"]["id"] != active,
                seconds=60,
            )
            assert [b["fenced"] for b in seen["brokers"]] == [False], "a new controller gives nodes a full session"
            created = eventually(
                lambda: http.post("/v1/topics", json={"name": "t"}), lambda a: a.status_code in {201, 409}
            )
            assert created.status_code in {201, 409}
            written = http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
            assert written.status_code == 201, written.text
        finally:
            cluster.signal(f"controller-{active}", signal.SIGCONT)
        back = eventually(lambda: http.get("/v1/cluster").json(), lambda c: c.get("topic_count") == 1)
        assert back["active_controller"]["id"] != active


def test_brokers_and_admin_that_are_away(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(brokers=2)
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as http:
        http.post("/v1/topics", json={"name": "t", "partitions": 2})
        cluster.kill("broker-2")
        partitions = http.get("/v1/topics/t").json()["partitions"]
        sizes = {p["leader"]: p["size_bytes"] for p in partitions if p["leader"] is not None}
        assert sizes[1] == 0
        assert sizes.get(2) is None
        away = http.get("/v1/brokers/2/logs")
        assert (away.status_code, away.json()["code"]) == (504, "NETWORK_EXCEPTION")
        assert http.get("/v1/brokers/1/logs").status_code == 200
        one = next(p["partition"] for p in partitions if p["leader"] == 1)
        record = {"records": [{"value": "x", "partition": one}]}
        assert http.post("/v1/topics/t/records", json=record).status_code == 201
        cluster.kill("controller-1")
        assert http.get("/health/live").status_code == 200
        assert http.post("/v1/topics/t/records", json=record).status_code == 201, "the data path needs only brokers"
        read = http.get(f"/v1/topics/t/partitions/{one}/records").json()
        assert [r["offset"] for r in read["records"]] == [0, 1]


def test_it_leaves_the_list_when_it_is_told_to_stop(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(brokers=1)
    log = cluster.directory.logs / "admin-1.log"
    cluster.signal("admin", signal.SIGTERM)
    controller = cluster.process("controller")

    async def nodes() -> list[int]:
        from headrace_proto.v1.controller_pb2_grpc import ControllerStub

        async with open_channel(str(controller.grpc), as_node(cluster.directory.path)) as channel:
            answer = await ControllerStub(channel).DescribeCluster(pb.DescribeClusterRequest())
        return [n.role for n in answer.nodes if not n.in_controlled_shutdown]

    import asyncio

    eventually(lambda: asyncio.run(nodes()), lambda roles: cluster_pb2.ADMIN not in roles)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert any(line["msg"] == "ready" for line in lines)
    assert not [line for line in lines if line["level"] in {"error", "critical"}]
