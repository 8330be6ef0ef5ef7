"""
Consume, transform, produce under random kills: outputs are the inputs, each exactly once.

TRANSACTIONS_LONG=1 (``make chaos-transactions``): 500,000 records by tables instead of 20,000 one by one. CHAOS_SEED
names the faults.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import HeadraceError
from headrace.delivery import Deliveries
from headrace.testing import TestCluster
from headrace_verify.checker_txn import check_exactly_once
from headrace_verify.reading import partitions_of

from .copier import GROUP
from .storm import LONG, SEED, Crew, Storm, hurt_cluster, make_topic, nothing_hangs, read_columns, report

SCRIPT = Path(__file__).parent / "copier.py"
PARTITIONS, WORKERS = 6, 3
RECORDS, SECONDS, HOW = (500_000, 200.0, "tables") if LONG else (20_000, 16.0, "records")
STEP_S = 0.1

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900 if LONG else 300)]


class Load(threading.Thread):
    """Writes the inputs evenly over the time of the storm."""

    def __init__(self, cluster: TestCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic = cluster, topic
        self.sent = 0
        self.error: HeadraceError | None = None

    def run(self) -> None:
        """To the last acknowledgement."""
        try:
            self._write()
        except HeadraceError as error:  # told by the test, in its thread
            self.error = error

    def _write(self) -> None:
        began, waiting = time.monotonic(), list[Deliveries]()
        with self._cluster.producer() as producer:
            while self.sent < RECORDS:
                due = min(RECORDS, int((time.monotonic() - began) / SECONDS * RECORDS) + 1)
                numbers = range(self.sent, due)
                values, places = [b"%d" % one for one in numbers], [one % PARTITIONS for one in numbers]
                waiting.append(producer.send_many(self._topic, values, partition=places))
                self.sent = due
                time.sleep(STEP_S)
            for deliveries in waiting:
                deliveries.result(180)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data", "inputs", "outputs", "copier") as started:
        yield started


def test_outputs_are_inputs_exactly_once(cluster: TestCluster, tmp_path: Path) -> None:
    source, target = make_topic(cluster, "inputs", PARTITIONS), make_topic(cluster, "outputs", PARTITIONS)
    bootstrap, stop = ",".join(cluster.bootstrap_servers), tmp_path / "stop"

    def command(slot: int, number: int) -> list[str]:
        return [str(SCRIPT), bootstrap, source, target, str(slot), f"{SEED}-{number}", str(stop), HOW]

    crew = Crew(tmp_path, command, WORKERS)
    storm = Storm(cluster, crew, random.Random(SEED))
    load = Load(cluster, source)
    began = time.monotonic()
    try:
        crew.start_all()
        load.start()
        storm.rage(1.25 * SECONDS, lambda: not load.is_alive())
        load.join(180)
        assert load.error is None, repr(load.error)
        assert not load.is_alive(), "all inputs are acknowledged"
        stop.touch()
        crew.finish()
    finally:
        crew.end()
        (tmp_path / "faults.log").write_text("\n".join(storm.told) + "\n")
    worked = time.monotonic() - began
    nothing_hangs(cluster, [target])
    verdict = check_exactly_once(inputs(cluster, source), outputs(cluster, target), committed(cluster, source))
    report("copies", storm, records=verdict.read, seconds=round(worked), anomalies=verdict.counts)
    assert verdict.read == RECORDS, f"seed {SEED}, {tmp_path}\n{verdict.describe()}"
    assert verdict.counts == {}, f"seed {SEED}, {tmp_path}\n{verdict.describe()}"


def inputs(cluster: TestCluster, topic: str) -> dict[str, list[int]]:
    """The offsets that hold one; no number is there twice."""
    columns = read_columns(cluster, topic)
    found: dict[str, list[int]] = {str(number): [] for number in range(PARTITIONS)}
    for partition, offset in zip(columns["partition"], columns["offset"], strict=True):
        found[str(partition)].append(offset)
    assert sorted(map(int, columns["value"])) == list(range(RECORDS)), "the inputs are what was sent"
    return found


def outputs(cluster: TestCluster, topic: str) -> list[tuple[str, int]]:
    """What each was made from."""
    whence = [value.decode().split(":") for value in read_columns(cluster, topic)["value"]]
    return [(partition, int(offset)) for partition, offset in whence]


def committed(cluster: TestCluster, topic: str) -> dict[str, int]:
    """Of the group."""
    with cluster.consumer(group_id=GROUP, enable_auto_commit=False) as consumer:
        found = consumer.committed(partitions_of(consumer, topic))
    return {str(partition.partition): at.offset for partition, at in found.items() if at is not None}
