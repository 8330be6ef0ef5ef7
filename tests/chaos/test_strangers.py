"""Strangers come in numbers and with large requests: no process ends, memory stays, and who was there goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from libs.common.tests.kit.as_node import as_node
from libs.common.tests.kit.strangers import Strangers

from headrace.testing import TestCluster, started_cluster
from headrace_common.core.errors import ClusterAuthorizationFailed, Overloaded, RecordTooLarge
from headrace_common.rpc.channels import PLAIN, open_sync_channel
from headrace_common.rpc.status import error_from_rpc

pytestmark = pytest.mark.chaos

TOPIC = "orders"
MEMORY_BYTES_MAX = 128 << 20
"""More than before."""
DESCRIPTORS = 1_024


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    # Open: what strangers can use up where nobody asks who they are. A closed cluster reads nothing of what they send.
    with started_cluster(tmp_path / "data", brokers=3, restart=False, closed=False) as started:
        yield started


class Memory:
    """What the processes of a cluster have now, to compare with their most until later."""

    def __init__(self, cluster: TestCluster) -> None:
        services = (p for p in cluster.local.state.processes if p.role != "etcd" and p.pid is not None)
        self._processes = {p.name: psutil.Process(p.pid) for p in services}
        self._before = {name: process.memory_info().rss for name, process in self._processes.items()}
        for process in self._processes.values():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the kernel's record of the most begins anew

    def check(self) -> None:
        """All live, and none ever had more than ``MEMORY_BYTES_MAX`` beyond what it had."""
        grown = {name: _most(process) - self._before[name] for name, process in self._processes.items()}
        assert not {name: grew for name, grew in grown.items() if grew > MEMORY_BYTES_MAX}, grown


def _most(process: psutil.Process) -> int:
    """Largest resident memory, in bytes. Raises: psutil.NoSuchProcess, OSError: it has ended."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def test_a_thousand_connections_beside_a_busy_producer(cluster: TestCluster) -> None:
    with cluster.admin() as admin:
        admin.create_topic(TOPIC, 6, 3)
    with cluster.producer() as producer, Strangers(streams=10) as strangers:
        sent = [producer.send(TOPIC, b"%d" % n, partition=n % 6) for n in range(20_000)]
        producer.flush(60)
        memory = Memory(cluster)
        for _ in range(10):
            strangers.come(cluster.bootstrap_servers, 34)
            sent += [producer.send(TOPIC, b"%d" % n, partition=n % 6) for n in range(5_000)]
        producer.flush(60)
        assert len({(d.result(timeout=60).partition, d.result(timeout=60).offset) for d in sent}) == 70_000
        with cluster.producer() as newcomer:
            newcomer.send(TOPIC, b"late").result(timeout=60)
        memory.check()


@pytest.mark.parametrize("shows_token", [False, True], ids=["stranger", "node"])
def test_large_requests_leave_a_controller_and_an_admin_as_they_were(cluster: TestCluster, shows_token: bool) -> None:
    memory = Memory(cluster)
    security = as_node(cluster.local.directory.path) if shows_token else PLAIN
    places = {
        "controller-1": "Controller/CreateTopics",
        "admin-1": "Admin/CreateTopics",
        "coordinator-1": "Coordinator/CommitOffsets",
    }
    request = bytes(60 << 20)
    for name, method in places.items():
        with ExitStack() as stack:
            calls: list[Any] = []
            for _ in range(4):
                at = cluster.local.process(name).grpc
                channel = stack.enter_context(open_sync_channel(at, security, own_connection=True))
                ask: Any = channel.unary_unary(f"/headrace.v1.{method}")
                calls += [ask.future(request, timeout=60) for _ in range(4)]
            for call in calls:
                with pytest.raises(grpc.RpcError) as raised:
                    call.result()
                refused = type(error_from_rpc(raised.value))
                if name == "controller-1" and not shows_token:
                    assert refused is ClusterAuthorizationFailed, "before it is read"
                else:
                    assert refused in (RecordTooLarge, Overloaded)
    memory.check()


def test_connections_that_would_use_up_all_descriptors(tmp_path: Path) -> None:
    few = {"broker-1": ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")}
    with (
        started_cluster(tmp_path / "data", launchers=few, closed=False) as cluster,
        cluster.producer() as producer,
        Strangers() as strangers,
    ):
        with cluster.admin() as admin:
            admin.create_topic(TOPIC, 1)
        producer.send(TOPIC, b"before").result(timeout=60)
        strangers.come(cluster.bootstrap_servers, 2 * DESCRIPTORS)
        broker = psutil.Process(cluster.local.process("broker-1").pid)
        assert broker.rlimit(psutil.RLIMIT_NOFILE)[0] == DESCRIPTORS
        assert broker.num_fds() < DESCRIPTORS / 2
        for n in range(100):
            producer.send(TOPIC, b"%d" % n).result(timeout=60)
