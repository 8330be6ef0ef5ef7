"""``headrace verify run`` on a real cluster: sound while a broker is killed, an anomaly where records are taken."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing import TestCluster, started_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LOOK_S = 0.1
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(
        tmp_path_factory.mktemp("verify") / "data",
        brokers=3,
        coordinators=2,
        restart=True,
        restart_delay_ms=200,
    ) as started:
        yield started


class Verifying:
    """A run as a user starts it; what it said comes when it has ended."""

    def __init__(self, cluster: TestCluster, directory: Path, *argv: str) -> None:
        self.report = directory / "report.json"
        self._cluster, self._directory = cluster, directory
        servers = ",".join(cluster.bootstrap_servers)
        command = [sys.executable, "-m", "headrace_cli", "verify", "run", "-b", servers, "--report", str(self.report)]
        self.process = subprocess.Popen(
            [*command, *argv], cwd=directory, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def topics(self) -> list[str]:
        with self._cluster.admin() as admin:
            return [topic.name for topic in admin.list_topics() if topic.name.startswith("headrace-verify-")]

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(LOOK_S)

    def records(self) -> int:
        """In the log of the first round."""
        logs = [name for name in self.topics() if name.endswith("-log")]
        if not logs:
            return 0
        with self._cluster.consumer() as consumer:
            return sum(consumer.end_offsets((logs[0], one) for one in consumer.partitions_for(logs[0])).values())

    def end(self, code: int) -> dict[str, object]:
        """The report."""
        said = self.process.communicate(timeout=PATIENCE_S)[1]
        assert self.process.returncode == code, said
        assert "Traceback" not in said
        told: dict[str, object] = json.loads(self.report.read_text())
        return told


@pytest.fixture
def verifying(cluster: TestCluster, tmp_path: Path) -> Iterator[Callable[..., Verifying]]:
    started: list[Verifying] = []

    def start(*argv: str) -> Verifying:
        started.append(Verifying(cluster, tmp_path, *argv))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()
    with cluster.admin() as admin:
        for name in started[0].topics():
            admin.delete_topic(name)


def test_a_cluster_that_keeps_all_is_sound_while_a_broker_is_killed(
    cluster: TestCluster, verifying: Callable[..., Verifying]
) -> None:
    run = verifying("--minutes", "0.2")
    run.until(lambda: run.records() > 50)
    cluster.local.kill("broker-2")
    told = run.end(0)
    assert told["verdict"] == "sound"
    records = told["records"]
    assert isinstance(records, dict)
    assert records["acknowledged"] > 50
    assert records["copied"] > 0
    assert run.topics() == [], "what it made is deleted"
    with cluster.admin() as admin:
        assert [group for group in admin.list_groups().groups if group.group_id.startswith("headrace-verify-")] == []


def test_records_that_are_taken_away_are_an_anomaly_and_stay_to_be_looked_at(
    cluster: TestCluster, verifying: Callable[..., Verifying]
) -> None:
    run = verifying("--minutes", "10")
    run.until(lambda: run.records() > 200)
    [log] = [name for name in run.topics() if name.endswith("-log")]
    with cluster.admin() as admin:
        admin.delete_records({(log, partition): -1 for partition in range(6)})
    run.process.send_signal(signal.SIGINT)
    told = run.end(1)
    assert told["verdict"] == "anomaly"
    assert told["interrupted"] is True
    assert isinstance(told["anomalies"], dict)
    assert isinstance(told["kept_topics"], list)
    assert {"lost-write", "unseen", "vanished"} & told["anomalies"].keys()
    assert log in run.topics()
    assert sorted(told["kept_topics"]) == sorted(run.topics())
    assert Path(run.report.parent, str(told["history"])).stat().st_size > 1_000
