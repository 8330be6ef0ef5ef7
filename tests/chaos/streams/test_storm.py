"""
A word count by two workers, which are killed and replaced in their sleep, while brokers, coordinators and the
controller are killed and stopped: each number of each word comes, exactly once or at least once as was asked for.

STREAMS_LONG=1 is the long form (10 minutes); CHAOS_SEED names the faults.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from tests.chaos.transactions.storm import (
    FAULTS,
    SEED,
    STOPS,
    Crew,
    Storm,
    hurt_cluster,
    make_topic,
    nothing_hangs,
    report,
    until,
)
from tests.integration.streams.apps import Row, check_each_count, check_each_count_once

from headrace.testing import TestCluster
from headrace_streams.config import EXACTLY_ONCE

LONG = os.environ.get("STREAMS_LONG") == "1"
SECONDS, LINES = (600.0, 300_000) if LONG else (14.0, 6_000)
PARTITIONS = 3
WORDS = [f"word{number}" for number in range(300)]
STEP_S = 0.1

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_800 if LONG else 300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data") as started:
        yield started


class Load(threading.Thread):
    """Writes lines evenly over the time of the storm."""

    def __init__(self, cluster: TestCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic = cluster, topic
        self.words: Counter[str] = Counter()

    def run(self) -> None:
        """To the last acknowledgement; a line that was not acknowledged fails the test by its words."""
        chance, began, sent = random.Random(SEED), time.monotonic(), 0
        with self._cluster.producer(delivery_timeout_ms=180_000) as producer:
            while sent < LINES:
                due = min(LINES, int((time.monotonic() - began) / SECONDS * LINES) + 1)
                lines = [chance.choices(WORDS, k=3) for _ in range(sent, due)]
                self.words.update(word for line in lines for word in line)
                producer.send_many(self._topic, [" ".join(line).encode() for line in lines])
                sent = due
                time.sleep(STEP_S)
            producer.flush(180)


class Workers(Crew):
    """Who was replaced in its sleep wakes, joins anew and shares the work for a while; then it is killed."""

    def tend(self) -> None:
        """Also those that woke."""
        super().tend()
        for worker in self.sleeping:
            if worker.wakes_at == float("inf") and worker.errors.read_text(errors="replace").count("joins anew"):
                worker.process.kill()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_each_number_of_each_word_comes(
    cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    lines, words = (make_topic(cluster, name, PARTITIONS) for name in ("lines", "words"))
    monkeypatch.setenv("LINES", lines)
    monkeypatch.setenv("WORDS", words)
    bootstrap = ",".join(cluster.bootstrap_servers)
    # The first starts find an empty disk, later ones that of an earlier worker.
    program = ["-m", "tests.chaos.streams.worker", bootstrap]
    crew = Workers(tmp_path, lambda slot, number: [*program, str(tmp_path / f"state-{number % 4}"), guarantee], 2)
    load = Load(cluster, lines)
    storm = Storm(cluster, crew, random.Random(SEED), FAULTS | dict.fromkeys(STOPS, 1))
    check = check_each_count_once if guarantee == EXACTLY_ONCE else check_each_count
    found: list[Row] = []
    seen: set[tuple[object, object]] = set()
    try:
        crew.start_all()
        load.start()
        storm.rage(SECONDS)
        load.join(240)
        assert not load.is_alive(), "the load was acknowledged"
        total = sum(load.words.values())
        with cluster.consumer(words, isolation_level="read_committed") as consumer:

            def all_there() -> bool:
                crew.tend()
                rows = [(r.key, orjson.loads(r.value)) for r in consumer.poll(timeout_ms=500)]
                found.extend(rows)
                seen.update((row["word"], row["n"]) for _, row in rows)
                return len(seen) >= total

            until(all_there, f"{total} words are counted")
            found.extend((r.key, orjson.loads(r.value)) for r in consumer.read_to_end())
    finally:
        crew.end()
        print("\n".join(storm.told))
    report(f"streams, {guarantee}", storm, lines=LINES, words=len(found))
    nothing_hangs(cluster, [words])
    check(found, load.words)
    assert storm.counts["kill worker"] + storm.counts["replace worker"] > 0, "workers were hurt"
