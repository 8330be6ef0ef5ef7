"""Two workers over a real cluster: a connector is created, scaled, and goes on while workers are paused and killed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.testing import TestCluster
from headrace_connect_worker.core.encoding import decode_config
from headrace_connect_worker.core.records import ConfigRecord, LeaderSaid, TasksCommitted

from .processes import WorkerProcess, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
CLASS = "tests.integration.connect.rows:Numbers"
ROWS = 8_000


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def read_configs(cluster: TestCluster, topic: str) -> list[ConfigRecord]:
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        decoded = [decode_config(record.key, record.value) for record in consumer.read_to_end(timeout_ms=60_000)]
    return [record for record in decoded if record is not None]


def test_a_connector_goes_on_while_workers_are_paused_and_killed(
    cluster: TestCluster, tmp_path: Path, ends: ExitStack
) -> None:
    topic = cluster.unique_topic("numbers", partitions=3)
    workers = []
    for number in range(2):
        worker = WorkerProcess(cluster, f"g-{topic}", tmp_path, number, "--plugins-allowed", CLASS)
        ends.callback(worker.end)
        workers.append(worker)
    first, second = (worker.until_ready() for worker in workers)
    config = {
        "connector.class": CLASS,
        "topic": topic,
        "rows": str(ROWS),
        "splits": "4",
        "tasks.max": "2",
        "offset.flush.interval.ms": "100",
    }
    wait_for(lambda: leader_of(cluster, topic), *workers)
    wait_for(lambda: first.ask("GET", "/")["kafka_cluster_id"], *workers)
    second.ask("POST", "/connectors", {"name": "n", "config": config})

    def runs(tasks: int, *on: WorkerProcess) -> bool:
        ids = {worker.id for worker in on}
        found = on[0].owners("n")
        return len(found) == tasks and all(state == "RUNNING" and at in ids for state, at in found.values())

    wait_for(lambda: runs(2, first, second), *workers)
    assert {at for _, at in first.owners("n").values()} == {first.id, second.id}, "they share the tasks"
    first.ask("PUT", "/connectors/n/config", {**config, "tasks.max": "4"})
    wait_for(lambda: runs(4, first, second), *workers)
    leader = leader_of(cluster, topic)
    assert leader is not None
    paused, other = (first, second) if leader.worker_id == first.id else (second, first)
    paused.signal(signal.SIGSTOP)
    moved_s = wait_for(lambda: runs(4, other), other)
    wait_for(lambda: other.ask("PUT", "/connectors/n/pause", expect=(202, 409)) is None and paused_all(other), other)
    paused.signal(signal.SIGCONT)
    wait_for(lambda: paused.ask("GET", "/connectors/n/config")["tasks.max"] == "4", paused)
    other.ask("PUT", "/connectors/n/resume")
    wait_for(lambda: runs(4, other, paused) and len(set(other.owners("n").values())) == 2, other, paused)
    other.signal(signal.SIGKILL)
    other.process.wait()
    killed_s = wait_for(lambda: runs(4, paused), paused)
    print(f"tasks of a paused worker ran elsewhere after {moved_s:.1f} s, of a killed one after {killed_s:.1f} s")
    wait_for(lambda: len(numbers_in(cluster, topic)) == ROWS, paused)
    assert set(numbers_in(cluster, topic).values()) == {1}, "each once"
    paused.ask("DELETE", "/connectors/n")
    wait_for(lambda: paused.ask("GET", "/connectors") == [], paused)
    records = read_configs(cluster, f"g-{topic}-configs")
    epochs = [record.epoch for record in records if isinstance(record, LeaderSaid)]
    generations = [record.generation for record in records if isinstance(record, TasksCommitted) and record.count]
    assert epochs == sorted(set(epochs)), "each leader is above those before it"
    assert len(epochs) >= 3
    assert generations == sorted(set(generations))


def paused_all(worker: WorkerProcess) -> bool:
    return all(state == "PAUSED" for state, _ in worker.owners("n").values())


def leader_of(cluster: TestCluster, topic: str) -> LeaderSaid | None:
    said = [record for record in read_configs(cluster, f"g-{topic}-configs") if isinstance(record, LeaderSaid)]
    return said[-1] if said else None


def numbers_in(cluster: TestCluster, topic: str) -> Counter[int]:
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        return Counter(json.loads(record.value)["n"] for record in consumer.read_to_end(timeout_ms=60_000))
