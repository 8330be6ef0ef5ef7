"""Work groups of real processes: one is killed, one is paused and replaced, one ends in good order."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing import TestCluster, started_cluster

pytestmark = pytest.mark.integration

PATIENCE_S = 40
PROGRAM = Path(__file__).with_name("work_program.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("work"), coordinators=2) as running:
        yield running


class Worker:
    """One process; ``doing`` is item -> epoch, by what it says."""

    def __init__(self, cluster: TestCluster, name: str, topic: str, instance: str = "") -> None:
        argv = [sys.executable, str(PROGRAM), ",".join(cluster.bootstrap_servers), name, topic, instance]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.said: list[list[str]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.said.extend(line.split() for line in self.process.stdout)

    @property
    def doing(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for word, *rest in list(self.said):
            if word == "+":
                found[rest[0]] = int(rest[1])
            elif word == "-":
                found.pop(rest[0], None)
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@pytest.fixture
def start(cluster: TestCluster) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(*names: str) -> Worker:
        started.append(Worker(cluster, *names))
        return started[-1]

    yield start
    for worker in started:
        worker.send(signal.SIGCONT)
        worker.process.kill()
        worker.process.wait()


def until(condition: Callable[[], object], *workers: Worker) -> float:
    """How long it took, in seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE_S, [worker.said for worker in workers]
        time.sleep(0.02)
    return time.monotonic() - began


def test_items_of_a_killed_process_go_to_the_others(cluster: TestCluster, start: Callable[..., Worker]) -> None:
    topic = cluster.unique_topic(partitions=4)
    first, second = start("kill", topic), start("kill", topic)
    until(lambda: len(first.doing) == len(second.doing) == 2, first, second)
    before = first.doing
    first.send(signal.SIGKILL)
    until(lambda: len(second.doing) == 4, second)
    assert all(second.doing[item] > epoch for item, epoch in before.items())


def test_a_paused_process_that_was_replaced_writes_nothing_any_more(
    cluster: TestCluster, start: Callable[..., Worker]
) -> None:
    topic = cluster.unique_topic(partitions=4)
    old = start("pause", topic, "only")
    until(lambda: len(old.doing) == 4, old)
    old.send(signal.SIGSTOP)
    new = start("pause", topic, "only")
    until(lambda: len(new.doing) == 4, new)
    assert min(new.doing.values()) > max(old.doing.values())
    with cluster.consumer(topic) as consumer:
        mine = {b"%d" % epoch for epoch in new.doing.values()}
        seen: list[bytes] = []
        while not mine <= set(seen):
            seen += [record.value for record in consumer.poll(timeout_ms=100)]
        old.send(signal.SIGCONT)
        until(lambda: ["out"] in old.said, old)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert {record.value for record in consumer.poll(timeout_ms=100)} <= mine, "the old one wrote"


def test_who_ends_in_good_order_hands_over_at_once(cluster: TestCluster, start: Callable[..., Worker]) -> None:
    topic = cluster.unique_topic(partitions=4)
    first, second = start("leave", topic), start("leave", topic)
    until(lambda: len(first.doing) == len(second.doing) == 2, first, second)
    first.send(signal.SIGINT)
    until(lambda: len(second.doing) == 4, second)
