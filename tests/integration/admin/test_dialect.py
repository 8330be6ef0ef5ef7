"""What commands print with ``-o json`` is what REST answers: the same names, the same shapes, the same values."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pytest
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app
from headrace_cli.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
Run = Callable[..., Any]

# What is another a moment later, or was asked of another admin process.
MOVING: Final = frozenset({"age_ms", "lag_seconds", "lag_seconds_max", "scrub", "disk_free_bytes", "last_write_ms"})


@pytest.fixture
def run(shared: LocalCluster) -> Run:
    bootstrap = ",".join(shared.bootstrap_servers)

    def command(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*words, "--bootstrap", bootstrap, "-o", "json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return command


@pytest.fixture
def topic(shared: LocalCluster, http: httpx.Client) -> Iterator[str]:
    """A compacted topic of two partitions with ten records; group ``desk-NAME`` has read two."""
    name = f"dialect-{uuid.uuid4().hex[:8]}"
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.9"}
    body = {"name": name, "partitions": 2, "replication_factor": 2, "configs": configs}
    assert http.post("/v1/topics", json=body).status_code == 201
    records = [{"key": f"k{n}", "value": "x", "partition": 0} for n in range(10)]
    assert http.post(f"/v1/topics/{name}/records", json={"records": records}).status_code == 201
    reset = {"topics": [{"topic": name}], "to_offset": 2, "execute": True}
    assert http.post(f"/v1/groups/desk-{name}/offsets/reset", json=reset).status_code == 200
    yield name
    assert http.delete(f"/v1/topics/{name}?confirm={name}").status_code == 204


def told(whole: Any, part: Any, where: str = "") -> None:
    """Everything that ``part`` (of REST) says, ``whole`` (of the command) says too; it may say more."""
    if isinstance(part, dict):
        assert isinstance(whole, dict), where
        for name, value in part.items():
            assert name in whole, f"{where}/{name} is missing; there are {sorted(whole)}"
            if name not in MOVING:
                told(whole[name], value, f"{where}/{name}")
    elif isinstance(part, list):
        assert isinstance(whole, list), where
        assert len(whole) == len(part), f"{where}: {whole!r}, REST has {part!r}"
        for n, (mine, its) in enumerate(zip(whole, part, strict=True)):
            told(mine, its, f"{where}/{n}")
    else:
        assert whole == part, f"{where}: {whole!r}, REST has {part!r}"


def same(run: Run, http: httpx.Client, path: str, *words: str) -> None:
    """The command tells what REST answers; asked twice, as the cluster may change in between."""
    answer = http.get(path)
    assert answer.status_code == 200, answer.text
    try:
        told(run(*words), answer.json(), f"`{' '.join(words)}` beside {path}: ")
    except AssertionError:
        told(run(*words), http.get(path).json(), f"`{' '.join(words)}` beside {path}: ")


def test_topics(run: Run, http: httpx.Client, topic: str) -> None:
    same(run, http, "/v1/topics?limit=1000", "topic", "list")
    same(run, http, f"/v1/topics/{topic}", "topic", "describe", topic)
    same(run, http, f"/v1/topics/{topic}/logs?segments=true", "topic", "describe", topic, "--segments")
    same(run, http, f"/v1/topics/{topic}/configs", "topic", "set", topic)


def test_the_cluster_and_its_brokers(run: Run, http: httpx.Client, topic: str) -> None:
    same(run, http, "/v1/cluster", "cluster", "describe")
    same(run, http, "/v1/cluster/status", "cluster", "status")
    same(run, http, "/v1/cluster/features", "cluster", "features")
    same(run, http, "/v1/cluster/configs", "cluster", "configs", "--all")
    same(run, http, "/v1/restore", "cluster", "restore-status")
    same(run, http, "/v1/strays", "topic", "strays")
    same(run, http, "/v1/brokers", "broker", "list")
    same(run, http, "/v1/brokers/1", "broker", "describe", "1")
    same(run, http, "/v1/brokers/1/configs", "broker", "configs", "1", "--all")
    assert run("cluster", "health").keys() == http.get("/health/cluster").json().keys()


def settled_log(http: httpx.Client, topic: str) -> dict[str, Any]:
    """A log of the topic on broker 1 that has heard how far it is committed, which followers do a moment later."""
    until = time.monotonic() + 30
    while True:
        logs = http.get("/v1/brokers/1/logs?segments=true").json()["logs"]
        mine: dict[str, Any] = next(log for log in logs if log["topic"] == topic)
        if mine["high_watermark"] == mine["log_end_offset"]:
            return mine
        assert time.monotonic() < until, mine
        time.sleep(0.02)


def test_logs(run: Run, http: httpx.Client, topic: str) -> None:
    mine = settled_log(http, topic)
    logs = run("debug", "dump-log", topic, "--broker", "1", "-p", str(mine["partition"]), "--segments")["logs"]
    told(logs, [mine], "debug dump-log")


def test_groups(run: Run, http: httpx.Client, topic: str) -> None:
    group = f"desk-{topic}"
    same(run, http, "/v1/groups", "group", "list")
    same(run, http, f"/v1/groups/{group}", "group", "describe", group)
    same(run, http, f"/v1/groups/{group}/lag", "group", "lag", group)
    body = {"topics": [{"topic": topic}], "to": "earliest"}
    plan = http.post(f"/v1/groups/{group}/offsets/reset", json=body).json()
    told(run("group", "reset", group, "-t", topic, "--to-earliest", "--dry-run"), plan, "group reset")


def test_transactions(run: Run, http: httpx.Client, shared: LocalCluster, topic: str) -> None:
    i = f"pay-{topic}"
    with headrace.Producer(shared.bootstrap_servers, transactional_id=i) as producer:
        producer.begin_transaction()
        producer.send(topic, b"x", key=b"k", partition=0).result(30)
        same(run, http, "/v1/transactions", "txn", "list")
        same(run, http, f"/v1/transactions/{i}", "txn", "describe", i)
        same(run, http, f"/v1/transactions-open?topic={topic}", "txn", "open", "--topic", topic)
        same(run, http, f"/v1/transactions-hanging?topic={topic}", "txn", "find-hanging", "--topic", topic)
        body = {"validate_only": True}
        aborted = http.post(f"/v1/transactions/{i}/abort", json=body).json()
        told(run("txn", "abort", i, "--dry-run"), aborted, "txn abort")
        token = producer.prepare_transaction()
        same(run, http, "/v1/transactions-prepared", "txn", "prepared")
    assert run("txn", "abort", str(token), "--yes") == {"transactional_id": i, "committed": False}


def test_moves(run: Run, http: httpx.Client, topic: str) -> None:
    same(run, http, "/v1/reassignments", "partition", "reassignments")
    same(run, http, "/v1/reassignments/throttle", "partition", "throttle")
    plan = http.post("/v1/cluster/rebalance", json={"validate_only": True}).json()
    told(run("cluster", "rebalance", "--plan"), plan, "cluster rebalance")
    now = http.get(f"/v1/topics/{topic}").json()["partitions"][0]
    move = {"topic": topic, "partition": 0, "replicas": now["replicas"]}
    moved = http.post("/v1/reassignments", json={"reassignments": [move], "validate_only": True}).json()
    wanted = ",".join(map(str, now["replicas"]))
    told(run("partition", "move", f"{topic}-0={wanted}", "--dry-run"), moved, "partition move")
    elected = http.post("/v1/elections", json={"type": "preferred", "partitions": [{"topic": topic}]}).json()
    told(run("partition", "elect", topic), elected, "partition elect")


def test_metadata_of_a_topic_that_is_not_there(run: Run, topic: str) -> None:
    (there,) = run("debug", "metadata", topic)["topics"]
    assert (there["name"], there["error"]) == (topic, None)
    there, gone = sorted(run("debug", "metadata", topic, "nonsense", code=3)["topics"], key=lambda t: t["name"])
    assert (there["error"], gone["error"]["code"]) == (None, "UNKNOWN_TOPIC_OR_PARTITION")
