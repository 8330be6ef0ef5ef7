"""
Transactions by REST, by command and by the admin client on real processes: what a killed producer leaves, what is
prepared, and what hangs because its coordinator has lost it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from libs.common.tests.kit.as_node import as_node
from typer.testing import CliRunner

import headrace
from headrace.errors import AlreadyDecided
from headrace.securing import security_of
from headrace_cli.app import app
from headrace_cli.local import LocalCluster
from headrace_common.core.batch import RecordColumns, build_batch
from headrace_common.core.image import Role
from headrace_common.rpc.channels import open_sync_channel
from headrace_coordinator.core.transactions.records import transaction_key
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
HANGS_AFTER_MS = 15_000
SETTINGS = {
    "transaction.max.timeout.ms": str(HANGS_AFTER_MS),
    "transaction.hanging.margin.ms": "0",
    "transaction.notice.ms": "300",
    "transaction.prepared.max.ms": "1000",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
}
TIMEOUT_MS = HANGS_AFTER_MS
KILLED = """
import os, signal, sys, headrace
bootstrap, topic, transactional_id = sys.argv[1:]
producer = headrace.Producer(bootstrap, transactional_id=transactional_id, transaction_timeout_ms=15_000)
producer.begin_transaction()
for n in range(5):
    producer.send(topic, b"lost %d" % n, partition=0)
producer.flush(20)
print("written", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("transactions") / "data"
    with LocalCluster(directory, brokers=2, coordinators=1, restart=False, settings=SETTINGS) as started:
        yield started


@pytest.fixture
def http(cluster: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as client:
        yield client


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[headrace.AdminClient]:
    with headrace.AdminClient(cluster.bootstrap_servers) as client:
        yield client


@pytest.fixture
def topic(admin: headrace.AdminClient) -> str:
    name = f"t-{uuid4()}"
    admin.create_topic(name, 1, 1)
    return name


@pytest.fixture
def i() -> str:
    """A transactional id that no other test has."""
    return f"x-{uuid4()}"


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def txn(cluster: LocalCluster, *argv: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["txn", *argv, "--bootstrap", ",".join(cluster.bootstrap_servers)])
    assert result.exit_code == code, result.output
    return result


def killed_producer(cluster: LocalCluster, topic: str, i: str) -> None:
    """Five records are written in a transaction whose producer is gone."""
    argv = [sys.executable, "-c", KILLED, cluster.bootstrap_servers[0], topic, i]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, timeout=60)
    assert (done.stdout, done.returncode) == (b"written\n", -9)


def committed_values(cluster: LocalCluster, topic: str, wanted: int) -> list[bytes]:
    """The first values that a reader of read_committed gets."""
    found: list[bytes] = []
    with headrace.Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        until(
            lambda: found.extend(r.value or b"" for r in consumer.poll(timeout_ms=500)) or len(found) >= wanted, topic
        )
    return found


def status(http: httpx.Client) -> Any:
    return http.get("/v1/cluster/status").json()


def lose(cluster: LocalCluster, i: str) -> None:
    """The coordinator forgets an id, as by a bug: a tombstone stands in its log when it is started again."""
    with open_sync_channel(cluster.bootstrap_servers[0], security_of(cluster.address)) as channel:
        stub = broker_pb2_grpc.BrokerStub(channel)
        request = broker_pb2.FindCoordinatorRequest(type=broker_pb2.TRANSACTION, keys=[i])
        (found,) = stub.FindCoordinator(request).coordinators
        metadata = stub.Metadata(broker_pb2.MetadataRequest(topics=["__transaction_state"]))
    (state,) = metadata.topics
    leader = next(p.leader for p in state.partitions if p.partition == found.shard)
    cluster.kill("coordinator-1")
    tombstone = build_batch(RecordColumns(values=[None], keys=[transaction_key(i)]))
    request = broker_pb2.ProduceRequest(correlation_id=1, acks=-1, timeout_ms=10_000)
    request.partitions.add(
        topic_id=state.topic_id, partition=found.shard, batch=tombstone, fencing_token=found.shard_epoch
    )
    shown = as_node(cluster.directory.path, Role.COORDINATOR)
    with open_sync_channel(cluster.process(f"broker-{leader}").grpc, shown) as channel:
        (answer,) = broker_pb2_grpc.BrokerStub(channel).Produce(iter([request]))
    assert answer.partitions[0].error == 0, answer
    cluster.restart("coordinator-1")


def test_what_a_killed_producer_leaves_is_seen_and_aborted_by_its_id(
    cluster: LocalCluster, http: httpx.Client, admin: headrace.AdminClient, topic: str, i: str
) -> None:
    killed_producer(cluster, topic, i)
    with headrace.Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"after", partition=0).result(20)
    rows = json.loads(txn(cluster, "list", "--state", "ongoing", "-o", "json").stdout)["transactions"]
    assert i in {row["transactional_id"] for row in rows}
    assert topic in txn(cluster, "describe", i).stdout
    (row,) = json.loads(txn(cluster, "open", "--topic", topic, "-o", "json").stdout)["transactions"]
    assert (row["transactional_id"], row["first_offset"], row["held_back"]) == (i, 0, 6)
    said = until(lambda: (s := status(http)) and i in s["verdict"] and s, "the status names it")
    assert f"readers of read_committed wait in {topic}-0: '{i}' (producer {row['producer_id']})" in said["verdict"]
    admin.reset_offsets("readers", [topic], to="earliest", execute=True)
    assert [lag.lag for lag in admin.group_lag("readers", [topic]).values()] == [0], "what nobody sees is not behind"
    assert "nothing was changed" in txn(cluster, "abort", i, "--dry-run").stderr
    txn(cluster, "abort", i, "--yes")
    assert committed_values(cluster, topic, 1) == [b"after"]
    assert admin.describe_transaction(i).state == "complete_abort"
    until(lambda: i not in status(http)["verdict"], "nobody waits any more")
    assert "no transaction open" in txn(cluster, "abort", i, "--yes", code=1).stderr


