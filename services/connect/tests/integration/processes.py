"""Workers as processes, and their REST interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from headrace.testing import TestCluster

ROOT = Path(__file__).parents[4]
PATIENCE_S = 90.0


class WorkerProcess:
    """One worker."""

    def __init__(self, cluster: TestCluster, group: str, directory: Path, number: int, *options: str) -> None:
        self._ready = directory / f"worker-{number}.json"
        self._log = directory / f"worker-{number}.log"
        command = [sys.executable, "-m", "headrace_connect_worker"]
        command += ["--bootstrap-servers", ",".join(cluster.bootstrap_servers), "--group-id", group]
        command += ["--config-storage-topic", f"{group}-configs", "--status-storage-topic", f"{group}-status"]
        command += ["--offset-storage-topic", f"{group}-offsets", "--http-listen", "127.0.0.1:0"]
        command += ["--ready-file", str(self._ready), *options]
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ.copy(), stdout=out, stderr=out)
        self.client = httpx.Client(timeout=30, headers=cluster.local.authorization)
        self.id = ""

    def until_ready(self) -> WorkerProcess:
        wait_for(self._ready.exists, self)
        self.id = json.loads(self._ready.read_text())["http"]
        return self

    @property
    def log(self) -> str:
        return self._log.read_text()[-6_000:]

    def ask(self, method: str, path: str, body: Any = None, expect: Sequence[int] = (200, 201, 202, 204)) -> Any:
        answer = self.client.request(method, f"http://{self.id}{path}", json=body)
        assert answer.status_code in expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def owners(self, connector: str) -> dict[int, tuple[str, str]]:
        """State and worker of each task."""
        answer = self.client.get(f"http://{self.id}/connectors/{connector}/status")
        if answer.status_code != 200:
            return {}
        return {task["id"]: (task["state"], task["worker_id"]) for task in answer.json()["tasks"]}

    def status(self, path: str) -> int:
        """Of the answer to a GET."""
        return self.client.get(f"http://{self.id}{path}").status_code

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.client.close()


def wait_for(holds: Callable[[], object], *workers: WorkerProcess) -> float:
    """Wait until something holds; how long it took, in seconds."""
    begun = time.monotonic()
    while not holds():
        for worker in workers:
            assert worker.process.poll() is None, worker.log
        assert time.monotonic() - begun < PATIENCE_S, "\n\n".join(worker.log for worker in workers)
        time.sleep(0.05)
    return time.monotonic() - begun
