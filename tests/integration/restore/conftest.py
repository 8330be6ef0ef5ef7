"""A cluster whose metadata can be lost: etcd's data is thrown away and a backup is restored by the real programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.ports import free_port

from headrace.testing import TestCluster
from headrace_cli.local import LocalCluster
from headrace_cli.local.certificate_files import EtcdFiles
from headrace_cli.local.etcd import etcd_serves, find_etcd


@dataclass
class Restorable:
    """A local cluster, with its etcd in reach."""

    directory: Path
    brokers: int
    local: LocalCluster = field(init=False)

    def __post_init__(self) -> None:
        self.local = LocalCluster(self.directory / "data", brokers=self.brokers, restart=False)

    @property
    def cluster(self) -> TestCluster:
        """For clients."""
        return TestCluster(self.local)

    def program(self, name: str, *arguments: object) -> dict[str, Any]:
        """Run ``headrace_controller.NAME``; what it says."""
        done = subprocess.run(
            [sys.executable, "-m", f"headrace_controller.{name}", *map(str, arguments)],
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def back_up(self) -> Path:
        """A backup of the running cluster."""
        etcd = self.local.process("etcd-1").grpc
        said = self.program("backup", "--etcd", etcd, *self.shown_to_etcd(), "--to", self.directory / "backups")
        return Path(said["backup"])

    @property
    def etcd_files(self) -> EtcdFiles:
        """What the cluster's etcd asks for."""
        return EtcdFiles(self.directory / "data" / "certificates")

    def shown_to_etcd(self) -> Sequence[object]:
        """Arguments for a program that uses it."""
        files = self.etcd_files
        key = files.key(files.controller)
        return ("--etcd-ca", files.ca, "--etcd-cert", files.controller, "--etcd-key", key)

    def lose_metadata(self, *, killed: bool) -> None:
        """All processes end, and etcd's data is gone."""
        if killed:
            pids = [p.pid for p in self.local.processes if p.pid is not None]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        self.local.stop()
        shutil.rmtree(self.directory / "data" / "etcd-1")

    def restore(self, backup: Path, expected: Sequence[int], *options: str) -> None:
        """Into etcd, which runs alone meanwhile; a fresh one where its data is gone."""
        client, peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
        with (self.directory / "etcd.log").open("ab") as log:
            etcd = subprocess.Popen(
                [
                    *(find_etcd(None), "--name", "etcd-1", "--data-dir", str(self.directory / "data" / "etcd-1")),
                    *("--listen-client-urls", f"http://{client}", "--advertise-client-urls", f"http://{client}"),
                    *("--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls", f"http://{peer}"),
                    *("--initial-cluster", f"etcd-1=http://{peer}"),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine},
            )
        try:
            until(lambda: etcd_serves(client), 60)
            named = ",".join(map(str, expected))
            said = self.program("restore", "--etcd", client, "--brokers", named, *options, backup)
            assert said["expected_brokers"] == list(expected)
        finally:
            etcd.terminate()
            etcd.wait(20)


def until(holds: Any, seconds: float = 60) -> None:
    """Wait until ``holds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[int], Restorable]]:
    """Starts a cluster of so many brokers; it ends with the test."""
    with ExitStack() as stack:

        def start(brokers: int) -> Restorable:
            made = Restorable(tmp_path, brokers)
            stack.callback(made.local.stop)
            made.local.start()
            return made

        yield start
