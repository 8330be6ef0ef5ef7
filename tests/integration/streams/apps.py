"""Workers of a program as processes of a test."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from headrace.testing import TestCluster

PROGRAMS = Path(__file__).with_name("programs.py")
WAIT_S = 60.0
WORDS = [f"word{number}" for number in range(40)]
PARTITIONS = 3
T = TypeVar("T")
Row = tuple[bytes | None, dict[str, Any]]
"""Key and value."""


@dataclass
class AppUnderTest:
    """One app, its topics, and how to start a worker of it."""

    cluster: TestCluster
    directory: Path
    name: str
    lines: str
    words: str
    late: str = ""

    def start(self, state: str = "state", **more: Any) -> subprocess.Popen[bytes]:
        """One worker."""
        settings = more | {
            "bootstrap_servers": ",".join(self.cluster.bootstrap_servers),
            "state_dir": str(self.directory / state),
            "transaction_timeout_ms": 5_000,
        }
        return self._start("headrace_streams", f"{PROGRAMS}:{self.name}", json.dumps(settings))

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        names = {
            "LINES": self.lines,
            "WORDS": self.words,
            "LATE": self.late,
            "HEADRACE_FAILPOINTS_DIR": str(self.directory),
        }
        with (self.directory / "workers.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", *command], env=os.environ | names, stdout=log, stderr=log)

    @contextmanager
    def running_by_command(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """``headrace streams run`` of it, killed at the end."""
        servers, state = ",".join(self.cluster.bootstrap_servers), str(self.directory / "state")
        command = ["streams", "run", f"{PROGRAMS}:{self.name}", "--state-dir", state, *options]
        parent = self._start("headrace_cli", "-b", servers, *command)
        try:
            yield parent
        finally:
            end(parent)

    @contextmanager
    def running(self, state: str = "state", **more: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that is killed at the end."""
        worker = self.start(state, **more)
        try:
            yield worker
        finally:
            end(worker)

    def arm(self, point: str, action: str) -> None:
        """Have the next worker that comes to ``point`` killed or stopped."""
        (self.directory / point).write_text(action)

    def wait_for(self, point: str) -> None:
        """Until a worker was killed or stopped there."""
        wait_until(lambda: (self.directory / f"{point}.hit").exists(), f"a worker comes to {point}", self.log)

    def send(self, values: list[bytes], keys: list[bytes] | None = None) -> None:
        """Records of the input."""
        with self.cluster.producer() as producer:
            producer.send_many(self.lines, values, keys=keys)
            producer.flush()

    def wait_for_log(self, text: str, times: int = 1) -> None:
        """Until workers have said something so often."""
        wait_until(lambda: self.said(text) >= times, f"{text!r} is said", self.log)

    def said(self, text: str) -> int:
        """How often workers have said it."""
        path = self.directory / "workers.log"
        return path.read_text().count(text) if path.exists() else 0

    def read(self, at_least: int) -> list[Row]:
        """What is committed in the output, once there is so much."""
        return self.read_until(lambda rows: len(rows) >= at_least, f"{at_least} records are in {self.words}")

    def read_until(self, complete: Callable[[list[Row]], bool], what: str = "all is there") -> list[Row]:
        """What is committed in the output, once it is complete."""
        found: list[Row] = []
        with self.cluster.consumer(
            self.words, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:

            def enough() -> bool:
                found.extend((record.key, orjson.loads(record.value)) for record in consumer.poll(timeout_ms=500))
                return complete(found)

            wait_until(enough, what, self.log)
            found.extend((record.key, orjson.loads(record.value)) for record in consumer.read_to_end())
        return found

    def log(self) -> str:
        """What workers said."""
        path = self.directory / "workers.log"
        return path.read_text()[-3_000:] if path.exists() else ""


def end(worker: subprocess.Popen[bytes]) -> None:
    """Kill it, stopped or not."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGKILL)
    worker.wait()


def wait_until(done: Callable[[], T], what: str, log: Any) -> T:
    """Ask until it is so; what was answered then."""
    until = time.monotonic() + WAIT_S
    while not (answer := done()):
        assert time.monotonic() < until, f"waited {WAIT_S:.0f} s until {what}\n{log()}"
        time.sleep(0.05)
    return answer


def check_each_count_once(found: list[Row], words: Counter[str]) -> None:
    """Each number of each word came exactly once, in order."""
    numbers: dict[str, list[int]] = {}
    for _, row in found:
        numbers.setdefault(row["word"], []).append(row["n"])
    assert numbers == {word: list(range(1, count + 1)) for word, count in words.items()}


def check_each_count(found: list[Row], words: Counter[str]) -> None:
    """Each number of each word came, and none beside: rows may be there again, but nothing was counted again."""
    numbers: dict[str, set[int]] = {}
    for _, row in found:
        numbers.setdefault(row["word"], set()).add(row["n"])
    assert numbers == {word: set(range(1, count + 1)) for word, count in words.items()}


def app(cluster: TestCluster, directory: Path, name: str, partitions: int = PARTITIONS) -> AppUnderTest:
    """One of the programs on topics of its own."""
    lines = cluster.unique_topic("lines", partitions)
    words = cluster.unique_topic("words", 2)
    return AppUnderTest(cluster, directory, name, lines, words)


def licence_lines(count: int) -> list[str]:
    """Lines of the licences of what is installed beside pytest."""
    files = sorted(Path(pytest.__file__).parents[1].glob("*.dist-info/**/LICENSE*"))
    lines = (line for file in files if file.is_file() for line in file.read_text(errors="replace").splitlines())
    return list(islice(lines, count))


def some_lines(seed: int, count: int) -> list[str]:
    """Lines of five words."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=5)) for _ in range(count)]
