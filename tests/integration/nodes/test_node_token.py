"""The node token of a cluster that runs is changed under load without a refusal, and a node with another is told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

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
            with self._cluster.consumer(TOPIC, group_id=GROUP) as consumer:
                while not self._stopping.is_set():
                    self._round(consumer)
                    self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits
            self.failure = error

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


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def logs(cluster: TestCluster) -> dict[str, str]:
    """By process, without etcd and the supervisor, which have no token."""
    found = (cluster.local.directory.path / "logs").glob("*-[0-9].log")
    return {path.stem: path.read_text(errors="replace") for path in found if not path.stem.startswith("etcd")}


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


def test_a_token_is_changed_under_load_and_nobody_is_refused(cluster: TestCluster) -> None:
    path = cluster.local.directory.path / "node-token"
    old, new = read_tokens(path)[0].decode(), new_token()
    assert len(logs(cluster)) == 5, "two brokers, a controller, a coordinator, admin"
    with Load(cluster) as load:
        load.more()
        for step, tokens in enumerate([(old, new), (new, old), (new,)], start=1):
            write(path, *tokens)
            until(lambda step=step: all(log.count(CHANGED) >= step for log in logs(cluster).values()))  # type: ignore[misc]
            load.more()
            assert described_with(cluster, new) is None
            assert (described_with(cluster, old) is None) == (old in tokens)
    assert load.failure is None, repr(load.failure)
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
