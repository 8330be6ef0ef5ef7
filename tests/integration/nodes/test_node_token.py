"""
The node token of a cluster that runs is changed under load without a refusal, and a node with another is told. It is
the key of browsers' cookies, too, as in the chart: nobody is logged out by it, at either of two admin processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest
from tests.integration.access.test_browsers import CHANGES, GOOD

from headrace import access
from headrace.testing import TestCluster, started_cluster
from headrace_common.core.errors import ClusterAuthorizationFailed
from headrace_common.core.features import NODE_TOKEN
from headrace_common.rpc.channels import open_sync_channel
from headrace_common.rpc.node_gate import NODE_KEY, TOKEN_KEY
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.token_file import make_file, new_token, read_tokens
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TOPIC, GROUP = "orders", "readers"
WAIT_S: Final = 90.0
CHANGED: Final = "the node token file has changed"
NO_TOKEN: Final = "the call showed no node token that is valid here"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("token") / "data", brokers=2, restart=False) as started:
        with started.admin() as admin:
            assert admin.describe_features().level >= NODE_TOKEN.level
            admin.create_topic(TOPIC, 1, 2)
            admin.create_user("alice", GOOD)
            admin.alter_access([access.Put(access.bind("User:alice", "superuser"))])
        yield started


class Load:
    """Whatever makes nodes call each other, in a thread, over and over until it is stopped."""

    def __init__(self, cluster: TestCluster) -> None:
        self._cluster = cluster
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rounds = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def more(self) -> None:
        """Return when a round has begun and ended."""
        target = self.rounds + 2
        until(lambda: self.failure is not None or self.rounds >= target)
        assert self.failure is None, repr(self.failure)

    def _run(self) -> None:
        try:
            for _ in self._all_rounds():
                self.rounds += 1
                if self._stopping.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits
            self.failure = error

    def _all_rounds(self) -> Iterator[None]:
        with self._cluster.consumer(TOPIC, group_id=GROUP) as consumer:
            while True:
                self._round(consumer)
                yield

    def _round(self, consumer: Any) -> None:
        """A topic at the controller, a transaction over both brokers, a position at the coordinator."""
        name = f"made-{self.rounds}"
        value = os.urandom(8)
        with self._cluster.admin() as admin:
            admin.create_topic(name, 1, 2)
            with self._cluster.producer(transactional_id="load") as producer, producer.transaction():
                producer.send(TOPIC, value)
                producer.send(name, value)
            admin.delete_topic(name)
        while value not in [record.value for record in consumer.poll(timeout_ms=1_000)]:
            pass
        consumer.commit()


class Browsing(Load):
    """Somebody who has logged in once, and whose pages ask one admin process and then the other."""

    def __init__(self, cluster: TestCluster, urls: list[str]) -> None:
        super().__init__(cluster)
        self._urls = urls
        self.cookies: set[str] = set()
        """All that were set."""
        self.resting = ""
        """The first one, as a page has it that rests meanwhile."""

    def _all_rounds(self) -> Iterator[None]:
        with httpx.Client(headers=CHANGES, timeout=30) as browser, self._cluster.admin() as admin:
            admin.create_topic("browsed", 1, 2)
            self._ask(browser, "POST", f"{self._urls[0]}/v1/login", {"user": "alice", "password": GOOD})
            [(name, text)] = browser.cookies.items()
            self.resting = f"{name}={text}"
            offset = 0
            while True:
                for url in self._urls:
                    offset = self._visit(browser, url, offset)
                yield

    def _visit(self, browser: httpx.Client, url: str, offset: int) -> int:
        """Writes, reads what was written, describes and makes a topic; where the next record will be."""
        sent = {"records": [{"value": {"text": f"{url} {offset}"}, "partition": 0}]}
        self._ask(browser, "POST", f"{url}/v1/topics/browsed/records", sent)
        read = self._ask(
            browser, "GET", f"{url}/v1/topics/browsed/partitions/0/records?offset={offset}&form=text&wait_ms=5000"
        )
        assert [(one["offset"], one["value"]["text"]) for one in read["records"]] == [(offset, f"{url} {offset}")], read
        name = f"browsed-{offset}"
        self._ask(browser, "POST", f"{url}/v1/topics", {"name": name})
        assert self._ask(browser, "GET", f"{url}/v1/topics/{name}")["name"] == name
        self._ask(browser, "DELETE", f"{url}/v1/topics/{name}?confirm={name}")
        return offset + 1

    def _ask(self, browser: httpx.Client, method: str, url: str, body: Any = None) -> Any:
        answer = browser.request(method, url, json=body)
        assert answer.is_success, (method, url, answer.status_code, answer.text)
        self.cookies.update(browser.cookies.values())
        return answer.json() if answer.content else None


@contextmanager
def another_admin(cluster: TestCluster, directory: Path) -> Iterator[str]:
    """A second admin process; where its REST is."""
    ready, log = directory / "ready", directory / "admin-2.log"
    token = cluster.local.directory.path / "node-token"
    argv = [
        *(sys.executable, "-P", "-m", "headrace_admin", "--node-id", "2", "--listen", "127.0.0.1:0"),
        *("--http-listen", "127.0.0.1:0", "--controllers", str(cluster.local.process("controller-1").grpc)),
        *("--node-token-file", str(token), "--ready-file", str(ready)),
    ]
    with log.open("wb") as said:
        process = subprocess.Popen(argv, stdout=said, stderr=said)
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        assert ready.exists(), log.read_text()
        yield f"http://{json.loads(ready.read_text())['http']}"
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def logs(cluster: TestCluster) -> dict[str, str]:
    """By process, without etcd and the supervisor, which have no token."""
    found = (cluster.local.directory.path / "logs").glob("*-[0-9].log")
    return {path.stem: path.read_text(errors="replace") for path in found if not path.stem.startswith("etcd")}


def all_have_seen(cluster: TestCluster, directory: Path, step: int) -> bool:
    """Whether each process has looked at its file since that step: admin processes look for each of its uses."""
    seen = logs(cluster) | {"admin-2": (directory / "admin-2.log").read_text(errors="replace")}
    return all(log.count(CHANGED) >= step * (1 + name.startswith("admin")) for name, log in seen.items())


def write(path: Path, *tokens: str) -> None:
    """As Kubernetes does: whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.touch(0o600)
    partial.write_text("".join(f"{token}\n" for token in tokens))
    partial.rename(path)