def test_what_is_prepared_is_listed_alarmed_and_decided_by_its_token(
    cluster: LocalCluster, http: httpx.Client, admin: headrace.AdminClient, topic: str, i: str
) -> None:
    with headrace.Producer(
        cluster.bootstrap_servers, transactional_id=i, transaction_timeout_ms=TIMEOUT_MS
    ) as producer:
        producer.begin_transaction()
        producer.send(topic, b"prepared", partition=0)
        token = producer.prepare_transaction()
    (row,) = [
        row
        for row in json.loads(txn(cluster, "prepared", "-o", "json").stdout)["transactions"]
        if row["transactional_id"] == i
    ]
    assert row["token"] == str(token)
    assert "headrace txn prepared" in txn(cluster, "abort", i, "--yes", code=1).stderr
    said = until(lambda: (s := status(http)) and s["prepared_overdue"] and s, "it is alarmed after a second")
    assert (said["state"], said["prepared_overdue"][0]["transactional_id"]) == ("degraded", i)
    assert "prepared for long and decided by nobody" in said["verdict"]
    txn(cluster, "commit", row["token"], "--yes")
    txn(cluster, "commit", row["token"], "--yes")
    assert "that stands" in txn(cluster, "abort", row["token"], "--yes", code=1).stderr
    with pytest.raises(AlreadyDecided):
        admin.abort_prepared(token)
    assert committed_values(cluster, topic, 1) == [b"prepared"]
    assert http.get("/v1/transactions-prepared").json()["transactions"] == []


def test_what_hangs_is_named_by_the_status_found_and_ended_and_readers_go_on(
    cluster: LocalCluster, http: httpx.Client, admin: headrace.AdminClient, topic: str, i: str
) -> None:
    killed_producer(cluster, topic, i)
    producer_id = admin.describe_transaction(i).producer_id
    lose(cluster, i)
    until(lambda: not http.get("/v1/transactions").json()["missing_shards"], "all shards are served again")
    assert http.get(f"/v1/transactions/{i}").json()["code"] == "TRANSACTIONAL_ID_NOT_FOUND"
    with headrace.Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"after", partition=0).result(20)
    (hanging,) = until(
        lambda: json.loads(txn(cluster, "find-hanging", "--topic", topic, "-o", "json").stdout)["transactions"],
        "it hangs after the longest time that a transaction may take",
    )
    assert (hanging["producer_id"], hanging["first_offset"], hanging["held_back"]) == (producer_id, 0, 6)
    said = status(http)
    assert said["state"] == "degraded"
    command = f"headrace txn abort --partition {topic}-0 --producer-id {producer_id}"
    assert f"1 hanging transaction holds readers of read_committed back in {topic}-0" in said["verdict"]
    assert command in said["verdict"]
    assert "nothing was changed" in txn(cluster, *command.split()[2:], "--dry-run").stderr
    txn(cluster, *command.split()[2:], "--yes")
    assert committed_values(cluster, topic, 1) == [b"after"]
    assert admin.find_hanging_transactions([topic]).transactions == ()
    assert topic not in status(http)["verdict"]
    assert "headrace txn find-hanging" in txn(cluster, *command.split()[2:], "--yes", code=3).stderr


def test_a_coordinator_that_is_away_is_no_proof_that_something_hangs(
    cluster: LocalCluster, http: httpx.Client, topic: str, i: str
) -> None:
    killed_producer(cluster, topic, i)
    cluster.kill("coordinator-1")
    rows = until(
        lambda: http.get(f"/v1/transactions-hanging?topic={topic}").json()["transactions"],
        "it is old, and not known of",
    )
    assert [row["standing"] for row in rows] == ["unknown"]
    refused = http.post("/v1/transactions-hanging/abort", json={"topic": topic, "partition": 0})
    assert (refused.status_code, refused.json()["code"]) == (503, "COORDINATOR_NOT_AVAILABLE")
    assert "hanging transaction" not in status(http)["verdict"]
    txn(cluster, "find-hanging", "--topic", topic, code=4)
    cluster.restart("coordinator-1")
    until(
        lambda: not http.get(f"/v1/transactions-open?topic={topic}").json()["transactions"],
        "its coordinator is back and aborts it, for its time is over",
    )
