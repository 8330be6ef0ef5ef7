"""
Workers of another version of the library and of this one share an app under load, take each other's place, and find
each other's state: each word is counted once.

``OTHER`` is the checkout of the other version (``git worktree add DIR REVISION``); without it there is nothing to run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.streams.apps import WORDS, AppUnderTest, app, check_each_count_once, end

from headrace.testing import TestCluster, started_cluster
from headrace_streams.worker_process import Ending

OTHER = os.environ.get("OTHER")
PACKAGES = ("libs/streams", "libs/sdk", "libs/common")
STEP_WORDS, STEP_S = 150, 0.05

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.skipif(OTHER is None, reason="OTHER names no checkout of another version"),
]


class Load(threading.Thread):
    """Writes words while workers come and go."""

    def __init__(self, tested: AppUnderTest) -> None:
        super().__init__(daemon=True)
        self._tested = tested
        self._over = threading.Event()
        self.words: Counter[str] = Counter()

    def run(self) -> None:
        chance = random.Random(5)
        while not self._over.wait(STEP_S):
            words = chance.choices(WORDS, k=STEP_WORDS)
            self._tested.send([word.encode() for word in words], [word.encode() for word in words])
            self.words.update(words)

    def stop(self) -> int:
        """How many words there are."""
        self._over.set()
        self.join()
        return self.words.total()


class Versions:
    """Workers of both, one slot each."""

    def __init__(self, tested: AppUnderTest) -> None:
        self._tested = tested
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, slot: str, *, other: bool) -> None:
        """One that takes part; it has said so when this returns."""
        said = self._tested.said(" works on ")
        path = os.pathsep.join(str(Path(OTHER or "") / package / "src") for package in PACKAGES)
        with pytest.MonkeyPatch.context() as patch:
            if other:
                patch.setenv("PYTHONPATH", path)
            self._workers[slot] = self._tested.start(slot)
        self._tested.wait_for_log(" works on ", said + 1)

    def replace(self, slot: str, *, other: bool, kill: bool = False) -> None:
        """As a rolling restart does, or after kill -9."""
        worker = self._workers.pop(slot)
        worker.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        code = worker.wait(30)
        assert kill or code == Ending.DONE, self._tested.log()
        self.start(slot, other=other)

    def end(self) -> None:
        for worker in self._workers.values():
            end(worker)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    # Open: versions of before show no key.
    with started_cluster(tmp_path_factory.mktemp("versions") / "data", closed=False) as started:
        yield started


@pytest.mark.parametrize("program", ["counts", "numbered"])
def test_two_versions_share_an_app_and_each_others_state(cluster: TestCluster, tmp_path: Path, program: str) -> None:
    tested = app(cluster, tmp_path, program)
    versions, load = Versions(tested), Load(tested)
    try:
        versions.start("a", other=True)
        load.start()
        versions.start("b", other=True)
        versions.replace("a", other=False)
        versions.replace("b", other=False, kill=True)
        versions.replace("a", other=True)
        versions.replace("b", other=True, kill=True)
        versions.replace("a", other=False)
        found = tested.read(load.stop())
    finally:
        load.stop()
        versions.end()
    check_each_count_once(found, load.words)
