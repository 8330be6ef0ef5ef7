"""
A consume-transform-produce worker and a cluster that are hurt at a named step of a transaction, and the judgement.

``hurt`` arms a failpoint (``headrace_common.runtime.failpoints``), waits until a process has come to it, and does what
the case says; the worker is started again until its work is done; then ``check`` looks at what readers see.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace import TopicPartition
from headrace.testing import TestCluster, started_cluster
from headrace_cli.local.failures import NotRunning
from headrace_common.runtime.failpoints import DIRECTORY_VARIABLE

SCRIPT = Path(__file__).parent / "pipeline.py"
PARTITIONS, RECORDS = 2, 400
TIMEOUT_MS = 4_000
"""Of transactions: what a dead worker left open is over then."""
PATIENCE_S = 60.0
LOOK_S = 0.02
SHORT_MS = {"CONSUMER_SESSION_TIMEOUT": 3_000, "CONSUMER_HEARTBEAT_INTERVAL": 500, "REJOIN_GRACE": 500}

BROKER = ["txn.enrol.before", "txn.enrol.after", "txn.marker.append.before", "txn.marker.append.after"]
COORDINATOR = [
    f"txn.{step}.{side}"
    for step in (
        "enrol.write",
        "prepare.write",
        "end.answer",
        "marker.send",
        "complete.write",
        "offsets.enrol",
        "offsets.write",
        "offsets.marker",
    )
    for side in ("before", "after")
]
WORKER = [f"sdk.txn.{step}.{side}" for step in ("send", "offsets", "end") for side in ("before", "after")]
POINTS = [*BROKER, *COORDINATOR, *WORKER]
VICTIMS = ("worker", "coordinator", "leader")


@dataclass(frozen=True)
class Case:
    """A fault: at ``point`` the process that comes there is killed, or it is stopped and ``victim`` is killed."""

    point: str
    victim: str | None = None

    def __str__(self) -> str:
        return f"{self.point} kill" if self.victim is None else f"{self.point} stop, kill {self.victim}"


ALL = [Case(point) for point in POINTS] + [Case(point, victim) for point in POINTS for victim in VICTIMS]


def until(true: object, why: str, seconds: float = PATIENCE_S) -> None:
    """Wait until a call gives something true."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {why}"
        time.sleep(LOOK_S)


@dataclass
class Field:
    """The cluster and the directory of its failpoints."""

    cluster: TestCluster
    points: Path

    def hurt(self, case: Case) -> None:
        """One case from a fresh pair of topics to the judgement."""
        source, target = (
            self.cluster.unique_topic("source", PARTITIONS),
            self.cluster.unique_topic("target", PARTITIONS),
        )
        name = f"worker-{target}"
        with self.cluster.producer() as producer:
            for number in range(RECORDS):
                producer.send(source, b"%d" % number, partition=number % PARTITIONS)
            producer.flush()
        (self.points / case.point).write_text("kill" if case.victim is None else "stop")
        with worker(self.cluster, source, target, name) as first:
            try:
                pid = self._hit(case, first)
                if case.victim is not None:
                    self._kill_another(case, first, pid, target, name)
            finally:
                (self.points / case.point).unlink(missing_ok=True)
            self._finish(first, source, target, name)
        self.cluster.local.wait_ready()
        check(self.cluster, source, target, name)

    def _hit(self, case: Case, first: subprocess.Popen[str]) -> int:
        hit = self.points / f"{case.point}.hit"
        until(lambda: hit.exists() or first.poll() is not None, f"a process comes to {case.point}")
        assert hit.exists(), f"the worker ended with {first.poll()} and nobody came to {case.point}"
        pid = int(hit.read_text())
        hit.unlink()
        return pid

    def _kill_another(self, case: Case, first: subprocess.Popen[str], stopped: int, target: str, name: str) -> None:
        try:
            match case.victim:
                case "worker":
                    first.kill()
                case "coordinator":
                    self._kill(f"coordinator-{self._coordinator(name, stopped)}")
                case _:
                    self._kill(f"broker-{self._leader(target)}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)

    def _kill(self, process: str) -> None:
        with contextlib.suppress(NotRunning):
            self.cluster.local.kill(process)

    def _coordinator(self, name: str, stopped: int) -> int:
        """Of the id; one that is stopped does not tell, and is killed as it is."""
        for process in self.cluster.local.processes:
            if process.pid == stopped and process.role == "coordinator":
                return int(process.name.rpartition("-")[2])
        with self.cluster.admin() as admin:
            return admin.describe_transaction(name).coordinator

    def _leader(self, target: str) -> int:
        with self.cluster.admin() as admin:
            return admin.describe_topic(target).partitions[0].leader

    def _finish(self, first: subprocess.Popen[str], source: str, target: str, name: str) -> None:
        """The worker does its work, however often it has to be started again."""
        deadline, running = time.monotonic() + PATIENCE_S, first
        while True:
            try:
                running.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"the worker did not end within {PATIENCE_S:g} s")
            if running.returncode == 0:
                return
            assert running.returncode in (-signal.SIGKILL, 3), running.communicate()[1]
            with worker(self.cluster, source, target, name) as again:
                self._finish_again(again, deadline)
                return

    def _finish_again(self, again: subprocess.Popen[str], deadline: float) -> None:
        try:
            _, said = again.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker did not end within {PATIENCE_S:g} s")
        assert again.returncode == 0, said


