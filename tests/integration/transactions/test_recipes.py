"""The recipe for databases with a worker that is killed at each of its steps: each record is in the table once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import TestCluster, started_cluster

from .database_worker import Database
from .postgres import started_postgres

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).parent / "database_worker.py"
RECORDS, PARTITIONS = 600, 3
STEPS = ("prepared", "inserted", "written", "committed")
SHORT_MS = {"CONSUMER_SESSION_TIMEOUT": 3_000, "CONSUMER_HEARTBEAT_INTERVAL": 500, "REJOIN_GRACE": 500}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    directory = tmp_path_factory.mktemp("recipes") / "data"
    with pytest.MonkeyPatch.context() as patch:
        # A worker that was killed or stopped is a member of its group for a while; then the next has its partitions.
        for name, value in SHORT_MS.items():
            patch.setenv(f"HEADRACE_COORDINATOR_GROUP_{name}_MS", str(value))
        with started_cluster(directory) as started:
            yield started


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with started_postgres() as address:
        yield f"postgres:{address}"


def filled(cluster: TestCluster) -> str:
    topic = cluster.unique_topic("orders", PARTITIONS)
    with cluster.producer() as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
    return topic


def run(cluster: TestCluster, topic: str, place: str, *die_at: str) -> int:
    command = [sys.executable, str(SCRIPT), ",".join(cluster.bootstrap_servers), topic, f"into-{topic}", place, *die_at]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def check_each_once(place: str, topic: str) -> None:
    rows = Database(place).execute("select value from handled where topic = ?", topic).fetchall()
    assert sorted(int(value) for (value,) in rows) == list(range(RECORDS))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_whatever_step_a_worker_dies_at_each_record_is_there_once(
    cluster: TestCluster, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "rows.db") if kind == "sqlite" else request.getfixturevalue("postgres")
    topic = filled(cluster)
    for step in STEPS:
        assert run(cluster, topic, place, step) == -signal.SIGKILL, f"it came to {step}"
    assert run(cluster, topic, place) == 0
    check_each_once(place, topic)


def test_a_worker_that_was_given_up_writes_nothing(cluster: TestCluster, tmp_path: Path) -> None:
    """It is paused between prepare and its rows; the next one settles and does the work; then it wakes."""
    place, topic = str(tmp_path / "rows.db"), filled(cluster)
    bootstrap = ",".join(cluster.bootstrap_servers)
    command = [sys.executable, str(SCRIPT), bootstrap, topic, f"into-{topic}", place, "stopped"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as paused:
        try:
            assert paused.stdout is not None
            assert paused.stdout.readline() == "stopped\n"
            assert run(cluster, topic, place) == 0
            check_each_once(place, topic)
            paused.send_signal(signal.SIGCONT)
            _, said = paused.communicate(timeout=60)
        finally:
            paused.kill()
    assert paused.returncode == 1
    assert "UNIQUE constraint failed" in said
    check_each_once(place, topic)
