"""A verification that takes its time, on real workers: deleted in the middle, ended with the worker, and its result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.testing import TestCluster
from headrace_connect.runtime.verifying import RANGE

from .processes import ROOT, WorkerProcess, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
CLASS = "tests.integration.connect.rows:Slowly"
RECORDS = RANGE + 5


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Comparing:
    """Processes that compare."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: set[int] = set()

    def new(self) -> int | None:
        """A process that has begun since it was asked last."""
        found = {int(one.name) for one in self.directory.iterdir() if one.name.isdigit()} - self._known
        self._known |= found
        return next(iter(found), None)

    def next(self, *workers: WorkerProcess) -> int:
        found: list[int] = []
        wait_for(lambda: found.extend([pid] if (pid := self.new()) else []) or found, *workers)
        return found[0]


def interrupted(worker: WorkerProcess, comparing: Comparing, cluster: TestCluster) -> int:
    """Ctrl+C at a command that waits; the process that compared for it."""
    command = [sys.executable, "-m", "headrace_cli", "connect", "verify", "s", "--url", f"http://{worker.id}"]
    key = cluster.local.authorization["Authorization"].removeprefix("Bearer ")
    environment = {**os.environ, "HEADRACE_API_KEY": key}  # that of the local file goes where the cluster says it is
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as cli:
        pid = comparing.next(worker)
        cli.send_signal(signal.SIGINT)
        _, said = cli.communicate(timeout=60)
    assert cli.returncode == 130, said
    return pid


def test_a_slow_verification_is_looked_at_deleted_and_ended_with_its_worker(
    cluster: TestCluster, tmp_path: Path, ends: ExitStack
) -> None:
    topic = cluster.unique_topic("rows", partitions=1)
    with cluster.producer() as producer:
        producer.send_many(topic, [b'{"n": 1}'] * RECORDS)
        producer.flush()
    directory = tmp_path / "comparing"
    directory.mkdir()
    workers = []
    for number in range(2):
        options = ("--plugins-allowed", CLASS, "--files-allowed-paths", str(tmp_path))
        worker = WorkerProcess(cluster, f"g-{topic}", tmp_path, number, *options)
        ends.callback(worker.end)
        workers.append(worker)
        worker.until_ready()
    first, second = workers
    config = {"connector.class": CLASS, "topics": topic, "directory": str(directory), "position": str(RECORDS)}
    body = {"name": "s", "config": config, "initial_state": "STOPPED"}
    wait_for(lambda: second.ask("POST", "/connectors", body, expect=(201, 409)).get("name") == "s", *workers)
    path, comparing = "/v1/connectors/s/verify", Comparing(directory)

    begun = second.ask("POST", path, {})
    pid = comparing.next(*workers)
    wait_for(lambda: second.ask("GET", begun["path"])["progress"]["compared"] == RANGE, *workers)
    for worker in workers:
        one = worker.ask("GET", begun["path"])
        assert (one["state"], one["result"]) == ("running", None)
        assert one["progress"] == {"offsets": RECORDS, "scanned": 0, "compared": RANGE}
    assert begun["id"] in first.ask("POST", path, {}, expect=(409,))["detail"], "one at a time, whoever is asked"
    second.ask("DELETE", begun["path"])
    assert not is_alive(pid), "it has ended when that is answered"
    for worker in workers:
        worker.ask("GET", begun["path"], expect=(404,))

    pid = interrupted(second, comparing, cluster)
    wait_for(lambda: not is_alive(pid), *workers)

    begun = second.ask("POST", path, {"repair": True})
    pid = comparing.next(*workers)
    second.ask("PUT", "/connectors/s/resume")
    wait_for(lambda: second.ask("GET", begun["path"])["state"] == "failed", *workers)
    assert not is_alive(pid)
    assert "is to run again" in second.ask("GET", begun["path"])["error"]["detail"]

    begun = second.ask("POST", path, {})
    pid = comparing.next(*workers)
    leader, other = (first, second) if first.status(f"{begun['path']}?forward=false") == 200 else (second, first)
    leader.signal(signal.SIGTERM)
    leader.process.wait(60)
    assert leader.process.returncode == 0, leader.log
    assert not is_alive(pid)
    wait_for(lambda: other.status(begun["path"]) == 404, other)  # 409 until it leads

    begun = other.ask("POST", path, {})
    comparing.next(other)
    (directory / "go").touch()
    wait_for(lambda: other.ask("GET", begun["path"])["state"] == "completed", other)
    result = other.ask("GET", begun["path"])["result"]
    assert (result["agrees"], [one["records"] for one in result["ranges"]]) == (True, [RANGE, 5])
