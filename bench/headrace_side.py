"""A local Headrace cluster, of as many brokers as the peer has, for the benchmarks."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from libs.common.tests.kit.as_node import as_node

import headrace
from bench.kafka_side import run_client
from headrace_cli.local import LocalCluster
from headrace_common.rpc.channels import open_sync_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub


class HeadraceSide:
    """Brokers (one unless asked), one controller, one etcd, in processes of their own."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.bootstrap = ",".join(cluster.bootstrap_servers)
        self._shown = as_node(cluster.directory.path)
        self._stubs: dict[int, BrokerStub] = {}

    @staticmethod
    @contextlib.contextmanager
    def running(*, flush: str = "os", brokers: int = 1, closed: bool = False, **options: Any) -> Iterator[HeadraceSide]:
        """Start it, open unless asked; stop it and remove its data afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="bench-headrace-"))
        cluster = LocalCluster(folder, brokers=brokers, flush=flush, restart=False, closed=closed, **options)
        try:
            cluster.start()
            yield HeadraceSide(cluster)
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def topic(self, partitions: int, replicas: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """A new topic that can be written at once."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        with headrace.AdminClient(self.bootstrap) as admin:
            admin.create_topic(name, partitions, replicas, configs=dict(configs or {}))
        return name

    def logs(self, topic: str, broker: int = 1) -> list[pb.LogDescription]:
        """What the broker says of its logs of that topic."""
        topic_id = self.seen_by(broker, topic).topics[0].topic_id
        return list(self._stubs[broker].DescribeLogs(pb.DescribeLogsRequest(topic_ids=[topic_id]), timeout=10).logs)

    def data(self, broker: int = 1) -> Path:
        """Where the broker keeps its logs."""
        return self.cluster.directory.path / f"broker-{broker}"

    def client(self, test: str, **options: Any) -> dict[str, float]:
        """Run one client process; its JSON line."""
        return run_client("bench.clients.headrace_client", test, bootstrap=self.bootstrap, **options)

    def pid(self, name: str) -> int:
        """The process id of one service, ``broker-1`` for instance."""
        pid = self.cluster.process(name).pid
        assert pid is not None, f"{name} does not run"
        return pid

    def brokers(self) -> list[int]:
        """The process ids of all brokers."""
        return [self.pid(f"broker-{number + 1}") for number in range(len(self.cluster.bootstrap_servers))]

    def seen_by(self, broker: int, topic: str) -> pb.MetadataResponse:
        """The cluster as this broker has it now.

        Raises:
            grpc.RpcError: it did not answer within two seconds.
        """
        if broker not in self._stubs:
            channel = open_sync_channel(self.cluster.bootstrap_servers[broker - 1], self._shown)
            self._stubs[broker] = BrokerStub(channel)
        return self._stubs[broker].Metadata(pb.MetadataRequest(topics=[topic]), timeout=2, wait_for_ready=True)

    def led_by(self, broker: int, topic: str) -> set[int]:
        """Partitions it leads, by its own account."""
        return {p.partition for p in self.seen_by(broker, topic).topics[0].partitions if p.leader == broker}

    def wait_whole(self, topic: str, timeout_seconds: float = 60) -> None:
        """Until all processes serve, every replica is in sync and preferred leaders lead, as every broker sees it.

        Raises:
            TimeoutError: not in time.
        """
        self.cluster.wait_ready(timeout_seconds)
        with headrace.AdminClient(self.bootstrap) as admin:
            deadline = time.monotonic() + timeout_seconds
            while time.monotonic() < deadline:
                found = [self.seen_by(n + 1, topic) for n in range(len(self.cluster.bootstrap_servers))]
                partitions = [p for one in found for p in one.topics[0].partitions]
                if all(set(p.isr) == set(p.replicas) for p in partitions):
                    if all(p.leader == p.replicas[0] for p in partitions):
                        return
                    admin.elect_leaders()
                time.sleep(0.2)
        raise TimeoutError(f"topic {topic} was not whole {timeout_seconds:g} s after a fault")

    def end(self, name: str, *, hard: bool = True) -> str:
        """End a process, by SIGKILL or SIGTERM; returns its name when it is gone."""
        return self.cluster.kill(name, hard=hard).name

    def active_controller(self) -> str:
        """The name of the process that decides, as the first broker knows it."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            active = self.seen_by(1, "").active_controller
            if active.id > 0:
                return f"controller-{active.id}"
            time.sleep(0.05)
        raise TimeoutError("no controller was active for 10 s")