@contextlib.contextmanager
def worker(cluster: TestCluster, source: str, target: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ``pipeline.py``, killed at the end if it still runs."""
    bootstrap = ",".join(cluster.bootstrap_servers)
    command = [sys.executable, str(SCRIPT), bootstrap, source, target, name, str(TIMEOUT_MS)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def field(directory: Path) -> Iterator[Field]:
    """Three brokers, two coordinators; what is killed comes back."""
    points = directory / "points"
    points.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DIRECTORY_VARIABLE, str(points))
        for setting, value in SHORT_MS.items():
            patch.setenv(f"HEADRACE_COORDINATOR_GROUP_{setting}_MS", str(value))
        options = {"brokers": 3, "coordinators": 2, "restart": True, "restart_delay_ms": 200}
        with started_cluster(directory / "data", **options) as cluster:
            yield Field(cluster, points)


def read(cluster: TestCluster, topic: str, isolation: str) -> dict[TopicPartition, list[bytes]]:
    """All that a reader from the beginning gets, by partition."""
    found: dict[TopicPartition, list[bytes]] = {TopicPartition(topic, number): [] for number in range(PARTITIONS)}
    with cluster.consumer(topic, isolation_level=isolation) as consumer:
        ends = consumer.end_offsets(list(found))
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, f"{isolation}: read to {ends}"
            for record in consumer.poll(timeout_ms=200):
                found[TopicPartition(record.topic, record.partition)].append(record.value)
    return found


def check(cluster: TestCluster, source: str, target: str, name: str) -> None:
    """Each input once in the outputs, whole transactions only, positions at the end, nothing open."""
    until(lambda: _all_stable(cluster, target), "the last stable offset reaches the end", TIMEOUT_MS / 1_000 + 20)
    inputs = {value for values in read(cluster, source, "read_uncommitted").values() for value in values}
    outputs = read(cluster, target, "read_committed")
    records = [value for values in outputs.values() for value in values if not value.startswith(b"{")]
    assert Counter(records) == Counter(inputs), "each input is there once"
    summaries = [[v for v in values if v.startswith(b"{")] for values in outputs.values()]
    assert all(one == summaries[0] for one in summaries), "each transaction is in all partitions or in none, in order"
    told = [value for summary in summaries[0] for value in json.loads(summary)["summary"]]
    assert Counter(told) == Counter(value.decode() for value in inputs)
    with cluster.admin() as admin:
        until(
            lambda: admin.describe_transaction(name).state in ("empty", "complete_commit", "complete_abort"), "it ended"
        )
        assert not admin.find_hanging_transactions().transactions


def _all_stable(cluster: TestCluster, topic: str) -> bool:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with (
        cluster.consumer(isolation_level="read_committed") as stable,
        cluster.consumer(isolation_level="read_uncommitted") as all_of_it,
    ):
        return stable.end_offsets(partitions) == all_of_it.end_offsets(partitions)