def described_with(cluster: TestCluster, token: str) -> ClusterAuthorizationFailed | None:
    """Ask a controller as the admin service does; None: it answered."""
    shown = ((NODE_KEY, "admin-1"), (TOKEN_KEY, token))
    with open_sync_channel(str(cluster.local.process("controller-1").grpc), own_connection=True) as channel:
        stub: Any = ControllerStub(channel)
        try:
            stub.DescribeCluster(controller_pb2.DescribeClusterRequest(), metadata=shown, timeout=30)
        except grpc.RpcError as failure:
            error = error_from_rpc(failure)
            assert isinstance(error, ClusterAuthorizationFailed), error
            return error
    return None


def test_a_token_is_changed_under_load_and_nobody_is_refused(cluster: TestCluster, tmp_path: Path) -> None:
    path = cluster.local.directory.path / "node-token"
    old, new = read_tokens(path)[0].decode(), new_token()
    assert len(logs(cluster)) == 5, "two brokers, a controller, a coordinator, admin"
    with (
        another_admin(cluster, tmp_path) as other,
        Browsing(cluster, [cluster.admin_url, other]) as browsing,
        Load(cluster) as load,
    ):
        for one in (load, browsing):
            one.more()
        assert len(browsing.cookies) == 1
        for step, tokens in enumerate([(old, new), (new, old), (new,)], start=1):
            write(path, *tokens)
            until(lambda step=step: all_have_seen(cluster, tmp_path, step))
            for one in (load, browsing):
                one.more()
            assert described_with(cluster, new) is None
            assert (described_with(cluster, old) is None) == (old in tokens)
        assert len(browsing.cookies) > 1, "sealed anew"
        for url in (cluster.admin_url, other):
            rested = httpx.get(f"{url}/v1/session", headers={"cookie": browsing.resting}, timeout=30)
            assert rested.status_code == 401, "what the old key has sealed is worth nothing"
    for one in (load, browsing):
        assert one.failure is None, repr(one.failure)
    for name, log in logs(cluster).items():
        assert NO_TOKEN not in log, f"{name} was refused"
        assert old not in log
        assert new not in log


def test_a_node_with_another_token_says_so_and_takes_no_part(cluster: TestCluster, tmp_path: Path) -> None:
    make_file(tmp_path / "token")
    controller = cluster.local.process("controller-1").grpc
    argv = [
        *(sys.executable, "-m", "headrace_broker", "--node-id", "9", "--listen", "127.0.0.1:0"),
        *("--controllers", str(controller), "--data-dir", str(tmp_path / "data")),
        *("--node-token-file", str(tmp_path / "token")),
    ]
    with (tmp_path / "log").open("wb") as log:
        broker = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        until(lambda: NO_TOKEN in (tmp_path / "log").read_text() or broker.poll() is not None)
        said = (tmp_path / "log").read_text()
        assert NO_TOKEN in said
        assert "--node-token-file" in said
        assert read_tokens(tmp_path / "token")[0].decode() not in said
        with cluster.admin() as admin:
            assert "broker-9" not in {one.node for one in admin.describe_features().nodes}
    finally:
        broker.kill()
        broker.wait()
