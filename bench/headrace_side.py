"""A local Headrace cluster with one broker (the same size as the peer) for the benchmarks."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
from bench.kafka_side import run_client
from headrace_cli.local import LocalCluster


class HeadraceSide:
    """One broker, one controller, one etcd, in processes of their own."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.bootstrap = ",".join(cluster.bootstrap_servers)

    @staticmethod
    @contextlib.contextmanager
    def running(*, flush: str = "os", brokers: int = 1, **options: Any) -> Iterator[HeadraceSide]:
        """Start it; stop it and remove its data afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="bench-headrace-"))
        cluster = LocalCluster(folder, brokers=brokers, flush=flush, restart=False, **options)
        try:
            cluster.start()
            yield HeadraceSide(cluster)
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def topic(self, partitions: int) -> str:
        """A new topic that can be written at once."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        with headrace.AdminClient(self.bootstrap) as admin:
            admin.create_topic(name, partitions, 1)
        return name

    def client(self, test: str, **options: Any) -> dict[str, float]:
        """Run one client process; its JSON line."""
        return run_client("bench.clients.headrace_client", test, bootstrap=self.bootstrap, **options)

    def pid(self, name: str) -> int:
        """The process id of one service, ``broker-1`` for instance."""
        return next(p.pid for p in self.cluster.processes if p.name == name)
