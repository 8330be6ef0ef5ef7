"""Settings of deletion and compaction reach brokers while they run, and users see what comes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.securing import security_of
from headrace_cli.local import LocalCluster
from headrace_common.core.batch import HEADER_SIZE, Codec, RecordColumns, build_batch, stamp_producer
from headrace_common.rpc.channels import open_sync_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

from .conftest import cluster_at
from .test_admin import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

QUICK = {"log.retention.check.interval.ms": "100", "log.cleaner.backoff.ms": "100"}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "2048", "min.cleanable.dirty.ratio": "0.01"}
HOUR_MS = 3_600_000

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with cluster_at(tmp_path_factory.mktemp("old") / "data", brokers=2, settings=QUICK) as made:
        yield made


@pytest.fixture
def http(cluster: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as client:
        yield client


def create(http: httpx.Client, name: str, **configs: str) -> None:
    body = {"name": name, "partitions": 1, "configs": {k.replace("_", "."): v for k, v in configs.items()}}
    assert http.post("/v1/topics", json=body).status_code == 201


def change(http: httpx.Client, path: str, **settings: str | None) -> httpx.Response:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    body = {
        "set": {n: v for n, v in named.items() if v is not None},
        "delete": [n for n, v in named.items() if v is None],
    }
    return http.patch(f"/v1/{path}/configs", json=body)


def write(http: httpx.Client, topic: str, count: int, timestamp_ms: int | None = None) -> None:
    records = [
        {"key": f"k{n % 3}", "value": {"text": f"{n:>200}"}, "partition": 0, "timestamp_ms": timestamp_ms}
        for n in range(count)
    ]
    answer = http.post(f"/v1/topics/{topic}/records", json={"records": records})
    assert answer.status_code == 201, answer.text


def logs(http: httpx.Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(f"/v1/topics/{topic}/logs", params={"segments": "true"}).json()["logs"]
    return found


def test_retention_of_the_cluster_and_of_a_topic_while_they_run(http: httpx.Client) -> None:
    create(http, "own", retention_ms="-1", segment_ms="1000")
    create(http, "inherits", segment_ms="1000")
    old_ms = time.time_ns() // 1_000_000 - HOUR_MS
    for topic in ("own", "inherits"):
        write(http, topic, 10, old_ms)
    assert {log["oldest_timestamp_ms"] for log in logs(http, "inherits")} == {old_ms}
    assert change(http, "cluster", log_retention_ms="60000").status_code == 200
    entries = http.get("/v1/topics/inherits/configs").json()["configs"]
    [retention] = [e for e in entries if e["name"] == "retention.ms"]
    assert (retention["value"], retention["source"]) == ("60000", "cluster")
    eventually(lambda: logs(http, "inherits"), lambda seen: [log["log_start_offset"] for log in seen] == [10, 10])
    assert {log["log_start_offset"] for log in logs(http, "own")} == {0}
    assert change(http, "topics/own", retention_ms=None).status_code == 200
    eventually(lambda: logs(http, "own"), lambda seen: [log["log_start_offset"] for log in seen] == [10, 10])
    assert change(http, "cluster", log_retention_ms=None).status_code == 200


def test_each_replica_is_compacted_and_tells_how_far(http: httpx.Client) -> None:
    create(http, "keyed", **COMPACTED)
    for _ in range(5):
        write(http, "keyed", 30)
    seen = eventually(
        lambda: logs(http, "keyed"),
        lambda seen: all(
            log["compaction"]["cleaned_to"] > 0 and log["compaction"]["last_compacted_ms"] for log in seen
        ),
    )
    for log in seen:
        assert log["compaction"]["last_compacted_ms"] is not None
        assert not log["compaction"]["stuck"]
        assert log["segments"][-1]["sealed_at_ms"] is None
    assert change(http, "brokers/1", log_cleaner_enable="false").status_code == 200
    write(http, "keyed", 30)
    write(http, "keyed", 30)

    def waits() -> dict[int, str | None]:
        return {log["broker"]: log["compaction"]["waits_for"] for log in logs(http, "keyed")}

    eventually(waits, lambda told: told[1] == "log.cleaner.enable is false" and told[2] != told[1])
    assert change(http, "brokers/1", log_cleaner_enable=None).status_code == 200


def test_records_without_keys_are_refused(http: httpx.Client) -> None:
    create(http, "strict", **COMPACTED)
    refused = http.post("/v1/topics/strict/records", json={"records": [{"value": {"text": "x"}}]})
    assert refused.json()["code"] == "INVALID_RECORD", refused.text


def unreadable() -> bytes:
    """Its CRC is right, and the sizes that it declares; what follows is no zstd. The broker looks no further."""
    good = build_batch(
        RecordColumns([b"v" * 500], keys=[b"k"], timestamps_ms=time.time_ns() // 1_000_000), codec=Codec.ZSTD
    )
    kept = HEADER_SIZE + 16
    return stamp_producer(good[:kept] + b"\x07" * (len(good) - kept), -1, -1, -1)


def append(cluster: LocalCluster, http: httpx.Client, topic: str, batch: bytes) -> None:
    described = http.get(f"/v1/topics/{topic}").json()
    leader = f"broker-{described['partitions'][0]['leader']}"
    with open_sync_channel(cluster.process(leader).grpc, security_of(cluster.address)) as channel:
        entry = pb.ProducePartition(topic_id=bytes.fromhex(described["id"]), partition=0, batch=batch)
        request = pb.ProduceRequest(correlation_id=1, acks=-1, timeout_ms=10_000, partitions=[entry])
        answer = next(iter(BrokerStub(channel).Produce(iter([request]))))
        assert answer.partitions[0].error == errors_pb2.NONE, answer


def test_a_batch_that_nobody_can_read_is_named_until_it_is_trimmed(cluster: LocalCluster, http: httpx.Client) -> None:
    create(http, "bad", segment_bytes="2048")
    write(http, "bad", 5)
    append(cluster, http, "bad", unreadable())
    for _ in range(3):
        write(http, "bad", 20)
    change(http, "topics/bad", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    status = eventually(lambda: http.get("/v1/cluster/status").json(), lambda seen: len(seen["stuck_compactions"]) == 2)
    assert status["state"] == "degraded"
    assert {(s["topic"], s["broker"]) for s in status["stuck_compactions"]} == {("bad", 1), ("bad", 2)}
    assert "compaction of bad-0 on broker 1 is stuck: " in status["verdict"]
    assert "bad-0@5" in status["stuck_compactions"][0]["reason"]
    assert http.get("/health/cluster").status_code == 200
    create(http, "next", **COMPACTED)
    for _ in range(4):
        write(http, "next", 30)
    eventually(lambda: logs(http, "next"), lambda seen: all(log["compaction"]["cleaned_to"] > 0 for log in seen))
    assert http.post("/v1/topics/bad/trim", json={"partitions": [{"partition": 0, "offset": 6}]}).status_code == 200
    eventually(lambda: http.get("/v1/cluster/status").json()["state"], lambda state: state == "healthy")
    eventually(lambda: logs(http, "bad"), lambda seen: all(log["compaction"]["cleaned_to"] > 6 for log in seen))
