"""
The audit of a closed cluster: every change and every refusal is in it, in order and proven, in files and in the topic
``__audit``; what cannot be written is not done; and no credential is ever in it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import AdminClient, Consumer, Producer
from headrace.errors import AuditUnavailable, Denied, HeadraceError, TopicAuthorizationFailed, Unauthenticated
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until
from headrace_common.core.access.changes import Block, Put, Remove, Rule
from headrace_common.core.access.grants import Effect, Grant
from headrace_common.core.access.principal import parse_principal
from headrace_common.core.access.resources import Operation, ResourceType, literal, operation_set
from headrace_common.core.access.roles import Binding
from headrace_common.core.secret import Secret
from headrace_common.runtime.entropy import new_api_key

pytestmark = pytest.mark.integration

ALICE = parse_principal("User:alice")
PASSWORD = "a horse, a battery and 7 staples"
READS = Rule(ALICE, Grant(Effect.ALLOW, operation_set(Operation.READ), ResourceType.TOPIC, literal("orders")))


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"audit.to": "topic,file"}
    with LocalCluster(tmp_path_factory.mktemp("audit") / "data", brokers=1, closed=True, settings=settings) as made:
        yield made


def audit_dir(cluster: LocalCluster) -> Path:
    return cluster.directory.path / "audit"


def events_of(cluster: LocalCluster, node: str) -> list[dict[str, Any]]:
    paths = sorted((audit_dir(cluster) / node).glob("*.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [line for line in lines if "kind" in line]


def wait_until_delivered(cluster: LocalCluster) -> None:
    """Nothing is left in the spools."""
    assert wait_until(lambda: not list(audit_dir(cluster).glob("*/spool/*")), 30)


def headrace(cluster: LocalCluster, *argv: str, home: Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace_cli", "-b", ",".join(cluster.bootstrap_servers), *argv],
        env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def canaries(cluster: LocalCluster) -> list[str]:
    """Everything that is written is done here, once; the keys that were shown meanwhile."""
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=1, configs={"audit.access": "read,write"})
        admin.alter_configs({"retention.ms": "86400000"}, topic="orders")
        with pytest.raises(HeadraceError):
            admin.create_topic("orders")
        admin.alter_access([Put(READS), Put(Binding(ALICE, "auditor", frozenset()))])
        key = admin.create_key("User:alice", note="canary").key.reveal()
        with Producer(cluster.bootstrap_servers, api_key=Secret(key)) as producer, pytest.raises(HeadraceError):
            producer.send("orders", b"1").result(30)
        with AdminClient(cluster.bootstrap_servers, api_key=Secret(key)) as alice, pytest.raises(Denied):
            alice.delete_topic("orders")
        with AdminClient(cluster.bootstrap_servers, api_key=Secret(key)) as alice, pytest.raises(Denied):
            alice.alter_access([Put(Binding(ALICE, "superuser", frozenset()))])
        wrong = new_api_key()
        with pytest.raises(Unauthenticated), AdminClient(cluster.bootstrap_servers, api_key=Secret(wrong)) as nobody:
            nobody.list_topics()
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("orders", b"1").result(30)
        servers = cluster.bootstrap_servers
        with Consumer("orders", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest") as member:
            assert len(member.poll(20_000)) == 1
        admin.reset_offsets("g", topics=["orders"], to="latest", execute=True)
        admin.delete_group("g")
        admin.delete_records({("orders", 0): -1})
        admin.alter_access([Put(Block(ALICE))])
        admin.alter_access([Remove(Block(ALICE)), Remove(READS)])
        admin.delete_keys([key.split("_")[1]])
        admin.delete_topic("orders")
        admin.create_user("carol", PASSWORD)
        login = admin.log_in("carol", PASSWORD).key.reveal()
    with AdminClient(cluster.bootstrap_servers, username="carol", password=PASSWORD) as carol:
        carol.list_topics()
    return [key, wrong, login]


def told(event: dict[str, Any]) -> tuple[str, str, str | None]:
    about = event["resource"]
    return event["rpc"].partition("/")[2], "" if about is None else about["name"], event["status"]


def test_every_change_is_there_before_it_was_made_and_after(cluster: LocalCluster, canaries: list[str]) -> None:
    of_admin = [
        told(event)
        for event in events_of(cluster, "controller-1")
        if event["actor"]["principal"] == "User:admin" and event["kind"] in {"administered", "access_changed"}
    ]
    assert [one for one in of_admin if one[2] is None] == [
        ("CreateTopics", "orders", None),
        ("IncrementalAlterConfigs", "orders", None),
        ("CreateTopics", "orders", None),
        ("AlterAccess", "User:alice", None),
        ("AlterAccess", "User:alice", None),
        ("CreateKey", "User:alice", None),
        ("AlterAccess", "User:alice", None),
        ("AlterAccess", "User:alice", None),
        ("AlterAccess", "User:alice", None),
        ("DeleteKeys", f"key {canaries[0].split('_')[1]}", None),
        ("DeleteTopics", "orders", None),
        ("CreateUser", "User:carol", None),
    ]
    ends = [one for one in of_admin if one[2] is not None]
    assert ends[:3] == [
        ("CreateTopics", "orders", "NONE"),
        ("IncrementalAlterConfigs", "orders", "NONE"),
        ("CreateTopics", "orders", "TOPIC_ALREADY_EXISTS"),
    ]
    assert of_admin.index(("CreateTopics", "orders", None)) < of_admin.index(("CreateTopics", "orders", "NONE"))


def test_what_was_before_and_after_is_there_without_what_proves_a_key(
    cluster: LocalCluster, canaries: list[str]
) -> None:
    events = [event for event in events_of(cluster, "controller-1") if event["status"] == "NONE"]
    (configs,) = [event for event in events if event["rpc"] == "Controller/IncrementalAlterConfigs"]
    assert configs["change"]["after"]["values"] == {"retention.ms": "86400000"}
    made, *_ = [event for event in events if event["rpc"] == "Controller/CreateKey" and "key" in told(event)[1]]
    assert made["change"]["after"]["values"]["owner"] == "User:alice"
    assert "digest" not in json.dumps(made)
    blocked, *_ = [event for event in events if told(event)[:2] == ("AlterAccess", "blocked User:alice")]
    assert blocked["actor"] == {**blocked["actor"], "principal": "User:admin", "method": "api_key"}


def test_what_other_services_carry_out_is_in_theirs(cluster: LocalCluster, canaries: list[str]) -> None:
    assert ("ResetOffsets", "g", "NONE") in map(told, events_of(cluster, "admin-1"))
    assert ("DeleteGroups", "g", "NONE") in map(told, events_of(cluster, "coordinator-1"))
    assert "DeleteRecords" in {told(event)[0] for event in events_of(cluster, "broker-1")}


def test_refusals_and_failed_credentials_are_there_by_who_and_what(cluster: LocalCluster, canaries: list[str]) -> None:
    refused = [event for node in ("broker-1", "admin-1", "controller-1") for event in events_of(cluster, node)]
    by_alice = {
        (event["operation"], event["resource"]["name"], event["status"])
        for event in refused
        if event["kind"] == "operation_refused" and event["resource"] is not None
        if event["actor"]["principal"] == "User:alice"
    }
    assert ("WRITE", "*", "TOPIC_AUTHORIZATION_FAILED") in by_alice, "a producer asks first for an id, to write any"
    assert ("DELETE", "orders", "TOPIC_AUTHORIZATION_FAILED") in by_alice
    assert any(event["rpc"] == "Controller/AlterAccess" and event["kind"] == "operation_refused" for event in refused)
    failed = [event for event in refused if event["kind"] == "authentication_failed"]
    assert {event["actor"]["method"] for event in failed} >= {"api_key"}
    assert all(event["source"] == "127.0.0.1" for event in failed)


def test_who_read_and_wrote_records_of_a_topic_that_is_set_so(cluster: LocalCluster, canaries: list[str]) -> None:
    kinds = {"records_read", "records_written"}
    found = [event for event in events_of(cluster, "broker-1") if event["kind"] in kinds]
    assert {(event["kind"], event["actor"]["principal"], event["resource"]["name"]) for event in found} == {
        ("records_written", "User:admin", "orders"),
        ("records_read", "User:admin", "orders"),
    }
    assert {event["source"] for event in found} == {"127.0.0.1"}


def test_logins_are_there_by_the_node_that_saw_them(cluster: LocalCluster, canaries: list[str]) -> None:
    logins = {
        (event["rpc"], event["actor"]["method"])
        for node in ("broker-1", "admin-1", "controller-1")
        for event in events_of(cluster, node)
        if event["kind"] == "session_begun" and event["actor"]["principal"] == "User:carol"
    }
    assert {("Controller/Login", "password"), ("Auth/Authenticate", "password")} <= logins


def test_its_tail_begins_with_the_last_events(cluster: LocalCluster, canaries: list[str], home: Path) -> None:
    wait_until_delivered(cluster)
    argv = [sys.executable, "-m", "headrace_cli", "-b", ",".join(cluster.bootstrap_servers), "-o", "json"]
    with subprocess.Popen(
        [*argv, "audit", "tail", "-n", "3"],
        env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    ) as tail:
        assert tail.stdout is not None
        last = [json.loads(tail.stdout.readline()) for _ in range(3)]
        tail.kill()
    assert [event["time"] for event in last] == sorted(event["time"] for event in last)
    assert all("kind" in event for event in last), "seals are none"
    newest = max(event["time"] for node in ("controller-1", "admin-1") for event in events_of(cluster, node))
    assert last[-1]["time"] >= newest - 60_000


def test_no_credential_is_in_it(cluster: LocalCluster, canaries: list[str], home: Path) -> None:
    """Nor in anything else that was written."""
    own = [path.read_text() for path in (home / "headrace" / "local").glob("*.toml")]
    (admin,) = {word.strip('"') for text in own for word in text.split() if "hrk_" in word}
    secrets = [key.split("_")[2][:20] for key in [canaries[0], canaries[2], admin]] + [PASSWORD]
    written = [
        path for path in cluster.directory.path.rglob("*") if path.is_file() and path.suffix in {".jsonl", ".log"}
    ]
    assert len(written) > 4
    for path in written:
        text = path.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], path


def test_files_and_the_topic_are_proven_and_found_in(cluster: LocalCluster, canaries: list[str], home: Path) -> None:
    wait_until_delivered(cluster)
    found = headrace(cluster, "audit", "search", "--actor", "User:alice", "--resource", "orders", home=home)
    assert "TOPIC_AUTHORIZATION_FAILED" in found
    for where in ([], [str(audit_dir(cluster))]):
        proof = json.loads(headrace(cluster, "audit", "verify", *where, "-o", "json", home=home))
        assert not proof["changed"], proof
        assert proof["events"] > 20
        assert {one["found"] for one in proof["findings"]} <= {
            "events that no seal covers, so they may have been changed"
        }


def test_a_changed_line_is_found(cluster: LocalCluster, canaries: list[str], home: Path, tmp_path: Path) -> None:
    shutil.copytree(audit_dir(cluster), tmp_path / "copy")
    path = tmp_path / "copy" / "controller-1" / "audit-000000000001.jsonl"
    path.write_text(path.read_text().replace("TOPIC_ALREADY_EXISTS", "NONE", 1))
    assert "CHANGED" in headrace(cluster, "audit", "verify", str(tmp_path / "copy"), home=home, code=1)


def test_nobody_writes_the_topic_and_few_read_it(cluster: LocalCluster, canaries: list[str]) -> None:
    with Producer(cluster.bootstrap_servers) as producer, pytest.raises(HeadraceError):
        producer.send("__audit", b"1").result(30)
    with AdminClient(cluster.bootstrap_servers) as admin:
        with pytest.raises(HeadraceError):
            admin.delete_topic("__audit")
        with pytest.raises(HeadraceError, match="7 days at least"):
            admin.alter_configs({"retention.ms": "1000"}, topic="__audit")
        key = admin.create_key("User:bob").key
    with (
        Consumer("__audit", bootstrap_servers=cluster.bootstrap_servers, api_key=key) as bob,
        pytest.raises(TopicAuthorizationFailed),
    ):
        bob.poll(10_000)


def test_what_cannot_be_written_is_not_done(cluster: LocalCluster, canaries: list[str]) -> None:
    """Last: afterwards the disk is good again."""
    spool = audit_dir(cluster) / "controller-1" / "spool"
    with AdminClient(cluster.bootstrap_servers) as admin:
        wait_until_delivered(cluster)
        spool.rmdir()
        spool.write_text("")
        before = admin.describe_access().wire.SerializeToString()
        for change in (
            lambda: admin.create_key("User:mallory"),
            lambda: admin.alter_access([Put(Binding(ALICE, "superuser", frozenset()))]),
            lambda: admin.create_topic("unwritten"),
        ):
            with pytest.raises(AuditUnavailable):
                change()
        spool.unlink()
        assert admin.describe_access().wire.SerializeToString() == before
        assert [key.owner for key in admin.list_keys("User:mallory")] == []
        assert "unwritten" not in {topic.name for topic in admin.list_topics()}
        deadline = time.monotonic() + 30
        while True:
            try:
                admin.create_topic("written")
                break
            except AuditUnavailable:
                assert time.monotonic() < deadline
    statuses = [told(event) for event in events_of(cluster, "controller-1")]
    assert ("CreateKey", "User:mallory", "AUDIT_UNAVAILABLE") in statuses
    assert ("CreateTopics", "written", "NONE") in statuses
