"""
Workers of Connect of another version and of this one share connectors under load, take each other's place, and go by
what each other has written: each number is in the table once.

``OTHER`` is the checkout of the other version (``git worktree add DIR REVISION``); without it there is nothing to run.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from services.connect.tests.integration.processes import WorkerProcess, wait_for

from headrace.testing import TestCluster, started_cluster

OTHER = os.environ.get("OTHER")
PACKAGES = ("services/connect", "libs/connect", "libs/streams", "libs/sdk", "libs/common")
TABLE = "tests.integration.connect.rows:Table"
STEP_S, STEP_ROWS, FILES = 0.05, 20, 2

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(OTHER is None, reason="OTHER names no checkout of another version"),
]


class Load(threading.Thread):
    """Writes numbers into files while workers come and go."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        directory.mkdir()
        self._paths = [directory / f"{number}.jsonl" for number in range(FILES)]
        for path in self._paths:
            path.touch()
        self._over = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._over.wait(STEP_S):
            for path in self._paths:
                with path.open("a") as file:
                    file.writelines(f'{{"n": {self.count + row}}}\n' for row in range(STEP_ROWS))
                self.count += STEP_ROWS

    def stop(self) -> int:
        """How many numbers there are."""
        self._over.set()
        self.join()
        return self.count


class Versions:
    """Workers of both, one slot each, that have two connectors."""

    def __init__(self, cluster: TestCluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._topic = cluster.unique_topic("numbers", partitions=2)
        self._workers: dict[str, WorkerProcess] = {}
        self._started = 0
        self.file = directory / "numbers.db"

    def start(self, slot: str, *, other: bool) -> WorkerProcess:
        """One that has its share when this returns."""
        path = os.pathsep.join(str(Path(OTHER or "") / package / "src") for package in PACKAGES)
        self._started += 1
        reach = ("--plugins-allowed", TABLE, "--files-allowed-paths", str(self._directory))
        with pytest.MonkeyPatch.context() as patch:
            if other:
                patch.setenv("PYTHONPATH", path)
            worker = WorkerProcess(self._cluster, f"g-{self._topic}", self._directory, self._started, *reach)
        self._workers[slot] = worker
        worker.until_ready()
        wait_for(lambda: worker.status("/health") == 200, *self._workers.values())
        return worker

    def create(self, spool: Path) -> None:
        """The connectors: files into a topic, and the topic into a table."""
        worker = next(iter(self._workers.values()))
        source = {"connector.class": "files", "path": str(spool), "format": "jsonl", "topic": self._topic}
        sink = {"connector.class": TABLE, "topics": self._topic, "file": str(self.file)}
        for name, config in (("source", source), ("sink", sink)):
            config |= {"tasks.max": "2", "offset.flush.interval.ms": "100"}
            body = {"name": name, "config": config}
            wait_for(lambda body=body: worker.ask("POST", "/connectors", body, expect=(201, 409)).get("name"), worker)
        self.settle()

    def replace(self, slot: str, *, other: bool, kill: bool = False) -> None:
        """As a rolling restart does, or after kill -9; the new worker has the configurations, and changes one."""
        worker = self._workers.pop(slot)
        worker.signal(signal.SIGKILL if kill else signal.SIGTERM)
        code = worker.process.wait(60)
        assert kill or code == 0, worker.log
        worker.end()
        before = self.numbers()
        new = self.start(slot, other=other)
        self.settle()
        for change in ("pause", "resume"):
            wait_for(lambda change=change: self._changed(new, change), *self._workers.values())
        self.settle()
        wait_for(lambda: self.numbers() > before, *self._workers.values())

    def _changed(self, worker: WorkerProcess, change: str) -> bool:
        """409: nobody leads for a moment."""
        answer = worker.client.put(f"http://{worker.id}/connectors/source/{change}")
        assert answer.status_code in (202, 409), answer.text
        return answer.status_code == 202

    def settle(self) -> None:
        """Each worker says that all tasks run, and that both workers have some."""
        for worker in self._workers.values():
            wait_for(lambda worker=worker: self._is_settled(worker), *self._workers.values())

    def _is_settled(self, worker: WorkerProcess) -> bool:
        tasks = [task for name in ("source", "sink") for task in worker.owners(name).values()]
        alive = {one.id for one in self._workers.values()}
        return len(tasks) == 4 and all(state == "RUNNING" for state, _ in tasks) and {at for _, at in tasks} == alive

    def numbers(self) -> int:
        with closing(sqlite3.connect(self.file, timeout=30)) as database:
            return database.execute("select count(*) from numbers").fetchone()[0]

    def check_each_once(self, count: int) -> None:
        wait_for(lambda: self.numbers() >= count, *self._workers.values())
        with closing(sqlite3.connect(self.file, timeout=30)) as database:
            found = Counter(n for (n,) in database.execute("select n from numbers"))
        assert found == Counter(range(count))

    def end(self) -> None:
        for worker in self._workers.values():
            worker.end()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    # Open: versions of before show no key.
    with started_cluster(tmp_path_factory.mktemp("versions") / "data", closed=False) as started:
        yield started


def test_two_versions_share_connectors_and_take_each_others_place(cluster: TestCluster, tmp_path: Path) -> None:
    versions, load = Versions(cluster, tmp_path), Load(tmp_path / "spool")
    try:
        versions.start("a", other=True)
        versions.create(tmp_path / "spool")
        load.start()
        versions.start("b", other=True)
        versions.replace("a", other=False)
        versions.replace("b", other=False, kill=True)
        versions.replace("a", other=True)
        versions.replace("b", other=True, kill=True)
        versions.replace("a", other=False)
        versions.check_each_once(load.stop())
    finally:
        load.stop()
        versions.end()
